"""Sessions on several servers are opened at the same time: all of them, or none."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers_faults import FaultProxy, ScriptedServer
from helpers_server import running
from helpers_spaces import identical
from helpers_tally import Tally
from helpers_wait import LIMIT_S, wait_until
from pydantic import Field

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import BatchError, CapacityError, ConnectFailed, FactoryError, RemoteEnvError, SpaceError
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def openenv():
    return pytest.importorskip("helpers_openenv")


def sizes(env):
    return [link.slots for link in env.rollout.pool.links]


@pytest.mark.parametrize(
    "num_envs, connections, servers, expected",
    [
        (5, None, 1, [5]),
        (5, 2, 1, [3, 2]),
        (2, 5, 1, [1, 1]),
        (5, None, 2, [3, 2]),
        (5, 4, 2, [2, 1, 1, 1]),
        (1, None, 2, [1]),
    ],
)
def test_envs_are_spread_evenly(num_envs, connections, servers, expected):
    app = create_app(Tally)
    with running(app) as url:
        with RemoteVecEnv([url] * servers, num_envs, connections=connections, close_timeout_s=LIMIT_S) as env:
            assert sizes(env) == expected
            assert [list(rows) for rows in env.rollout.pool.rows] == [
                list(range(sum(expected[:i]), sum(expected[: i + 1]))) for i in range(len(expected))
            ]
            assert app.state.registry.capacity.active == num_envs
            env.reset(seed=1)
            assert env.step(list(range(num_envs)) if num_envs < 4 else [0] * num_envs)[0].shape == (num_envs, 5)
        assert app.state.registry.capacity.active == 0


@pytest.mark.parametrize(
    "options, requested",
    [({"connections": 1}, 6), ({"connections": 3}, 2), ({"dialect": "openenv"}, 6)],
    ids=["one", "three", "openenv"],
)
def test_more_envs_than_there_is_room_for(options, requested):
    app = create_app(Tally, max_envs=4)
    with running(app) as url:
        with pytest.raises(CapacityError) as full:
            RemoteVecEnv(url, 6, **options)
        assert full.value.maximum == 4
        assert full.value.requested == requested
        assert full.value.active == (0 if requested == 6 and "connections" in options else 4)
        assert "raise --max-envs" in str(full.value)
        wait_until(lambda: app.state.registry.capacity.active == 0)
        with RemoteVecEnv(url, 4, **options) as env:
            env.reset(seed=1)


def test_room_is_waited_for_without_holding_any():
    """Two that want three of four slots each, over several connections, would wait for each other otherwise."""
    app = create_app(Tally, max_envs=4)
    options = {"connections": 3, "wait_for_room": True, "connect_timeout_s": 60.0}
    with running(app) as url, FaultProxy(url) as proxy:
        first, seconds = RemoteVecEnv(url, 3, **options), []
        waiting = threading.Thread(target=lambda: seconds.append(RemoteVecEnv(proxy.url, 3, **options)))
        waiting.start()
        wait_until(lambda: proxy.accepted > 6)
        first.close()
        waiting.join(60)
        (second,) = seconds
        assert second.reset(seed=1)[0].shape == (3, 5)
        with pytest.raises(CapacityError):
            RemoteVecEnv(url, 3, wait_for_room=True, connect_timeout_s=5.0)  # the limit for connecting too
        second.close()


def test_sessions_that_are_just_being_built_are_given_back_too():
    """One connection is refused while the other one's envs are being built."""
    building, go_on = threading.Semaphore(0), threading.Event()

    class Slow(Tally):
        def __init__(self):
            super().__init__()
            if slow.is_set():
                building.release()
                assert go_on.wait(LIMIT_S)

    slow = threading.Event()
    app = create_app(Slow, max_envs=3, grace_s=0.1)
    slow.set()
    with running(app) as url:
        with pytest.raises(CapacityError):
            RemoteVecEnv(url, 4, connections=2)
        assert building.acquire(timeout=LIMIT_S)
        go_on.set()
        wait_until(lambda: app.state.registry.capacity.active == 0)


@pytest.fixture(params=[True, False], ids=["lasting", "plain"])
def lasting(request, monkeypatch):
    """Whether an OpenEnv server has sessions that outlive a connection, as since 0.10."""

    async def no(target):
        return False

    if not request.param:
        monkeypatch.setattr("openenv_gym.openenv_sessions.can_create", no)


def test_more_envs_than_an_openenv_server_has_room_for(openenv, lasting, patient):
    with openenv.stock_server(max_envs=2) as url:
        with pytest.raises(CapacityError) as full:
            RemoteVecEnv(url, 4, **openenv.COUNT_SPACES)
        assert (full.value.active, full.value.maximum, full.value.requested) == (2, 2, 4)
        assert "admits 2 env(s) at a time, and 4 were asked for" in str(full.value)
        room = {"wait_for_room": True, "connect_timeout_s": LIMIT_S, "close_timeout_s": LIMIT_S}
        with RemoteVecEnv(url, 2, **room, **openenv.COUNT_SPACES) as env:  # in the end nothing is left of those
            env.reset()
            assert len(openenv.Count.live) == 2
            with pytest.raises(CapacityError, match=r"2 of 2 are in use.* keeps sessions of killed clients"):
                RemoteVecEnv(url, 1, **openenv.COUNT_SPACES)
        assert not openenv.Count.live


def test_an_openenv_server_for_one_session_is_enough_for_one_env(openenv, lasting, patient):
    with openenv.stock_server(max_envs=1) as url:
        for _ in range(2):
            with RemoteVecEnv(url, 1, close_timeout_s=LIMIT_S, **openenv.COUNT_SPACES) as env:
                env.reset()


TRIMMINGS = [
    {"exclude": ("camera",)},
    {"include": ("arm.a", "camera"), "obs_dtype": "float16"},
    {"obs_dtype": {"arm": "float64"}, "info_keys": ("lives",)},
    {"include": ("wide",), "obs_dtype": "float16", "info_keys": ()},
]


class Machine(gym.Env):
    """Its arm moves, and it has a number that float16 lacks. JSON brings the integer as Python's, as it is here."""

    observation_space = Dict(
        {
            "arm": Dict({"a": Box(-1, 1, (2,)), "b": Discrete(5)}),
            "camera": Box(0, 255, (2, 3), np.uint8),
            "wide": Box(-np.inf, np.inf, (1,), np.float64),
        }
    )
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._looks(), {"lives": 3, "level": 1}

    def step(self, action):
        return self._looks(), 1.0, bool(action), False, {"lives": 2, "level": 1}

    def _looks(self):
        draw = self.np_random
        arm = {"a": draw.random(2, np.float32), "b": int(draw.integers(5))}
        return {"arm": arm, "camera": draw.integers(0, 256, (2, 3), np.uint8), "wide": np.array([1e5])}


@pytest.fixture(scope="module")
def machine():
    with running(create_app(Machine)) as url:
        yield url


@pytest.fixture(scope="module")
def cranes(openenv):
    """The same OpenEnv environment on a stock server, and on ours."""

    class Lift(openenv.Action):
        gear: int = Field(default=1, ge=1, le=6)

    class Seen(openenv.Observation):
        arm: openenv.Arm
        board: list[list[int]] = [[0, 1], [2, 3]]
        speed: float = 0.1

    class Crane(openenv.Count):
        def reset(self, seed=None, episode_id=None, **kwargs):
            super().reset()
            return Seen(arm=openenv.Arm(), metadata={"load": 1, "wind": 2})

        def step(self, action, timeout_s=None, **kwargs):
            count = super().step(openenv.CountAction()).count
            arm = openenv.Arm(joint=action.gear - 1, angle=count / 3)
            return Seen(arm=arm, reward=count, done=count == 2, metadata={"load": action.gear, "wind": 2})

    with openenv.stock_server(Crane, models=(Lift, Seen)) as stock, running(create_app(Crane, Lift, Seen)) as ours:
        yield {"stock": stock, "ours": ours}


def both_see_the_same(envs, others, actions):
    assert envs.single_observation_space == others.single_observation_space
    assert identical(envs.reset(seed=5), others.reset(seed=5))
    for action in actions:
        assert identical(envs.step(action), others.step(action))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # 1e5 is inf in float16
@pytest.mark.parametrize("trimming", TRIMMINGS, ids=str)
def test_trimming_is_the_same_in_both_dialects(machine, trimming):
    options = {"num_envs": 2, "autoreset_mode": "SameStep", **trimming}
    with RemoteVecEnv(machine, **options) as envs, RemoteVecEnv(machine, dialect="openenv", **options) as others:
        both_see_the_same(envs, others, [[0, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize("kind, dialect", [("stock", None), ("ours", "openenv")])
@pytest.mark.parametrize(
    "trimming",
    [
        {"exclude": ("arm.joint", "board")},
        {"include": ("arm", "speed"), "obs_dtype": {"arm.angle": "float16", "speed": "float32"}},
        {"include": ("speed",), "info_keys": ("load",)},
        {"info_keys": ()},
    ],
    ids=str,
)
def test_trimming_of_an_openenv_environment(cranes, kind, dialect, trimming):
    options = {"num_envs": 2, **trimming}
    with (
        RemoteVecEnv(cranes["ours"], **options) as envs,
        RemoteVecEnv(cranes[kind], dialect=dialect, **options) as others,
    ):
        both_see_the_same(envs, others, [[1, 5], [2, 2], [6, 1]])


def test_trimming_that_cannot_be_done_is_told_about_a_stock_server(cranes):
    with pytest.raises(
        SpaceError, match=r"^ws://[^ ]*/ws: 'nose' names nothing here; the paths are 'arm', 'arm.angle'"
    ):
        RemoteVecEnv(cranes["stock"], 2, exclude=("nose",))


@pytest.mark.parametrize("dialect", [None, "openenv"])
@pytest.mark.parametrize(
    "trimming, text",
    [
        ({"include": ("arm", "nose")}, "'nose' names nothing here; the paths are 'arm', 'arm.a'"),
        ({"exclude": ("arm", "camera", "wide")}, "include and exclude leave nothing of the space"),
        ({"obs_dtype": {"camera": "int128"}}, "camera: unknown dtype 'int128'"),
    ],
)
def test_trimming_that_cannot_be_done_is_told_alike(machine, dialect, trimming, text):
    with pytest.raises(SpaceError, match=rf"^ws://[^ ]*/ws: {text}"):
        RemoteVecEnv(machine, 2, dialect=dialect, **trimming)


def test_one_server_that_is_away_leaves_nothing_on_the_other():
    app = create_app(Tally)
    with running(app) as url, FaultProxy(url) as proxy:
        proxy.refuse()
        with pytest.raises(ConnectFailed, match=f"{proxy.port}.*connection refused"):
            RemoteVecEnv([url, proxy.url], 4)
        wait_until(lambda: app.state.registry.capacity.active == 0)


def test_servers_with_other_spaces_leave_nothing():
    apps = [create_app(Tally), create_app(Tally, env_kwargs={"width": 9})]
    with running(apps[0]) as first, running(apps[1]) as second:
        with pytest.raises(SpaceError, match="observation_space") as told:
            RemoteVecEnv([first, second], 4)
        for url in (first, second):
            assert url.rpartition(":")[2] in str(told.value)
        for app in apps:
            wait_until(lambda app=app: app.state.registry.capacity.active == 0)


def test_an_env_that_cannot_be_built_is_told():
    class Broken(Tally):
        def __init__(self):
            super().__init__()
            if broken:
                raise OSError("no display")

    broken = []
    app = create_app(Broken)
    broken.append(True)
    with running(app) as url:
        with pytest.raises((RemoteEnvError, FactoryError), match="no display"):
            RemoteVecEnv(url, 4, connections=2)
        wait_until(lambda: app.state.registry.capacity.active == 0)


def test_an_answer_that_is_nonsense_closes_the_connection():
    ended = threading.Event()

    async def babble(connection):
        await connection.recv()
        await connection.send(b"\x00babble")
        await connection.wait_closed()
        ended.set()

    with ScriptedServer(babble, "openenv-gym.v1") as server, pytest.raises(RuntimeError):
        RemoteVecEnv(server.url, 1)
    assert ended.wait(LIMIT_S)


def test_a_misspelt_field_is_told_once_and_before_any_reset(openenv):
    wrong = {**openenv.COUNT_SPACES, "observation_space": Dict({"cuont": Discrete(9)})}
    with openenv.stock_server() as url:
        with pytest.raises(SpaceError, match=r"the observation has no field 'cuont', only \['count', 'mark'\]"):
            RemoteVecEnv(url, 3, **wrong)
        assert not openenv.Count.log  # nothing was asked of an env


def test_a_misspelt_field_of_an_action_is_told_once_for_all_envs(openenv):
    spaces = {**openenv.COUNT_SPACES, "encode_action": lambda _: {"slep": 1.0}}
    with openenv.stock_server() as url, RemoteVecEnv(url, 3, **spaces) as env:
        env.reset()
        with pytest.raises(BatchError, match=r"3 envs failed: env 0-2 reported .*there is no field 'slep'") as caught:
            env.step({"sleep": np.zeros(3)})
        assert "http" not in str(caught.value)
