"""What Prometheus sees of a real server while clients of both dialects use it."""

import json
import os
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers_cli import DEADLINE_S
from helpers_faults import FaultProxy
from helpers_server import running
from helpers_wait import LIMIT_S, wait_until
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from openenv_gym import LocalServer, RemoteVecEnv, errors
from openenv_gym.server import create_app

TOTALS = {"openenv_gym_errors_total"}  # no sample before the first error
HEADERS = {"authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def server():
    with running(create_app("CartPole-v1", token="s3cret", max_envs=8)) as url:
        yield url


def scrape(url):
    """The samples without their buckets: name and label values -> value."""
    answer = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=LIMIT_S)
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        " ".join([sample.name.removeprefix("openenv_gym_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if family.name.startswith("openenv_gym") and not sample.name.endswith("_bucket")
    }


def changes(url, before):
    return {name: value - before.get(name, 0) for name, value in scrape(url).items() if value != before.get(name, 0)}


def test_the_token_guards_them(server):
    assert httpx.get(f"{server}/metrics").status_code == 401
    assert httpx.get(f"{server}/metrics", headers={"authorization": "Bearer x"}).status_code == 401


def test_a_session_is_counted_while_it_lives_and_after(server):
    before = scrape(server)
    with RemoteVecEnv(server, 3, token="s3cret") as envs:
        envs.reset(seed=1)
        for _ in range(5):
            envs.step(np.zeros(3, np.int64))
        live = changes(server, before)
        assert live.pop("received_bytes_total") > 5 * 3
        assert live.pop("sent_bytes_total") > 5 * 3 * 16
        assert live.pop("step_seconds_sum") > 0
        assert live.pop("workers") >= 1
        assert live == {
            "sessions connected": 1,
            "envs": 3,
            "steps_total": 15,
            "resets_total": 3,
            "sessions_opened_total": 1,
            "step_seconds_count": 5,
        }
    wait_until(lambda: scrape(server)["sessions connected"] == 0)
    after = changes(server, before)
    assert after["steps_total"] == 15
    assert "envs" not in after
    assert "sessions_lost_total" not in after


def test_the_openenv_dialect_counts_too(server):
    before = scrape(server)
    url = server.replace("http", "ws", 1) + "/ws"
    with connect(url, additional_headers=HEADERS, proxy=None) as socket:
        for message in (
            {"type": "reset", "data": {}},
            {"type": "step", "data": {"action": 1}},
            {"type": "batch_step", "data": {"actions": [{"action": 1}] * 4}},
            {"type": "step", "data": {"action": 7}},
        ):
            socket.send(json.dumps(message))
            socket.recv(timeout=30)
        live = changes(server, before)
        assert live["steps_total"] == 5
        assert live["step_seconds_count"] == 2
        assert live["resets_total"] == 1
        assert live["errors_total VALIDATION_ERROR"] == 1
        assert live["received_bytes_total"] > 100
    # closed without OpenEnv's `close` message: its dialect has no resume
    wait_until(lambda: changes(server, before).get("sessions_lost_total") == 1)
    assert changes(server, before)["connections_lost_total"] == 1


def test_a_cut_connection_is_resumed_or_its_session_is_lost():
    app = create_app("CartPole-v1", token="s3cret")
    with running(app) as server, FaultProxy(server) as proxy:
        before = scrape(server)
        with RemoteVecEnv(proxy.url, 1, token="s3cret") as envs:
            envs.reset(seed=1)
            proxy.cut()
            envs.step([0])
            found = changes(server, before)
            assert found["sessions_resumed_total"] == 1
            assert found["steps_total"] == 1
            assert "sessions_lost_total" not in found
            app.state.registry.settings = app.state.registry.settings.model_copy(update={"grace_s": 0.1})
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: changes(server, before).get("sessions_lost_total") == 1)  # its grace time is over
            wait_until(lambda: scrape(server)["envs"] == 0)
            proxy.accept()


def test_errors_have_their_codes(server):
    before = scrape(server)
    with pytest.raises(errors.CapacityError):
        RemoteVecEnv(server, 9, token="s3cret")
    with pytest.raises(errors.Unauthorized):
        RemoteVecEnv(server, 1, token="wrong")
    with RemoteVecEnv(server, 1, token="s3cret") as envs:
        envs.reset()
        with pytest.raises(Exception, match="may not call"):
            envs.call("some_method")
        found = {name: value for name, value in changes(server, before).items() if name.startswith("errors")}
    assert found == {
        "errors_total CAPACITY_REACHED": 1,
        "errors_total UNAUTHORIZED": 1,
        "errors_total NOT_ALLOWED": 1,
    }


def test_the_histogram_and_the_process_are_there(server):
    text = httpx.get(f"{server}/metrics", headers=HEADERS).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    buckets = [s for s in families["openenv_gym_step_seconds"].samples if s.name.endswith("_bucket")]
    values = [sample.value for sample in buckets]
    assert values == sorted(values)
    assert buckets[-1].labels["le"] == "+Inf"
    if os.name == "posix":
        assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    assert families["openenv_gym_server_info"].samples[0].labels["env"] == "CartPole-v1"


def test_open_metrics_is_spoken_where_it_is_asked_for(server):
    answer = httpx.get(f"{server}/metrics", headers={**HEADERS, "accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_the_dashboard_asks_for_metrics_that_exist(server):
    text = httpx.get(f"{server}/metrics", headers=HEADERS).text
    known = {s.name for family in text_string_to_metric_families(text) for s in family.samples} | TOTALS
    dashboard = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"(?:openenv_gym|process)_\w+", expression)}
    assert len(asked) > 10
    assert asked - known == set()


def test_several_processes_are_added_up():
    with LocalServer("CartPole-v1", workers=2, start_timeout_s=DEADLINE_S) as server:
        with RemoteVecEnv(server.url, 4, connections=2, token=server.token) as envs:
            envs.reset(seed=1)
            for _ in range(5):
                envs.step(np.zeros(4, np.int64))
            headers = {"authorization": f"Bearer {server.token}"}

            def scraped():
                text = httpx.get(f"{server.url}/metrics", headers=headers, timeout=LIMIT_S).text
                found = {
                    sample.name: sample.value for f in text_string_to_metric_families(text) for sample in f.samples
                }
                return found if found["openenv_gym_processes"] == 2 else None

            samples = wait_until(scraped, "an answer of both processes")
    assert samples["openenv_gym_steps_total"] == 20
    assert samples["openenv_gym_envs"] == 4
