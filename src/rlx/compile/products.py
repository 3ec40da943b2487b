"""Matrix products as kernels see them: three axes, batch, row and column, with one stride each.

Transposed, narrowed and reshaped operands are strides; a product whose axes do not come down to three is left alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from rlx.compile.index_maps import Layout, Unmappable, exact_quotient, is_view, layout, spread, through, without_ones
from rlx.compile.kernel_points import KernelPoints, memory_below
from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.shape import Dims, Size
from rlx.ops.contraction import MatMul


class MatrixLayout(NamedTuple):
    """A buffer as a matrix: `offset + batch*strides[0] + row*strides[1] + column*strides[2]`, in elements."""

    node: NodeId
    offset: Size
    strides: tuple[Size, Size, Size]


class ProductForm(NamedTuple):
    """C[batch, m, n] = A[batch, m, k] @ B[batch, k, n]; C is contiguous."""

    batch: Size
    m: Size
    n: Size
    k: Size
    a: MatrixLayout
    b: MatrixLayout


def product_form(graph: Graph, node: Node, transparent: Container[NodeId]) -> ProductForm | None:
    """A product of floats in the form that kernels take, its operands read through `transparent` views, or None."""
    if not isinstance(node.op, MatMul):
        return None
    types = [graph.shape(i).dtype for i in node.inputs]
    if types[0] is not types[1] or not types[0].is_float or types[0].is_storage:
        return None
    if types[0].accumulator not in (node.shape.dtype, node.shape.dtype.accumulator):
        return None
    *lead, m, n = node.shape.dims
    k = graph.shape(node.inputs[0]).dims[-1]
    try:
        left, right = (operand_layout(graph, i, transparent) for i in node.inputs)
    except Unmappable:
        return None
    a, b = (_padded(strides, len(lead) + 2) for _, _, strides in (left, right))
    # Kernels load neighbours of B together.
    if b[-1] not in (0, 1) and n != 1:
        return None
    if left[1] != 0 or right[1] != 0:
        return None
    if all(s == 0 for s in b[:-2]):
        row = joined_stride((*lead, m), a[:-1])
        if row is not None:
            return ProductForm(
                1,
                product((*lead, m)),
                n,
                k,
                MatrixLayout(left[0], 0, (0, row, a[-1])),
                MatrixLayout(right[0], 0, (0, b[-2], b[-1])),
            )
    batches = [joined_stride(lead, s[:-2]) for s in (a, b)]
    if batches[0] is None or batches[1] is None:
        return None
    return ProductForm(
        product(lead),
        m,
        n,
        k,
        MatrixLayout(left[0], 0, (batches[0], a[-2], a[-1])),
        MatrixLayout(right[0], 0, (batches[1], b[-2], b[-1])),
    )


def operand_layout(
    graph: Graph, operand: NodeId, transparent: Container[NodeId]
) -> tuple[NodeId, Size, tuple[Size, ...]]:
    """The buffer below an operand, where its first element is, and a stride for each axis of the operand."""
    dims = graph.shape(operand).dims
    sizes = without_ones(dims)
    maps = spread(dims, sizes)
    assert maps is not None
    node = graph.nodes[operand]
    while (memory := memory_below(graph, transparent, node)) is None:
        if not is_view(graph, node):
            raise Unmappable
        maps = through(graph, node, maps, sizes)
        node = graph.nodes[node.inputs[0]]
    found = layout(node.shape.dims, maps, len(sizes))
    strides = iter(found.strides)
    return memory.id, found.offset, tuple(0 if d == 1 else next(strides) for d in dims)


def _padded(strides: tuple[Size, ...], rank: int) -> tuple[Size, ...]:
    return (*(0,) * (rank - len(strides)), *strides)


def joined_stride(sizes: Sequence[Size], strides: Sequence[Size]) -> Size | None:
    """The stride of several axes as one, or None if they are not one run."""
    joined: Size | None = None
    reach: Size = 0
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size == 1:
            continue
        if joined is None:
            joined, reach = stride, stride * size
        elif stride == reach:
            reach = stride * size
        else:
            return None
    return 0 if joined is None else joined


def epilogue_layouts(graph: Graph, form: ProductForm, head: Node, points: KernelPoints) -> list[MatrixLayout] | None:
    """How an epilogue reads what it reads beside the product, in the order of its points; None if it cannot.

    The nest of the epilogue visits the elements of the product in their order, so that its axes are batch, row and
    column axes one after the other.
    """
    sizes = points.nest.sizes
    groups = _axis_groups(sizes, (form.batch, form.m, form.n))
    if groups is None:
        return None
    found = []
    for point in points.points:
        if not point.is_read:
            continue
        place = point.layout(points.nest)
        strides = [joined_stride([sizes[k] for k in axes], [place.strides[k] for k in axes]) for axes in groups]
        batch, row, column = strides
        if batch is None or row is None or column is None or place.offset != 0:
            return None
        if point.node is head and place != _contiguous(sizes):
            return None
        found.append(MatrixLayout(point.node.id, place.offset, (batch, row, column)))
    return found


def _contiguous(sizes: Dims) -> Layout:
    maps = spread(sizes, sizes)
    assert maps is not None
    return layout(sizes, maps, len(sizes))


def _axis_groups(sizes: Dims, wanted: Sequence[Size]) -> list[list[int]] | None:
    """Which axes make up each of the wanted sizes, from the last to the first."""
    groups: list[list[int]] = []
    k = len(sizes) - 1
    for size in reversed(wanted):
        axes: list[int] = []
        left: Size | None = size
        while left != 1 and k >= 0:
            left = exact_quotient(left, sizes[k]) if left is not None else None
            if left is None:
                return None
            axes.insert(0, k)
            k -= 1
        if left != 1:
            return None
        groups.insert(0, axes)
    return groups if k < 0 else None
