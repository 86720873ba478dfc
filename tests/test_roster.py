"""What is known of a fleet's servers, from their reports alone."""

from dataclasses import replace

from openenv_gym.fleet.roster import REPORT_S, FleetStatus, Report, Roster
from openenv_gym.launcher import ServerAddress

FIRST = Report(number=0, life="a", url="http://here:1", node="here", pid=7, envs=2, max_envs=8, sessions=1)
SECOND = Report(number=1, life="b", url="http://there:1", node="there", pid=8)
AGAIN = replace(SECOND, life="c", url="http://here:2", node="here", pid=9)


def roster(*reports, now=0.0):
    made = Roster()
    for report in reports:
        made.take(report, now)
    return made


def states(roster, now=0.0):
    return [(status.name, status.state, status.epoch) for status in roster.statuses(now)]


def test_servers_are_in_the_order_of_their_numbers():
    tenth = replace(FIRST, number=10, life="d", url="http://here:10")
    assert list(roster(tenth, SECOND, FIRST).addresses().items()) == [
        ("server-0", ServerAddress("http://here:1")),
        ("server-1", ServerAddress("http://there:1")),
        ("server-10", ServerAddress("http://here:10")),
    ]


def test_a_status_is_the_last_report():
    (status,) = roster(replace(FIRST, envs=0), FIRST).statuses(0.0)
    assert (status.url, status.node, status.pid) == ("http://here:1", "here", 7)
    assert (status.envs, status.max_envs, status.sessions) == (2, 8, 1)


def test_a_server_that_is_started_anew_has_a_new_url_and_epoch():
    made = roster(FIRST, SECOND, AGAIN)
    assert made.addresses()["server-1"] == ServerAddress("http://here:2")
    assert states(made) == [("server-0", "running", 1), ("server-1", "running", 2)]


def test_a_late_report_of_a_life_before_is_dropped():
    assert roster(SECOND, AGAIN, SECOND).addresses() == {"server-1": ServerAddress("http://here:2")}


def test_a_server_that_is_silent_for_some_seconds_is_lost():
    made = roster(FIRST)
    assert states(made, now=2 * REPORT_S) == [("server-0", "running", 1)]
    assert states(made, now=9 * REPORT_S) == [("server-0", "lost", 1)]
    assert made.addresses()  # where it was last is where it may be again


def test_a_server_that_is_being_started():
    made = roster(FIRST)
    made.expect([1])
    assert states(made) == [("server-0", "running", 1), ("server-1", "starting", 0)]
    assert made.numbers() == made.known() == [0, 1]


def test_a_server_that_is_draining_is_still_known():
    made = roster(FIRST, replace(SECOND, draining=True))
    assert made.addresses()["server-1"] == ServerAddress("http://there:1", draining=True)
    assert states(made)[1] == ("server-1", "draining", 1)
    assert (made.numbers(), made.known()) == ([0], [0, 1])


def test_a_server_that_was_removed_stays_so():
    made = roster(FIRST, SECOND)
    made.remove(1)
    made.take(SECOND, 1.0)
    assert (made.known(), list(made.addresses())) == ([0], ["server-0"])
    made.take(AGAIN, 2.0)  # a new one of that number
    assert states(made, 2.0)[1] == ("server-1", "running", 1)
    made.remove(5)


def test_a_fleet_is_healthy_if_all_its_servers_run():
    made = roster(FIRST, SECOND)
    assert FleetStatus("f", "Env", made.statuses(0.0)).healthy
    assert not FleetStatus("f", "Env", made.statuses(60.0)).healthy
