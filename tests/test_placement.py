"""Links follow the servers of a launcher: where they resume, where they open anew, and what is said if nobody knows."""

import asyncio
import threading

import pytest
from helpers_faults import ServerProcess
from helpers_launcher import Listed
from helpers_server import running
from helpers_tally import Endless

from openenv_gym import RemoteVecEnv
from openenv_gym.dial import Target
from openenv_gym.errors import ConnectFailed
from openenv_gym.launcher import ServerAddress
from openenv_gym.placement import Placement, moves, shares
from openenv_gym.server import create_app


def urls(launcher, change, *, anew):
    """Where each of the targets is, after a change."""

    async def ask():
        targets = Placement(launcher, Target("")).targets()
        change()
        return [(await target.current(anew=anew)).url for target in targets]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "homes, names, expected",
    [
        ("aabb", "ab", {}),
        ("aaaabbbb", "abcd", {2: "c", 3: "c", 6: "d", 7: "d"}),
        ("aabbccdd", "ab", {4: "a", 5: "a", 6: "b", 7: "b"}),
        ("aaab", "ab", {2: "b"}),
        ("aaa", "ab", {2: "b"}),
        ("aab", "ba", {1: "b"}),
        ("gg", "abc", {0: "a", 1: "b"}),
    ],
)
def test_as_few_rows_as_possible_move_for_even_shares(homes, names, expected):
    assert moves(homes, names) == expected
    after = [expected.get(row, home) for row, home in enumerate(homes)]
    assert [after.count(name) for name in names] == shares(len(homes), len(names))


def test_one_target_for_each_server_that_takes_sessions():
    launcher = Listed(a="http://a", b="http://b", c="http://c")
    launcher.listed["b"] = ServerAddress("http://b", draining=True)
    template = Target("", token="t", connect_timeout_s=3.0)
    targets = Placement(launcher, template).targets()
    assert [target.url for target in targets] == ["ws://a/ws", "ws://c/ws"]
    assert {(target.token, target.connect_timeout_s) for target in targets} == {("t", 3.0)}


@pytest.mark.parametrize("anew", [False, True])
def test_a_server_that_moved_is_found_again(anew):
    launcher = Listed(a="http://a", b="http://b")
    moved = urls(launcher, lambda: launcher.listed.update(b=ServerAddress("http://b2")), anew=anew)
    assert moved == ["ws://a/ws", "ws://b2/ws"]


@pytest.mark.parametrize("anew", [False, True])
def test_the_places_of_servers_that_went_are_spread_over_the_others(anew):
    launcher = Listed(a="http://a", b="http://b", c="http://c", d="http://d")

    def go():
        launcher.listed = {name: launcher.listed[name] for name in "ab"}

    assert urls(launcher, go, anew=anew) == ["ws://a/ws", "ws://b/ws", "ws://a/ws", "ws://b/ws"]


@pytest.mark.parametrize("anew, url", [(False, "ws://b/ws"), (True, "ws://a/ws")])
def test_a_draining_server_resumes_sessions_but_opens_none(anew, url):
    launcher = Listed(a="http://a", b="http://b")
    drain = {"b": ServerAddress("http://b", draining=True)}
    assert urls(launcher, lambda: launcher.listed.update(drain), anew=anew)[1] == url


def test_no_server_at_all():
    with pytest.raises(ConnectFailed, match=r"no server at Listed\(\) \(none takes sessions now\)"):
        Placement(Listed(), Target("")).targets()


def test_a_launcher_that_fails_is_a_server_that_cannot_be_reached():
    launcher = Listed(a="http://a")

    def fail():
        launcher.listed = LookupError("no idea")

    with pytest.raises(ConnectFailed, match=r"no server at Listed\(\) \(it failed: no idea\)"):
        urls(launcher, fail, anew=True)


def test_links_that_ask_at_the_same_time_ask_once():
    release = threading.Event()

    class Slow(Listed):
        def servers(self):
            assert self.asked == 0 or release.wait(10)
            return super().servers()

    async def ask():
        launcher = Slow(a="http://a", b="http://b")
        targets = Placement(launcher, Target("")).targets()
        asking = [asyncio.ensure_future(target.current(anew=False)) for target in targets * 50]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*asking)
        return launcher.asked

    assert asyncio.run(ask()) == 2


def test_rows_of_a_server_that_died_are_reset_where_it_is_started_anew():
    """The other server's rows notice nothing."""
    with running(create_app(Endless)) as stays, running(create_app(Endless)) as alone:
        with RemoteVecEnv(alone, 4) as expected, ServerProcess("helpers_tally:Endless") as dies:
            launcher = Listed(dies=dies.url, stays=stays)
            with RemoteVecEnv(launcher, 4, message_timeout_s=30) as envs:
                assert envs.reset(seed=1)[0].tolist() == expected.reset(seed=1)[0].tolist()
                assert envs.step([0] * 4)[0].tolist() == expected.step([0] * 4)[0].tolist()
                dies.kill()
                with ServerProcess("helpers_tally:Endless") as again:
                    launcher.listed["dies"] = ServerAddress(again.url)
                    with pytest.warns(UserWarning, match="rows 0-1 are truncated"):
                        observations, rewards, _, truncated, infos = envs.step([1] * 4)
                    others = expected.step([1] * 4)
                    assert truncated.tolist() == [True, True, False, False]
                    assert infos["connection_lost"].tolist() == [True, True, False, False]
                    assert observations[2:].tobytes() == others[0][2:].tobytes()
                    assert rewards[2:].tobytes() == others[1][2:].tobytes()
                    observations = envs.step([2] * 4)[0]
                    assert observations[:2, :2].tolist() == [[1, 0], [1, 0]]  # first episode there, not yet stepped
                    assert observations[2:].tobytes() == expected.step([2] * 4)[0][2:].tobytes()
                    assert [link.url.removesuffix("/ws")[2:] for link in envs.rollout.pool.links] == [
                        again.url[4:],
                        stays[4:],
                    ]


def test_an_openenv_server_is_followed_too():
    with ServerProcess("helpers_tally:Endless") as dies:
        launcher = Listed(dies=dies.url)
        with RemoteVecEnv(launcher, 2, dialect="openenv", message_timeout_s=30) as envs:
            envs.reset(seed=1)
            envs.step([0] * 2)
            dies.kill()
            with ServerProcess("helpers_tally:Endless") as again:
                launcher.listed["dies"] = ServerAddress(again.url)
                with pytest.warns(UserWarning, match="are truncated"):
                    assert envs.step([1] * 2)[3].tolist() == [True, True]
                assert envs.step([1] * 2)[0][:, 1].tolist() == [0, 0]
                assert {link.url for link in envs.rollout.pool.links} == {again.url.replace("http", "ws") + "/ws"}
