"""`RayFleet`: environment servers on a Ray cluster. Ray starts, places and restarts them; no step passes through it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from openenv_gym.errors import FactoryError, FleetError, OptionError
from openenv_gym.fleet.actors import Directory, EnvServer, FleetPlan
from openenv_gym.fleet.cluster import Berths, join, uploaded
from openenv_gym.fleet.roster import NAMESPACE, FleetStatus, server_name
from openenv_gym.launcher import ServerAddress
from openenv_gym.local import OWNERS_OPTIONS
from openenv_gym.registered import spec_of
from openenv_gym.vector_env import RemoteVecEnv

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RayFleet"]

_ASK_S: Final = 5.0
_STOP_S: Final = 10.0
_LOOK_S: Final = 0.05


class RayFleet:
    """Servers for one environment on a Ray cluster; a `openenv_gym.fleet.Launcher`.

    Each server is an actor with a name and a process of its own, which runs our ordinary server on a free port of its
    node. Learners connect to the servers directly. Ray starts a server that died anew, on another node if need be, and
    learners find it there: what they lose are its running episodes.

    Args:
        env: a Gymnasium id, ``package.module:callable``, or a callable that makes an env. The servers must be able to
            import it; see ``runtime_env``.
        servers: the number of servers.
        envs_per_server: envs that a server has room for.
        address: the cluster to join, or ``"auto"`` for the one that runs on this machine; None takes ``$RAY_ADDRESS``,
            or else starts a cluster on this machine that ends with this process. A process that has joined a cluster
            already stays there.
        name: the fleet's name on the cluster; None makes one up.
        detached: let the fleet outlive this process, until `down`.
        num_cpus: CPUs that Ray reserves for a server.
        num_gpus: GPUs for a server.
        resources: custom resources for a server.
        runtime_env: Ray's ``runtime_env`` for the servers, such as ``{"pip": ["ale-py"]}``. Folders (``working_dir``,
            ``py_modules``) are sent only if this is what joins the cluster.
        token: the servers' token; None makes one up.
        env_kwargs: keyword arguments for the env.
        start_timeout_s: limit in seconds for the start, and for a growth.
        drain_s: limit in seconds for the sessions of a server that `scale` no longer wants.
        **options: the fields of `openenv_gym.server.settings.ServerSettings`. As on a `openenv_gym.LocalServer`, and
            other than on a server for others, all public methods may be called and all public attributes set.

    Attributes:
        name: the fleet's name.
        token: the servers' token.

    Raises:
        FleetError: if the cluster can't be joined, has too little room, or knows a fleet of that name already.
        FactoryError: if the environment can't be built.
        OptionError: for a bad value.
        ImportError: without the extra ``ray``.

    Example:
        >>> with RayFleet("CartPole-v1", servers=4, envs_per_server=32) as fleet:  # doctest: +SKIP
        ...     envs = fleet.make_vec(num_envs=128)
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        servers: int = 1,
        envs_per_server: int = 32,
        address: str | None = None,
        name: str | None = None,
        detached: bool = False,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        runtime_env: dict[str, Any] | None = None,
        token: str | None = None,
        env_kwargs: dict[str, Any] | None = None,
        start_timeout_s: float = 60.0,
        drain_s: float = 60.0,
        **options: Any,
    ) -> None:
        _check(servers, num_cpus)
        owns_ray = join(address, servers * num_cpus, runtime_env)
        settings = {**OWNERS_OPTIONS, "env_kwargs": env_kwargs or {}, **options}
        plan = FleetPlan(
            name=name or f"fleet-{secrets.token_hex(4)}",
            env=env,
            spec=spec_of(env) if isinstance(env, str) else None,
            options={**settings, "max_envs": envs_per_server, "token": token or secrets.token_urlsafe(32)},
            bundle={"CPU": num_cpus, **({"GPU": num_gpus} if num_gpus else {}), **(resources or {})},
            runtime_env=uploaded(runtime_env),
            detached=detached,
            start_timeout_s=start_timeout_s,
            drain_s=drain_s,
        )
        self._hold(plan, _start_directory(plan), owns_ray=owns_ray)
        try:
            self._add(range(servers))
        except BaseException:
            self.down()
            raise

    @classmethod
    def attach(cls, name: str, *, address: str | None = None) -> Self:
        """A fleet that another process started.

        Args:
            name: the fleet's name.
            address: the cluster to join; see the class. None takes the one that runs on this machine.

        Raises:
            FleetError: if the cluster can't be joined, or there is no such fleet.
        """
        join(address or "auto", 0)
        import ray

        try:
            directory = ray.get_actor(f"{name}/directory", NAMESPACE)
            plan: FleetPlan = ray.get(directory.plan.remote(), timeout=_ASK_S)
        except ValueError:
            known = ", ".join(_fleets()) or "none"
            raise FleetError(f"there is no fleet {name!r} on this cluster (there are: {known})") from None
        except ray.exceptions.RayError as error:
            raise FleetError(f"the directory of fleet {name!r} doesn't answer: {error}") from error
        fleet = cls.__new__(cls)
        fleet._hold(plan, directory, owns_ray=False)  # noqa: SLF001 - of the same class
        return fleet

    def _hold(self, plan: FleetPlan, directory: Any, *, owns_ray: bool) -> None:
        self.name = plan.name
        self.token: str = plan.options["token"]
        self._plan = plan
        self._directory = directory
        self._berths = Berths(plan.name, plan.bundle, detached=plan.detached)
        self._owns_ray = owns_ray
        self._down = False
        self._scaling = threading.Lock()
        self._actors: list[Any] = []

    # ------------------------------------------------------------------------------------------------ use

    def make_vec(self, num_envs: int, **options: Any) -> RemoteVecEnv:
        """A vector env over all servers; close it before the fleet.

        Args:
            num_envs: the number of envs.
            **options: as for `openenv_gym.RemoteVecEnv`.
        """
        return RemoteVecEnv(self, num_envs, **options)

    def servers(self) -> dict[str, ServerAddress]:
        """Where the servers are; see `openenv_gym.fleet.Launcher`."""
        addresses: dict[str, ServerAddress] = self._ask("addresses")
        return addresses

    @property
    def urls(self) -> list[str]:
        """The URLs of the servers that take sessions."""
        return [server.url for server in self.servers().values() if not server.draining]

    def status(self) -> FleetStatus:
        """How the servers are."""
        return FleetStatus(self.name, self._plan.env_name, self._ask("statuses"))

    def scale(self, servers: int) -> None:
        """Change the number of servers; learners go on, and their envs move when they are reset.

        New servers run when this returns. Those that are no longer wanted, the ones with the highest numbers, take no
        new sessions from now on, and end when they have none, or after ``drain_s``.

        Raises:
            FleetError: if the cluster has too little room within ``start_timeout_s``; the fleet stays as it was.
        """
        _check(servers, self._plan.bundle["CPU"])
        import ray

        with self._scaling:
            now = self._ask("numbers")
            ray.get(self._directory.resize.remote(servers), timeout=_ASK_S)
            for actor in filter(None, map(self._server, (n for n in now if n >= servers))):
                ray.get(actor.drain.remote(self._plan.drain_s), timeout=_ASK_S)
            new = [n for n in range(servers) if n not in now and not self._kept(n)]
            if new:
                try:
                    self._add(new)
                except BaseException:
                    ray.get(self._directory.resize.remote(max(now, default=-1) + 1), timeout=_ASK_S)
                    raise

    def close(self) -> None:
        """End the fleet, or leave a detached one to itself; closing twice is fine."""
        if not self._plan.detached:
            self.down()

    def down(self) -> None:
        """End the fleet, a detached one too: running steps end, and then the servers."""
        import ray

        if self._down or not ray.is_initialized():
            return
        self._down = True
        with contextlib.suppress(ray.exceptions.RayError, FleetError):
            actors = list(filter(None, map(self._server, self._ask("known"))))
            stopping = [actor.stop.remote() for actor in actors]
            if stopping:
                ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_S)
            for actor in actors:
                ray.kill(actor)
        self._berths.release()
        ray.kill(self._directory)
        if self._owns_ray:
            ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RayFleet({self.name!r}, {self._plan.env_name!r})"

    # ---------------------------------------------------------------------------------------------- actors

    def _ask(self, what: str) -> Any:
        import ray

        try:
            return ray.get(getattr(self._directory, what).remote(), timeout=_ASK_S)
        except ray.exceptions.RayError as error:
            raise FleetError(f"the directory of fleet {self.name!r} doesn't answer: {error}") from error

    def _server(self, number: int) -> Any:
        """A server's actor; None if there is none now."""
        import ray

        try:
            return ray.get_actor(f"{self.name}/{server_name(number)}", NAMESPACE)
        except ValueError:
            return None

    def _kept(self, number: int) -> bool:
        """Whether a server that was draining stays after all; if it can't, it has ended when this returns."""
        import ray

        actor = self._server(number)
        with contextlib.suppress(ray.exceptions.RayError):
            if actor is not None and ray.get(actor.keep.remote(), timeout=_ASK_S):
                return True
        end = time.monotonic() + self._plan.start_timeout_s
        while self._server(number) is not None and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return False

    def _add(self, numbers: Sequence[int]) -> None:
        """Start servers, all or none."""
        import ray

        plan = self._plan
        berths = self._berths.reserve(numbers, plan.start_timeout_s)
        actors = [self._start(number, berths[number]) for number in numbers]
        self._actors += actors  # an actor that isn't detached ends with the last handle of who made it
        try:
            problems = ray.get([actor.problem.remote() for actor in actors], timeout=plan.start_timeout_s)
            _raise_first(plan.env_name, problems)
        except BaseException as error:
            for actor in actors:
                ray.kill(actor)
            self._berths.release(self._ask("known"))
            if isinstance(error, ray.exceptions.GetTimeoutError):
                text = f"not all of {len(actors)} server(s) started within {plan.start_timeout_s:g} second(s)"
                raise FleetError(text) from error
            if isinstance(error, ray.exceptions.RayError):
                raise FleetError(f"a server couldn't be started: {error}") from error
            raise
        ray.get(self._directory.expect.remote(list(numbers)))

    def _start(self, number: int, berth: Any) -> Any:
        import ray

        plan = self._plan
        make = ray.remote(EnvServer).options(
            name=f"{self.name}/{server_name(number)}",
            namespace=NAMESPACE,
            lifetime="detached" if plan.detached else None,
            max_restarts=-1,
            num_cpus=plan.bundle["CPU"],
            num_gpus=plan.bundle.get("GPU", 0),
            resources={name: amount for name, amount in plan.bundle.items() if name not in {"CPU", "GPU"}},
            runtime_env=plan.runtime_env,
            scheduling_strategy=berth,
        )
        return make.remote(number, plan.name)


def _check(servers: int, num_cpus: float) -> None:
    if servers < 1:
        raise OptionError(f"a fleet has at least 1 server, not {servers}")
    if num_cpus <= 0:
        raise OptionError(f"num_cpus must be above 0, not {num_cpus:g}: Ray has to count something")


def _raise_first(env: str, problems: Sequence[str | None]) -> None:
    for problem in filter(None, problems):
        raise FactoryError.told(env, problem)


def _start_directory(plan: FleetPlan) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    make = ray.remote(Directory).options(
        name=f"{plan.name}/directory",
        namespace=NAMESPACE,
        lifetime="detached" if plan.detached else None,
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
    )
    try:
        return make.remote(plan)
    except ValueError as error:
        raise FleetError(f"there is a fleet {plan.name!r} on this cluster already") from error


def _fleets() -> list[str]:
    import ray

    names = (actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))
    return sorted(name.removesuffix("/directory") for name in names if name.endswith("/directory"))
