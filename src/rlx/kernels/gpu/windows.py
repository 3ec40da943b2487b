"""Products over windows on GPUs: what their tensor-core form is made of."""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, build_op_kernel
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.specs.products import Matrix, Product
from rlx.ops.lowered.window_products import WindowMatMul

THREADS = 128


class WindowOrigin(NamedTuple):
    """What a kernel of `window_matmul` was made of: the op, the dims of x, and the product of what windows see with the
    rows of w. A of the product is x; its strides say nothing."""

    op: WindowMatMul
    picture: tuple[int, int, int, int]
    product: Product


def window_kernel(site: OpSite) -> Kernel:
    """Loops, a thread for each element, with the origin if operands lie in memory as they are."""
    kernel = iterations_as_threads(build_op_kernel(site), THREADS)
    kernel.origin = window_origin(site)
    return kernel


def window_origin(site: OpSite) -> WindowOrigin | None:
    (x, w), (y,), op = site.inputs, site.outputs, site.op
    assert isinstance(op, WindowMatMul)
    if not x.shape.is_static or x.buffer is w.buffer:
        return None
    images, height, width, channels = x.shape.static_dims
    filters, depth = w.shape.static_dims
    rows = images * op.result[0] * op.result[1]
    dtype: DType = x.buffer.dtype
    a = Matrix(x.buffer.name, dtype, channels)
    b = Matrix(w.buffer.name, dtype, 1, depth)
    c = Matrix(y.buffer.name, y.buffer.dtype, filters)
    return WindowOrigin(op, (images, height, width, channels), Product(rows, filters, depth, a, b, c))
