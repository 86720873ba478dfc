"""Looks at one env before the server starts: its spaces, and whether its steps compute or wait."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import gymnasium as gym

from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields
from openenv_gym.server.adapters import EnvSource, HostedEnv
from openenv_gym.server.hosted_vector import HostedVector
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.openenv_values import plain
from openenv_gym.spaces import describe, leaves

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not Linux
    getrusage = None  # type: ignore[assignment]

__all__ = ["Probe", "probe"]

logger = logging.getLogger(__name__)

_STEPS: Final = 16
_SECONDS: Final = 0.2
_T = TypeVar("_T")


@dataclass(frozen=True)
class Probe:
    """What one env showed.

    Attributes:
        observation_space: its observation space.
        action_space: its action space.
        metadata: its metadata.
        waits: whether most of a step's time passes without the processor (sleep, I/O, another process).
        description: the first paragraph of its class's docstring; ``""`` if there is none.
        version: its version among the registered ones, such as ``1`` of ``CartPole-v1``.
        problem: why an OpenEnv environment has no spaces; None for all others.
        about: what an OpenEnv environment says about itself; None for a Gymnasium env.
        vector: whether it is a vector env, of which each session has one.
        fixed_size: how many envs such a one has if its factory can't be told; None if it can.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    waits: bool
    description: str = ""
    version: str | None = None
    problem: str | None = None
    about: dict[str, Any] | None = None
    vector: bool = False
    fixed_size: int | None = None


def probe(source: EnvSource, *, calibrate: bool) -> Probe:
    """Build an env, look at it, and close it, all on a thread of its own.

    Args:
        source: where the env comes from.
        calibrate: also reset it and step it a few times with sampled actions, to learn whether it waits.

    Raises:
        FactoryError: if it can't be built.
        SpaceError: if a space can't be described, naming the part.
    """

    def look() -> Probe:
        env = source.make()
        try:
            if isinstance(env, OpenEnvEnv):
                return _look_at_openenv(source, env, calibrate)
            describe(env.observation_space)
            describe(env.action_space)
            if isinstance(env, HostedVector):
                return _look_at_vector(source, env)
            waits = calibrate and _waits(env, env.action_space.sample, env.action_space)
            description, version = _description(env.env), _version(env.env)
            return Probe(env.observation_space, env.action_space, env.metadata, waits, description, version)
        finally:
            try:
                env.close()
            except BaseException:  # not even sys.exit() keeps it from being served
                logger.exception("closing the env that was looked at failed")

    return _on_a_thread(look)


def _look_at_vector(source: EnvSource, env: HostedVector) -> Probe:
    """Look at a vector env. It has a thread of its own in any case, so nothing is tried out."""
    return Probe(
        env.observation_space,
        env.action_space,
        env.metadata,
        waits=False,
        description=_description(env.env),
        version=_version(env.env),
        vector=True,
        fixed_size=None if source.takes_num_envs else env.num_envs,
    )


def _look_at_openenv(source: EnvSource, env: OpenEnvEnv, calibrate: bool) -> Probe:
    """Look at an OpenEnv environment. It is served without spaces too: its own dialect needs none."""
    problem = None
    try:
        source.fields = _infer(source, env)
    except Exception as error:  # noqa: BLE001 - whatever its reset, or the schema of its models, may raise
        problem = str(error) if isinstance(error, SpaceError) else f"{type(error).__name__}: {error}"
    if source.fields is None:
        observation_space, action_space, waits = env.observation_space, env.action_space, True
    else:
        observation, action = source.fields
        observation_space, action_space = observation.space, action.space
        model = source.models(env.env).action

        def sample() -> Any:
            return model.model_validate(action.labelled(plain(action.space.sample())))

        waits = calibrate and (env.waits or _waits(env, sample, action.space))
    return Probe(observation_space, action_space, env.metadata, waits, problem=problem, about=_about(env))


def _infer(source: EnvSource, env: OpenEnvEnv) -> tuple[Fields, Fields]:
    models, choices = source.models(env.env), source.choices
    actions = models.action.model_json_schema()
    action = choices.action(actions)
    sample: dict[str, Any] = {}
    if choices.observation_space is None:
        sample = env.reset()[0].model_dump()
    observation = choices.observation(models.observation.model_json_schema(), sample, actions)
    describe(observation.space)
    describe(action.space)
    return observation, action


def _about(env: OpenEnvEnv) -> dict[str, Any]:
    get = getattr(env.env, "get_metadata", None)
    if get is None:
        name = type(env.env).__name__
        return {"name": name, "description": f"{name} environment", "version": None}
    about: dict[str, Any] = get().model_dump()
    return about


def _description(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> str:
    """Gymnasium's own envs begin their docstrings with a heading, which says nothing."""
    doc = type(env.unwrapped).__doc__ or ""  # not inspect.getdoc, which would give that of gymnasium.Env
    paragraphs = inspect.cleandoc(doc).split("\n\n")
    texts = (" ".join(line for line in p.splitlines() if not line.startswith("#")).strip() for p in paragraphs)
    return next((text for text in texts if text), "")


def _version(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> str | None:
    version = getattr(env.spec, "version", None)  # EnvPool's specs are of another kind
    return None if version is None else str(version)


def _waits(env: HostedEnv, sample: Callable[[], Any], action_space: gym.Space[Any]) -> bool:
    """Whether most steps pass without the processor.

    Most, not all, so that one step that loads a file doesn't count. On a busy machine the thread of a step that only
    computes stands still as well, but never by its own will; where the system counts that, both must be so. Text and
    calls of tools aren't tried: random ones don't tell what an agent's will do, such as start a search.
    """
    if not all(leaf.is_array for leaf in leaves(action_space)):
        return True
    waiting: list[bool] = []
    counted = _pauses_are_counted()
    try:
        env.reset(seed=0)
        end = time.monotonic() + _SECONDS
        while not waiting or (len(waiting) < _STEPS and time.monotonic() < end):
            action = sample()
            pauses, wall, cpu = _pauses(), time.perf_counter(), time.thread_time()
            _, _, terminated, truncated, _ = env.step(action)
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            idle = wall - cpu > max(0.5 * wall, 0.0002)
            waiting.append(idle and not (counted and pauses == _pauses()))
            if terminated or truncated:
                env.reset()
    except BaseException:  # noqa: BLE001 - even sys.exit(): what fails when it is tried out may still work in earnest
        return True  # a thread for each env is right for any env, if not the fastest
    return 2 * sum(waiting) > len(waiting)


def _pauses() -> int:
    """How often this thread gave up the processor by itself."""
    return 0 if getrusage is None else getrusage(RUSAGE_THREAD).ru_nvcsw  # type: ignore[redundant-expr]


def _pauses_are_counted() -> bool:
    for _ in range(10):  # on a busy machine a thread is ready again before it has stopped
        time.sleep(0.001)
        if _pauses():
            return True
    return False


def _on_a_thread(function: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised below, on the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="env-probe", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
