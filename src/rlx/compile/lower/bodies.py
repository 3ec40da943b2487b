"""Loops and branches as programs inside a program: what `Scan`, `While` and `If` are for targets that run them.

Every body is lowered by itself: optimised, cut into kernels, its memory planned. What goes in and out is memory of the
program around it, so a loop is its bodies, run again and again with other addresses. Conditions come as programs that
return one bool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from rlx.compile.generators import Generator, OwnKernel
from rlx.compile.steps import skipped_passes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirModule
from rlx.ir.op import Op
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.knobs import knobs
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan
from rlx.ops.pointwise.arithmetic import ne
from rlx.ops.reduction.reductions import reduce_all
from rlx.ops.shape.movement import reshaped

# The kind of kernel that a loop or a branch is.
LOOP = KernelKind.Loop

Bodies: TypeAlias = tuple[LirModule, ...]


def loop_kernel(graph: Graph, node: Node, generator: Generator) -> OwnKernel | None:
    """Whether a node is a loop or a branch of which everything has kernels."""
    if not isinstance(node.op, Scan | While | If) or node.op.effect:
        return None
    return OwnKernel(LOOP) if _find_bodies(graph, node, generator) is not None else None


def native_bodies(graph: Graph, node: Node, generator: Generator) -> Bodies:
    """The bodies of a loop kernel: that of a scan; condition and body of a while; predicate and branches of an if."""
    found = _find_bodies(graph, node, generator)
    assert found is not None, f"{node!r} is no loop kernel"
    return found


def _find_bodies(graph: Graph, node: Node, generator: Generator) -> Bodies | None:
    return lowered_bodies(node.op, tuple(graph.shape(i) for i in node.inputs), generator)


def lowered_bodies(op: Op, operands: tuple[Shape, ...], generator: Generator) -> Bodies | None:
    """The bodies of a loop on operands of these types; None where there are no kernels for all that is in them."""
    # What is not known outside could not be known inside.
    outside = {s for shape in operands for d in shape.dims if not isinstance(d, int) for s in d.symbols}
    if not outside.issuperset(op.dynamic_symbols()):
        return None
    results = op.infer(*operands)
    results = results if isinstance(results, tuple) else (results,)
    if any(t.dtype.is_complex or t.dtype.is_storage for t in (*operands, *results)):
        return None
    # Bodies are kept as they were compiled last, unless somebody changes how that is done or wants to see it.
    watched = (knobs.dump, knobs.override, skipped_passes())
    return _lowered(op, operands, generator, watched)


@lru_cache(256)
def _lowered(op: Op, operands: tuple[Shape, ...], generator: Generator, watched: object) -> Bodies | None:
    """The bodies as LIR, each on the road of all programs; None where one of them needs the host."""
    from rlx.compile.lower.small_loops import in_bounded_parts
    from rlx.compile.pipeline import lower_to_lir

    if isinstance(op, While):
        op = in_bounded_parts(op, operands, generator)
    found = []
    for body in _programs(op, operands):
        lir = lower_to_lir(body, generator)
        if any(kernel.kind == KernelKind.Call for kernel in lir.kernels):
            return None
        found.append(lir)
    return tuple(found)


def _programs(op: Op, operands: Sequence[Shape]) -> tuple[Graph, ...]:
    if isinstance(op, Scan):
        return (op.body if op.save_trajectory else _in_place(op.body, op.num_carry),)
    if isinstance(op, While):
        return _as_predicate(op.cond), _in_place(op.body, len(operands) - op.num_bcast)
    assert isinstance(op, If)
    predicate = build_body("predicate", lambda pred: pred, pred=operands[0])
    return _as_predicate(predicate), op.then_body, op.else_body


def _in_place(body: Graph, carries: int) -> Graph:
    """A body that may store carries over what it was given: a cache that each round changes a part of stays where it
    is. What cannot be stored there is stored elsewhere."""
    graph = body.copy()
    for number, leaf in zip(range(carries), body.inputs):
        output = body.outputs[number]
        if not body.node(output).is_leaf and body.outputs.index(output) == number:
            graph.aliases[number] = str(leaf.name)
    return graph.freeze()


def _as_predicate(condition: Graph) -> Graph:
    """A program that returns whether all elements of what `condition` returns are not 0."""
    graph = Graph(condition.name)
    with building(graph):
        inputs = [graph.input(str(n.name), n.shape) for n in condition.inputs]
        (value,) = inline_graph(condition, inputs)
        holds = value if value.dtype is DType.BOOL else ne(value, 0)
        graph.set_outputs([reshaped(holds, ()) if holds.size == 1 else reduce_all(holds)])
    return graph.freeze()
