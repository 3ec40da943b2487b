"""All stages of a compile as text, one after the other: what a person reads to see what became of a program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from rlx.compile.claims.fusion.fusion_report import inspect_fusion
from rlx.compile.compiler import CompilePipeline, CompileResult, Program
from rlx.compile.steps import Compilation
from rlx.ir.graph import Graph
from rlx.ir.lir import LirModule
from rlx.ir.module import GraphModule, HirModule, MirModule
from rlx.ir.text.inspect import (
    inspect_graph,
    inspect_hir,
    inspect_lir,
    inspect_mir,
    inspect_mir_diff,
    require_kind,
)
from rlx.knobs import knobs


class PipelineInspect(NamedTuple):
    """The text of every stage; empty where there was none. `str` puts them under headings."""

    hir: str
    mir_lowered: str
    mir_diff: str
    mir_optimized: str
    lir: str
    fusion: str

    def __str__(self) -> str:
        titles = ("HIR", "MIR, lowered", "MIR, what changed", "MIR, optimised", "LIR", "fusion")
        sections = [f"==== {title} ====\n{text.rstrip()}\n" for title, text in zip(titles, self) if text]
        return "\n".join(sections)


def inspect_pipeline(pipeline: CompilePipeline | Program, program: Program | None = None) -> PipelineInspect:
    """Compile a program and show every stage: `inspect_pipeline(pipeline, module)`, or `inspect_pipeline(module)` for
    the CPU."""
    if not isinstance(pipeline, CompilePipeline):
        return inspect_pipeline(CompilePipeline.new(), pipeline)
    content = program.content if isinstance(program, GraphModule) else program
    require_kind("inspect_pipeline", content, Graph, HirModule, MirModule, LirModule)
    assert content is not None
    if isinstance(content, LirModule):
        return inspect_compiled("", CompileResult(content, pipeline.compile(content).fusion))
    done = pipeline.run(content if isinstance(content, Graph) else content.as_graph())
    return inspect_compilation(done, pipeline.result(done))


def inspect_compilation(done: Compilation, result: CompileResult) -> PipelineInspect:
    """Every stage of a compile that has been done."""
    assert done.mir is not None and done.optimized is not None
    hir_text = inspect_hir(done.program) if isinstance(done.program, HirModule) else ""
    lowered, optimized = (MirModule.from_graph(graph) for graph in (done.mir, done.optimized))
    return inspect_compiled(hir_text, result)._replace(
        mir_lowered=inspect_mir(lowered),
        mir_diff=inspect_mir_diff(lowered, optimized),
        mir_optimized=inspect_mir(optimized),
    )


def inspect_compiled(hir_text: str, result: CompileResult) -> PipelineInspect:
    """What can be shown of a finished compile: its MIR is the one inside LIR."""
    require_kind("inspect_compiled", result, CompileResult)
    lir = inspect_lir(result.lir)
    if result.prepare is not None:
        lir = f"{inspect_lir(result.prepare)}\n{lir}"
    fusion = inspect_fusion(result.fusion)
    return PipelineInspect(hir_text, "", "", inspect_graph(result.lir.as_graph()), lir, fusion)


_written: set[Path] = set()


def maybe_dump_pipeline(dump: PipelineInspect | str, name: str) -> Path | None:
    """Write the stages to the file that the knob `ir_dump` (RLX_IR_DUMP) names, or to `<name>.ir.txt` in that directory
    when it ends with a separator. Nothing when the knob is unset. A file that this process has written already is added
    to, so that it has all programs."""
    target = knobs.ir_dump
    if not target:
        return None
    path = Path(target)
    if target.endswith(("/", os.sep)):
        path = path / f"{name}.ir.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if path in _written else "w", encoding="utf-8") as file:
        file.write(str(dump))
    _written.add(path)
    if knobs.verbose:
        print(f"rlx: the stages of @{name} are in {path}", file=sys.stderr)
    return path
