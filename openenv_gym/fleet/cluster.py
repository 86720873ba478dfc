"""The Ray cluster under a fleet: joined or started, and the room that is reserved on it."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from openenv_gym.errors import FleetError
from openenv_gym.extras import missing
from openenv_gym.fleet.roster import NAMESPACE

__all__ = ["Berths", "join", "uploaded"]

_FOLDERS: Final = ("working_dir", "py_modules")
"""Keys of Ray's ``runtime_env`` for folders of this machine, which Ray sends when a process joins, and never later."""


def join(address: str | None, num_cpus: float, runtime_env: Mapping[str, Any] | None = None) -> bool:
    """Join a Ray cluster, unless this process has already joined one.

    Args:
        address: the cluster's address, or ``"auto"`` for the one that runs on this machine; None takes
            ``$RAY_ADDRESS``, or else starts one that ends with this process.
        num_cpus: CPUs that a cluster started here must have. They are only counted, so they may be more than there are.
        runtime_env: what servers need; see `uploaded`.

    Returns:
        whether one was started.

    Raises:
        FleetError: if the cluster can't be joined.
        ImportError: without the extra ``ray``.
    """
    try:
        import ray
    except ImportError as error:
        raise missing(error, "ray") from error
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    options = {"namespace": NAMESPACE, "logging_level": "warning", "runtime_env": _folders(runtime_env)}
    try:
        if address is not None:
            ray.init(address, **options)
        else:
            cpus = math.ceil(max(os.cpu_count() or 1, num_cpus))
            ray.init(num_cpus=cpus, include_dashboard=False, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:  # a wrong token of Ray's own is a RuntimeError
        raise FleetError(f"can't join the Ray cluster at {address or 'this machine'}: {error}") from error
    return address is None


def uploaded(runtime_env: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A ``runtime_env`` for actors of this process's cluster, with the addresses that its folders have there.

    Args:
        runtime_env: what `join` was given.

    Raises:
        FleetError: if this process had joined before without these folders.
    """
    import ray

    folders = _folders(runtime_env)
    if runtime_env is None or not folders:
        return None if runtime_env is None else dict(runtime_env)
    sent = ray.get_runtime_context().runtime_env
    if not sent.keys() >= folders.keys():
        names = " and ".join(sorted(folders))
        text = f"Ray sends folders only when a process joins, and this one has: give {names} to its ray.init"
        raise FleetError(f"{text}(runtime_env=…) instead, or join with RayFleet")
    return {**runtime_env, **{name: sent[name] for name in folders}}


def _folders(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """The folders among the parts of a ``runtime_env``; addresses need no sending."""
    given = {name: (runtime_env or {}).get(name) for name in _FOLDERS}
    return {name: value for name, value in given.items() if value is not None and "://" not in str(value)}


class Berths:
    """The room for a fleet's servers: one placement group for those that were wanted at the same time.

    Args:
        fleet: the fleet's name.
        bundle: what a server takes.
        detached: whether the room is kept when this process ends.
    """

    def __init__(self, fleet: str, bundle: Mapping[str, float], *, detached: bool) -> None:
        self._fleet = fleet
        self._bundle = dict(bundle)
        self._detached = detached

    def reserve(self, numbers: Sequence[int], timeout_s: float) -> dict[int, Any]:
        """Reserve room for servers, spread over the nodes; room that a server gave up is taken again.

        Returns:
            a scheduling strategy for each server.

        Raises:
            FleetError: if there is too little within the limit, saying what is missing.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        groups = self._groups()
        covered = {n: (group, n - first) for (first, size), group in groups.items() for n in range(first, first + size)}
        missing = [number for number in numbers if number not in covered]
        if missing:
            group = ray.util.placement_group(
                [self._bundle] * len(missing),
                strategy="SPREAD",
                name=f"{self._fleet}/{missing[0]}+{len(missing)}",
                lifetime="detached" if self._detached else None,
            )
            if not group.wait(timeout_s):
                text = self._shortage(len(missing))
                ray.util.remove_placement_group(group)
                raise FleetError(f"no room for {len(missing)} server(s) within {timeout_s:g} second(s): {text}")
            covered |= {number: (group, index) for index, number in enumerate(missing)}
        return {n: PlacementGroupSchedulingStrategy(covered[n][0], covered[n][1]) for n in numbers}

    def release(self, known: Sequence[int] = ()) -> None:
        """Give back the groups that none of the known servers is in. It ends what still runs there."""
        import ray

        for (first, size), group in self._groups().items():
            if not any(first <= number < first + size for number in known):
                ray.util.remove_placement_group(group)

    def _groups(self) -> dict[tuple[int, int], Any]:
        """The fleet's placement groups by first server and size: Ray remembers them, for whoever attaches later."""
        import ray

        found = {}
        for group in ray.util.placement_group_table().values():
            match = re.fullmatch(rf"{re.escape(self._fleet)}/(\d+)\+(\d+)", group["name"])
            if match is not None and group["state"] != "REMOVED":
                with contextlib.suppress(ValueError):  # another server that ends has removed it since
                    found[int(match[1]), int(match[2])] = ray.util.get_placement_group(group["name"])
        return found

    def _shortage(self, count: int) -> str:
        import ray

        total, free = ray.cluster_resources(), ray.available_resources()
        lacking = [
            f"{count * need:g} {name} wanted ({need:g} for each), {free.get(name, 0):g} of {total.get(name, 0):g} free"
            for name, need in self._bundle.items()
            if count * need > free.get(name, 0)
        ]
        return "; ".join(lacking) or f"there is enough in all, but not in pieces of {self._bundle} on one node"
