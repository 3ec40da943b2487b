"""Loops and branches of which a round computes a few numbers: each is one kernel, whose carries stay in registers.

Starting the kernels of a round takes tens of nanoseconds, which is longer than such rounds take. What is small enough:
all values of the bodies have a known number of elements, `MOST_ELEMENTS` at most, and are computed by pointwise ops,
views, small reductions, products of small matrices, and such loops again. Nobody can stop a kernel, so a while without
a bound becomes a while around one with the bound `MOST_ROUNDS`: between two of them a run can be interrupted.

    small_bodies(op, operand_types, generator)      # the bodies as graphs, or None for a loop that is not small
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.compile.fuse.index_maps import is_view
from rlx.compile.fuse.node_roles import CHEAP
from rlx.compile.generators import Generator, OwnKernel
from rlx.compile.lower.bodies import lowered_bodies
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Project
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.shape.creation import Iota
from rlx.ops.shape.movement import Concat

# The kind of kernel that a small loop is.
ROUNDS = "rounds"

# Elements are computed one by one; more of them are better off in vectors, and math functions sooner than sums.
MOST_ELEMENTS, MOST_FUNCTIONS = 16, 8
# Multiplications of one product: a 3x3 matrix times another one, but no 4x4 matrix, which outgrows the registers.
MOST_MULTIPLICATIONS = 32
# Instructions of all bodies together; a math function is some thirty.
MOST_OPS = 1024
FUNCTION_OPS = 30
# Of a while in one kernel: some milliseconds.
MOST_ROUNDS = 1 << 20
# Of a scan, whose number of steps is known: a fraction of a second.
MOST_STEPS = 1 << 26

_HALVES = (DType.F16, DType.BF16)


def small_loop(graph: Graph, node: Node, generator: Generator) -> OwnKernel | None:
    """Whether a node is a loop or a branch that is one kernel."""
    if not isinstance(node.op, Scan | While | If) or any(len(graph.nodes[i].shapes) != 1 for i in node.inputs):
        return None
    operands = tuple(graph.shape(i) for i in node.inputs)
    return None if small_bodies(node.op, operands, generator) is None else OwnKernel(ROUNDS)


def small_bodies(op: Op, operands: tuple[Shape, ...], generator: Generator) -> tuple[Graph, ...] | None:
    """The bodies of a small loop, in the order of `native_bodies`; None if it is not one."""
    if op.effect or not _has_small_types(op, operands):
        return None
    lowered = lowered_bodies(op, operands, generator)
    if lowered is None:
        return None
    bodies = tuple(lir.as_graph() for lir in lowered)
    costs = [_cost(body, generator) for body in bodies]
    if any(cost is None for cost in costs) or sum(cost or 0 for cost in costs) > MOST_OPS:
        return None
    return bodies


def in_bounded_parts(op: While, operands: tuple[Shape, ...], generator: Generator) -> Op:
    """A while without a bound whose rounds are small, as a while whose rounds are loops of many of them; any other one
    as it is."""
    if op.max_iterations is not None:
        return op
    part = op.replace(max_iterations=MOST_ROUNDS)
    if small_bodies(part, operands, generator) is None:
        return op
    graph = Graph(op.body.name)
    results = part(*(graph.input(str(n.name), n.shape) for n in op.body.inputs))
    graph.set_outputs(results if isinstance(results, tuple) else [results])
    return op.replace(body=graph.freeze())


def _has_small_types(op: Op, operands: Sequence[Shape]) -> bool:
    if isinstance(op, Scan):
        # Checkpoints of a trajectory are rows at places of their own.
        if (op.save_trajectory and op.num_checkpoints) or (isinstance(op.length, int) and op.length > MOST_STEPS):
            return False
        _, _, xs = op.split(operands)
        whole = [*operands[: len(operands) - len(xs)], *(x.with_dims(x.dims[1:]) for x in xs)]
        return all(map(_is_small, whole))
    if isinstance(op, While):
        return op.max_iterations is not None and op.max_iterations <= MOST_ROUNDS and all(map(_is_small, operands))
    return isinstance(op, If) and all(map(_is_small, operands))


def _is_small(shape: Shape) -> bool:
    """Halves are left out, which are computed in another type than they are kept in."""
    if shape.dtype.is_complex or shape.dtype.is_storage or shape.dtype in _HALVES or not shape.is_static:
        return False
    return int(shape.element_count) <= MOST_ELEMENTS


def _is_small_product(body: Graph, node: Node) -> bool:
    """Whether a node of a small body is a product that is formed sooner than a kernel of it starts."""
    if node.op != MatMul() or any(body.shape(i).dtype is not node.shape.dtype for i in node.inputs):
        return False
    return _multiplications(body, node) <= MOST_MULTIPLICATIONS


def _multiplications(body: Graph, node: Node) -> int:
    return int(node.shape.element_count) * int(body.shape(node.inputs[0]).static_dims[-1])


def _cost(body: Graph, generator: Generator) -> int | None:
    """About how many instructions a body is; None if there is something in it that is no op on single elements."""
    total = 0
    for node in body.nodes:
        if not all(map(_is_small, node.shapes)):
            return None
        if isinstance(node.op, If | While):
            operands = tuple(body.shape(i) for i in node.inputs)
            inner = small_bodies(node.op, operands, generator)
            if inner is None:
                return None
            total += sum(_cost(b, generator) or 0 for b in inner)
        elif isinstance(node.op, Input | Constant | Project | Iota | Concat) or is_view(body, node):
            continue
        elif isinstance(node.op, Reduce) and node.op.kind is not ReduceOp.Mean:
            total += int(body.shape(node.inputs[0]).element_count)
        elif _is_small_product(body, node):
            total += _multiplications(body, node)
        elif generator.is_pointwise(body, node):
            count, is_cheap = int(node.shape.element_count), node.op.mnemonic in CHEAP
            if count > MOST_FUNCTIONS and not is_cheap:
                return None
            total += count * (1 if is_cheap else FUNCTION_OPS)
        else:
            return None
    return total
