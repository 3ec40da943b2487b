"""Kernels that compute one op as a whole, one file per family, and the table in which they are found.

A family registers what it has:

    @op_kernel(Cumulative, kind="scan", supports=lambda op, operands: operands[0].dtype in FLOATS)
    def cumulative(site: OpSite) -> None:
        k, (x,), (y,) = site.k, site.inputs, site.outputs
        with k.parallel("row", x.dims[0]) as row:
            ...

`supports` sees the op and the types of its operands; sizes may be symbolic. What it turns down is decomposed, or called
on the host if there is nothing to decompose. Native code trusts what it is given: ids that may be out of range are
clamped or skipped as the op says, never trusted.

A custom op has its kernel by the class of its `OpExtension`: `@op_kernel(Scale, kind="scale")`. There the op of a site
is `Custom`, whose `attrs` are the bytes that the user gave.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from rlx.compile.fuse.matmul_nest import operand_layout
from rlx.compile.generators import OwnKernel
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirKernel
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape, Size
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents
from rlx.kernels.ir.loop_ir import INDEX, Buffer, Kernel, Value
from rlx.kernels.machines import Machine
from rlx.ops.control.custom import Custom, OpExtension

# The ops of rlx that each family has kernels for; it is imported when one of them is first met.
FAMILIES: dict[str, tuple[str, ...]] = {
    "arg_reduce": ("ArgReduce",),
    "attention": ("Attention", "AttentionWithSinks", "AttentionParts"),
    "attention_backward": ("AttentionBackward",),
    "attention_gradients": ("AttentionWithLogs", "AttentionGradients"),
    "attention_parts": ("AttentionJoin",),
    "barrier": ("Barrier",),
    "bidiagonal": ("Bidiagonalized",),
    "conv": ("Conv", "Conv2dBackwardInput", "ConvTranspose2d"),
    "conv_weights": ("Conv2dBackwardWeight",),
    "cumulative": ("Cumulative", "RunningFrom"),
    "dense_solve": ("TriangularSolve",),
    "factorize": ("Lu", "CholeskyFactor"),
    "expert_route": ("ExpertRoute",),
    "fft": ("FftLines", "FftHalves", "FftRealLines"),
    "int16_words": ("Int16Panels", "Int16Rows"),
    "int8_blocks": ("Int8Blocks",),
    "jacobi": ("OrthogonalRows",),
    "int8_panels": ("Int8Lines", "Int8Panels"),
    "lu_steps": ("LuStep",),
    "pair_factors": ("Hessenberg", "PairBasis", "PairBidiagonal", "PairLu", "PairReflectors"),
    "plane_rotations": ("TridiagonalRotations", "BidiagonalRotations", "RotatedRows"),
    "pool": ("ReduceWindow", "MaxPool2dBackward"),
    "quant_gather": ("PanelGather",),
    "quant_layout": ("QuantPanels",),
    "radix": ("InverseOrder", "RadixCounts", "RadixPlaces", "TopOfParts"),
    "random": ("RandomBits",),
    "reflectors": ("Reflectors", "ReflectedBasis"),
    "scatter": ("ScatterNd",),
    "slices": ("DynamicSlice", "DynamicUpdateSlice"),
    "schur": ("SchurSteps", "SplitPairs", "TriangularVectors"),
    "small_matrices": ("SmallCholesky", "SmallSolve"),
    "sort_values": ("SortedValues",),
    "sort": ("SortOrder", "TopK", "TopKWithValues", "SearchSorted"),
    "splat_blend": ("GaussianSplatRasterize", "SplatBlend", "SplatPulls", "SplatGather"),
    "splat_lists": ("SplatBoxes", "SplatTileCounts", "SplatTileLists"),
    "tridiagonal": ("Tridiagonalized",),
    "tridiagonal_merge": ("MergedPoles", "SecularRoots", "SecularWeights", "MergeVectors"),
    "ssm": ("SelectiveScan", "GatedDeltaNet", "LinearAttention"),
    "window_gradients": ("WindowGradient", "PixelMatMul"),
    "window_products": ("WindowMatMul", "ChannelWindows"),
}
# Those that compute in f64, whatever the type of their operands.
IN_F64 = {
    *("bidiagonal", "dense_solve", "factorize", "jacobi", "lu_steps", "pair_factors", "plane_rotations", "reflectors"),
    *("schur", "small_matrices", "tridiagonal", "tridiagonal_merge"),
}
_FAMILY_OF = {op: family for family, names in FAMILIES.items() for op in names}


class OpKernel(NamedTuple):
    """How one kind of op is computed as a whole; `own` is what grouping has to know of it."""

    own: OwnKernel
    supports: Callable[..., bool]
    build: Callable[[OpSite], None]
    runs_on: Callable[[Machine], bool]


# What an op is: its class, or that of the extension that a custom op refers to.
Meaning: TypeAlias = type[Op] | type[OpExtension]

_kernels: dict[Meaning, OpKernel] = {}


def op_kernel(
    *ops: Meaning,
    kind: str,
    supports: Callable[..., bool] = lambda op, operands: True,
    strided: Iterable[int] = (),
    updates: int | None = None,
    runs_on: Callable[[Machine], bool] = lambda machine: True,
) -> Callable[[Callable[[OpSite], None]], Callable[[OpSite], None]]:
    """Register a function as the kernel of these ops; see `OwnKernel` for `strided` and `updates`. Machines that
    `runs_on` refuses do as if there were none."""

    def register(build: Callable[[OpSite], None]) -> Callable[[OpSite], None]:
        for op in ops:
            _kernels[op] = OpKernel(OwnKernel(kind, frozenset(strided), updates), supports, build, runs_on)
        return build

    return register


def _find(op: Op) -> OpKernel | None:
    meaning = type(op.extension()) if isinstance(op, Custom) else type(op)
    if meaning not in _kernels and meaning.__module__.startswith("rlx.ops."):
        family = _FAMILY_OF.get(meaning.__name__)
        if family is not None:
            importlib.import_module(f"rlx.kernels.cpu.ops.{family}")
    return _kernels.get(meaning)


def own_kernel(graph: Graph, node: Node, machine: Machine) -> OwnKernel | None:
    """The kernel that a node has as a whole on a machine, or None."""
    found = _find(node.op)
    if found is None or not found.runs_on(machine):
        return None
    if not machine.has_f64 and _FAMILY_OF.get(type(node.op).__name__) in IN_F64:
        return None
    operands = [graph.nodes[i].shapes for i in node.inputs]
    if any(len(types) != 1 for types in operands):
        return None
    return found.own if found.supports(node.op, [types[0] for types in operands]) else None


def build_op_kernel(site: OpSite) -> Kernel:
    found = _find(site.op)
    if found is None:
        raise InternalError(f"{site.op.mnemonic} has no kernel of its own")
    found.build(site)
    return site.k.build()


class Slab(NamedTuple):
    """An operand or a result: `buffer[offset + sum(index*stride)]`. `shape` has the sizes as the graph knows them.
    Complex numbers lie in their buffer part by part, so all places in it are twice as far."""

    buffer: Buffer
    shape: Shape
    dims: tuple[Value, ...]
    strides: tuple[Value, ...]
    offset: Value

    def at(self, *index: Value | int) -> Value:
        """The element offset of a position; axes that are left away are at 0."""
        place = self.offset
        for i, stride in zip(index, self.strides):
            place = place + stride * i
        return place


def _builder(name: str, machine: Machine) -> KernelBuilder:
    """Threads of GPUs may exchange values, and multiply matrices together."""
    if not machine.is_gpu:
        return KernelBuilder(name)
    from rlx.kernels.ir.group_builder import GroupBuilder

    return GroupBuilder(name)


class OpSite:
    """What a kernel of one op is made from: a builder, the op, and its operands and results in memory.

    Parameters are the pointers of operands (each buffer once) and results, then the sizes. `nodes` are the values that
    belong to the pointers.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        kernel: LirKernel,
        machine: Machine,
        extent: Callable[[Size], Extent],
        argument: Callable[[int], str],
    ) -> None:
        self.k = _builder(name, machine)
        self.machine = machine
        self._graph, self._name_size, self._name_argument = graph, extent, argument
        node = graph.nodes[kernel.nodes[0]]
        self.op = node.op
        covered = frozenset(kernel.nodes) - {node.id}
        layouts = [operand_layout(graph, i, covered) for i in node.inputs]
        self._buffers: dict[NodeId, Buffer] = {}
        # Results may be stored over an operand that nobody reads any more: nothing is promised about aliasing.
        for number, (memory, _, _) in enumerate(layouts):
            if memory not in self._buffers:
                dtype, align = self._element(graph.nodes[memory], graph.shape(memory).dtype)
                self._buffers[memory] = self.k.pointer(f"x{number}", dtype, noalias=False, align=align)
        for number, result in enumerate(kernel.outputs):
            dtype, align = self._element(graph.nodes[result], graph.shape(result).dtype)
            name = f"y{number}"
            self._buffers[result] = self.k.pointer(name, dtype, write=True, read=True, noalias=False, align=align)
        self.nodes: tuple[NodeId, ...] = tuple(self._buffers)
        self._extents = Extents(self.k)
        self.inputs = tuple(self._slab(m, graph.shape(i), o, s) for i, (m, o, s) in zip(node.inputs, layouts))
        self.outputs = tuple(self._slab(r, graph.shape(r), 0, contiguous(graph.shape(r).dims)) for r in kernel.outputs)

    def _element(self, node: Node, dtype: DType) -> tuple[DType, int]:
        """What a buffer has, and where it begins: where a complex number may, and constants where two numbers may, if
        the machine loads both at once."""
        has_pairs = self.machine.loads_pairs and (dtype.is_complex or isinstance(node.op, Constant))
        return dtype.real, 2 * dtype.real.size_bytes if has_pairs else 0

    def size(self, size: Size) -> Value:
        """A size as a value of the kernel: a literal, or a parameter."""
        return self.k.const(size, INDEX) if isinstance(size, int) else self._extents(self._name_size(size))

    def argument(self, size: int) -> Value:
        """A fixed size as a parameter, so that one piece of code serves every size."""
        return self._extents(self._name_argument(size))

    def _slab(self, memory: NodeId, shape: Shape, offset: Size, strides: Sequence[Size]) -> Slab:
        dims, steps = (tuple(self.size(s) for s in sizes) for sizes in (shape.dims, strides))
        return Slab(self._buffers[memory], shape, dims, steps, self.size(offset))


def contiguous(dims: Dims) -> tuple[Size, ...]:
    """The strides of a value whose elements lie side by side, the last axis fastest."""
    strides: list[Size] = []
    step: Size = 1
    for d in reversed(dims):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))
