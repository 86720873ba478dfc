"""What a server in the OpenEnv dialect says about itself beside its WebSocket endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import gymnasium as gym
from gymnasium import spaces

from openenv_gym import openenv_sessions
from openenv_gym.choices import Choices
from openenv_gym.dial import Target
from openenv_gym.errors import ConnectFailed, OpenEnvGymError, RemoteEnvError, SpaceError
from openenv_gym.inference import Fields
from openenv_gym.json_channel import JsonChannel
from openenv_gym.json_form import JsonForm
from openenv_gym.spaces import build, leaf_dtype, leaf_shape, leaves

__all__ = ["Discovery", "Reading", "discover", "fetch"]


@dataclass(frozen=True)
class Reading:
    """What the user said about the values of an OpenEnv server; see `openenv_gym.options.RemoteOptions`."""

    obs_key: str | None = None
    action_key: str | None = None
    encode_action: Callable[[Any], dict[str, Any]] | None = None
    decode_observation: Callable[[dict[str, Any]], Any] | None = None
    mask_key: str | None = None

    @property
    def needs_fields(self) -> bool:
        """Whether it has functions, which need the fields as OpenEnv's dialect has them."""
        return self.encode_action is not None or self.decode_observation is not None

    def choices(self, observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None) -> Choices:
        """The same for `openenv_gym.inference`, with the spaces."""
        return Choices(self.obs_key, self.action_key, observation_space, action_space, self.mask_key)


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Attributes:
        form: how values look as JSON.
        lasting: whether sessions can outlive a broken connection.
        metadata: the env's ``render_modes`` and ``render_fps``, which only servers of ours say.
    """

    form: JsonForm
    lasting: bool
    metadata: dict[str, Any] = field(default_factory=dict)


async def discover(
    target: Target,
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    reading: Reading | None = None,
    sample: Callable[[], Awaitable[dict[str, Any]]] | None = None,
) -> Discovery:
    """Ask a server for its field names and its spaces, where they aren't given, and how its sessions end.

    Args:
        target: the server.
        observation_space: one env's observation space; None infers it (see `openenv_gym.inference`).
        action_space: one env's action space; None infers it.
        reading: what else the user said.
        sample: gives the fields of one real observation, for the shapes that no schema says.

    Raises:
        SpaceError: if a space is neither given nor can be inferred, or doesn't fit the fields.
        ConnectFailed: if the server doesn't answer.
    """
    reading = reading or Reading()
    described = await fetch(target, "/spaces")  # a server of ours says them
    if described is not None:
        if observation_space is None:
            observation_space = _part(described["observation_space"], reading.obs_key)
        taken = _part(described["action_space"], reading.action_key)
        if action_space is None:
            action_space = taken
        elif reading.encode_action is None:
            _check_actions(action_space, taken)
    schema = await fetch(target, "/schema") or {}
    form = await _form(schema, reading.choices(observation_space, action_space), reading, sample)
    form = dataclasses.replace(form, gymnasium=described is not None)
    if described is None:
        return Discovery(form, await _keeps_sessions(target))
    about = await fetch(target, "/metadata") or {}
    return Discovery(form, False, {name: about[name] for name in ("render_modes", "render_fps") if about.get(name)})


async def _form(
    schema: dict[str, Any],
    choices: Choices,
    reading: Reading,
    sample: Callable[[], Awaitable[dict[str, Any]]] | None,
) -> JsonForm:
    # Actions first, for they cost no reset.
    if reading.encode_action is not None:
        action = _chosen(choices.action_space, "encode_action", "action_space")
    else:
        action = choices.action(schema.get("action", {}))
    if reading.decode_observation is not None:
        observation = _chosen(choices.observation_space, "decode_observation", "observation_space")
    else:
        seen = await sample() if choices.observation_space is None and sample is not None else None
        # A reset may have a model of its own, but the steps' is what there will be.
        observation = choices.observation(schema.get("observation", {}), seen, schema.get("action", {}))
    mask = choices.mask(schema.get("observation", {}), action)
    return JsonForm(
        observation,
        action,
        encode_action=reading.encode_action,
        decode_observation=reading.decode_observation,
        mask=mask,
    )


def _chosen(space: gym.Space[Any] | None, function: str, needed: str) -> Fields:
    """A space whose values the user's own function makes."""
    if space is None:
        raise SpaceError(f"{function}= needs {needed}=, for only you know what it makes")
    return Fields(space, None)


def _part(description: Any, key: str | None) -> gym.Space[Any]:
    space = build(description)
    if key is None:
        return space
    if not isinstance(space, spaces.Dict) or key not in space.spaces:
        raise SpaceError(f"there is no {key!r} in {space}")
    return space.spaces[key]


def _check_actions(wanted: gym.Space[Any], taken: gym.Space[Any]) -> None:
    """Raise `SpaceError` for actions that the env can't take for its own, rather than at the first step."""
    known = {leaf.path: leaf for leaf in leaves(taken) if leaf.is_array}
    for mine in leaves(wanted):
        theirs = known.get(mine.path)
        if not mine.is_array or theirs is None:
            continue
        shapes = leaf_shape(mine.space), leaf_shape(theirs.space)
        rounded = leaf_dtype(mine.space).kind == "f" and leaf_dtype(theirs.space).kind != "f"
        if rounded or (shapes[0] != shapes[1] and shapes != ((1,), ())):  # which stands for a number
            raise SpaceError(f"a value of {wanted} isn't taken for one of the env's {taken}; pass encode_action=")


async def _keeps_sessions(target: Target) -> bool:
    """Whether sessions can be made and attached to. There were servers that took the id of one, and gave a new env."""
    if not await openenv_sessions.can_create(target):
        return False
    channel = JsonChannel(openenv_sessions.attached(target))
    try:
        await channel.open()
    except RemoteEnvError as error:
        return "Unknown session_id" in error.message
    except OpenEnvGymError:
        return False
    finally:
        await channel.close()
    return False


async def fetch(target: Target, path: str) -> dict[str, Any] | None:
    """GET a JSON object beside the WebSocket endpoint; None if the server has none there.

    Raises:
        ConnectFailed: if the server doesn't answer.
    """
    parts = urlsplit(target.url)
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    url = urlunsplit(SplitResult(scheme, parts.netloc, parts.path.removesuffix("/ws") + path, "", ""))
    request = urllib.request.Request(url, headers=target.all_headers())  # noqa: S310 - http or https, see above
    handlers: list[Any] = [urllib.request.ProxyHandler({})] if target.is_loopback else []
    if target.ssl is not None:
        handlers.append(urllib.request.HTTPSHandler(context=target.ssl))
    opener = urllib.request.build_opener(*handlers)

    def get() -> dict[str, Any] | None:
        with opener.open(request, timeout=target.connect_timeout_s) as response:
            data = json.loads(response.read(target.max_message_bytes))
        return data if isinstance(data, dict) else None

    try:
        return await asyncio.get_running_loop().run_in_executor(None, get)
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        raise ConnectFailed(url, f"{type(error).__name__}: {error}") from error
