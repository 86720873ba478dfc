"""`SB3VecEnv` against the oracle: a ``DummyVecEnv`` of the same envs, with the same seeds and actions."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from helpers_oracle import Fleet, Script, ScriptedEnv
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from openenv_gym import LocalServer, RemoteVecEnv, errors
from openenv_gym.sb3 import SB3VecEnv

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
    env.set_options({"level": 2})
    env.reset()
    env.reset()
    assert [heard[:2] for heard in fleet.heard()] == [
        [("reset", seed, {"level": 2}), ("reset", None, None)] for seed in (3, 4)
    ]


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


def test_training_with_continuous_actions_is_bit_identical():
    weights = []
    for env in (SB3VecEnv(RemoteVecEnv.local("Pendulum-v1", 2)), DummyVecEnv([lambda: gym.make("Pendulum-v1")] * 2)):
        model = SAC(
            "MlpPolicy", env, seed=0, device="cpu", learning_starts=20, batch_size=8, policy_kwargs={"net_arch": [8]}
        )
        model.learn(60)
        weights.append(torch.cat([p.detach().flatten() for p in model.policy.parameters()]))
        env.close()
    assert torch.equal(*weights)


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
    with pytest.raises(errors.OptionError, match="wraps a RemoteVecEnv, not CartPoleEnv"):
        SB3VecEnv(gym.make("CartPole-v1").unwrapped)
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
    env.close()
    env.close()


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


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,))),
        gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Dict(c=gym.spaces.Box(-1, 1, (2,)))]),
    ],
    ids=["dict", "tuple"],
)
def test_actions_with_parts_come_one_by_one(space):
    fleet = Fleet(truncating("terminated"), space)
    with LocalServer(fleet) as server:
        env = SB3VecEnv(RemoteVecEnv(server.url, 2, token=server.token))
        env.seed(0)
        env.reset()
        space.seed(1)
        actions = [space.sample() for _ in range(2)]
        env.step(actions)
        assert [heard[1][2] for heard in fleet.heard()] == [str(action) for action in actions]
        with pytest.raises(errors.ActionError, match="1 actions"):
            env.step(actions[:1])
        with pytest.raises(errors.ActionError, match="an action has no"):
            env.step([{}, {}])
        env.close()
