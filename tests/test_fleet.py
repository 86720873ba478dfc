"""`RayFleet` on a real Ray cluster: the same results as in process, also while servers die, come and go."""

import dataclasses
import functools
import os
import re
import signal
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import helpers_cli
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_oracle import Script, ScriptedEnv
from helpers_wait import wait_until
from typer.testing import CliRunner

from openenv_gym import RemoteVecEnv
from openenv_gym.cli import app

helpers_ray = pytest.importorskip("helpers_ray", reason="needs the extra `ray`", exc_type=ImportError)

import ray  # noqa: E402

from openenv_gym.errors import FactoryError, FleetError, OptionError, Unauthorized  # noqa: E402
from openenv_gym.fleet import Launcher, RayFleet  # noqa: E402
from openenv_gym.fleet.roster import NAMESPACE  # noqa: E402

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
SCRIPTS = [
    Script(BOX, lengths=(3, 5), endings=("terminated", "truncated"), infos=("none", "int"), salt=1),
    Script(BOX, lengths=(4,), endings=("both",), infos=("array", "nested"), reward="int", salt=2),
    Script(BOX, lengths=(2, 7), endings=("truncated",), infos=("string",), reward="float32", salt=3),
    Script(BOX, lengths=(1, 6), endings=("terminated",), salt=4),
]
ROWS = len(SCRIPTS)
MODES = [mode.value for mode in AutoresetMode]
LOST = "ignore:.*(the session on .* is gone|can't be used now):UserWarning"


@pytest.fixture(scope="module")
def fleet(ray_cluster):
    make = functools.partial(ScriptedEnv, SCRIPTS)
    with RayFleet(make, servers=2, envs_per_server=16, name="scripted", start_timeout_s=100) as fleet:
        yield fleet


def local(mode):
    """The oracle."""
    return SyncVectorEnv([lambda: ScriptedEnv(SCRIPTS)] * ROWS, autoreset_mode=mode)


def same(ours, theirs):
    return data_equivalence(ours, theirs, exact=True)


def of_rows(result, rows):
    """The observations, rewards and ends of some rows, as bytes."""
    return [part[rows].tobytes() for part in result[:4]]


def attempt(ask):
    """What is answered, or None if nobody answers."""
    try:
        return ask()
    except FleetError:
        return None


def both_run(fleet):
    status = attempt(fleet.status)
    return status is not None and status.healthy and len(status.servers) == 2


def is_on_two_servers(fleet, envs):
    urls = {url for link in envs.rollout.pool.links for url in link.url.split(", ")}
    return urls == {f"ws{url[4:]}/ws" for url in fleet.urls}


@pytest.mark.parametrize("mode", MODES)
def test_equals_a_local_vector_env(fleet, mode):
    ours, theirs = fleet.make_vec(ROWS, autoreset_mode=mode), local(mode)
    with ours:
        assert is_on_two_servers(fleet, ours)
        assert same(ours.reset(seed=5), theirs.reset(seed=5))
        theirs.action_space.seed(7)
        for _ in range(30):
            actions = theirs.action_space.sample()
            expected = theirs.step(actions)
            assert same(ours.step(actions), expected)
            over = expected[2] | expected[3]
            if mode == "Disabled" and over.any():
                mask = {"reset_mask": over}
                assert same(ours.reset(options=mask), theirs.reset(options=dict(mask)))


def test_what_a_fleet_says_of_itself(fleet):
    status = fleet.status()
    assert isinstance(fleet, Launcher)
    assert (status.name, status.env, status.healthy) == ("scripted", "partial", True)
    assert [server.name for server in status.servers] == ["server-0", "server-1"]
    assert [server.url for server in status.servers] == fleet.urls
    assert {server.max_envs for server in status.servers} == {16}
    assert repr(fleet) == "RayFleet('scripted', 'partial')"
    assert fleet.token not in repr(status)


def test_servers_are_spread_over_the_nodes(fleet, ray_cluster):
    assert len({helpers_ray.node_of(ray_cluster, f"scripted/server-{i}").node_id for i in range(2)}) == 2


def test_another_process_of_the_cluster_attaches_by_name(fleet):
    attached = RayFleet.attach("scripted")
    assert (attached.urls, attached.token, attached.name) == (fleet.urls, fleet.token, fleet.name)
    with attached.make_vec(2) as envs:
        assert envs.reset(seed=1)[0].shape == (2, 3)


def kill_actor(fleet, cluster, pid):
    ray.kill(ray.get_actor(f"{fleet.name}/server-1", NAMESPACE), no_restart=False)


def kill_process(fleet, cluster, pid):
    os.kill(pid, signal.SIGKILL)


def terminate_process_twice(fleet, cluster, pid):
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: fleet.status().servers[1].state == "draining", "the first signal's effect")
    os.kill(pid, signal.SIGTERM)


def kill_node(fleet, cluster, pid):
    cluster.remove_node(helpers_ray.node_of(cluster, f"{fleet.name}/server-1"), allow_graceful=False)


@pytest.mark.filterwarnings(LOST)
@pytest.mark.parametrize("kill", [kill_actor, kill_process, terminate_process_twice, kill_node])
def test_a_server_that_dies_costs_its_own_rows_only(fleet, ray_cluster, kill):
    """They are truncated with `connection_lost`, and go on where the fleet has started the server anew."""
    wait_until(lambda: both_run(fleet), "a healthy fleet", 60)
    before = fleet.status().servers[1]
    theirs = local("NextStep")
    with fleet.make_vec(ROWS, message_timeout_s=90, reconnect_timeout_s=90) as ours:
        lost, kept = [2, 3], [0, 1]
        # With this seed the lost rows' episodes are longer than that: between two, a row would just move.
        assert same(ours.reset(seed=6), theirs.reset(seed=6))
        assert same(ours.step([1] * ROWS), theirs.step([1] * ROWS))
        kill(fleet, ray_cluster, before.pid)
        wait_until(lambda: not Path(f"/proc/{before.pid}").exists(), "the end of the server", 60)
        result, expected = ours.step([2] * ROWS), theirs.step([2] * ROWS)
        assert result[3][lost].all()
        assert result[4]["connection_lost"].tolist() == [False, False, True, True]
        assert of_rows(result, kept) == of_rows(expected, kept)
        result, expected = ours.step([3] * ROWS), theirs.step([3] * ROWS)
        assert not (result[2] | result[3])[lost].any()
        assert of_rows(result, kept) == of_rows(expected, kept)

        def stepped_and_back():
            """Rows of a server that was draining when it died went to the other one first."""
            assert of_rows(ours.step([0] * ROWS), kept) == of_rows(theirs.step([0] * ROWS), kept)
            # The directory may have been on the node that was killed, and learns of the servers anew.
            servers = attempt(fleet.servers) or {}
            if len(servers) < 2 or servers["server-1"].url == before.url:
                return False
            return is_on_two_servers(fleet, ours)

        wait_until(stepped_and_back, "the lost rows to be on the server that was started anew", 60)
    if kill is not kill_node:
        assert fleet.status().servers[1].epoch == before.epoch + 1
    if kill is kill_node:
        ray_cluster.add_node(num_cpus=helpers_ray.CPUS)


def test_a_server_that_gets_sigterm_lets_its_rows_go_first(fleet):
    """They move at their next reset, nothing is lost, and they come back to the server that Ray starts anew."""
    wait_until(lambda: both_run(fleet), "a healthy fleet", 60)
    before = fleet.status().servers[1]
    with fleet.make_vec(4) as envs:
        envs.reset(seed=1)
        assert stepped(envs) == [2, 2]
        os.kill(before.pid, signal.SIGTERM)
        wait_until(lambda: fleet.status().servers[1].state == "draining", "the server to drain")
        assert fleet.urls == [server.url for server in fleet.status().servers if server.url != before.url]
        wait_until(lambda: stepped(envs) == [4], "all envs on the other server", 60)
        wait_until(lambda: not Path(f"/proc/{before.pid}").exists(), "the end of the server", 60)
        wait_until(lambda: stepped(envs) == [2, 2], "even shares again", 60)
        after = fleet.status().servers[1]
        assert (after.epoch, after.state) == (before.epoch + 1, "running")


@pytest.fixture
def cartpole(ray_cluster):
    """A fleet for a learner of Stable-Baselines3."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small only wait for the others
    with RayFleet("CartPole-v1", servers=2, num_cpus=0.25, name="cartpole", start_timeout_s=100) as fleet:
        yield fleet
    torch.set_num_threads(before)


def trained(env, steps, callback=None):
    """What PPO learns with one seed."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu")
    model.learn(steps, callback)
    env.close()
    return [parameter.detach().numpy().tobytes() for parameter in model.policy.parameters()]


@pytest.mark.filterwarnings(LOST)
def test_training_with_stable_baselines_3(cartpole):
    """Bit-identical to training in process; and when a server is killed it goes on."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    from openenv_gym.sb3 import SB3VecEnv

    class Killing(BaseCallback):
        """Kills a server in the tenth step, and notes which rows were lost with it, and in which steps."""

        lost: ClassVar[list[tuple[int, int]]] = []

        def _on_step(self):
            self.lost += [(self.n_calls, row) for row, i in enumerate(self.locals["infos"]) if "connection_lost" in i]
            if self.n_calls == 10:
                kill_process(cartpole, None, cartpole.status().servers[1].pid)
            return True

    remote = SB3VecEnv(cartpole.make_vec(4))
    assert is_on_two_servers(cartpole, remote.env)
    assert trained(remote, 300) == trained(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4), 300)
    options = {"message_timeout_s": 90, "reconnect_timeout_s": 90}
    assert trained(SB3VecEnv(cartpole.make_vec(4, **options)), 300, Killing())
    assert Killing.lost == [(11, 2), (11, 3)]


def test_growing_and_shrinking_while_a_learner_runs(fleet):
    """Envs move at their resets; a server that is no longer wanted ends when it is empty, and gives back its room."""
    names = [server.name for server in fleet.status().servers]
    with fleet.make_vec(6) as envs:
        envs.reset(seed=1)
        fleet.scale(3)
        assert fleet.status().healthy
        wait_until(lambda: stepped(envs) == [2, 2, 2], "even shares of three servers", 60)
        fleet.scale(1)
        assert [server.state for server in fleet.status().servers] == ["running", "draining", "draining"]
        assert len(fleet.urls) == 1
        wait_until(lambda: stepped(envs) == [6], "all envs on one server", 60)
        wait_until(lambda: len(fleet.status().servers) == 1, "the end of the others", 60)
        fleet.scale(2)
        wait_until(lambda: stepped(envs) == [3, 3], "even shares of two servers", 60)
    assert [server.name for server in fleet.status().servers] == names


def stepped(envs):
    """Step, and count the envs on each server; none of them may be lost."""
    assert "connection_lost" not in envs.step([0] * envs.num_envs)[4]
    homes = [home for link in envs.rollout.pool.links for home in link.legs.homes]
    return [homes.count(name) for name in sorted(set(homes))]


def test_a_server_that_was_draining_can_stay(fleet):
    with fleet.make_vec(4) as envs:
        before = fleet.urls
        envs.reset(seed=1)
        fleet.scale(1)
        fleet.scale(2)
        assert fleet.urls == before
        assert fleet.status().healthy


@pytest.mark.filterwarnings(LOST)
def test_a_server_that_dies_while_it_drains_does_not_come_back_for_good(fleet):
    with fleet.make_vec(4) as envs:
        envs.reset(seed=1)
        pid = fleet.status().servers[1].pid
        fleet.scale(1)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(fleet.status().servers) == 1, "the end of the server that isn't wanted", 60)
    fleet.scale(2)
    assert fleet.status().healthy


def test_too_little_room_says_what_is_missing(ray_cluster):
    with pytest.raises(FleetError, match=r"no room for 1 server\(s\) within 0.5 second\(s\): ") as refused:
        RayFleet(
            "CartPole-v1", name="big", start_timeout_s=0.5, num_cpus=64.0, num_gpus=1.0, resources={"licence": 2.0}
        )
    for text in ("64 CPU wanted", "1 GPU wanted (1 for each), 0 of 0 free", "2 licence wanted (2 for each), 0 of 0"):
        assert text in str(refused.value)
    with pytest.raises(FleetError, match="no fleet 'big'"):
        RayFleet.attach("big")


def test_a_growth_for_which_there_is_no_room_changes_nothing(fleet):
    before = fleet.status().servers
    fleet._plan = dataclasses.replace(fleet._plan, start_timeout_s=0.5)
    with pytest.raises(FleetError, match="no room for 30 server"):
        fleet.scale(32)
    assert [server.url for server in fleet.status().servers] == [server.url for server in before]


def test_an_env_that_cannot_be_built(ray_cluster):
    with pytest.raises(FactoryError, match="NoSuchEnv"):
        RayFleet("NoSuchEnv-v0", name="none")
    with pytest.raises(FleetError, match=r"no fleet 'none' on this cluster .there are: .*scripted"):
        RayFleet.attach("none")


def test_a_name_that_is_taken(fleet):
    with pytest.raises(FleetError, match="a fleet 'scripted' on this cluster already"):
        RayFleet("CartPole-v1", name="scripted")
    assert fleet.urls


def test_folders_that_can_not_be_sent_any_more(ray_cluster, tmp_path):
    with pytest.raises(FleetError, match=r"give working_dir to its ray.init\(runtime_env=…\)"):
        RayFleet("only_sent:make", runtime_env={"working_dir": str(tmp_path)})


@pytest.mark.parametrize("wanted, text", [({"servers": 0}, "at least 1 server"), ({"num_cpus": 0}, "above 0")])
def test_bad_numbers(wanted, text):
    with pytest.raises(OptionError, match=text):
        RayFleet("CartPole-v1", **wanted)


def run(*arguments):
    """Run the command in this process, which has joined the cluster."""
    return CliRunner().invoke(app, ["fleet", *map(str, arguments)])


def test_the_command_line(fleet):
    up = run("up", "CartPole-v1", "--name", "cli", "--envs-per-server", 4, "--num-cpus", 0.5, "--start-timeout-s", 90)
    try:
        assert up.exit_code == 0, up.output
        assert 'RayFleet.attach("cli")' in up.output
        with RayFleet.attach("cli").make_vec(2) as envs:
            assert envs.reset(seed=1)[0].shape == (2, 4)
        assert re.search(r"server-0 +running +http://\S+ +1 +\S+ +\d+ +\d/4 +\d", run("status", "--name", "cli").output)
        bigger = run("scale", 2, "--name", "cli")
        assert (bigger.exit_code, "server-1" in bigger.output) == (0, True)
    finally:
        down = run("down", "--name", "cli")
    assert (down.exit_code, down.output) == (0, "fleet cli has ended\n")
    gone = run("status", "--name", "cli")
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert "there is no fleet 'cli' on this cluster" in gone.stderr


def test_the_exit_code_says_whether_all_servers_run(fleet):
    assert run("status", "--name", "scripted").exit_code == 0
    ray.get(fleet._directory.expect.remote([7]))
    try:
        assert run("status", "--name", "scripted").exit_code == 1
    finally:
        ray.get(fleet._directory.remove.remote(7))


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["up", "CartPole-v1", "--servers", 0], "at least 1 server"),
        (["up", "CartPole-v1", "--resource", "gpu"], "write it like licence=2"),
        (["up", "CartPole-v1", "--env-kwargs", "["], "--env-kwargs is no JSON"),
        (["down", "--name", "nobody"], "no fleet 'nobody'"),
    ],
)
def test_what_the_command_line_refuses(fleet, arguments, text):
    refused = run(*arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert text in refused.stderr


def test_a_fleet_outlives_the_process_that_started_it_and_imports_what_it_was_sent(ray_cluster, tmp_path):
    """Nothing but Ray's `runtime_env` brings the module to the servers."""
    (tmp_path / "only_sent.py").write_text(
        "import gymnasium as gym\n\ndef make():\n    return gym.make('CartPole-v1')\n"
    )
    about = ["--name", "sent", "--address", ray_cluster.address]
    more = ["--working-dir", tmp_path, "--num-cpus", 0.5, "--start-timeout-s", 90]
    up = helpers_cli.run("fleet", "up", "only_sent:make", *about, *more)
    try:
        assert up.returncode == 0, up.stderr
        with RayFleet.attach("sent").make_vec(2) as envs:
            assert envs.reset(seed=1)[0].shape == (2, 4)
    finally:
        down = helpers_cli.run("fleet", "down", *about)
    assert (down.returncode, down.stdout) == (0, "fleet sent has ended\n"), down.stderr


def test_another_process_finds_the_fleet_with_rays_token_only(fleet, ray_cluster):
    """Ray's own token lets a process join; ours, which it then gets there, lets it connect."""
    variables = {"RAY_ADDRESS": ray_cluster.address}
    found = helpers_cli.run("fleet", "status", "--name", "scripted", "--address", ray_cluster.address)
    assert found.returncode == 0, found.stderr
    assert "server-1" in found.stdout
    wrong = helpers_cli.environment(RAY_AUTH_TOKEN="f" * 64, **variables)
    refused = helpers_cli.run("fleet", "status", "--name", "scripted", "--address", ray_cluster.address, env=wrong)
    assert refused.returncode == 2, refused.stdout
    assert "can't join the Ray cluster" in refused.stderr
    with pytest.raises(Unauthorized):
        RemoteVecEnv(fleet.urls, 2, token="wrong")


def test_a_directory_that_dies_learns_everything_anew(fleet):
    before = fleet.servers()
    ray.kill(ray.get_actor(f"{fleet.name}/directory", NAMESPACE), no_restart=False)
    wait_until(lambda: attempt(fleet.servers) == before, "the same servers", 60)
    assert RayFleet.attach(fleet.name).token == fleet.token
