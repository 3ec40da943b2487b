"""The transforms on modules. HIR is lowered first, LIR is refused; results are at MIR."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.autodiff import graphs
from rlx.autodiff.graphs import GradWithLossOptions, LeafRef
from rlx.autodiff.higher_order import nth_order_grad
from rlx.autodiff.prepare import prepare_graph_for_ad, prepare_mir_for_ad
from rlx.errors import AutodiffError, LowerError
from rlx.ir.graph import Graph
from rlx.ir.module import GraphModule, GraphStage, HirModule, MirModule


class WrongStage(AutodiffError):
    """A module at a stage that cannot be differentiated."""

    def __init__(self, got: GraphStage, hint: str) -> None:
        super().__init__(f"a module at stage {got} cannot be differentiated; {hint}")
        self.got, self.hint = got, hint


def differentiable_graph(module: GraphModule) -> Graph:
    """The MIR graph of a module."""
    if module.stage is GraphStage.Lir:
        raise WrongStage(module.stage, "differentiate the graph inside it, GraphModule.from_mir(module.into_mir())")
    hir = module.as_hir()
    return module.into_graph() if hir is None else lowered(hir)


def lowered(hir: HirModule) -> Graph:
    try:
        return hir.lower_for_autodiff().into_graph()
    except LowerError as error:
        raise AutodiffError(f"@{hir.name} cannot be lowered before differentiation: {error}") from error


def prepare_module_for_ad(module: GraphModule) -> GraphModule:
    """`prepare_graph_for_ad` on a module."""
    return GraphModule.from_graph(prepare_graph_for_ad(differentiable_graph(module)).graph)


def grad_with_loss_module(
    module: GraphModule, wrt: Iterable[LeafRef], options: GradWithLossOptions = GradWithLossOptions.STRICT
) -> GraphModule:
    """`grad_with_loss` on a module; `wrt` names leaves, or gives ids in the lowered graph."""
    return GraphModule.from_graph(graphs.grad_with_loss_opts(differentiable_graph(module), wrt, options))


def jvp_module(module: GraphModule, tangent_for: Iterable[LeafRef]) -> GraphModule:
    """`jvp` on a module."""
    return GraphModule.from_graph(graphs.jvp(differentiable_graph(module), tangent_for))


def hvp_module(module: GraphModule, wrt: Iterable[LeafRef]) -> GraphModule:
    """`hvp` on a module."""
    return GraphModule.from_graph(graphs.hvp(differentiable_graph(module), wrt))


def nth_order_grad_module(module: GraphModule, wrt_name: str, order: int) -> GraphModule:
    """`nth_order_grad` on a module."""
    return GraphModule.from_graph(nth_order_grad(differentiable_graph(module), wrt_name, order))


class MirAutodiffExt:
    """What differentiation adds to MIR modules: `MirAutodiffExt(mir).grad_with_loss(["w"])`."""

    def __init__(self, mir: MirModule) -> None:
        self.mir = mir

    def prepare_for_autodiff(self) -> MirModule:
        return prepare_mir_for_ad(self.mir)

    def grad_with_loss(self, wrt: Iterable[LeafRef]) -> MirModule:
        return MirModule.from_graph(graphs.grad_with_loss(self.mir.into_graph(), wrt))
