"""`vjp` and `linearize`: run a function once and keep what its derivative needs.

Inside a program being built, the forward values are simply there. On arrays, the joint program of value and derivative
is cut in two: what does not depend on the (co)tangents runs now; its values that the rest reads are the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff.calls import Called, Function, run_program, require_inexact
from rlx.autodiff.forward import push_forward
from rlx.autodiff.reverse import Pullback
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Constant, Input
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building, lift, target_graph
from rlx.ops.operands import convert
from rlx.ops.rules import zeros_like
from rlx.trace.pytree import TreeDef, tree_difference, tree_flatten
from rlx.trace.tracing import entered, spec_of


def split_vjp(fn: Function, primals: Sequence[Any], has_aux: bool) -> Any:
    """See `rlx.vjp`."""
    primals = tuple(primals)
    leaves, in_tree = tree_flatten(primals)
    graph = target_graph(leaves)
    if graph is not None:
        with entered(graph):
            called = Called(fn, primals, {}, graph)
            return _vjp_in_program(called, in_tree, has_aux)
    joint = Graph("vjp")
    with building(joint):
        inputs = [joint.append(Input(f"x{i}", spec_of(x).type)).id for i, x in enumerate(leaves)]
        called = Called(fn, in_tree.unflatten([Tensor(joint, i) for i in inputs]), {}, joint)
        value_tree, aux_tree, count = _structure(called, has_aux)
        pullback = _pullback(called)
        cotangents = [joint.input(f"ct{i}", o.type) for i, o in enumerate(pullback.outputs[:count])]
        gradients = _pull(called, pullback, cotangents)
    first, residuals, second = split_program(joint, [c.id for c in cotangents], pullback.outputs, gradients)
    results = run_program(first, leaves)
    kept = list(results[len(pullback.outputs) :])
    assert len(kept) == len(residuals)
    types = [c.type for c in cotangents]

    def pull(cotangent: Any) -> Any:
        given = _matching(value_tree, cotangent, "vjp", "the result")
        graph = target_graph([*given])
        if graph is not None:
            from rlx.ir.inline import inline_graph

            with entered(graph):
                operands = [*kept, *(_typed(c, t, graph) for c, t in zip(given, types))]
                return in_tree.unflatten(inline_graph(second, operands))
        return in_tree.unflatten(run_program(second, [*kept, *(_array(c, t) for c, t in zip(given, types))]))

    value = value_tree.unflatten(results[:count])
    if has_aux:
        return value, pull, aux_tree.unflatten(results[count : len(pullback.outputs)])
    return value, pull


def _vjp_in_program(called: Called, in_tree: TreeDef, has_aux: bool) -> Any:
    value_tree, aux_tree, count = _structure(called, has_aux)
    pullback = _pullback(called)

    def pull(cotangent: Any) -> Any:
        given = _matching(value_tree, cotangent, "vjp", "the result")
        graph = target_graph(list(pullback.outputs))
        assert graph is not None
        cotangents = [_typed(c, o.type, graph) for c, o in zip(given, pullback.outputs)]
        return in_tree.unflatten(_pull(called, pullback, cotangents))

    value = value_tree.unflatten(pullback.outputs[:count])
    if has_aux:
        return value, pull, aux_tree.unflatten(pullback.outputs[count:])
    return value, pull


def _structure(called: Called, has_aux: bool) -> tuple[TreeDef, TreeDef, int]:
    """The structures of value and aux, and how many leaves belong to the value."""
    tree = called.traced.out_tree
    whole = tree.unflatten(range(tree.num_leaves))
    if has_aux and not (isinstance(whole, tuple) and len(whole) == 2):
        raise AutodiffError(f"vjp({called.name}): with has_aux=True the function must return (value, aux)")
    value, aux = whole if has_aux else (whole, ())
    leaves, value_tree = tree_flatten(value)
    return value_tree, tree_flatten(aux)[1], len(leaves)


def _inexact(called: Called) -> list[int]:
    return [i for i, t in enumerate(called.arguments) if t.dtype.is_inexact]


def _pullback(called: Called) -> Pullback:
    return Pullback(called.graph, called.leaves, [called.input_id(i) for i in _inexact(called)])


def _pull(called: Called, pullback: Pullback, cotangents: Sequence[Tensor]) -> list[Tensor]:
    """One gradient per argument leaf, zeros where there is none."""
    rest = len(pullback.outputs) - len(cotangents)
    usable = [c if c.dtype.is_inexact else None for c in cotangents]
    found = dict(zip(_inexact(called), pullback.pull([*usable, *(None for _ in range(rest))])))
    return [
        g if (g := found.get(i)) is not None else zeros_like(argument) for i, argument in enumerate(called.arguments)
    ]


def _matching(tree: TreeDef, value: Any, what: str, of: str) -> list[Any]:
    leaves, got = tree_flatten(value)
    difference = tree_difference(tree, got)
    if difference is not None:
        raise AutodiffError(f"{what}: the argument must have the structure of {of}; {difference}")
    return leaves


def _typed(value: Any, wanted: Shape, graph: Graph) -> Tensor:
    tensor: Tensor = convert(lift(value, graph), wanted.dtype)
    if tensor.type != wanted:
        raise AutodiffError(f"a (co)tangent is {tensor.type}, the value it belongs to is {wanted}")
    return tensor


def _array(value: Any, wanted: Shape) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.shape != wanted.static_dims:
        raise AutodiffError(f"a (co)tangent has shape {array.shape}, the value it belongs to is {wanted}")
    return array.astype(wanted.dtype.numpy)


def split_jvp(fn: Function, primals: Sequence[Any]) -> tuple[Any, Callable[..., Any]]:
    """See `rlx.linearize`."""
    primals = tuple(primals)
    leaves, in_tree = tree_flatten(primals)
    outer = target_graph(leaves)
    joint = Graph("linearize") if outer is None else outer
    with entered(joint):
        if outer is None:
            inputs: list[Any] = [
                Tensor(joint, joint.append(Input(f"x{i}", spec_of(x).type)).id) for i, x in enumerate(leaves)
            ]
        else:
            inputs = leaves
        called = Called(fn, in_tree.unflatten(inputs), {}, joint)
    chosen = _inexact(called)
    require_inexact("linearize", called, [] if chosen else list(range(len(leaves))))
    if outer is not None:
        return _jvp_in_program(called, in_tree, joint)
    with building(joint):
        tangents = {i: joint.input(f"t{i}", called.arguments[i].type) for i in chosen}
        outputs, pushed = push_forward(
            called.graph, called.leaves, {called.input_id(i): t for i, t in tangents.items()}
        )
        filled = [zeros_like(o) if t is None else t for o, t in zip(outputs, pushed)]
    first, residuals, second = split_program(joint, [t.id for t in tangents.values()], outputs, filled)
    results = run_program(first, leaves)
    kept = list(results[len(outputs) :])
    assert len(kept) == len(residuals)
    tree = called.traced.out_tree

    def push(*directions: Any) -> Any:
        given = _matching(in_tree, directions, "linearize", "the primals")
        graph = target_graph(given)
        if graph is not None:
            from rlx.ir.inline import inline_graph

            with entered(graph):
                operands = [*kept, *(_typed(given[i], t.type, graph) for i, t in tangents.items())]
                return tree.unflatten(inline_graph(second, operands))
        return tree.unflatten(run_program(second, [*kept, *(_array(given[i], t.type) for i, t in tangents.items())]))

    return tree.unflatten(results[: len(outputs)]), push


def _jvp_in_program(called: Called, in_tree: TreeDef, graph: Graph) -> tuple[Any, Callable[..., Any]]:
    with entered(graph):
        value = called.traced.out_tree.unflatten(called.inline())

    def push(*directions: Any) -> Any:
        given = _matching(in_tree, directions, "linearize", "the primals")
        into = target_graph(called.operands)
        assert into is not None
        with entered(into):
            known = {called.input_id(i): _typed(given[i], called.arguments[i].type, into) for i in _inexact(called)}
            outputs, pushed = push_forward(called.graph, called.leaves, known)
            return called.traced.out_tree.unflatten(
                [zeros_like(o) if t is None else t for o, t in zip(outputs, pushed)]
            )

    return value, push


def split_program(
    graph: Graph, late: Sequence[NodeId], early_outputs: Sequence[Tensor], late_outputs: Sequence[Tensor]
) -> tuple[Graph, list[NodeId], Graph]:
    """Cut a program at the inputs `late`: (first, residuals, second).

    `first` takes the other inputs and returns `early_outputs` and the residuals; `second` takes the residuals and the
    `late` inputs and returns `late_outputs`. The residuals are nodes of `graph`.
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
    return first.freeze(), residuals, second.freeze()
