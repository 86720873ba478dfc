"""Settings: what is accepted, and what is said about the rest."""

import pytest

from openenv_gym.errors import OptionError
from openenv_gym.server.settings import ServerSettings


def test_the_defaults_are_closed_and_bounded():
    settings = ServerSettings()
    assert settings.allow_call == settings.allow_set == frozenset()
    assert settings.max_envs > 1
    assert settings.idle_timeout_s is not None
    assert settings.debug is False
    assert settings.max_message_bytes == 100 * 1024 * 1024


def test_a_token_is_in_no_text():
    assert "hush" not in repr(ServerSettings(token="hush"))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"max_env": 3}, "max_env: Extra inputs are not permitted"),
        ({"max_envs": 0}, "max_envs: Input should be greater than or equal to 1"),
        ({"grace_s": -1}, "grace_s: Input should be"),
        ({"max_step_s": 0}, "max_step_s: Input should be greater than 0"),
        ({"allow_call": "render"}, "allow_call: Input should be a valid frozenset"),
        ({"max_step_s": 1, "max_workers": 2}, "bad option(s): max_step_s gives each env a thread of its own"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(OptionError) as caught:
        ServerSettings.from_options(options)
    assert text in str(caught.value)
    assert "known: max_envs, max_workers" in str(caught.value)


def test_a_bad_option_is_not_repeated():
    with pytest.raises(OptionError) as caught:
        ServerSettings.from_options({"token": ["hush"]})
    assert "hush" not in str(caught.value)


def test_settings_can_not_change():
    with pytest.raises(ValueError, match="frozen"):
        ServerSettings().max_envs = 3
