"""What clients may do to an env besides resetting and stepping it. No threads and no I/O here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from openenv_gym.codec import PackError, pack, unpack
from openenv_gym.images import png
from openenv_gym.messages import Call, Get, Render, Set
from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.settings import ServerSettings

__all__ = ["NotAllowed", "Use", "use_of"]

Use: TypeAlias = Callable[[HostedEnv, int], Any]
"""What a request does with an env at a position."""


class NotAllowed(PermissionError):
    """Raised for a name that this server's settings don't allow."""


def use_of(request: Call | Get | Set | Render, count: int, settings: ServerSettings) -> Use:
    """What a request does with each of its envs.

    Args:
        request: the request.
        count: the number of its envs.
        settings: the server's settings, which say what is allowed.

    Raises:
        NotAllowed: for a name that isn't.
        ValueError: for another number of values than of envs.
        RemoteProtocolError: for malformed values or arguments.
    """
    if isinstance(request, Render):
        return lambda env, _: _as_png(env.render()) if request.png else env.render()
    name = request.name
    if isinstance(request, Get):
        _allow(name, settings.allow_get, "get", "read")
        return lambda env, _: _plain(env.get(name), name)
    if isinstance(request, Set):
        _allow(name, settings.allow_set, "set", "set")
        if len(request.values) != count:
            raise ValueError(f"{len(request.values)} values for {count} envs")
        values, force = [unpack(value) for value in request.values], request.force
        return lambda env, position: env.set(name, values[position], force=force)
    _allow(name, settings.allow_call, "call", "call")
    # Unpacked for each env, so that none gets what another one changed.
    arguments = [(unpack(request.args), unpack(request.kwargs)) for _ in range(count)]

    def call(env: HostedEnv, position: int) -> Any:
        found, (args, kwargs) = env.get(name), arguments[position]
        return found(*args, **kwargs) if callable(found) else found

    return call


def _as_png(rendered: Any) -> Any:
    """A frame as a PNG file, or a vector env's frames as such; what can't be one stays as it is."""
    if isinstance(rendered, (list, tuple)):
        return [_as_png(frame) for frame in rendered]
    file = png(rendered) if isinstance(rendered, np.ndarray) else None
    return rendered if file is None else file


def _allow(name: str, allowed: frozenset[str] | None, setting: str, verb: str) -> None:
    if name.startswith("_"):
        raise NotAllowed(f"clients may not {verb} {name!r}: names with a leading underscore are private")
    if allowed is not None and name not in allowed:
        known = f"it allows {', '.join(sorted(allowed))}" if allowed else "it allows none"
        raise NotAllowed(f"clients of this server may not {verb} {name!r}; {known} (its setting is allow_{setting})")


def _plain(value: Any, name: str) -> Any:
    """The value, if it is plain data: to a client, an attribute of another kind doesn't exist."""
    if callable(value):
        raise AttributeError(f"{name!r} is a method; only plain data can be read")  # noqa: TRY004
    try:
        pack(value, name)
    except PackError as error:
        raise AttributeError(f"only plain data can be read; {error}") from None
    return value
