"""The keyword options of `RemoteVecEnv` and `RemoteEnv`, validated, and what they mean for the pool."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from openenv_gym.dial import Target, default_url, websocket_url
from openenv_gym.discovery import Reading
from openenv_gym.errors import OptionError, SpaceError
from openenv_gym.images import from_png
from openenv_gym.launcher import Launcher
from openenv_gym.messages import PROTOCOL_VERSION, Hello
from openenv_gym.placement import Placement
from openenv_gym.pool import PoolSettings
from openenv_gym.spaces import describe

__all__ = ["RemoteOptions", "checked_mode"]


class RemoteOptions(BaseModel):
    """Everything that can be set about a remote env.

    Attributes:
        base_url: one URL, or several that the envs are spread over evenly, or a `openenv_gym.launcher.Launcher`, whose
            servers the envs follow; None takes ``$OPENENV_BASE_URL``, else ``http://localhost:8000``. ``http``,
            ``https``, ``ws`` and ``wss`` alike.
        connections: connections to servers that speak the batch dialect, from one for each server to one for each env.
            None takes one for each process of each server, which is fastest for most envs.
        include: dotted paths of the observation keys to send; None for all. OpenEnv servers send all; there, what this
            and the next three leave out is left out by the client.
        exclude: dotted paths of the observation keys to leave out.
        obs_dtype: dtype to cast Box observations to before sending, or a dtype by dotted path.
        info_keys: info keys to send; None for all.
        render_mode: the envs' render mode.
        frames: how frames travel from our servers: ``"raw"``, or compressed without loss as ``"png"``, which spares a
            slow link and costs the server time. Frames other than of uint8 in grey or RGB stay raw.
        max_episode_steps: truncate episodes at this length; None and -1 leave the env's own limit.
        token: the bearer token; None takes ``$OPENENV_GYM_TOKEN``.
        headers: more headers for the handshake.
        connect_timeout_s: limit in seconds for a connection.
        wait_for_room: where a server is full, wait for at most ``connect_timeout_s`` rather than raise `CapacityError`.
        message_timeout_s: limit for the reply to a step, over all envs; ``inf`` sets none.
        reset_timeout_s: limit for the reply to a reset, and for building the envs; None takes ``message_timeout_s``.
        close_timeout_s: limit for closing.
        reconnect_timeout_s: limit for resuming after a connection broke.
        max_message_size_mb: the largest message in MiB, in either direction.
        ping_interval_s: seconds between WebSocket pings; None sends none.
        ping_timeout_s: seconds after which a missing pong breaks the connection; None waits for ever.
        on_lost: what to do about rows whose session is gone: ``"truncate"`` or ``"raise"``.
        observation_space: one env's observation space, for OpenEnv servers, which don't say it; None infers it from
            the server's schema and one reset (see `openenv_gym.inference`). It is the space before trimming. Our own
            servers take this, the next three and ``mask_key`` for what they host; what they can't do is done in
            OpenEnv's dialect.
        action_space: one env's action space, for OpenEnv servers; None infers it.
        obs_key: the only observation field of an OpenEnv environment to use.
        action_key: the only action field to use.
        encode_action: a function that makes an action's fields from a value of the action space. This and the next are
            for OpenEnv's dialect, and select it: one JSON message for each env.
        decode_observation: a function that makes a value of the observation space from an observation's fields.
        mask_key: an observation field that lists the allowed actions, or a flag for each; it becomes the info
            ``action_mask``.
        dialect: ``"openenv"`` to speak OpenEnv's dialect to any server; None for the best that each speaks.
        openenv_sessions: use OpenEnv's session API where a server has it, so that an episode survives a broken
            connection. A small second process closes the sessions if this one is killed; of a machine that failed the
            server keeps them, for ever by default. With False a session ends with its connection. But then a server
            with a ``session_timeout`` closes the env of a session that pauses for longer, and goes on stepping the
            closed env as if nothing had happened.
        ca_file: PEM file with the certificate authorities to trust for ``https`` and ``wss``; None takes the system's.
        ssl: TLS settings where a file of authorities isn't enough, such as a certificate of the client's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    base_url: str | tuple[str, ...] | Launcher | None = None
    connections: int | None = Field(default=None, ge=1)
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    obs_dtype: str | dict[str, str] | None = None
    info_keys: tuple[str, ...] | None = None
    render_mode: str | None = None
    frames: Literal["raw", "png"] = "raw"
    max_episode_steps: int | None = Field(default=None, ge=-1)
    token: SecretStr | None = None
    headers: dict[str, str] | None = Field(default=None, repr=False)
    wait_for_room: bool = False
    connect_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    message_timeout_s: float = Field(default=60.0, gt=0)
    reset_timeout_s: float | None = Field(default=None, gt=0)
    close_timeout_s: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    reconnect_timeout_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    max_message_size_mb: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    ping_interval_s: float | None = Field(default=60.0, gt=0, allow_inf_nan=False)
    ping_timeout_s: float | None = Field(default=60.0, gt=0, allow_inf_nan=False)
    on_lost: Literal["truncate", "raise"] = "truncate"
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    obs_key: str | None = None
    action_key: str | None = None
    encode_action: Callable[[Any], dict[str, Any]] | None = None
    decode_observation: Callable[[dict[str, Any]], Any] | None = None
    mask_key: str | None = None
    dialect: Literal["openenv"] | None = None
    openenv_sessions: bool = True
    ca_file: Path | None = None
    ssl: SSLContext | None = Field(default=None, repr=False)

    @classmethod
    def from_kwargs(cls, options: Mapping[str, Any], *, also: Iterable[str] = ()) -> RemoteOptions:
        """Validate keyword arguments.

        Args:
            options: the arguments.
            also: names of other arguments that the user may have meant.

        Raises:
            OptionError: naming each option that is unknown or has a bad value. Values aren't shown: one may be a token.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            known = {*cls.model_fields, *also}
            problems = [_problem(e, options, known) for e in error.errors(include_input=False, include_url=False)]
        # Out here, because pydantic's error holds the values, and would be this one's context.
        raise OptionError("; ".join(problems))

    @property
    def urls(self) -> tuple[str, ...]:
        """The WebSocket endpoints of servers that were named by URLs.

        Raises:
            OptionError: for something that is no URL.
        """
        given = self.base_url if self.base_url is not None else default_url()
        assert not isinstance(given, Launcher)
        urls = (given,) if isinstance(given, str) else given
        if not urls:
            raise OptionError("base_url is an empty list")
        return tuple(websocket_url(url) for url in urls)

    @property
    def resets_within_s(self) -> float:
        """The limit for a reset."""
        return self.reset_timeout_s if self.reset_timeout_s is not None else self.message_timeout_s

    @property
    def max_message_bytes(self) -> int:
        """The largest message in bytes."""
        return int(self.max_message_size_mb * 1024 * 1024)

    @property
    def png(self) -> bool:
        """Whether frames travel as PNG files."""
        return self.frames == "png"

    def frame_of(self, sent: Any) -> Any:
        """What an env rendered, from what a server sent for it.

        Raises:
            RemoteProtocolError: for a PNG file that isn't one of our servers', or whose frame is larger than a message
                may be.
        """
        return from_png(sent, self.max_message_bytes) if self.png and isinstance(sent, bytes) else sent

    def pool_settings(
        self, num_envs: int, autoreset_mode: str | None = None, *, typed: bool = False, varied: bool = False
    ) -> PoolSettings:
        """How a pool connects for these options.

        Args:
            num_envs: the number of envs.
            autoreset_mode: the ``AutoresetMode`` that a vector env shall have; None where none would do.
            typed: have Discrete observations in the types that the envs give them.
            varied: let the bounds of the envs' observation spaces differ.
        """
        limit = self.max_message_bytes
        launcher = self.base_url if isinstance(self.base_url, Launcher) else None
        template = Target(
            "",
            self._bearer(launcher),
            self.headers or {},
            self.connect_timeout_s,
            limit,
            self.ping_interval_s,
            self.ping_timeout_s,
            self._tls(),
        )
        placement = None if launcher is None else Placement(launcher, template)
        if placement is not None:
            targets = placement.targets()
        else:
            targets = [dataclasses.replace(template, url=url) for url in self.urls]
        hello = Hello(
            version=PROTOCOL_VERSION,
            num_envs=num_envs,
            include=_listed(self.include),
            exclude=_listed(self.exclude),
            obs_dtype=self.obs_dtype,
            info_keys=_listed(self.info_keys),
            render_mode=self.render_mode,
            max_episode_steps=self.max_episode_steps if self.max_episode_steps != -1 else None,
            max_message_bytes=limit,
            autoreset_mode=autoreset_mode,
            typed=typed,
            varied=varied,
            observation_space=_described(self.observation_space),
            action_space=_described(self.action_space),
            obs_key=self.obs_key,
            action_key=self.action_key,
            mask_key=self.mask_key,
        )
        reading = Reading(self.obs_key, self.action_key, self.encode_action, self.decode_observation, self.mask_key)
        return PoolSettings(
            targets=targets,
            num_envs=num_envs,
            connections=self.connections,
            hello=hello,
            dialect="openenv" if reading.needs_fields else self.dialect,
            reading=reading,
            observation_space=self.observation_space,
            action_space=self.action_space,
            open_timeout_s=self.connect_timeout_s + self.resets_within_s,
            reconnect_timeout_s=self.reconnect_timeout_s,
            room_timeout_s=self.connect_timeout_s if self.wait_for_room else 0.0,
            openenv_sessions=self.openenv_sessions,
            placement=placement,
            truncates=self.on_lost == "truncate",
        )

    def _tls(self) -> SSLContext | None:
        if self.ca_file is None:
            return self.ssl
        if self.ssl is not None:
            raise OptionError("ca_file and ssl are two ways to say whom to trust: leave one out")
        try:
            return create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl.SSLError too
            raise OptionError(f"ca_file: {self.ca_file} can't be used: {error}") from None

    def _bearer(self, launcher: Launcher | None) -> str | None:
        if self.token:
            return self.token.get_secret_value()
        return (launcher.token if launcher is not None else None) or os.environ.get("OPENENV_GYM_TOKEN") or None


def checked_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """The autoreset mode of this name.

    Raises:
        OptionError: if there is none.
    """
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(one.value) for one in AutoresetMode)
        raise OptionError(f"autoreset_mode is one of {known}, not {mode!r}") from None


def _problem(error: Any, options: Mapping[str, Any], known: Iterable[str]) -> str:
    """What pydantic found wrong with an option."""
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return _unknown(name, known)
    given = options[name]
    hint = f", such as {(given,)!r}" if error["type"] == "tuple_type" and isinstance(given, str) else ""
    return f"{name}: {error['msg']}{hint}"


def _unknown(name: str, known: Iterable[str]) -> str:
    if name == "num_envs":
        return "unknown option 'num_envs': gym.make makes one env, and gym.make_vec several"
    ends = [other for other in sorted(known) if other.endswith(f"_{name}")]  # such as url, of base_url
    close = difflib.get_close_matches(name, sorted(known), 1) or ends[:1]
    return f"unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _described(space: gym.Space[Any] | None) -> dict[str, Any] | None:
    """The space as data; None also for one of a class of the user's own, which no server knows."""
    try:
        return None if space is None else describe(space)
    except SpaceError:
        return None
