"""The server's settings: validated values with their units, and no behaviour."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from openenv_gym.errors import OptionError

__all__ = ["ServerSettings"]


class ServerSettings(BaseModel):
    """Everything that can be set about a server.

    Attributes:
        max_envs: envs that exist at a time, over all sessions.
        max_workers: threads that run envs. None lets the server decide: one thread for a session whose envs keep the
            processor busy, one for each env where they wait (see `openenv_gym.server.executor`).
        token: what clients must show as ``Authorization: Bearer …``; None admits everybody.
        allowed_origins: values of the ``Origin`` header that browsers may come with, compared exactly. A request
            without the header, which is what programs send, is always admitted.
        allow_call: methods that clients may call; None for all. Names with a leading underscore never are.
        allow_set: attributes that clients may set; None for all public ones.
        allow_get: attributes that clients may read; None lets them read every public attribute that is plain data.
        env_kwargs: keyword arguments for the environment.
        env_name: the name to publish; None takes the env's own.
        grace_s: seconds that a session outlives a broken connection.
        idle_timeout_s: seconds without a request after which a session is closed; None never does. The time that an
            env takes for a step doesn't count.
        max_step_s: seconds that one call of one env (step, reset, render, close, …) may take; None sets no limit. An
            env that takes longer is given up with its thread: its row is a ``STEP_TIMEOUT``, and its next reset builds
            a new one. So each env has a thread of its own, and ``max_workers`` can't be set as well.
        opening_timeout_s: seconds for what comes before a session: the head and the body of a request, and a
            connection's first message. Whoever takes longer is dropped, for each of them holds a descriptor.
        max_message_size_mb: the largest message in MiB, in either direction, and the most that a session keeps of its
            last replies for a resume.
        ping_interval_s: seconds between WebSocket pings; None sends none.
        ping_timeout_s: seconds after which a missing pong closes the connection, and a peer that takes nothing of what
            it is sent loses it; None waits for ever.
        shutdown_s: seconds that running steps have to end at shutdown. ``openenv-gym serve`` and a `LocalServer`'s
            process are gone within three seconds more, whatever an env does.
        mode: ``production`` leaves out the routes that reset and step an env without a session (``/reset``, ``/step``
            and ``/state``), and gives the agents that OpenEnv environments wrap the route ``/harness``.
        web: serve a page at ``/web`` that shows what the server does, and lets people try an env.
        debug: send remote tracebacks to clients, and the paths of files that errors name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_envs: int = Field(default=1024, ge=1)
    max_workers: int | None = Field(default=None, ge=1)
    token: SecretStr | None = None
    allowed_origins: tuple[str, ...] = ()
    allow_call: frozenset[str] | None = frozenset()
    allow_set: frozenset[str] | None = frozenset()
    allow_get: frozenset[str] | None = None
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    env_name: str | None = None
    grace_s: float = Field(default=60.0, ge=0)
    idle_timeout_s: float | None = Field(default=3600.0, gt=0)
    max_step_s: float | None = Field(default=None, gt=0)
    opening_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    max_message_size_mb: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    ping_interval_s: float | None = Field(default=60.0, gt=0)
    ping_timeout_s: float | None = Field(default=60.0, gt=0)
    shutdown_s: float = Field(default=5.0, ge=0)
    mode: Literal["simulation", "production"] = "simulation"
    web: bool = True
    debug: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> ServerSettings:
        if self.max_step_s is not None and self.max_workers is not None:
            raise ValueError("max_step_s gives each env a thread of its own, so max_workers can't be set as well")
        return self

    @property
    def max_message_bytes(self) -> int:
        """The largest message in bytes."""
        return int(self.max_message_size_mb * 1024 * 1024)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> ServerSettings:
        """Validate keyword options.

        Raises:
            OptionError: naming each option that is unknown or has a bad value.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            problems = [_problem(e["loc"], e["msg"]) for e in error.errors(include_input=False)]
            known = ", ".join(cls.model_fields)
            raise OptionError(f"bad option(s): {'; '.join(problems)} (known: {known})") from None


def _problem(where: tuple[int | str, ...], what: str) -> str:
    what = what.removeprefix("Value error, ")
    return f"{'.'.join(map(str, where))}: {what}" if where else what
