"""openenv_gym.messages: what is on the wire, that it arrives as it left, and that malformed arrays cost nothing."""

import tracemalloc
from typing import get_args

import msgspec
import numpy as np
import pytest
from helpers_spaces import identical
from hypothesis import given
from hypothesis import strategies as st

from openenv_gym import messages
from openenv_gym.messages import (
    Array,
    Call,
    Close,
    Closed,
    Collect,
    Collected,
    EnvFailure,
    Failed,
    FinalRows,
    Get,
    Hello,
    Launch,
    Launched,
    Message,
    Numbered,
    Observed,
    Opening,
    Render,
    Reply,
    Request,
    Reset,
    Resume,
    Resumed,
    Returned,
    Set,
    State,
    Step,
    Stepped,
    Timings,
    Values,
    Welcome,
)

DTYPES = "?bBhHiIlLqQefdFD"
BATCH = [Array.of(np.arange(6, dtype=np.float32).reshape(2, 3)), Values(["a", None])]
FAILURES = [EnvFailure(1, "EXECUTION_ERROR", "ValueError", "too big", "Traceback …")]
TIMINGS = Timings(0.1, 0.2, 0.3, 0.4, 0.5)
FINAL = FinalRows([1], BATCH, [{"score": 3, 4: "four"}])

EXAMPLES = [
    Array.of(np.zeros((2, 0), np.uint8)),
    Values([1, [2.5, None], {"a": b"b"}]),
    Hello(version=1, num_envs=2),
    Hello(
        version=1,
        num_envs=2,
        include=["a.b"],
        exclude=[],
        obs_dtype={"a.b": "uint8"},
        info_keys=["score"],
        render_mode="rgb_array",
        max_episode_steps=500,
        max_message_bytes=2**40,
        process=3,
        autoreset_mode="SameStep",
        typed=True,
        observation_space={"type": "Discrete", "n": 3},
        action_space={"type": "Json"},
        obs_key="board",
        action_key="column",
        varied=True,
        mask_key="legal",
    ),
    Welcome(
        version=1,
        server="openenv-gym 0.1.0",
        env="CartPole-v1",
        session="5e55",
        secret="5ec7e7",
        observation_space={"type": "Box", "low": [0.5]},
        action_space={"type": "Discrete", "n": 2},
        metadata={"render_modes": ["human"]},
        grace_s=60.0,
        max_message_bytes=2**20,
        processes=2,
        autoreset_mode="NextStep",
        chosen=True,
        generators=[None, b"state"],
        observation_spaces=[{"type": "Discrete", "n": 3}],
        mask_key="legal",
    ),
    Resume(version=1, session="5e55", secret="5ec7e7", received=7),
    Resumed(received=9),
    Reset(1, None, None, None),
    Reset(1, [0, 3], [7, None], [None, {"size": 4}]),
    Reset(1, None, None, [{"size": 4}], True),
    Step(2, None, BATCH, None),
    Step(2, [1], [], "SameStep"),
    Step(2, None, [], None, True),
    Call(3, None, "jump", [1, "x"], {"height": 2.5}),
    Get(4, [0], "gravity"),
    Set(5, None, "gravity", [9.81], False),
    Render(6, None),
    Render(6, [1], png=True),
    State(7, [2, 1]),
    Close(8),
    Launch(9, [1], BATCH, "Disabled"),
    Collect(10, 3),
    *FAILURES,
    FINAL,
    Observed(9, BATCH, {0: {"score": 1}, 1: {2: 3}}, FAILURES, True),
    Stepped(10, BATCH, BATCH[0], BATCH[0], BATCH[0], {}, FINAL, FAILURES),
    Stepped(10, [], BATCH[0], BATCH[0], BATCH[0], {}, None, []),
    Stepped(10, [], BATCH[0], BATCH[0], BATCH[0], {}, None, [], {"a": 1}, TIMINGS),
    TIMINGS,
    Returned(11, [1, "a", None], FAILURES),
    Closed(12),
    Launched(9),
    Collected(10, [1, 3], Stepped(10, BATCH, BATCH[0], BATCH[0], BATCH[0], {}, FINAL, FAILURES)),
    Failed(13, "VALIDATION_ERROR", "", "what"),
    Failed(0, "CAPACITY_REACHED", "ValueError", "full", {"active": 1}, "Traceback …"),
]

# The wire: tags and the order of the fields. To change it, change PROTOCOL_VERSION too, except for a new last field
# with a default, which older peers leave out or ignore.
WIRE = {
    Array: (0, "dtype shape data"),
    Values: (1, "items"),
    Hello: (
        10,
        (
            "version num_envs include exclude obs_dtype info_keys render_mode max_episode_steps max_message_bytes "
            "process autoreset_mode typed observation_space action_space obs_key action_key varied "
            "mask_key"
        ),
    ),
    Welcome: (
        11,
        (
            "version server env session secret observation_space action_space metadata grace_s max_message_bytes "
            "processes autoreset_mode chosen generators observation_spaces mask_key"
        ),
    ),
    Resume: (12, "version session secret received"),
    Resumed: (13, "received"),
    Reset: (20, "id slots seeds options sticky"),
    Step: (21, "id slots actions autoreset timed"),
    Call: (22, "id slots name args kwargs"),
    Get: (23, "id slots name"),
    Set: (24, "id slots name values force"),
    Render: (25, "id slots png"),
    State: (26, "id slots"),
    Close: (27, "id"),
    Launch: (28, "id slots actions autoreset"),
    Collect: (29, "id at_least"),
    EnvFailure: ("EnvFailure", "slot code type message traceback"),
    FinalRows: ("FinalRows", "positions observations infos"),
    Timings: ("Timings", "decode queue hop env encode"),
    Observed: (30, "id observations infos failures unseeded vector_infos"),
    Stepped: (31, "id observations rewards terminated truncated infos final failures vector_infos timings"),
    Returned: (32, "id values failures"),
    Closed: (33, "id"),
    Failed: (34, "id code error message facts traceback"),
    Launched: (35, "id"),
    Collected: (36, "id slots steps"),
}
EVERY_EXAMPLE = pytest.mark.parametrize("message", EXAMPLES, ids=[type(message).__name__ for message in EXAMPLES])


def travelled(message, as_type):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=as_type)


class TestEveryMessage:
    @EVERY_EXAMPLE
    def test_arrives_as_it_left(self, message):
        copy = travelled(message, type(message))
        assert type(copy) is type(message)
        assert msgspec.msgpack.encode(copy) == msgspec.msgpack.encode(message)
        if not any(isinstance(field, Array) for field in _inner(message)):  # memoryviews differ in their formats
            assert copy == message

    @EVERY_EXAMPLE
    def test_is_recognised_by_its_tag(self, message):
        for group in (Opening, Request, Reply, Array | Values):
            if type(message) in get_args(group):
                assert type(travelled(message, group)) is type(message)
            else:
                with pytest.raises(msgspec.ValidationError):
                    travelled(message, group)

    @EVERY_EXAMPLE
    def test_is_immutable(self, message):
        for field in message.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(message, field, None)

    @EVERY_EXAMPLE
    def test_looks_like_this_on_the_wire(self, message):
        tag, fields = WIRE[type(message)]
        assert message.__struct_fields__ == tuple(fields.split())
        data = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        assert data[0] == tag
        assert len(data) == 1 + len(message.__struct_fields__)

    @EVERY_EXAMPLE
    def test_ignores_what_a_later_version_adds(self, message):
        data = [*msgspec.msgpack.decode(msgspec.msgpack.encode(message)), "later"]
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(data), type=type(message))
        assert msgspec.msgpack.encode(copy) == msgspec.msgpack.encode(message)

    def test_has_an_example(self):
        bases = {Message, Numbered}
        defined = {value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Message)}
        assert defined - bases == {type(message) for message in EXAMPLES} == WIRE.keys()

    @pytest.mark.parametrize(
        "group, tags", [(Opening, {10, 12}), (Request, set(range(20, 30))), (Reply, set(range(30, 37)))]
    )
    def test_is_in_its_group(self, group, tags):
        assert {WIRE[kind][0] for kind in get_args(group)} == tags
        assert all(issubclass(kind, Numbered) for kind in get_args(group)) == (group is not Opening)

    def test_is_exported(self):
        assert messages.__all__ == sorted(messages.__all__, key=lambda name: (not name.isupper(), name))
        assert {kind.__name__ for kind in [*WIRE, Message, Numbered]} <= set(messages.__all__)


def _inner(message):
    """All that a message holds."""
    yield message
    for field in message.__struct_fields__ if isinstance(message, Message) else ():
        value = getattr(message, field)
        for part in value if isinstance(value, list) else [value]:
            yield from _inner(part)


SHAPES = [(), (1,), (0,), (5,), (2, 3), (2, 0, 3), (1, 1, 1, 1)]


class TestArray:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("code", DTYPES)
    def test_arrives_as_it_left(self, code, shape):
        array = np.random.default_rng(7).integers(0, 2, shape).astype(code)
        assert identical(travelled(Array.of(array), Array).numpy(), array.astype(array.dtype.str))

    @pytest.mark.parametrize("code", DTYPES)
    def test_big_endian_arrives_little_endian(self, code):
        array = np.arange(2, 5).astype(code)
        big = array.astype(array.dtype.newbyteorder(">"))
        assert identical(travelled(Array.of(big), Array).numpy(), array.astype(array.dtype.str))
        assert identical(travelled(Array.of(big[0]), Array).numpy(), array[0, ...].astype(array.dtype.str))

    @pytest.mark.parametrize(
        "view",
        [
            lambda a: a.T,
            lambda a: a[::-1],
            lambda a: a[:, ::2],
            lambda a: a[:, 1],
            np.asfortranarray,
            lambda a: np.broadcast_to(a[0], (3, 4)),
            lambda a: a[..., None],
        ],
    )
    def test_need_not_be_contiguous(self, view):
        array = view(np.arange(12, dtype=np.int16).reshape(3, 4))
        assert identical(travelled(Array.of(array), Array).numpy(), array)

    def test_wraps_without_a_copy(self):
        array = np.arange(6.0).reshape(2, 3)
        assert np.shares_memory(np.asarray(Array.of(array).data), array)

    def test_is_a_view_of_the_frame(self):
        array = travelled(Array.of(np.arange(3)), Array).numpy()
        assert not array.flags.owndata
        assert not array.flags.writeable

    def test_of_a_read_only_array(self):
        array = np.arange(3)
        array.flags.writeable = False
        assert identical(travelled(Array.of(array), Array).numpy(), np.arange(3))

    def test_int64_is_the_usual_one(self):  # "q" is a longlong, which compares equal but isn't the same type
        assert travelled(Array.of(np.zeros(1, "q")), Array).numpy().dtype.type is np.int64

    @pytest.mark.parametrize(
        "array",
        [
            np.array([None]),
            np.array(["a"]),
            np.array([b"a"]),
            np.array(1, "M8[s]"),
            np.array(1, "m8"),
            np.zeros(2, "f4, i4"),
            np.zeros(2, "V3"),
            np.zeros(2, np.longdouble),
            np.zeros(2, np.clongdouble),
            np.zeros(2, np.dtypes.StringDType())
            if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType")
            else None,
            np.ma.array([1, 2], mask=[True, False]),
        ],
        ids=str,
    )
    def test_of_another_dtype_is_refused(self, array):
        if array is not None:
            with pytest.raises(TypeError, match=r"can't be sent"):
                Array.of(array)


def bytes_of(count):
    return memoryview(bytes(count))


class TestMalformedArray:
    @pytest.mark.parametrize(
        "array",
        [
            Array("<f4", (-1,), bytes_of(4)),
            Array("<f4", (2, -1), bytes_of(8)),
            Array("<f4", (-1, 0), bytes_of(0)),
            Array("<f4", (-1, -2), bytes_of(8)),
            Array("<f4", (-(2**63),), bytes_of(4)),
            Array("<f4", (2**31,), bytes_of(4)),
            Array("<f4", (2**40, 2**40), bytes_of(4)),
            Array("<f4", (2**63,), bytes_of(4)),
            Array("<f4", (2**64 - 1,), bytes_of(4)),
            Array("<f4", (0, 2**62, 2**62), bytes_of(0)),
            Array("|u1", (2**32, 2**32), bytes_of(0)),  # 2**64 elements are none in 64 bits
            Array("<f4", (1,) * 100, bytes_of(4)),
            Array("<f4", (2,), bytes_of(7)),
            Array("<f4", (2,), bytes_of(4)),
            Array("<f4", (2,), bytes_of(12)),
            Array("<f4", (), bytes_of(0)),
            Array("<f4", (), bytes_of(8)),
            Array("<f4", (0,), bytes_of(4)),
            *(
                Array(dtype, (1,), bytes_of(8))
                for dtype in [
                    "",
                    "f8",
                    ">f8",
                    "float64",
                    "O",
                    "|O8",
                    "<U2",
                    "|S8",
                    "<M8[s]",
                    "|V8",
                    "<f8\0",
                    "<f8,<f8",
                    "é",
                ]
            ),
        ],
        ids=lambda array: f"{array.dtype} {array.shape}",
    )
    def test_raises_value_error_and_allocates_nothing(self, array):
        array = travelled(array, Array)
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=r"."):
                array.numpy()
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()

    @given(st.text(max_size=4), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4), st.binary(max_size=32))
    def test_never_raises_anything_else(self, dtype, shape, data):
        for name in (dtype, "<f4"):
            try:
                array = Array(name, tuple(shape), memoryview(data)).numpy()
            except ValueError:
                continue
            assert array.shape == tuple(shape)
            assert array.nbytes == len(data)

    @given(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES))
    def test_only_the_right_number_of_bytes_will_do(self, shape, code):
        dtype = np.dtype(np.dtype(code).str)
        count = int(np.prod(shape, dtype=int)) * dtype.itemsize
        assert Array(dtype.str, tuple(shape), bytes_of(count)).numpy().shape == tuple(shape)
        for wrong in {count - dtype.itemsize, count + 1, count + dtype.itemsize} - {-dtype.itemsize}:
            with pytest.raises(ValueError, match=r"."):
                Array(dtype.str, tuple(shape), bytes_of(wrong)).numpy()
