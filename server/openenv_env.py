"""An OpenEnv environment on the server, taken by its methods: OpenEnv itself is never imported.

The interface is that of openenv/core/env_server/interfaces.py (``Environment``): ``reset`` and ``step``, or
``reset_async`` and ``step_async``, return an observation with ``reward``, ``done`` and ``metadata``; ``state`` is a
property.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

import gymnasium as gym
from gymnasium import spaces
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from openenv_gym.choices import Choices
from openenv_gym.errors import FactoryError
from openenv_gym.inference import NOT_VALUES, Fields, is_tool_call
from openenv_gym.server.coroutines import Coroutines
from openenv_gym.server.openenv_values import Pending

__all__ = ["Models", "OpenEnvEnv", "is_openenv", "models_of", "schema_of", "wraps_an_agent"]

_NO_SPACE: Final = spaces.Dict()
_TOOL_ACTIONS: Final = {"ListToolsAction": "list_tools", "CallToolAction": "call_tool"}


class _AnyType(GenerateJsonSchema):
    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def schema_of(model: type[Any]) -> dict[str, Any]:
    """The JSON schema of a model. A field of a class that JSON Schema can't describe, such as numpy's, may be anything.

    OpenEnv's models may have such fields; only its servers' ``/schema`` fails then.
    """
    schema: dict[str, Any] = model.model_json_schema(schema_generator=_AnyType)
    return schema


@dataclass(frozen=True)
class Models:
    """The pydantic models of an OpenEnv environment.

    Attributes:
        action: of its actions.
        observation: of its observations.
        state: of its state; None if it wasn't said.
        reset_observation: of the observation of a reset, where it is another one.
    """

    action: type[Any]
    observation: type[Any]
    state: type[Any] | None = None
    reset_observation: type[Any] | None = None

    @functools.cached_property
    def tool_actions(self) -> dict[str, type[Any]]:
        """OpenEnv's own tool actions by their ``type``, if `action` is its base class of actions or one of them.

        An environment looks at an action's class, so it must be OpenEnv's. Whoever has the base class has imported the
        module beside it too. See openenv/core/env_server/serialization.py, ``_deserialize_mcp_action``.
        """
        package, _, module = self.action.__module__.rpartition(".")
        if module not in {"types", "mcp_types"} or self.action.__name__ not in {"Action", *_TOOL_ACTIONS}:
            return {}
        found = vars(sys.modules.get(f"{package}.mcp_types", object))
        return {kind: found[name] for name, kind in _TOOL_ACTIONS.items() if name in found}

    def action_of(self, data: dict[str, Any]) -> Any:
        """The action with these fields. Tools are called with actions of their own type.

        Raises:
            ValidationError: if they don't fit.
        """
        kind = data.get("type")
        model = self.tool_actions.get(kind, self.action) if isinstance(kind, str) else self.action
        return model.model_validate(data)

    @property
    def declared_state(self) -> type[Any] | None:
        """The model of the states: what was said, or OpenEnv's own base class of states.

        That is found in the module that has the base class of the observations.
        """
        base = next((kind for kind in self.observation.__mro__ if kind.__name__ == "Observation"), None)
        found = self.state or getattr(sys.modules.get(base.__module__ if base else ""), "State", None)
        return found if hasattr(found, "model_json_schema") else None

    def needs_sample(self, choices: Choices) -> bool:
        """Whether a real observation can help to infer spaces."""
        known = choices.observation_space is not None or is_tool_call(schema_of(self.action))
        return not known and bool(self.observation.model_fields.keys() - NOT_VALUES)

    def fields(self, choices: Choices, sample: dict[str, Any] | None) -> tuple[Fields, Fields]:
        """How observations and actions make up values of spaces.

        Args:
            choices: what was said about the spaces.
            sample: the fields of a real observation; None if there was none.

        Raises:
            SpaceError: if they don't.
        """
        actions = schema_of(self.action)
        action = choices.action(actions)  # which is the first to be told, for it costs no reset to find out
        return choices.observation(schema_of(self.observation), sample, actions), action


def is_openenv(env: object) -> bool:
    """Whether an env, or a class of envs, has OpenEnv's interface."""
    kind = env if isinstance(env, type) else type(env)
    if issubclass(kind, (gym.Env, gym.vector.VectorEnv)):
        return False
    has = {name: callable(getattr(kind, name, None)) for name in ("reset", "step", "reset_async", "step_async")}
    return (has["reset"] or has["reset_async"]) and (has["step"] or has["step_async"]) and hasattr(kind, "state")


def wraps_an_agent(env: object) -> bool:
    """Whether an environment is OpenEnv's ``HarnessEnvironment``, whose steps are turns of a conversation."""
    return any(kind.__name__ == "HarnessEnvironment" for kind in type(env).__mro__)


def models_of(env: object, name: str) -> Models:
    """The models of an environment class: from its generic parameters, else from the hints of its methods.

    Raises:
        FactoryError: if the class doesn't say them.
    """
    kind = env if isinstance(env, type) else type(env)
    found = [parameter for base in _generic_bases(kind) for parameter in get_args(base) if _is_model(parameter)]
    if len(found) >= 2:
        return Models(found[0], found[1], found[2] if len(found) > 2 else None)
    hinted = [_hinted(kind, method) for method in ("step", "step_async")]
    action = next((action for action, _ in hinted if action is not None), None)
    observation = next((observation for _, observation in hinted if observation is not None), None)
    if action is None or observation is None:
        missing = "action" if action is None else "observation"
        raise FactoryError(
            name,
            f"{kind.__name__} is an OpenEnv environment, and neither its generic parameters nor the type hints of its "
            f"step say which class its {missing}s have; in Python, call "
            f"`openenv_gym.server.create_app({kind.__name__}, MyAction, MyObservation)`, and serve that",
        )
    return Models(action, observation)


def _generic_bases(kind: type) -> list[Any]:
    return [base for parent in kind.__mro__ for base in parent.__dict__.get("__orig_bases__", ()) if get_origin(base)]


def _is_model(hint: Any) -> bool:
    """A class with fields of its own; the base class that a method of the interface names says nothing."""
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _hinted(kind: type, method: str) -> tuple[type[Any] | None, type[Any] | None]:
    function = getattr(kind, method, None)
    try:
        hints = get_type_hints(function)
        names = [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]
    except (TypeError, NameError, ValueError, AttributeError):
        return None, None
    action, observation = hints.get(names[0]) if names else None, hints.get("return")
    return (action if _is_model(action) else None), (observation if _is_model(observation) else None)


class OpenEnvEnv:
    """An OpenEnv environment, stepped and reset like a Gymnasium env.

    Args:
        env: the environment.
        observation_space: what was inferred or chosen for it; None where nothing could.
        action_space: the same of its actions.

    Attributes:
        env: the environment.
        observation_space: its observation space; an empty Dict where it has none.
        action_space: its action space.
        metadata: as of a Gymnasium env.
        takes_seed: whether its ``reset`` has a ``seed`` parameter.
        guarded: False: a step without a reset is the environment's own affair, as on OpenEnv's servers.
        waits: whether its ``reset`` or ``step`` is a coroutine.
        refusal: pydantic's list of what was wrong, if the last call raised a ``ValidationError``.
    """

    guarded: Final = False

    def __init__(
        self,
        env: Any,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        self.env = env
        self.observation_space: gym.Space[Any] = observation_space if observation_space is not None else _NO_SPACE
        self.action_space: gym.Space[Any] = action_space if action_space is not None else _NO_SPACE
        self.metadata: dict[str, Any] = {"render_mode": None, "render_modes": []}
        self.refusal: list[Any] | None = None
        self._coroutines = Coroutines()
        self._reset, reset_waits = self._method("reset")
        self._step, step_waits = self._method("step")
        self.waits = reset_waits or step_waits
        parameters = inspect.signature(self._reset).parameters
        self._takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._parameters = frozenset(parameters)
        self.takes_seed = self._takes_all or "seed" in self._parameters
        tool_session = getattr(env, "mcp_session", None)
        if callable(tool_session):  # open as long as the env, so that what tools keep in it stays
            self._coroutines.hold(tool_session())

    def _method(self, name: str) -> tuple[Callable[..., Any], bool]:
        """``reset`` or ``step``, or its async sibling where the environment brings one, and whether it is async."""
        waiting = getattr(self.env, f"{name}_async", None)
        if waiting is not None and not _is_default(type(self.env), name):
            return waiting, True
        found: Callable[..., Any] = getattr(self.env, name)
        return found, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, with those of the options, and the seed, that its ``reset`` has a parameter for."""
        given = {**(options or {}), **({} if seed is None else {"seed": seed})}
        taken = {name: value for name, value in given.items() if self._takes_all or name in self._parameters}
        observation = self._ran(self._reset, **taken)
        return observation, _info(observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        self.refusal = None
        try:
            if type(action) is Pending:
                action = action.make(action.value)
            observation = self._step(action)
            if not isinstance(observation, BaseModel):
                observation = self.waited(observation)
        except ValidationError as error:
            self.refusal = list(error.errors())
            raise
        metadata = getattr(observation, "metadata", None)
        info = metadata if isinstance(metadata, dict) else {}
        reward = getattr(observation, "reward", None)
        if reward is None:
            reward = 0.0
        if not getattr(observation, "done", False):
            return observation, reward, False, False, info
        truncated = bool(
            info.get("truncated", info.get("TimeLimit.truncated", getattr(observation, "truncated", False)))
        )
        return observation, reward, not truncated, truncated, info

    def state(self, model: type[Any] | None = None) -> dict[str, Any]:
        """The environment's state; with a ``model``, of a state derived from that only what the model itself has."""
        state = self._ran(lambda: self.env.state)
        if model is not None and isinstance(state, model):
            narrowed: dict[str, Any] = TypeAdapter(model).dump_python(state)
            return narrowed
        if hasattr(state, "model_dump"):
            dumped: dict[str, Any] = state.model_dump()
            return dumped
        return dict(state) if state else {}

    def render(self) -> Any:
        """Raise: an OpenEnv environment has no such method."""
        raise NotImplementedError("an OpenEnv environment can't be rendered")

    def close(self) -> None:
        """Close the environment."""
        try:
            self._coroutines.let_go()
            close = getattr(self.env, "close", None)
            if close is not None:
                self._ran(close)
        finally:
            self._coroutines.close()

    def get(self, name: str) -> Any:
        """An attribute of the environment."""
        return getattr(self.env, name)

    def set(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment, if it has it or with ``force``."""
        if not force and not hasattr(self.env, name):
            return False
        setattr(self.env, name, value)
        return True

    def waited(self, result: Any) -> Any:
        """What a call of the environment gave, after waiting for it if it is async."""
        # Told by the result, for an async method may be wrapped; models, the usual case, are told apart at once.
        if not isinstance(result, BaseModel) and inspect.isawaitable(result):
            return self._coroutines.run(result)
        return result

    def _ran(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environment, and wait for it if it is async."""
        self.refusal = None
        try:
            return self.waited(call(*args, **kwargs))
        except ValidationError as error:
            self.refusal = list(error.errors())
            raise


def _is_default(kind: type, name: str) -> bool:
    """Whether the async method is that of OpenEnv's base class, which calls the other one: that is abstract there."""
    definer = next((parent for parent in kind.__mro__ if f"{name}_async" in parent.__dict__), None)
    return definer is None or getattr(definer.__dict__.get(name), "__isabstractmethod__", False)


def _info(observation: Any) -> dict[str, Any]:
    metadata = getattr(observation, "metadata", None)
    return metadata if isinstance(metadata, dict) else {}
