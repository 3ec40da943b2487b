"""Choosing elements: by condition, by position, by coordinates. `x[...]` and `x.at[...]` are methods of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dims import product
from rlx.numpy.arguments import (
    array_function,
    axis_of,
    concrete,
    convert,
    dims_from,
    known_values,
    operand,
    operands,
    promoted,
    rank_of,
    static_size,
    value,
)
from rlx.numpy.creation import asarray
from rlx.numpy.sorting_searching import nonzero
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "choose",
    "compress",
    "diag_indices",
    "diag_indices_from",
    "extract",
    "fill_diagonal",
    "ix_",
    "mask_indices",
    "piecewise",
    "place",
    "put",
    "put_along_axis",
    "ravel_multi_index",
    "select",
    "take",
    "take_along_axis",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
    "where",
]


@array_function
def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: int = 0) -> Any:
    """x where the condition holds, else y. With the condition alone, `nonzero`."""
    if (x is None) != (y is None):
        raise OpError("where: give both x and y, or neither")
    if x is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    return ops.where(*operands(condition, x, y))


# NumPy's names for what happens to positions that are out of range.
_MODES = {None: "checked", "raise": "checked", "clip": "clip", "wrap": "wrap", "fill": "fill"}


def _mode(mode: str | None, function: str) -> str:
    if mode not in _MODES:
        raise OpError(f"{function}: mode must be 'raise', 'clip', 'wrap' or 'fill', got {mode!r}")
    return _MODES[mode]


@array_function
def take(x: Any, /, indices: Any, axis: int | None = None, mode: str | None = None, *, fill_value: Any = None) -> Any:
    """Elements of `axis` (of the flattened x without one) at `indices`, whose axes replace it.

    Positions from -n to n-1 are valid. Others are an error where they are known and clipped where they are computed;
    mode "clip" clips always, to 0..n-1, "wrap" takes the remainder, and "fill" gives `fill_value`, by default NaN or
    the end of the integers.
    """
    indices = operand(indices)
    if mode == "clip":
        # NumPy clips negative positions to 0 instead of counting from the end.
        indices = ops.maximum(indices, 0)
    return ops.take(value(x), indices, axis, _mode(mode, "take"), fill_value)


@array_function
def take_along_axis(
    x: Any, /, indices: Any, axis: int | None = -1, mode: str | None = None, *, fill_value: Any = None
) -> Any:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`: positions of argsort or argmax applied."""
    return ops.take_along_axis(value(x), operand(indices), axis, _mode(mode, "take_along_axis"), fill_value)


@array_function
def put_along_axis(x: Any, indices: Any, values: Any, axis: int | None, *, inplace: bool = False) -> Any:
    """A copy of x with `values` at the places that `take_along_axis` reads."""
    _not_in_place("put_along_axis", inplace)
    x, indices = value(x), value(indices)
    if axis is None:
        return ops.reshape(ops.put_along_axis(ops.flatten(x), ops.flatten(indices), operand(values), 0), dims_of(x))
    return ops.put_along_axis(x, indices, operand(values), axis_of(axis, x, "put_along_axis"))


def _not_in_place(function: str, inplace: bool) -> None:
    if inplace:
        raise OpError(f"{function}: values are immutable, so there is no inplace=True; use the result")


@array_function
def put(x: Any, indices: Any, values: Any, mode: str | None = None, *, inplace: bool = False) -> Any:
    """A copy of x with `values` (repeated as needed) at positions of the flattened x."""
    _not_in_place("put", inplace)
    x, indices, values = value(x), ops.flatten(value(indices)), ops.flatten(value(values))
    count = static_size(dims_of(indices)[0], "put")
    have = static_size(dims_of(values)[0], "put")
    if count == 0 or have == 0:
        return x
    row = ops.narrow(ops.tile(values, -(-count // have)), 0, 0, count)
    kind = _mode(mode, "put")
    if kind == "wrap":
        indices, kind = ops.rem(indices, static_size(product(dims_of(x)), "put")), "clip"
    elif kind == "clip":
        indices = ops.maximum(indices, 0)
    return ops.reshape(ops.put_along_axis(ops.flatten(x), indices, row, 0, mode=kind), dims_of(x))


@array_function
def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Any:
    """A copy of arr whose elements where the mask holds are `vals` in order, repeated as needed."""
    _not_in_place("place", inplace)
    arr, mask, vals = value(arr), ops.flatten(value(mask)), ops.flatten(value(vals))
    order = ops.cumsum(ops.cast(mask, "i32"), 0) - 1
    count = static_size(dims_of(vals)[0], "place")
    if count == 0:
        raise ShapeError("place: at least one value is needed")
    chosen = ops.take(convert(vals, dtype_of(arr)), ops.rem(ops.maximum(order, 0), count), 0)
    return ops.reshape(ops.where(mask, chosen, ops.flatten(arr)), dims_of(arr))


def mask_indices(n: int, mask_func: Any, k: int = 0, *, size: int | None = None) -> Any:
    """The positions of an n×n matrix that `mask_func`, such as `triu`, keeps."""
    from rlx.numpy.creation import ones

    return nonzero(mask_func(ones((n, n), "i32"), k), size=size)


@array_function
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice of the first condition that holds, else `default`."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ShapeError(
            f"select: needs as many choices as conditions, at least one; got {len(condlist)} and {len(choicelist)}"
        )
    *choices, result = promoted(*choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choices))):
        result = ops.where(operand(condition), choice, result)
    return result


@array_function
def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """For each element the function (or value) of the last condition that holds; one more entry is the default, else 0.

    All functions see the whole of x; the result has the dtype of x.
    """
    x = value(x)
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ShapeError(
            f"piecewise: needs {len(conditions)} functions and at most one more for the rest, got {len(funclist)}"
        )

    def piece(entry: Any) -> Any:
        return convert(entry(x, *args, **kwargs) if callable(entry) else operand(entry), dtype_of(x))

    has_default = len(funclist) > len(conditions)
    result = ops.broadcast_to(piece(funclist[-1] if has_default else 0), dims_of(x))
    for condition, entry in zip(conditions, funclist):
        result = ops.where(operand(condition), piece(entry), result)
    return result


@array_function
def choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    """choices[a[i]][i] with everything broadcast; mode as in `take`."""
    from rlx.numpy.joining import unstack
    from rlx.numpy.manipulation import broadcast_arrays

    rows = promoted(*(choices if isinstance(choices, list | tuple) else unstack(choices)))
    ids, *rows = broadcast_arrays(a, *rows)
    stacked = ops.stack(rows, axis=0)
    kind = _mode(mode, "choose")
    if kind == "wrap":
        ids, kind = ops.rem(ids, len(rows)), "clip"
    elif kind == "clip":
        # NumPy clips negative numbers to 0 here instead of counting from the end.
        ids = ops.clamp(ids, 0, len(rows) - 1)
    return ops.squeeze(ops.take_along_axis(stacked, ops.expand_dims(ids, 0), 0, kind), 0)


@array_function
def compress(condition: Any, x: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The entries along `axis` (of the flattened x without one) whose condition holds; `size` as in `nonzero`."""
    x = ops.flatten(value(x)) if axis is None else value(x)
    axis = 0 if axis is None else axis_of(axis, x, "compress")
    if rank_of(condition) != 1:
        raise ShapeError(f"compress: needs a vector of conditions, got shape {dims_of(condition)}")
    (places,) = nonzero(condition, size=size, fill_value=2**31 - 1)
    return ops.take(x, places, axis, fill_value=None if size is None else fill_value)


@array_function
def extract(condition: Any, x: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of x whose condition holds, as a vector; `size` as in `nonzero`."""
    known = known_values(condition)
    row = ops.flatten(value(condition)) if known is None else known.reshape(-1)
    return compress(row, x, size=size, fill_value=fill_value)


def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors as index arrays that select every combination: x[ix_([0, 2], [1])]; bools stand for their positions."""
    vectors = [concrete(a, "ix_", "each argument") for a in args]
    return tuple(asarray(v.astype(np.int32) if v.size == 0 else v) for v in np.ix_(*vectors))


def _positions(arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    return tuple(asarray(a.astype(np.int32)) for a in arrays)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Row and column numbers of the elements on and below diagonal k of an n by m matrix."""
    rows, columns = _positions(np.tril_indices(n, k, m))
    return rows, columns


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Row and column numbers of the elements on and above diagonal k of an n by m matrix."""
    rows, columns = _positions(np.triu_indices(n, k, m))
    return rows, columns


def tril_indices_from(x: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` for the shape of a matrix."""
    rows, columns = _matrix_dims(x, "tril_indices_from")
    return tril_indices(rows, k, columns)


def triu_indices_from(x: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` for the shape of a matrix."""
    rows, columns = _matrix_dims(x, "triu_indices_from")
    return triu_indices(rows, k, columns)


def _matrix_dims(x: Any, function: str) -> tuple[int, int]:
    dims = dims_of(x)
    if len(dims) != 2:
        raise ShapeError(f"{function}: needs a matrix, got shape {dims}")
    return static_size(dims[0], function), static_size(dims[1], function)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The coordinates of the main diagonal of an array with `ndim` axes of size n."""
    return _positions(np.diag_indices(n, ndim))


def diag_indices_from(x: Any) -> tuple[Any, ...]:
    """`diag_indices` for the shape of an array, whose axes have one size."""
    dims = dims_of(x)
    if len(dims) < 2 or any(d != dims[0] for d in dims):
        raise ShapeError(f"diag_indices_from: needs two axes or more, all of one size, got shape {dims}")
    return diag_indices(static_size(dims[0], "diag_indices_from"), len(dims))


@array_function
def fill_diagonal(x: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Any:
    """A copy of x with `val` on its main diagonal."""
    _not_in_place("fill_diagonal", inplace)
    x = value(x)
    dims = dims_of(x)
    if wrap or len(dims) < 2 or (len(dims) > 2 and any(d != dims[0] for d in dims)):
        raise ShapeError(f"fill_diagonal: needs a matrix, or axes of one size, and wrap=False; got shape {dims}")
    positions = [ops.iota(dims, axis=axis) for axis in range(len(dims))]
    on_diagonal = ops.eq(positions[0], positions[1])
    for other in positions[2:]:
        on_diagonal = ops.and_(on_diagonal, ops.eq(positions[0], other))
    fill = convert(value(val), dtype_of(x))
    if rank_of(fill) == 0:
        return ops.where(on_diagonal, fill, x)
    # Number i along the diagonal takes element i of the values, which are repeated.
    row = ops.take(ops.flatten(fill), positions[0], 0, "wrap")
    return ops.where(on_diagonal, row, x)


@array_function
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Coordinates, one array per axis of `shape`, of positions in the flattened array."""
    rest = value(indices)
    found: list[Any] = []
    for size in reversed(dims_from(shape)):
        number = convert(ops.dim_value(size), dtype_of(rest))
        found.append(ops.rem(rest, number))
        rest = ops.div(rest, number)
    return tuple(reversed(found))


@array_function
def ravel_multi_index(multi_index: Sequence[Any], dims: Any, mode: str = "raise") -> Any:
    """The positions in a flattened array of shape `dims` that belong to coordinates; modes as in `take`."""
    sizes = dims_from(dims)
    if len(multi_index) != len(sizes):
        raise ShapeError(f"ravel_multi_index: needs {len(sizes)} coordinates, got {len(multi_index)}")
    kind = _mode(mode, "ravel_multi_index")
    total: Any = None
    for place, size in zip(promoted(*multi_index), sizes):
        number = convert(ops.dim_value(size), dtype_of(place))
        if kind == "wrap":
            place = ops.rem(ops.add(ops.rem(place, number), number), number)
        elif kind == "clip":
            place = ops.clamp(place, 0, number - 1)
        total = place if total is None else ops.add(ops.mul(total, number), place)
    return total
