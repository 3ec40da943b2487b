"""The order of everything between a program and its kernels. Each step says why it stands where it does."""

from __future__ import annotations

from typing import Any

from rlx.compile.buffers import plan_buffers
from rlx.compile.grouping import Pointwise, group_kernels
from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.graph import Graph
from rlx.ir.lir import LirModule
from rlx.ir.rebuild import decompose_all
from rlx.ir.verify import debug_assert_valid
from rlx.ops.fused import FusedMatMulBiasAct, FusedResidualLN, FusedResidualRmsNorm, FusedSwiGLU
from rlx.ops.fused_blocks import FusedAttentionBlock, FusedTransformerLayer

FUSED_OPS = (
    FusedMatMulBiasAct,
    FusedResidualLN,
    FusedResidualRmsNorm,
    FusedSwiGLU,
    FusedAttentionBlock,
    FusedTransformerLayer,
)


def lower_to_lir(program: Any, is_pointwise: Pointwise) -> LirModule:
    """HIR or MIR to LIR, for a target with our own generator that computes `is_pointwise` nodes inside kernels."""
    # Blocks first: everything after this sees tensor ops only.
    graph = lower_blocks(program)
    # Fused ops are taken apart, so that one mechanism, the grouping below, decides what runs together.
    graph = decompose_all(graph, keep=lambda node: not isinstance(node.op, FUSED_OPS))
    # Dead nodes would make values look shared and keep kernels apart.
    graph = remove_dead_nodes(graph).graph
    # Cut before planning: only what crosses a kernel boundary needs memory.
    kernels = group_kernels(graph, is_pointwise)
    plan = plan_buffers(graph, kernels)
    debug_assert_valid(graph, "lower_to_lir")
    return LirModule(graph.freeze(), plan, kernels)


def lower_blocks(program: Any) -> Graph:
    """The MIR graph of a program at any stage."""
    if hasattr(program, "lower_to_mir"):
        program = program.lower_to_mir()
    return program.into_graph() if hasattr(program, "into_graph") else program
