"""How an OpenEnv environment's values travel: exactly as on OpenEnv's own servers, or as arrays in the batch dialect.

What a client trimmed away is never dumped; what doesn't fit the environment's action model is refused with pydantic's
own list of errors. Two things are better here on purpose: numpy arrays in an observation are sent as lists, where
OpenEnv's servers fail after the step was taken, and an action whose validator raises costs an error reply, not the
session.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openenv_gym.action_masks import ACTION_MASK, ActionMask
from openenv_gym.actions import ActionReader
from openenv_gym.codec import PackError, pack
from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields
from openenv_gym.json_form import JsonForm
from openenv_gym.messages import Batch, Values
from openenv_gym.server.encoding import BatchEncoding, Writer
from openenv_gym.server.json_form import ActionRefused, JsonEncoding, Trimming
from openenv_gym.server.openenv_env import Models, schema_of
from openenv_gym.server.openenv_values import ENDS, Pending, as_json, plain, raw, rewritten, view
from openenv_gym.spaces import Json, leaves

__all__ = ["OpenEnvBatchEncoding", "OpenEnvForm"]


class OpenEnvForm:
    """The form of an OpenEnv environment; see `openenv_gym.server.json_form.JsonForm`.

    Args:
        models: its pydantic models.
        trimming: what to send.

    Raises:
        SpaceError: if the trimming names what isn't there, or can't be done for models.
    """

    exact = True

    def __init__(self, models: Models, trimming: Trimming | None = None) -> None:
        trimming = trimming or Trimming()
        if trimming.obs_dtype is not None:
            raise SpaceError("obs_dtype is for spaces; the fields of an OpenEnv environment are sent as they are")
        self._models = models
        self._include = None if trimming.include is None else _nested(models, trimming.include)
        self._exclude: dict[str, Any] = {**_nested(models, trimming.exclude or ()), "reward": True, "done": True}
        self._info_keys = None if trimming.info_keys is None else frozenset(trimming.info_keys)

    def action(self, data: dict[str, Any]) -> Any:
        """See `JsonForm.action`."""
        try:
            return self._models.action_of(data)
        except ValidationError as error:
            raise ActionRefused([{**problem} for problem in error.errors()]) from None

    def observation(self, value: Any) -> dict[str, Any]:
        """All of a result's data, encoded piece by piece: here an observation holds its reward and end as well."""
        dumped = value.model_dump(include=self._include, exclude=self._exclude)
        metadata = value.metadata
        if self._info_keys is not None:
            metadata = {key: item for key, item in metadata.items() if key in self._info_keys}
            if "metadata" in dumped:
                dumped["metadata"] = metadata
        result = {"observation": raw(dumped), "reward": raw(value.reward), "done": value.done}
        return {**result, "metadata": raw(metadata)} if metadata else result

    def info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Nothing: it is part of `observation`."""
        return {}

    def schemas(self) -> dict[str, dict[str, Any]]:
        """See `JsonForm.schemas`."""
        models = self._models
        state = models.declared_state
        return {
            "action": schema_of(models.action),
            "observation": schema_of(models.observation),
            "state": schema_of(_State if state is None else state),
            "reset_observation": schema_of(models.reset_observation or models.observation),
        }

    def encoding(self) -> JsonEncoding:
        """The encoding of this form."""
        return _OpenEnvEncoding(self)


class _State(BaseModel):
    """Internal state of the environment, beside its observations."""

    model_config = ConfigDict(title="State", extra="allow")

    episode_id: str | None = Field(default=None, description="The current episode's name.")
    step_count: int = Field(default=0, ge=0, description="Steps taken in the current episode.")


def _nested(models: Models, paths: Sequence[str]) -> dict[str, Any]:
    """Dotted paths as ``model_dump`` takes them."""
    tree: dict[str, Any] = {}
    for path in paths:
        name, *rest = path.split(".")
        known = {**models.observation.model_fields, **(models.reset_observation or models.observation).model_fields}
        if name not in known:
            raise SpaceError(f"the observation has no field {name!r}, only {sorted(set(known) - ENDS)}", path=path)
        if not rest:
            tree[name] = True
            continue
        branch = tree.setdefault(name, {})
        for inner in rest[:-1]:
            branch = branch.setdefault(inner, {}) if branch is not True else True
        if branch is not True:
            branch[rest[-1]] = True
    return tree


class _OpenEnvEncoding(JsonEncoding):
    def writer(self, count: int, *, final: bool = False) -> Any:
        return _Results(self.form, count)

    def info(self, info: dict[str, Any], observation: Any) -> dict[str, Any]:
        return {}

    def value(self, value: Any) -> Any:
        return raw(value)


class _Results:
    """Holds results; several threads may write at the same time, each its own positions."""

    def __init__(self, form: Any, count: int) -> None:
        self._form = form
        self._items: list[Any] = [None] * count

    def write(self, position: int, value: Any) -> None:
        self._items[position] = self._form.observation(value)

    def batch(self, positions: int | list[int]) -> Batch:
        numbers = range(positions) if isinstance(positions, int) else positions
        return [Values([self._items[number] for number in numbers])]


class OpenEnvBatchEncoding(BatchEncoding):
    """The batch dialect's encoding of an OpenEnv environment: fields straight into arrays, actions through the model.

    Args:
        observation: how observations make up values of their space.
        action: how values of the action space make up actions.
        models: the environment's pydantic models.
        observation_space: the part of the observation space that the client sees.
        info_keys: info keys to send; None for all.
        mask: what reads the info ``action_mask``, which is sent in any case; None for no such info.
    """

    def __init__(
        self,
        observation: Fields,
        action: Fields,
        models: Models,
        observation_space: Any,
        *,
        info_keys: frozenset[str] | None = None,
        mask: ActionMask | None = None,
    ) -> None:
        super().__init__(observation_space, action.space, info_keys)
        self._mask = mask
        shown = dataclasses.replace(observation, space=observation_space)
        self._again = _by_json(shown)
        direct = all(leaf.is_array or isinstance(leaf.space, (Json, spaces.Text)) for leaf in leaves(shown.space))
        own = rewritten(models.observation) | rewritten(models.reset_observation or models.observation)
        self._view = view(shown, own) if direct else self._again
        read, make = ActionReader(action.space).read_plain, _maker(action, models)

        def actions(batch: Batch, count: int) -> Sequence[Any]:
            return [Pending(make, value) for value in read(batch, count)]

        self.actions = actions  # type: ignore[assignment]

    def writer(self, count: int, *, final: bool = False) -> Any:
        """See `Encoding.writer`."""
        return _Viewed(super().writer(count, final=final), self._view, self._again)

    def info(self, info: dict[str, Any], observation: Any) -> dict[str, Any]:
        """See `Encoding.info`."""
        packed = self._packed(info) if info else {}
        if self._mask is None:
            return packed
        mask = self._mask.read(_shown(observation, {self._mask.key}))
        return {**packed, ACTION_MASK: pack(mask, ACTION_MASK)}

    def _packed(self, info: dict[str, Any]) -> dict[str, Any]:
        try:
            return super()._packed(info)
        except PackError:
            return super()._packed({key: _sendable(value) for key, value in info.items() if self._wants(key)})


def _maker(action: Fields, models: Models) -> Callable[[Any], Any]:
    """What makes an action, from its value with Python's own numbers."""
    model, only = models.action, action.only
    plain_already = [(leaf.path, leaf.is_array) for leaf in leaves(action.space)] == [((), True)]
    if only is not None and plain_already and not (action.labels or action.lone) and not models.tool_actions:
        if inspect.getattr_static(model, "model_validate", None) is vars(BaseModel)["model_validate"]:
            # which does no more than this
            return lambda value: model.__pydantic_validator__.validate_python({only: value})
        return lambda value: model.model_validate({only: value})
    return lambda value: models.action_of(action.labelled(plain(value)))


def _by_json(fields: Fields) -> Callable[[Any], Any]:
    """What reads an observation as a client in OpenEnv's dialect does, whatever the environment puts into a field."""
    form = JsonForm(fields, fields)
    kept = None if isinstance(fields.space, Json) else _names(fields)

    return lambda observation: form.value_of(_shown(observation, kept))


def _shown(observation: Any, fields: set[str] | None) -> Any:
    """Those fields of an observation, or all, as OpenEnv's dialect has them."""
    dumped = observation.model_dump(include=fields, exclude=ENDS)
    for name in (fields or set()) - dumped.keys():
        raise SpaceError(f"the observation has no field {name!r}, only {sorted(observation.model_dump())}", path=name)
    return as_json(dumped)


def _sendable(value: Any) -> Any:
    """A part of an info that can be packed: a time, a path or a model in the form that it has in JSON."""
    try:
        pack(value)
    except PackError:
        return as_json(value)
    return value


def _names(fields: Fields) -> set[str]:
    if fields.only is not None:
        return {fields.only}
    assert isinstance(fields.space, spaces.Dict)
    return set(fields.space.spaces)


class _Viewed:
    def __init__(self, writer: Writer, read: Callable[[Any], Any], again: Callable[[Any], Any]) -> None:
        write_value, self.batch = writer.write, writer.batch

        def write(position: int, value: Any) -> None:
            try:
                write_value(position, read(value))
            except (SpaceError, PackError):  # a missing number, a set, a time: what has a form in JSON
                write_value(position, again(value))

        self.write = write
