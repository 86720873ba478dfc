"""What the batch dialect's replies look like in the OpenEnv dialect: one result for each env. No I/O here."""

from __future__ import annotations

from typing import Any

import msgspec

from openenv_gym.messages import Observed, Stepped, Values
from openenv_gym.server.openenv_messages import DialectError, encoded

__all__ = ["Collected", "Reported", "observed", "only", "stepped", "whole"]


class Reported(DialectError):
    """Raised for what a session said, which has counted it."""


def whole(reply: Observed | Stepped) -> list[dict[str, Any]]:
    """The results of envs whose form is exact: each observation is one."""
    return [dict(item or {}) for item in _items(reply)]


def observed(reply: Observed) -> list[dict[str, Any]]:
    """One result for each env of a reset."""
    return [_result(reply, i, None, False, False) for i in range(len(_items(reply)))]


def stepped(reply: Stepped) -> list[dict[str, Any]]:
    """One result for each env of a step. A reward that is no finite number becomes null when it is encoded."""
    columns = [array.numpy().tolist() for array in (reply.rewards, reply.terminated, reply.truncated)]
    return [_result(reply, i, *ends) for i, ends in enumerate(zip(*columns, strict=True))]


def _items(reply: Observed | Stepped) -> list[Any]:
    (observations,) = reply.observations
    assert isinstance(observations, Values)
    return observations.items


def _result(
    reply: Observed | Stepped, position: int, reward: float | None, terminated: bool, truncated: bool
) -> dict[str, Any]:
    result = {
        "observation": _items(reply)[position],
        "reward": reward,
        "done": terminated or truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    if position in reply.infos:
        result["metadata"] = reply.infos[position]
    return result


def only(results: list[Any]) -> dict[str, Any]:
    """The only env's result; what it raised is raised here."""
    (result,) = results
    if isinstance(result, dict) and "error" in result:  # not so for a state that is encoded already
        data = dict(result["error"])
        raise Reported(data.pop("code"), data.pop("message"), **data)
    found: dict[str, Any] = result
    return found


class Collected:
    """Results of steps in turn, encoded, as long as the reply stays within the limit.

    Args:
        limit: the largest reply in bytes.

    Attributes:
        results: the encoded results.
    """

    def __init__(self, limit: int) -> None:
        self.results: list[msgspec.Raw] = []
        self._limit = limit
        self._size = self._largest = 0

    def take(self, result: dict[str, Any]) -> bool:
        """Take a result; False if there shall be no further step."""
        frame = encoded(result)
        self.results.append(msgspec.Raw(frame))
        self._size += len(frame)
        self._largest = max(self._largest, len(frame))
        return "error" not in result and not result["done"] and self._size + self._largest <= self._limit
