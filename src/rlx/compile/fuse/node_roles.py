"""What a node is to the grouping: memory, a view, something that a kind of kernel computes, or a call."""

from __future__ import annotations

import math
from collections.abc import Container

from rlx.compile.fuse.index_maps import is_view, keeps_order
from rlx.compile.fuse.matmul_nest import is_product, product_form
from rlx.compile.generators import Generator
from rlx.compile.memory.liveness import is_pure_view
from rlx.compile.weights.pack_floats import widens_panels
from rlx.compile.weights.row_weights import widens_experts, widens_weight
from rlx.ir.dtype import BYTE_FLOATS, DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, MAP, MATMUL, PARTS, VIEW
from rlx.ir.leaves import Constant
from rlx.ops.pointwise.complex_numbers import MakeComplex
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.creation import DimValue, Iota
from rlx.ops.shape.indexing import GatherNd
from rlx.ops.shape.movement import Concat

# Ops that cost about as much as the load that they replace.
CHEAP = frozenset(
    {"cast", "neg", "abs", "not", "add", "sub", "mul", "max", "min", "and", "or", "xor", "where"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "relu", "square"}
)


def kernel_kind(graph: Graph, node: Node, generator: Generator, transparent: Container[NodeId] = frozenset()) -> str:
    """The kind of kernel that a node would be alone, reading through `transparent` views.

    Rows are maps here, until it is known what belongs to them; a joined value is `parts`, a map over several spaces.
    """
    if node.op.effect:
        return CALL
    own = generator.own_kernel(graph, node)
    if own is not None:
        return own.kind
    if len(node.shapes) != 1:
        return CALL
    if is_view(graph, node) and is_alias(graph, node):
        return VIEW
    operands = [graph.nodes[i] for i in node.inputs]
    if isinstance(node.op, MakeComplex):
        # Two parts that are stored side by side; what it is written as when all else has its form.
        return PARTS if all(is_native(n, generator) for n in operands) else CALL
    if not all(is_native(n, generator) for n in (node, *operands)):
        return CALL
    if is_product(node):
        return CALL if product_form(graph, node, transparent, generator) is None else MATMUL
    if isinstance(node.op, Concat):
        return PARTS
    is_map = (
        is_view(graph, node)
        or isinstance(node.op, Gather | GatherNd | Iota | DimValue)
        or (isinstance(node.op, Reduce) and node.op.kind is not ReduceOp.Mean)
        or generator.is_pointwise(graph, node)
    )
    return MAP if is_map else CALL


def may_be_transparent(graph: Graph, node: Node, generator: Generator, users: list[NodeId]) -> bool:
    """Whether kernels can read through a node: a view, a weight as products widen it, or something made of positions
    and sizes alone."""
    if is_memory(node) or not is_native(node, generator):
        return False
    if is_view(graph, node) or isinstance(node.op, Iota | DimValue):
        return True
    if generator.widens_experts and widens_experts(graph, node, users):
        return True
    return widens_weight(graph, node, users) if generator.reads_rows else widens_panels(graph, node)


def is_memory(node: Node) -> bool:
    """A value that is in memory before anything runs."""
    return node.is_leaf or isinstance(node.op, Constant)


def is_literal(node: Node) -> bool:
    """A constant of one element, which kernels do not load: it is in their code, or passed to them as a number."""
    return isinstance(node.op, Constant) and node.op.value.array.size == 1 and is_native(node)


def is_ordinary_number(node: Node) -> bool:
    """Whether code is the same for this number as for any other: a float that is finite and no power of two.

    Zero and powers of two make operations cheaper or go away. Integers decide how divisions and shifts are done, and
    where things lie."""
    if not is_literal(node) or not node.shape.dtype.is_float:
        return False
    assert isinstance(node.op, Constant)
    number = float(node.op.value.array.reshape(()).item())
    return math.isfinite(number) and math.frexp(abs(number))[0] not in (0.0, 0.5)


def is_native(node: Node, generator: Generator | None = None) -> bool:
    """Whether kernels, those of a generator or all there are, can load and store values of this type."""
    if len(node.shapes) != 1 or node.shape.dtype.is_complex:
        return False
    if node.shape.dtype is DType.F64 and generator is not None and not generator.has_f64:
        return False
    has_bytes = generator is not None and generator.has_byte_floats
    return not node.shape.dtype.is_storage or (has_bytes and node.shape.dtype in BYTE_FLOATS)


def is_alias(graph: Graph, view: Node) -> bool:
    """Whether the elements of a stored view lie side by side in its operand, so that it needs no memory of its own."""
    return keeps_order(view) or is_pure_view(graph, view)


def is_table(reader: Node, node: NodeId) -> bool:
    """Whether a node is what a gather looks positions up in: it must be in memory."""
    return isinstance(reader.op, Gather | GatherNd) and reader.inputs[0] == node
