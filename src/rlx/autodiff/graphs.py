"""Transforms of graphs, by the names of the seed documents: `grad_with_loss`, `grad`, `jvp`, `hvp`, `vmap`.

All return new graphs with the same leaves (and some more inputs); `wrt` and the like name leaves, or give their ids in
the graph passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlx.autodiff.batching import batch_graph
from rlx.autodiff.forward import push_forward
from rlx.autodiff.reverse import Pullback
from rlx.errors import AutodiffError, NoGradient, OpError
from rlx.ir.dims import as_dim
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Input, Param
from rlx.ir.module import HirModule
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor, building, node_index
from rlx.ops.define.rules import put_batch_first, zeros_of

LeafRef = str | int | Tensor


@dataclass(frozen=True)
class GradWithLossOptions:
    """`zero_missing_wrt`: a leaf that the loss does not depend on gets zeros (TRAINING) or is an error (STRICT)."""

    zero_missing_wrt: bool = False

    STRICT: ClassVar[GradWithLossOptions]
    TRAINING: ClassVar[GradWithLossOptions]


GradWithLossOptions.STRICT = GradWithLossOptions(False)
GradWithLossOptions.TRAINING = GradWithLossOptions(True)


def leaf_ids(graph: Graph, refs: Iterable[LeafRef], what: str) -> list[NodeId]:
    """The leaves meant by names, ids or handles."""
    found = []
    for ref in refs:
        node = graph.leaf(ref) if isinstance(ref, str) else graph.node(node_index(ref))
        if not isinstance(node.op, Input | Param):
            raise AutodiffError(f"{what}: {node!r} is not an input or param; differentiate with respect to leaves")
        found.append(node.id)
    return found


def mir_of(graph: Graph) -> Graph:
    """The graph itself, or an HIR module lowered."""
    if not isinstance(graph, HirModule):
        return graph
    from rlx.autodiff.modules import lowered

    return lowered(graph)


def copy_leaves(graph: Graph, into: Graph, change: Mapping[NodeId, Shape] | None = None) -> dict[NodeId, Tensor]:
    """Declare the leaves of `graph` again in `into`, with other types where `change` says so."""
    leaves = {}
    for node in graph.nodes:
        if isinstance(node.op, Input | Param):
            op = node.op.replace(type=change[node.id]) if change and node.id in change else node.op
            leaves[node.id] = Tensor(into, into.append(op, name=node.name, origin=node.origin).id)
    return leaves


def fresh_input(graph: Graph, name: str, shape: Shape) -> Tensor:
    """A new input that the transform adds; its name must be free."""
    if graph.has_leaf(name):
        raise OpError(f"graph @{graph.name} already has a leaf called {name!r}, which this transform wants to add")
    return graph.input(name, shape)


def grad_with_loss(graph: Graph, wrt: Iterable[LeafRef], seed: str | None = "d_output") -> Graph:
    """Outputs `[loss, other outputs.., gradients..]`. The loss is output 0 of `graph`; its cotangent is the new input
    `seed`, or 1 when `seed` is None. A leaf that the loss does not depend on is an error (see TRAINING)."""
    return grad_with_loss_opts(graph, wrt, GradWithLossOptions.STRICT, seed)


def grad_with_loss_opts(
    graph: Graph, wrt: Iterable[LeafRef], options: GradWithLossOptions, seed: str | None = "d_output"
) -> Graph:
    """`grad_with_loss` with options."""
    graph = mir_of(graph)
    if not graph.outputs:
        raise AutodiffError(f"graph @{graph.name} has no outputs, so there is no loss to differentiate")
    chosen = leaf_ids(graph, wrt, "grad")
    loss_type = graph.shape(graph.outputs[0])
    if not loss_type.dtype.is_inexact:
        raise AutodiffError(f"the loss has type {loss_type}; only float and complex values have gradients")
    new = Graph(f"{graph.name}_grad")
    with building(new):
        leaves = copy_leaves(graph, new)
        ct = _seed(new, loss_type, seed)
        pullback = Pullback(graph, leaves, chosen)
        gradients = pullback.pull([ct, *(None for _ in graph.outputs[1:])])
        results = [_required(g, graph.nodes[i], leaves[i], options.zero_missing_wrt) for g, i in zip(gradients, chosen)]
    new.set_outputs([*pullback.outputs, *results])
    return new


def _seed(graph: Graph, loss: Shape, name: str | None) -> Tensor:
    from rlx.ops.shape.creation import full

    if name is not None:
        return fresh_input(graph, name, loss)
    one: Tensor = full(loss.dims, 1, loss.dtype)
    return one


def _required(gradient: Tensor | None, node: Node, leaf: Tensor, zero_missing: bool) -> Tensor:
    if gradient is not None:
        return gradient
    if not zero_missing:
        raise NoGradient(str(node.name))
    return zeros_of(node.shape, leaf)


def grad(graph: Graph, wrt: Iterable[LeafRef], seed: str | None = "d_output") -> Graph:
    """The gradients only."""
    wrt = list(wrt)
    result = grad_with_loss(graph, wrt, seed)
    result.set_outputs(result.outputs[-len(wrt) :] if wrt else [])
    return result


def jvp(graph: Graph, tangent_for: Iterable[LeafRef]) -> Graph:
    """Outputs `[primals.., tangents..]`; the tangent of leaf `x` is the new input `tangent_x`."""
    graph = mir_of(graph)
    chosen = leaf_ids(graph, tangent_for, "jvp")
    new = Graph(f"{graph.name}_jvp")
    with building(new):
        leaves = copy_leaves(graph, new)
        tangents = {i: fresh_input(new, f"tangent_{graph.nodes[i].name}", graph.nodes[i].shape) for i in chosen}
        outputs, pushed = push_forward(graph, leaves, tangents)
        filled = [zeros_of(o.type, o) if t is None else t for o, t in zip(outputs, pushed)]
    new.set_outputs([*outputs, *filled])
    return new


def hvp(graph: Graph, wrt: Iterable[LeafRef]) -> Graph:
    """Forward over reverse: outputs `[loss, gradients.., gradient . v, (H v)..]` with v given as `tangent_x`."""
    graph = mir_of(graph)
    names = [str(graph.nodes[i].name) for i in leaf_ids(graph, wrt, "hvp")]
    scalar = graph.copy()
    scalar.set_outputs(scalar.outputs[:1])
    gradient = grad_with_loss(scalar, names, seed=None)
    result = jvp(gradient, names)
    result.name = f"{graph.name}_hvp"
    return result


def vmap(
    graph: Graph,
    batched: Sequence[str] | Mapping[str, int | None],
    batch_size: int | str | Any,
    out_axes: int | Sequence[int] = 0,
) -> Graph:
    """The graph over a new axis of size `batch_size` of the named leaves: leading, or at the given axis."""
    graph = mir_of(graph)
    axes = dict.fromkeys(batched, 0) if not isinstance(batched, Mapping) else dict(batched)
    size: Size = as_dim(batch_size)
    carried = {graph.leaf(name).id: axis for name, axis in axes.items() if axis is not None}
    new = Graph(f"{graph.name}_vmap")
    with building(new):
        types = {i: _with_axis(graph.nodes[i].shape, axis, size) for i, axis in carried.items()}
        leaves = copy_leaves(graph, new, types)
        for i, axis in carried.items():
            leaves[i] = move_axis(leaves[i], axis, 0)
        outputs, flags = batch_graph(graph, leaves, list(carried), size)
        wanted = [out_axes] * len(outputs) if isinstance(out_axes, int) else list(out_axes)
        results = [
            move_axis(put_batch_first(o, flag, size), 0, a) for o, flag, a in zip(outputs, flags, wanted, strict=True)
        ]
    new.set_outputs(results)
    return new


def _with_axis(shape: Shape, axis: int, size: Size) -> Shape:
    position = axis + shape.rank + 1 if axis < 0 else axis
    if not 0 <= position <= shape.rank:
        raise AutodiffError(f"vmap: axis {axis} is out of range for {shape} with one more axis")
    return shape.with_dims((*shape.dims[:position], size, *shape.dims[position:]))


def move_axis(x: Tensor, source: int, destination: int) -> Tensor:
    """`x` with one axis moved; unchanged when it is there already."""
    from rlx.ops.shape.movement import transpose

    rank = x.type.rank
    source, destination = source % rank, destination % rank
    if source == destination:
        return x
    order = [i for i in range(rank) if i != source]
    order.insert(destination, source)
    moved: Tensor = transpose(x, tuple(order))
    return moved


def quantized_weight_bits(graph: Graph, node: int | Tensor) -> int | None:
    """The bits of a weight that is trained as if quantised: of a node that is a `FakeQuantize` or `FakeQuantizeLSQ`."""
    from rlx.ops.quant.fake_quant import FakeQuantize, FakeQuantizeLSQ

    op = graph.node(node).op
    return op.bits if isinstance(op, FakeQuantize | FakeQuantizeLSQ) else None
