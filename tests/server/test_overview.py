"""What a viewer sees of a registry, without a network."""

import json

import httpx
import numpy as np
import pytest
from helpers_server import running

from openenv_gym import RemoteVecEnv
from openenv_gym.server import create_app
from openenv_gym.server.overview import Overview


@pytest.fixture(scope="module")
def served():
    app = create_app("CartPole-v1", max_envs=8, max_workers=2)
    with running(app) as url:
        yield url, app.state.registry


def test_nothing_happens(served):
    seen = Overview(served[1]).look()
    assert json.loads(json.dumps(seen)) == seen
    assert (seen["sessions"], seen["envs"], seen["max_envs"], seen["steps_per_s"]) == (0, 0, 8, 0)
    assert seen["p50"] is None
    assert seen["list"] == []


def test_rates_are_of_what_happened_between_looks(served):
    url, registry = served
    with RemoteVecEnv(url, 3) as envs:
        envs.reset()
        envs.step(np.zeros(3, np.int64))
        overview = Overview(registry)
        for _ in range(4):
            envs.step(np.zeros(3, np.int64))
        seen = overview.look()
        (session,) = seen["list"]
        assert (session["envs"], session["steps"], session["connected"], session["renders"]) == (3, 15, True, False)
        assert session["steps_per_s"] == pytest.approx(seen["steps_per_s"])
        assert 0 < seen["p50"] <= seen["p99"]
        assert seen["parts"] is None  # nobody looks at the page, and so no step is timed
        assert sum(seen["step_buckets"]) == 4
        assert seen["requests_per_s"] * 3 == pytest.approx(seen["steps_per_s"])
        assert (seen["envs"], seen["workers"]) == (3, 2)
        for _ in range(5):
            seen = overview.look()
        assert seen["steps_per_s"] == 0


def test_a_frame_is_drawn_between_steps_and_is_no_activity(served):
    url, registry = served
    with RemoteVecEnv(url, 2, render_mode="rgb_array") as envs:
        (session,) = registry.sessions.values()
        address = f"{url}/web/frames/{session.name}"
        assert httpx.get(f"{address}/1").status_code == 204  # an env that wasn't reset shows nothing
        envs.reset(seed=1)
        last_active = session.last_active
        answer = httpx.get(f"{address}/1")
        assert answer.headers["content-type"] == "image/png"
        assert answer.content.startswith(b"\x89PNG")
        assert session.last_active == last_active
        assert httpx.get(f"{address}/2").status_code == 204
        envs.step(np.zeros(2, np.int64))
    assert httpx.get(f"{address}/1").status_code == 204
