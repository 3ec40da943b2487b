"""Matrix products as kernels see them: three axes, batch, row and column, with one stride each.

Transposed, narrowed and reshaped operands are strides; a product whose axes do not come down to three is left alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from rlx.compile.fuse.index_maps import Layout, Unmappable, exact_quotient, layout, spread
from rlx.compile.fuse.loop_nest import KernelPoints
from rlx.compile.fuse.loop_nest import operand_layout as operand_layout
from rlx.compile.generators import Generator
from rlx.compile.weights.pack_floats import Panels, panels_below, sum_dtype
from rlx.compile.weights.sink_casts import widened_dtype
from rlx.ir.dims import floordiv, product
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.shape import Dims, Size
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.byte_products import ByteMatMul
from rlx.ops.lowered.expert_products import ExpertMatMul, Int8ExpertMatMul, RoutedMatMul
from rlx.ops.lowered.int8_products import BLOCK, WORD, Int8BlockMatMul, Int8MatMul
from rlx.ops.lowered.int16_products import COLUMN_BLOCK, Int16MatMul
from rlx.ops.lowered.quantized_panels import PanelMatMul
from rlx.ops.lowered.window_products import ChannelWindows, CodeWindows, WindowProduct
from rlx.quant.panels import PANEL_ROWS
from rlx.quant.schemes import QuantScheme


class MatrixLayout(NamedTuple):
    """A buffer as a matrix: `offset + batch*strides[0] + row*strides[1] + column*strides[2]`, in elements."""

    node: NodeId
    offset: Size
    strides: tuple[Size, Size, Size]


class WindowForm(NamedTuple):
    """Rows of A that are what windows see of pictures [height, width] whose channels lie side by side: those at all
    `result` positions, tap after tap. A then has the strides of pictures, of their rows and of their pixels. Without
    `together`, each channel is multiplied by itself; else see `WindowProduct`."""

    window: tuple[int, ...]
    result: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    height: int
    width: int
    channels: int
    together: int = 0
    # What codes are multiplied as beyond the picture.
    zero: int = 0


class ProductForm(NamedTuple):
    """C[batch, m, n] = A[batch, m, k] @ B[batch, k, n]; C is contiguous.

    Sums are held in `accumulator`. With `packed` B lies in panels of so many columns, and its strides say nothing; with
    `has_pairs` these are panels of pairs; with a `scheme` it is stored in that scheme's panels. With `code_digits` the
    rows of A are codes of so many times 8 bits, as `rlx.ops.lowered.int8_products` and, for two and no scheme,
    `rlx.ops.lowered.int16_products` say, and the panels of B too. With
    a `route` (`rlx.ops.lowered.expert_products`) each row of A has the matrix of its expert for B, and the first stride
    of B is that from expert to expert. With `windows` the rows of A are what these see.
    """

    batch: Size
    m: Size
    n: Size
    k: Size
    a: MatrixLayout
    b: MatrixLayout
    accumulator: DType
    packed: int = 0
    scheme: QuantScheme | None = None
    code_digits: int = 0
    has_pairs: bool = False
    route: NodeId | None = None
    windows: WindowForm | None = None


def product_form(graph: Graph, node: Node, transparent: Container[NodeId], generator: Generator) -> ProductForm | None:
    """A product in the form that kernels take, its operands read through `transparent` views, or None."""
    if isinstance(node.op, PanelMatMul | ExpertMatMul | Int8MatMul | Int16MatMul | Int8BlockMatMul | Int8ExpertMatMul):
        return _quantized_form(graph, node, transparent)
    if isinstance(node.op, RoutedMatMul):
        return _routed_form(graph, node, transparent)
    if isinstance(node.op, ByteMatMul):
        return _byte_form(graph, node, transparent)
    if isinstance(node.op, WindowProduct | ChannelWindows):
        return _window_form(graph, node, node.op, transparent, generator)
    if not isinstance(node.op, MatMul):
        return None
    accumulator = sum_dtype(graph, node)
    if accumulator is None:
        return None
    *lead, m, n = node.shape.dims
    k = graph.shape(node.inputs[0]).dims[-1]
    panels = panels_below(graph, node.inputs[1], transparent)
    if panels and not _is_packed(graph, panels, generator, accumulator, node.shape.dims[-1]):
        panels = None
    try:
        left = operand_layout(graph, node.inputs[0], transparent)
        right = (panels.node, 0, (0, 0)) if panels else _weight_layout(graph, node.inputs[1], transparent)
    except Unmappable:
        return None
    packed, has_pairs = (panels.width, panels.has_pairs) if panels else (0, False)
    a, b = (_padded(strides, len(lead) + 2) for _, _, strides in (left, right))
    if all(s == 0 for s in b[:-2]):
        row = joined_stride((*lead, m), a[:-1])
        if row is not None:
            rows = MatrixLayout(left[0], left[1], (0, row, a[-1]))
            weight = MatrixLayout(right[0], right[1], (0, b[-2], b[-1]))
            m = product((*lead, m))
            return ProductForm(1, m, n, k, rows, weight, accumulator, packed, has_pairs=has_pairs)
    batches = [joined_stride(lead, s[:-2]) for s in (a, b)]
    if batches[0] is None or batches[1] is None:
        return None
    rows = MatrixLayout(left[0], left[1], (batches[0], a[-2], a[-1]))
    weight = MatrixLayout(right[0], right[1], (batches[1], b[-2], b[-1]))
    return ProductForm(product(lead), m, n, k, rows, weight, accumulator, packed, has_pairs=has_pairs)


def _is_packed(graph: Graph, panels: Panels, generator: Generator, accumulator: DType, n: Size) -> bool:
    """Whether kernels read such panels of n columns: views of a program's own, such as matrices side by side, look like
    panels of any width."""
    if generator.panel_width is None or not isinstance(n, int):
        return False
    has_pairs = not panels.has_pairs or generator.has_pairs(graph.shape(panels.node).dtype)
    return has_pairs and panels.width == generator.panel_width(accumulator, n)


def _weight_layout(
    graph: Graph, operand: NodeId, transparent: Container[NodeId]
) -> tuple[NodeId, Size, tuple[Size, ...]]:
    """The layout of a second operand; that of what it is widened from where kernels do so as they read."""
    node = graph.nodes[operand]
    is_widened = operand in transparent and widened_dtype(graph, node) is not None
    return operand_layout(graph, node.inputs[0] if is_widened else operand, transparent)


def _quantized_form(graph: Graph, node: Node, transparent: Container[NodeId]) -> ProductForm | None:
    *lead, n = node.shape.dims
    x = graph.shape(node.inputs[0])
    try:
        memory, offset, strides = operand_layout(graph, node.inputs[0], transparent)
        weight, start, _ = operand_layout(graph, node.inputs[1], transparent)
    except Unmappable:
        return None
    row = joined_stride(lead, strides[:-1])
    if row is None or start != 0 or x.dtype.is_storage:
        return None
    a, b = MatrixLayout(memory, offset, (0, row, strides[-1])), MatrixLayout(weight, 0, (0, 0, 0))
    m, k = product(lead), x.dims[-1]
    if isinstance(node.op, PanelMatMul):
        return ProductForm(1, m, n, k, a, b, x.dtype.accumulator, scheme=node.op.scheme)
    if isinstance(node.op, ExpertMatMul):
        return _expert_form(graph, node, node.op, ProductForm(1, m, n, k, a, b, x.dtype.accumulator), transparent)
    if strides[-1] != 1:
        return None
    if isinstance(node.op, Int8BlockMatMul | Int8ExpertMatMul):
        one = node.op.one if isinstance(node.op, Int8ExpertMatMul) else node.op
        form = ProductForm(1, m, n, one.depth(x), a, b, DType.F32, scheme=one.scheme, code_digits=one.digits)
        if isinstance(node.op, Int8BlockMatMul):
            return form
        return _expert_form(graph, node, node.op, form, transparent)
    width = graph.shape(node.inputs[1]).static_dims[2]
    if isinstance(node.op, Int16MatMul):
        return ProductForm(1, m, n, node.op.depth(x), a, b, DType.F32, width // COLUMN_BLOCK, code_digits=2)
    return ProductForm(1, m, n, k, a, b, DType.I32, width, code_digits=1)


def _routed_form(graph: Graph, node: Node, transparent: Container[NodeId]) -> ProductForm | None:
    x, (m, n) = graph.shape(node.inputs[0]), node.shape.dims
    try:
        left = operand_layout(graph, node.inputs[0], transparent)
        right = _weight_layout(graph, node.inputs[1], transparent)
    except Unmappable:
        return None
    route = _route(graph, node, transparent)
    if route is None or x.dtype.is_storage:
        return None
    a = MatrixLayout(left[0], left[1], (0, left[2][0], left[2][1]))
    b = MatrixLayout(right[0], right[1], (right[2][0], right[2][1], right[2][2]))
    return ProductForm(1, m, n, x.dims[1], a, b, x.dtype.accumulator, route=route)


def _byte_form(graph: Graph, node: Node, transparent: Container[NodeId]) -> ProductForm | None:
    """A product with the rows of B, both of them as they lie in memory."""
    *lead, n = node.shape.dims
    try:
        left, right = (operand_layout(graph, i, transparent) for i in node.inputs)
    except Unmappable:
        return None
    row = joined_stride(lead, left[2][:-1])
    if row is None or left[2][-1] != 1 or right[2][-1] != 1:
        return None
    a = MatrixLayout(left[0], left[1], (0, row, 1))
    b = MatrixLayout(right[0], right[1], (0, 1, right[2][0]))
    return ProductForm(1, product(lead), n, graph.shape(node.inputs[0]).dims[-1], a, b, DType.F32)


def _window_form(
    graph: Graph, node: Node, op: WindowProduct | ChannelWindows, transparent: Container[NodeId], generator: Generator
) -> ProductForm | None:
    """What windows see of pictures whose pixels have their channels side by side, times weights in panels or, of every
    channel by itself, as they lie. GPUs have other ways for them, and no panels."""
    if generator.panel_width is None:
        return None
    if isinstance(op, CodeWindows):
        return _code_window_form(graph, node, op, transparent, generator)
    images, *places, n = node.shape.dims
    x, accumulator = graph.shape(node.inputs[0]), sum_dtype(graph, node)
    if x.dtype is DType.U8:
        accumulator = DType.F32
    height, width, channels = x.dims[1:]
    if accumulator is None or not (isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)):
        return None
    try:
        left = operand_layout(graph, node.inputs[0], transparent)
        panels = panels_below(graph, node.inputs[1], transparent)
        right = (panels.node, 0, (n, 1)) if panels else operand_layout(graph, node.inputs[1], transparent)
    except Unmappable:
        return None
    if left[2][-1] not in (0, 1) or right[2][-2:] != (n, 1):
        return None
    together = op.together if isinstance(op, WindowProduct) else 0
    if panels is not None and not _is_packed(graph, panels, generator, accumulator, n):
        return None
    # As many columns as a panel has lie in it as they are.
    if together and panels is None and (not isinstance(n, int) or n != generator.panel_width(accumulator, n)):
        return None
    zero = op.zero if isinstance(op, ChannelWindows) else 0
    form = WindowForm(op.window, op.result, op.stride, op.padding, op.dilation, height, width, channels, together, zero)
    a = MatrixLayout(left[0], left[1], (left[2][0], left[2][1], left[2][2]))
    b = MatrixLayout(right[0], right[1], (0, n, 1))
    k = graph.shape(node.inputs[1]).dims[0]
    packed = panels.width if panels is not None else 0
    return ProductForm(images, product(places), n, k, a, b, accumulator, packed, windows=form)


def _code_window_form(
    graph: Graph, node: Node, op: CodeWindows, transparent: Container[NodeId], generator: Generator
) -> ProductForm | None:
    x = graph.shape(node.inputs[0])
    height, width, channels = x.dims[1:]
    if not (isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)):
        return None
    try:
        memory, offset, strides = operand_layout(graph, node.inputs[0], transparent)
        panels, start, _ = operand_layout(graph, node.inputs[1], transparent)
    except Unmappable:
        return None
    if strides[-1] != 1 or start != 0:
        return None
    settings = op.window, op.result, op.stride, op.padding, op.dilation
    form = WindowForm(*settings, height, width, channels, op.together, op.zero)
    a, b = MatrixLayout(memory, offset, (strides[0], strides[1], strides[2])), MatrixLayout(panels, 0, (0, 0, 0))
    packed = graph.shape(panels).static_dims[2]
    assert generator.panel_width is not None
    if packed != generator.panel_width(DType.I32, op.outputs):
        return None
    m = product(op.result)
    return ProductForm(
        x.dims[0], m, op.outputs, op.taps * channels, a, b, DType.I32, packed, code_digits=1, windows=form
    )


def _route(graph: Graph, node: Node, transparent: Container[NodeId]) -> NodeId | None:
    """The third operand, if it lies in memory as it is."""
    try:
        route, start, strides = operand_layout(graph, node.inputs[2], transparent)
    except Unmappable:
        return None
    return route if start == 0 and strides == (1,) else None


def _expert_form(
    graph: Graph, node: Node, op: ExpertMatMul | Int8ExpertMatMul, form: ProductForm, transparent: Container[NodeId]
) -> ProductForm | None:
    route = _route(graph, node, transparent)
    if route is None:
        return None
    panels, size = graph.shape(node.inputs[1]).static_dims
    b = form.b._replace(strides=(panels // op.experts * size, 0, 0))
    return form._replace(b=b, scheme=op.scheme, route=route)


def is_product(node: Node) -> bool:
    """Whether a node is a product of matrices, whether or not there is a kernel for it."""
    return isinstance(
        node.op,
        MatMul
        | PanelMatMul
        | ExpertMatMul
        | RoutedMatMul
        | Int8MatMul
        | Int16MatMul
        | Int8BlockMatMul
        | Int8ExpertMatMul
        | ByteMatMul
        | WindowProduct
        | ChannelWindows,
    )


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


class EpilogueForm(NamedTuple):
    """How an epilogue reads, in the order of its points; where it reads the product, `offset` is a column.

    Its result has `columns` columns. `parts` are the columns at which it reads the product: one, unless parts of the
    product meet in it, as a gate and what it gates do.
    """

    columns: Size
    parts: tuple[int, ...]
    reads: list[MatrixLayout]


def epilogue_form(form: ProductForm, head: Node, points: KernelPoints, generator: Generator) -> EpilogueForm | None:
    """How an epilogue reads the product and what is beside it; None if no kernel can.

    The nest of the epilogue visits the elements of the product, or of a part of its columns, in their order, so that
    its axes are batch, row and column axes one after the other.
    """
    sizes = points.nest.sizes
    columns: Size | None = form.n
    groups = _axis_groups(sizes, (form.batch, form.m, form.n))
    if groups is None:
        columns = exact_quotient(product(sizes), form.batch * form.m)
        groups = None if columns is None else _axis_groups(sizes, (form.batch, form.m, columns))
    if columns is None or groups is None:
        return None
    parts: dict[int, None] = {}
    found = []
    for point in points.points:
        if not point.is_read:
            continue
        place = point.layout(points.nest)
        strides = [joined_stride([sizes[k] for k in axes], [place.strides[k] for k in axes]) for axes in groups]
        batch, row, column = strides
        if batch is None or row is None or column is None:
            return None
        if point.node is head:
            start = place.offset
            if place.strides != _part_strides(sizes, groups[2], columns, form.n):
                return None
            if not isinstance(start, int) or not _is_part(form, columns, start, generator):
                return None
            parts[start] = None
        found.append(MatrixLayout(point.node.id, place.offset, (batch, row, column)))
    return EpilogueForm(columns, tuple(parts), found)


def _part_strides(sizes: Dims, columns: Sequence[int], width: Size, n: Size) -> tuple[Size, ...]:
    """The strides with which a nest goes through `width` columns of rows of n."""
    whole = _contiguous(sizes).strides
    return tuple(s if k in columns or width == n else floordiv(s, width) * n for k, s in enumerate(whole))


def _is_part(form: ProductForm, columns: Size, start: int, generator: Generator) -> bool:
    """Whether columns of a product from `start` on can be computed apart: they begin with a panel of B, and so many
    columns are read in panels of that width."""
    if columns == form.n:
        return start == 0
    if not isinstance(columns, int):
        return False
    if form.scheme is not None:
        return start % PANEL_ROWS == 0
    if not form.packed:
        return True
    assert generator.panel_width is not None
    return start % form.packed == 0 and generator.panel_width(form.accumulator, columns) == form.packed


def part_offset(form: ProductForm, start: int) -> Size:
    """How far in B the column `start` is, in elements."""
    layout = form.scheme.panel_format if form.scheme is not None else None
    if layout is not None:
        assert isinstance(form.k, int)
        return start // PANEL_ROWS * layout.panel_bytes(form.k)
    if form.code_digits == 2:
        assert isinstance(form.k, int)
        return start * (form.k // BLOCK * COLUMN_BLOCK)
    if form.code_digits:
        # A panel has a line of words more than there are words of codes.
        return start * (form.k + WORD)
    return start * form.k if form.packed else start * form.b.strides[2]


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
