"""Python functions as bodies of control-flow ops: traced, with what they capture turned into operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.errors import TraceError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building
from rlx.ops.define.operands import convert
from rlx.trace.arguments import Signature
from rlx.trace.pytree import Path, TreeDef, path_text, tree_difference
from rlx.trace.tracing import Spec, Traced, trace_flat


def trace_body(fn: Callable[..., Any], arguments: Sequence[Any], specs: Sequence[Spec]) -> Traced:
    """`fn` called on trees of the structure of `arguments`, whose leaves together have the given specs."""
    signature = Signature(fn)
    call = signature.flatten(arguments, {})

    def run(tensors: list[Tensor]) -> Any:
        return fn(*signature.unflatten(call, tensors)[0])

    return trace_flat(signature.name, run, specs, signature.leaf_names(call), can_capture=True)


def all_captures(bodies: Sequence[Traced]) -> list[Tensor]:
    """What the bodies capture, each value once."""
    found = {(id(t.graph), t.id): t for body in bodies for t in body.captures}
    return list(found.values())


def assemble(
    body: Traced,
    first: Sequence[Shape],
    captures: Sequence[Tensor],
    last: Sequence[Shape] = (),
    dtypes: Sequence[DType] | None = None,
) -> Graph:
    """The body as an op wants it: inputs `first`, then one per value of `captures`, then `last`.

    The arguments of `body` are `first` and `last`; it may capture fewer values than there are in `captures`. Weak
    outputs are converted to `dtypes`.
    """
    graph = Graph(body.graph.name)
    names = [str(n.name) for n in body.graph.inputs]
    place = {(id(t.graph), t.id): i for i, t in enumerate(captures)}
    with building(graph):
        head = [graph.input(name, shape) for name, shape in zip(names, first)]
        outer = [graph.input(f"capture_{i}", t.type) for i, t in enumerate(captures)]
        tail = [graph.input(name, shape) for name, shape in zip(names[len(first) :], last)]
        own = [outer[place[id(t.graph), t.id]] for t in body.captures]
        results: list[Any] = list(inline_graph(body.graph, [*head, *tail, *own]))
        for i, dtype in enumerate(dtypes or ()):
            if body.weak_outputs[i] and results[i].dtype is not dtype:
                results[i] = convert(body.scalar_outputs.get(i, results[i]), dtype)
    graph.set_outputs(results)
    return graph.freeze()


def require_structure(what: str, wanted: TreeDef, got: TreeDef) -> None:
    difference = tree_difference(wanted, got)
    if difference is not None:
        raise TraceError(f"{what}: {difference}")


def named_path(root: str, path: Path) -> str:
    """`root`, or `root.path` below it, in quotes."""
    return repr(path_text((root, *path)))
