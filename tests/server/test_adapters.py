"""What can be served, and what is said about the rest."""

import gymnasium as gym
import pytest
from helpers_envs import Count, Factory, raiser

from openenv_gym.errors import FactoryError
from openenv_gym.server.adapters import EnvSource, GymnasiumEnv


class TestSources:
    @pytest.mark.parametrize(
        "env, name",
        [
            ("CartPole-v1", "CartPole-v1"),
            ("gymnasium:CartPole-v1", "gymnasium:CartPole-v1"),
            ("helpers_envs:make_count", "helpers_envs:make_count"),
            (Count, "Count"),
            (Factory(), "Factory"),
        ],
    )
    def test_kinds(self, env, name):
        source = EnvSource(env)
        assert source.name == name
        made = source.make()
        assert isinstance(made.env, gym.Env)
        made.close()

    def test_name_and_arguments(self):
        source = EnvSource(Count, {"length": 7}, name="seven")
        assert source.name == "seven"
        assert source.make().env.length == 7

    def test_arguments_of_an_id(self):
        assert EnvSource("FrozenLake-v1", {"map_name": "8x8"}).make().observation_space.n == 64

    @pytest.mark.parametrize(
        "env, text",
        [
            (
                Count(),
                "not an instance of Count: every session needs envs of its own. Pass the class, or `lambda: Count",
            ),
            (gym.make_vec("CartPole-v1", num_envs=1), "not an instance of CartPoleVectorEnv"),
            (3, "env must be an id or a factory, not 3"),
        ],
    )
    def test_no_instances(self, env, text):
        with pytest.raises(TypeError) as caught:
            EnvSource(env)
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "env, text",
        [
            ("CartPool-v1", "NameNotFound: Environment `CartPool`"),
            ("helpers_envs:make_nothing", "OSError: no licence"),
            ("helpers_envs:exits", "SystemExit: 3"),
            (raiser(KeyboardInterrupt()), "KeyboardInterrupt"),
            (dict, "the factory returned dict, not a gymnasium.Env"),
            (lambda length: Count(length), "TypeError: "),
        ],
    )
    def test_what_can_not_be_made(self, env, text):
        with pytest.raises(FactoryError) as caught:
            EnvSource(env).make()
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "body, text", [("raise ImportError('no simulator')", "ImportError: no simulator"), ("exit(3)", "SystemExit: 3")]
    )
    def test_a_module_that_can_not_be_imported(self, tmp_path, monkeypatch, body, text):
        (tmp_path / "broken_envs.py").write_text(body)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(FactoryError) as caught:
            EnvSource("broken_envs:make")
        assert f"importing broken_envs raised {text}" in str(caught.value)

    def test_an_env_that_is_made_but_no_use_is_closed(self):
        closed = []

        class Spaceless(gym.Env):
            action_space = Count.action_space

            @property
            def observation_space(self):
                raise ValueError("not yet known")

            def close(self):
                closed.append(1)
                raise RuntimeError("and this is hidden")

        with pytest.raises(FactoryError, match="ValueError: not yet known"):
            EnvSource(Spaceless).make()
        assert closed == [1]

    @pytest.mark.parametrize(
        "env, mode",
        [
            (Count, "rgb_array"),
            (lambda **kwargs: Count(**kwargs), "rgb_array"),
            (lambda: Count(), None),
            ("CartPole-v1", "rgb_array"),
        ],
    )
    def test_render_mode(self, env, mode):
        source = EnvSource(env)
        assert source.takes_render_mode is (mode is not None)
        made = source.make("rgb_array")
        assert made.metadata["render_mode"] == mode
        made.close()

    def test_no_checker_that_warns_where_nobody_sees_it(self):
        env = EnvSource("CartPole-v1").make().env
        assert "PassiveEnvChecker" not in str(env)


class TestResets:
    def adapted(self, reset):
        """An env with this ``reset``."""

        class Env(gym.Env):
            observation_space, action_space = Count.observation_space, Count.action_space

        Env.reset = reset
        return GymnasiumEnv(Env())

    @pytest.mark.parametrize("given", [{}, {"seed": None, "options": None}, {"seed": 3, "options": {"a": 1}}])
    def test_arguments_are_passed_as_given(self, given):
        env = self.adapted(lambda self, **kwargs: kwargs)
        assert env.reset(**given) == given

    def test_defaults_are_the_envs_own(self):
        env = self.adapted(lambda self, *, seed=7, options=(): (seed, options))
        assert env.reset() == (7, ())
        assert env.reset(seed=None, options=None) == (None, None)

    @pytest.mark.parametrize(
        "reset, heard, takes_seed",
        [
            (lambda self: (), (), False),
            (lambda self, seed=None: (seed,), (3,), True),
            (lambda self, options=None: (options,), ({"a": 1},), False),
        ],
    )
    def test_what_a_reset_has_no_parameter_for_is_left_out(self, reset, heard, takes_seed):
        env = self.adapted(reset)
        assert env.takes_seed is takes_seed
        assert env.reset(seed=3, options={"a": 1}) == heard
        env.reset()

    def test_a_wrapper_may_add_what_its_env_has_not(self):
        class Old(Count):
            def reset(self):
                return super().reset()

        class Seeding(gym.Wrapper):
            def reset(self, *, seed=None, options=None):
                self.seed = seed
                return self.env.reset()

        env = GymnasiumEnv(Seeding(Old()))
        assert env.takes_seed is True
        env.reset(seed=3, options=None)
        assert env.env.seed == 3


class TestAttributes:
    def test_get_and_set(self):
        env = GymnasiumEnv(gym.wrappers.TimeLimit(Count(), 3))
        assert env.get("level") == 1
        assert env.set("level", 5) is True
        assert env.env.unwrapped.level == 5
        with pytest.raises(AttributeError):
            env.get("levels")

    def test_set_of_an_attribute_that_does_not_exist(self):
        env = GymnasiumEnv(gym.wrappers.TimeLimit(Count(), 3))
        assert env.set("levels", 5, force=False) is False
        assert not hasattr(env.env.unwrapped, "levels")
        env.set("levels", 5)
        assert env.get("levels") == 5


class TestOneEnvForEachSlot:
    def test_an_env_in_use_is_no_new_one(self):
        env = Count()
        source = EnvSource(lambda: gym.wrappers.TimeLimit(env, 5))
        first = source.make()
        with pytest.raises(ValueError, match="the factory returned the same env twice") as caught:
            source.make()
        assert isinstance(caught.value, FactoryError)
        first.close()
        source.make().close()

    def test_an_env_whose_close_raises_is_in_use_no_more(self):
        class Stubborn(Count):
            def close(self):
                raise OSError("no")

        env = Stubborn()
        source = EnvSource(lambda: env)
        with pytest.raises(OSError, match="no"):
            source.make().close()
        source.make()
