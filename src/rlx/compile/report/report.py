"""`CompileReport`: what became of a program, as text, as JSON and as a page.

print(compiled.report)                       # which ops run together, and where
compiled.report.html("report.html")          # kernels, missed fusions, the graph, memory over time
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlx.compile.claims.dispatch import KernelDispatchReport
from rlx.compile.claims.fusion.fusion_report import FusionReport
from rlx.compile.fuse.barriers import FusionBarrier, UnfusedEdge
from rlx.compile.memory.lir_liveness import lives_of, steps_of
from rlx.compile.memory.packing import Tenant, peak
from rlx.compile.report.drawing import drawn_binding
from rlx.compile.report.folding import Run, fold
from rlx.compile.report.naming import fusions_of, kernel_names, kernel_scope, kernel_title, without_numbers
from rlx.compile.weights.integer_activations import Int8Change
from rlx.ir.graph import Graph, NodeId
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.provenance import SourceLocation, node_label
from rlx.ir.rewrite.passes import PassRecord
from rlx.ir.shape import Size
from rlx.ir.text.pretty import human_bytes

Where = Callable[[Graph, LirKernel], str]
# Characters of a size that a line has room for.
_LONGEST_SIZE = 60


class KernelRow(NamedTuple):
    """One kernel: what it computes, where it runs, what it moves, and which lines of the user's program it is for."""

    number: int
    kind: str
    ops: tuple[str, ...]
    where: str
    bytes_read: Size
    bytes_written: Size
    label: str
    sources: tuple[SourceLocation, ...]
    # In the words of the program as it was written, where in the model it is, and the fused ops that it amounts to.
    title: str = ""
    scope: str = ""
    fusions: tuple[str, ...] = ()


class Timed(Protocol):
    """How long a kernel took in a run that was measured."""

    @property
    def kind(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class Profiled(Protocol):
    """A run that was measured: its kernels in the order in which they ran. `CompiledGraph.profile` gives one."""

    @property
    def kernels(self) -> Sequence[Timed]: ...


class Crossing(NamedTuple):
    """A value on its way from kernel `producer` to kernel `reader`, and why it does not stay inside of one."""

    value: NodeId
    producer: int
    reader: int
    reason: FusionBarrier
    byte_size: Size
    source: SourceLocation | None


class CompileFindings(NamedTuple):
    """What a compile has recorded besides its result."""

    fusion: FusionReport = FusionReport()
    barriers: tuple[UnfusedEdge, ...] = ()
    prepare: LirModule | None = None
    dispatch: KernelDispatchReport | None = None
    passes: tuple[PassRecord, ...] = ()
    int8: tuple[Int8Change, ...] = ()
    notes: tuple[str, ...] = ()


class CompileReport(str):
    """The text of a report, which also knows the program: `json()` and `html(path)` show the same in other forms."""

    lir: LirModule
    device: str
    where: Where
    found: CompileFindings

    def __new__(
        cls, lir: LirModule, device: str, where: Where | None = None, found: CompileFindings | None = None
    ) -> CompileReport:
        """`where` says where a kernel runs; `found` is what the compile has recorded, as far as it has."""
        report = super().__new__(cls, _text(lir, device, where or place_of) + _int8_text(found) + _notes_text(found))
        report.lir, report.device, report.where = lir, device, where or place_of
        report.found = found or CompileFindings()
        return report

    @cached_property
    def kernels(self) -> list[KernelRow]:
        return kernel_rows(self.lir, self.where)

    @cached_property
    def runs(self) -> list[Run]:
        """The kernels in order, with equal layers told once."""
        return fold([_signature(self.lir.as_graph(), row, k) for row, k in zip(self.kernels, steps_of(self.lir))])

    def times(self, profile: Profiled) -> list[float]:
        """The seconds of each kernel in a run that was measured; what ran inside of a loop belongs to the loop."""
        seconds = [0.0] * len(self.kernels)
        waiting = [row for row in self.kernels if KernelKind.of(row.kind).runs]
        loops = [row.number for row in waiting if row.kind == KernelKind.Loop]
        for kernel in profile.kernels:
            name = (kernel.kind, kernel.what)
            ahead = next((i for i, row in enumerate(waiting) if (row.kind, " + ".join(row.ops)) == name), None)
            if ahead is not None:
                seconds[waiting[ahead].number] += kernel.seconds
                del waiting[: ahead + 1]
            elif loops:
                before = [n for n in loops if not waiting or n < waiting[0].number]
                seconds[before[-1] if before else loops[0]] += kernel.seconds
        return seconds

    @cached_property
    def crossings(self) -> list[Crossing]:
        """Every value that goes through memory between kernels, and why."""
        return list(_crossings(self.lir, self.found.barriers))

    def lower_bound(self, binding: dict[str, int]) -> int:
        """The most bytes of the arena's values that are alive at once, for one set of sizes."""
        slots = self.lir.buffers.bind(binding).assignments
        return peak([Tenant(slots[n].size, *life) for n, life in lives_of(self.lir).items() if n in slots])

    def json(self) -> str:
        """Everything in the report, for tools."""
        found = self.found
        document = {
            "program": self.lir.name,
            "device": self.device,
            "fingerprint": str(self.lir.fingerprint()),
            "kernels": [_kernel_json(row) for row in self.kernels],
            "barriers": [_crossing_json(c) for c in self.crossings],
            "runs": [r._asdict() for r in self.runs],
            "fusion": json.loads(found.fusion.json()),
            "memory": self.lir.buffers.to_json(),
            "prepare": None if found.prepare is None else [k.kind for k in found.prepare.kernels],
            "dispatch": None if found.dispatch is None else [s._asdict() for s in found.dispatch.summaries],
            "passes": [p._asdict() for p in found.passes],
            "int8": [{"product": c.product, "reason": c.reason} for c in found.int8],
        }
        return json.dumps(document, indent=1)

    def html(self, path: str | Path | None = None, profile: Profiled | None = None) -> str:
        """The report as one page that needs nothing else; written to `path` when one is given.

        With a `profile` (`compiled.profile(inputs)`) each kernel has a bar as long as it takes.
        """
        from rlx.compile.report.page import page

        text = page(self, None if profile is None else self.times(profile))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def drawn_sizes(self) -> dict[str, int]:
        """Sizes for the symbols of the program, where the report needs numbers."""
        return drawn_binding(self.lir.dynamic_symbols(), None)


def place_of(graph: Graph, kernel: LirKernel, native: str = "native") -> str:
    """Where a kernel runs, if what has a kernel is `native`."""
    if kernel.kind == KernelKind.View:
        return "no code"
    if kernel.kind != KernelKind.Call:
        return native
    return "host (an effect)" if graph.nodes[kernel.nodes[0]].op.effect else "host (no native kernel)"


def _text(lir: LirModule, device: str, where: Where) -> str:
    graph, steps = lir.as_graph(), steps_of(lir)
    counts = Counter(k.kind for k in steps)
    summary = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    lines = [f"{device}: @{lir.name}, {summary or 'no kernels'}; arena {_arena(lir)}"]
    lines += [f"  {k.kind:7} {where(graph, k):24} {' + '.join(_ops(graph, k))}" for k in steps]
    return "\n".join(lines) + "\n"


def _arena(lir: LirModule) -> str:
    """The size of the arena for all sizes of the program, or for some where that would be a page of arithmetic."""
    size = str(lir.arena_size)
    if len(size) <= _LONGEST_SIZE:
        return f"{size} bytes"
    sizes = drawn_binding(lir.dynamic_symbols(), None)
    bound = lir.buffers.bind(sizes).arena_size
    return f"{human_bytes(bound)} for {', '.join(f'{name}={n}' for name, n in sizes.items())}"


def _int8_text(found: CompileFindings | None) -> str:
    """The products of activations of 8 or 16 bits, where they were asked for."""
    changes = found.int8 if found is not None else ()
    if not changes:
        return ""
    done = sum(not c.reason for c in changes)
    head = f"activations as {changes[0].kind} in {done} of {len(changes)} products with stored weights"
    return "".join(f"{line}\n" for line in [head, *(f"  {c}" for c in changes)])


def _notes_text(found: CompileFindings | None) -> str:
    """What the device has to say of the whole program."""
    return "".join(f"{note}\n" for note in (found.notes if found is not None else ()))


def _ops(graph: Graph, kernel: LirKernel) -> tuple[str, ...]:
    return tuple(graph.nodes[i].op.mnemonic for i in kernel.nodes)


def kernel_rows(lir: LirModule, where: Where) -> list[KernelRow]:
    """One row per kernel, in the order in which they run."""
    graph = lir.as_graph()
    rows = []
    for number, kernel in enumerate(steps_of(lir)):
        labels = dict.fromkeys(_label(graph, i) for i in kernel.nodes)
        origins = [graph.nodes[i].origin for i in kernel.nodes]
        sources = tuple(dict.fromkeys(o.source for o in origins if o is not None and o.source is not None))
        runs = KernelKind.of(kernel.kind).runs
        moved = [i for i in kernel.inputs if runs and not isinstance(graph.nodes[i].op, Constant)]
        stored = kernel.outputs if runs else ()
        rows.append(
            KernelRow(
                number,
                kernel.kind,
                _ops(graph, kernel),
                where(graph, kernel),
                _total(graph, moved),
                _total(graph, stored),
                ", ".join(label for label in labels if label),
                sources,
                kernel_title(graph, kernel),
                kernel_scope(graph, kernel),
                tuple(fusions_of(graph, kernel)),
            )
        )
    return rows


def _signature(graph: Graph, row: KernelRow, kernel: LirKernel) -> Hashable:
    """What kernels of equal layers have in common; the order of their ops may differ."""
    names = frozenset(kernel_names(graph, kernel))
    ops = frozenset(Counter(row.ops).items())
    return row.kind, names, without_numbers(row.scope), ops, str(row.bytes_written), len(kernel.outputs)


def _crossings(lir: LirModule, barriers: Sequence[UnfusedEdge]) -> Iterator[Crossing]:
    """The edges between ops as edges between kernels, each once."""
    graph = lir.as_graph()
    stored_by = {n: i for i, k in enumerate(lir.kernels) for n in k.outputs}
    read_by: dict[NodeId, list[int]] = {}
    for number, kernel in enumerate(lir.kernels):
        for node in kernel.nodes:
            read_by.setdefault(node, []).append(number)
    seen = set[tuple[NodeId, int]]()
    for edge in barriers:
        for reader in read_by.get(edge.reader, ()):
            if edge.producer in stored_by and (edge.producer, reader) not in seen:
                seen.add((edge.producer, reader))
                size = _total(graph, [edge.producer])
                yield Crossing(edge.producer, stored_by[edge.producer], reader, edge.reason, size, edge.source)


def _label(graph: Graph, node: NodeId) -> str:
    label = node_label(graph, node)
    return "" if label == str(node) else label


def _total(graph: Graph, nodes: Sequence[NodeId]) -> Size:
    total: Size = 0
    for node in nodes:
        for shape in graph.nodes[node].shapes:
            total = total + shape.byte_size
    return total


def _plain(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def _source_json(source: SourceLocation) -> dict[str, Any]:
    return {"file": source.file, "line": source.line}


def _kernel_json(row: KernelRow) -> dict[str, Any]:
    plain = {"bytes_read": _plain(row.bytes_read), "bytes_written": _plain(row.bytes_written)}
    return {**row._asdict(), **plain, "sources": [_source_json(s) for s in row.sources]}


def _crossing_json(c: Crossing) -> dict[str, Any]:
    source = None if c.source is None else _source_json(c.source)
    plain = {"value": int(c.value), "reason": str(c.reason), "source": source, "byte_size": _plain(c.byte_size)}
    return {**c._asdict(), **plain}
