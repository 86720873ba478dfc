"""Rows of a reply, written by several threads, some of which may never come back."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text

from openenv_gym import codec
from openenv_gym.codec import PackError, unpack
from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.server.page import Page
from openenv_gym.server.slot import Slot

SPACE = Box(-9, 9, (1,), np.float64)


def make_page(count=3, *, space=SPACE, debug=False):
    return Page([Slot(None) for _ in range(count)], BatchEncoding(space, Discrete(2)), debug=debug)


def one(reply):
    """The only leaf of a reply's observations."""
    return reply.observations[0].numpy().ravel().tolist()


class TestRows:
    def test_observed(self):
        page = make_page()
        for position in (2, 0, 1):
            page.write(position, np.array([position]), {"k": position} if position else {})
        reply = page.observed(7, 3)
        assert (reply.id, one(reply), reply.unseeded, reply.failures) == (7, [0.0, 1.0, 2.0], False, [])
        assert reply.infos == {1: {"k": 1}, 2: {"k": 2}}

    def test_stepped(self):
        page = make_page()
        for position in (1, 0):
            page.write(position, np.array([position]), {})
            page.rewards[position], page.terminated[position], page.truncated[position] = position, position, True
        page.write_final(1, np.array([5.0]), {"last": 1})
        reply = page.stepped(7, 2)
        columns = [array.numpy().tolist() for array in (reply.rewards, reply.terminated, reply.truncated)]
        assert columns == [[0.0, 1.0], [False, True], [True, True]]
        assert (reply.final.positions, one(reply.final), reply.final.infos) == ([1], [5.0], [{"last": 1}])

    def test_no_final_rows(self):
        assert make_page().stepped(1, 3).final is None

    def test_final_rows_are_in_order(self):
        page = make_page()
        for position in (2, 0):
            page.write_final(position, np.array([position]), {"n": position})
        final = page.stepped(1, 3).final
        assert (final.positions, one(final), final.infos) == ([0, 2], [0.0, 2.0], [{"n": 0}, {"n": 2}])

    def test_returned(self):
        page = make_page()
        page.write_value(1, (1, 2))
        reply = page.returned(7, 2)
        assert (reply.values[0], unpack(reply.values[1])) == (None, (1, 2))

    def test_clear(self):
        page = make_page()
        page.write(0, np.array([1.0]), {"k": 1})
        page.write_final(0, np.array([1.0]), {"k": 1})
        page.write_value(0, 3)
        page.fail(1, 1, ValueError("oops"))
        page.unseeded = True
        page.clear()
        reply = page.observed(1, 3)
        assert (reply.infos, reply.failures, reply.unseeded) == ({}, [], False)
        assert page.stepped(1, 3).final is None
        assert page.returned(1, 1).values == [None]


class TestFailures:
    @pytest.mark.parametrize(
        "error, code",
        [
            (ValueError("oops"), "EXECUTION_ERROR"),
            (SystemExit("oops"), "EXECUTION_ERROR"),
            (SpaceError("oops"), "SERIALIZATION_ERROR"),
            (PackError("oops"), "SERIALIZATION_ERROR"),
            (FactoryError("Env", "oops"), "FACTORY_ERROR"),
        ],
    )
    def test_codes(self, error, code):
        page = make_page()
        page.fail(0, 4, error)
        (failure,) = page.observed(1, 1).failures
        assert (failure.slot, failure.code, failure.type, failure.traceback) == (4, code, type(error).__name__, None)
        assert "oops" in failure.message

    def test_they_are_in_order(self):
        page = make_page()
        for slot in (2, 0, 1):
            page.fail(slot, slot, ValueError())
        assert [failure.slot for failure in page.stepped(1, 3).failures] == [0, 1, 2]

    def test_a_row_that_failed_holds_no_data(self):
        page = make_page()
        page.write_final(0, np.array([1.0]), {"k": 1})
        page.write(0, np.array([1.0]), {"k": 1})
        page.write_value(0, 1)
        page.fail(0, 0, ValueError())
        reply = page.stepped(1, 1)
        assert (reply.infos, reply.final) == ({}, None)
        assert page.returned(1, 1).values == [None]

    def test_tracebacks_for_developers_only(self):
        page = make_page(debug=True)
        try:
            raise ValueError("oops")
        except ValueError as error:
            page.fail(0, 0, error)
        (failure,) = page.observed(1, 1).failures
        assert "test_page.py" in failure.traceback
        assert failure.traceback.endswith("ValueError: oops\n")

    @pytest.mark.parametrize("debug", [True, False])
    def test_a_text_that_is_no_text(self, debug):
        """Names of files come with lone surrogates where they aren't UTF-8."""
        page = make_page(debug=debug)
        page.fail(0, 0, FileNotFoundError("\udcff.rom"))
        reply = page.observed(1, 1)
        assert codec.decode_reply(codec.encode(reply)).failures[0].message == "?.rom"

    def test_a_text_that_can_not_be_made(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        page = make_page()
        page.fail(0, 0, Mute())
        (failure,) = page.observed(1, 1).failures
        assert (failure.type, failure.message) == ("Mute", "(this exception's text can't be made)")


class TestWithout:
    def test_rows_of_stuck_envs_are_failures(self):
        page = make_page()
        for position in range(3):
            page.write(position, np.array([position]), {"k": position})
            page.write_final(position, np.array([position]), {"k": position})
            page.write_value(position, position)
        page.fail(0, 5, ValueError("oops"))
        left = page.without([(1, 4)], "step", 2.0)
        reply = left.stepped(1, 3)
        assert list(reply.infos) == [2]
        assert reply.final.positions == [2]
        assert left.returned(1, 3).values == [None, None, 2]
        late, own = reply.failures
        assert (late.slot, late.code, late.type) == (4, "STEP_TIMEOUT", "TimeoutError")
        assert "env 4 didn't return from 'step' within 2 second(s)" in late.message
        assert own.slot == 5

    def test_an_error_that_comes_in_the_same_moment_is_dropped(self):
        page = make_page()
        page.fail(1, 4, ValueError("late"))
        (failure,) = page.without([(1, 4)], "step", 2.0).observed(1, 3).failures
        assert failure.code == "STEP_TIMEOUT"

    def test_what_is_written_later_stays_outside(self):
        page = make_page()
        left = page.without([(1, 1)], "step", 2.0)
        page.write(1, np.array([5.0]), {"late": 1})
        page.write_final(1, np.array([5.0]), {"late": 1})
        page.write_value(1, 5)
        page.fail(1, 1, ValueError("late"))
        reply = left.stepped(1, 3)
        assert (reply.infos, reply.final, left.returned(1, 3).values) == ({}, None, [None] * 3)
        assert [failure.code for failure in reply.failures] == ["STEP_TIMEOUT"]

    def test_while_others_write(self):
        """Going through what a thread that was given up still changes would fail now and then."""

        class Changing(dict):
            items = values = None

        page = make_page()
        page.values = Changing({0: 5, 1: 6})
        assert page.without([(1, 1)], "step", 1.0).returned(1, 2).values == [5, None]


def test_observations_without_a_fixed_shape():
    page = make_page(space=Text(5))
    page.write(1, "yo", {})
    page.write(0, "hi", {})
    assert page.observed(1, 2).observations[0].items == ["hi", "yo"]
