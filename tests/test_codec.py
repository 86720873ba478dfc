"""openenv_gym.codec: data arrives exactly as it was, and no frame of a stranger does more than raise one error."""

import collections
import contextlib
import enum
import struct
import time
import tracemalloc
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from helpers_spaces import short
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openenv_gym import codec
from openenv_gym.codec import (
    MAX_DEPTH,
    PackError,
    decode_answer,
    decode_opening,
    decode_reply,
    decode_request,
    encode,
    pack,
    unpack,
)
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import (
    Array,
    Call,
    Close,
    Closed,
    Collect,
    Collected,
    EnvFailure,
    Failed,
    Get,
    Hello,
    Launch,
    Launched,
    Observed,
    Reset,
    Resume,
    Resumed,
    Returned,
    Set,
    Since,
    Step,
    Stepped,
    Timings,
    Values,
    Welcome,
)

Ext = msgspec.msgpack.Ext
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
INT_MIN, INT_MAX = -(2**63), 2**64 - 1


class Colour(enum.Enum):
    RED = "red"


class Speed(enum.IntEnum):
    FAST = 3


class Mood(str, enum.Enum):
    GLAD = "glad"


class Loud(str):
    """A string that lies about itself."""

    __slots__ = ()

    def __str__(self):
        return self.upper()


class Number(int):
    pass


class Point(NamedTuple):
    x: int
    y: list


def travelled(value):
    """The value after a journey inside a message."""
    return unpack(decode_reply(encode(Returned(1, [pack(value)], []))).values[0])


def label(value):
    """A hashable value as a text that doesn't depend on the order in sets, and in which nan is nan."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value)}[{' '.join(sorted(map(label, value)))}]"
    if isinstance(value, tuple):
        return f"tuple[{' '.join(map(label, value))}]"
    return f"{type(value)}{value!r}"


def same(a, b):
    """Whether two values are equal in types, dtypes, shapes, key order and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return label(a) == label(b)
    if isinstance(a, np.ndarray) and a.dtype == object:
        return a.shape == b.shape and same(list(a.flat), list(b.flat))
    if isinstance(a, (np.ndarray, np.generic)) and not isinstance(a, (str, bytes)):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="<")
    | hnp.unsigned_integer_dtypes(endianness="<")
    | hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="<", sizes=(64, 128))
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = st.tuples(dtypes, shapes).flatmap(lambda pair: hnp.arrays(*pair))
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()])
atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(INT_MIN - 2, INT_MAX + 2)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
keys = st.text(max_size=3) | st.integers(INT_MIN, INT_MAX) | st.floats(allow_nan=False) | st.binary(max_size=3)
hashables = st.recursive(
    atoms | scalars,
    lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3),
    max_leaves=4,
)


def as_object_array(items, shape=(-1,)):
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array.reshape(shape)


def containers(parts):
    lists = st.lists(parts, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | st.dictionaries(keys, parts, max_size=3)
        | st.sets(hashables, max_size=3)
        | st.builds(as_object_array, lists, st.sampled_from([(-1,), (-1, 1), (1, -1)]))
    )


data = st.recursive(atoms | scalars | arrays | hashables, containers, max_leaves=8)


class TestRoundTrip:
    @given(data)
    @QUICK
    @example({1: "a", "1": b"a", False: 0, 1.5: {}, None: [], b"": ()})
    def test_gives_the_same_data(self, value):
        assert same(travelled(value), value)

    @pytest.mark.parametrize(
        "value",
        [
            *(sign * 2**power + offset for power in (31, 63, 64, 200) for sign in (1, -1) for offset in (-1, 0, 1)),
            float("nan"),
            -0.0,
            float("-inf"),
            "zäa€𝄞\0",
            np.str_("a\0"),
            np.bytes_(b"a\0"),
            np.str_(""),
            np.bool_(True),
            np.float16(1.5),
            np.int64(-1),
            np.complex64(1j),
            np.datetime64("NaT"),
            np.datetime64("2024-02-29T12:00", "25s"),
            np.timedelta64(3, "D"),
            np.timedelta64(3),
            np.array(5),
            np.array("abc"),
            np.array([["a", "bcd"]]),
            np.array([b"a\0b", b""]),
            np.array(["a", "b"], ">U3"),
            np.zeros((0, 2), "U3"),
            np.array(["2024-01-01", "NaT"], "M8[us]"),
            np.array(None),
            as_object_array([np.array(5), [1, (2,)], {"a": np.zeros(2)}, None], (2, 2)),
            np.array([[None, "a"]], object).T,
            {"z": 1, "a": 2},
            {np.float32(0.1), "a", (1, frozenset({2}))},
        ],
        ids=short,
    )
    def test_of_what_others_get_wrong(self, value):
        assert same(travelled(value), value)

    @pytest.mark.parametrize(
        "value, arrives",
        [
            (Colour.RED, "red"),
            (Speed.FAST, 3),
            (Mood.GLAD, "glad"),
            (Loud("a"), "a"),
            (Number(2**70), 2**70),
            (Point(1, [2]), (1, [2])),
            (collections.OrderedDict(a=Speed.FAST), {"a": 3}),
            (collections.Counter("aab"), {"a": 2, "b": 1}),
            (bytearray(b"a"), b"a"),
            (memoryview(b"a"), b"a"),
            ({Speed.FAST: 1}, {3: 1}),
            ({Mood.GLAD: 1}, {"glad": 1}),
            ({Loud("a"): 1}, {"a": 1}),
            ({np.int8(1): 1, np.str_("a"): 2, np.float64(1.5): 3, np.bytes_(b"b"): 4}, {1: 1, "a": 2, 1.5: 3, b"b": 4}),
            ({np.bool_(True): 1}, {True: 1}),
            (np.array([1, 2], ">i4"), np.array([1, 2], "<i4")),
            (np.ndarray((2,), "U0"), np.array(["", ""])),
            (np.ndarray((2,), "S0"), np.array([b"", b""])),
        ],
        ids=short,
    )
    def test_subclasses_arrive_as_their_builtin_class(self, value, arrives):
        assert same(travelled(value), arrives)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_of_more_digits_than_python_writes(self, sign):
        assert travelled([sign * 10**5000]) == [sign * 10**5000]

    @given(arrays)
    @QUICK
    def test_arrays_arrive_writable_and_owned(self, array):
        packed = pack(array)
        copy = unpack(packed)
        assert copy.flags.writeable
        assert copy.flags.owndata or copy.base.flags.owndata
        assert not np.shares_memory(copy, np.frombuffer(packed.data, np.uint8))
        assert not np.shares_memory(copy, unpack(packed))

    def test_nothing_is_shared_with_the_original(self):
        original = {"list": [1], "array": np.zeros(2)}
        packed = pack(original)
        original["list"].append(2)
        original["array"][:] = 7
        assert same(unpack(packed), {"list": [1], "array": np.zeros(2)})


class TestPackError:
    @pytest.mark.parametrize(
        "value, text",
        [
            (object(), "info: a value of type builtins.object can't be sent"),
            (
                {"map": [0, 1, print]},
                "info['map'][2]: a value of type builtins.builtin_function_or_method can't be sent",
            ),
            (({3: {1j}},), "info[0][3][0]: a value of type builtins.complex can't be sent"),
            ([as_object_array([None, range(2)])], "info[0][1]: a value of type builtins.range can't be sent"),
            ({"a": np.zeros(2, "f4,f4")}, "info['a']: an array of dtype [('f0', '<f4'), ('f1', '<f4')] can't be sent"),
            ([np.zeros(1, "V2")[0]], "info[0]: an array of dtype |V2 can't be sent"),
            ([np.ma.array([1], mask=[True])], "info[0]: a masked array can't be sent"),
            ([np.ma.array([None, "a"], mask=[True, False])], "info[0]: a masked array can't be sent"),
            ({"a": {(1, 2): 0}}, "info['a']: a key of type tuple can't be sent"),
            ({"a": {Colour.RED: 0}}, "info['a']: a key of type Colour can't be sent"),
            ({"a": {np.float32(0.1): 0}}, "info['a']: a key of type float32 can't be sent"),
            ({"a": {2**64: 0}}, "info['a']: a key of more than 64 bits can't be sent"),
            (
                {"a": ["\ud800"]},
                "info['a'][0]: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
            ),
            (
                {"\ud800": 1},
                "info: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
            ),
            (
                [np.str_("\ud800")],
                "info[0]: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
            ),
        ],
        ids=short,
    )
    def test_names_the_place(self, value, text):
        with pytest.raises(PackError) as caught:
            pack(value, "info")
        assert str(caught.value) == text

    def test_is_a_type_error(self):
        assert issubclass(PackError, TypeError)

    def test_of_data_that_holds_itself(self):
        loop = []
        loop += [loop, loop]
        with pytest.raises(PackError, match=r"^value(\[0\]){65}: nested deeper than 64$"):
            pack(loop)

    @given(data)
    @QUICK
    def test_what_was_packed_can_be_encoded(self, value):
        encode(Values([pack(value)]))

    @pytest.mark.parametrize(
        "message, text",
        [
            (Reset(1, None, [2**64], None), "this Reset can't be sent: can't serialize ints < -2**63 or > 2**64 - 1"),
            (EnvFailure(0, "", "", "\ud800"), "this EnvFailure can't be sent: 'utf-8' codec can't encode"),
            (Values([object()]), "this Values can't be sent: Encoding objects of type object is unsupported"),
        ],
    )
    def test_of_a_message_that_was_not_packed(self, message, text):
        with pytest.raises(PackError) as caught:
            encode(message)
        assert str(caught.value).startswith(text)


class TestSince:
    def test_travels_as_the_seconds_since_then(self):
        then = time.perf_counter()
        sent = Timings(0.0, 0.0, 0.0, 0.0, Since(then))
        arrived = msgspec.msgpack.decode(encode(sent), type=Timings)
        assert 0 <= arrived.encode <= time.perf_counter() - then

    def test_is_the_last_thing_that_is_encoded(self):
        assert Stepped.__struct_fields__[-1] == "timings"
        assert Timings.__struct_fields__[-1] == "encode"


NESTERS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "set": lambda inner: frozenset([inner]),
    "object array": lambda inner: as_object_array([inner]),
}
INNERMOST = {"none": None, "scalar": np.float64(1.5), "text": np.str_("a"), "integer": 2**70}


def nested(nest, depth, innermost=None):
    for _ in range(depth):
        innermost = nest(innermost)
    return innermost


@pytest.mark.parametrize("nest", NESTERS.values(), ids=NESTERS)
class TestDepth:
    @pytest.mark.parametrize("innermost", INNERMOST.values(), ids=INNERMOST)
    def test_as_deep_as_can_be(self, nest, innermost):
        value = nested(nest, MAX_DEPTH, innermost)
        assert same(travelled(value), value)

    def test_deeper_is_not_packed(self, nest):
        with pytest.raises(PackError, match="nested deeper than 64"):
            pack(nested(nest, MAX_DEPTH + 2))

    def test_deeper_is_not_unpacked(self, nest, monkeypatch):
        monkeypatch.setattr(codec, "MAX_DEPTH", 1000)
        packed = pack(nested(nest, MAX_DEPTH + 2))
        monkeypatch.undo()
        with pytest.raises(RemoteProtocolError, match="malformed data: nested deeper than 64"):
            unpack(packed)


def ext(code, content):
    return Ext(code, msgspec.msgpack.encode(content))


FLOATS = (0, "<f4", [1], b"\0\0\0\0")
MALFORMED = {
    "unknown extension": ext(9, 1),
    "empty": Ext(codec.ARRAY, b""),
    "cut off": Ext(codec.ARRAY, msgspec.msgpack.encode(FLOATS)[:-1]),
    "array, no message": ext(codec.ARRAY, [1, 2, 3]),
    "array, another message": Ext(codec.ARRAY, encode(Close(1))),
    "array of objects": ext(codec.ARRAY, (0, "|O", [1], b"\0" * 8)),
    "array of too many": ext(codec.ARRAY, (0, "<f4", [2**40], b"\0\0\0\0")),
    "array of negative size": ext(codec.ARRAY, (0, "<f4", [-1], b"\0\0\0\0")),
    "array of floats for its shape": ext(codec.ARRAY, (0, "<f4", [1.5], b"\0\0\0\0")),
    "scalar of an array": ext(codec.SCALAR, ext(codec.ARRAY, FLOATS)),
    "scalar of a list": ext(codec.SCALAR, [1]),
    "scalar of a number": ext(codec.SCALAR, 1),
    "scalar of nothing": ext(codec.SCALAR, None),
    "scalar of a scalar": ext(codec.SCALAR, ext(codec.SCALAR, ext(codec.ARRAY, (0, "<f4", [], b"\0\0\0\0")))),
    "scalar of objects": ext(codec.SCALAR, ext(codec.OBJECTS, ([], [None]))),
    "scalar out of unicode": ext(codec.SCALAR, ext(codec.TEXT_ARRAY, ("<U1", [], b"\xff\xff\xff\xff"))),
    "tuple of a number": ext(codec.TUPLE, 1),
    "tuple of a dict": ext(codec.TUPLE, {}),
    "tuple, too long": Ext(codec.TUPLE, b"\xdd\xff\xff\xff\xff"),
    "tuple, too deep to read": Ext(codec.TUPLE, b"\x91" * 100_000),
    "dict with unhashable keys": Ext(codec.TUPLE, b"\x91\x81\x80\xc0"),
    "dict with extensions as keys": Ext(codec.TUPLE, b"\x91\x81\xd4\x01\x00\xc0"),
    "set of lists": ext(codec.SET, [[1]]),
    "set of dicts": ext(codec.FROZENSET, [{}]),
    "set of arrays": ext(codec.SET, [ext(codec.ARRAY, FLOATS)]),
    "objects, too few": ext(codec.OBJECTS, ([2], [1])),
    "objects, too many": ext(codec.OBJECTS, ([2], [1, 2, 3])),
    "objects, negative": ext(codec.OBJECTS, ([-1], [1])),
    "objects, huge": ext(codec.OBJECTS, ([2**62, 2**62], [])),
    "objects, over 64 bits": ext(codec.OBJECTS, ([0, 2**64 - 1], [])),
    "objects, many axes": ext(codec.OBJECTS, ([1] * 99, [1])),
    **{
        f"text of dtype {name!r}": ext(codec.TEXT_ARRAY, (name, [2], b"\0" * 16))
        for name in [
            "", "O", "|O8", "<f8", "<U", "<U0", "|S0", "<U-1", "U2\0", "S8\0", "<U2,<U2", "a8", "<U4294967296", "<M8[",
            "S" + "9" * 999, "<M8[foo]", "<M8[s]/25", "<M8[9999999999s]", "(2,)S4", "|V8", "T", "datetime64", "S٨",
        ]
    },
    "text of two fields": ext(codec.TEXT_ARRAY, ("<U2,<U2", [1], b"\0" * 16)),
    "text out of unicode": ext(codec.TEXT_ARRAY, (">U1", [1], b"\0\x11\0\0")),
    "text, no bytes for them": ext(codec.TEXT_ARRAY, ("<U1", [2**62], b"")),
    "text, no bytes for zero": ext(codec.TEXT_ARRAY, ("<U0", [2**40], b"")),
    "text, too many bytes": ext(codec.TEXT_ARRAY, ("<U1", [1], b"\0" * 8)),
    "text, negative": ext(codec.TEXT_ARRAY, ("<U1", [-1], b"\0" * 4)),
    "text, zero times negative": ext(codec.TEXT_ARRAY, ("<U1", [-1, 0], b"")),
}  # fmt: skip


def bounded(function, *args, bytes_at_most=2_000_000, seconds=5):
    """Call, and hold what it costs against the limits."""
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        return function(*args)
    finally:
        took, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < bytes_at_most, f"{peak} bytes"
        assert took < seconds, f"{took} seconds"


class TestMalformedData:
    @pytest.mark.parametrize("packed", MALFORMED.values(), ids=MALFORMED)
    def test_is_refused(self, packed):
        with pytest.raises(RemoteProtocolError, match=r"^malformed data: "):
            bounded(unpack, packed)
        with pytest.raises(RemoteProtocolError, match=r"^malformed data: "):
            unpack({"a": [ext(codec.TUPLE, [packed])]})

    def test_of_an_unknown_extension_is_named(self):
        with pytest.raises(RemoteProtocolError, match=r"^malformed data: unknown extension 9$"):
            unpack(ext(9, 1))

    def test_nesting_costs_no_memory(self):
        packed = ext(codec.TUPLE, [b"x" * 1_000_000])
        for _ in range(50):
            packed = ext(codec.TUPLE, [packed])
        frame = encode(Returned(1, [packed], []))
        bounded(lambda: unpack(decode_reply(frame).values), bytes_at_most=3_000_000)

    def test_huge_integers_cost_no_time(self):
        packed = Ext(codec.INTEGER, b"\x7f" * 10_000_000)
        assert bounded(unpack, packed, bytes_at_most=40_000_000).bit_length() > 79_000_000

    contents = st.recursive(
        atoms.filter(lambda value: not isinstance(value, int) or INT_MIN <= value <= INT_MAX)
        | st.sampled_from(["<f4", "<U1", "|O", "<M8[s]", 2**62, -1, 0, b"\0" * 8]),
        lambda parts: (
            st.lists(parts, max_size=4)
            | st.dictionaries(keys, parts, max_size=2)
            | st.builds(ext, st.integers(0, 10), parts)
            | st.builds(Ext, st.integers(-128, 127), st.binary(max_size=12))
        ),
        max_leaves=12,
    )

    @given(contents)
    @settings(QUICK, max_examples=500)
    def test_raises_nothing_else(self, content):
        with contextlib.suppress(RemoteProtocolError):
            unpack(content)


BATCH = [Array.of(np.arange(6, dtype=np.float32).reshape(2, 3)), Values([pack(("a", None)), pack({1: np.zeros(2)})])]
WELCOME = Welcome(
    version=1,
    server="s",
    env="e",
    session="n",
    secret="x",
    observation_space={"type": "Box"},
    action_space={},
    metadata={"render_modes": ["human"]},
    grace_s=60.0,
    max_message_bytes=1,
)
FRAMES = {
    decode_opening: [Hello(version=1, num_envs=2), Resume(version=1, session="n", secret="x", received=0)],
    decode_answer: [WELCOME, Resumed(received=3), Failed(0, "CAPACITY_REACHED", "", "full", {"active": 1})],
    decode_request: [
        Reset(1, None, [1, None], [pack({"a": (1,)}), None]),
        Step(2, [0, 1], BATCH, "SameStep"),
        Call(3, None, "jump", [pack(np.float32(1))], {"a": pack({1, 2})}),
        Get(4, None, "gravity"),
        Set(5, [0], "gravity", [pack(2**70)]),
        Close(6),
        Launch(7, [1], BATCH, None),
        Collect(8, 2),
    ],
    decode_reply: [
        Observed(1, BATCH, {0: pack({"a": np.array(["x", None])})}, [EnvFailure(0, "c", "t", "m")]),
        Stepped(2, BATCH, BATCH[0], BATCH[0], BATCH[0], {1: pack({"s": np.str_("b")})}, None, []),
        Returned(3, [pack(np.array(["a", "b"]))], []),
        Closed(4),
        Failed(5, "VALIDATION_ERROR", "ValueError", "m"),
        Launched(7),
        Collected(8, [1], Stepped(8, BATCH, BATCH[0], BATCH[0], BATCH[0], {}, None, [])),
    ],
}
EVERY_DECODER = pytest.mark.parametrize("decode", FRAMES, ids=lambda decode: decode.__name__)


def read_fully(message):
    """Unpack and open all that a decoded message holds; anything but the errors that are meant for it comes out."""
    for field in message.__struct_fields__ if isinstance(message, msgspec.Struct) else ():
        value = getattr(message, field)
        for part in value if isinstance(value, list) else [value]:
            read_fully(part)
        if isinstance(message, Array):
            with contextlib.suppress(ValueError):
                message.numpy()
        elif not isinstance(value, (msgspec.Struct, memoryview)):
            with contextlib.suppress(RemoteProtocolError):
                unpack(value)


@EVERY_DECODER
class TestDecode:
    def test_its_own_messages(self, decode):
        for message in FRAMES[decode]:
            assert encode(decode(encode(message))) == encode(message)

    def test_no_others(self, decode):
        own = {type(message) for message in FRAMES[decode]}
        for message in [message for group in FRAMES.values() for message in group]:
            if type(message) not in own:
                with pytest.raises(RemoteProtocolError, match=r"^malformed frame: "):
                    decode(encode(message))

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\xc1",
            b"\x90",
            b"\x91\x0a",
            b"\x80",
            b"[22, 1]",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x01",
            b"\x91" * 200_000,
            b"\x92\x16" + b"\x91" * 200_000,
            b"\x94\x20\x01" + b"\x91" * 200_000,  # the values of a Returned
            b"\x96\x16\x01\xc0\xa1n" + b"\x91" * 200_000,  # the arguments of a Call
            b"\x95\x22\x01\xa1\xff",  # not UTF-8
            encode(Close(1)) + b"\0",
        ],
        ids=lambda frame: f"{frame[:8]!r}",
    )
    def test_malformed_frames_cost_nothing(self, decode, frame):
        with pytest.raises(RemoteProtocolError, match=r"^malformed frame: "):
            bounded(decode, frame)

    @given(frame=st.binary(max_size=60))
    @QUICK
    def test_random_bytes_raise_nothing_else(self, decode, frame):
        with contextlib.suppress(RemoteProtocolError):
            read_fully(decode(frame))

    @given(
        index=st.integers(0, 9),
        edits=st.lists(
            st.tuples(st.floats(0, 1), st.sampled_from(["set", "cut", "insert", "repeat"]), st.integers(0, 255)),
            min_size=1,
            max_size=4,
        ),
    )
    @settings(QUICK, max_examples=300)
    def test_mutated_frames_raise_nothing_else(self, decode, index, edits):
        frame = encode(FRAMES[decode][index % len(FRAMES[decode])])
        for place, edit, byte in edits:
            at = int(place * len(frame))
            frame = {
                "set": frame[:at] + bytes([byte]) + frame[at + 1 :],
                "cut": frame[:at],
                "insert": frame[:at] + bytes([byte]) + frame[at:],
                "repeat": frame[:at] + frame[max(0, at - byte) :],
            }[edit]
        with contextlib.suppress(RemoteProtocolError):
            read_fully(decode(frame))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_nobody_writes_into_a_frame(kind):
    frame = kind(encode(Observed(1, [Array.of(np.arange(3))], {}, [])))
    array = decode_reply(frame).observations[0].numpy()
    assert np.shares_memory(array, np.frombuffer(frame, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
