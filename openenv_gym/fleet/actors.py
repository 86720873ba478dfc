"""What runs in Ray's actors: a fleet's servers, and the directory that knows where they are.

No step passes through them: an actor starts our ordinary server, and learners connect to that.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from openenv_gym.errors import OpenEnvGymError
from openenv_gym.fleet.cluster import Berths
from openenv_gym.fleet.roster import NAMESPACE, REPORT_S, Report, Roster, ServerStatus
from openenv_gym.launcher import ServerAddress
from openenv_gym.local import ServerThread
from openenv_gym.registered import register_spec

__all__ = ["Directory", "EnvServer", "FleetPlan"]

_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class FleetPlan:
    """All that is needed to start one more server of a fleet.

    Attributes:
        name: the fleet's name.
        env: the environment, as `openenv_gym.server.create_app` takes it.
        spec: what this process knows of the environment's id, as JSON; None if that can't travel.
        options: the servers' settings, a token among them.
        bundle: what a server takes of Ray's resources, such as ``{"CPU": 1.0}``.
        runtime_env: Ray's ``runtime_env`` for the servers.
        detached: whether the fleet outlives the process that started it.
        start_timeout_s: limit for starting servers.
        drain_s: limit for the sessions of a server that is no longer wanted.
    """

    name: str
    env: str | Callable[..., Any]
    spec: str | None
    options: dict[str, Any] = field(repr=False)
    bundle: dict[str, float]
    runtime_env: dict[str, Any] | None
    detached: bool
    start_timeout_s: float
    drain_s: float

    @property
    def env_name(self) -> str:
        """The environment's name."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)


class Directory:
    """Knows a fleet's plan, and its servers from their reports; so nothing is lost when Ray starts it anew.

    Args:
        plan: the fleet's plan.
    """

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._roster = Roster()
        self._size: int | None = None

    def plan(self) -> FleetPlan:
        """The fleet's plan."""
        return self._plan

    def resize(self, size: int) -> None:
        """Note that servers with this number and above are no longer wanted."""
        self._size = size

    def wants(self, number: int) -> bool:
        """Whether a server is wanted."""
        return self._size is None or number < self._size

    def expect(self, numbers: list[int]) -> None:
        """See `Roster.expect`."""
        self._roster.expect(numbers)

    def report(self, report: Report) -> None:
        """Take a server's report."""
        self._roster.take(report, time.monotonic())

    def remove(self, number: int) -> None:
        """See `Roster.remove`."""
        self._roster.remove(number)

    def known(self) -> list[int]:
        """See `Roster.known`."""
        return self._roster.known()

    def addresses(self) -> dict[str, ServerAddress]:
        """See `Roster.addresses`."""
        return self._roster.addresses()

    def numbers(self) -> list[int]:
        """See `Roster.numbers`."""
        return self._roster.numbers()

    def statuses(self) -> list[ServerStatus]:
        """See `Roster.statuses`."""
        return self._roster.statuses(time.monotonic())


class EnvServer:
    """One of a fleet's servers, on a free port of its node, reporting to the directory as long as it lives.

    Args:
        number: its number in the fleet.
        fleet: the fleet's name.
    """

    def __init__(self, number: int, fleet: str) -> None:
        import ray

        from openenv_gym.server.drawing import draw_unseen

        self._number = number
        # Asked for in each life: Ray may have lost an argument that was more than a few bytes by then.
        self._directory = ray.get_actor(f"{fleet}/directory", NAMESPACE)
        self._plan: FleetPlan = ray.get(self._directory.plan.remote())
        self._life = secrets.token_hex(8)
        self._unwanted = self._leaving = self._ended = False
        self._turn = threading.Lock()
        self._problem: str | None = None
        self._node = ray.util.get_node_ip_address()
        plan = self._plan
        draw_unseen(os.environ)
        try:
            if plan.spec is not None:
                register_spec(plan.spec)
            self._server = ServerThread(plan.env, plan.options, plan.start_timeout_s, host=self._node)
        except (OpenEnvGymError, TypeError, ValueError) as error:
            self._problem = str(error)  # for who waits for the start: here it would be Ray's to report, and to retry
            return
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._go_on_reporting, name="report", daemon=True).start()
        if not ray.get(self._directory.wants.remote(number)):  # it died while it was draining, and Ray knows no better
            self.drain(0.0)

    def problem(self) -> str | None:
        """Why the environment can't be served; None if it is."""
        return self._problem

    def drain(self, limit_s: float) -> None:
        """Take no new sessions, and end this actor once there are none left, or at the limit; returns at once."""
        with self._turn:
            again, self._unwanted = self._unwanted, True
        self._report()
        if not again:
            threading.Thread(target=self._end_when_empty, args=(limit_s,), name="drain", daemon=True).start()

    def keep(self) -> bool:
        """Take `drain` back; False if it is too late for that."""
        with self._turn:
            self._unwanted = self._ended
        self._report()
        return not self._ended

    def stop(self) -> None:
        """End the server at once: running steps end, and their replies are sent."""
        if self._problem is None:
            self._server.stop()

    def _end_when_empty(self, limit_s: float) -> None:
        import ray

        self._wait_until_empty(limit_s)
        with self._turn:
            self._ended = self._unwanted
        if not self._ended:
            return
        self.stop()
        try:
            ray.get(self._directory.remove.remote(self._number))
            known = ray.get(self._directory.known.remote())
            Berths(self._plan.name, self._plan.bundle, detached=self._plan.detached).release(known)
        finally:  # or its name would be taken for ever
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _wait_until_empty(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while self._server.registry.capacity.active and time.monotonic() < end and self._draining:
            time.sleep(_LOOK_S)

    @property
    def _draining(self) -> bool:
        return self._unwanted or self._leaving

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle ``SIGTERM``: let the envs go elsewhere, each when it is reset, and end; if told once more, at once."""
        again, self._leaving = self._leaving, True
        limit_s = 0.0 if again else self._plan.drain_s
        # On a thread, for this one may be in the middle of anything.
        threading.Thread(target=self._leave, args=(limit_s, 128 + number), name="leave", daemon=True).start()

    def _leave(self, limit_s: float, code: int) -> None:
        self._report()
        self._wait_until_empty(limit_s)
        if self._unwanted and limit_s:
            return  # `_end_when_empty` sees to it
        self.stop()
        os._exit(code)  # Ray starts this actor anew, on this node or another

    def _go_on_reporting(self) -> None:
        while True:
            self._report()
            time.sleep(REPORT_S)

    def _report(self) -> None:
        registry = self._server.registry
        self._directory.report.remote(
            Report(
                number=self._number,
                life=self._life,
                url=f"http://{self._node}:{self._server.port}",
                node=self._node,
                pid=os.getpid(),
                draining=self._draining,
                envs=registry.capacity.active,
                max_envs=registry.capacity.maximum,
                sessions=len(registry.sessions),
            )
        )
