"""Convolutions that are products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dims import product
from rlx.ir.op import Op
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.shape.movement import reshape


def conv_form(op: Op, *operands: Any) -> Callable[[Any, Any], Any] | None:
    """A window of one element that goes everywhere multiplies every position by the same matrix; None for others."""
    assert isinstance(op, Conv)
    is_one = {*op.kernel_size, *op.stride, op.groups} == {1} and not any(op.padding)
    if not is_one or operands[0].dtype.is_complex:
        return None

    def build(x: Any, w: Any) -> Any:
        images, channels, *sizes = x.shape
        columns = reshape(x, (images, channels, product(sizes)))
        y = MatMul(precision=op.precision, out_dtype=op.out_dtype)(reshape(w, w.shape[:2]), columns)
        return reshape(y, op.infer(x.type, w.type).dims)

    return build
