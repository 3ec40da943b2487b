"""Losses on derivatives: energies whose negative gradients are forces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.autodiff.backward_ops import decompose_backward_ops
from rlx.autodiff.graphs import LeafRef, copy_leaves, fresh_input, grad_with_loss, leaf_ids
from rlx.autodiff.replay import Replay
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ops.reduction.reductions import reduce_mean
from rlx.ops.shape.movement import reshape


def grad_subgraph(graph: Graph, wrt: Iterable[LeafRef]) -> Graph:
    """Outputs `[energy, gradients..]` with the seed 1 and no backward ops: a graph to compute with."""
    names = [str(graph.nodes[i].name) for i in leaf_ids(graph, wrt, "grad_subgraph")]
    energy = graph.copy()
    energy.set_outputs(energy.outputs[:1])
    return decompose_backward_ops(grad_with_loss(energy, names, seed=None)).graph


def grad_subgraph_for_jvp(graph: Graph, wrt: Iterable[LeafRef]) -> Graph:
    """The same: what `grad_subgraph` returns can be differentiated in both modes."""
    return grad_subgraph(graph, wrt)


@dataclass(frozen=True)
class ForceEnergyLossWeights:
    """How much the errors of forces and of the energy count."""

    force: float = 1.0
    energy: float = 1.0


def build_force_energy_loss(
    energy_graph: Graph,
    positions: str,
    force_ref: str,
    energy_ref: str,
    weights: ForceEnergyLossWeights | None = None,
) -> Graph:
    """w_f · mean((-dE/dx - F)²) + w_e · (E - E_ref)² as a forward graph, for an energy with one element.

    F and E_ref are the new inputs `force_ref` (of the type of the positions) and `energy_ref` (a scalar). The gradient
    of the result in parameters is of second order.
    """
    weights = ForceEnergyLossWeights() if weights is None else weights
    energy_type = energy_graph.shape(energy_graph.outputs[0])
    if energy_type.element_count != 1:
        raise AutodiffError(f"build_force_energy_loss: the energy must have one element, it is {energy_type}")
    subgraph = grad_subgraph(energy_graph, [positions])
    loss = Graph(f"{energy_graph.name}_force_energy_loss")
    with building(loss):
        replay = Replay(subgraph, copy_leaves(subgraph, loss))
        replay.run()
        energy, gradient = replay.outputs()
        force_error = -gradient - fresh_input(loss, force_ref, gradient.type)
        energy_error = reshape(energy, ()) - fresh_input(loss, energy_ref, Shape((), energy.dtype))
        total = weights.force * reduce_mean(force_error * force_error) + weights.energy * energy_error * energy_error
        loss.set_outputs([total])
    return loss
