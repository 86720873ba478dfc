"""Which servers that are away are told of, and in which words."""

import re
import time

import pytest

from openenv_gym.outage import QUIET_S, Outage, reports

A, B = "ws://a/ws", "ws://b/ws"


def away(url=A, seconds=QUIET_S + 1, **more):
    return Outage(url, 30.0, "connection refused", since=time.monotonic() - seconds, **more)


def test_a_short_outage_is_not_worth_a_word(monkeypatch):
    monkeypatch.setattr("openenv_gym.outage.QUIET_S", 3600)
    assert reports([away(seconds=1800)]) == []
    assert reports([]) == []


@pytest.mark.parametrize("anew, what", [(False, "reconnecting"), (True, "waiting for a new session")])
def test_what_is_told(anew, what):
    (text,) = reports([away(anew=anew)])
    words = rf"ws://a/ws can't be used now \(connection refused\): {what} for up to 30 second\(s\) since \d\d:\d\d:\d\d"
    assert re.fullmatch(words, text)


def test_each_outage_is_told_once():
    one = [away(A), away(A, QUIET_S + 2), away(B)]
    assert [text.split()[0] for text in reports(one)] == [A, B]
    assert reports(one) == []
    assert reports([*one, away(A)]) == []  # another connection to the same server
    assert len(reports([away(A)])) == 1  # another time


def test_a_wait_for_a_new_session_is_another_one():
    resuming = away()
    assert len(reports([resuming])) == 1
    assert len(reports([resuming, away(anew=True)])) == 1


def test_the_time_is_that_of_the_beginning():
    before = time.time()
    (text,) = reports([away(seconds=3600)])
    shown = [time.strftime("%H:%M:%S", time.localtime(before - 3600 + late)) for late in range(5)]
    assert text[-8:] in shown
