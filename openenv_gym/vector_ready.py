"""`send` and `recv`: the part of `RemoteVecEnv` that steps some envs, and takes whichever are ready first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openenv_gym.actions import check_actions
from openenv_gym.first_ready import FirstReady, check_env_ids
from openenv_gym.infos import join_infos, merge_infos
from openenv_gym.outcomes import Steps
from openenv_gym.vector_calls import VectorCalls, limit

__all__ = ["VectorReady"]


class VectorReady(VectorCalls):
    """First-ready batches, in the sense of EnvPool's ``send`` and ``recv``."""

    _first_ready: FirstReady

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Send some envs their actions, and return at once; `recv` gives what comes of them.

        Each env must have been reset, by `reset` or by its autoreset. Without ``env_ids``, ``send(actions)`` and then
        ``recv()`` do what ``step(actions)`` does.

        Args:
            actions: one action for each of ``env_ids``, in this order, as for `step`.
            env_ids: the envs, as integers from 0; None for all.

        Raises:
            ActionError: for actions of the wrong number or shape, before anything is sent. It is a ``ValueError``.
            ValueError: for unknown or repeated ``env_ids``, or none; ``TypeError`` if they are no integers.
            AlreadyPendingCallError: if one of them is in flight, or another call wasn't waited for.
            ResetNeeded: if one of them has no episode to go on with.
        """
        self._assert_is_running()
        with self._turns.alone("send", beside=True):
            rows = check_env_ids(env_ids, self.num_envs)
            self._first_ready.send(check_actions(self.single_action_space, actions, len(rows)), rows)
            self._turns.in_flight = len(self._first_ready.in_flight)

    def recv(
        self, min_ready: int | None = None, timeout: float | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Wait until some of the envs in flight are ready, and take all that are.

        An interrupt loses nothing: call it again.

        Args:
            min_ready: how many to wait for; None for all that are in flight.
            timeout: total limit in seconds; None takes ``message_timeout_s``.

        Returns:
            what `step` returns, but with one entry for each env that is ready, in the order of their ids and always
            fresh. ``infos["env_id"]`` has these ids, as int32; an env's own info of that name is at ``env_id_``.

        Raises:
            NoAsyncCallError: if no env is in flight.
            ValueError: if ``min_ready`` is less than 1, or more than are in flight.
            RemoteEnvError: if an env raised; it is in flight no longer. Others that are ready come with the next call.
            ReplyTimeout: at the limit. The envs in flight need a reset then, but for those that have arrived over other
                connections than the late ones: these come with the next call.
        """
        self._assert_is_running()
        with self._turns.alone("recv", beside=True):
            try:
                within_s = limit(timeout, self.options.message_timeout_s)
                rows, result = self._first_ready.receive(min_ready, within_s)
            finally:
                self._turns.in_flight = len(self._first_ready.in_flight)
            observations = self.rollout.reader.read_rows(result.parts, rows)
            infos = step_infos(result, rows)
            for name in ("env_id", "_env_id"):
                if name in infos:
                    infos[f"{name}_"] = infos.pop(name)
            infos["env_id"] = np.array(rows, np.int32)
            return observations, result.rewards[rows], result.terminated[rows], result.truncated[rows], infos


def step_infos(result: Steps, rows: list[int] | range) -> dict[str, Any]:
    """The infos of a step of some rows, merged as Gymnasium does."""
    if not result.infos and not result.endings and not result.vector_infos:
        return {}
    at = {row: position for position, row in enumerate(rows)}
    endings = [(at[e.row], {"final_obs": e.observation, "final_info": e.info}) for e in result.endings]
    merged = merge_infos([*endings, *((at[row], info) for row, info in result.infos)], len(rows))
    return {**merged, **join_infos(result.vector_infos, len(rows))}
