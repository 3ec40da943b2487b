"""The text of LIR: the program as in `rlx.ir.text.graph_text`, then the plan. `show_lir(parse_lir(t)) == t`.

    lir @layer(%x: f32[B,8], %w: f32[8,16] {param}) {
      %0: f32[B,16] = matmul(%x, %w)
      %1: f32[B,16] = relu(%0)
      return %1
    }
    plan {
      arena 64*B align 64
      slot %1 at 0 size 64*B
      phase steady_state (%0, %1)
      kernel matmul (%x, %w) -> (%1) covers (%0, %1)
    }

    plan = "plan" "{" "arena" dim "align" number line* "}"
    line = "slot" value "at" dim "size" dim | "view" value "of" value "at" dim | "schedule" values
         | "phase" name values | "kernel" name values "->" values "covers" values

The schedule is written only when it is not the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlx.errors import RlxError
from rlx.ir.dim_text import parse_dim
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest, LirKernel, LirModule, LirViewAlias
from rlx.ir.phase import Phase, PhaseSchedule
from rlx.ir.shape import Size
from rlx.ir.tensor_data import TensorData
from rlx.ir.text.graph_text import Parser, show, value_names
from rlx.ir.text.tokens import Reader


def show_lir(lir: LirModule) -> str:
    """The text of a planned program."""
    graph, plan = lir.as_graph(), lir.buffers
    names = value_names(graph)

    def values(ids: Iterable[int]) -> str:
        return f"({', '.join(names[NodeId(i)] for i in ids)})"

    lines = [f"arena {plan.arena_size} align {plan.alignment}"]
    lines += [f"slot {names[i]} at {s.offset} size {s.size}" for i, s in plan.assignments.items()]
    lines += [f"view {names[i]} of {names[v.root]} at {v.byte_offset}" for i, v in plan.view_aliases.items()]
    if plan.schedule != [n.id for n in graph.nodes]:
        lines.append(f"schedule {values(plan.schedule)}")
    for phase in Phase:
        # In the order of the text, leaves first, which is the order of the nodes when it is read back.
        nodes = sorted(plan.phases.nodes_in(phase), key=lambda i: (not graph.nodes[i].is_leaf, i))
        lines += [f"phase {phase} {values(nodes)}"] if nodes else []
    lines += [
        f"kernel {k.kind} {values(k.inputs)} -> {values(k.outputs)} covers {values(k.nodes)}" for k in lir.kernels
    ]
    body = "\n".join(f"  {line}" for line in lines)
    return f"lir{show(graph).removeprefix(graph.level)}plan {{\n{body}\n}}\n"


def parse_lir(text: str, constants: Mapping[str, TensorData] | None = None) -> LirModule:
    """The planned program written as `text`."""
    reader = Reader(text)
    reader.take("lir")
    # LIR is what the compiler makes, and reading it runs nothing.
    parser = Parser(reader, constants or {}, allow_lowered=True)
    graph = parser.body(Graph(""))
    names = {name: node_id for node_id, name in value_names(graph).items()}
    reader.take("plan")
    reader.take("{")
    plan, kernels = _Plan(reader, names).read(graph)
    if reader.kind() != "end":
        raise reader.fail(f"expected the end of the program, got {reader.peek()!r}")
    return LirModule(graph, plan, kernels)


class _Plan:
    def __init__(self, reader: Reader, names: Mapping[str, NodeId]) -> None:
        self.reader, self.names = reader, names

    def read(self, graph: Graph) -> tuple[LirBufferPlan, list[LirKernel]]:
        reader = self.reader
        reader.take("arena")
        arena = self.size("align")
        reader.take("align")
        plan = LirBufferPlan(arena, schedule=[n.id for n in graph.nodes], io=LirIoManifest.collect(graph))
        plan.alignment = int(self.size("slot", "view", "schedule", "phase", "kernel", "}"))
        kernels: list[LirKernel] = []
        while not reader.accept("}"):
            self.line(plan, kernels)
        plan.dynamic_symbols = graph.dynamic_symbols()
        return plan, kernels

    def line(self, plan: LirBufferPlan, kernels: list[LirKernel]) -> None:
        reader = self.reader
        word = reader.take()
        if word == "slot":
            node = self.value()
            reader.take("at")
            offset = self.size("size")
            reader.take("size")
            plan.assignments[node] = LirBufferSlot(offset, self.line_end())
        elif word == "view":
            node = self.value()
            reader.take("of")
            root = self.value()
            reader.take("at")
            plan.view_aliases[node] = LirViewAlias(root, self.line_end())
        elif word == "schedule":
            plan.schedule = list(self.values())
        elif word == "phase":
            self.phase(plan.phases)
        elif word == "kernel":
            kind = reader.identifier()
            inputs = self.values()
            reader.take("-")
            reader.take(">")
            outputs = self.values()
            reader.take("covers")
            kernels.append(LirKernel(kind, self.values(), inputs, outputs))
        else:
            raise reader.fail(f"expected slot, view, schedule, phase or kernel, got {word!r}")

    def phase(self, phases: PhaseSchedule) -> None:
        name = self.reader.identifier()
        try:
            phase = Phase(name)
        except ValueError:
            raise self.reader.fail(f"{name!r} is not a phase; use {', '.join(Phase)}") from None
        for node in self.values():
            phases.set(node, phase)

    def value(self) -> NodeId:
        reader = self.reader
        reader.take("%")
        name = f"%{reader.take()}"
        if name not in self.names:
            raise reader.fail(f"{name} is not a value of the program")
        return self.names[name]

    def values(self) -> tuple[NodeId, ...]:
        self.reader.take("(")
        return tuple(self.value() for _ in self.reader.list_until(")"))

    def line_end(self) -> Size:
        return self.size("slot", "view", "schedule", "phase", "kernel", "}")

    def size(self, *ends: str) -> Size:
        """A size: everything up to one of `ends`."""
        reader = self.reader
        line = reader.line
        parts: list[str] = []
        while reader.peek() not in ends:
            parts.append(reader.take())
        try:
            return parse_dim("".join(parts))
        except RlxError as error:
            raise reader.fail(str(error), line) from None
