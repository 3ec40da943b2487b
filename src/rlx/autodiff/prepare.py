"""Rewrites of graphs before differentiation.

The engines need none of them: an op without a rule is decomposed on the way. They exist for those who want to see, or
to keep, the program that is differentiated. All return the new graph and where each old node went.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.module import MirModule
from rlx.ir.op import OP_CLASSES, Op
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, decompose_kinds, rebuild, replace_nodes, unchanged
from rlx.ops.control.custom_functions import CustomFn
from rlx.ops.control.scans import Scan
from rlx.ops.reduction.reductions import Reduce


def decompose_fusion_regions(graph: Graph) -> Rebuilt:
    """Take regions of fused elementwise and transform ops apart."""
    regions = frozenset(kind for kind, cls in OP_CLASSES.items() if cls.is_region)
    return decompose_kinds(graph, regions, "decompose_fusion_regions")


def unfuse_fused_for_autodiff(graph: Graph) -> Rebuilt:
    """Take fused ops apart; state-space scans become `Scan`."""
    return decompose_kinds(graph, fused_kinds(), "unfuse_fused")


def fused_kinds() -> frozenset[str]:
    """The kinds (class names) that are differentiated as what they are made of."""
    return frozenset(kind for kind, cls in OP_CLASSES.items() if cls.is_fused or cls.opens_for_autodiff)


def lower_dot_general(graph: Graph) -> Rebuilt:
    """`DotGeneral` as matrix products."""
    return decompose_kinds(graph, {"DotGeneral"}, "lower_dot_general")


def legalize_multi_axis_reduce(graph: Graph) -> Rebuilt:
    """Reductions over several axes as chains over one axis, the last axis first."""

    def form_of(node: Node) -> Callable[..., Any] | None:
        op = node.op
        return (lambda x: _one_axis_at_a_time(op, x)) if isinstance(op, Reduce) and len(op.axes) > 1 else None

    return replace_nodes(graph, form_of, "legalize_multi_axis_reduce")


def _one_axis_at_a_time(op: Reduce, x: Any) -> Any:
    from rlx.ir.shape import normalize_axes

    for axis in reversed(normalize_axes(op.axes, x.ndim, op.mnemonic)):
        x = op.replace(axes=(axis,))(x)
    return x


def inline_custom_fn_for_autodiff(graph: Graph) -> Rebuilt:
    """Inline functions that have no derivative programs of their own."""

    def form_of(node: Node) -> Callable[..., Any] | None:
        op = node.op
        own = isinstance(op, CustomFn) and op.vjp_body is None and op.jvp_body is None
        return op.decompose if own else None

    return replace_nodes(graph, form_of, "inline_custom_fn")


def convert_scans_for_ad(graph: Graph) -> Rebuilt:
    """Give scans the form that reverse mode needs: carries are saved, trajectories are ys, checkpoints are segments."""

    def form_of(node: Node) -> Callable[..., Any] | None:
        if not isinstance(node.op, Scan):
            return None
        body = node.op.body
        return node.op.form_for("vjp", tuple(n.shape.dtype.is_inexact for n in body.inputs))

    return replace_nodes(graph, form_of, "convert_scans")


def fuse_decomposed_gaussian_splat(graph: Graph) -> Rebuilt:
    """Prepare and rasterize of a scene, when nothing else reads what was prepared, as one render."""
    from rlx.ops.splat.prepare import GaussianSplatPrepare
    from rlx.ops.splat.raster import GaussianSplatRasterize
    from rlx.ops.splat.render import GaussianSplatRender

    uses = graph.use_map()
    fused: dict[NodeId, Node] = {}
    for node in graph.nodes:
        if not isinstance(node.op, GaussianSplatRasterize):
            continue
        prepare = graph.nodes[node.inputs[0]]
        alone = uses[prepare.id] == [node.id] and prepare.id not in graph.outputs
        if isinstance(prepare.op, GaussianSplatPrepare) and alone and prepare.inputs[-1] == node.inputs[1]:
            fused[node.id] = prepare
    scenes: dict[NodeId, list[Any]] = {}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        scenes[node.id] = operands
        prepare = fused.get(node.id)
        if prepare is None:
            return None
        op: Op = node.op
        radius = prepare.op.attributes["radius_scale"]
        return GaussianSplatRender(radius_scale=radius, **op.attributes)(*scenes[prepare.id])

    return rebuild(graph, visit, "fuse_gaussian_splat")


PRE_PASSES = (
    decompose_fusion_regions,
    unfuse_fused_for_autodiff,
    lower_dot_general,
    inline_custom_fn_for_autodiff,
    convert_scans_for_ad,
    fuse_decomposed_gaussian_splat,
)


def prepare_graph_for_ad(graph: Graph) -> Rebuilt:
    """All of `PRE_PASSES`, in order."""
    result = unchanged(graph)
    for step in PRE_PASSES:
        result = result.then(step(result.graph))
    return result


class PrepareForAutodiff(Pass):
    """`prepare_graph_for_ad` as a pass."""

    name = "prepare_for_autodiff"

    def run(self, graph: Graph) -> Graph:
        return prepare_graph_for_ad(graph).graph


def prepare_mir_for_ad(mir: MirModule) -> MirModule:
    """`prepare_graph_for_ad` on a MIR module."""
    return MirModule.from_graph(prepare_graph_for_ad(mir.into_graph()).graph)
