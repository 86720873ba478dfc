"""Looks at one env before the server starts: its spaces, and whether its steps compute or wait."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import gymnasium as gym

from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields
from openenv_gym.server.adapters import EnvSource, HostedEnv
from openenv_gym.server.disclosure import text_of
from openenv_gym.server.hosted_vector import HostedVector
from openenv_gym.server.openenv_env import OpenEnvEnv, wraps_an_agent
from openenv_gym.server.openenv_values import plain
from openenv_gym.server.slot import Slot
from openenv_gym.spaces import describe, leaves

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not Linux
    getrusage = None  # type: ignore[assignment]

__all__ = ["Probe", "probe"]

logger = logging.getLogger(__name__)

_STEPS: Final = 16
_SECONDS: Final = 0.2
_PATIENCE_S: Final = 10.0
"""Seconds after which a word is said of an env that keeps the server from starting, and trying it out is given up."""


@dataclass(frozen=True)
class Probe:
    """What one env showed.

    Attributes:
        observation_space: its observation space.
        action_space: its action space.
        metadata: its metadata.
        kind: its class.
        waits: whether most of a step's time passes without the processor (sleep, I/O, another process).
        description: the first paragraph of its class's docstring; ``""`` if there is none.
        version: its version among the registered ones, such as ``1`` of ``CartPole-v1``.
        problem: why an OpenEnv environment has no spaces; None for all others.
        sample: the fields of one of its observations, where one was needed to infer spaces.
        about: what an OpenEnv environment says about itself; None for a Gymnasium env.
        vector: whether it is a vector env, of which each session has one.
        agent: whether it wraps an agent, which clients can talk to.
        fixed_size: how many envs such a one has if its factory can't be told; None if it can.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    kind: type
    waits: bool
    description: str = ""
    version: str | None = None
    problem: str | None = None
    sample: dict[str, Any] | None = None
    about: dict[str, Any] | None = None
    vector: bool = False
    fixed_size: int | None = None
    agent: bool = False


def probe(source: EnvSource, *, calibrate: bool) -> Probe:
    """Build an env, look at it, and close it, all on a thread of its own.

    What is needed of the env is waited for. What only says how to serve it best is given up after `_PATIENCE_S`, for an
    env whose step hangs would keep the server from starting.

    Args:
        source: where the env comes from.
        calibrate: also reset it and step it a few times with sampled actions, to learn whether it waits.

    Raises:
        FactoryError: if it can't be built.
        SpaceError: if a space can't be described, naming the part.
    """
    found: Future[Probe] = Future()
    waits: Future[bool] = Future()

    def look() -> None:
        try:
            env = source.make()
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            found.set_exception(error)
            return
        try:
            facts, trial = _look_at(source, env, calibrate)
        except BaseException as error:  # noqa: BLE001 - the same
            found.set_exception(error)
        else:
            found.set_result(facts)
            waits.set_result(facts.waits if trial is None else trial())
        finally:
            try:
                env.close()
            except BaseException:  # not even sys.exit() keeps it from being served
                logger.exception("closing the env that was looked at failed")

    thread = threading.Thread(target=look, name="env-probe", daemon=True)
    thread.start()
    if not wait([found], _PATIENCE_S).done:
        logger.warning("an env of %s is being built for more than %g seconds; waiting", source.name, _PATIENCE_S)
        wait([found])
    thread.join(_PATIENCE_S)
    if thread.is_alive():
        logger.warning(
            "an env of %s that is tried out doesn't come back from its reset, a step or its close within %g seconds; "
            "serving goes on without it. max_step_s gives envs up that hang",
            source.name,
            _PATIENCE_S,
        )
    # A thread for each env is right for any env, if not the fastest.
    return replace(found.result(), waits=waits.result() if waits.done() else True)


def _look_at(source: EnvSource, env: HostedEnv, calibrate: bool) -> tuple[Probe, Callable[[], bool] | None]:
    """What an env shows by itself, and what tries out whether it waits, if that is to be done."""
    if isinstance(env, OpenEnvEnv):
        return _look_at_openenv(source, env, calibrate)
    _check_space(env.observation_space, "observation_space")
    _check_space(env.action_space, "action_space")
    if isinstance(env, HostedVector):
        return _look_at_vector(source, env), None
    # Copies: what the server does with a space seeds it, and it may be one object for all envs.
    observation_space, action_space = deepcopy((env.observation_space, env.action_space))
    description, version = _description(env.env), _version(env.env)
    facts = Probe(observation_space, action_space, env.metadata, type(env.env), False, description, version)
    return facts, partial(_waits, source.name, env, lambda action: action, action_space) if calibrate else None


def _check_space(space: object, name: str) -> None:
    """Raise `SpaceError` for what can't be described."""
    if not isinstance(space, gym.Space):
        what = "isn't set" if space is None else f"is of {type(space).__name__}, which is no gymnasium.Space"
        raise SpaceError(f"the env's {name} {what}")
    describe(space)


def _look_at_vector(source: EnvSource, env: HostedVector) -> Probe:
    """Look at a vector env. It has a thread of its own in any case, so nothing is tried out."""
    return Probe(
        env.observation_space,
        env.action_space,
        env.metadata,
        type(env.env),
        waits=False,
        description=_description(env.env),
        version=_version(env.env),
        vector=True,
        fixed_size=None if source.takes_num_envs else env.num_envs,
    )


def _look_at_openenv(source: EnvSource, env: OpenEnvEnv, calibrate: bool) -> tuple[Probe, Callable[[], bool] | None]:
    """Look at an OpenEnv environment. It is served without spaces too: its own dialect needs none."""
    models, problem, seen = source.models(env.env), None, None
    try:
        if models.needs_sample(source.choices):
            seen = env.reset()[0].model_dump()
        source.fields = _described(models.fields(source.choices, seen))
    except Exception as error:  # noqa: BLE001 - whatever its reset, or the schema of its models, may raise
        problem = str(error) if isinstance(error, SpaceError) else f"{type(error).__name__}: {error}"
    if source.fields is None:
        observation_space, action_space, waits, trial = env.observation_space, env.action_space, True, None
    else:
        observation, action = source.fields
        observation_space, action_space = observation.space, action.space

        def of(value: Any) -> Any:
            return models.action.model_validate(action.labelled(plain(value)))

        waits = calibrate and env.waits
        trial = partial(_waits, source.name, env, of, action.space) if calibrate and not waits else None
    facts = Probe(
        observation_space,
        action_space,
        env.metadata,
        type(env.env),
        waits,
        problem=problem,
        sample=seen,
        about=_about(env),
        agent=wraps_an_agent(env.env),
    )
    return facts, trial


def _described(fields: tuple[Fields, Fields]) -> tuple[Fields, Fields]:
    """The same fields, if their spaces can be described. Raises SpaceError."""
    for part in fields:
        describe(part.space)
    return fields


def _about(env: OpenEnvEnv) -> dict[str, Any]:
    name = type(env.env).__name__
    about: dict[str, Any] = {"name": name, "description": f"{name} environment", "version": None}
    try:
        if hasattr(env.env, "get_metadata"):
            about = env.env.get_metadata().model_dump()
    except Exception:
        logger.exception("the environment's get_metadata failed")
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


def _waits(name: str, env: HostedEnv, action_of: Callable[[Any], Any], action_space: gym.Space[Any]) -> bool:
    """Whether most steps pass without the processor.

    Most, not all, so that one step that loads a file doesn't count. On a busy machine the thread of a step that only
    computes stands still as well, but never by its own will; where the system counts that, both must be so. Text and
    calls of tools aren't tried: random ones don't tell what an agent's will do, such as start a search.
    """
    if not all(leaf.is_array for leaf in leaves(action_space)):
        return True
    waiting: list[bool] = []
    counted = _pauses_are_counted()
    slot = Slot(lambda: env)
    try:
        slot.build()
        slot.reset(seed=0)
        end = time.monotonic() + _SECONDS
        while not waiting or (len(waiting) < _STEPS and time.monotonic() < end):
            action = action_of(action_space.sample())
            pauses, wall, cpu = _pauses(), time.perf_counter(), time.thread_time()
            slot.step(action, None)
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            idle = wall - cpu > max(0.5 * wall, 0.0002)
            waiting.append(idle and not (counted and pauses == _pauses()))
            if slot.over:
                slot.reset()
    except BaseException as error:  # noqa: BLE001 - even sys.exit(): it may still work in earnest
        logger.warning("an env of %s failed when it was tried out: %s: %s", name, type(error).__name__, text_of(error))
        return True
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
