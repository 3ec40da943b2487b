"""The order of everything between a program and its kernels: `STEPS`, each with the reason why it stands where it does.

    done = compile_program(graph, Settings(target="cpu", generator=generator_for("cpu")))
    done.lir, done.records

One list serves all: targets with our own generator, whose ops are grouped into kernels; targets that bring kernels,
which get the fused ops that they claim; programs that prepare weights; and the bodies of loops. Which steps a compile
needs follows from its settings. `RLX_DEBUG=2` prints each with its time and what it did to the number of nodes;
`RLX_DUMP` writes what each has made, and `RLX_OVERRIDE` puts an edited text in its place. `rlx.compile.compiler` puts
options and reports around this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx.compile.fuse.group import group
from rlx.compile.generators import Generator
from rlx.compile.lower.attention import split_attention
from rlx.compile.lower.attention_logs import share_logs
from rlx.compile.lower.code_products import code_products
from rlx.compile.lower.lower import kernel_forms, name_results
from rlx.compile.lower.picture_layout import picture_layout
from rlx.compile.lower.written_attention import join_attention
from rlx.compile.memory.in_place import store_in_place, with_copies
from rlx.compile.memory.liveness import is_pure_view
from rlx.compile.memory.plan import plan_buffers
from rlx.compile.memory.recompute import recompute_far
from rlx.compile.precision.apply import AutoMixedPrecision
from rlx.compile.precision.policy import PrecisionPolicy
from rlx.compile.simplify.algebra import AlgebraicSimplify
from rlx.compile.simplify.common_values import CommonSubexpressionElimination
from rlx.compile.simplify.constants import ConstantFolding
from rlx.compile.steps import Compilation, Settings, Stage, Step, on_graph, run_steps, skipped_passes
from rlx.compile.steps import without_passes as without_passes
from rlx.compile.weights.integer_activations import int8_activations
from rlx.compile.weights.join_products import join_products
from rlx.compile.weights.pack_blocks import pack_quantized
from rlx.compile.weights.pack_floats import pack_weights, stored_panels
from rlx.compile.weights.row_weights import join_rows, stored_rows
from rlx.compile.weights.sink_casts import widen_late
from rlx.compile.weights.split import split_prepare
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.leaves import Constant, Project
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.passes import Pass, PassRecord, run_recorded
from rlx.ir.rewrite.rebuild import decompose_all
from rlx.ops.control.body_calls import KeepPrecision

if TYPE_CHECKING:
    from rlx.compile.claims.dispatch import KernelDispatchReport
    from rlx.compile.claims.logical_kernel import KernelDispatchConfig


# In this order: rules leave constant expressions behind, folding makes equal nodes, merging leaves dead ones.
SIMPLIFY: tuple[Pass, ...] = (
    AlgebraicSimplify(),
    ConstantFolding(),
    CommonSubexpressionElimination(),
    DeadCodeElimination(),
)
# Each round works on what the one before it has made; programs of people come to rest after two or three.
MAX_ROUNDS = 8


def _simplified(c: Compilation) -> Compilation:
    """Simplify, fold, merge and clean up until nothing changes."""
    if c.graph is c.at_rest:
        return c
    graph, records = _at_rest(c.graph)
    return replace(c, graph=graph, at_rest=graph, records=c.records + records)


def _at_rest(graph: Graph) -> tuple[Graph, tuple[PassRecord, ...]]:
    skipped = skipped_passes()
    passes = [p for p in SIMPLIFY if p.name not in skipped]
    records: tuple[PassRecord, ...] = ()
    for _ in range(MAX_ROUNDS):
        done = run_recorded(graph, passes)
        records += done.records
        if done.graph is graph:
            break
        graph = done.graph
    return graph, records


# What a compile may leave out besides optional steps.
OPTIONAL_PASSES = tuple(p.name for p in SIMPLIFY)


def _has_generator(settings: Settings) -> bool:
    return settings.generator is not None


def _has_claims(settings: Settings) -> bool:
    return settings.generator is None


def _has_prepare(settings: Settings) -> bool:
    return settings.has_prepare


def _joins_weights(settings: Settings) -> bool:
    return settings.has_prepare and settings.generator is not None


def _packs_weights(settings: Settings) -> bool:
    return settings.has_prepare and settings.generator is not None and settings.generator.panel_width is not None


def _keeps_pictures(settings: Settings) -> bool:
    """Whether products over windows read weights in panels."""
    return _packs_weights(settings) and settings.generator is not None and settings.generator.reads_pixels


def _packs_blocks(settings: Settings) -> bool:
    """Blocks of files lie in panels of the same width on every machine."""
    return settings.has_prepare and settings.generator is not None


def _has_integers(settings: Settings) -> bool:
    """Whether products multiply codes of activations: where that was asked for, or left to the machine."""
    if not _packs_weights(settings) or settings.generator is None:
        return False
    return settings.activations != "f32"


def _keeps_rows(settings: Settings) -> bool:
    return settings.has_prepare and settings.generator is not None and settings.generator.reads_rows


def _lower_blocks(c: Compilation) -> Compilation:
    graph = lower_blocks(c.graph)
    return c if graph is c.graph else replace(c, graph=graph)


def _lower_control_flow(graph: Graph, settings: Settings) -> Graph:
    from rlx.compile.claims.fusion.control_flow import LowerControlFlow

    return LowerControlFlow.unless_claimed(settings.claims).run(graph)


def _remove_dead_code(c: Compilation) -> Compilation:
    graph = DeadCodeElimination().run(c.graph)
    return replace(c, graph=graph, mir=graph)


def _fuse_patterns(c: Compilation) -> Compilation:
    from rlx.compile.claims.fusion.fusion_limits import with_fusion_limits

    limits, passes = c.settings.fusion_limits, c.settings.fusion_passes
    assert limits is not None
    done = with_fusion_limits(limits, lambda: run_recorded(c.graph, passes))
    return replace(c, graph=done.graph, records=c.records + done.records)


def _clip_regions(graph: Graph, settings: Settings) -> Graph:
    from rlx.compile.claims.fusion.unfuse_elementwise_regions import clip_elementwise_regions

    assert settings.fusion_limits is not None
    return clip_elementwise_regions(graph, settings.fusion_limits)


def _legalize(c: Compilation) -> Compilation:
    assert c.settings.supported is not None and c.settings.kernel_dispatch is not None
    graph, report = _legal(c.graph, c.settings.target, c.settings.supported, c.settings.kernel_dispatch)
    return replace(c, graph=graph, dispatch=report)


def _report_fusion(c: Compilation) -> Compilation:
    from rlx.compile.claims.fusion.fusion_report import FusionReport

    # For a generator no named pattern is looked for, so none is missed: kernels decide, and their report says why.
    report = FusionReport.analyze(c.mir or c.graph, c.graph, c.settings.fusion_passes)
    return replace(c, fusion=report, optimized=c.graph)


def _use_integers(c: Compilation) -> Compilation:
    generator = c.settings.generator
    assert generator is not None and generator.panel_width is not None
    kind = c.settings.activations
    dots = generator.has_byte_dots, generator.has_word_dots
    graph, changes = int8_activations(c.graph, generator.panel_width, kind, *dots)
    return replace(c, graph=graph, int8=tuple(changes))


def _pack_floats(graph: Graph, settings: Settings) -> Graph:
    generator = settings.generator
    assert generator is not None and generator.panel_width is not None
    if generator.has_dot4:
        # Weights of 8 bits stay bytes: panels of numbers would hold them in 32.
        graph = code_products(graph, generator.panel_width)
    return pack_weights(graph, generator.panel_width, generator.has_pairs)


def _split_prepare(c: Compilation) -> Compilation:
    stored: set[NodeId] = stored_panels(c.graph) if _packs_blocks(c.settings) else set()
    if _keeps_rows(c.settings):
        stored |= stored_rows(c.graph)
    done = split_prepare(c.graph, stored)
    if done.prepare is None:
        return replace(c, graph=done.main)
    prepare = Compilation(done.prepare, c.settings, part="prepare")
    return replace(c, graph=done.main, prepare=prepare, prepared=done.prepared)


def _for_generator(rewrite: Any) -> Any:
    return on_graph(lambda graph, settings: rewrite(graph, settings.generator))


def _group(c: Compilation) -> Compilation:
    assert c.settings.generator is not None
    kernels, barriers = group(c.graph, c.settings.generator)
    return replace(c, kernels=tuple(kernels), barriers=tuple(barriers))


def _recompute(c: Compilation) -> Compilation:
    assert c.settings.generator is not None and c.kernels is not None
    done = recompute_far(c.graph, c.kernels, c.settings.generator)
    if done is None:
        return c
    barriers = (e._replace(producer=done.ids[e.producer], reader=done.ids[e.reader]) for e in c.barriers)
    return replace(c, graph=done.graph, kernels=tuple(done.kernels), barriers=tuple(barriers))


def _store_in_place(c: Compilation) -> Compilation:
    assert c.settings.generator is not None and c.kernels is not None
    done = store_in_place(c.graph, c.kernels, c.settings.generator)
    if not done.stored_over and done.kernels == list(c.kernels):
        return c
    return replace(c, kernels=tuple(done.kernels), stored_over=done.stored_over)


def _one_kernel_per_op(c: Compilation) -> Compilation:
    nodes = [n for n in c.graph.nodes if not n.is_leaf and not isinstance(n.op, Constant)]
    return replace(c, kernels=tuple(_op_kernel(c.graph, n) for n in nodes))


def _op_kernel(graph: Graph, node: Node) -> LirKernel:
    is_view = isinstance(node.op, Project) or (len(node.shapes) == 1 and node.inputs and is_pure_view(graph, node))
    kind = KernelKind.View if is_view else KernelKind.Op
    return LirKernel.of(kind, [node.id], dict.fromkeys(node.inputs), [node.id])


def _plan(c: Compilation) -> Compilation:
    assert c.kernels is not None
    plan = plan_buffers(c.graph, c.kernels, c.settings.alignment, c.stored_over)
    # A copy: when no step had anything to do, this is still the caller's own graph.
    return replace(c, lir=LirModule(c.graph.copy().freeze(), plan, c.kernels))


STEPS: tuple[Step, ...] = (
    Step(
        "lower_blocks",
        Stage.Blocks,
        _lower_blocks,
        "Blocks first: everything after this sees tensor ops only.",
    ),
    Step(
        "lower_control_flow",
        Stage.Preprocess,
        on_graph(_lower_control_flow),
        "Straight code for targets that run neither branches nor loops, before anything looks for patterns in it.",
    ),
    Step(
        "remove_dead_code",
        Stage.Preprocess,
        _remove_dead_code,
        "What nobody reads would be optimised for nothing.",
    ),
    Step(
        "unfuse",
        Stage.Optimize,
        on_graph(lambda graph, _: decompose_all(graph, keep=lambda node: not node.op.is_fused)),
        "Fused ops are taken apart, so that one mechanism, the grouping, decides what runs together.",
        _has_generator,
    ),
    Step(
        "simplify",
        Stage.Optimize,
        _simplified,
        "What is dead, equal or constant would make values look shared and keep kernels apart; "
        "patterns are written for canonical forms.",
        optional=True,
    ),
    Step(
        "fuse_patterns",
        Stage.Optimize,
        _fuse_patterns,
        "Targets with kernels for whole ops get those that they claim.",
        _has_claims,
        optional=True,
    ),
    Step(
        "clip_regions",
        Stage.Optimize,
        on_graph(_clip_regions),
        "Passes join without looking at the sum; kernels of devices have room for so much.",
        _has_claims,
    ),
    Step(
        "mixed_precision",
        Stage.Optimize,
        on_graph(lambda graph, settings: AutoMixedPrecision(settings.precision).run(graph)),
        "After simplification, which is exact only where types are as the user wrote them, and after fusion: "
        "a fused op casts at its border only.",
        lambda settings: settings.precision != PrecisionPolicy.AlwaysF32,
    ),
    Step(
        "release_precision",
        Stage.Optimize,
        on_graph(lambda graph, _: decompose_all(graph, keep=lambda node: not isinstance(node.op, KeepPrecision))),
        "Types are settled, so what had to keep them may mix with the rest.",
    ),
    Step(
        "join_attention",
        Stage.Optimize,
        _for_generator(join_attention),
        "Written out, attention stores its scores. After precision policies, which know its parts; before weights are "
        "prepared, so that biases of weights are.",
        _has_generator,
        optional=True,
    ),
    Step(
        "simplify_converted",
        Stage.Optimize,
        _simplified,
        "Casts of neighbours meet and cancel, casts of weights become part of `prepare`, and fusion makes constants "
        "and equal nodes, too.",
        optional=True,
    ),
    Step(
        "join_products",
        Stage.Optimize,
        on_graph(lambda graph, _: join_products(graph)),
        "Products read their common operand once. "
        "Weights have their final types now and can be joined once for all runs.",
        _joins_weights,
        optional=True,
    ),
    Step(
        "simplify_joined",
        Stage.Optimize,
        _simplified,
        "Parts of one product may be joined again behind it.",
        _joins_weights,
        optional=True,
    ),
    Step(
        "legalize",
        Stage.Optimize,
        _legalize,
        "Exactly the kinds that a backend has named; after fusion, which uses some of what this takes apart.",
        lambda settings: _has_claims(settings) and bool(settings.supported),
    ),
    Step(
        "report_fusion",
        Stage.Optimize,
        _report_fusion,
        "Counts what fused and finds what nearly did, while the program still has the ops of users.",
    ),
    Step(
        "picture_layout",
        Stage.Weights,
        _for_generator(picture_layout),
        "Convolutions become products of weights that are packed next; norms, gates and pools between them are written "
        "in few ops now.",
        _keeps_pictures,
        optional=True,
    ),
    Step(
        "pack_quantized",
        Stage.Weights,
        on_graph(lambda graph, _: pack_quantized(graph)),
        "Products read blocks of files in panels, which are made once.",
        _packs_blocks,
        optional=True,
    ),
    Step(
        "integer_activations",
        Stage.Weights,
        _use_integers,
        "It needs blocks in panels, and decides which float weights become codes.",
        _has_integers,
    ),
    Step(
        "sink_casts",
        Stage.Weights,
        on_graph(lambda graph, _: widen_late(graph)),
        "Weights are kept as narrow as they are stored, which panels must know.",
        lambda settings: _packs_weights(settings) or _keeps_rows(settings),
        optional=True,
    ),
    Step(
        "pack_floats",
        Stage.Weights,
        on_graph(_pack_floats),
        "Products read weights in panels as wide as registers, which are made once.",
        _packs_weights,
        optional=True,
    ),
    Step(
        "join_rows",
        Stage.Weights,
        on_graph(lambda graph, _: join_rows(graph)),
        "Products that read weights by their strides need no turned copies.",
        _keeps_rows,
        optional=True,
    ),
    Step(
        "split_prepare",
        Stage.Weights,
        _split_prepare,
        "What follows from weights alone leaves the program; from here on there are two.",
        _has_prepare,
        optional=True,
    ),
    Step(
        "share_attention_logs",
        Stage.Kernels,
        _for_generator(share_logs),
        "Gradients of attention are still whole ops; what they become has sums and casts of its own.",
        _has_generator,
        optional=True,
    ),
    Step(
        "kernel_forms",
        Stage.Kernels,
        _for_generator(kernel_forms),
        "As late as this, because rules and precision policies know the ops of users: norms, losses, softmax.",
        _has_generator,
    ),
    Step(
        "split_attention",
        Stage.Kernels,
        _for_generator(split_attention),
        "Attention has its final layout now; long caches are shared out to threads.",
        _has_generator,
        optional=True,
    ),
    Step(
        "name_results",
        Stage.Kernels,
        _for_generator(name_results),
        "A kernel stores all results of its op, read or not; no op with several results is made after this.",
        _has_generator,
    ),
    Step(
        "copy_updated",
        Stage.Kernels,
        _for_generator(with_copies),
        "Kernels that change a part of an operand do it in place; whether the copy is needed is known when there are "
        "kernels.",
        _has_generator,
    ),
    Step(
        "group",
        Stage.Kernels,
        _group,
        "Cut before planning: only what crosses a kernel boundary needs memory.",
        _has_generator,
    ),
    Step(
        "recompute",
        Stage.Kernels,
        _recompute,
        "What is stored, and for how long, is known when there are kernels; what is computed again is not kept.",
        _has_generator,
        optional=True,
    ),
    Step(
        "store_in_place",
        Stage.Kernels,
        _store_in_place,
        "Which copies are needed depends on the order of kernels, so on how they were formed.",
        _has_generator,
    ),
    Step(
        "one_kernel_per_op",
        Stage.Kernels,
        _one_kernel_per_op,
        "The target has a kernel for each op, and none for views.",
        _has_claims,
    ),
    Step(
        "plan_buffers",
        Stage.Kernels,
        _plan,
        "Last: places for what kernels store, shared over time.",
    ),
)


def compile_program(program: Graph, settings: Settings, only: Collection[Stage] = tuple(Stage)) -> Compilation:
    """Run the steps of a compile, all of them or those of some stages."""
    return run_steps(Compilation(program, settings, program=program, mir=program), STEPS, OPTIONAL_PASSES, only)


def lower_to_lir(program: Any, generator: Generator, alignment: int = Settings.alignment) -> LirModule:
    """HIR or MIR to LIR, for a target with our own generator: the whole road, without a program for the weights."""
    done = compile_program(program_graph(program), Settings(generator=generator, alignment=alignment))
    assert done.lir is not None
    return done.lir


def lower_blocks(program: Any) -> Graph:
    """The MIR graph of a program at any stage."""
    if hasattr(program, "lower_to_mir"):
        program = program.lower_to_mir()
    graph: Graph = program.into_graph() if hasattr(program, "into_graph") else program
    return graph


def program_graph(program: Any) -> Any:
    """The graph of a program at its own stage: HIR stays HIR."""
    content = getattr(program, "content", program)
    return content if isinstance(content, Graph) else content.as_graph()


def legalize(
    graph: Graph, backend: str, supported: Collection[str], config: KernelDispatchConfig
) -> tuple[Graph, KernelDispatchReport]:
    """The graph in the ops that a backend claims, and how each kind got there."""
    return _legal(graph, backend, supported, config)


def _legal(
    graph: Graph, backend: str, supported: Collection[str], config: KernelDispatchConfig
) -> tuple[Graph, KernelDispatchReport]:
    from rlx.compile.claims.dispatch import maybe_log_dispatch_report, prepare_graph_for_backend_with_report
    from rlx.compile.claims.legalize import LegalizeError

    legal, report = prepare_graph_for_backend_with_report(graph, backend, supported, config)
    maybe_log_dispatch_report(report)
    if not report.compile_ready:
        raise LegalizeError(backend, report.still_unsupported)
    return _at_rest(legal)[0], report
