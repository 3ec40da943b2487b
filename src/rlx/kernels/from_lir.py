"""LIR kernels to loop IR: a group of MIR nodes becomes one `Kernel`.

Sizes that are symbolic become index parameters of the kernel, one per distinct expression, so that one piece of code
serves every binding. `MadeKernel` says what to pass for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from rlx.compile.fuse.index_maps import Unmappable
from rlx.compile.fuse.loop_nest import KernelPoints, is_reduction, points_of
from rlx.compile.fuse.matmul_nest import (
    EpilogueForm,
    MatrixLayout,
    ProductForm,
    epilogue_form,
    part_offset,
    product_form,
)
from rlx.compile.fuse.node_roles import is_literal, is_ordinary_number
from rlx.compile.fuse.piecewise import has_parts, part_points, stored_parts
from rlx.compile.generators import Generator, OwnKernel
from rlx.compile.lower.bodies import loop_kernel
from rlx.compile.lower.small_loops import ROUNDS, small_bodies, small_loop
from rlx.errors import InternalError
from rlx.ir.dtype import BYTE_FLOATS
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import MAP, MATMUL, REDUCE, ROW
from rlx.ir.leaves import Constant, Project
from rlx.ir.lir import LirKernel
from rlx.ir.op import Op
from rlx.ir.shape import Shape, Size
from rlx.kernels.cpu.byte_dots import has_fast_dots
from rlx.kernels.cpu.matmul.blocks import panel_width
from rlx.kernels.cpu.matmul.int16 import has_word_dots
from rlx.kernels.cpu.matmul.pairs import has_pairs, pairs_as_they_lie
from rlx.kernels.cpu.ops import OpSite, own_kernel
from rlx.kernels.cpu.small_loops import SmallLoopSpec
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import Buffer, Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import ScheduleTable
from rlx.kernels.specs.expr import Expr, bits_of, operand
from rlx.kernels.specs.from_nest import Naming, loops_of, part_of, pointwise_value, root_layouts
from rlx.kernels.specs.from_nest import is_pointwise as is_pointwise
from rlx.kernels.specs.map_parts import MapPart, MapSpec, RowSpec
from rlx.kernels.specs.products import Epilogue, Matrix, Product, ProductSpec
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.gradients import AttentionBackward
from rlx.ops.lowered.expert_products import ExpertMatMul, Int8ExpertMatMul

# What a few cores have as their share of the caches: what is read again after more was stored comes from memory.
CACHE_BYTES = 16 << 20
# Buffers of a kernel are 31 on Metal, and 32 on some adapters of WebGPU.
MOST_OPERANDS = 24


@cache
def generator(machine: Machine) -> Generator:
    """What there are kernels for on a machine."""

    def whole_op(graph: Graph, node: Node) -> OwnKernel | None:
        """The kernel of an op as a whole, or the loop around the kernels of its bodies."""
        found = own_kernel(graph, node, machine)
        if found is None and not machine.is_gpu:
            found = small_loop(graph, node, made)
        return found or loop_kernel(graph, node, made)

    # Weights are laid out for the lanes of CPUs.
    has_byte_floats = machine.gpu == "nvptx"
    width = None if machine.is_gpu else lambda dtype, n: panel_width(machine, dtype, n)
    made = Generator(
        is_pointwise if has_byte_floats else _is_wide_enough,
        whole_op,
        width,
        lambda dtype: has_pairs(machine, dtype),
        lambda graph, node: not has_own_attention(machine, graph, node),
        _line_bytes(machine),
        shares_lines=machine.shares_lines,
        has_byte_dots=lambda layout: has_fast_dots(machine, layout),
        has_word_dots=has_word_dots(machine),
        has_dot4=bool(machine.dot4_lanes) and not machine.is_gpu,
        reads_rows=machine.gpu == "nvptx",
        widens_experts=not machine.is_gpu,
        shares_logs=lambda graph, node: _has_gradient_kernels(machine, graph, node),
        cuts_columns=machine.gpu == "nvptx",
        repeats_values=machine.gpu == "nvptx",
        widens_late=machine.gpu == "nvptx",
        reads_turned=machine.has_mma,
        has_byte_floats=has_byte_floats,
        multiplies_bytes=machine.has_wgmma,
        multiplies_windows=machine.has_wgmma,
        reads_pixels=machine.holds_windows,
        sorts_blocks=machine.sorts_blocks,
        shares_steps=not machine.is_gpu,
        factor_bytes=machine.shared_bytes if machine.is_gpu and machine.has_f64 else 0,
        sorts_values=not machine.is_gpu,
        has_f64=machine.has_f64,
        most_operands=MOST_OPERANDS if machine.is_text else 0,
        # Few warps multiply, and while they finish a tile the tensor cores wait.
        costly_epilogue=1 if machine.has_wgmma else 1 << 30,
        cache_bytes=0 if machine.is_gpu else CACHE_BYTES,
    )
    return made


def _line_bytes(machine: Machine) -> int:
    if not machine.shares_lines:
        return 0 if machine.is_gpu else machine.line_bytes
    from rlx.kernels.gpu.fourier_blocks import LINE_BYTES

    return LINE_BYTES


def _is_wide_enough(graph: Graph, node: Node) -> bool:
    """Whether a map can compute a node where f8 is no type of kernels."""
    if not is_pointwise(graph, node):
        return False
    return BYTE_FLOATS.isdisjoint((node.shape.dtype, *(graph.shape(i).dtype for i in node.inputs)))


def has_own_attention(machine: Machine, graph: Graph, node: Node) -> bool:
    """Whether an attention is not to be cut: GPUs that compile text have one form for all, kernels for tensor cores
    share keys among blocks themselves, and tiles have rows enough."""
    if machine.is_text:
        return True
    from rlx.kernels.gpu.attention import few_rows_refusal
    from rlx.kernels.gpu.attention_tiles import has_tiles

    assert isinstance(node.op, Attention)
    operands = [graph.shape(i) for i in node.inputs]
    return has_tiles(machine, node.op, operands) or not few_rows_refusal(machine, node.op, operands)


def _has_gradient_kernels(machine: Machine, graph: Graph, node: Node) -> bool:
    """Whether there are kernels for attention with logarithms and for the gradients from them, by tensor cores or by
    tiles."""
    from rlx.kernels.gpu.attention import gradient_refusal
    from rlx.kernels.gpu.attention_tiles import has_tiles

    assert isinstance(node.op, AttentionBackward)
    operands = [graph.shape(i) for i in node.inputs]
    return has_tiles(machine, node.op, operands) or not gradient_refusal(machine, node.op, operands)


class MadeKernel(NamedTuple):
    """A loop kernel and its arguments: buffers in parameter order, then the value of every named extent. `numbers` says
    which of the extents are the bits of which constants."""

    kernel: Kernel
    buffers: tuple[NodeId, ...]
    extents: tuple[Size, ...]
    numbers: tuple[tuple[int, NodeId], ...] = ()


def is_passed(machine: Machine, node: Node) -> bool:
    """Whether kernels of a machine get a constant as an argument, so that its value is no part of their code. GPUs read
    arguments from memory; they keep numbers in their code."""
    return not machine.is_gpu and is_ordinary_number(node)


def number_bits(node: Node) -> int:
    """What is passed for a constant."""
    assert isinstance(node.op, Constant)
    return bits_of(node.op.value.array.reshape(()).item(), node.shape.dtype)


def table_for(machine: Machine) -> ScheduleTable:
    """The schedules of a kind of machine."""
    if machine.is_gpu:
        from rlx.kernels.gpu.schedules import TABLE

        return TABLE
    from rlx.kernels.cpu.schedules import TABLE as CPU_TABLE

    return CPU_TABLE


def make_kernel(
    name: str, graph: Graph, kernel: LirKernel, machine: Machine, schedules: ScheduleTable | None = None
) -> MadeKernel:
    """The loop kernel of a `map`, `row`, `reduce` or `matmul` group, or that of one op: a spec of what it computes, and
    the first schedule that fits it."""
    maker = _Maker(name, graph, kernel, machine, schedules or table_for(machine))
    if kernel.kind == MATMUL:
        return maker.matmul()
    if kernel.kind in (ROW, REDUCE):
        return maker.rows()
    if kernel.kind == MAP:
        return maker.map()
    return maker.small_loop() if kernel.kind == ROUNDS else maker.op()


Spec: TypeAlias = MapSpec | RowSpec | ProductSpec | OpSite | SmallLoopSpec


class _Maker:
    def __init__(self, name: str, graph: Graph, kernel: LirKernel, machine: Machine, schedules: ScheduleTable) -> None:
        self.name, self.graph, self.lir, self.machine, self.schedules = name, graph, kernel, machine, schedules
        self.covered = frozenset(kernel.nodes)
        self.extent_names: dict[Size, str] = {}
        self.arguments: list[int] = []
        self.buffer_names: dict[NodeId, str] = {}
        self.numbers: dict[NodeId, str] = {}
        self.naming = Naming(self.buffer, self.extent, self.number)

    def extent(self, size: Size) -> Extent:
        if isinstance(size, int):
            return size
        return self.extent_names.setdefault(size, f"d{len(self.extent_names)}")

    def argument(self, size: int) -> str:
        """The name of a parameter of its own for a fixed size, also where another one is as large."""
        self.arguments.append(size)
        return f"n{len(self.arguments) - 1}"

    def number(self, node: Node) -> str | None:
        """The name of the parameter for a constant, if it is one."""
        return self.numbers.setdefault(node.id, f"c{len(self.numbers)}") if is_passed(self.machine, node) else None

    def buffer(self, node: NodeId) -> str:
        letter = "y" if node in self.lir.outputs else "x"
        return self.buffer_names.setdefault(node, f"{letter}{len(self.buffer_names)}")

    def finish(self, spec: Spec, buffers: Sequence[NodeId] | None = None) -> MadeKernel:
        kernel = self.schedules.make(self.name, self.machine, spec)
        if buffers is None:
            nodes = {name: node for node, name in self.buffer_names.items()}
            buffers = [nodes[p.name] for p in kernel.params if isinstance(p, Buffer)]
        by_name = {name: size for size, name in self.extent_names.items()}
        by_name |= {f"n{number}": size for number, size in enumerate(self.arguments)}
        constants = {name: node for node, name in self.numbers.items()}
        by_name |= {name: number_bits(self.graph.nodes[node]) for name, node in constants.items()}
        names = [p.name for p in kernel.params if p.name in by_name]
        numbers = tuple((i, constants[name]) for i, name in enumerate(names) if name in constants)
        return MadeKernel(kernel, tuple(buffers), tuple(by_name[name] for name in names), numbers)

    def points(self, roots: Sequence[NodeId]) -> KernelPoints:
        nodes = [self.graph.nodes[i] for i in sorted(self.covered)]
        return points_of(self.graph, self.covered, [n for n in nodes if is_reduction(self.graph, n)], roots)

    def map(self) -> MadeKernel:
        """One index space for each part of values that are put together from parts, and for the others as few as
        serve them all."""
        parts: list[MapPart] = []
        whole: list[list[NodeId]] = []
        for root in (self.graph.nodes[r] for r in self.lir.outputs):
            if has_parts(root):
                found = stored_parts(self.graph, self.covered, root)
                parts += [part_of(self.graph, part_points(self.graph, self.covered, p), self.naming) for p in found]
            else:
                self.add_to_first(whole, root.id)
        return self.finish(MapSpec((*map(self.whole_map, whole), *parts)))

    def add_to_first(self, groups: list[list[NodeId]], root: NodeId) -> None:
        """Add a root to the first group in whose loops it can be computed."""
        for group in groups:
            try:
                self.points([*group, root])
            except Unmappable:
                continue
            group.append(root)
            return
        groups.append([root])

    def whole_map(self, roots: Sequence[NodeId]) -> MapPart:
        points = self.points(roots)
        loops = loops_of(self.graph, points, root_layouts(self.graph, points, roots), self.naming)
        return MapPart(loops.rows, loops.inputs, loops.outputs, loops.exprs)

    def rows(self) -> MadeKernel:
        roots = self.lir.outputs
        points = self.points(roots)
        loops = loops_of(self.graph, points, root_layouts(self.graph, points, roots), self.naming)
        return self.finish(RowSpec(*loops))

    def matmul(self) -> MadeKernel:
        head = self.graph.nodes[self.lir.nodes[0]]
        form = product_form(self.graph, head, self.covered, generator(self.machine))
        if form is None:
            raise InternalError(f"make_kernel: {head!r} is no product of matrices")
        (result,) = self.lir.outputs
        n, starts = form.n, (0,)  # type: Size, tuple[int, ...]
        epilogue, extra = None, []  # type: tuple[Epilogue | None, list[NodeId]]
        if result != head.id:
            shape, epilogue, extra = self.epilogue(form, head, result)
            n, starts = shape.columns, shape.parts
        parts = [form.b._replace(offset=form.b.offset + part_offset(form, start)) for start in starts]
        stored = MatrixLayout(result, 0, (form.m * n if form.batch != 1 else 0, n, 1))
        a, b, c = self.matrix("a", form.a), self.matrices("b", parts), self.matrix("c", stored)
        sizes = self.extent(form.m), self.extent(n), self.extent(form.k)
        product = Product(*sizes, a, b, c, epilogue, self.extent(form.batch))
        if form.route is not None:
            extra.append(form.route)
        return self.finish(self.product(form, head, product), [form.a.node, *(p.node for p in parts), result, *extra])

    def product(self, form: ProductForm, head: Node, product: Product) -> ProductSpec:
        """A product, and how its B is stored."""
        layout = form.scheme.panel_format if form.scheme is not None else None
        experts = 0
        if form.route is not None:
            stack = head.op.experts if isinstance(head.op, ExpertMatMul | Int8ExpertMatMul) else None
            experts = self.graph.shape(head.inputs[1]).static_dims[0] if stack is None else stack
        packed = layout is None and not experts and self.has_panels(form, product.n)
        if (form.has_pairs or (form.code_digits and layout is None)) and not packed:
            raise InternalError(f"make_kernel: {head!r} needs a B in panels")
        is_plain = layout is None and not (packed or experts or form.code_digits or form.windows)
        in_pairs = form.has_pairs or (is_plain and pairs_as_they_lie(self.machine, product))
        return ProductSpec(product, form.accumulator, packed, in_pairs, layout, form.code_digits, experts, form.windows)

    def has_panels(self, form: ProductForm, n: Extent) -> bool:
        """Whether n columns of B lie in memory in panels, or as one panel does: few columns, side by side. GPUs have
        their own way for those."""
        if not isinstance(n, int) or (self.machine.is_gpu and not form.packed):
            return False
        width = panel_width(self.machine, form.accumulator, n)
        if form.packed not in (0, width):
            raise InternalError(f"make_kernel: panels of {form.packed} columns, {self.machine.name} reads {width}")
        return form.packed == width or (form.b.strides[1:] == (n, 1) and n == width)

    def op(self) -> MadeKernel:
        site = OpSite(self.name, self.graph, self.lir, self.machine, self.extent, self.argument)
        return self.finish(site, site.nodes)

    def small_loop(self) -> MadeKernel:
        site = OpSite(self.name, self.graph, self.lir, self.machine, self.extent, self.argument)
        results = [self.graph.nodes[n].op for n in self.lir.outputs]

        def bodies_of(op: Op, operands: tuple[Shape, ...]) -> tuple[Graph, ...]:
            found = small_bodies(op, operands, generator(self.machine))
            if found is None:
                raise InternalError(f"make_kernel: {op.mnemonic} is no small loop")
            return found

        numbers = tuple(r.index if isinstance(r, Project) else 0 for r in results)
        return self.finish(SmallLoopSpec(site, numbers, bodies_of), site.nodes)

    def matrix(self, name: str, place: MatrixLayout) -> Matrix:
        batch, row, column = (self.extent(s) for s in place.strides)
        return Matrix(name, self.graph.shape(place.node).dtype.real, row, column, batch, self.extent(place.offset))

    def matrices(self, name: str, places: Iterable[MatrixLayout]) -> tuple[Matrix, ...]:
        return tuple(self.matrix(f"{name}{number}", place) for number, place in enumerate(places))

    def epilogue(self, form: ProductForm, head: Node, result: NodeId) -> tuple[EpilogueForm, Epilogue, list[NodeId]]:
        """What is done to the product or to parts of it, and the buffers that are read beside it."""
        points = points_of(self.graph, self.covered - {head.id}, (), [result])
        shape = epilogue_form(form, head, points, generator(self.machine))
        if shape is None:
            raise InternalError(f"make_kernel: {self.graph.nodes[result]!r} is no epilogue of {head!r}")
        read = iter(shape.reads)
        operands: dict[MatrixLayout, int] = {}
        values: list[Expr] = []
        for point in points.points:
            if not point.is_read:
                values.append(pointwise_value(point.node, [values[i] for i in point.operands]))
                continue
            place = next(read)
            if point.node is head:
                values.append(operand(shape.parts.index(int(place.offset)), head.shape.dtype))
            elif is_literal(point.node):
                values.append(self.naming.literal(point.node))
            else:
                number = len(shape.parts) + operands.setdefault(place, len(operands))
                values.append(operand(number, point.node.shape.dtype.real))
        epilogue = Epilogue((values[points.roots[0]],), self.matrices("e", operands))
        return shape, epilogue, [place.node for place in operands]
