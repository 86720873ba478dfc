"""Steps under way over links that a test answers by hand: what is sent when, and what lands."""

from types import SimpleNamespace

import numpy as np
import pytest

from openenv_gym.errors import MessageTooLarge, RemoteProtocolError, SessionLost
from openenv_gym.flights import Flights
from openenv_gym.messages import (
    WINDOW,
    Array,
    Collect,
    Collected,
    EnvFailure,
    Launch,
    Launched,
    Observed,
    Reset,
    Step,
    Stepped,
)

LOST = SessionLost("ws://there", "gone")


class Link:
    """A link that notes what it is sent."""

    def __init__(self, slots):
        self.slots, self.url = slots, "ws://there"
        self.loss = None
        self.sent, self.abandoned = [], 0

    def start(self, request, deliver):
        self.sent.append((request, deliver))

    def abandon(self):
        self.abandoned += 1

    def answer(self, reply):
        """Answer the oldest request."""
        _, deliver = self.sent.pop(0)
        deliver(reply)

    def asked(self):
        return [type(request) for request, _ in self.sent]

    def at_least(self):
        return [request.at_least for request, _ in self.sent if isinstance(request, Collect)]


class Links:
    """A pool whose loop is the test's thread, and the flights over it."""

    def __init__(self, *slots):
        self.links = [Link(count) for count in slots]
        self.flights = Flights(SimpleNamespace(links=self.links, call_soon=lambda callback, *args: callback(*args)))

    def launch(self, link, *slots):
        self.flights.send([(link, list(slots), Launch(0, list(slots), [], "NextStep"))])

    def wait(self, count):
        """Whether somebody who waits for so many would go on now."""
        return self.flights.wait(count, 0)

    def landed(self):
        return [(landing.link, landing.slots) for landing in self.flights.take()]


def stepped(count, failures=()):
    zeros = Array.of(np.zeros(count))
    return Stepped(0, [], zeros, zeros, zeros, {}, None, list(failures))


def collected(*slots, failures=()):
    return Collected(0, list(slots), stepped(len(slots), failures))


def test_one_env_on_a_link_is_just_stepped():
    pool = Links(1, 1)
    pool.flights.send([(i, [0], Step(0, None, [], None)) for i in range(2)])
    assert not pool.wait(1)
    assert [link.asked() for link in pool.links] == [[Step], [Step]]
    pool.links[1].answer(stepped(1))
    assert pool.wait(1)
    assert pool.landed() == [(1, [0])]
    assert pool.landed() == []


def test_a_link_is_asked_for_what_the_others_can_not_bring():
    pool = Links(8, 4)
    pool.launch(0, 0, 1, 2, 3, 4, 5)
    pool.launch(1, 0, 2)
    assert not pool.wait(7)
    assert [link.at_least() for link in pool.links] == [[5], [1]]
    for link in pool.links:
        link.answer(Launched(0))
    pool.links[1].answer(collected(0, 2))
    assert (pool.links[0].at_least(), pool.links[1].asked()) == ([5], [])
    assert not pool.wait(7)
    pool.links[0].answer(collected(0, 1, 2, 4, 5))
    assert pool.wait(7)
    assert pool.landed() == [(1, [0, 2]), (0, [0, 1, 2, 4, 5])]


def test_nothing_is_asked_for_while_nobody_waits():
    pool = Links(4)
    pool.launch(0, 0, 1, 2)
    pool.links[0].answer(Launched(0))
    assert pool.links[0].asked() == []
    assert not pool.wait(1)
    pool.links[0].answer(collected(2))
    assert pool.links[0].asked() == []
    assert pool.wait(1)


def test_what_comes_short_is_asked_for_again():
    pool = Links(4)
    pool.launch(0, 0, 1, 2)
    assert not pool.wait(3)
    pool.launch(0, 3)  # so the server answers the question before it has three
    pool.links[0].answer(Launched(0))
    pool.links[0].answer(collected(1))
    assert pool.links[0].asked() == [Launch, Collect]
    pool.links[0].answer(Launched(0))
    pool.links[0].answer(collected())
    assert pool.links[0].at_least() == [2]


def test_who_waits_for_fewer_does_not_wait_for_an_older_question():
    pool = Links(4)
    pool.launch(0, 0, 1, 2, 3)
    for count, questions in ((4, [4]), (2, [4, 2]), (3, [4, 2]), (1, [4, 2])):
        assert not pool.wait(count)
        assert pool.links[0].at_least() == questions
    pool.links[0].answer(Launched(0))
    pool.links[0].answer(collected())  # as it was hurried
    assert pool.links[0].at_least() == [2, 1]


def test_a_link_is_never_sent_more_than_its_window():
    pool = Links(20)
    for slot in range(20):
        pool.launch(0, slot)
    assert not pool.wait(20)
    link, landed = pool.links[0], 0
    while link.sent:
        assert len(link.sent) <= WINDOW - 2
        if isinstance(link.sent[0][0], Launch):
            link.answer(Launched(0))
            assert Collect not in link.asked() or link.asked()[-1] is Collect
        else:
            link.answer(collected(*range(20)))
            landed += 1
    assert landed == 1
    assert pool.wait(20)


def test_errors_wake_who_waits():
    pool = Links(2, 2)
    pool.launch(0, 0, 1)
    pool.launch(1, 0, 1)
    error = RemoteProtocolError("what")
    assert not pool.wait(4)
    pool.links[0].answer(error)  # in the place of an acknowledgement: these steps weren't begun
    assert pool.flights.take() == [(0, [0, 1], error)]
    assert not pool.wait(2)
    pool.links[1].answer(Launched(0))
    pool.links[1].answer(collected(1, failures=[EnvFailure(0, "EXECUTION_ERROR", "ValueError", "oops")]))
    assert pool.wait(2)
    assert pool.landed() == [(1, [1, 0])]


def test_a_link_that_can_not_send():
    pool = Links(1)

    def start(request, deliver):
        raise OverflowError("too large a seed")

    pool.links[0].start = start
    pool.flights.send([(0, [0], Reset(0, [0], [2**99], None))])
    ((_, _, error),) = pool.flights.take()
    assert isinstance(error, OverflowError)


def test_a_lost_session_ends_all_of_its_steps_once():
    pool = Links(4)
    pool.launch(0, 0)
    pool.links[0].answer(Launched(0))
    pool.launch(0, 1, 2)
    assert not pool.wait(3)
    pool.links[0].answer(LOST)
    pool.links[0].answer(LOST)
    assert pool.flights.take() == [(0, [0, 1, 2], LOST)]
    assert pool.flights.take() == []


def test_a_reply_that_can_not_be_sent_ends_all_of_its_steps():
    pool = Links(2)
    pool.launch(0, 0, 1)
    pool.links[0].answer(Launched(0))
    assert not pool.wait(1)
    error = MessageTooLarge(9, 8, "max_message_size_mb")
    pool.links[0].answer(error)
    assert pool.flights.take() == [(0, [0, 1], error)]


@pytest.mark.parametrize("noticed", ["at the next launch", "by the answer"])
def test_steps_of_a_session_that_was_lost_unnoticed(noticed):
    pool = Links(4)
    pool.launch(0, 0)
    pool.links[0].answer(Launched(0))
    if noticed == "by the answer":
        assert not pool.wait(1)
    pool.links[0].loss = LOST  # and a reset, say, has opened a new one
    if noticed == "at the next launch":
        pool.launch(0, 1)
    else:
        pool.links[0].answer(collected())
    assert pool.flights.take() == [(0, [0], LOST)]


def test_what_was_given_up_never_lands():
    pool = Links(2, 2)
    pool.launch(0, 0, 1)
    assert not pool.wait(1)
    pool.flights.give_up()
    assert [link.abandoned for link in pool.links] == [1, 0]
    pool.links[0].answer(Launched(0))
    pool.links[0].answer(collected(0, 1))
    assert pool.links[0].asked() == []
    assert pool.landed() == []


def test_resets_land_as_they_are():
    pool = Links(4)
    pool.flights.send([(0, [1], Reset(0, [1], None, None))])
    reply = Observed(0, [], {}, [])
    pool.links[0].answer(reply)
    assert pool.flights.take() == [(0, [1], reply)]
