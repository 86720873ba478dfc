"""A zoo of Gymnasium spaces, a strategy for random ones, and a strict comparison of values.

`NAMED` maps a name to a space, `ZOO` is the list of the spaces, `every_space` parametrizes a test over them. The spaces
are shared by all tests: seed one before sampling from it, and don't change it.
"""

import re
import warnings

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from hypothesis import strategies as st

from openenv_gym.codec import pack
from openenv_gym.messages import Array, Values
from openenv_gym.spaces import Json

INF = np.inf
GYMNASIUM = tuple(int(part) for part in gym.__version__.split(".")[:2])
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def nested(depth):
    """Dicts and Tuples in turn, `depth` of them around a Box."""
    if depth == 0:
        return Box(-1, 1, (2,))
    inner = nested(depth - 1)
    return Dict([("z", inner), ("a", Discrete(depth + 1))]) if depth % 2 else Tuple([Discrete(2), inner])


def whole(dtype):
    """A Box that has all the values of an integer dtype."""
    info = np.iinfo(dtype)
    return Box(info.min, info.max, (2,), dtype)


NAMED = {
    "box": Box(-1.0, 1.0, (3,), np.float32),
    "box scalar": Box(0.1, 0.3, (), np.float32),
    "box without elements": Box(0, 1, (0, 3), np.float32),
    "box unbounded": Box(-INF, INF, (2, 2), np.float64),
    "box half bounded": Box(np.array([-INF, 0.1, -INF, 5.0]), np.array([0.3, INF, INF, 6.0]), dtype=np.float64),
    "box each bound": Box(
        np.array([[-1.1, 0], [1 / 3, 2]], "f4"), np.array([[1, 2.2], [3, 4]], "f4"), dtype=np.float32
    ),
    "box wide floats": Box(-1.7976931348623157e308, 5e-324, (1,), np.float64),
    "box image": Box(0, 255, (4, 5, 3), np.uint8),
    "box bool": Box(np.array([False, False, True]), np.array([True, False, True]), dtype=np.bool_),
    "box open int": Box(-INF, INF, (3,), np.int64),
    "box half open int": Box(np.array([-INF, -7.0]), np.array([9.0, INF]), dtype=np.int32),
    "box exact int64": Box(np.array([-(2**63), 2**53 + 1]), np.array([0, 2**63 - 2]), dtype=np.int64),
    "box point": Box(2, 2, (2,), np.int16),
    **{f"box {dtype}": whole(dtype) for dtype in INTEGERS if dtype != "uint64"},
    **{f"box {dtype}": Box(-0.3, 0.7, (2,), np.dtype(dtype).type) for dtype in FLOATS},
    "discrete": Discrete(3),
    "discrete start": Discrete(5, start=-3),
    "discrete huge": Discrete(2**62, start=-(2**61)),
    "multi discrete": MultiDiscrete([3, 2, 5]),
    "multi discrete grid": MultiDiscrete([[1, 2], [3, 4]], start=[[-1, 0], [7, -9]]),
    "multi discrete uint8": MultiDiscrete([255, 3], dtype=np.uint8),
    "multi binary": MultiBinary(4),
    "multi binary grid": MultiBinary((2, 3)),
    "text": Text(5),
    "text charset": Text(3, min_length=0, charset="zäa€𝄞"),
    "dict": Dict({"b": Discrete(2), "a": Box(0, 1, (2,))}),
    "dict ordered": Dict([("b", Discrete(2)), ("a", Box(0, 1, (2,))), ("c.d", MultiBinary(2))]),
    "dict empty": Dict({}),
    "tuple": Tuple([Discrete(2), Box(0, 1, (2,)), Tuple([MultiBinary(1)])]),
    "tuple empty": Tuple([]),
    "nested": nested(5),
    "robot": Dict(
        [
            ("robot", Dict([("joints", Box(-INF, INF, (7,))), ("camera", Box(0, 255, (2, 2, 3), np.uint8))])),
            ("goal", Tuple([Box(-1, 1, (2,)), Discrete(3)])),
            ("note", Text(4)),
        ]
    ),
    "sequence": Sequence(Box(0, 1, (2,))),
    "sequence stacked": Sequence(Dict([("y", Discrete(3)), ("x", Box(0, 1, (2,)))]), stack=True),
    "graph": Graph(Box(-1, 1, (2,)), Discrete(3)),
    "graph without edges": Graph(Discrete(4), None),
    "one of": OneOf([Discrete(2), Box(0, 1, (2,)), Text(2)]),
    "json": Json(),
    "json inside": Dict([("more", Json()), ("a", Tuple([Discrete(2), Json()]))]),
}
if hasattr(Discrete(1), "dtype") and GYMNASIUM >= (1, 2):
    NAMED["discrete uint8"] = Discrete(200, start=56, dtype=np.uint8)
    NAMED["discrete uint64"] = Discrete(2**64 - 1, dtype=np.uint64)
if GYMNASIUM >= (1, 4):
    NAMED["dict unsorted"] = Dict({"b": Discrete(2), "a": Box(0, 1, (2,))}, sort_keys=False)
    NAMED["graph of dicts"] = Graph(Dict({"n": Discrete(2), "t": Text(2)}), Tuple([Box(0, 1, (1,)), Discrete(2)]))

ZOO = list(NAMED.values())
every_space = pytest.mark.parametrize("space", ZOO, ids=list(NAMED))


# ------------------------------------------------------------------------------------------- random spaces


def shapes(least=0):
    return st.lists(st.integers(least, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw):
    dtype = np.dtype(draw(st.sampled_from(["bool", *INTEGERS, *FLOATS])))
    shape = draw(shapes())
    if dtype.kind == "b":
        numbers = st.booleans()
    elif dtype.kind == "f":
        largest = float(np.finfo(dtype).max) / 4  # gymnasium can't sample from much more floats ...
        numbers = st.floats(-largest, largest, width=dtype.itemsize * 8)
    else:
        info = np.iinfo(dtype)
        numbers = st.integers(int(info.min) // 4, int(info.max) // 4)  # ... or integers
    size = int(np.prod(shape))

    def array(elements):
        return np.array(draw(st.lists(elements, min_size=size, max_size=size)), dtype).reshape(shape)

    low, high = np.sort([array(numbers), array(numbers)], axis=0)
    if dtype.kind == "f" and draw(st.booleans()):
        low = np.where(array(st.booleans()), low, -INF)
    return Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype.type)


discretes = st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 2**62), st.integers(-(2**62), 2**61))
multi_discretes = st.builds(
    lambda shape, n, start: MultiDiscrete(np.full(shape, n), start=np.full(shape, start)),
    shapes(),
    st.integers(1, 100),
    st.integers(-9, 9),
)
texts = st.builds(
    lambda shortest, more, charset: Text(shortest + more, min_length=shortest, charset=charset),
    st.integers(0, 3),
    st.integers(1, 3),
    st.text(min_size=1, max_size=5),
)
arrays = boxes() | discretes | multi_discretes | shapes(1).map(MultiBinary) | st.integers(1, 5).map(MultiBinary)


def containers(parts):
    keys = st.text(max_size=4)
    flat = Box(-1, 1, (2,)), Discrete(3), Dict([("b", Discrete(2)), ("a", MultiBinary(2))]), Tuple([Discrete(2)])
    return (
        st.lists(st.tuples(keys, parts), max_size=3, unique_by=lambda pair: pair[0]).map(Dict)
        | st.lists(parts, max_size=3).map(Tuple)
        | st.lists(parts, min_size=1, max_size=3).map(OneOf)
        | parts.map(Sequence)
        | st.sampled_from(flat).map(lambda part: Sequence(part, stack=True))
        | st.sampled_from(flat[:2]).map(lambda part: Graph(part, part))
    )


spaces = st.recursive(arrays | texts, containers, max_leaves=5)
"""Random spaces of all kinds, nested."""


def short(value, length=40):
    """A parameter's id: what it is, without line breaks, and addresses and sets, which differ between processes."""
    if isinstance(value, (set, frozenset)) and len(value) > 1:
        return f"a {type(value).__name__} of {len(value)}"
    return re.sub(r" at 0x\w+", "", re.sub(r"\s+", " ", str(value)))[:length]


# --------------------------------------------------------------------------------------------- comparison


def identical(a, b):
    """Whether two values have the same types, dtypes, shapes, key order and numbers; nan is nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, np.ndarray) and a.dtype.kind == "O":
        return a.dtype == b.dtype and identical(a.tolist(), b.tolist())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return a == b or (a != a and b != b)  # nan


def samples(space, count=4, seed=7):
    """Values of a space, the same each time."""
    space.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium overflows in samples of the largest integers
        return [space.sample() for _ in range(count)]


def arrays_in(value):
    """All arrays inside a nested value."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in arrays_in(part)]
    return [value] if isinstance(value, np.ndarray) else []


def share_memory(a, b):
    """Whether any array inside the one overlaps with one inside the other."""
    return any(np.shares_memory(x, y) for x in arrays_in(a) for y in arrays_in(b))


# ------------------------------------------------------------------------------------------- a bad peer's batches

_UNIT, _GRAPH, _ONE_OF = Box(0, 1, (2,)), NAMED["graph"], OneOf([NAMED["graph"], Discrete(2)])
MALFORMED_LEAVES = {
    "bytes that don't fit": (_UNIT, [Array("<f4", (1, 2), memoryview(b"\0" * 7))]),
    "negative size": (_UNIT, [Array("<f4", (-1, 2), memoryview(b""))]),
    "unknown dtype": (_UNIT, [Array("|O8", (1, 2), memoryview(b"\0" * 16))]),
    "unknown extension": (Text(3), [Values([msgspec.msgpack.Ext(99, b"")])]),
    "graph of nothing": (_GRAPH, [Values([None])]),
    "graph of a string": (_GRAPH, [Values(["abc"])]),
    "graph, too short": (_GRAPH, [Values([pack((1, 2))])]),
    "graph, too long": (_GRAPH, [Values([pack((1, 2, 3, 4))])]),
    "graph of a list": (_GRAPH, [Values([[1, 2, 3]])]),
    "one of none": (_ONE_OF, [Values([None])]),
    "one of nothing": (_ONE_OF, [Values([pack(())])]),
    "one of too many": (_ONE_OF, [Values([pack((2, 0))])]),
    "one of no number": (_ONE_OF, [Values([pack(("a", 0))])]),
    "one of a dict": (_ONE_OF, [Values([{}])]),
    "one of a broken graph": (_ONE_OF, [Values([pack((0, 5))])]),
}
"""Spaces, and batches of one env that are no values of theirs, as actions or as observations."""
