"""`vjp` and `linearize`: compute a function once and keep what its derivative needs.

The joint program of value and derivative is cut in two: what does not depend on the (co)tangents comes now, and those
of its values that the rest reads are the residuals. Both halves are applied like any program: run on arrays, or made a
part of the program being built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.autodiff.calls import Arguments, Called, Function, apply_program
from rlx.autodiff.forward import push_forward
from rlx.autodiff.reverse import Pullback
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Constant, Input
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building, target_graph
from rlx.ops.control.body_transforms import filled, types
from rlx.ops.define.operands import convert, dims_of
from rlx.trace.pytree import TreeDef, path_text, tree_difference, tree_flatten
from rlx.trace.tracing import entered


def split_vjp(fn: Function, primals: Sequence[Any], has_aux: bool) -> Any:
    """See `rlx.vjp`."""
    called, in_tree = _called(fn, primals)
    value_tree, aux_tree, count = called.value_and_aux("vjp", has_aux)
    joint = Graph(f"{called.name}_vjp")
    with building(joint):
        leaves = _declared(joint, called)
        pullback = Pullback(called.graph, leaves, [called.input_id(i) for i in called.inexact])
        outputs = pullback.outputs
        cotangents = [joint.input(f"ct{i}", o.type) for i, o in enumerate(outputs[:count])]
        seeds = [c if c.dtype.is_inexact else None for c in cotangents]
        pulled = dict(zip(called.inexact, pullback.pull([*seeds, *(None for _ in outputs[count:])])))
        gradients = filled([pulled.get(i) for i in range(len(called.types))], called.types)
    results, kept, second = _first_half(joint, called, cotangents, outputs, gradients)

    def pull(cotangent: Any) -> Any:
        given = matching(value_tree, cotangent, f"vjp({called.name})", types(cotangents), "the result")
        return in_tree.unflatten(_second_half(second, kept, given))

    value = value_tree.unflatten(results[:count])
    return (value, pull, aux_tree.unflatten(results[count:])) if has_aux else (value, pull)


def split_jvp(fn: Function, primals: Sequence[Any], has_aux: bool) -> Any:
    """See `rlx.linearize`."""
    called, in_tree = _called(fn, primals)
    value_tree, aux_tree, count = called.value_and_aux("linearize", has_aux)
    joint = Graph(f"{called.name}_jvp")
    with building(joint):
        leaves = _declared(joint, called)
        tangents = [joint.input(f"t{i}", t) for i, t in enumerate(called.types)]
        moving = {called.input_id(i): tangents[i] for i in called.inexact}
        # Values must not depend on tangents, or they could not be computed in the first half.
        outputs, pushed = push_forward(called.graph, leaves, moving, jointly=False)
        directions = filled(pushed[:count], types(outputs[:count]))
    results, kept, second = _first_half(joint, called, tangents, outputs, directions)

    def push(*tangents: Any) -> Any:
        given = matching(in_tree, tangents, f"linearize({called.name})", called.types, "the primals")
        return value_tree.unflatten(_second_half(second, kept, given))

    value = value_tree.unflatten(results[:count])
    return (value, push, aux_tree.unflatten(results[count:])) if has_aux else (value, push)


def _called(fn: Function, primals: Sequence[Any]) -> tuple[Called, TreeDef]:
    leaves, in_tree = tree_flatten(tuple(primals))
    graph = target_graph(leaves)
    with entered(graph):
        return Called(fn, Arguments(fn, tuple(primals), {}), graph), in_tree


def _declared(joint: Graph, called: Called) -> dict[NodeId, Tensor]:
    return {node.id: joint.input(f"x{i}", node.shape) for i, node in enumerate(called.graph.inputs)}


def _first_half(
    joint: Graph,
    called: Called,
    late: Sequence[Tensor],
    early_outputs: Sequence[Tensor],
    late_outputs: Sequence[Tensor],
) -> tuple[Sequence[Any], Sequence[Any], Graph]:
    """Values of the early outputs and of the residuals, and the program that is left."""
    first, second = cut_program(joint, [t.id for t in late], early_outputs, late_outputs)
    with entered(target_graph(called.operands)):
        results = apply_program(first, called.operands)
    return results[: len(early_outputs)], results[len(early_outputs) :], second


def _second_half(second: Graph, kept: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
    with entered(target_graph([*given, *kept])):
        return apply_program(second, [*kept, *given])


def matching(tree: TreeDef, value: Any, what: str, shapes: Sequence[Shape], of: str) -> list[Any]:
    """The leaves of a (co)tangent, which must have the structure and the types of what it belongs to."""
    leaves, got = tree_flatten(value)
    difference = tree_difference(tree, got)
    if difference is not None:
        raise AutodiffError(f"{what}: the argument must have the structure of {of}; {difference}")
    for leaf, shape, path in zip(leaves, shapes, tree.paths()):
        if tuple(dims_of(leaf)) != shape.dims:
            place = f" at {path_text(path)!r}" if path else ""
            given = f"the argument has shape {tuple(dims_of(leaf))}{place}"
            raise AutodiffError(f"{what}: {given}; it must be that of {of}, {shape}")
    return [convert(leaf, shape.dtype) for leaf, shape in zip(leaves, shapes)]


def cut_program(
    graph: Graph, late: Sequence[NodeId], early_outputs: Sequence[Tensor], late_outputs: Sequence[Tensor]
) -> tuple[Graph, Graph]:
    """Cut a program at the inputs `late`.

    The first half takes the other inputs and returns `early_outputs` and the residuals; the second takes the residuals
    and the `late` inputs and returns `late_outputs`.
    """
    after: set[NodeId] = set(late)
    for node in graph.nodes:
        if any(i in after for i in node.inputs):
            after.add(node.id)
    read = {i for node in graph.nodes if node.id in after for i in node.inputs} | {t.id for t in late_outputs}
    residuals = [n.id for n in graph.nodes if n.id in read and n.id not in after and not isinstance(n.op, Constant)]
    first, second = Graph(f"{graph.name}_first"), Graph(f"{graph.name}_second")
    first_ids: dict[NodeId, NodeId] = {}
    second_ids = {r: second.append(Input(f"residual{i}", graph.shape(r))).id for i, r in enumerate(residuals)}
    for node in graph.nodes:
        if node.id in after or isinstance(node.op, Constant):
            inputs = [second_ids[i] for i in node.inputs]
            second_ids[node.id] = second.append(node.op, inputs, name=node.name, origin=node.origin).id
        if node.id not in after:
            inputs = [first_ids[i] for i in node.inputs]
            first_ids[node.id] = first.append(node.op, inputs, name=node.name, origin=node.origin).id
    first.set_outputs([first_ids[t.id] for t in early_outputs] + [first_ids[r] for r in residuals])
    second.set_outputs([second_ids[t.id] for t in late_outputs])
    return first.freeze(), second.freeze()
