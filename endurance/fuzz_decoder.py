"""Coverage-guided fuzzing of everything that turns a peer's bytes into data; libFuzzer's options are its arguments."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["openenv_gym"]):
    import numpy as np
    from gymnasium import spaces

    from openenv_gym import codec
    from openenv_gym.errors import RemoteProtocolError, SpaceError
    from openenv_gym.json_values import from_json
    from openenv_gym.messages import Stepped
    from openenv_gym.server import openenv_dialect
    from openenv_gym.server.encoding import BatchEncoding
    from openenv_gym.server.openenv_messages import DialectError
    from openenv_gym.spaces import build

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from test_codec import FRAMES, read_fully

DECODERS = list(FRAMES)
SPACE = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "choice": spaces.Discrete(3),
        "text": spaces.Text(4),
        "many": spaces.Sequence(spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])),
        "graph": spaces.Graph(spaces.Box(-1, 1, (1,)), spaces.Discrete(2)),
        "either": spaces.OneOf([spaces.Discrete(2), spaces.MultiBinary(3)]),
    }
)
ENCODING = BatchEncoding(SPACE, SPACE)


def decode(data: bytes) -> None:
    """A frame of either side: refused, or whatever is in it can be read."""
    with contextlib.suppress(RemoteProtocolError):
        read_fully(DECODERS[data[0] % len(DECODERS)](data[1:]))


def unpack(data: bytes) -> None:
    """What `unpack` gives can be packed again; and as the description of a space it is one, or is refused."""
    try:
        value = codec.unpack(codec._decoder(object)(data))
    except (RemoteProtocolError, codec.msgspec.MsgspecError, RecursionError):
        return
    with contextlib.suppress(codec.PackError):  # sets of one element where two were equal, keys of extensions, …
        codec.pack(value)
    with contextlib.suppress(SpaceError):
        build(value)


def act(data: bytes) -> None:
    """The actions in a step's frame."""
    with contextlib.suppress(RemoteProtocolError):
        request = codec.decode_request(data)
        if hasattr(request, "actions"):
            ENCODING.actions(request.actions, 1 if request.slots is None else len(request.slots))


def observe(data: bytes) -> None:
    """The arrays of a step's reply."""
    with contextlib.suppress(RemoteProtocolError, ValueError):
        reply = codec.decode_reply(data)
        if isinstance(reply, Stepped):
            reply.rewards.numpy()
            reply.final and [codec.unpack(info) for info in reply.final.infos]


def read_json(data: bytes) -> None:
    """A message of the OpenEnv dialect, and the value of a space in it."""
    for text in (data, data.decode("utf-8", "replace")):
        for exact in (False, True):
            with contextlib.suppress(DialectError):
                message = openenv_dialect._read(text, exact=exact)
                with contextlib.suppress(SpaceError):
                    from_json(SPACE, getattr(message, "data", None))


TARGETS = [decode, decode, unpack, act, observe, read_json]


def one_input(data: bytes) -> None:
    """Called by the fuzzer with each input: anything but the errors that are meant for it is a finding."""
    if len(data) > 1:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds() -> list[bytes]:
    """One input for each kind of message, for the fuzzer to start from."""
    frames = [(i, codec.encode(message)) for i, group in enumerate(FRAMES.values()) for message in group]
    texts = [b'{"type": "reset", "data": {"seed": 1}}', b'{"type": "step", "data": {"choice": 1, "image": [[0, 1]]}}']
    found = [bytes([0, i]) + frame for i, frame in frames]
    found += [bytes([target]) + frame for target in (2, 3, 4) for _, frame in frames]
    return found + [b"\5" + text for text in texts]


if __name__ == "__main__":
    corpus = Path(sys.argv[1])
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
