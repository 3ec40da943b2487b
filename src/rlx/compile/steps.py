"""What a compile is made of: settings, the state that goes from step to step, and the runner of the steps.

    done = run_steps(Compilation(graph, Settings(generator=generator)), STEPS)
    done.lir, done.barriers, done.records

A step takes a `Compilation` and gives another one; nothing is changed in place, so that the result of every step can be
kept, compared and shown. The list of all steps, with the reason of each, is `rlx.compile.pipeline.STEPS`.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rlx.compile.precision.policy import PrecisionPolicy
from rlx.compile.stages import Stages
from rlx.errors import InternalError, RlxError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import LirBufferPlan, LirKernel, LirModule, LirViewAlias
from rlx.ir.provenance import stamp_pass_origins
from rlx.ir.rewrite.passes import PassRecord, check_text, shown_detail
from rlx.ir.text.graph_text import show
from rlx.ir.verify import check
from rlx.knobs import knobs
from rlx.perfetto import trace_span

if TYPE_CHECKING:
    from rlx.compile.claims.dispatch import KernelDispatchReport
    from rlx.compile.claims.fusion.fusion_limits import FusionLimits
    from rlx.compile.claims.fusion.fusion_report import FusionReport
    from rlx.compile.claims.logical_kernel import KernelDispatchConfig
    from rlx.compile.fuse.barriers import UnfusedEdge
    from rlx.compile.generators import Generator
    from rlx.compile.weights.integer_activations import Int8Change
    from rlx.ir.rewrite.passes import Pass


@dataclass(frozen=True)
class Settings:
    """How a program is compiled; steps read their options here. The defaults are those of the body of a loop: what is
    around it has chosen precision and form of the weights."""

    target: str = ""
    # What joins ops into kernels; None: the target has kernels for whole ops, those that `claims` names.
    generator: Generator | None = None
    # No names: it claims everything.
    claims: frozenset[str] = frozenset()
    # The kinds that a backend runs, where it has said so; the program is legalised to exactly these.
    supported: frozenset[str] | None = None
    fusion_passes: tuple[Pass, ...] = ()
    fusion_limits: FusionLimits | None = None
    kernel_dispatch: KernelDispatchConfig | None = None
    precision: PrecisionPolicy = PrecisionPolicy.AlwaysF32
    # Whether what follows from weights alone becomes a program of its own.
    has_prepare: bool = False
    activations: str = "f32"
    alignment: int = 64


@dataclass(frozen=True)
class Compilation:
    """A program on its way to LIR: what it is now, and what has been found out about it."""

    graph: Graph
    settings: Settings
    # The program that is run once, on weights, and the params of this one that it computes; "prepare" is its `part`.
    prepare: Compilation | None = None
    prepared: tuple[str, ...] = ()
    part: str = ""
    # What was handed in; tensor ops before they are optimised, and after.
    program: Graph | None = None
    mir: Graph | None = None
    optimized: Graph | None = None
    # The graph on which simplification came to rest, if it has.
    at_rest: Graph | None = None
    fusion: FusionReport | None = None
    dispatch: KernelDispatchReport | None = None
    int8: tuple[Int8Change, ...] = ()
    kernels: tuple[LirKernel, ...] | None = None
    # For results that are stored over another value: which.
    stored_over: dict[NodeId, NodeId] = field(default_factory=dict)
    barriers: tuple[UnfusedEdge, ...] = ()
    lir: LirModule | None = None
    records: tuple[PassRecord, ...] = ()

    @property
    def content(self) -> Graph | LirModule:
        """What a text of this shows: the graph, the graph cut into kernels, or the plan."""
        if self.lir is not None:
            return self.lir
        if self.kernels is None:
            return self.graph
        over = {node: LirViewAlias(value) for node, value in self.stored_over.items()}
        plan = LirBufferPlan(schedule=[n.id for n in self.graph.nodes], view_aliases=over)
        return LirModule(self.graph, plan, self.kernels)

    def differs_from(self, before: Compilation) -> bool:
        """Whether a step has changed the program, or found kernels or places for it."""
        mine, others = ((c.graph, c.prepare, c.kernels, c.stored_over, c.lir) for c in (self, before))
        return any(a is not b for a, b in zip(mine, others))

    def with_content(self, content: Graph | LirModule) -> Compilation:
        """The same with a program that somebody has edited in the place of this one."""
        if not isinstance(content, LirModule):
            return replace(self, graph=content)
        graph, lir = content.as_graph(), content if self.lir is not None else None
        over = {node: view.root for node, view in content.buffers.view_aliases.items()}
        # Reasons name nodes of the program that was replaced.
        return replace(self, graph=graph, kernels=content.kernels, stored_over=over, lir=lir, barriers=())


class Stage(enum.StrEnum):
    """Parts of a compile that can also be asked for by themselves; see `CompilePipeline`."""

    Blocks = "blocks"
    Preprocess = "preprocess"
    Optimize = "optimize"
    Weights = "weights"
    Kernels = "kernels"


def always(settings: Settings) -> bool:
    return True


class Step(NamedTuple):
    """One step of a compile: its name, what it does, and why it is there and stands where it does.

    `when` says for which settings it is needed. `optional` ones may be left out by their name. Inside of one, passes
    over graphs may run again and again; their records stand before its own.
    """

    name: str
    stage: Stage
    run: Callable[[Compilation], Compilation]
    reason: str
    when: Callable[[Settings], bool] = always
    optional: bool = False


def on_graph(rewrite: Callable[[Graph, Settings], Graph]) -> Callable[[Compilation], Compilation]:
    """A step that rewrites the graph and finds out nothing else."""

    def run(c: Compilation) -> Compilation:
        after = rewrite(c.graph, c.settings)
        return c if after is c.graph else replace(c, graph=after)

    return run


_skipped: ContextVar[frozenset[str]] = ContextVar("rlx_skipped_passes", default=frozenset())


@contextmanager
def without_passes(names: Collection[str]) -> Iterator[None]:
    """Inside, in this thread or task, compiles leave out the optional steps and passes of these names."""
    token = _skipped.set(frozenset(names))
    try:
        yield
    finally:
        _skipped.reset(token)


def skipped_passes() -> frozenset[str]:
    """The optional steps and passes that are left out here: by `without_passes`, or by the knob `skip_passes`."""
    return _skipped.get() | frozenset(knobs.skip_passes.replace(",", " ").split())


def run_steps(
    c: Compilation, steps: Sequence[Step], optional: Collection[str] = (), only: Collection[Stage] = tuple(Stage)
) -> Compilation:
    """Run the steps that the settings ask for, in order, on a program and on what prepares its weights.

    `optional` are names besides those of steps that may be left out. With `only` the steps of these stages run.
    """
    skipped = skipped_passes()
    _check_names(skipped, steps, optional)
    wanted = [
        (number, step)
        for number, step in enumerate(steps, 1)
        if step.stage in only and step.when(c.settings) and not (step.optional and step.name in skipped)
    ]
    # Files are numbered for whole compiles.
    runner = _Runner(Stages(c.graph, c.settings.target) if len(only) == len(Stage) else None)
    c = runner.begin(c)
    for (number, step), (_, following) in zip_longest(wanted, wanted[1:], fillvalue=(0, None)):
        assert step is not None
        is_last = following is None or following.stage is not step.stage
        if c.prepare is not None:
            c = replace(c, prepare=runner.run(number, step, c.prepare, is_last))
        c = runner.run(number, step, c, is_last)
    return c


def _check_names(skipped: Collection[str], steps: Sequence[Step], optional: Collection[str]) -> None:
    known = [*(s.name for s in steps if s.optional), *optional]
    for name in skipped:
        if name not in known:
            needed = "cannot be left out" if any(s.name == name for s in steps) else "is no step of a compile"
            raise RlxError(f"{name!r} {needed}; these can: {', '.join(dict.fromkeys(known))}")


class _Runner:
    """Runs steps with a clock, the verifier, and what knobs want to see."""

    def __init__(self, stages: Stages | None) -> None:
        self.stages, self.debug, self.verify = stages, shown_detail(), knobs.verify
        self.checked: dict[str, Graph] = {}

    def begin(self, c: Compilation) -> Compilation:
        if self.debug >= 2:
            where = f" for {c.settings.target}" if c.settings.target else ""
            print(f"rlx: @{c.graph.name}{where}, {len(c.graph)} nodes", file=sys.stderr)
        return self.shown(c, "00-program", True)

    def run(self, number: int, step: Step, before: Compilation, is_last: bool) -> Compilation:
        start = time.perf_counter()
        with trace_span(step.name, "compile", {"program": before.graph.name}):
            after = self.ran(step, before)
            if after.graph is not before.graph:
                stamp_pass_origins(after.graph, step.name)
            self.check(step, before, after, is_last)
        changed = after.differs_from(before)
        after = self.shown(after, f"{number:02}-{step.name}", changed)
        seconds = time.perf_counter() - start
        record = PassRecord(step.name, seconds, len(before.graph), len(after.graph), changed, after.part)
        if self.debug >= 2:
            print(record, file=sys.stderr)
        if self.debug >= 3 and changed:
            content = after.content
            print(content if isinstance(content, LirModule) else show(content, locations=True), file=sys.stderr)
        inside = (r._replace(part=after.part, within=step.name) for r in after.records[len(before.records) :])
        return replace(after, records=(*before.records, *inside, record))

    def ran(self, step: Step, before: Compilation) -> Compilation:
        try:
            return step.run(before)
        except RlxError:
            raise
        except Exception as error:
            raise InternalError(
                f"the step {step.name} failed: {type(error).__name__}: {error}\n"
                f"The program before it was:\n{before.content}"
            ) from error

    def check(self, step: Step, before: Compilation, after: Compilation, is_last: bool) -> None:
        """With `RLX_VERIFY` 2 after every step, with 1 after the last one of a stage; no graph twice."""
        # What came without blocks is looked at after the next stage.
        is_new = after.graph is not before.graph or step.stage is not Stage.Blocks
        is_due = self.verify >= 2 or (self.verify == 1 and is_last and is_new)
        if is_due and self.checked.get(after.part) is not after.graph:
            check(after.graph, step.name)
            self.checked[after.part] = after.graph
        if self.verify >= 2 and after.differs_from(before):
            # The text is what a bug report carries, so it must always read back.
            check_text(after.content)

    def shown(self, c: Compilation, name: str, changed: bool) -> Compilation:
        """What goes on: this, or the text that somebody has put in its place."""
        if self.stages is None or not self.stages.is_watched:
            return c
        content = self.stages.passed(f"{c.part}.{name}" if c.part else name, c.content, changed)
        return c if content is None else c.with_content(content)
