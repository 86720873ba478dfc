"""How the batch dialect writes infos and values, and reads actions."""

import numpy as np
import pytest
from helpers_envs import Count

from openenv_gym.codec import PackError, unpack
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import Array
from openenv_gym.server.encoding import BatchEncoding


def encoding(info_keys=None):
    return BatchEncoding(Count.observation_space, Count.action_space, info_keys)


def test_observations():
    writer = encoding().writer(3)
    for position in (2, 0):
        writer.write(position, np.array([position]))
    assert writer.batch(3)[0].numpy().tolist() == [[0.0], [0.0], [2.0]]
    assert writer.batch([2])[0].numpy().tolist() == [[2.0]]


def test_infos():
    info = {"a": (1, np.float32(2)), "b": 3}
    assert unpack(encoding().info(info, None)) == info
    assert encoding(frozenset({"b", "c"})).info(info, None) == {"b": 3}
    assert encoding(frozenset()).info(info, None) == {}


def test_what_is_not_sent_need_not_be_plain():
    assert encoding(frozenset({"b"})).info({"a": object(), "b": 3}, None) == {"b": 3}
    with pytest.raises(PackError, match=r"info\['a'\]"):
        encoding().info({"a": object()}, None)


def test_values():
    assert unpack(encoding().value((1, 2))) == (1, 2)
    with pytest.raises(PackError, match="result"):
        encoding().value(object())


def test_actions():
    assert list(encoding().actions([Array.of(np.array([3, 4]))], 2)) == [3, 4]
    with pytest.raises(RemoteProtocolError):
        encoding().actions([Array.of(np.array([3, 4]))], 3)
