"""Operators and methods of `Tensor`, installed on it when `rlx.ops` is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from rlx.errors import RlxError, TraceError
from rlx.foreign_names import no_attribute
from rlx.ir import tensor as tensor_module
from rlx.ir.array_functions import array_functions
from rlx.ir.dims import Dim
from rlx.ops.define.operands import common_dtype, promote_inexact
from rlx.ops.linalg import contraction
from rlx.ops.pointwise import arithmetic, bits, complex_numbers, unary
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction import cumulative, reductions, sort
from rlx.ops.shape import movement, rearrange, selection
from rlx.ops.shape.subscript import AtIndexer, index

if TYPE_CHECKING:
    from rlx.ir.dtype import DTypeLike
    from rlx.ir.tensor import Tensor

Axes = int | Sequence[int] | None


def _answers_itself(other: Any) -> bool:
    """Whether an operand has operators of its own for tensors, as sparse matrices do; NumPy's way of saying so."""
    kind = type(other)
    return getattr(kind, "__array_ufunc__", True) is None and not issubclass(kind, tensor_module.Tensor | TensorMethods)


class TensorMethods:
    """What a tensor can do by itself; each method is the function of the same meaning."""

    __slots__ = ()

    # Type checkers must go on to find names that do not exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Asked for what is not there; other libraries may have it under this name."""
            no_attribute("Array", name)

    def __add__(self, other: Any) -> Tensor:
        return NotImplemented if _answers_itself(other) else arithmetic.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return arithmetic.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return NotImplemented if _answers_itself(other) else arithmetic.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return arithmetic.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return NotImplemented if _answers_itself(other) else arithmetic.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return arithmetic.mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return true_divide(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return arithmetic.floordiv(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return arithmetic.floordiv(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return floor_mod(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return floor_mod(other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return arithmetic.floordiv(self, other), floor_mod(self, other)

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return arithmetic.floordiv(other, self), floor_mod(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return power(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return power(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return NotImplemented if _answers_itself(other) else contraction.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return contraction.matmul(other, self)

    def __and__(self, other: Any) -> Tensor:
        return arithmetic.and_(self, other)

    def __rand__(self, other: Any) -> Tensor:
        return arithmetic.and_(other, self)

    def __or__(self, other: Any) -> Tensor:
        return arithmetic.or_(self, other)

    def __ror__(self, other: Any) -> Tensor:
        return arithmetic.or_(other, self)

    def __xor__(self, other: Any) -> Tensor:
        return arithmetic.xor(self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return arithmetic.xor(other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return arithmetic.shift_left(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return arithmetic.shift_left(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return arithmetic.shift_right(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return arithmetic.shift_right(other, self)

    def __invert__(self) -> Tensor:
        return bits.not_(self)

    def __neg__(self) -> Tensor:
        return unary.neg(self)

    def __pos__(self) -> Tensor:
        return self  # type: ignore[return-value]

    def __abs__(self) -> Tensor:
        return unary.abs_(self)

    def __round__(self, digits: int | None = None) -> Tensor:
        return self.round(digits or 0)

    def __gt__(self, other: Any) -> Tensor:
        return arithmetic.gt(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return arithmetic.ge(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return arithmetic.lt(self, other)

    def __le__(self, other: Any) -> Tensor:
        return arithmetic.le(self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return arithmetic.eq(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return arithmetic.ne(self, other)

    # Parts

    def __getitem__(self, key: Any) -> Tensor:
        return index(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise RlxError("rlx arrays cannot be changed in place; use x.at[i].set(v), or np.array(x) for a NumPy copy")

    @property
    def at(self) -> AtIndexer:
        """`x.at[key].set(v)`: a copy with a part changed."""
        return AtIndexer(self)

    def __len__(self) -> int:
        dims = self.shape  # type: ignore[attr-defined]
        if not dims:
            raise TraceError(
                "a tensor of rank 0 has no length. Where it is meant as a size or an axis, that must be known while "
                "the program is built: take it from x.shape, or mark the argument with static_argnums"
            )
        if isinstance(dims[0], Dim):
            raise TraceError(
                f"the length {dims[0]} is not known while the program is built; use x.shape[0] or rlx.scan"
            )
        return int(dims[0])

    def __iter__(self) -> Iterator[Tensor]:
        return (index(self, i) for i in range(len(self)))

    def take(self, indices: Any, axis: int | None = None, mode: str = "checked", fill_value: Any = None) -> Tensor:
        return selection.take(self, indices, axis, mode, fill_value)

    def compress(self, condition: Any, axis: int | None = None, *, size: int | None = None) -> Tensor:
        """Entries where the condition holds; a computed one needs `size`, which bounds their number."""
        found: Tensor = array_functions().compress(condition, self, axis, size=size)
        return found

    # Dims

    @property
    def T(self) -> Tensor:
        """All axes in reverse sort."""
        return movement.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return movement.swapaxes(self, -1, -2)

    def reshape(self, *dims: Any, order: str = "C") -> Tensor:
        if order != "C":
            found: Tensor = array_functions().reshape(self, _unpacked(dims), order)
            return found
        return movement.reshape(self, _unpacked(dims))

    def transpose(self, *axes: Any) -> Tensor:
        return movement.transpose(self, _unpacked(axes) or None)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        return movement.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Axes = None) -> Tensor:
        return movement.squeeze(self, axis)

    def ravel(self, order: str = "C") -> Tensor:
        found: Tensor = array_functions().ravel(self, order)
        return found

    def flatten(self, order: str = "C") -> Tensor:
        return self.ravel(order)

    def repeat(self, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Tensor:
        found: Tensor = array_functions().repeat(self, repeats, axis, total_repeat_length=total_repeat_length)
        return found

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        return rearrange.diagonal(self, offset, axis1, axis2)

    def nonzero(self, *, size: int | None = None, fill_value: int = 0) -> tuple[Tensor, ...]:
        """Positions of elements that are not 0; a traced tensor needs `size`, which bounds their number."""
        found: tuple[Tensor, ...] = array_functions().nonzero(self, size=size, fill_value=fill_value)
        return found

    # Types

    def astype(self, dtype: DTypeLike) -> Tensor:
        return cast(self, dtype)

    @property
    def real(self) -> Tensor:
        return complex_numbers.real(self)

    @property
    def imag(self) -> Tensor:
        return complex_numbers.imag(self)

    def conj(self) -> Tensor:
        return complex_numbers.conjugate(self)

    conjugate = conj

    def view(self, dtype: DTypeLike) -> Tensor:
        """The same bits as another dtype; the last axis grows or shrinks with the width of an element."""
        return bits.viewed(self, dtype)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The functions that take such values: `rlx.numpy`."""
        return array_functions()

    # Reductions

    # With `dtype`, `initial`, `where` or `correction` these are the functions of rlx.numpy.

    def sum(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("sum", axis, keepdims, more) if more else reductions.reduce_sum(self, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("mean", axis, keepdims, more) if more else reductions.reduce_mean(self, axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("prod", axis, keepdims, more) if more else reductions.reduce_prod(self, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("max", axis, keepdims, more) if more else reductions.reduce_max(self, axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("min", axis, keepdims, more) if more else reductions.reduce_min(self, axis, keepdims)

    def any(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("any", axis, keepdims, more) if more else reductions.reduce_any(self, axis, keepdims)

    def all(self, axis: Axes = None, keepdims: bool = False, **more: Any) -> Tensor:
        return self._reduced("all", axis, keepdims, more) if more else reductions.reduce_all(self, axis, keepdims)

    def var(self, axis: Axes = None, ddof: float = 0, keepdims: bool = False, **more: Any) -> Tensor:
        if more:
            return self._reduced("var", axis, keepdims, {"ddof": ddof, **more})
        return reductions.variance(self, axis, ddof, keepdims)

    def std(self, axis: Axes = None, ddof: float = 0, keepdims: bool = False, **more: Any) -> Tensor:
        if more:
            return self._reduced("std", axis, keepdims, {"ddof": ddof, **more})
        return reductions.std(self, axis, ddof, keepdims)

    def _reduced(self, name: str, axis: Axes, keepdims: bool, more: dict[str, Any]) -> Tensor:
        found: Tensor = getattr(array_functions(), name)(self, axis=axis, keepdims=keepdims, **more)
        return found

    def ptp(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The distance of the largest from the smallest element."""
        found: Tensor = array_functions().ptp(self, axis=axis, keepdims=keepdims)
        return found

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return reductions.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return reductions.argmin(self, axis, keepdims)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        x: Any = self if dtype is None else cast(self, dtype)
        return cumulative.cumsum(movement.flatten(x), 0) if axis is None else cumulative.cumsum(x, axis)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        x: Any = self if dtype is None else cast(self, dtype)
        return cumulative.cumprod(movement.flatten(x), 0) if axis is None else cumulative.cumprod(x, axis)

    # Values

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        limited: Any = self
        if min is not None:
            limited = arithmetic.maximum(limited, min)
        if max is not None:
            limited = arithmetic.minimum(limited, max)
        return limited

    def round(self, decimals: int = 0) -> Tensor:
        return unary.round_(self) if decimals == 0 else self.__array_namespace__().round(self, decimals)

    def dot(self, other: Any) -> Tensor:
        return contraction.dot(self, other)

    def sort(self, axis: int | None = -1, **more: Any) -> Tensor:
        if not more and axis is not None:
            return sort.sort(self, axis=axis)
        found: Tensor = array_functions().sort(self, axis=axis, **more)
        return found

    def argsort(self, axis: int | None = -1, **more: Any) -> Tensor:
        if not more and axis is not None:
            return sort.argsort(self, axis)
        found: Tensor = array_functions().argsort(self, axis=axis, **more)
        return found

    def searchsorted(self, v: Any, side: str = "left") -> Tensor:
        """Where values would stand in this sorted vector."""
        found: Tensor = array_functions().searchsorted(self, v, side=side)
        return found

    def copy(self) -> Tensor:
        """The value itself, which nobody can change."""
        return self  # type: ignore[return-value]

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        return reductions.reduce_sum(rearrange.diagonal(self, offset, axis1, axis2), -1)


def _unpacked(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments given one by one, or as one sequence."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], tuple | list) else values


def power(a: Any, b: Any) -> Any:
    """a ** b, of real or complex numbers."""
    is_complex = common_dtype(a, b).is_complex
    return complex_numbers.complex_pow(a, b) if is_complex else arithmetic.pow_(a, b)


def true_divide(a: Any, b: Any) -> Any:
    """`/` as Python and NumPy mean it: integers give floats."""
    a, b = promote_inexact(a, b)
    return arithmetic.div(a, b)


def floor_mod(a: Any, b: Any) -> Any:
    """`%` as Python and NumPy mean it: the sign of the divisor."""
    remainder = arithmetic.rem(a, b)
    opposite = arithmetic.xor(arithmetic.lt(remainder, 0), arithmetic.lt(b, 0))
    wrong_sign = arithmetic.and_(arithmetic.ne(remainder, 0), opposite)
    return arithmetic.where(wrong_sign, arithmetic.add(remainder, b), remainder)


def install() -> None:
    """Give `Tensor` these methods; `rlx.ir` cannot, because they need the ops."""
    for name, value in vars(TensorMethods).items():
        if name not in ("__module__", "__doc__", "__slots__", "__dict__", "__weakref__", "__hash__"):
            setattr(tensor_module.Tensor.__mro__[1], name, value)
