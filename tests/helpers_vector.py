"""Vector envs to be served: Gymnasium's own, and one that notes what is done to it."""

import threading

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from helpers_tally import Tally


def cartpole(num_envs, render_mode=None):
    """Gymnasium's vector env in numpy."""
    return gym.make_vec(
        "CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point", render_mode=render_mode
    )


class Parts(Tally):
    """A `Tally` whose observation and action have parts."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Dict(
            {"tally": self.observation_space, "pair": gym.spaces.Tuple((gym.spaces.Discrete(30), gym.spaces.Text(9)))}
        )
        self.action_space = gym.spaces.Dict({"push": gym.spaces.Discrete(4), "at": gym.spaces.Box(-1, 1, (2,))})

    def step(self, action):
        return super().step(int(action["push"]) + float(action["at"].sum()))

    def _observe(self, action):
        noise = self.np_random.random()
        return {"tally": np.array([self.episode, self.t, action, self.executed, noise]), "pair": (self.t, str(self.t))}


def tallies(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP):
    """A vector env that offers all modes."""
    return SyncVectorEnv([Tally] * num_envs, autoreset_mode=autoreset_mode)


def parts(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP):
    """The same with nested spaces."""
    return SyncVectorEnv([Parts] * num_envs, autoreset_mode=autoreset_mode)


class Noting(VectorEnv):
    """Does what its options say, and notes the threads that it was on.

    Attributes:
        threads: where it was built, reset, stepped and closed.
        given: the seed and the options of the last reset.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(self, num_envs=3):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.threads, self.level, self.given, self.closed_once = [threading.get_ident()], 7, None, threading.Event()
        self.gate = threading.Event()

    def reset(self, *, seed=None, options=None):
        self.threads.append(threading.get_ident())
        self.given = (seed, options)
        if (options or {}).get("fail"):
            raise RuntimeError("no reset")
        return np.zeros((self.num_envs, 2), np.float32), {"given": np.full(self.num_envs, -1 if seed is None else 1)}

    def step(self, actions):
        self.threads.append(threading.get_ident())
        if 4 in actions:
            self.gate.wait(60)
        if 3 in actions:
            raise RuntimeError("no step")
        nothing = np.zeros(self.num_envs, bool)
        rewards = np.ones(self.num_envs - (2 in actions), np.float32)
        return np.tile(actions[:, None], (1, 2)).astype(np.float64), rewards, nothing, nothing, {"once": "for all"}

    def raise_level(self, by):
        self.level += by
        return self.level

    def close_extras(self, **kwargs):
        self.threads.append(threading.get_ident())
        self.closed_once.set()
