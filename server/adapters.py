"""What a server can host, as one kind of object: `HostedEnv`. No threads are started and no I/O is done here.

A Gymnasium env is adapted by `GymnasiumEnv`, an OpenEnv environment by `openenv_gym.server.openenv_env.OpenEnvEnv`.
`EnvSource` turns what a user passed (an id, a factory or a class) into envs, and says clearly what is wrong where it
can't.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import gymnasium as gym

from openenv_gym.choices import Choices
from openenv_gym.errors import FactoryError
from openenv_gym.inference import Fields
from openenv_gym.server.drawing import drawing, draws, has_surfaces, may_draw
from openenv_gym.server.hosted_vector import HostedVector
from openenv_gym.server.openenv_env import Models, OpenEnvEnv, is_openenv, models_of

__all__ = ["EnvSource", "GymnasiumEnv", "HostedEnv", "SharedEnvError"]


class GymnasiumEnv:
    """A Gymnasium env on the server.

    Args:
        env: the env, with whatever wrappers.

    Attributes:
        env: the env.
        observation_space: the env's observation space.
        action_space: the env's action space.
        metadata: the env's metadata, with the render mode that it runs in.
        step: the env's own ``step``; behind a lock where the env draws in it.
        close: the env's own ``close``.
        takes_seed: whether its ``reset`` has a ``seed`` parameter.
        guarded: True: a step without a reset is refused, and an env whose reset raised is built anew.
    """

    guarded: Final = True

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.observation_space: gym.Space[Any] = env.observation_space
        self.action_space: gym.Space[Any] = env.action_space
        self.metadata: dict[str, Any] = {**env.metadata, "render_mode": env.render_mode}
        self.step = env.step
        self.close = env.close
        self._missing = [name for name in ("seed", "options") if not _takes(env.reset, name, unknown=True)]
        self.takes_seed = "seed" not in self._missing
        self._draws = may_draw(env)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env, with those of ``seed`` and ``options`` that are given and that its ``reset`` has."""
        if self._missing:
            arguments = {k: v for k, v in arguments.items() if k not in self._missing and v is not None}
        if self._draws:
            with drawing:
                result = self.env.reset(**arguments)
        else:
            result = self.env.reset(**arguments)
        if self._draws or has_surfaces():  # otherwise nothing draws, and looking costs at each reset
            self._draws = draws(self.env)
            self.step = self._draw_step if self._draws else self.env.step
        return result

    def _draw_step(self, action: Any) -> Any:
        with drawing:
            return self.env.step(action)

    def render(self) -> Any:
        """The env's current frame. One env of this process renders at a time."""
        with drawing:
            return self.env.render()

    def get(self, name: str) -> Any:
        """An attribute of the outermost wrapper that has it; ``render`` is `render`."""
        return self.render if name == "render" else self.env.get_wrapper_attr(name)

    def set(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute where it is found, or with ``force`` on the outermost wrapper."""
        try:
            return bool(self.env.set_wrapper_attr(name, value, force=force))
        except TypeError:  # Gymnasium < 1.1 has no `force`
            return bool(self.env.set_wrapper_attr(name, value))


HostedEnv: TypeAlias = GymnasiumEnv | HostedVector | OpenEnvEnv


def _takes(function: Callable[..., Any], name: str, *, unknown: bool) -> bool:
    """Whether a function has a parameter; ``unknown`` for one that doesn't say, as some of C don't."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return unknown
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _names(function: Callable[..., Any], name: str) -> bool:
    """Whether a function names a parameter, rather than taking whatever comes."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class SharedEnvError(FactoryError, ValueError):
    """Raised when a factory returns an env that is in use already; a ``ValueError`` as ``DummyVecEnv`` raises."""

    def __init__(self, env: str) -> None:
        super().__init__(env, "the factory returned the same env twice; it must make a new one each time")
        self.args = (env,)


class EnvSource:
    """Where a server's envs come from.

    Args:
        env: a Gymnasium id (``CartPole-v1``, ``module:EnvId``), ``package.module:callable``, or a callable that
            returns a Gymnasium env, a Gymnasium vector env or an OpenEnv environment.
        env_kwargs: keyword arguments for it.
        name: the name to publish; None takes the id or the callable's name.
        models: an OpenEnv environment's models; None takes what its class says.
        choices: what was said about its spaces.

    Attributes:
        name: the published name.
        choices: what was said about the spaces of an OpenEnv environment.
        openenv: whether the envs are OpenEnv environments; known for certain once one was made.
        fields: how observations and actions of an OpenEnv environment make up values of spaces, once that is known.

    Raises:
        TypeError: for an env instance or anything else that makes no envs.
        FactoryError: for a module that can't be imported.
    """

    def __init__(
        self,
        env: object,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        models: Models | None = None,
        choices: Choices | None = None,
    ) -> None:
        if not isinstance(env, type) and (isinstance(env, (gym.Env, gym.vector.VectorEnv)) or _looks_like_an_env(env)):
            raise TypeError(
                f"env must be an id or a factory, not an instance of {type(env).__name__}: every session needs envs "
                f"of its own. Pass the class, or `lambda: {type(env).__name__}(...)`"
            )
        self._env_kwargs = dict(env_kwargs or {})
        self._id: str | None = None
        if isinstance(env, str):
            self.name = name or env
            factory = _imported(env)
            if factory is None:
                self._id = env
        elif callable(env):
            self.name = name or str(getattr(env, "__name__", type(env).__name__))
            factory = env
        else:
            raise TypeError(f"env must be an id or a factory, not {env!r}")
        self._factory = factory
        self._models = models
        self.choices = choices or Choices()
        self.fields: tuple[Fields, Fields] | None = None
        self._draws = False  # whether its envs draw while they are built
        self._used: dict[int, HostedEnv] = {}  # by the id of the env itself, which they keep alive
        self.openenv = models is not None

    def models(self, env: object) -> Models:
        """The models of an OpenEnv environment, or of its class.

        Raises:
            FactoryError: if neither `create_app` nor its class says them.
        """
        if self._models is None:
            self._models = models_of(env, self.name)
        return self._models

    @property
    def known_models(self) -> Models | None:
        """The models of an OpenEnv environment; None for a Gymnasium env."""
        return self._models if self.openenv else None

    @property
    def takes_num_envs(self) -> bool:
        """Whether a factory of vector envs can be told how many envs one shall have."""
        return self._factory is not None and _names(self._factory, "num_envs")

    def make(
        self, render_mode: str | None = None, *, num_envs: int = 1, autoreset_mode: str | None = None
    ) -> HostedEnv:
        """Build one env, or one vector env, on the thread that will run it.

        Args:
            render_mode: the mode to render in; it is left out for envs that don't take it.
            num_envs: how many envs a vector env shall have; left out for factories without this parameter.
            autoreset_mode: the mode in which a vector env shall reset its envs, as ``AutoresetMode``'s value; the same.

        Raises:
            FactoryError: with what the env's constructor raised.
            SharedEnvError: if the factory returns an env that is in use already, until that is closed.
        """
        kwargs = dict(self._env_kwargs)
        if render_mode is not None and self.takes_render_mode:
            kwargs["render_mode"] = render_mode
        if self.takes_num_envs:
            kwargs["num_envs"] = num_envs
        if autoreset_mode is not None and self._factory is not None and _names(self._factory, "autoreset_mode"):
            kwargs["autoreset_mode"] = gym.vector.AutoresetMode(autoreset_mode)
        try:
            with drawing if self._draws else contextlib.nullcontext():
                env = self._factory(**kwargs) if self._factory is not None else self._make_registered(kwargs)
        except BaseException as error:  # even sys.exit(), which would only end the env's thread
            raise FactoryError(self.name, f"{type(error).__name__}: {error}") from error
        vector = isinstance(env, gym.vector.VectorEnv)  # EnvPool's are envs as well
        if not vector and not isinstance(env, gym.Env) and not is_openenv(env):
            raise FactoryError(self.name, f"the factory returned {type(env).__name__}, not a gymnasium.Env")
        self.openenv = not vector and not isinstance(env, gym.Env)
        self._draws = not vector and isinstance(env, gym.Env) and draws(env)
        try:
            hosted: HostedEnv
            if isinstance(env, gym.vector.VectorEnv):
                hosted = HostedVector(env)
            else:
                hosted = GymnasiumEnv(env) if isinstance(env, gym.Env) else self._adapted(env)
        except BaseException as error:  # a property that raises
            with contextlib.suppress(Exception):
                env.close()
            if isinstance(error, FactoryError):
                raise
            raise FactoryError(self.name, f"{type(error).__name__}: {error}") from error
        self._take(hosted)
        return hosted

    def _take(self, hosted: HostedEnv) -> None:
        """Note that an env is in use until it is closed: two slots, on two threads, must not step the same one."""
        key, close = id(getattr(hosted.env, "unwrapped", hosted.env)), hosted.close
        if self._used.setdefault(key, hosted) is not hosted:
            raise SharedEnvError(self.name)

        def give_back() -> None:
            try:
                close()
            finally:
                self._used.pop(key, None)

        hosted.close = give_back  # type: ignore[method-assign]

    def _adapted(self, env: Any) -> OpenEnvEnv:
        self.models(env)
        return OpenEnvEnv(env, *(fields.space for fields in self.fields or ()))

    def _make_registered(self, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
        assert self._id is not None
        # The learner's own gym.make brings a checker; a second one here would warn where nobody sees it.
        try:
            return gym.make(self._id, disable_env_checker=True, **kwargs)
        except TypeError as error:
            if "unexpected keyword argument 'render_mode'" not in str(error) or "render_mode" in self._env_kwargs:
                raise
        kwargs.pop("render_mode", None)  # an env that can't be rendered; the client tells the user
        return gym.make(self._id, disable_env_checker=True, **kwargs)

    @property
    def takes_render_mode(self) -> bool:
        """Whether an env can be built for a render mode."""
        return self._factory is None or _takes(self._factory, "render_mode", unknown=False)


def _looks_like_an_env(env: object) -> bool:
    return hasattr(env, "reset") or hasattr(env, "reset_async")


def _imported(name: str) -> Callable[..., Any] | None:
    """The callable that ``package.module:callable`` names, or None for a Gymnasium id, ``module:EnvId`` included."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return None
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"importing {module_name} raised {type(error).__name__}: {error}"
        raise FactoryError(name, f"{reason}{_import_hint(error, module_name, attribute)}") from error
    found = getattr(module, attribute, None)
    if found is None or callable(found) or attribute in gym.registry:
        return found if callable(found) else None
    kind = type(found).__name__
    raise FactoryError(name, f"{attribute} is a {kind}, and not a class or function that returns an env")


def _import_hint(error: BaseException, module: str, attribute: str) -> str:
    """What to write instead where a path was given, or where a module isn't found; `""` for what it raises itself."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if module.endswith(".py"):
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        return f"; a module has a name, not a path: write {name}:{attribute}"
    if not f"{module}.".startswith(f"{error.name}."):  # something that the module imports
        return ""
    return "; modules are looked for in the current folder and where Python's packages are"
