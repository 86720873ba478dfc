"""What a remote vector env can be asked besides resetting and stepping: methods, attributes and frames."""

from __future__ import annotations

from typing import Any, Final

from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from openenv_gym.asking import Ask, calling, getting, rendering, setting
from openenv_gym.options import RemoteOptions
from openenv_gym.rendering import NO_FRAMES
from openenv_gym.rollout import Rollout
from openenv_gym.stats import Stats
from openenv_gym.turns import Turns

__all__ = ["VectorCalls", "limit"]

_REFUSED_CALLS: Final = frozenset({"reset", "step", "close", "_setattr", "_check_spaces"})


class VectorCalls(VectorEnv[Any, Any, NDArray[Any]]):
    """The part of `openenv_gym.RemoteVecEnv` that is the same in all states of its episodes.

    Attributes:
        options: the validated options.
        rollout: the rows and their episodes.
    """

    options: RemoteOptions
    rollout: Rollout
    _turns: Turns

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env that the server allows, or read an attribute.

        Args:
            name: the method's name, looked up from the outermost wrapper.
            *args: plain data.
            **kwargs: plain data.

        Returns:
            one result for each env.

        Raises:
            ValueError: for ``reset``, ``step`` and ``close``, which have methods of their own.
            RemoteEnvError: if the server doesn't allow it (``--allow-call``), or it raises.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a call without waiting; see `call`."""
        self._assert_is_running()
        with self._turns.begin("call_async", AsyncState.WAITING_CALL):
            if name in _REFUSED_CALLS:
                raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
            self._turns.pending = self.rollout.start_ask(calling(name, args, kwargs), "call")

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for `call_async`."""
        self._assert_is_running()
        with self._turns.wait(AsyncState.WAITING_CALL, "call") as pending:
            return tuple(self.rollout.finish_ask(pending, limit(timeout, self.options.message_timeout_s)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of plain data from each env, looked up from the outermost wrapper.

        Raises:
            AttributeError: if an env has none. It is a `RemoteEnvError` too.
        """
        return tuple(self._ask(getting(name), "get_attr"))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute that the server allows.

        Args:
            name: the attribute's name.
            values: a list or tuple with one value for each env, or one value for all.

        Raises:
            ValueError: for a list or tuple of another length.
            RemoteEnvError: if the server doesn't allow it (``--allow-set``).
        """
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self._ask(setting(name, values), "set_attr")

    def render(self) -> tuple[Any, ...]:
        """Each env's current frame, in ``render_mode``."""
        frames = self._ask(rendering(png=self.options.png), "render")
        if self.render_mode is None and all(frame is None for frame in frames):
            self.rollout.notices.tell(NO_FRAMES)
        return tuple(map(self.options.frame_of, frames))

    def stats(self, collect: bool | None = None) -> Stats:
        """What this env has done so far, and where the time of its steps went.

        Steps and bytes are always counted. Where the time goes is collected when it is asked for, and then the server
        is asked for its times too, in each step::

            envs.stats(collect=True)
            ...  # some steps
            print(envs.stats())

        With several connections the parts are those of the slowest in each step; see `openenv_gym.stats.Stats`.

        Args:
            collect: True collects from now on, and forgets what was collected before; False stops; None changes
                nothing. What is returned is from before that.
        """
        stats = self.rollout.stats()
        if collect is not None:
            self.rollout.recorder.collect(collect)
        return stats

    def _ask(self, make: Ask, phase: str) -> list[Any]:
        self._assert_is_running()
        with self._turns.alone(phase):
            return self.rollout.ask(make, phase, self.options.message_timeout_s)

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")


def limit(timeout: float | None, default: float) -> float:
    """A call's own limit in seconds, or the default."""
    return default if timeout is None else timeout
