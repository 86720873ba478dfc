"""The messages of the batch dialect, and the words of this project.

Glossary (one word for each thing, used in code, docs and on the wire):

* **env**: one environment with ``reset`` and ``step``, on the server.
* **slot**: room for one env on the server; a session has a fixed number of them, numbered from 0.
* **row**: an env's index in the learner's vector env. A connection's slot ``j`` serves one row.
* **session**: a client's slots and their episodes. It outlives a broken connection for a grace time.
* **connection**: one WebSocket. It carries one session, and a session has one connection at a time.
* **request**, **reply**: a message of the client, and the server's one answer, with the same id.
* **frame**: a message's bytes, one binary WebSocket message.
* **batch**: one space's values for several envs, as a list of *leaves* in the order of
  `openenv_gym.spaces.leaves`. A leaf is an `Array` with the envs on its first axis, or `Values`.
* **transition**: what one step of one env gives: observation, reward, terminated, truncated, info.
* **autoreset**: resetting an env whose episode ended, in Gymnasium's three modes
  (gymnasium/vector/vector_env.py, ``AutoresetMode``). The server does it, so a step is one round trip.

A conversation::

    Hello → Welcome                          the spaces, and the session's name, secret and limits
    Reset → Observed                         for some or all slots
    Step → Stepped
    Launch → Launched, Collect → Collected   steps that run by themselves, and what came of those that ended first
    Call, Get, Set, Render, State → Returned
    Close → Closed
    any request → Failed                     when it could not be run at all

    after a broken connection, on a new one:
    Resume → Resumed                         and both sides send again what the other did not receive

Messages are msgspec structs, sent as MessagePack arrays whose first element is the message's tag. Plain data
inside (infos, options, arguments) goes through `openenv_gym.codec.pack`, so that tuples, numpy scalars and arrays
arrive as what they were. Nothing is pickled.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONNECTIONS_HEADER",
    "PROCESS_HEADER",
    "PROTOCOL_VERSION",
    "SUBPROTOCOL",
    "WINDOW",
    "Array",
    "Batch",
    "Call",
    "Close",
    "Closed",
    "Collect",
    "Collected",
    "EnvFailure",
    "Failed",
    "FinalRows",
    "Get",
    "Hello",
    "Launch",
    "Launched",
    "Message",
    "Numbered",
    "Observed",
    "Opening",
    "Received",
    "Render",
    "Reply",
    "Request",
    "Reset",
    "Resume",
    "Resumed",
    "Returned",
    "Set",
    "Since",
    "State",
    "Step",
    "Stepped",
    "Timings",
    "Values",
    "Welcome",
]

PROTOCOL_VERSION: Final = 1
"""Version of the batch dialect. A peer with another one is refused, with both named."""

SUBPROTOCOL: Final = "openenv-gym.v1"
"""WebSocket subprotocol that the client offers. A server that doesn't select it speaks the OpenEnv dialect."""

PROCESS_HEADER: Final = "openenv-gym-process"
"""Header of the server's handshake: which of its processes has the connection, from 0."""

CONNECTIONS_HEADER: Final = "openenv-gym-connections"
"""Header of the server's handshake: how many connections a client needs to have all of the server's processes work."""

WINDOW: Final = 8
"""Requests that a client may have without a reply, and so replies that a server keeps for a resume."""

Received: TypeAlias = bytes | bytearray
"""A frame as a connection brings it; it belongs to whoever takes it, and nobody writes into it."""

_DTYPES = {np.dtype(code).str: np.dtype(np.dtype(code).str) for code in "?bBhHiIlLqQefdFD"}
# By their strings, because "q" would give a longlong where envs expect an int64.


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="tag"):
    """Base of all structs on the wire: immutable, and sent as an array.

    A subclass inherits all of that; each repeats ``frozen=True`` because type checkers look for it there.
    """


class Array(Message, frozen=True, tag=0):
    """An array as its dtype, shape and raw little-endian bytes.

    Attributes:
        dtype: numpy's dtype string, such as ``<f4``; booleans, integers, floats and complex numbers only.
        shape: the array's shape.
        data: the C-ordered bytes; after decoding a view of the frame, without a copy.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: NDArray[Any]) -> Array:
        """Wrap an array, without a copy where it is C-contiguous and little-endian.

        Args:
            array: any shape, of a boolean or numeric dtype.

        Raises:
            TypeError: for any other dtype, and for a masked array.
        """
        name = array.dtype.str
        if name not in _DTYPES:
            name = name.replace(">", "<")
            if name not in _DTYPES:
                raise TypeError(f"an array of dtype {array.dtype} can't be sent")
            array = array.astype(name)
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):  # `ma` is slow to import
            raise TypeError("a masked array can't be sent")
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return cls(name, array.shape, array.data)

    def numpy(self) -> NDArray[Any]:
        """The array, read-only where it is a view of a frame.

        Raises:
            ValueError: if dtype, shape and the number of bytes don't fit together.
        """
        dtype = _DTYPES.get(self.dtype)
        if dtype is None:
            raise ValueError(f"unknown dtype {self.dtype!r}")
        # numpy refuses any mismatch between shape and bytes, and allocates nothing here.
        if min(self.shape, default=0) < 0:
            raise ValueError(f"negative size in shape {self.shape}")
        return np.frombuffer(self.data, dtype).reshape(self.shape)


class Values(Message, frozen=True, tag=1):
    """One packed value for each env, for spaces without a fixed shape (Text, Sequence, Graph, OneOf).

    Attributes:
        items: `openenv_gym.codec.pack`ed values, in slot order.
    """

    items: list[Any]


Batch: TypeAlias = list[Array | Values]
"""A space's values for several envs: one leaf for each of `openenv_gym.spaces.leaves`, in its order."""


# ---------------------------------------------------------------------------------------------- opening


class Hello(Message, frozen=True, tag=10, kw_only=True):
    """Asks for a session. The first message of a connection, instead of `Resume`.

    Attributes:
        version: the client's `PROTOCOL_VERSION`.
        num_envs: slots that the session shall have.
        include: dotted paths of the observation keys to send; None for all.
        exclude: dotted paths of the observation keys to leave out.
        obs_dtype: dtype to cast Box observations to before sending, or a dtype by dotted path.
        info_keys: info keys to send; None for all.
        render_mode: the envs' render mode.
        max_episode_steps: truncate episodes at this length; None leaves the env's own limit.
        max_message_bytes: the largest frame that the client reads.
        process: which of the server's processes shall have the session, from 0 and modulo their number; None for any.
            Another one refuses with ``MISDIRECTED``, and the next connection goes to the right one.
        autoreset_mode: the ``AutoresetMode`` that the client expects of a vector env, which resets its envs by itself.
        typed: send Discrete observations as the envs make them, as `Values`: an ``int`` stays one. A server that
            doesn't know this field sends arrays.
        observation_space: one env's observation space before trimming as the client wants to see it, described; None
            takes the server's.
        action_space: the same for actions.
        obs_key: the only field of an OpenEnv environment's observations that the client wants.
        action_key: the only field of its actions.
        varied: let the bounds of the envs' observation spaces differ, as long as shapes and dtypes are the same.
        mask_key: the field of an OpenEnv environment's observations that becomes the info ``action_mask``.
    """

    version: int
    num_envs: int
    include: list[str] | None = None
    exclude: list[str] | None = None
    obs_dtype: str | dict[str, str] | None = None
    info_keys: list[str] | None = None
    render_mode: str | None = None
    max_episode_steps: int | None = None
    max_message_bytes: int | None = None
    process: int | None = None
    autoreset_mode: str | None = None
    typed: bool = False
    observation_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None
    obs_key: str | None = None
    action_key: str | None = None
    varied: bool = False
    mask_key: str | None = None


class Welcome(Message, frozen=True, tag=11, kw_only=True):
    """Grants a session.

    Attributes:
        version: the server's `PROTOCOL_VERSION`.
        server: the server's name and version, for logs.
        env: name of the environment, such as ``CartPole-v1``.
        session: the session's name, which is no secret.
        secret: what `Resume` must show.
        observation_space: one env's observation space after trimming, described (`openenv_gym.spaces.describe`).
        action_space: one env's action space, described.
        metadata: the env's ``metadata``: ``render_modes``, ``render_fps`` and other plain values.
        grace_s: seconds that the session outlives a broken connection.
        max_message_bytes: the largest frame that the server reads.
        processes: server processes behind this address.
        autoreset_mode: the mode of the session's vector env, which steps and resets its envs by itself; None for single
            envs, for which each step says the mode.
        chosen: whether the server heeded the spaces and keys of `Hello`; older servers don't know them.
        generators: the state of the random generators of the first env's action space
            (`openenv_gym.spaces.generators`); None if it was never seeded.
        observation_spaces: each env's observation space where `Hello.varied` lets them differ.
        mask_key: that of `Hello`, if the server heeded it.
    """

    version: int
    server: str
    env: str
    session: str
    secret: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    metadata: dict[str, Any]
    grace_s: float
    max_message_bytes: int
    processes: int = 1
    autoreset_mode: str | None = None
    chosen: bool = False
    generators: list[bytes | None] | None = None
    observation_spaces: list[dict[str, Any]] | None = None
    mask_key: str | None = None


class Resume(Message, frozen=True, tag=12, kw_only=True):
    """Asks for a session that lost its connection. The first message of a connection, instead of `Hello`.

    Attributes:
        version: the client's `PROTOCOL_VERSION`.
        session: the name from `Welcome`.
        secret: the secret from `Welcome`.
        received: id of the last reply such that it and all before it were received.
    """

    version: int
    session: str
    secret: str
    received: int


class Resumed(Message, frozen=True, tag=13, kw_only=True):
    """Grants `Resume`; the replies after `Resume.received` follow as they are ready.

    Attributes:
        received: id of the last request that reached the server; the client sends the later ones again.
    """

    received: int


# --------------------------------------------------------------------------------------------- requests


class Numbered(Message, frozen=True):
    """Base of requests and replies: both carry the request's id.

    Attributes:
        id: 1 for a session's first request, and one more for each that follows.
    """

    id: int


class Reset(Numbered, frozen=True, tag=20):
    """Resets envs, manually: pending autoresets of theirs are forgotten.

    Attributes:
        slots: the envs to reset; None for all.
        seeds: a packed seed, of any size, or None for each of them; None for no seeds.
        options: packed options or None for each of them; None for no options.
        sticky: pass the options at each autoreset too, until the env's next `Reset`.
    """

    slots: list[int] | None
    seeds: list[Any] | None
    options: list[Any] | None
    sticky: bool = False


class Step(Numbered, frozen=True, tag=21):
    """Steps envs.

    Attributes:
        slots: the envs to step; None for all.
        actions: a `Batch` of the action space, with one entry for each of them.
        autoreset: value of the ``AutoresetMode`` to step in: ``NextStep``, ``SameStep`` or ``Disabled``, which refuses
            to step an env whose episode is over; None leaves that to the env.
        timed: ask for `Timings`. A server that doesn't know this field leaves them out.
    """

    slots: list[int] | None
    actions: Batch
    autoreset: str | None
    timed: bool = False


class Call(Numbered, frozen=True, tag=22):
    """Calls a method that the server allows, or reads the attribute of that name if it isn't callable.

    Attributes:
        slots: the envs to call; None for all.
        name: the method's name.
        args: packed positional arguments.
        kwargs: packed keyword arguments.
    """

    slots: list[int] | None
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class Get(Numbered, frozen=True, tag=23):
    """Reads an attribute of plain data.

    Attributes:
        slots: the envs to ask; None for all.
        name: the attribute's name.
    """

    slots: list[int] | None
    name: str


class Set(Numbered, frozen=True, tag=24):
    """Sets an attribute that the server allows.

    Attributes:
        slots: the envs to change; None for all.
        name: the attribute's name.
        values: a packed value for each of them.
        force: False leaves an env without that attribute alone, and returns False for it.
    """

    slots: list[int] | None
    name: str
    values: list[Any]
    force: bool = True


class Render(Numbered, frozen=True, tag=25):
    """Renders envs.

    Attributes:
        slots: the envs to render; None for all.
        png: send a frame as a PNG file, in bytes, where it can be one (`openenv_gym.images.png`).
    """

    slots: list[int] | None
    png: bool = False


class State(Numbered, frozen=True, tag=26):
    """Reads envs' state: episode id and step count, as OpenEnv's ``state`` does.

    Attributes:
        slots: the envs to ask; None for all.
    """

    slots: list[int] | None


class Close(Numbered, frozen=True, tag=27):
    """Ends the session and closes its envs."""


class Launch(Numbered, frozen=True, tag=28):
    """Begins steps that run by themselves, and doesn't wait for them; `Collect` asks what came of them.

    Attributes:
        slots: the envs to step, none of which has a launched step that isn't collected yet; None for all.
        actions: as for `Step`.
        autoreset: as for `Step`.
    """

    slots: list[int] | None
    actions: Batch
    autoreset: str | None


class Collect(Numbered, frozen=True, tag=29):
    """Asks for launched steps that have ended, each once.

    It is answered once there are enough or no more can come, and at the latest when the client sends another request,
    with what is there by then: so requests run in order, and none waits for a slow env. A `Reset` drops the launched
    steps of its envs.

    Attributes:
        at_least: how many are enough.
    """

    at_least: int


# ---------------------------------------------------------------------------------------------- replies


class EnvFailure(Message, frozen=True):
    """What one env raised; its row in the reply holds no data.

    Attributes:
        slot: the env.
        code: the error code.
        type: name of the exception's class.
        message: its text.
        traceback: its traceback, if the server allows.
    """

    slot: int
    code: str
    type: str
    message: str
    traceback: str | None = None


class FinalRows(Message, frozen=True):
    """How episodes ended whose envs were reset in the same step (``SameStep``).

    Attributes:
        positions: where in the reply these envs are.
        observations: their last observations, a `Batch` with one entry for each position.
        infos: their last, packed infos.
    """

    positions: list[int]
    observations: Batch
    infos: list[dict[Any, Any]]


class Since(float):
    """A moment on ``time.perf_counter``, which is encoded as the seconds from then to its encoding."""


class Timings(Message, frozen=True):
    """Where a step's time went on the server, in seconds, from the request's arrival to its encoded reply.

    With several worker threads, of the one that ended last.

    Attributes:
        decode: reading the request.
        queue: waiting for the session's turn, and for a worker thread that was busy.
        hop: waking up a worker thread, and the event loop afterwards.
        env: the envs' steps, and writing down what they gave.
        encode: making the reply. `Since` on the server: last of all fields, it is encoded when the reply is.
    """

    decode: float
    queue: float
    hop: float
    env: float
    encode: float


class Observed(Numbered, frozen=True, tag=30):
    """Reply to `Reset`, with the envs in the request's order.

    Attributes:
        observations: a `Batch`.
        infos: the packed, non-empty infos by position.
        failures: the envs that raised.
        unseeded: True if a seed was given that the env has no parameter for.
        vector_infos: a vector env's packed infos, for all slots of the session; None of single envs.
    """

    observations: Batch
    infos: dict[int, dict[Any, Any]]
    failures: list[EnvFailure]
    unseeded: bool = False
    vector_infos: dict[Any, Any] | None = None


class Stepped(Numbered, frozen=True, tag=31):
    """Reply to `Step`, with the envs in the request's order.

    Attributes:
        observations: a `Batch`.
        rewards: float64; of a vector env whatever it gave.
        terminated: bool.
        truncated: bool.
        infos: the packed, non-empty infos by position.
        final: the envs that were reset in this step, if any.
        failures: the envs that raised.
        vector_infos: a vector env's packed infos, with its last observations where it gives any; None of single envs.
        timings: where the time went, if that was asked for; the last field, see `Timings.encode`.
    """

    observations: Batch
    rewards: Array
    terminated: Array
    truncated: Array
    infos: dict[int, dict[Any, Any]]
    final: FinalRows | None
    failures: list[EnvFailure]
    vector_infos: dict[Any, Any] | None = None
    timings: Timings | None = None


class Returned(Numbered, frozen=True, tag=32):
    """Reply to `Call`, `Get`, `Set`, `Render` and `State`.

    Attributes:
        values: a packed value for each env.
        failures: the envs that raised.
    """

    values: list[Any]
    failures: list[EnvFailure]


class Launched(Numbered, frozen=True, tag=35):
    """Reply to `Launch`: the steps have begun."""


class Collected(Numbered, frozen=True, tag=36):
    """Reply to `Collect`. There may be fewer than were asked for: the client asks again for the others.

    Attributes:
        slots: the envs that made their step, ascending.
        steps: what came of their steps, in this order; its failures are those of other envs, whose steps raised.
    """

    slots: list[int]
    steps: Stepped


class Closed(Numbered, frozen=True, tag=33):
    """Reply to `Close`."""


class Failed(Numbered, frozen=True, tag=34):
    """The request, or with id 0 the opening, could not be run at all; nothing was changed.

    Attributes:
        code: the error code, such as ``VALIDATION_ERROR`` or ``CAPACITY_REACHED``. An opening that is ``MISDIRECTED``
            is to be tried again at once on a new connection.
        error: name of the exception's class, or ``""``.
        message: what is wrong.
        facts: numbers that belong to it, such as ``active`` and ``maximum``.
        traceback: the exception's traceback, if the server allows.
    """

    code: str
    error: str
    message: str
    facts: dict[str, int] = {}
    traceback: str | None = None


Opening: TypeAlias = Hello | Resume
Request: TypeAlias = Reset | Step | Call | Get | Set | Render | State | Close | Launch | Collect
Reply: TypeAlias = Observed | Stepped | Returned | Closed | Failed | Launched | Collected
