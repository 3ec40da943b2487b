"""Arrays from Python values, from sizes, and from ranges. The default dtypes are float32, int32 and bool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import BackendError, OpError
from rlx.ir import foreign_arrays
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType, DTypeLike, promote
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor, constant_data, current_scope, is_python_scalar, lift
from rlx.numpy.arguments import array_function, axis_of, convert, dims_from, inexact, operand, rank_of
from rlx.ops.define.operands import common_dtype, dims_of, dtype_of
from rlx.runtime.arrays import Array, as_array, as_borrowed_array
from rlx.runtime.device_arrays import DeviceArray, device_put

# Kinds of memory, as DLPack numbers them: the host's, and that of NVIDIA's GPUs, which the host may see.
_HOST, _GPUS = 1, (2, 13)

__all__ = [
    "arange",
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "copy",
    "dim_value",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "frombuffer",
    "fromfunction",
    "fromiter",
    "full",
    "full_like",
    "geomspace",
    "identity",
    "linspace",
    "logspace",
    "ndarray",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def _check_device(device: Any) -> None:
    if device is not None and str(device) != "cpu":
        raise BackendError(
            f"arrays are made on 'cpu', got device={device!r}; jit and Session choose the device that programs run on"
        )


@array_function
def asarray(obj: Any, /, dtype: DTypeLike | None = None, *, device: Any = None, copy: bool | None = None) -> Any:
    """`obj` as an array: a tensor, an array of any library, a Python number, or nested lists of all these.

    Python numbers are float32, int32 (int64 when they do not fit), bool or complex64 by themselves.

    >>> asarray([1, 2.5]).dtype, asarray([[True]]).shape
    (dtype('float32'), (1, 1))
    """
    _check_device(device)
    if isinstance(obj, Tensor | DeviceArray):
        return obj if dtype is None else convert(obj, DType.of(dtype))
    if isinstance(obj, list | tuple) and any(isinstance(leaf, Tensor | DeviceArray) for leaf in _leaves(obj)):
        stacked = ops.stack([asarray(item) for item in obj])
        return stacked if dtype is None else convert(stacked, DType.of(dtype))
    array = _known_values(obj, None if dtype is None else DType.of(dtype))
    if copy and not isinstance(obj, list | tuple):
        array = np.array(array)
    scope = current_scope()
    # The caller's own object is lifted where it can be: an array used twice is then one constant.
    if scope is not None:
        return lift(obj if array is obj else array, scope.graph)
    is_new = array is not obj and array.base is None
    return as_array(array) if is_new else as_borrowed_array(array)


class _Arrays(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor | DeviceArray | Array)


class ndarray(metaclass=_Arrays):
    """What the functions here return: `isinstance(x, ndarray)` holds for arrays, and for values that are traced."""


def _leaves(obj: Any) -> Iterator[Any]:
    for item in obj:
        if isinstance(item, list | tuple):
            yield from _leaves(item)
        else:
            yield item


def _known_values(obj: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    if is_python_scalar(obj):
        return constant_data(obj, dtype).array
    array = obj if isinstance(obj, np.ndarray) else _from_array_like(obj)
    if array.dtype == object:
        raise OpError(f"asarray: rows of different lengths or objects that are not numbers: {obj!r:.200}")
    if dtype is None and isinstance(obj, list | tuple):
        dtype = _dtype_of_leaves(obj, array)
    if dtype is None or array.dtype == dtype.numpy:
        # An unknown NumPy dtype (str, datetime64) is refused here.
        DType.of(array.dtype)
        return array
    return ops.Cast(dtype).eval(array)


def _from_array_like(obj: Any) -> np.ndarray[Any, Any]:
    try:
        return foreign_arrays.host_array(obj)
    except ValueError as error:
        raise OpError(f"asarray: {error}") from None


def _dtype_of_leaves(obj: Any, array: np.ndarray[Any, Any]) -> DType:
    leaves = list(_leaves(obj))
    # One leaf per type decides; a list of a million numbers has one type.
    distinct = {(type(x), getattr(x, "dtype", None)): x for x in leaves}.values()
    found = common_dtype(*distinct) if leaves else DType.of(float)
    if found is DType.I32 and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
        return DType.I64
    return found


@array_function
def array(obj: Any, dtype: DTypeLike | None = None, *, copy: bool | None = True, ndmin: int = 0) -> Any:
    """`obj` as a new array; see `asarray`. With `ndmin` axes of size 1 are added in front."""
    result = asarray(obj, dtype, copy=copy)
    missing = ndmin - rank_of(result)
    return ops.expand_dims(result, tuple(range(missing))) if missing > 0 else result


asanyarray = ascontiguousarray = asarray


@array_function
def copy(x: Any) -> Any:
    """A new array with the values of x."""
    return asarray(x, copy=True)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array that shares the memory of another library's array, through DLPack: on the host, or on a GPU."""
    _check_device(device)
    if isinstance(x, DeviceArray):
        return x
    kind, index = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (_HOST, 0)
    if kind in _GPUS:
        shared = device_put(x, f"cuda:{index}" if index else "cuda")
        return DeviceArray(shared.value.space.copy(shared.value)) if copy else shared
    return asarray(foreign_arrays.from_dlpack(x), copy=copy)


def frombuffer(buffer: Any, dtype: DTypeLike = DType.F32, count: int = -1, offset: int = 0) -> Any:
    """An array that shares the memory of an object with the buffer protocol."""
    return asarray(np.frombuffer(buffer, DType.of(dtype).numpy, count, offset))


def fromiter(iterable: Any, dtype: DTypeLike, count: int = -1) -> Any:
    """A vector of the values that `iterable` yields."""
    return asarray(np.fromiter(iterable, DType.of(dtype).numpy, count))


@array_function
def fromfunction(function: Any, shape: Any, *, dtype: DTypeLike = float, **kwargs: Any) -> Any:
    """function(i, j, ...) called once with the coordinates of every element of `shape` as arrays."""
    dims = dims_from(shape)
    return function(*(ops.iota(dims, dtype=dtype, axis=axis) for axis in range(len(dims))), **kwargs)


def dim_value(size: Size | str, dtype: DTypeLike = DType.I32) -> Any:
    """A size as a scalar to compute with; a symbolic one is read when the program runs."""
    return ops.dim_value(size, dtype)


@array_function
def zeros(shape: Any, dtype: DTypeLike | None = None, *, device: Any = None) -> Any:
    """0 everywhere."""
    _check_device(device)
    return ops.zeros(dims_from(shape), float if dtype is None else dtype)


@array_function
def ones(shape: Any, dtype: DTypeLike | None = None, *, device: Any = None) -> Any:
    """1 everywhere."""
    _check_device(device)
    return ops.ones(dims_from(shape), float if dtype is None else dtype)


@array_function
def empty(shape: Any, dtype: DTypeLike | None = None, *, device: Any = None) -> Any:
    """The same as `zeros`: values are immutable, so there is nothing to fill in later."""
    return zeros(shape, dtype, device=device)


@array_function
def full(shape: Any, fill_value: Any, dtype: DTypeLike | None = None, *, device: Any = None) -> Any:
    """`fill_value` everywhere; it may be an array that broadcasts to `shape`."""
    _check_device(device)
    return ops.full(dims_from(shape), operand(fill_value), dtype)


@array_function
def full_like(
    x: Any, /, fill_value: Any, dtype: DTypeLike | None = None, *, shape: Any = None, device: Any = None
) -> Any:
    """`fill_value` with the shape and dtype of x, unless others are given."""
    x = operand(x)
    dims = dims_of(x) if shape is None else dims_from(shape)
    return full(dims, fill_value, dtype_of(x) if dtype is None else dtype, device=device)


@array_function
def zeros_like(x: Any, /, dtype: DTypeLike | None = None, *, shape: Any = None, device: Any = None) -> Any:
    """0 with the shape and dtype of x."""
    return full_like(x, 0, dtype, shape=shape, device=device)


@array_function
def ones_like(x: Any, /, dtype: DTypeLike | None = None, *, shape: Any = None, device: Any = None) -> Any:
    """1 with the shape and dtype of x."""
    return full_like(x, 1, dtype, shape=shape, device=device)


empty_like = zeros_like


@array_function
def eye(
    n_rows: Size, n_cols: Size | None = None, /, k: int = 0, dtype: DTypeLike | None = None, *, device: Any = None
) -> Any:
    """1 on diagonal k, 0 elsewhere."""
    _check_device(device)
    return ops.eye(n_rows, n_cols, k, float if dtype is None else dtype)


@array_function
def identity(n: Size, dtype: DTypeLike | None = None) -> Any:
    """The n by n matrix with 1 on its diagonal."""
    return eye(n, dtype=dtype)


@array_function
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None, *, device: Any = None
) -> Any:
    """start, start + step, ... up to but without stop; one argument is the stop. Bounds may be symbolic sizes."""
    _check_device(device)
    bounds = {"start" if stop is not None else "the stop": start, "stop": stop, "step": step}
    for name, bound in bounds.items():
        if isinstance(bound, Tensor):
            raise OpError(
                f"arange: {name} decides the size of the result, so it must be a number or a symbolic size, "
                f"got {bound!r}; make a range of fixed size and use where"
            )
    first, last, stride = (b.item() if isinstance(b, np.ndarray | np.generic) else b for b in bounds.values())
    return ops.arange(first, last, stride, dtype)


def _wide(dtype: DTypeLike | None) -> DType | None:
    """The float in which a range is formed whose elements are to have `dtype`; integers are rounded from f64."""
    if dtype is None:
        return None
    chosen = DType.of(dtype)
    return DType.F64 if chosen.is_int else chosen.accumulator


@array_function
def linspace(
    start: Any,
    stop: Any,
    num: int | Dim = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers evenly spaced from start to stop (which `endpoint` includes), along a new axis.

    With `retstep` the result is the pair of these and their distance.
    """
    _check_device(device)
    first, last = operand(start), operand(stop)
    values = ops.linspace(first, last, num, endpoint, _wide(dtype))
    wide = dtype_of(values)
    if dtype is not None:
        chosen = DType.of(dtype)
        values = convert(ops.floor(values) if chosen.is_int else values, chosen)
    values = ops.moveaxis(values, 0, axis_of(axis, values, "linspace"))
    if not retstep:
        return values
    intervals = num - 1 if endpoint else num
    return values, (convert(last, wide) - convert(first, wide)) / convert(dim_value(intervals), wide)


@array_function
def logspace(
    start: Any,
    stop: Any,
    num: int | Dim = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Any:
    """`num` numbers from base**start to base**stop, evenly spaced on a logarithmic scale."""
    exponents = ops.linspace(operand(start), operand(stop), num, endpoint, _wide(dtype))
    base = operand(base)
    values = ops.pow_(ops.expand_dims(base, 0) if rank_of(base) else base, exponents)
    values = ops.moveaxis(values, 0, axis_of(axis, values, "logspace"))
    return values if dtype is None else convert(values, DType.of(dtype))


@array_function
def geomspace(
    start: Any, stop: Any, num: int | Dim = 50, endpoint: bool = True, dtype: DTypeLike | None = None, axis: int = 0
) -> Any:
    """`num` numbers from start to stop with a constant quotient; both have the same sign and neither is 0."""
    first, last = inexact(start, stop)
    if dtype is not None:
        wide = promote(dtype_of(first), DType.of(dtype).accumulator)
        first, last = convert(operand(start), wide), convert(operand(stop), wide)
    values = first * ops.exp(ops.linspace(0, ops.log(last / first), num, endpoint))
    if endpoint and not (isinstance(num, int) and num < 2):
        index = ops.iota((num, *(1,) * (rank_of(values) - 1)))
        values = ops.where(ops.eq(index, dim_value(num - 1)), last, values)
    values = ops.moveaxis(values, 0, axis_of(axis, values, "geomspace"))
    return values if dtype is None else convert(values, DType.of(dtype))
