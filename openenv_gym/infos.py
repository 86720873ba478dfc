"""Several envs' info dicts as one vector info, in Gymnasium's layout.

Each key has an array with one entry for each env, and a mask ``_key`` that says whose entries are real
(gymnasium/vector/vector_env.py, ``_add_info``). Where the envs' values are of one type the result equals Gymnasium's.
Where they differ, Gymnasium lets the first value fix the dtype, which cuts off or crashes on the others; here the dtype
is one that holds them all, or ``object``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONNECTION_LOST", "join_infos", "merge_infos"]

CONNECTION_LOST: Final = "connection_lost"
"""The info key of rows whose session is gone."""


def merge_infos(infos: Iterable[tuple[int, dict[Any, Any]]], num_envs: int) -> dict[Any, Any]:
    """Merge info dicts.

    Args:
        infos: row and info of each env that has one; a row may come several times, and what comes later counts.
        num_envs: the length of the arrays.

    Returns:
        the vector info; ``{}`` where no env has a key. ``final_obs`` is an object array at any depth. A key gets an
        underscore at its end where its name, or its mask's, is taken.
    """
    columns: dict[Any, list[tuple[int, Any]]] = {}
    for row, info in infos:
        for key, value in info.items():
            columns.setdefault(key, []).append((row, value))
    merged: dict[Any, Any] = {}
    # Gymnasium lets a mask and a key of the same name overwrite each other. Here usual keys come first and keep their
    # names, and those that look like masks are renamed.
    for key in sorted(columns, key=lambda key: str(key).startswith("_")):
        name = key
        while name in merged or f"_{name}" in merged:
            name = f"{name}_"
        merged[name] = _merge_column(key, columns[key], num_envs)
        merged[f"_{name}"] = mask = np.zeros(num_envs, dtype=np.bool_)
        mask[[row for row, _ in columns[key]]] = True
    return merged


def join_infos(parts: Sequence[tuple[Sequence[int], dict[Any, Any]]], num_envs: int) -> dict[Any, Any]:
    """Put the vector infos of several vector envs together as those of one.

    Args:
        parts: rows, and the vector info of the env that has them.
        num_envs: the number of all rows.

    Returns:
        the vector info; that of a single part for all rows unchanged.
    """
    if len(parts) == 1 and len(parts[0][0]) == num_envs:
        return parts[0][1]
    joined: dict[Any, Any] = {}
    for key in dict.fromkeys(key for _, info in parts for key in info):
        column = [(rows, info[key]) for rows, info in parts if key in info]
        joined[key] = (
            join_infos(column, num_envs)
            if all(isinstance(value, dict) for _, value in column)
            else _join_arrays(column, num_envs)
        )
    return joined


def _join_arrays(column: list[tuple[Sequence[int], Any]], num_envs: int) -> NDArray[Any]:
    arrays = [value if isinstance(value, np.ndarray) else np.array([value] * len(rows)) for rows, value in column]
    dtypes = {array.dtype for array in arrays}
    joined: NDArray[Any]
    if len(dtypes) == 1 and len({array.shape[1:] for array in arrays}) == 1 and dtypes != {np.dtype(object)}:
        joined = np.zeros((num_envs, *arrays[0].shape[1:]), arrays[0].dtype)
        for (rows, _), array in zip(column, arrays, strict=True):
            joined[list(rows)] = array
        return joined
    joined = np.full(num_envs, None, dtype=object)
    for (rows, _), array in zip(column, arrays, strict=True):
        for row, value in zip(rows, array, strict=True):
            joined[row] = value
    return joined


def _merge_column(key: Any, column: list[tuple[int, Any]], num_envs: int) -> Any:
    if key != "final_obs":
        if all(isinstance(value, dict) for _, value in column):
            return merge_infos(column, num_envs)
        dtype = _common_dtype([value for _, value in column])
        if dtype is not None:
            first = column[0][1]
            array = np.zeros((num_envs, *first.shape) if isinstance(first, np.ndarray) else num_envs, dtype)
            if _fill_exactly(array, column):
                return array
    objects = np.full(num_envs, None, dtype=object)
    for row, value in column:
        objects[row] = value
    return objects


def _common_dtype(values: list[Any]) -> np.dtype[Any] | None:
    """A dtype for all values, or None where only ``object`` will do."""
    first = values[0]
    dtypes: set[np.dtype[Any]]
    if isinstance(first, np.ndarray):
        if not all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
            return None
        dtypes = {v.dtype for v in values}
    elif all(type(v) in (int, float, bool) or isinstance(v, np.number) for v in values):
        dtypes = {np.dtype(type(v)) for v in values}
    else:
        return None
    if len(dtypes) == 1:
        return dtypes.pop()
    kinds = {dtype.kind for dtype in dtypes}
    common: np.dtype[Any] | None = None
    if kinds <= set("iufc") or kinds in ({"U"}, {"S"}):
        common = np.result_type(*dtypes)
    return common


def _fill_exactly(array: NDArray[Any], column: list[tuple[int, Any]]) -> bool:
    """Write the values; False if one doesn't survive, such as 2**70, or 2**60 + 1 as a float."""
    try:
        for row, value in column:
            array[row] = value
            if array.dtype.kind in "fc" and not _is_exact(array[row], value):
                return False
    except OverflowError:
        return False
    return True


def _is_exact(written: Any, value: Any) -> bool:
    """Whether an integer, or an array of them, is still the same as a float."""
    if np.asarray(value).dtype.kind not in "iuO":
        return True
    return bool(np.all(np.asarray(written).real.astype(object) == np.asarray(value).astype(object)))
