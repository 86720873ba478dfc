"""How a vector env's observations, infos and actions travel: as batches, which they are. No threads and no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from openenv_gym.actions import ActionReader
from openenv_gym.batching import assemble, batch_of, pick
from openenv_gym.codec import pack
from openenv_gym.messages import Batch
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.spaces import Leaf, leaf_dtype, leaves

__all__ = ["VectorEncoding"]


class VectorEncoding(BatchEncoding):
    """How a vector env's observations, infos and actions travel.

    Args:
        observation_space: one env's observation space that the client sees.
        action_space: one env's action space.
        info_keys: info keys to send; None for all.
        whole: whether the client sees all of the observation, as it is.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        info_keys: frozenset[str] | None = None,
        *,
        whole: bool = True,
    ) -> None:
        super().__init__(observation_space, action_space, info_keys)
        self._space = observation_space
        self._leaves = leaves(observation_space)
        self._keys = info_keys
        self._whole = whole
        self.batched_actions = ActionReader(action_space).read_batched

    def observations(self, batched: Any, numbers: Sequence[int] | None, count: int) -> Batch:
        """A batched observation as it travels, of some envs or of all.

        Raises:
            SpaceError: if it isn't one of ``count`` envs.
        """
        return batch_of(self._leaves, batched, count, numbers)

    def blank(self, count: int) -> Batch:
        """An observation of ``count`` envs that holds no data."""
        return self.writer(count).batch(count)

    def infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """A vector info as it travels, with what the client left out of it and of last observations."""
        if self._keys is not None:
            last = {"final_obs", "final_info"}
            chosen = {k: v for k, v in infos.items() if k.removeprefix("_") in self._keys | last}
            if isinstance(chosen.get("final_info"), dict):
                inner = chosen["final_info"]
                chosen["final_info"] = {k: v for k, v in inner.items() if k.removeprefix("_") in self._keys}
            infos = chosen
        if not self._whole and "final_obs" in infos:
            infos = {**infos, "final_obs": self._last(infos["final_obs"])}
        packed: dict[str, Any] = pack(infos, "infos")
        return packed

    def _last(self, observations: Any) -> Any:
        """Last observations, trimmed: one for each env, or a batch of them."""
        if not (isinstance(observations, np.ndarray) and observations.dtype == object):
            return self._trimmed(observations)
        trimmed = np.full_like(observations, None)
        for i, observation in enumerate(observations):
            if observation is not None:
                trimmed[i] = self._trimmed(observation)
        return trimmed

    def _trimmed(self, observation: Any) -> Any:
        cast = (
            np.asarray(pick(observation, leaf.path)).astype(leaf.space.dtype)
            if leaf.is_array
            else pick(observation, leaf.path)
            for leaf in self._leaves
        )
        return assemble(self._space, cast)


def _cast(value: Any, leaf: Leaf) -> Any:
    return np.asarray(value).astype(leaf_dtype(leaf.space)) if leaf.is_array else value
