"""What a viewer sees of a registry, without a network."""

import json

import httpx
import numpy as np
import pytest
from helpers_core import run
from helpers_server import running
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import RemoteVecEnv
from openenv_gym.server import create_app, overview
from openenv_gym.server.counts import PARTS
from openenv_gym.server.overview import Overview


@pytest.fixture(scope="module")
def served():
    app = create_app("CartPole-v1", max_envs=8, max_workers=2)
    with running(app) as url:
        yield url, app.state.registry


@pytest.fixture(autouse=True)
def each_look_is_a_moment(monkeypatch):
    monkeypatch.setattr(overview, "_APART_S", 0.0)
    monkeypatch.setattr(overview, "_WATCHED_S", LIMIT_S)
    monkeypatch.setattr(overview, "_STALE_S", LIMIT_S)


@pytest.fixture(autouse=True)
def _nobody_is_left(served):
    yield
    wait_until(lambda: served[1].capacity.active == 0)


def look(seen):
    return run(seen.look())


def test_nothing_happens(served):
    seen = look(Overview(served[1]))
    assert json.loads(json.dumps(seen)) == seen
    assert (seen["sessions"], seen["envs"], seen["max_envs"], seen["steps_per_s"]) == (0, 0, 8, 0)
    assert (seen["processes"], seen["answering"]) == (1, 1)
    assert seen["p50"] is None
    assert seen["list"] == []


def test_rates_are_of_what_happened_between_looks(served):
    url, registry = served
    with RemoteVecEnv(url, 3) as envs:
        envs.reset()
        envs.step(np.zeros(3, np.int64))
        here = Overview(registry)
        registry.watched_until = 0.0
        timed = registry.total().timed
        envs.step(np.zeros(3, np.int64))
        assert registry.total().timed == timed  # nobody looks at the page, and so no step is timed
        assert look(here)["steps_per_s"] == 0
        for _ in range(4):
            envs.step(np.zeros(3, np.int64))
        seen = look(here)
        (session,) = seen["list"]
        assert (session["envs"], session["steps"], session["connected"], session["renders"]) == (3, 18, True, False)
        assert session["process"] == 0
        assert session["steps_per_s"] == pytest.approx(seen["steps_per_s"])
        assert 0 < seen["p50"] <= seen["p99"]
        assert sum(seen["step_buckets"]) == 4
        assert registry.total().timed == timed + 4
        assert set(seen["parts"]) == set(PARTS)
        assert (seen["envs"], seen["workers"]) == (3, 2)
        for _ in range(5):
            seen = look(here)
        assert seen["steps_per_s"] == 0


def test_many_who_look_do_not_shorten_what_is_looked_at(served, monkeypatch):
    url, registry = served
    monkeypatch.setattr(overview, "_APART_S", 60.0)
    with RemoteVecEnv(url, 1) as envs:
        envs.reset()
        here = Overview(registry)
        look(here)
        envs.step(np.zeros(1, np.int64))
        assert [sum(look(here)["step_buckets"]) for _ in range(9)] == [1] * 9


def test_what_was_before_a_long_pause_is_forgotten(served, monkeypatch):
    url, registry = served
    with RemoteVecEnv(url, 1) as envs:
        envs.reset()
        here = Overview(registry)
        look(here)
        envs.step(np.zeros(1, np.int64))
        monkeypatch.setattr(overview, "_STALE_S", 0.0)
        assert sum(look(here)["step_buckets"]) == 0


def test_several_processes_are_added_up(served):
    registry = served[1]
    here = Overview(registry)

    async def two_answer(what):
        first, second = await registry.answers[what](), await registry.answers[what]()
        first |= {"steps": 5, "sessions": 1, "steps_per_s": 2.0, "timed": 1, "errors": {"A": 1, "B": 1}}
        second |= {"steps": 7, "sessions": 2, "steps_per_s": 3.0, "timed": 3, "errors": {"A": 2}, "draining": True}
        first["part_seconds"], second["part_seconds"] = [1.0] * len(PARTS), [3.0] * len(PARTS)
        first["step_buckets"], second["step_buckets"] = ([n] + [0] * 16 + [n] for n in (1, 2))
        first["list"] = [{"steps_per_s": 2.0, "age_s": 1.0, "name": "0.0.a"}]
        second["list"] = [{"steps_per_s": rate, "age_s": 1.0, "name": name} for rate, name in ((3.0, "b"), (0, "c"))]
        return [first, second]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry.company, "ask_all", two_answer)
        seen = look(here)
    assert (seen["steps"], seen["sessions"], seen["steps_per_s"], seen["answering"]) == (12, 3, 5.0, 2)
    assert (seen["errors"], seen["draining"]) == ({"A": 3, "B": 1}, True)
    assert seen["step_buckets"] == [3] + [0] * 16 + [3]
    assert set(seen["parts"].values()) == {1.0}
    assert [session["name"] for session in seen["list"]] == ["b", "0.0.a", "c"]


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
