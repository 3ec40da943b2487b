"""`CompilePipeline`: programs to LIR for one target, with options, reports and results around `rlx.compile.pipeline`.

    result = CompilePipeline(target="cpu").compile(module)
    result.lir, result.prepare, result.fusion
    result.specialize(pipeline, {"B": 1, "S": 128})

A result holds two programs: `prepare` makes of the weights what can be made of them once, `lir` is what runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.compile import pipeline
from rlx.compile.claims.dispatch import KernelDispatchReport
from rlx.compile.claims.fusion.fusion_options import (
    FusionOptions,
    FusionTarget,
    fusion_limits_for_target,
    supported_for_target,
)
from rlx.compile.claims.fusion.fusion_report import FusionReport
from rlx.compile.claims.logical_kernel import KernelDispatchConfig, KernelDispatchPolicy
from rlx.compile.fuse.barriers import UnfusedEdge
from rlx.compile.generators import Generator, generator_for
from rlx.compile.memory.interpret import interpret_lir
from rlx.compile.memory.lir_liveness import stored_over
from rlx.compile.memory.node_plan import MemoryPlanOptions, SharedWeightLayout, WeightSlot, plan_memory_with_options
from rlx.compile.memory.packing import aligned
from rlx.compile.memory.plan import plan_buffers
from rlx.compile.precision.policy import PrecisionPolicy
from rlx.compile.report.naming import named_fusions
from rlx.compile.steps import Compilation, Settings, Stage
from rlx.compile.target import Absent, select
from rlx.compile.weights.integer_activations import Int8Change
from rlx.errors import LowerError, RlxError
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirModule
from rlx.ir.module import GraphModule, GraphStage, HirModule, MirModule
from rlx.ir.rewrite.passes import Pass, PassRecord, run_passes
from rlx.ir.shape import Size
from rlx.ir.tensor import node_index
from rlx.knobs import knobs
from rlx.ops.lowered.int8_products import ACTIVATIONS

if TYPE_CHECKING:
    from rlx.autodiff.graphs import GradWithLossOptions, LeafRef
    from rlx.compile.report.report import CompileReport, Where

Array = np.ndarray[Any, np.dtype[Any]]
Program = HirModule | MirModule | LirModule | GraphModule | Graph
Binding = Mapping[str, int | Dim]


class TrainingCompileError(RlxError):
    """A module that cannot be compiled for training: `WrongStage` with a hint, or `Lower` with the reason."""

    WrongStage: type[_WrongStage]
    Lower: type[_Lower]


class _WrongStage(TrainingCompileError):
    def __init__(self, hint: str) -> None:
        super().__init__(f"a planned program (LIR) cannot be differentiated; {hint}")
        self.hint = hint


class _Lower(TrainingCompileError):
    def __init__(self, error: LowerError) -> None:
        super().__init__(f"the blocks of the module cannot be lowered: {error}")
        self.error = error


TrainingCompileError.WrongStage, TrainingCompileError.Lower = _WrongStage, _Lower


@dataclass(frozen=True)
class CompileResult:
    """What a compile gives: the program that runs, the one that prepares its weights, and what happened on the way."""

    lir: LirModule
    fusion: FusionReport
    # None when nothing follows from weights alone; else its outputs are the params of `lir` called `prepared`.
    prepare: LirModule | None = None
    prepared: tuple[str, ...] = ()
    # Every value that goes from one kernel of `lir` to another, and why it does not stay inside.
    barriers: tuple[UnfusedEdge, ...] = ()
    # How each kind of op reached the kinds that a backend has claimed; None when no claim was given.
    dispatch: KernelDispatchReport | None = None
    # What became of the products with stored weights, where activations of 8 bits were asked for.
    int8: tuple[Int8Change, ...] = ()
    # Every step, and the passes inside of steps, with time and node counts.
    passes: tuple[PassRecord, ...] = field(default=(), compare=False)

    def has_dynamic_dims(self) -> bool:
        return self.lir.has_dynamic_dims()

    def dynamic_symbols(self) -> tuple[str, ...]:
        return self.lir.dynamic_symbols()

    def specialize(self, pipeline: CompilePipeline, binding: Binding) -> CompileResult:
        """The result for one set of sizes, its memory planned anew."""
        return replace(self, lir=pipeline.specialize_lir(self.lir, binding))

    def report(self, device: str, where: Where | None = None, notes: tuple[str, ...] = ()) -> CompileReport:
        """What became of the program, as text, JSON and a page; `where` says where a kernel runs, `notes` are what a
        device has to say of the whole."""
        from rlx.compile.report.report import CompileFindings, CompileReport

        found = CompileFindings(self.fusion, self.barriers, self.prepare, self.dispatch, self.passes, self.int8, notes)
        return CompileReport(self.lir, device, where, found)

    def interpret(
        self, leaves: Mapping[str, Array], binding: Mapping[str, int] | None = None, check: bool = True
    ) -> list[Array]:
        """The outputs, computed in NumPy inside the planned memory: first what `prepare` gives, then `lir`."""
        ready: dict[str, Array] = {}
        if self.prepare is not None:
            ready = dict(zip(self.prepared, interpret_lir(self.prepare, leaves, check=check), strict=True))
        return interpret_lir(self.lir, {**leaves, **ready}, binding, check)


@dataclass(frozen=True)
class TrainingCompileResult:
    """`forward` for inference; `backward` for a training step: `[loss, other outputs.., gradients..]` in one program,
    which computes the forward values once and keeps what the gradients need. Both read the same weights, which lie in a
    region of their own as `weights` says."""

    forward: CompileResult
    backward: CompileResult
    weights: SharedWeightLayout


@dataclass(frozen=True)
class CompilePipeline:
    """How programs are compiled for one target.

    `supported_ops` are the kinds of ops (class names) that a backend runs; the target's own claims when it is None.
    Given, they overrule the generator: the program is fused for, and legalised to, exactly these kinds.
    """

    target: str = FusionTarget.Cpu
    opts: FusionOptions | None = None
    arena_alignment: int = field(default_factory=lambda: knobs.arena_align)
    assert_fusion_clean: bool = False
    supported_ops: frozenset[str] | None = None
    kernel_dispatch: KernelDispatchConfig = field(default_factory=KernelDispatchConfig.from_env)
    precision: PrecisionPolicy = PrecisionPolicy.AlwaysF32
    # Whether what follows from weights alone becomes a program of its own; training changes weights at every step.
    prepare_params: bool = True
    # "int8", "int16", "auto": products with stored weights multiply codes of activations, which changes their answers.
    activations: str = "f32"
    # The chip that kernels are cut for, by its name ("avx2", "sm_90a"); None: the one that is found here.
    machine: str | None = None

    def __post_init__(self) -> None:
        # Names are accepted where there is one.
        object.__setattr__(self, "target", _target_name(self.target))
        object.__setattr__(self, "precision", PrecisionPolicy.of(self.precision))
        object.__setattr__(self, "kernel_dispatch", KernelDispatchConfig.of(self.kernel_dispatch))
        if self.activations not in ACTIVATIONS:
            raise RlxError(f"CompilePipeline.activations is one of {', '.join(ACTIVATIONS)}, got {self.activations!r}")
        if self.supported_ops is not None:
            object.__setattr__(self, "supported_ops", frozenset(self.supported_ops))

    @staticmethod
    def new(target: FusionTarget | str = FusionTarget.Cpu) -> CompilePipeline:
        """The pipeline of a target, with the options that its knobs ask for."""
        name = _target_name(target)
        return CompilePipeline(name, FusionOptions.for_target(name))

    def with_assert_fusion_clean(self, on: bool = True) -> CompilePipeline:
        return replace(self, assert_fusion_clean=on)

    def with_supported_ops(self, kinds: Collection[str] | None) -> CompilePipeline:
        return replace(self, supported_ops=None if kinds is None else frozenset(kinds))

    def with_kernel_dispatch(self, policy: KernelDispatchPolicy | str) -> CompilePipeline:
        return replace(self, kernel_dispatch=KernelDispatchConfig.of(policy))

    def with_kernel_dispatch_config(self, config: KernelDispatchConfig) -> CompilePipeline:
        return replace(self, kernel_dispatch=config)

    def with_precision(self, policy: PrecisionPolicy | str) -> CompilePipeline:
        return replace(self, precision=PrecisionPolicy.of(policy))

    @property
    def generator(self) -> Generator | None:
        """What the target's generator joins into kernels; None when a backend brings its own."""
        return generator_for(self.target, self.machine) if self.supported_ops is None else None

    @property
    def claims(self) -> frozenset[str]:
        """The kinds of ops that fusion may form."""
        return supported_for_target(self.target) if self.supported_ops is None else self.supported_ops

    def _fusion_passes(self) -> tuple[Pass, ...]:
        """Those of targets that claim ops; a generator has no use for them, and does not load them."""
        if self.generator is not None:
            return ()
        from rlx.compile.claims.fusion.fusion_pipeline import fusion_passes, fusion_passes_for_supported

        if self.supported_ops is None:
            return tuple(fusion_passes(self.target, self.opts))
        return tuple(fusion_passes_for_supported(self.supported_ops, self.opts))

    @property
    def settings(self) -> Settings:
        """What the steps of a compile read."""
        return Settings(
            target=str(self.target),
            generator=self.generator,
            claims=self.claims,
            supported=self.supported_ops,
            fusion_passes=self._fusion_passes(),
            fusion_limits=(self.opts and self.opts.fusion_limits) or fusion_limits_for_target(self.target),
            kernel_dispatch=self.kernel_dispatch,
            precision=self.precision,
            has_prepare=self.prepare_params,
            activations=self.activations,
            alignment=self.arena_alignment,
        )

    # Step by step: parts of `rlx.compile.pipeline.STEPS`.

    def lower_hir(self, hir: HirModule) -> MirModule:
        """Blocks to tensor ops."""
        return MirModule.from_graph(self._run(hir, Stage.Blocks).graph)

    def preprocess_mir(self, mir: MirModule) -> MirModule:
        """Branches and loops to straight code where the target runs neither, and no dead nodes."""
        return MirModule.from_graph(self._run(mir.as_graph(), Stage.Preprocess).graph)

    def optimize(self, mir: MirModule) -> MirModule:
        return self.optimize_with_report(mir)[0]

    def optimize_with_report(self, mir: MirModule) -> tuple[MirModule, FusionReport]:
        """The program in the ops that the target runs, and what fusion did to it."""
        done = self._run(mir.as_graph(), Stage.Optimize)
        return MirModule.from_graph(done.graph), done.fusion or FusionReport()

    def optimize_backward(self, mir: MirModule) -> MirModule:
        """A gradient graph is optimised like any other: derivatives have been taken, so every pass is safe."""
        from rlx.compile.claims.fusion.fusion_pipeline import backward_cleanup_passes

        return self.optimize(MirModule.from_graph(run_passes(mir.as_graph(), backward_cleanup_passes())))

    def plan_lir(self, mir: MirModule) -> LirModule:
        """Kernels, and places for what they store. Inputs, weights and results have buffers of their own."""
        return _lir(self._run(mir.as_graph(), Stage.Kernels))

    def _run(self, graph: Graph, *stages: Stage) -> Compilation:
        return pipeline.compile_program(graph, self.settings, stages or tuple(Stage))

    def plan_lir_with_options(self, mir: MirModule, options: MemoryPlanOptions) -> LirModule:
        """A plan node by node, with the boundary values in the arena that `options` put there."""
        graph = mir.as_graph().copy().freeze()
        return LirModule(graph, plan_memory_with_options(graph, self.arena_alignment, options))

    def specialize_lir(self, lir: LirModule, binding: Binding) -> LirModule:
        """The program for one set of sizes: types inferred again, memory planned again, kernels cut as they were."""
        graph = lir.as_graph().bind(binding).freeze()
        if lir.kernels:
            plan = plan_buffers(graph, lir.kernels, lir.buffers.alignment, stored_over(lir))
            return LirModule(graph, plan, lir.kernels)
        return LirModule(graph, plan_memory_with_options(graph, lir.buffers.alignment, _options_of(lir)))

    # End to end

    def compile(self, program: Program) -> CompileResult:
        """Compile a program at any stage; LIR is returned as it is."""
        content = program.content if isinstance(program, GraphModule) else program
        if isinstance(content, LirModule):
            return CompileResult(content, FusionReport())
        return self.result(self.run(content if isinstance(content, Graph) else content.as_graph()))

    def run(self, graph: Graph) -> Compilation:
        """All steps of a compile, with what each has found out."""
        return self._run(graph)

    def result(self, done: Compilation) -> CompileResult:
        """What a finished compile gives; knobs may ask to see some of it."""
        fusion = done.fusion or FusionReport()
        self._require_clean(fusion)
        if done.settings.generator is not None:
            # Kernels join what other targets have named ops for.
            fusion = fusion.with_kernels(named_fusions(_lir(done)))
        passes = (*done.records, *(done.prepare.records if done.prepare is not None else ()))
        result = CompileResult(
            _lir(done),
            fusion,
            None if done.prepare is None else _lir(done.prepare),
            done.prepared,
            done.barriers,
            done.dispatch,
            done.int8,
            passes,
        )
        if knobs.fusion_report:
            print(result.report(self.target), result.fusion, *result.barriers, sep="\n", file=sys.stderr)
        if done.settings.generator is not None and (knobs.dispatch_report or knobs.verbose):
            from rlx.compile.claims.dispatch import dispatch_of_kernels, maybe_log_dispatch_report

            assert done.mir is not None
            maybe_log_dispatch_report(dispatch_of_kernels(done.mir, result.lir, str(self.target), self.kernel_dispatch))
        if knobs.verbose >= 2:
            _show_hardware(str(self.target))
        if knobs.ir_dump:
            from rlx.compile.inspect import inspect_compilation, maybe_dump_pipeline

            maybe_dump_pipeline(inspect_compilation(done, result), result.lir.name)
        return result

    def compile_module(self, module: GraphModule) -> CompileResult:
        return self.compile(module)

    def compile_mir(self, mir: MirModule) -> CompileResult:
        return self.compile(mir)

    def compile_graph(self, graph: Graph) -> CompileResult:
        return self.compile(graph)

    def compile_hir(self, hir: HirModule) -> CompileResult:
        return self.compile(hir)

    def _require_clean(self, report: FusionReport) -> None:
        missed = [m for m in report.missed if not m.reason.is_choice]
        if self.assert_fusion_clean and missed:
            shown = "\n".join(f"  {m}; {m.hint}" for m in missed)
            raise RlxError(f"assert_fusion_clean: {len(missed)} patterns did not fuse for {self.target}:\n{shown}")

    # Training

    def compile_training(
        self,
        module: GraphModule | HirModule | MirModule | Graph,
        wrt: Iterable[LeafRef],
        options: GradWithLossOptions | None = None,
    ) -> TrainingCompileResult:
        """A program and its gradient with respect to leaves, given by name or by id in `module`.

        The gradient is taken before fusion, of the primitive form of blocks, and the result is optimised as a whole.
        Without `options` they are `GradWithLossOptions.STRICT`.
        """
        from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss_opts, leaf_ids
        from rlx.compile.claims.fusion.fusion_pipeline import backward_cleanup_passes

        if not isinstance(module, GraphModule):
            module = GraphModule(module) if isinstance(module, MirModule) else GraphModule.from_graph(module)
        if module.stage is GraphStage.Lir:
            raise _WrongStage("compile the graph inside it: compile_training_mir(module.into_mir(), wrt)")
        hir = module.as_hir()
        graph = module.into_graph() if hir is None else hir
        # Ids change with every pass, names do not.
        names = [
            str(graph.nodes[i].name) for i in leaf_ids(graph, [_reference(ref) for ref in wrt], "compile_training")
        ]
        try:
            differentiable = graph if hir is None else hir.lower_for_autodiff().as_graph()
            plain = replace(self, prepare_params=False)
            forward = plain.compile(module)
        except LowerError as error:
            raise _Lower(error) from error
        gradient = grad_with_loss_opts(differentiable, names, options or GradWithLossOptions.STRICT)
        backward = plain.compile(run_passes(gradient, backward_cleanup_passes()))
        return TrainingCompileResult(forward, backward, weight_layout(forward.lir.as_graph(), self.arena_alignment))

    def compile_training_mir(
        self, mir: MirModule, wrt: Iterable[LeafRef], options: GradWithLossOptions | None = None
    ) -> TrainingCompileResult:
        return self.compile_training(mir, wrt, options)


def _lir(done: Compilation) -> LirModule:
    assert done.lir is not None
    return done.lir


@cache
def _show_hardware(target: str) -> None:
    """What a target has here, on standard error; once for each."""
    found = select(target).target.probe()
    if isinstance(found, Absent):
        shown = [f"{found.why.value}: {found.reason}"]
    else:
        shown = [f"{d.name}, {d.detail}" if d.detail else d.name for d in found.devices]
    print(*(f"rlx: hardware {target}: {line}" for line in shown), sep="\n", file=sys.stderr)


def _target_name(target: FusionTarget | str) -> str:
    """The name of a target, as a member of the enum where it is one."""
    name = str(target).lower()
    return FusionTarget(name) if name in list(FusionTarget) else select(name).target.name


def _reference(ref: LeafRef) -> str | int:
    return ref if isinstance(ref, str) else int(node_index(ref))


def _options_of(lir: LirModule) -> MemoryPlanOptions:
    """With which options a node-by-node plan was made, as far as its slots tell."""
    placed = {type(lir.as_graph().nodes[n].op) for n in lir.buffers.assignments}
    return MemoryPlanOptions(Param in placed, Input in placed, Constant in placed)


def weight_layout(graph: Graph, alignment: int) -> SharedWeightLayout:
    """The params of a graph one after the other, by name: a region that no arena overlaps, for all programs that share
    them."""
    slots: list[WeightSlot] = []
    end: Size = 0
    for node in sorted(graph.params, key=lambda n: str(n.name)):
        slots.append(WeightSlot(str(node.name), node.id, end, node.shape.byte_size))
        end = end + aligned(node.shape.byte_size, alignment)
    return SharedWeightLayout(end, tuple(slots))
