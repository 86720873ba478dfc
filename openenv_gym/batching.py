"""Several envs' observations as one batch, and back.

The rules are Gymnasium's (gymnasium/vector/sync_vector_env.py and vector/utils/space_utils.py): what `BatchReader`
gives equals what ``SyncVectorEnv`` would give for the same envs, in values, dtypes, shapes and structure.
Arrays that are handed out are always fresh, writable and owned by the caller, unless ``copy=False``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from openenv_gym.codec import pack, unpack
from openenv_gym.errors import RemoteProtocolError, SpaceError
from openenv_gym.leaf_values import MISFITS, LeafValues, array_of, restored, restorer, taken
from openenv_gym.messages import Array, Batch, Values
from openenv_gym.spaces import Leaf, leaf_dtype, leaf_shape, leaves, path_name

__all__ = ["BatchReader", "BatchWriter", "Part", "assemble", "batch_of", "cast_exactly", "pick", "rows_of", "wrapped"]

_PYTHONS: Final = {np.float64: float, np.int64: int, np.bool_: bool}
"""Python's type of the numbers of a dtype."""

_PACKED: Final = "bBhHiIlLqQfd"
"""The dtypes whose ``char`` means the same to `struct`, which takes no other numbers for them than `cast_exactly`."""

Part: TypeAlias = "tuple[slice | Sequence[int], Batch]"
"""Some rows of a vector env, and their values."""


def assemble(space: gym.Space[Any], leaf_values: Iterator[Any]) -> Any:
    """Put leaves back into the structure of their space: dicts and tuples.

    Args:
        space: the space.
        leaf_values: one value for each of `openenv_gym.spaces.leaves`, in its order.
    """
    if isinstance(space, spaces.Dict) and type(space) is spaces.Dict:  # a subclass is one leaf
        return {key: assemble(child, leaf_values) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and type(space) is spaces.Tuple:
        return tuple(assemble(child, leaf_values) for child in space.spaces)
    return next(leaf_values)


def pick(value: Any, path: tuple[str | int, ...]) -> Any:
    """The part of a nested value at a leaf's path.

    Raises:
        SpaceError: if it isn't there.
    """
    for depth, key in enumerate(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            where = path_name(path[:depth])
            raise SpaceError(f"the value has no {key!r} ({type(error).__name__})", path=where) from None
    return value


# ---------------------------------------------------------------------------------------- writing observations


class BatchWriter:
    """Writes envs' values into arrays that are allocated once.

    Guarantees: several threads may write at the same time, each its own positions.

    Args:
        space: one env's space.
        num_envs: the number of positions.
        typed: keep Discrete values as they are, an ``int`` as an ``int``. Gymnasium hands single observations on as
            the env made them.
    """

    def __init__(self, space: gym.Space[Any], num_envs: int, *, typed: bool = False) -> None:
        self._leaves = leaves(space)
        self._columns: list[LeafValues] = [
            np.zeros((num_envs, *leaf_shape(leaf.space)), leaf_dtype(leaf.space))
            if leaf.is_array and not (typed and isinstance(leaf.space, spaces.Discrete))
            else [None] * num_envs
            for leaf in self._leaves
        ]
        writers = [_leaf_writer(leaf, column) for leaf, column in zip(self._leaves, self._columns, strict=True)]
        self.write: Callable[[int, Any], None] = (
            writers[0] if [leaf.path for leaf in self._leaves] == [()] else self._write_nested(writers)
        )
        """Write one env's value: ``write(position, value)``. Raises `SpaceError` if it hasn't the space's structure."""

    def _write_nested(self, writers: list[Callable[[int, Any], None]]) -> Callable[[int, Any], None]:
        paths = [leaf.path for leaf in self._leaves]

        def write(position: int, value: Any) -> None:
            for path, write_leaf in zip(paths, writers, strict=True):
                write_leaf(position, pick(value, path))

        return write

    def batch(self, positions: int | list[int]) -> Batch:
        """The first so many positions, or the listed ones; the arrays may be views, valid until the next write."""
        return [wrapped(column) for column in self.columns(positions)]

    def columns(self, positions: int | list[int]) -> list[LeafValues]:
        """The same, not yet as a batch; values in lists are packed."""
        rows = slice(0, positions) if isinstance(positions, int) else positions
        return [column[rows] if isinstance(column, np.ndarray) else taken(column, rows) for column in self._columns]


def wrapped(column: LeafValues) -> Array | Values:
    """One leaf's arrays, or packed values, as a batch has them."""
    return Array.of(column) if isinstance(column, np.ndarray) else Values(column)


def batch_of(found: Sequence[Leaf], batched: Any, count: int, rows: Sequence[int] | None = None) -> Batch:
    """A batched observation, as a vector env gives it, as a batch; its arrays may be the env's own.

    Args:
        found: one env's leaves.
        batched: arrays of ``count`` rows, or dicts and tuples of them.
        count: the number of envs.
        rows: the rows to take; None for all.

    Raises:
        SpaceError: if it isn't one of so many envs.
    """
    batch: Batch = []
    for leaf in found:
        column, path = pick(batched, leaf.path), path_name(leaf.path)
        if leaf.is_array:
            shape, dtype = (count, *leaf_shape(leaf.space)), leaf_dtype(leaf.space)
            array = np.asarray(column)
            if array.shape != shape or array.dtype != dtype:
                array = cast_exactly(array, dtype, shape, path)
            batch.append(Array.of(array if rows is None else array[list(rows)]))
        elif len(column) != count:
            raise SpaceError(f"{len(column)} values for {count} envs", path=path)
        else:
            taken_rows = column if rows is None else [column[row] for row in rows]
            batch.append(Values([pack(value, path or "observation") for value in taken_rows]))
    return batch


def _leaf_writer(leaf: Leaf, column: LeafValues) -> Callable[[int, Any], None]:
    if isinstance(column, list) and leaf.is_array:  # a typed Discrete
        dtype = leaf_dtype(leaf.space)

        def write_typed(position: int, value: Any) -> None:
            cast = cast_exactly(value, dtype, (), path_name(leaf.path))
            column[position] = pack(value if isinstance(value, (int, np.integer)) else cast[()], "observation")

        return write_typed
    if isinstance(column, list):
        restore, path = restorer(leaf.space), path_name(leaf.path)

        def write_value(position: int, value: Any) -> None:
            try:
                restore(value)  # as the peer will
            except MISFITS as error:
                raise SpaceError(f"{value!r} isn't a value of {leaf.space}: {error}", path=path) from None
            column[position] = pack(value, path or "observation")

        return write_value
    path = path_name(leaf.path)
    return _array_writer(column, path) if leaf_shape(leaf.space) else _number_writer(column, path)


def _array_writer(column: NDArray[Any], path: str) -> Callable[[int, Any], None]:
    shape, wanted = column.shape[1:], column.dtype
    rows = [column[position, ...] for position in range(len(column))]  # views, which are quicker than an index
    write_list = _list_writer(column)

    def write(position: int, value: Any) -> None:
        if type(value) is list and write_list is not None and write_list(position, value):
            return
        if type(value) is np.ndarray and (value.dtype is wanted or value.dtype == wanted) and value.shape == shape:
            rows[position][...] = value
        else:
            rows[position][...] = cast_exactly(value, wanted, shape, path)

    return write


def _list_writer(column: NDArray[Any]) -> Callable[[int, list[Any]], bool] | None:
    """What writes a flat list of numbers, and says whether it could: quicker than by way of an array of its own."""
    if column.ndim != 2 or not column.size or column.dtype.char not in _PACKED or not column.dtype.isnative:
        return None
    row, memory = struct.Struct(f"{column.shape[1]}{column.dtype.char}"), column.data.cast("B")
    pack_into, size = row.pack_into, row.size

    def write(position: int, values: list[Any]) -> bool:
        try:
            pack_into(memory, position * size, *values)
        except struct.error:  # as `cast_exactly` will say, unless it can take it
            return False
        return True

    return write


def _number_writer(column: NDArray[Any], path: str) -> Callable[[int, Any], None]:
    wanted = column.dtype
    exact = (wanted.type, _PYTHONS.get(wanted.type))

    def write(position: int, value: Any) -> None:
        if type(value) in exact:
            try:
                column[position] = value
            except OverflowError:  # as `cast_exactly` will say
                pass
            else:
                return
        column[position] = cast_exactly(value, wanted, (), path)

    return write


def cast_exactly(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], path: str = "") -> NDArray[Any]:
    """Cast a value as ``np.stack(…, out=…)`` would, but never wrap or cut off.

    Numbers may lose precision to a float; everything else must fit exactly.

    Args:
        value: an array, number or nested sequence.
        dtype: the target dtype.
        shape: the shape that it must have.
        path: where the value is, for the error.

    Raises:
        SpaceError: naming path, value and dtype.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise SpaceError(f"a ragged value doesn't fit shape {shape} of {dtype}", path=path) from None
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"{value!r} of type {type(value).__name__} doesn't fit {dtype}", path=path)
    if array.shape != shape:
        raise SpaceError(f"a value of shape {array.shape} doesn't fit shape {shape} of {dtype}", path=path)
    if np.can_cast(array.dtype, dtype, "safe") or (array.dtype.kind in "iuf" and dtype.kind == "f"):
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    wrong = cast != array
    if wrong.any():
        raise SpaceError(f"{array[wrong].flat[0]} of {array.dtype} doesn't fit {dtype}", path=path)
    return cast


# ---------------------------------------------------------------------------------------- reading observations


class BatchReader:
    """Puts the parts that servers send together into one batched observation.

    It remembers the last value of each row, so that a reset of some envs returns the others' last observations.
    The memory costs nothing where whole batches arrive: their frames are kept, not copied.

    Args:
        space: one env's observation space.
        num_envs: the number of rows.
        copy: give out fresh arrays each time; otherwise the same arrays, overwritten.
        typed: keep Discrete values that come as they were, see `BatchWriter`; batches have tuples of them then.
    """

    def __init__(self, space: gym.Space[Any], num_envs: int, *, copy: bool = True, typed: bool = False) -> None:
        self._space = space
        self._num_envs = num_envs
        self._leaves = leaves(space)
        self._forms = [
            (leaf_shape(leaf.space), leaf_dtype(leaf.space)) if leaf.is_array else None for leaf in self._leaves
        ]
        self._restore = [restorer(leaf.space) for leaf in self._leaves]
        self._typed = typed
        self._listed = [typed and isinstance(leaf.space, spaces.Discrete) for leaf in self._leaves]
        self._reused: list[LeafValues] | None = None if copy else self._empty()
        self._memory = self._empty()
        self._latest: list[tuple[slice | Sequence[int], list[LeafValues]]] = [(slice(0, num_envs), self._memory)]

    def read(self, parts: list[Part]) -> Any:
        """The batched observation after these rows changed.

        Args:
            parts: rows and their new values; no row twice.

        Returns:
            an array of shape ``(num_envs, *shape)``, or dicts and tuples of them, with tuples of ``num_envs``
            values for Text, Sequence, Graph and OneOf.

        Raises:
            RemoteProtocolError: if a part doesn't have the space's leaves, dtypes and shapes.
        """
        self.keep(parts)
        if self._reused is None and len(self._latest) == 1 and self._latest[0][0] == slice(0, self._num_envs):
            columns: list[LeafValues] = [c if isinstance(c, list) else np.array(c) for c in self._latest[0][1]]
        else:
            columns = self._gather(self._latest, self._empty() if self._reused is None else self._reused)
        return assemble(self._space, (tuple(deepcopy(c)) if isinstance(c, list) else c for c in columns))

    def keep(self, parts: list[Part]) -> None:
        """Note rows' new values without putting them together; see `read`."""
        fresh = [(rows, self._open(batch, self._count(rows), typed=self._typed)) for rows, batch in parts]
        if sum(self._count(rows) for rows, _ in parts) == self._num_envs:
            self._latest = fresh
        else:
            self._gather(fresh, self._in_one_piece())

    def read_rows(self, parts: list[Part], rows: list[int]) -> Any:
        """The batched observation of some rows only, in fresh arrays, after ``parts`` changed; see `read`."""
        self.keep(parts)
        columns = ([c[row] for row in rows] if isinstance(c, list) else c[rows] for c in self._in_one_piece())
        return assemble(self._space, (tuple(deepcopy(c)) if isinstance(c, list) else c for c in columns))

    def _in_one_piece(self) -> list[LeafValues]:
        """The latest values of all rows, in arrays that aren't given out."""
        if self._latest[0][1] is not self._memory:
            self._memory = self._gather(self._latest, self._empty())
            self._latest = [(slice(0, self._num_envs), self._memory)]
        return self._memory

    def rows(self, batch: Batch, count: int) -> list[Any]:
        """The single observations of a batch of ``count`` envs, each with memory of its own.

        Discrete values may come as they were; see `BatchWriter`.
        """
        columns = self._open(batch, count, typed=True)
        return [self._row(columns, position) for position in range(count)]

    def last(self, row: int) -> Any:
        """A copy of one row's last observation, as a single env would give it."""
        for rows, columns in self._latest:
            indices = range(self._num_envs)[rows] if isinstance(rows, slice) else rows
            if row in indices:
                return deepcopy(self._row(columns, list(indices).index(row)))
        raise AssertionError("the parts hold every row")

    def _row(self, columns: list[LeafValues], position: int) -> Any:
        # A Discrete value is a number, while a Box's is an array even of shape ().
        values = (
            c[position] if isinstance(c, list) or isinstance(leaf.space, spaces.Discrete) else np.array(c[position])
            for leaf, c in zip(self._leaves, columns, strict=True)
        )
        return assemble(self._space, values)

    def _count(self, rows: slice | Sequence[int]) -> int:
        return len(range(self._num_envs)[rows]) if isinstance(rows, slice) else len(rows)

    def _empty(self) -> list[LeafValues]:
        return [
            [None] * self._num_envs if form is None or listed else np.zeros((self._num_envs, *form[0]), form[1])
            for form, listed in zip(self._forms, self._listed, strict=True)
        ]

    def _gather(
        self, layers: list[tuple[slice | Sequence[int], list[LeafValues]]], out: list[LeafValues]
    ) -> list[LeafValues]:
        for rows, columns in layers:
            for target, column in zip(out, columns, strict=True):
                if isinstance(target, list):
                    for row, value in zip(
                        range(self._num_envs)[rows] if isinstance(rows, slice) else rows, column, strict=True
                    ):
                        target[row] = value
                else:
                    target[rows] = column
        return out

    def _open(self, batch: Batch, count: int, *, typed: bool) -> list[LeafValues]:
        """Check a batch against the space, and unpack it; arrays stay views of the frame."""
        if len(batch) != len(self._leaves):
            raise RemoteProtocolError(f"{len(batch)} leaves where the space has {len(self._leaves)}")
        columns: list[LeafValues] = []
        for leaf, form, restore, column in zip(self._leaves, self._forms, self._restore, batch, strict=True):
            if isinstance(column, Array) and form is not None:
                array, shape = array_of(column), (count, *form[0])
                if array.shape != shape or array.dtype != form[1]:
                    found, wanted = f"{array.dtype}{array.shape}", f"{form[1]}{shape}"
                    raise RemoteProtocolError(f"leaf {path_name(leaf.path)!r} is {found}, not {wanted}")
                columns.append(array)
            elif isinstance(column, Values) and form is None and len(column.items) == count:
                columns.append(restored(column, restore))
            elif isinstance(column, Values) and typed and isinstance(leaf.space, spaces.Discrete):
                columns.append(_integers(column, count, leaf))
            else:
                raise RemoteProtocolError(f"leaf {path_name(leaf.path)!r} has the wrong kind or length")
        return columns


def _integers(column: Values, count: int, leaf: Leaf) -> list[Any]:
    values = [unpack(item) for item in column.items]
    if len(values) != count or not all(isinstance(value, (int, np.integer)) for value in values):
        raise RemoteProtocolError(f"leaf {path_name(leaf.path)!r} isn't {count} integer(s)")
    return values


def rows_of(indices: Iterable[int]) -> slice | list[int]:
    """Row indices as a slice where they are consecutive, which numpy copies faster."""
    rows = list(indices)
    if rows and rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return rows
