"""What a server in the OpenEnv dialect says about itself, and what is made of it."""

import asyncio

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers_faults import FaultProxy
from helpers_server import running
from helpers_tally import Tally
from helpers_wait import wait_until

from openenv_gym import discovery, openenv_sessions
from openenv_gym.dial import Target, websocket_url
from openenv_gym.errors import ConnectFailed, SpaceError
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def openenv():
    return pytest.importorskip("helpers_openenv")


def discover(url, observation_space=None, action_space=None, **options):
    return asyncio.run(discovery.discover(Target(websocket_url(url), **options), observation_space, action_space))


def test_our_server_says_its_spaces():
    with running(create_app(Tally, token="secret")) as url:
        found = discover(url, token="secret")
        assert found.form.observation_space == Tally().observation_space
        assert found.form.action_space == Tally.action_space
        assert found.lasting is False


def test_a_space_that_is_given_comes_first():
    with running(create_app(Tally)) as url:
        found = discover(url, action_space=Discrete(2))
        assert found.form.action_space == Discrete(2)
        assert found.form.observation_space == Tally().observation_space


def test_openenvs_own_server(openenv):
    with openenv.stock_server(openenv.CartPole, max_envs=1) as url:
        found = discover(url, **openenv.CARTPOLE_SPACES)
        assert (found.form.observation_field, found.form.action_field) == ("state", "push")
        assert found.lasting is True
        for given in ({}, {"action_space": Discrete(2)}):
            with pytest.raises(
                SpaceError, match=r"^state: the list's length isn't in the schema; .*observation_space="
            ):
                discover(url, **given)
        found = discover(url, Box(-1, 1, (4,)))
        assert found.form.action_space == Box(-(2**63), 2**63 - 2, (), np.int64)


def test_spaces_are_inferred_from_one_reset(openenv):
    async def sample():
        return {"state": [0.1, 0.2, 0.3, 0.4], "metadata": {}}

    with openenv.stock_server(openenv.CartPole, max_envs=1) as url:
        target = Target(websocket_url(url))
        found = asyncio.run(discovery.discover(target, None, Discrete(2), sample=sample))
    assert found.form.observation_space == Box(-np.inf, np.inf, (4,), np.float64)
    assert found.form.observation_field == "state"


def test_a_server_that_takes_an_unknown_session_for_a_new_one_has_no_lasting_ones(openenv, monkeypatch):
    """There were such; going on in such a session after a broken connection would be a fresh env, unnoticed."""
    monkeypatch.setattr(openenv_sessions, "attached", lambda target: target)
    with openenv.stock_server(max_envs=2) as url:
        assert discover(url, **openenv.COUNT_SPACES).lasting is False
        wait_until(lambda: not openenv.Count.live)


def test_a_full_server_is_no_reason_to_fail_here(openenv, monkeypatch):
    monkeypatch.setattr(openenv_sessions, "attached", lambda target: target)
    with openenv.stock_server(max_envs=1) as url, openenv.filled(url):
        assert discover(url, **openenv.COUNT_SPACES).lasting is False


def test_a_server_that_is_away():
    with FaultProxy(1) as proxy:
        proxy.refuse()
        with pytest.raises(ConnectFailed, match=f"{proxy.port}/spaces"):
            discover(proxy.url)
