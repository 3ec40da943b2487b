"""LIR kernels to loop IR: a group of MIR nodes becomes one `Kernel`.

Sizes that are symbolic become index parameters of the kernel, one per distinct expression, so that one piece of code
serves every binding. `MadeKernel` says what to pass for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.compile.generators import Generator
from rlx.compile.index_maps import layout
from rlx.compile.kernel_points import JoinedPart, KernelPoints, is_reduction, joined_parts, points_of
from rlx.compile.kernel_roles import is_literal
from rlx.compile.products import MatrixLayout, epilogue_layouts, product_form
from rlx.errors import InternalError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.lir import LirKernel
from rlx.ir.shape import Size
from rlx.kernels.elementwise import MapPart, piecewise_kernel
from rlx.kernels.expr import Expr, operand
from rlx.kernels.extents import Extent
from rlx.kernels.from_points import Naming, literal_of, loops_of, pointwise_value, root_layouts
from rlx.kernels.from_points import is_pointwise as is_pointwise
from rlx.kernels.loop_ir import Buffer, Kernel
from rlx.kernels.matmul import Epilogue, Matrix, matmul_kernel
from rlx.kernels.op_kernels import OpSite, build_op_kernel, own_kernel
from rlx.kernels.rows import row_kernel
from rlx.kernels.targets import Target
from rlx.ops.movement import Concat

GENERATOR = Generator(is_pointwise, own_kernel)


class MadeKernel(NamedTuple):
    """A loop kernel and its arguments: buffers in parameter order, then the value of every named extent."""

    kernel: Kernel
    buffers: tuple[NodeId, ...]
    extents: tuple[Size, ...]


def make_kernel(name: str, graph: Graph, kernel: LirKernel, target: Target) -> MadeKernel:
    """The loop kernel of a `map`, `row`, `reduce` or `matmul` group, or that of one op."""
    maker = _Maker(name, graph, kernel, target)
    if kernel.kind == "matmul":
        return maker.matmul()
    if kernel.kind in ("row", "reduce"):
        return maker.rows()
    if kernel.kind == "map":
        return maker.map()
    return maker.op()


class _Maker:
    def __init__(self, name: str, graph: Graph, kernel: LirKernel, target: Target) -> None:
        self.name, self.graph, self.lir, self.target = name, graph, kernel, target
        self.covered = frozenset(kernel.nodes)
        self.extent_names: dict[Size, str] = {}
        self.buffer_names: dict[NodeId, str] = {}
        self.naming = Naming(self.buffer, self.extent)

    def extent(self, size: Size) -> Extent:
        if isinstance(size, int):
            return size
        return self.extent_names.setdefault(size, f"d{len(self.extent_names)}")

    def buffer(self, node: NodeId) -> str:
        letter = "y" if node in self.lir.outputs else "x"
        return self.buffer_names.setdefault(node, f"{letter}{len(self.buffer_names)}")

    def finish(self, kernel: Kernel, buffers: Sequence[NodeId] | None = None) -> MadeKernel:
        if buffers is None:
            nodes = {name: node for node, name in self.buffer_names.items()}
            buffers = [nodes[p.name] for p in kernel.params if isinstance(p, Buffer)]
        by_name = {name: size for size, name in self.extent_names.items()}
        extents = tuple(by_name[p.name] for p in kernel.params if p.name in by_name)
        return MadeKernel(kernel, tuple(buffers), extents)

    def points(self, roots: Sequence[NodeId]) -> KernelPoints:
        nodes = [self.graph.nodes[i] for i in sorted(self.covered)]
        return points_of(self.graph, self.covered, [n for n in nodes if is_reduction(self.graph, n)], roots)

    def map(self) -> MadeKernel:
        root = self.graph.nodes[self.lir.outputs[0]]
        parts = self.joined_parts(root) if isinstance(root.op, Concat) else [self.whole_map()]
        return self.finish(piecewise_kernel(self.name, self.target, parts))

    def whole_map(self) -> MapPart:
        roots = self.lir.outputs
        points = self.points(roots)
        loops = loops_of(self.graph, points, root_layouts(self.graph, points, roots), self.naming)
        return MapPart(loops.rows, loops.inputs, loops.outputs, loops.exprs)

    def joined_parts(self, root: Node) -> list[MapPart]:
        """One part per operand of a concat, each stored where it begins."""
        return [self.joined_part(root, part) for part in joined_parts(self.graph, self.covered, root)]

    def joined_part(self, root: Node, part: JoinedPart) -> MapPart:
        points = self.points([part.node])
        maps = points.nest.full(self.graph.shape(part.node).dims)
        assert maps is not None
        moved = tuple(m.moved(start) for m, start in zip(maps, part.starts))
        place = layout(root.shape.dims, moved, len(points.nest.sizes))
        loops = loops_of(self.graph, points, [(root.id, place)], self.naming)
        return MapPart(loops.rows, loops.inputs, loops.outputs, loops.exprs)

    def rows(self) -> MadeKernel:
        roots = self.lir.outputs
        points = self.points(roots)
        loops = loops_of(self.graph, points, root_layouts(self.graph, points, roots), self.naming)
        return self.finish(row_kernel(self.name, self.target, *loops))

    def matmul(self) -> MadeKernel:
        head = self.graph.nodes[self.lir.nodes[0]]
        form = product_form(self.graph, head, self.covered)
        if form is None:
            raise InternalError(f"make_kernel: {head!r} is no product of matrices")
        (result,) = self.lir.outputs
        epilogue, extra = None, []  # type: tuple[Epilogue | None, list[NodeId]]
        if result != head.id:
            epilogue, extra = self.epilogue(head, result)
        a, b = form.a, form.b
        kernel = matmul_kernel(
            self.name,
            self.target,
            m=self.extent(form.m),
            n=self.extent(form.n),
            k=self.extent(form.k),
            batch=self.extent(form.batch),
            a=self.matrix("a", a),
            b=self.matrix("b", b),
            c=self.matrix("c", MatrixLayout(result, 0, (form.m * form.n if form.batch != 1 else 0, form.n, 1))),
            epilogue=epilogue,
        )
        return self.finish(kernel, [a.node, b.node, result, *extra])

    def op(self) -> MadeKernel:
        site = OpSite(self.name, self.graph, self.lir, self.target, self.extent)
        return self.finish(build_op_kernel(site), site.nodes)

    def matrix(self, name: str, place: MatrixLayout) -> Matrix:
        batch, row, column = (self.extent(s) for s in place.strides)
        return Matrix(name, self.graph.shape(place.node).dtype, row, column, batch)

    def epilogue(self, head: Node, result: NodeId) -> tuple[Epilogue, list[NodeId]]:
        """What is done to the product, and the buffers that it reads beside it."""
        form = product_form(self.graph, head, self.covered)
        points = points_of(self.graph, self.covered - {head.id}, (), [result])
        places = epilogue_layouts(self.graph, form, head, points) if form is not None else None
        if places is None:
            raise InternalError(f"make_kernel: {self.graph.nodes[result]!r} is no epilogue of {head!r}")
        read = iter(places)
        operands: dict[MatrixLayout, int] = {}
        values: list[Expr] = []
        for point in points.points:
            if not point.is_read:
                values.append(pointwise_value(point.node, [values[i] for i in point.operands]))
                continue
            place = next(read)
            if point.node is head:
                values.append(operand(0, head.shape.dtype))
            elif is_literal(point.node):
                values.append(literal_of(point.node))
            else:
                values.append(operand(1 + operands.setdefault(place, len(operands)), point.node.shape.dtype))
        matrices = tuple(self.matrix(f"e{n}", place) for n, place in enumerate(operands))
        return Epilogue(values[points.roots[0]], matrices), [place.node for place in operands]
