"""PNG files, read back by another library."""

import io

import numpy as np
import pytest
from PIL import Image

from openenv_gym.server.images import png


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (40, 60, 3), (7, 5), (1, 9)])
def test_another_reader_sees_the_same(shape):
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = Image.open(io.BytesIO(png(frame)))
    image.verify()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(frame)))), frame)


def test_a_view_that_is_not_contiguous():
    frame = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)[::-1, ::-1]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(frame)))), frame)


@pytest.mark.parametrize(
    "odd", [np.zeros((2, 2, 3)), np.zeros((2, 2, 4), np.uint8), np.zeros((0, 2, 3), np.uint8), None, "text", [1], 3]
)
def test_what_is_no_frame(odd):
    assert png(odd) is None
