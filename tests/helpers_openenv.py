"""Real OpenEnv servers around small environments, in a thread of the test's process.

Importing OpenEnv takes long; a test that needs this module imports it in a fixture.
"""

import asyncio
import datetime as dt
import enum
import math
import threading
import time
import uuid
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import uvicorn
from fastmcp import Context, FastMCP
from gymnasium.spaces import Box, Dict, Discrete
from openenv.core.env_server import Action, Environment, Observation, State, Transform, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import (
    CallToolAction,  # noqa: F401 - for the tests that take it from here
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
)
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata
from openenv.core.rubrics import Rubric
from pydantic import BaseModel, Field, field_validator
from websockets.sync.client import connect

COUNT_SPACES = {
    "observation_space": Dict({"count": Discrete(1000), "mark": Discrete(100_000)}),
    "action_space": Dict({"sleep": Box(0, 100, (), float)}),
}
CARTPOLE_SPACES = {"observation_space": Box(-1e9, 1e9, (4,), float), "action_space": Discrete(2)}


class CountAction(Action):
    sleep: float = 0.0


class CountObservation(Observation):
    count: int
    mark: int


class Count(Environment):
    """Counts its steps; an action says how many seconds one takes. It never ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    keeps_count = True
    live: ClassVar[set[Environment]] = set()
    """The envs that were built and not closed."""
    log: ClassVar[list[tuple[str, int]]] = []
    """What was called, with the count that it led to."""

    def __init__(self):
        super().__init__()
        self.live, self.log = Count.live, Count.log  # a late step of an earlier server's env is in none of this one
        self.live.add(self)
        self.mark, self.begun = 0, False
        self._state = State()

    def reset(self, seed=None, episode_id=None, mark=0, s=0.0, **kwargs):
        time.sleep(s)
        self.mark, self.begun = mark, True
        self._state = State(episode_id=episode_id or str(uuid.uuid4()), step_count=0)
        self.log.append(("reset", 0))
        return CountObservation(count=0, mark=self.mark)

    def step(self, action, timeout_s=None, **kwargs):
        time.sleep(action.sleep)
        if self not in self.live:
            self.log.append(("step of a closed env", 0))
        if not self.begun:
            self.log.append(("step without an episode", 0))
            raise RuntimeError("stepped without an episode")
        self._state.step_count += 1
        self.log.append(("step", self._state.step_count))
        return CountObservation(count=self._state.step_count, mark=self.mark, reward=1.0)

    @property
    def state(self):
        return self._state if self.keeps_count else State(step_count=0)

    def close(self):
        self.live.discard(self)


class Forgetful(Count):
    """Doesn't keep ``step_count``, as many envs don't."""

    keeps_count = False


class Short(Count):
    """Its episodes end after three steps."""

    def step(self, action, timeout_s=None, **kwargs):
        observation = super().step(action)
        observation.done = observation.count == 3
        self.begun = not observation.done
        return observation


class PoleAction(Action):
    push: int = 0


class PoleObservation(Observation):
    state: list[float]


class CartPole(Environment):
    """Gymnasium's CartPole as an OpenEnv environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.env = gym.make("CartPole-v1")
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id, step_count=0)
        return PoleObservation(state=self.env.reset(seed=seed)[0].tolist())

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        observation, reward, terminated, truncated, _ = self.env.step(action.push)
        return PoleObservation(state=observation.tolist(), reward=reward, done=terminated or truncated)

    @property
    def state(self):
        return self._state

    def close(self):
        self.env.close()


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Arm(BaseModel):
    """A part of an observation or an action that is an object."""

    joint: int = Field(default=0, ge=0, le=4)
    angle: float = 0.0


class EveryAction(Action):
    """Every kind of field; what it asks for stands in `order`."""

    order: str = Field(default="", max_length=40)
    turn: Literal["left", "right"] = "left"
    gear: Annotated[int, Field(ge=1, le=6)] = 1
    colour: Colour = Colour.RED
    hold: bool = False
    arm: Arm = Arm()
    point: tuple[float, float] = (0.0, 0.0)
    note: str | None = None
    scale: float = 1.0

    @field_validator("scale")
    @classmethod
    def _positive(cls, scale):
        if scale == 13:
            raise RuntimeError("the validator is broken")
        return scale


class EveryObservation(Observation):
    """Every kind of field."""

    count: int = 0
    level: Annotated[int, Field(ge=2, le=5)] = 2
    speed: float = 0.1
    text: str = ""
    turn: Literal["left", "right"] = "left"
    colour: Colour = Colour.GREEN
    open: bool = False
    arm: Arm = Arm()
    board: list[list[int]] = Field(default_factory=lambda: [[0, 0, 0], [0, 0, 0]])
    pair: tuple[float, int] = (0.5, 2)
    names: list[str] = Field(default_factory=list)
    table: dict[str, Any] = Field(default_factory=dict)
    note: str | None = None
    anything: Any = None


class Every(Environment[EveryAction, EveryObservation, State]):
    """Shows back what it was told; an action's `order` makes it do something special."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="none", step_count=0, extra={"a": 1})
        self.closed = False

    def reset(self, seed=None, episode_id=None, difficulty="easy", fail=False):
        if fail:
            raise ValueError("no luck")
        self._state = State(episode_id=episode_id or "unnamed", step_count=0, extra={"seed": seed})
        return EveryObservation(text=difficulty, metadata={"seed": seed} if seed is not None else {})

    def step(self, action, timeout_s=None):
        self._state.step_count += 1
        values = {"count": self._state.step_count, "turn": action.turn, "colour": action.colour, "arm": action.arm}
        special = getattr(self, f"_{action.order}", None)
        if special is not None:
            return special(values)
        return EveryObservation(**values, open=action.hold, note=action.note, reward=action.scale)

    def _fail(self, values):
        raise LookupError("the arm is gone")

    def _mute(self, values):
        raise RuntimeError

    def _end(self, values):
        return EveryObservation(**values, reward=True, done=True, metadata={"truncated": True, "why": Colour.RED})

    def _nan(self, values):
        return EveryObservation(**values, speed=math.nan, reward=math.inf, table={"x": [-math.inf, 1.0]})

    def _odd(self, values):
        at = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.timezone.utc)
        odd = {"at": at, "set": {3}, "bytes": b"ab", "id": uuid.UUID(int=7), "for": dt.timedelta(seconds=90)}
        return EveryObservation(**values, anything=odd, table={"1": (1, 2)}, names=["ä", "\u2028"], metadata={"k": [1]})

    def _unsendable(self, values):
        return EveryObservation(**values, anything=object())

    def _nothing(self, values):
        return None

    @property
    def state(self):
        if self._state.step_count == 5:
            raise OSError("the state is lost")
        return self._state


class MoreState(State):
    """A state with a field of its own."""

    speed: int = 3


class Stately(Every):
    """Has more in its state than it says."""

    @property
    def state(self):
        return MoreState(episode_id="e", extra={"a": 1})


class EveryAsync(Every):
    """The same with coroutines, which remember the event loop that they run on."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        self.lock = asyncio.Lock()
        await asyncio.sleep(0)
        return self.reset(seed=seed, episode_id=episode_id, **kwargs)

    async def step_async(self, action, timeout_s=None, **kwargs):
        async with self.lock:
            await asyncio.wait_for(asyncio.sleep(0), 5)
        return self.step(action)


class DropAction(Action):
    """Where a disc is dropped."""

    column: int
    note: str | None = None


class BoardObservation(Observation):
    """Fields that have no spaces of their own, and a board."""

    board: list[list[int]]
    legal: list[int]
    free: list[bool]
    pixels: list[int]
    pixels_shape: list[int] = [2, 2, 3]
    hint: int | None = None
    history: list[int] = []


class Columns(Environment):
    """Drops discs into four columns of two; it ends with the third disc, and is cut off by a disc in column 3."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None):
        self.drawn = np.random.default_rng(seed) if seed is not None else getattr(self, "drawn", None)
        self.board, self.history = [[0] * 4, [0] * 4], []
        return self._seen()

    def step(self, action, timeout_s=None):
        if not 0 <= action.column < 4 or self.board[0][action.column]:
            raise ValueError(f"column {action.column} is full")
        self.history.append(action.column)
        row = 0 if self.board[1][action.column] else 1
        self.board[row][action.column] = len(self.history)
        cut = action.column == 3
        metadata = {"row": row, "note": action.note} | ({"truncated": True} if cut else {})
        return self._seen(reward=row / 2, done=cut or len(self.history) == 3, metadata=metadata)

    def _seen(self, **more):
        free = [not top for top in self.board[0]]
        legal = [column for column in range(4) if free[column]]
        first = int(self.drawn.integers(200)) if self.drawn is not None else 0
        pixels = [first + number for number in range(12)]
        return BoardObservation(board=self.board, legal=legal, free=free, pixels=pixels, history=self.history, **more)

    @property
    def state(self):
        return State(step_count=len(self.history))


class Ruled(Rubric):
    """Pays two for each step."""

    def forward(self, action, observation):
        return 2.0


class Shaping(Transform):
    """Notes in the text that it was there."""

    def __call__(self, observation):
        observation.text += "!"
        return observation


class Shaped(Every):
    """With a rubric and a transform, which it applies as OpenEnv's own environments do."""

    def __init__(self):
        super().__init__()
        self.rubric, self.transform = Ruled(), Shaping()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._reset_rubric()
        return self._apply_transform(super().reset(seed, episode_id))

    def step(self, action, timeout_s=None):
        observation = super().step(action)
        observation.reward = self._apply_rubric(action, observation)
        return self._apply_transform(observation)

    def get_metadata(self):
        return EnvironmentMetadata(name="shaped", description="With a rubric.", version="2.0", author="nobody")


class Tools(MCPEnvironment):
    """Has tools of the Model Context Protocol."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("tools")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def fail() -> str:
            raise ValueError("out of order")

        @server.tool
        def odd() -> dict:
            return {"list": [1, None, 2.5], "text": "ä", "inner": {"a": True}}

        @server.tool
        async def remember(what: str, ctx: Context) -> str:
            await ctx.set_state("what", what)
            return "noted"

        @server.tool
        async def recall(ctx: Context) -> str:
            return await ctx.get_state("what") or "nothing"

        super().__init__(server)
        self._state = State(episode_id="tools")

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(metadata={"tools": 2})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=True)

    @property
    def state(self):
        return self._state


class ServerOnly(Every):
    """Has a tool server, but no client of it."""

    def __init__(self):
        super().__init__()
        self.mcp_server = FastMCP("tools")
        self.mcp_server.tool(self.add)
        self.mcp_server.tool(self.fail)

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def fail(self) -> str:
        raise ValueError("out of order")


class ToolActions(Every):
    """Has tools as actions only."""

    def step(self, action, timeout_s=None):
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=[Tool(name="add", description="Add.", input_schema={"type": "object"})])
        if action.tool_name != "add":
            missing = ToolError(error_type="tool_not_found", message="no such tool")
            return CallToolObservation(tool_name=action.tool_name, error=missing)
        return CallToolObservation(tool_name="add", result=sum(action.arguments.values()))


class WrongToolActions(Every):
    """Declares tool actions, and answers them with something else."""

    def step(self, action, timeout_s=None):
        return EveryObservation()


@contextmanager
def stock_server(env=Count, max_envs=8, models=None, idle_s=None, **config):
    """Serve an environment with OpenEnv's own server, which may close sessions that are idle, and give its URL."""
    models = models or ((PoleAction, PoleObservation) if env is CartPole else (CountAction, CountObservation))
    Count.live, Count.log = set(), []
    limits = ConcurrencyConfig(max_concurrent_envs=max_envs, session_timeout=idle_s)
    app = create_app(env, *models, concurrency_config=limits)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=5, **config))
    thread = threading.Thread(target=server.run, name="stock-server")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server ended before it had started"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server didn't stop"


@contextmanager
def filled(url):
    """Take one place on a server, and keep it."""
    with connect(f"{url.replace('http', 'ws')}/ws") as connection:
        connection.send('{"type": "state"}')
        connection.recv()
        yield
