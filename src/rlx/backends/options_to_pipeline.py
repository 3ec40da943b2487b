"""Compile options to a compile: the same for every backend whose kernels come from our own generator."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from rlx.backends.compile_options import CompileOptions
from rlx.ir.graph import Graph
from rlx.knobs import knobs

if TYPE_CHECKING:
    from rlx.compile.compiler import CompilePipeline, CompileResult


def compile_with_options(
    graph: Graph, target: str, options: CompileOptions, machine: str | None = None
) -> CompileResult:
    """LIR for a graph, made as the options say, for a chip by its name, or the one that the target is usually for."""
    from rlx.compile.pipeline import legalize, without_passes
    from rlx.ir.verify import check

    if options.verify:
        check(graph)
    pipeline = replace(pipeline_for(target, options), machine=machine)
    skipped = [name for name, on in _PASSES.items() if not getattr(options, on)]
    with without_passes(skipped), knobs(verbose=max(1, knobs.verbose)) if options.verbose else nullcontext():
        if options.supported_ops is not None:
            # First to what the caller names, then to kernels.
            graph, _ = legalize(graph, target, options.supported_ops, pipeline.kernel_dispatch)
        return pipeline.compile(graph)


# Passes that options turn off.
_PASSES = {"dead_code_elimination": "dce", "constant_folding": "constant_folding"}


def pipeline_for(target: str, options: CompileOptions) -> CompilePipeline:
    from rlx.compile.claims.logical_kernel import KernelDispatchConfig
    from rlx.compile.compiler import CompilePipeline

    pipeline = CompilePipeline.new(options.fusion_target or target)
    changes: dict[str, object] = {
        "precision": options.precision_policy,
        "assert_fusion_clean": options.assert_fusion_clean,
        "prepare_params": options.cache_param_invariant,
        "activations": options.activations,
    }
    if options.fusion_opts is not None:
        changes["opts"] = options.fusion_opts
    if options.arena_alignment is not None:
        changes["arena_alignment"] = options.arena_alignment
    if options.kernel_dispatch is not None:
        changes["kernel_dispatch"] = KernelDispatchConfig.of(options.kernel_dispatch)
    return replace(pipeline, **changes)  # type: ignore[arg-type]


def specialized(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with the sizes and weights fixed that the options fix."""
    if options.dim_binding:
        graph = graph.bind(options.dim_binding)
    if options.param_bindings:
        from rlx.compile.simplify.specialize_params import SpecializeParams

        graph = SpecializeParams(options.param_bindings).run(graph)
    return graph
