"""OpenEnv's task API: the same answers as its own server gives."""

import pytest
from starlette.testclient import TestClient

from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def kinds(envs):
    class Taught(envs.Every):
        """Has tasks, in all the forms that they may have."""

        def list_splits(self):
            return ["train", "mine", {"name": "x", "type": "test"}, envs.Arm(joint=2)]

        async def list_tasks(self, split):
            return [{"id": 1, "split": split}, envs.Arm(), ("a", None)]

        def num_tasks(self, split):
            return len(split)

        def get_task(self, split, index):
            return [f"{split} 0", f"{split} 1"][index]

    class HalfTaught(envs.Every):
        def list_splits(self):
            raise NotImplementedError

    return {"all": Taught, "half": HalfTaught, "none": envs.Every}


REQUESTS = [
    ("GET", "list_environments", None),
    ("GET", "Game/splits", None),
    ("GET", "game/splits", None),
    ("GET", "other/splits", None),
    ("POST", "Game/tasks", {"split": "train"}),
    ("POST", "Game/tasks", {}),
    ("POST", "Game/tasks", {"split": "train", "more": 1}),
    ("POST", "Game/num_tasks", {"split": "train"}),
    ("POST", "Game/task", {"split": "train", "index": 1}),
    ("POST", "Game/task", {"split": "train", "index": 2}),
    ("POST", "Game/task", {"split": "train"}),
    ("POST", "Game/task_range", {"split": "train", "start": 0}),
]


@pytest.mark.parametrize("kind", ["all", "half", "none"])
def test_the_same_answers(envs, kinds, kind):
    heard = []
    for build in (envs.create_app, create_app):
        app = build(kinds[kind], envs.EveryAction, envs.EveryObservation, env_name="Game")
        with TestClient(app) as client:
            answers = [client.request(method, f"/{path}", json=body) for method, path, body in REQUESTS]
        heard.append([(answer.status_code, _plain(answer.json())) for answer in answers])
    assert heard[1] == heard[0]


def _plain(data):
    """Without what only one of the two servers adds to validation errors: links to pydantic's manual."""
    if isinstance(data, dict) and isinstance(data.get("detail"), list):
        return [(error["type"], error["loc"], error["msg"]) for error in data["detail"]]
    return data


def test_each_answer_gives_its_env_back(envs, kinds):
    app = create_app(kinds["all"], envs.EveryAction, envs.EveryObservation, max_concurrent_envs=1)
    with TestClient(app) as client:
        for _ in range(3):
            assert client.get("/Taught/splits").status_code == 200
        assert client.get("/health").json()["active_envs"] == 0
        with client.websocket_connect("/ws") as socket:
            socket.send_text('{"type":"state"}')
            socket.receive_text()
            assert client.get("/Taught/splits").status_code == 503
