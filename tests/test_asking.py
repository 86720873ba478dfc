"""openenv_gym.asking: each link is asked for its own rows, and what can't be sent says which argument it was."""

import pytest

from openenv_gym.asking import calling, getting, rendering, setting
from openenv_gym.codec import PackError
from openenv_gym.messages import Call, Get, Render, Set


def test_requests_name_the_slots():
    assert calling("add", (1, "a"), {"b": None})([0, 2], [4, 6]) == Call(0, [0, 2], "add", [1, "a"], {"b": None})
    assert getting("t")(None, [0]) == Get(0, None, "t")
    assert rendering()([1], [3]) == Render(0, [1])


def test_values_go_to_their_rows():
    ask = setting("t", [10, 11, 12, 13], force=False)
    assert ask([0, 1], [2, 3]) == Set(0, [0, 1], "t", [12, 13], False)
    assert ask(None, [0]) == Set(0, None, "t", [10], False)


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: calling("add", (1, object()), {}), r"args\[1\]"),
        (lambda: calling("add", (), {"b": object()}), "b"),
        (lambda: setting("t", [1, object()]), "t"),
    ],
)
def test_what_can_not_be_sent_is_named_at_once(make, name):
    with pytest.raises(PackError, match=f"^{name}: a value of type builtins.object can't be sent"):
        make()
