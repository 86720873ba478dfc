"""What notebooks show."""

from openenv_gym.display import table


def test_everything_is_escaped():
    html = table("a<b", {"<i>": "&", "n": 3})
    assert "<caption>a&lt;b</caption>" in html
    assert "&lt;i&gt;" in html
    assert ">&amp;</td>" in html
    assert "<i>" not in html


def test_long_values_are_cut():
    assert len(table("t", {"space": "x" * 10_000})) < 600
