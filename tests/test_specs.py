"""Specs without secrets."""

import gymnasium as gym
import pytest

from openenv_gym.errors import OptionError
from openenv_gym.specs import without_secrets, without_type_errors


def test_token_and_headers_are_left_out():
    spec = gym.envs.registration.EnvSpec("x/Y-v0", "a:B", kwargs={"token": "hush", "headers": {}, "base_url": "u"})
    clean = without_secrets(spec)
    assert clean.kwargs == {"base_url": "u"}
    assert spec.kwargs["token"] == "hush"
    assert clean.id == spec.id


def test_others_stay_as_they_are():
    spec = gym.spec("CartPole-v1")
    assert without_secrets(spec) is spec
    assert without_secrets(None) is None


def test_type_errors_become_option_errors():
    with pytest.raises(OptionError, match=r"^no int$") as caught, without_type_errors():
        raise TypeError("no int")
    assert not isinstance(caught.value, TypeError)
    with pytest.raises(KeyError), without_type_errors():
        raise KeyError(1)
