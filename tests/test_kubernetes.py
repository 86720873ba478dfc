"""The manifests for Kubernetes: valid by its own schemas, and in agreement with each other and with the server."""

import copy
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from fastapi.testclient import TestClient
from helpers_tally import Tally

from openenv_gym.fleet import StaticLauncher
from openenv_gym.server import create_app

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
FILES = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.yaml"))}
RESOURCES = {name: list(yaml.safe_load_all(text)) for name, text in FILES.items()}
EACH = [
    pytest.param(resource, id=f"{name}-{resource['kind']}") for name, found in RESOURCES.items() for resource in found
]
VERSION = "1.31"


def the(kind, name="envs.yaml"):
    (found,) = (resource for resource in RESOURCES[name] if resource["kind"] == kind)
    return found


@pytest.mark.parametrize("resource", EACH)
def test_kubernetes_accepts_it(resource):
    kubernetes_validate.validate(resource, VERSION, strict=True)


def test_the_check_finds_mistakes():
    misspelt = copy.deepcopy(the("StatefulSet"))
    misspelt["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(misspelt, VERSION, strict=True)


def test_everything_is_about_the_same_pods():
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert the("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert the("Service")["spec"]["selector"] == labels
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    name = the("StatefulSet")["metadata"]["name"]
    assert the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == name
    assert the("StatefulSet")["spec"]["serviceName"] == the("Service")["metadata"]["name"]


def test_a_learners_url_is_that_of_the_service():
    (url,) = re.findall(r'StaticLauncher\("(.+)"\)', FILES["envs.yaml"])
    service = the("Service")
    assert url == f"dns+ws://{service['metadata']['name']}.default.svc:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["clusterIP"] == "None"
    StaticLauncher(url)


def test_the_server_has_what_the_manifests_ask_for():
    pod = the("StatefulSet")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (metric,) = the("HorizontalPodAutoscaler")["spec"]["metrics"]
    with TestClient(create_app(Tally, token="t")) as client:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert client.get(container[probe]["httpGet"]["path"]).status_code == 200  # without the token
        metrics = client.get(
            pod["metadata"]["annotations"]["prometheus.io/path"], headers={"Authorization": "Bearer t"}
        )
        assert f"\n{metric['pods']['metric']['name']}{{" in metrics.text


def test_there_is_time_for_envs_to_leave():
    spec = the("StatefulSet")["spec"]["template"]["spec"]
    program, seconds = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert spec["terminationGracePeriodSeconds"] >= int(seconds) + 20


def test_envoy_leads_each_host_name_to_a_pod_of_its_own():
    config = yaml.safe_load(the("ConfigMap", "envoy.yaml")["data"]["envoy.yaml"])["static_resources"]
    (listener,) = config["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["upgrade_configs"] == [{"upgrade_type": "websocket"}]
    clusters = {cluster["name"]: cluster for cluster in config["clusters"]}
    urls = re.findall(r'"wss://(.+?)"', FILES["envoy.yaml"])
    for number, (host, url) in enumerate(zip(manager["route_config"]["virtual_hosts"], urls, strict=True)):
        assert url in host["domains"]
        (endpoint,) = clusters[host["routes"][0]["route"]["cluster"]]["load_assignment"]["endpoints"]
        address = endpoint["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        assert address == {"address": f"envs-{number}.envs", "port_value": 8000}
        assert host["routes"][0]["route"]["timeout"] == "0s"
