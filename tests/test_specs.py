"""Specs without secrets."""

import copy
import ssl

import gymnasium as gym
import pytest

from openenv_gym.errors import OptionError
from openenv_gym.specs import without_secrets, without_type_errors


def test_token_headers_and_tls_are_left_out():
    secrets = {"token": "hush", "headers": {}, "ssl": ssl.create_default_context()}
    spec = gym.envs.registration.EnvSpec("x/Y-v0", "a:B", kwargs={**secrets, "base_url": "u"})
    clean = without_secrets(spec)
    assert clean.kwargs == {"base_url": "u"}
    assert copy.deepcopy(clean) == clean
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
