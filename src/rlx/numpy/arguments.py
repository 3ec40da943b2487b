"""How the functions of this package read their arguments: operands, axes, and what a pure program refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.leaves import Constant
from rlx.ir.shape import normalize_axes, normalize_axis
from rlx.ir.tensor import Tensor, building, current_scope, is_python_scalar, leaked, lift, no_size
from rlx.ops.define.operands import convert as to_dtype
from rlx.ops.define.operands import dims_of, dtype_of, promote_inexact, promote_operands
from rlx.runtime.arrays import Array, as_array
from rlx.runtime.device_arrays import DeviceArray

P = ParamSpec("P")
R = TypeVar("R")

Axis = int | Sequence[int] | None


def array_function(function: Callable[P, R]) -> Callable[P, R]:
    """A public function on arrays: its parts join the graph of its operands, it returns tensors or `rlx.Array`s, and
    it refuses NumPy's `out=`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            if kwargs.pop("out", None) is not None:
                name = function.__name__
                raise OpError(f"{name}: out= is not supported, because values are immutable; write x = {name}(...)")
            if not args:
                args = _first_operand(kwargs)  # type: ignore[assignment]
        if current_scope() is not None:
            return function(*args, **kwargs)
        tensor = next(_tensors((*args, *kwargs.values())), None)
        if tensor is None:
            return _as_arrays(function(*args, **kwargs))
        if tensor.graph.is_frozen:
            raise leaked(tensor)
        with building(tensor.graph):
            return function(*args, **kwargs)

    return call


# What NumPy and JAX call the first operand of functions that take it by position here.
_FIRST_OPERANDS = ("a", "arr", "array", "ary", "m", "tup", "object", "prototype", "A", "M", "ar")


def _first_operand(keywords: dict[str, Any]) -> tuple[Any, ...]:
    """The first operand, given by its name, taken out of the keywords."""
    return next(((keywords.pop(name),) for name in _FIRST_OPERANDS if name in keywords), ())


def unary_function(
    name: str, build: Callable[[Any], Any], meaning: str, on_complex: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """The public elementwise function `name`: `build`, or `on_complex` on complex numbers where that is different."""

    def function(x: Any, /) -> Any:
        x = operand(x)
        if on_complex is not None and dtype_of(x).is_complex:
            return on_complex(value(x))
        return build(x)

    return _published(function, name, meaning)


def binary_function(name: str, build: Callable[[Any, Any], Any], meaning: str) -> Callable[[Any, Any], Any]:
    """The public elementwise function `name` of two operands."""

    def function(x1: Any, x2: Any, /) -> Any:
        return build(operand(x1), operand(x2))

    return _published(function, name, meaning)


def _published(function: Callable[P, R], name: str, meaning: str) -> Callable[P, R]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    return array_function(function)


def _as_arrays(result: Any) -> Any:
    if type(result) is np.ndarray:
        return as_array(result)
    if isinstance(result, list | tuple) and any(type(r) is np.ndarray for r in result):
        items = [_as_arrays(r) for r in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def operand(x: Any) -> Any:
    """`x` as ops take it: a tensor, an `rlx.Array`, or a Python scalar, which stays as it is because it is weak."""
    if isinstance(x, Tensor) or is_python_scalar(x):
        return x
    if not isinstance(x, np.ndarray | np.generic | Dim):
        from rlx.numpy.creation import asarray

        return asarray(x)
    scope = current_scope()
    # Lifted from the caller's own object, so that an array used many times is one constant.
    return as_array(x) if scope is None else lift(x, scope.graph)


def _held(x: Any) -> Any:
    """A value as users hold it: tensors and arrays of rlx as they are."""
    return x if isinstance(x, Tensor | DeviceArray | Array) else as_array(x)


def operands(*xs: Any) -> list[Any]:
    return [operand(x) for x in xs]


def value(x: Any) -> Any:
    """`x` as a tensor or an array: a Python scalar gets its default dtype."""
    return promoted(x)[0]


def promoted(*xs: Any) -> list[Any]:
    """The operands in their common dtype, as tensors or arrays."""
    return [_held(x) for x in promote_operands(*map(operand, xs))]


def inexact(*xs: Any) -> list[Any]:
    """The operands in their common float or complex dtype, as tensors or arrays."""
    return [_held(x) for x in promote_inexact(*map(operand, xs))]


def convert(x: Any, dtype: DType) -> Any:
    """`x` with the given dtype, as a tensor or an array."""
    converted = to_dtype(x, dtype)
    return _held(converted)


def rank_of(x: Any) -> int:
    return len(dims_of(x))


def axes_of(axis: Axis, rank: int, function: str) -> tuple[int, ...]:
    """The axes meant by `axis`, counted from the front and sorted; None means all of them."""
    if axis is None:
        return tuple(range(rank))
    return normalize_axes((axis,) if isinstance(axis, int) else axis, rank, function)


def axis_of(axis: int, x: Any, function: str) -> int:
    """One axis of `x`, counted from the front."""
    return normalize_axis(axis, rank_of(x), function)


def dims_from(shape: Any) -> tuple[Any, ...]:
    """A shape argument as dims: one size (an int, or a name or expression of symbols), or a sequence of them."""
    if isinstance(shape, int | np.integer | str | Dim):
        return (shape,)
    if isinstance(shape, Tensor):
        raise no_size(shape)
    if isinstance(shape, np.ndarray):
        shape = shape.tolist()
    if not isinstance(shape, Iterable):
        raise ShapeError(f"a shape is a size (a whole number or a symbol) or a sequence of sizes, got {shape!r}")
    return tuple(shape)


def static_size(size: int | Dim, function: str) -> int:
    """`size` as an int, where the shape of the result or the algorithm needs the number itself."""
    if isinstance(size, Dim):
        raise ShapeError(f"{function}: needs a fixed size, got the symbolic size {size}; bind it first")
    return size


def known_values(x: Any) -> np.ndarray[Any, Any] | None:
    """The values of an argument where they are known already: of an array or a constant, not of a computed tensor."""
    if not isinstance(x, Tensor):
        return np.asarray(x)
    return x.node.op.value.array if isinstance(x.node.op, Constant) else None


def concrete(x: Any, function: str, argument: str) -> np.ndarray[Any, Any]:
    """The values of an argument that decides the shape of the result, so that it cannot be computed."""
    found = known_values(x)
    if found is None:
        raise OpError(
            f"{function}: {argument} decides the shape of the result, so it must be known while the program is built, "
            f"got {x!r}; pass a Python value or a NumPy array"
        )
    return found
