"""Products over windows on GPUs: what their tensor-core form is made of."""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, build_op_kernel
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.specs.products import Matrix, Product
from rlx.ops.lowered.window_gradients import PixelMatMul, WindowGradient
from rlx.ops.lowered.window_products import WindowMatMul

THREADS = 128


class WindowOrigin(NamedTuple):
    """What a kernel of `window_matmul` was made of: the op, the dims of x, and the product of what windows see with the
    rows of w. A of the product is x; its strides say nothing."""

    op: WindowMatMul
    picture: tuple[int, int, int, int]
    product: Product


class GradientSums(NamedTuple):
    """What a kernel of `window_gradient` or `pixel_matmul` was made of: the op, the dims of its operands, the rows of a
    part and how many parts there are, and the product, whose rows are those of all parts."""

    op: WindowGradient | PixelMatMul
    x: tuple[int, ...]
    dy: tuple[int, ...]
    rows: int
    parts: int
    product: Product


def window_kernel(site: OpSite) -> Kernel:
    """Loops, a thread for each element, with the origin if operands lie in memory as they are."""
    kernel = iterations_as_threads(build_op_kernel(site), THREADS)
    kernel.origin = window_origin(site) if isinstance(site.op, WindowMatMul) else gradient_sums(site)
    return kernel


def gradient_sums(site: OpSite) -> GradientSums | None:
    (x, dy), (y,), op = site.inputs, site.outputs, site.op
    assert isinstance(op, WindowGradient | PixelMatMul)
    if x.buffer is dy.buffer:
        return None
    parts, rows, filters = y.shape.static_dims
    a, b = (Matrix(slab.buffer.name, slab.buffer.dtype, 1) for slab in (x, dy))
    c = Matrix(y.buffer.name, y.buffer.dtype, filters)
    product = Product(parts * rows, filters, 1, a, b, c)
    return GradientSums(op, x.shape.static_dims, dy.shape.static_dims, rows, parts, product)


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
