"""docs/backends.md: what becomes of every op on every backend, found by compiling the samples of the op.

Nothing is run and no device is needed: where a target has a generator of kernels and a backend that runs them, its
pipeline says what it does with a program; the rules of XLA and MLX say what they are told; the others are named with
what they are for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial

import rlx.hir
import rlx.ops
import rlx.sparse  # noqa: F401  (all three register ops)
from rlx.backends.program.program import build_program
from rlx.backends.text_gpu.code import TextCode, TextLoader
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower.lower import IN_F64
from rlx.compile.target import Target, targets
from rlx.errors import RlxError
from rlx.ir.binding import bind_graph
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.lir import LirModule
from rlx.ir.op import OP_CLASSES, Op
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.legalize import KernelRefused, refuse_missing_types
from rlx.kernels.machines import METAL, WGSL, Machine
from rlx.ops.define.samples import Sample
from rlx.ops.lowered.factor_steps import RequireFactors

LEAVES = (Input, Param, Constant, Project)
# Kernels differ by kind of type, not by width: f32 (or what an op has instead), and complex numbers.
SWEPT = ("f32", "c64")
# Machines without f64: what computes in it, whatever values come and go, is left to the host there.
WITHOUT_F64 = {"metal": METAL, "wgpu": WGSL}
DOUBLE = (DType.F64, DType.C128)


def backends_page(note: str) -> str:
    """The whole page."""
    shown = [t for t in targets() if t.backend is not None and (t.generator is not None or t.name in ENGINES)]
    others = [t for t in targets() if t not in shown and t.name != "reference"]
    rows = [_row(name, cls, shown) for name, cls in sorted(OP_CLASSES.items()) if _is_listed(cls)]
    head = " | ".join(["op", *(t.name for t in shown)])
    return f"""{note}
# What runs where

Every op on every backend that compiles programs, found by compiling the samples that the op declares:

- **native**: a kernel, or part of one; `xla` and `mlx` are told it as it is, in their own ops;
- **lowered**: it becomes other ops first, which have kernels;
- **host**: it, or what it becomes, runs by its definition in NumPy on the host, for the reason given;
  "partly" for some samples, or for a part of what it becomes. tests/backends/test_native_coverage.py keeps the list for
  the CPU closed;
- **refused**: an error that says why.

A page of `rlx export web` is WebAssembly without a host: what is **host** in the column wasm is refused by name there.
WGSL and Metal have no f64: on `wgpu` and `metal` values of f64 and c128 are refused by name, which the columns leave
out; factorisations of matrices and solves, which compute in f64, run on the host. On `opencl` it is the same where the
device has none.

What was executed how: `cpu` and `wasm` on processors, `cuda` on an H200, `wgpu` on lavapipe and `opencl` on pocl, which
are processors that stand in for a GPU, `xla` and `mlx` on their CPU builds. `metal` has never been run on an Apple GPU
nor seen Apple's compiler: its text is compiled unchanged as C++ and run on a processor, and its calls go to a stand-in
for Metal that checks them (tests/backends/metal_backend). Code for `rocm` is assembled and
inspected, and was never executed on hardware ([rocm.md](rocm.md)).

`reference` runs everything by its definition. `rlx devices` says what this machine has. All backends that have a device
pass one suite, tests/conformance: each sample in each dtype, on plain and poisoned values (NaN, infinities, the largest
and the smallest numbers, −0). [semantics.md](semantics.md#what-backends-may-do-otherwise) lists what they may do
otherwise.

| {head} |
|{"---|" * (len(shown) + 1)}
{chr(10).join(rows)}

Not in this table, since they have no kernels that rlx runs: {"; ".join(f"`{t.name}` ({t.about})" for t in others)}.
Programs for TPUs are those of the column xla.
"""


def _is_listed(cls: type[Op]) -> bool:
    """Ops that users can write; those of tests and of the compiler are left out."""
    return cls not in LEAVES and cls.__module__.startswith("rlx.") and not cls.lowered


def _row(name: str, cls: type[Op], shown: list[Target]) -> str:
    return " | ".join([f"| {name}", *(_verdict(cls, target.name) for target in shown)]) + " |"


def _verdict(cls: type[Op], target: str) -> str:
    """What a target does with the samples of an op, in a few words."""
    found: dict[str, int] = {}
    judge = ENGINES.get(target) or partial(_verdicts, pipeline=CompilePipeline.new(target))
    for graph in _graphs(cls):
        if target in WITHOUT_F64 and _has_doubles(graph):
            continue
        for verdict in judge(cls, graph):
            found[verdict] = found.get(verdict, 0) + 1
    if not found:
        return "all samples are f64"
    usual = [v for v in ("native", "lowered") if v in found]
    special = [v for v in found if v not in usual]
    if not special:
        return usual[0]
    prefix = "partly " if usual else ""
    return ", ".join([*usual[:1], *(f"{prefix}{v}" for v in sorted(special))])


def _graphs(cls: type[Op]) -> Iterator[Graph]:
    for sample in cls.samples():
        for dtype in [d for d in SWEPT if d in sample.dtypes] or sample.dtypes[:1]:
            yield _graph(sample, dtype)


def _graph(sample: Sample, dtype: str) -> Graph:
    graph = Graph("sample")
    inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes(dtype))]
    result = graph.append_node(sample.op, inputs)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return bind_graph(graph, sample.binding)


def _verdicts(cls: type[Op], graph: Graph, pipeline: CompilePipeline) -> set[str]:
    try:
        compiled = pipeline.compile(graph)
    except RlxError as error:
        return {f"refused: {error}"}
    verdicts = set()
    machine = WITHOUT_F64.get(pipeline.target)
    for lir in (compiled.lir, compiled.prepare):
        if machine and lir is not None and _computes_in_f64(lir, machine):
            return {"refused: a kernel computes in f64"}
        for kernel in lir.kernels if lir is not None else ():
            program = lir.as_graph()
            nodes = [program.nodes[i] for i in kernel.nodes]
            if kernel.kind == "call" and not isinstance(nodes[0].op, Project):
                verdicts.add(f"host: {_reason(program, nodes[0], machine)}")
            elif kernel.kind != "call":
                verdicts.add("native" if any(type(node.op) is cls for node in nodes) else "lowered")
    return verdicts or {"lowered"}


def _has_doubles(graph: Graph) -> bool:
    return any(shape.dtype in DOUBLE for node in graph.nodes for shape in node.shapes)


def _computes_in_f64(lir: LirModule, machine: Machine) -> bool:
    try:
        build_program(lir, loading=_checking(machine).loading)
    except KernelRefused:
        return True
    return False


@cache
def _checking(machine: Machine) -> TextLoader:
    """Looks at kernels, and makes no text of them."""

    def checked(kernel: Kernel, key: str) -> TextCode:
        refuse_missing_types(kernel, has_f64=machine.has_f64)
        return TextCode(kernel, key)

    return TextLoader(machine, checked)


def _on_engine(target: str, cls: type[Op], graph: Graph) -> set[str]:
    from rlx.compile.claims.legalize import LegalizeError

    lowering = importlib.import_module(f"rlx.backends.{target}.lowering").LOWERING
    node = next(n for n in graph.nodes if type(n.op) is cls)
    try:
        lowering.lowered(graph)
    except LegalizeError as error:
        return {f"refused: {error.reasons[error.offenders[0].kind]}"}
    return {"native" if lowering.has_rule(node.op, [graph.shape(i) for i in node.inputs]) else "lowered"}


# Targets that bring kernels for whole ops: what they do with an op in a program of its own.
ENGINES: dict[str, Callable[[type[Op], Graph], set[str]]] = {name: partial(_on_engine, name) for name in ("mlx", "xla")}


def _reason(graph: Graph, node: Node, without_f64: Machine | None) -> str:
    """Why a node has no kernel: what is special about its types or its machine, or what it is."""
    types = [s.dtype for i in (*node.inputs, node.id) for s in graph.nodes[i].shapes]
    if isinstance(node.op, RequireFactors):
        return "whether it has gone well"
    if node.op.effect:
        return "an effect"
    if without_f64 and type(node.op) in IN_F64:
        return "it computes in f64"
    if any(t.is_complex for t in types):
        return "complex numbers"
    if any(t.is_storage or t in (DType.I4, DType.U4) for t in types):
        return "types for storage"
    return f"`{type(node.op).__name__}`"
