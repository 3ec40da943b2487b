"""Operators and methods of `Tensor`, installed on it when `rlx.ops` is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx.ir import tensor as tensor_module
from rlx.ops import arithmetic, unary
from rlx.ops.conversion import cast

if TYPE_CHECKING:
    from rlx.ir.dtype import DTypeLike
    from rlx.ir.tensor import Tensor


class TensorMethods:
    """What a tensor can do by itself; each method is the function of the same meaning."""

    __slots__ = ()

    def __add__(self, other: Any) -> Tensor:
        return arithmetic.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return arithmetic.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return arithmetic.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return arithmetic.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return arithmetic.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return arithmetic.mul(other, self)

    def __neg__(self) -> Tensor:
        return unary.neg(self)

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

    def __truediv__(self, other: Any) -> Tensor:
        return true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return true_divide(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return arithmetic.pow_(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return arithmetic.pow_(other, self)

    def __abs__(self) -> Tensor:
        return unary.abs_(self)

    def astype(self, dtype: DTypeLike) -> Tensor:
        return cast(self, dtype)


def true_divide(a: Any, b: Any) -> Any:
    """`/` as Python and NumPy mean it: integers give floats."""
    from rlx.ops.operands import promote_inexact

    a, b = promote_inexact(a, b)
    return arithmetic.div(a, b)


def install() -> None:
    """Give `Tensor` these methods; `rlx.ir` cannot, because they need the ops."""
    for name, value in vars(TensorMethods).items():
        if name not in ("__module__", "__doc__", "__slots__", "__dict__", "__weakref__", "__hash__"):
            setattr(tensor_module.Tensor.__mro__[1], name, value)
