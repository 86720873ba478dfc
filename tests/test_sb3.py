"""`SB3VecEnv` against the oracle: a ``DummyVecEnv`` of the same envs, with the same seeds and actions."""

from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from helpers_oracle import Fleet, Script, ScriptedEnv
from helpers_server import running
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from openenv_gym import LocalServer, RemoteVecEnv, errors
from openenv_gym.pool import Pool
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
CARTPOLE = [lambda: gym.make("CartPole-v1")] * 4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small only wait for PyTorch's other threads, and for minutes where the processors are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def truncating(ending):
    """Episodes of 3 steps that end in one way."""
    return [Script(BOX, lengths=(3,), endings=(ending,), infos=("int", "string"), salt=i) for i in range(2)]


@pytest.fixture
def over():
    """Makes an `SB3VecEnv` over a server of scripted envs, and closes both."""
    opened = []

    def make(scripts, **options):
        fleet = Fleet(scripts)
        server = LocalServer(fleet)
        opened.append(server)
        env = SB3VecEnv(RemoteVecEnv(server.url, len(scripts), token=server.token, **options))
        opened.insert(0, env)
        return env, fleet

    yield make
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def cartpole():
    """A server of CartPole."""
    with LocalServer("CartPole-v1") as server:
        yield lambda n=4: SB3VecEnv(RemoteVecEnv(server.url, n, token=server.token))


def dummy(scripts):
    return DummyVecEnv([lambda: ScriptedEnv(scripts)] * len(scripts))


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("options", [{}, {"connections": 2}, {"autoreset_mode": "Disabled"}], ids=str)
def test_equals_a_dummy_vec_env(over, ending, options):
    scripts = truncating(ending)
    ours, _ = over(scripts, **options)
    theirs = dummy(scripts)
    for env in (ours, theirs):
        env.seed(4)
        env.set_options([{"level": 1}, {}])
    assert data_equivalence(ours.reset(), theirs.reset(), exact=True)
    assert ours.reset_infos == theirs.reset_infos
    theirs.action_space.seed(1)
    for _ in range(8):
        actions = np.array([theirs.action_space.sample() for _ in scripts])
        mine, other = ours.step(actions), theirs.step(actions)
        assert data_equivalence(mine[:3], other[:3], exact=True)
        assert [sorted(info) for info in mine[3]] == [sorted(info) for info in other[3]]
        assert all(data_equivalence(a, b, exact=True) for a, b in zip(mine[3], other[3], strict=True))
        assert ours.reset_infos == theirs.reset_infos


SPACES = {
    "image": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": gym.spaces.Discrete(9),
    "multi discrete": gym.spaces.MultiDiscrete([3, 4]),
    "multi binary": gym.spaces.MultiBinary(3),
    "dict": gym.spaces.Dict([("b", BOX), ("a", gym.spaces.Discrete(9)), ("c", gym.spaces.MultiBinary(2))]),
    "tuple": gym.spaces.Tuple([BOX, gym.spaces.Discrete(9)]),
}


@pytest.mark.parametrize("options", [{}, {"connections": 2}], ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_every_observation_that_sb3_takes(over, name, options):
    scripts = [Script(SPACES[name], endings=("truncated", "terminated"), reuse=True, salt=i) for i in range(2)]
    told = pytest.warns(UserWarning, match="can't learn from Tuple") if name == "tuple" else nullcontext()
    with told:
        ours = over(scripts, **options)[0]
    theirs = dummy([replace(script, reuse=False) for script in scripts])
    assert ours.observation_space == theirs.observation_space
    for env in (ours, theirs):
        env.seed(4)
    results = [[env.reset()] for env in (ours, theirs)]
    kept = [deepcopy(results[0][0])]
    for step in range(7):
        for env, seen in zip((ours, theirs), results, strict=True):
            seen.append(env.step(np.array([step % 5, 1])))
        kept.append(deepcopy(results[0][-1]))
        mine, other = ([plain(part) for part in seen[-1]] for seen in results)
        assert data_equivalence(mine, other, exact=True)
        if name == "dict":
            assert list(mine[0]) == list(other[0])
        elif name != "tuple":
            assert mine[0].flags.writeable
    assert data_equivalence(plain(results[0][0]), plain(results[1][0]), exact=True)
    assert data_equivalence(results[0], kept, exact=True)  # nothing that was given out changed later


def plain(value):
    """Observations and infos with plain dicts, of which SB3 makes subclasses in some versions."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("ending, cut", [("terminated", False), ("truncated", True), ("both", False)])
def test_time_limits_are_told_from_terminations(over, ending, cut):
    env, _ = over(truncating(ending))
    env.seed(1)
    env.reset()
    for step in range(3):
        observations, _, dones, infos = env.step(np.zeros(2, np.int64))
        assert [info["TimeLimit.truncated"] for info in infos] == [cut and step == 2] * 2
        assert ["terminal_observation" in info for info in infos] == list(dones)
    assert not np.array_equal(infos[0]["terminal_observation"], observations[0])
    assert not np.shares_memory(infos[0]["terminal_observation"], observations)


def test_seeds_and_options_count_once(over):
    env, fleet = over(truncating("terminated"))
    assert env.seed(3) == [3, 4]
    # nothing was sent; the first env is the one that the server tried out
    assert not any(made.heard for made in fleet.made[1:])
    env.set_options([{"level": 2}, {}])
    env.reset()
    env.reset()
    assert [heard[:2] for heard in fleet.heard()] == [
        [("reset", 3, {"level": 2}), ("reset", None, None)],
        [("reset", 4, None), ("reset", None, None)],
    ]
    env.set_options({"level": 3})
    chosen = env.seed()
    env.reset()
    assert sorted(heard[2] for heard in fleet.heard()) == [("reset", seed, {"level": 3}) for seed in chosen]
    assert len(set(chosen)) == 2


def test_what_it_gives_is_fresh_and_writable(over):
    env, _ = over(truncating("terminated"))
    env.seed(0)
    first = env.reset()
    kept = first.copy()
    results = [env.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert np.array_equal(first, kept)
    for observations, rewards, dones, infos in results:
        rewards[0] += 1.0
        assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)
        assert observations.flags.writeable
        assert type(infos) is list
    assert len({id(info) for *_, infos in results for info in infos}) == 6


def test_attributes_and_methods(over):
    env, _ = over(truncating("terminated"))
    env.reset()
    env.set_attr("t", 7, indices=[1])
    assert env.get_attr("t") == [0, 7]
    assert env.get_attr("t", indices=[-1, 0]) == [7, 0]
    assert env.get_attr("t", indices=0) == [0]
    assert env.get_attr("render_mode") == [None, None]
    assert env.has_attr("t")
    assert not env.has_attr("missing")
    assert env.env_is_wrapped(gym.Wrapper, indices=[0]) == [False]
    assert [frame.shape for frame in env.env_method("render", indices=[1])] == [(2, 3, 3)]
    with pytest.raises(IndexError):
        env.get_attr("t", indices=5)
    with pytest.raises(AttributeError):
        env.get_attr("missing")
    assert not any(hasattr(env, name) for name in ("t", "missing", "compute_reward"))  # which SB3's wrappers look for
    assert VecMonitor(env).get_attr("t") == [0, 7]


@pytest.mark.parametrize(
    "algorithm, settings",
    [(PPO, {"n_steps": 16}), (A2C, {}), (DQN, {"learning_starts": 64, "train_freq": 8, "buffer_size": 500})],
)
def test_training_is_bit_identical(cartpole, algorithm, settings):
    weights = []
    for env in (cartpole(), DummyVecEnv(CARTPOLE)):
        model = algorithm("MlpPolicy", env, seed=0, device="cpu", **settings)
        model.learn(300)
        weights.append(torch.cat([p.detach().flatten() for p in model.policy.parameters()]))
        env.close()
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    "algorithm, settings",
    [
        (SAC, {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}),
        (PPO, {"n_steps": 16, "batch_size": 8, "policy_kwargs": {"log_std_init": 2.0}}),  # beyond the bounds
    ],
)
def test_training_with_continuous_actions_is_bit_identical(algorithm, settings):
    weights = []
    for env in (SB3VecEnv(RemoteVecEnv.local("Pendulum-v1", 2)), DummyVecEnv([lambda: gym.make("Pendulum-v1")] * 2)):
        model = algorithm("MlpPolicy", env, seed=0, device="cpu", **settings)
        model.learn(60)
        weights.append(torch.cat([p.detach().flatten() for p in model.policy.parameters()]))
        env.close()
    assert torch.equal(*weights)


def test_actions_out_of_bounds_are_clipped_by_sb3_itself():
    fleet = Fleet(truncating("terminated"), gym.spaces.Box(-1, 1, (1,), np.float32))
    with LocalServer(fleet) as server:
        env = SB3VecEnv(RemoteVecEnv(server.url, 2, token=server.token))
        policy = {"log_std_init": 2.0}
        PPO("MlpPolicy", env, n_steps=16, batch_size=32, seed=0, device="cpu", policy_kwargs=policy).learn(32)
        env.close()
    actions = {float(call[2].strip("[]")) for heard in fleet.heard() for call in heard if call[0] == "step"}
    assert {-1.0, 1.0} <= actions
    assert max(map(abs, actions)) == 1.0


def test_a_callback_evaluates_on_another_env(cartpole, tmp_path):
    train, evaluate = VecMonitor(cartpole(2)), VecMonitor(cartpole(1))
    callback = EvalCallback(evaluate, eval_freq=32, n_eval_episodes=2, log_path=str(tmp_path), verbose=0)
    PPO("MlpPolicy", train, n_steps=32, seed=0, device="cpu").learn(128, callback=callback)
    results = np.load(tmp_path / "evaluations.npz")
    assert results["results"].shape == (2, 2)
    assert (results["results"] == results["ep_lengths"]).all()
    train.close()
    evaluate.close()


def test_the_usual_wrappers(cartpole):
    env = VecFrameStack(VecNormalize(VecMonitor(cartpole())), 2)
    model = PPO("MlpPolicy", env, n_steps=16, seed=0, device="cpu").learn(128)
    assert model.ep_info_buffer
    mean, _ = evaluate_policy(model, env, n_eval_episodes=2, warn=False)
    assert mean > 0
    env.close()
    env.close()


def test_where_the_time_goes(cartpole):
    env = cartpole()
    env.reset()
    env.env.stats(collect=True)
    env.step(np.zeros(4, np.int64))
    shown = env.env.stats()
    assert (shown.collected, shown.vector_steps, shown.env_steps) == (1, 1, 4)
    env.close()


def test_saving_keeps_no_socket(cartpole, tmp_path):
    env = cartpole()
    PPO("MlpPolicy", env, n_steps=16, device="cpu").save(tmp_path / "model")
    assert PPO.load(tmp_path / "model", env=env, device="cpu").observation_space == env.observation_space
    env.close()


def test_refusals(cartpole):
    for wrong in (gym.make("CartPole-v1").unwrapped, "http://localhost:8000"):
        with pytest.raises(errors.OptionError, match=rf"not {type(wrong).__name__}: write SB3VecEnv\(RemoteVecEnv\("):
            SB3VecEnv(wrong)
    env = cartpole(2)
    assert isinstance(env, VecEnv)
    with pytest.raises(gym.error.NoAsyncCallError):
        env.step_wait()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.int64))
    env.reset()
    with pytest.raises(errors.ActionError, match="3 actions for 2 envs"):
        env.step(np.zeros(3, np.int64))
    env.step_async(np.zeros(2, np.int64))
    with pytest.raises(gym.error.AlreadyPendingCallError, match="pending call to `step`"):
        env.step_async(np.zeros(2, np.int64))
    env.reset()
    with pytest.raises(gym.error.NoAsyncCallError):  # that step was of the last episode
        env.step_wait()
    env.step_async(np.zeros(2, np.int64))
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(np.zeros(2, np.int64)), lambda: env.get_attr("gravity")):
        with pytest.raises(gym.error.ClosedEnvironmentError, match=r"after a call to `close\(\)`"):
            call()


@pytest.mark.parametrize("given", [True, False], ids=["spaces given", "observation space inferred"])
def test_training_on_an_openenv_server_is_bit_identical_too(given):
    from helpers_openenv import CartPole, stock_server

    box = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32 if given else np.float64)
    spaces = {"action_space": gym.spaces.Discrete(2), **({"observation_space": box} if given else {})}
    local = DummyVecEnv([lambda: gym.wrappers.TransformObservation(gym.make("CartPole-v1"), box.dtype.type, box)] * 4)
    weights = []
    with stock_server(CartPole) as url:
        for env in (SB3VecEnv(RemoteVecEnv(url, 4, **spaces)), local):
            assert env.observation_space.dtype == box.dtype
            model = PPO("MlpPolicy", env, n_steps=16, seed=0, device="cpu").learn(300)
            weights.append(torch.cat([p.detach().flatten() for p in model.policy.parameters()]))
            env.close()
    assert torch.equal(*weights)


def number(low, high, dtype):
    return gym.spaces.Box(low, high, (), dtype)


NUMBERS = {
    "one": number(-1, 1, np.float64),
    "dict": gym.spaces.Dict(
        [("vel", number(-9, 9, np.float32)), ("at", gym.spaces.Discrete(4)), ("n", number(0, 99, np.int64))]
    ),
}


def with_an_axis(env):
    """The env with shape (1,) in the place of (), by Gymnasium's own wrapper."""

    def space_of(space):
        return (
            gym.spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype)
            if space.shape == ()
            else space
        )

    def value_of(space, value):
        return np.reshape(value, (1,)) if isinstance(space, gym.spaces.Box) else value

    space = env.observation_space
    if not isinstance(space, gym.spaces.Dict):
        return gym.wrappers.TransformObservation(env, lambda value: value_of(space, value), space_of(space))
    parts = [(key, part if isinstance(part, gym.spaces.Discrete) else space_of(part)) for key, part in space.items()]
    return gym.wrappers.TransformObservation(
        env, lambda value: {key: value_of(part, value[key]) for key, part in space.items()}, gym.spaces.Dict(parts)
    )


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_numbers_without_axes_have_one_here(over, name):
    scripts = [Script(NUMBERS[name], endings=("truncated",), salt=i) for i in range(2)]
    ours, _ = over(scripts)
    theirs = DummyVecEnv([lambda: with_an_axis(ScriptedEnv(scripts))] * 2)
    assert ours.observation_space == theirs.observation_space
    ours.seed(4)
    theirs.seed(4)
    first, oracle = ours.reset(), theirs.reset()
    assert data_equivalence(dict(first) if name == "dict" else first, dict(oracle) if name == "dict" else oracle)
    for _ in range(4):
        mine, other = ours.step([1, 2]), theirs.step(np.array([1, 2]))
        assert data_equivalence([mine[0]], [dict(other[0]) if name == "dict" else other[0]], exact=True)
        for info, expected in zip(mine[3], other[3], strict=True):
            assert ("terminal_observation" in info) == ("terminal_observation" in expected)
            if "terminal_observation" in info:
                assert data_equivalence(info["terminal_observation"], expected["terminal_observation"], exact=True)
                assert ours.observation_space.contains(info["terminal_observation"])


@pytest.mark.parametrize("name, policy", [("one", "MlpPolicy"), ("dict", "MultiInputPolicy")])
def test_numbers_without_axes_can_be_trained_on(over, name, policy):
    env, _ = over([Script(NUMBERS[name], salt=i) for i in range(2)])
    keys = ["vel"] if name == "dict" else None
    model = PPO(policy, VecNormalize(VecMonitor(env), norm_obs_keys=keys), n_steps=8, batch_size=8, device="cpu")
    assert model.learn(32).num_timesteps == 32


@pytest.mark.parametrize(
    "space, fields, advice",
    [
        (
            gym.spaces.Dict(at=BOX, name=gym.spaces.Text(3), arm=gym.spaces.Dict(a=BOX)),
            r"observation's name \(Text\), arm \(Dict\)",
            r"exclude=\('name', 'arm'\), choose one with obs_key=",
        ),
        (
            gym.spaces.Text(3),
            "observation's Text",
            r"spaces that it takes \(Box, Discrete, MultiDiscrete, MultiBinary\)",
        ),
        (gym.spaces.Tuple([BOX, gym.spaces.Text(3)]), r"observation's 1 \(Text\)", "pass observation_space="),
        (gym.spaces.Sequence(BOX), "observation's Sequence", "pass observation_space="),
    ],
    ids=["dict", "text", "tuple", "sequence"],
)
def test_what_sb3_cannot_take_is_refused_by_name(over, space, fields, advice):
    with pytest.raises(errors.SpaceError, match=fields) as caught:
        over([Script(space)])
    assert caught.match(advice)


@pytest.fixture(scope="module")
def walk_server():
    """A stock OpenEnv server of an environment with numbers and a text, and its `walk` action."""
    from helpers_openenv import Action, Environment, Observation, State, stock_server

    class Push(Action):
        force: float

    class Seen(Observation):
        place: int
        vel: float
        name: str

    class Walk(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.t = 0
            return Seen(place=0, vel=0.5, name="walker")

        def step(self, action, timeout_s=None, **kwargs):
            self.t += 1
            return Seen(place=self.t, vel=action.force, name="walker", reward=1.0, done=self.t == 3)

        @property
        def state(self):
            return State(step_count=self.t)

    with stock_server(Walk, models=(Push, Seen)) as url:
        yield url, (Walk, Push, Seen)


def test_training_on_an_openenv_server_with_a_text_and_numbers(walk_server):
    url, _ = walk_server
    with RemoteVecEnv(url, 2) as envs, pytest.raises(errors.SpaceError, match=r"name \(Text\).*exclude=\('name',\)"):
        SB3VecEnv(envs)
    force = gym.spaces.Box(-1, 1, (1,))
    env = SB3VecEnv(RemoteVecEnv(url, 2, exclude=("name",), action_space=force))
    assert {key: part.shape for key, part in env.observation_space.items()} == {"place": (1,), "vel": (1,)}
    PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(32)
    env.close()


@pytest.mark.parametrize("ours", [False, True], ids=["stock", "ours"])
@pytest.mark.parametrize("dialect", [None, "openenv"])
def test_a_box_with_an_axis_stands_for_a_number(walk_server, ours, dialect):
    url, (walk, *models) = walk_server
    place, vel, force = gym.spaces.Box(0, 9, (1,), np.int64), gym.spaces.Box(-9, 9, (1,)), gym.spaces.Box(-1, 1, (1,))
    with ExitStack() as stack:
        if ours:
            url = stack.enter_context(running(create_app(walk, *models)))
        for space, key in ((vel, "vel"), (gym.spaces.Dict(vel=vel, place=place), None)):
            envs = RemoteVecEnv(url, 2, observation_space=space, action_space=force, obs_key=key, dialect=dialect)
            first, _ = envs.reset()
            seen, *_ = envs.step(np.array([[0.25], [-0.5]], np.float32))
            vels = [first, seen] if key else [first["vel"], seen["vel"]]
            assert [v.tolist() for v in vels] == [[[0.5], [0.5]], [[0.25], [-0.5]]]
            if key is None:
                assert [o["place"].tolist() for o in (first, seen)] == [[[0], [0]], [[1], [1]]]
            envs.close()


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,))),
        gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Dict(c=gym.spaces.Box(-1, 1, (2,)))]),
        gym.spaces.Text(3),
        gym.spaces.Box(0, np.inf, (2,)),
    ],
    ids=["dict", "tuple", "text", "unbounded"],
)
def test_actions_that_no_algorithm_of_sb3_chooses_are_told_and_taken(space):
    fleet, kind = Fleet(truncating("terminated"), space), type(space).__name__
    with LocalServer(fleet) as server:
        with pytest.warns(UserWarning, match=rf"can't choose actions of {kind}\b.*action_key=.*action_space="):
            env = SB3VecEnv(RemoteVecEnv(server.url, 2, token=server.token))
        env.seed(0)
        env.reset()
        space.seed(1)
        actions = [space.sample() for _ in range(2)]
        env.step(actions)
        assert [heard[1][2] for heard in fleet.heard()] == [str(action) for action in actions]
        with pytest.raises(errors.ActionError, match="1 actions"):
            env.step(actions[:1])
        if kind in ("Dict", "Tuple"):
            with pytest.raises(errors.ActionError, match="an action has no"):
                env.step([{}, {}])
        env.close()


def test_an_action_with_several_fields_is_made_from_one_that_sb3_chooses():
    from helpers_openenv import Every, EveryAction, EveryObservation, stock_server

    def encode(action):
        return {"turn": ("left", "right")[action[0]], "hold": bool(action[1])}

    choices = {"obs_key": "speed", "action_space": gym.spaces.MultiDiscrete([2, 2]), "encode_action": encode}
    with stock_server(Every, models=(EveryAction, EveryObservation)) as url:
        env = SB3VecEnv(RemoteVecEnv(url, 2, **choices))
        assert PPO("MlpPolicy", env, n_steps=4, batch_size=8, device="cpu").learn(8).num_timesteps == 8
        env.close()


class Brittle(gym.Env):
    """Raises at its third step, once."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)
    t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            raise ValueError("no")
        return np.full(1, self.t, np.float32), 1.0, False, False, {}


def test_an_error_in_a_step_leaves_nothing_pending():
    env = SB3VecEnv(RemoteVecEnv.local(Brittle, 2))
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="2 envs failed"):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(gym.error.NoAsyncCallError):
        env.step_wait()
    env.reset()
    assert env.step(np.zeros(2, np.int64))[0].tolist() == [[4.0]] * 2
    env.close()


def test_statistics_of_observations_survive_saving(cartpole, tmp_path):
    env = VecNormalize(cartpole(2))
    env.reset()
    env.step(np.zeros(2, np.int64))
    env.save(tmp_path / "normalize.pkl")
    again = VecNormalize.load(tmp_path / "normalize.pkl", cartpole(2))
    assert np.array_equal(again.obs_rms.mean, env.obs_rms.mean)
    env.close()
    again.close()


def test_without_a_render_mode_there_are_no_images(cartpole):
    env = cartpole(2)
    env.reset()
    with pytest.warns(UserWarning, match="The render mode is None"):
        assert env.get_images() == [None, None]
    env.close()


def test_the_render_mode_is_known_without_asking(cartpole, monkeypatch):
    env = cartpole(2)
    monkeypatch.setattr(Pool, "start", lambda *_: pytest.fail("something was sent"))
    assert env.get_attr("render_mode") == [None, None]
    monkeypatch.undo()
    env.close()
