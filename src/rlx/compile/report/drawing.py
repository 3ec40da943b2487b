"""Pictures of a compiled program: its graph coloured by kernel, and its memory over time.

Every function returns the text of one SVG image that needs nothing else: it can be written to a file or put into a
page. Colours follow the reader's light or dark scheme. Boxes carry the class `k3` of their kernel, so that a page can
highlight all that belongs to one, and a tooltip that says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rlx.compile.memory.lir_liveness import lives_of, steps_of
from rlx.compile.report.graph_layout import Edge, Point, Size, lay_out
from rlx.errors import BindingError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirBufferPlan, LirKernel, LirModule
from rlx.ir.provenance import node_label
from rlx.ir.text.pretty import human_bytes

# A size for symbols in pictures of plans that hold for every size.
DRAWN_SIZE = 16
_PALETTE = 8
_CHARACTER = 6.9
_STYLE = """
.rlx{--ink:#1d2433;--faint:#68728a;--line:#a3acbd;--paper:#fff;--light:90%;--depth:55%;--edge:48%}
@media (prefers-color-scheme:dark){
.rlx{--ink:#e8ebf2;--faint:#9aa4b8;--line:#5b667c;--paper:#171b24;--light:25%;--depth:38%;--edge:62%}}
.rlx text{font:12px ui-sans-serif,system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.rlx .small{font-size:10.5px;fill:var(--faint)} .rlx .title{font-weight:600}
.rlx .box rect{fill:hsl(var(--h) var(--depth) var(--light));stroke:hsl(var(--h) 50% var(--edge));stroke-width:1.2}
.rlx .leaf rect,.rlx .shared rect{fill:var(--paper);stroke:var(--line)}
.rlx .view rect,.rlx .shared rect{fill:var(--paper);stroke-dasharray:3 3}
.rlx .call rect{stroke-width:2.2;stroke-dasharray:7 3} .rlx .result rect{stroke-width:2.6}
.rlx path{fill:none;stroke:var(--line);stroke-width:1.2}
.rlx path.inside{stroke:hsl(var(--h) 50% var(--edge));stroke-width:2.4} .rlx .axis{stroke-width:1}
.rlx .live{fill:none;stroke:var(--faint);stroke-width:1.5;stroke-dasharray:5 3}
.rlx .lit rect{stroke:var(--ink);stroke-width:3}
"""


def hue(number: int) -> int:
    """The colour of a kernel, in degrees; neighbours are far apart."""
    return round(number * 137.508) % 360


def _image(size: Size, content: Iterable[str], label: str) -> str:
    w, h = round(size.width), round(size.height)
    head = f'<svg class="rlx" xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}"'
    return (
        f'{head} role="img" aria-label="{escape(label)}"><style>{_STYLE}</style>\n' + "\n".join(content) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, radius: float = 4) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"/>'


def _group(content: str, tooltip: str, css: str, *kernels: int) -> str:
    """What belongs to one or more kernels, in the colour of the first."""
    numbers = "".join(f" k{k}" for k in kernels)
    color = f' style="--h:{hue(kernels[0])}"' if kernels else ""
    return f'<g class="{css}{numbers}"{color}><title>{escape(tooltip)}</title>{content}</g>'


# The graph


def render_graph(graph: Graph, kernels: Sequence[LirKernel] = (), shown_as: Sequence[int] | None = None) -> str:
    """The ops of a graph from top to bottom, coloured by the kernel that computes them.

    Weights, constants and inputs with several readers are written into the boxes that read them. A thick line is a
    value that stays inside of a kernel; a thin one goes through memory. `shown_as` has for each kernel the one that is
    drawn in its place, where equal ones are drawn once.
    """
    return _GraphPicture(graph, kernels, range(len(kernels)) if shown_as is None else shown_as).image()


class _GraphPicture:
    def __init__(self, graph: Graph, kernels: Sequence[LirKernel], shown_as: Sequence[int]) -> None:
        self.graph, self.kernels = graph, kernels
        # Views, and ops that are cheaper to repeat than to store, are computed in every kernel that needs them.
        self.kernels_of: dict[NodeId, list[int]] = {}
        self.shown_as: dict[NodeId, NodeId] = {}
        left_out = set[NodeId]()
        for number, kernel in enumerate(kernels):
            if shown_as[number] != number:
                self.shown_as.update(zip(kernel.outputs, kernels[shown_as[number]].outputs))
                left_out.update(kernel.nodes)
                continue
            for node in kernel.nodes:
                self.kernels_of.setdefault(node, []).append(number)
        self.left_out = left_out.difference(self.kernels_of)
        uses = graph.use_map()
        self.drawn = [n for n in graph.nodes if self.is_drawn(n, uses[n.id])]
        self.index = {n.id: i for i, n in enumerate(self.drawn)}
        self.result_of = {o: i for i, o in enumerate(graph.outputs)}

    def is_drawn(self, node: Node, readers: list[NodeId]) -> bool:
        if node.id in self.left_out:
            return False
        if isinstance(node.op, Input):
            is_read = len(readers) == 1 and not self.left_out.issuperset(readers)
            return is_read or node.id in self.graph.outputs
        return not isinstance(node.op, Param | Constant) or node.id in self.graph.outputs

    def sources(self, node: Node) -> list[int]:
        """The boxes that a box is drawn below; what a layer reads of the one before it comes from no box."""
        here = self.index[node.id]
        found = (self.index.get(self.shown_as.get(i, i)) for i in node.inputs)
        return [i for i in found if i is not None and i < here]

    def lines(self, node: Node) -> list[tuple[str, str]]:
        """Style and text of what is written into a box."""
        types = ", ".join(str(s) for s in node.shapes)
        if isinstance(node.op, Input | Param):
            return [("title", node.op.key), ("small", types)]
        number = " ".join(f" k{k}" for k in self.kernels_of.get(node.id, ())[:3])
        hidden = (i for i in node.inputs if self.shown_as.get(i, i) not in self.index)
        written = ", ".join(_leaf_text(self.graph.nodes[i]) for i in hidden)
        lines = [("title", f"{node.op.mnemonic}{number}"), ("small", types)]
        if written:
            lines.insert(1, ("", written if len(written) <= 40 else written[:39] + "…"))
        return lines

    def image(self) -> str:
        texts = [self.lines(n) for n in self.drawn]
        sizes = [Size(max(len(t) for _, t in lines) * _CHARACTER + 18, 15 * len(lines) + 10) for lines in texts]
        edges = [(source, self.index[n.id]) for n in self.drawn for source in self.sources(n)]
        layout = lay_out(sizes, edges)
        content = [self.edge(edge, route) for edge, route in layout.routes.items()]
        for node, centre, size, lines in zip(self.drawn, layout.centres, sizes, texts):
            content.append(self.box(node, centre, size, lines))
        return _image(layout.size, content, f"graph of @{self.graph.name}")

    def box(self, node: Node, centre: Point, size: Size, lines: list[tuple[str, str]]) -> str:
        left, top = centre[0] - size.width / 2, centre[1] - size.height / 2
        content = _rect(left, top, *size)
        for i, (css, text) in enumerate(lines):
            content += _text(centre[0], top + 17 + 15 * i, text, css, "middle")
        kernels = self.kernels_of.get(node.id, [])
        role = "leaf" if not kernels else "shared" if len(kernels) > 1 else self.kernels[kernels[0]].kind
        mark = " result" if node.id in self.result_of else ""
        return _group(content, self.tooltip(node), f"box {role}{mark}", *kernels)

    def tooltip(self, node: Node) -> str:
        parts = [repr(node)]
        if node_label(self.graph, node.id) not in (str(node.id), ""):
            parts.append(f"part of {node_label(self.graph, node.id)}")
        if node.origin is not None and node.origin.scope is not None:
            parts.append(f"in {node.origin.scope}")
        elif node.origin is not None and node.origin.source is not None:
            parts.append(f"at {node.origin.source}")
        parts += [f"kernel {k} ({self.kernels[k].kind})" for k in self.kernels_of.get(node.id, ())]
        if node.id in self.result_of:
            parts.append(f"result {self.result_of[node.id]}")
        return "\n".join(parts)

    def edge(self, edge: Edge, route: list[Point]) -> str:
        source, target = (self.drawn[i] for i in edge)
        shared = [k for k in self.kernels_of.get(source.id, ()) if k in self.kernels_of.get(target.id, ())]
        css = f' class="inside" style="--h:{hue(shared[0])}"' if shared else ""
        return f'<path{css} d="{_curve(route)}"/>'


def _leaf_text(node: Node) -> str:
    if isinstance(node.op, Input | Param):
        return node.op.key
    if isinstance(node.op, Constant):
        return f"{node.op.value.array.item():.4g}" if node.op.value.array.size == 1 else f"const {node.shape}"
    return str(node.id)


def _curve(route: list[Point]) -> str:
    """Through all points, vertical at each."""
    (x, y), *rest = route
    parts = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in rest:
        middle = (y + next_y) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
    return "".join(parts)


# Memory


def render(plan: LirBufferPlan, binding: Mapping[str, int] | None = None) -> str:
    """One bar per buffer from its first to its last byte, ordered by offset, in eight colours."""
    plan, note = plan.bind(drawn_binding(plan.dynamic_symbols, binding)), _note(plan.dynamic_symbols, binding)
    arena = max(1, int(plan.arena_size))
    width, row, top = 800, 24, 30
    saved = f"{human_bytes(plan.bytes_saved)} saved of {human_bytes(plan.total_unshared_bytes)}"
    content = [_text(8, 18, f"arena {human_bytes(plan.arena_size)}, {saved}{note}", "title")]
    slots = sorted(plan.assignments.items(), key=lambda item: (int(item[1].offset), item[0]))
    for i, (node, slot) in enumerate(slots):
        start, length = int(slot.offset) / arena * width, max(2.0, int(slot.size) / arena * width)
        label = f"{node}: {human_bytes(slot.size)} at {slot.offset}"
        is_wide = length > len(label) * _CHARACTER
        place = (start + 6, "start") if is_wide or start + len(label) * _CHARACTER < width else (start - 4, "end")
        x = place[0] if is_wide or place[1] == "end" else start + length + 4
        content.append(_group(_rect(start, top + row * i + 2, length, row - 4), label, "box", int(node) % _PALETTE))
        content.append(_text(x, top + row * i + 16, label, "small", place[1]))
    return _image(Size(width, top + row * len(slots) + 6), content, "memory plan")


def render_timeline(lir: LirModule, binding: Mapping[str, int] | None = None) -> str:
    """Memory upwards, kernels to the right: a box is a buffer from the kernel that stores it to its last reader.

    The dashed line is the sum of what is alive: no plan could need less than its highest point.
    """
    note = _note(lir.dynamic_symbols(), binding)
    return _Timeline(lir, lir.buffers.bind(drawn_binding(lir.dynamic_symbols(), binding)), note).image()


def drawn_binding(symbols: Iterable[str], binding: Mapping[str, int] | None) -> dict[str, int]:
    """`binding`, with a size for every other symbol, because a picture has to have one."""
    unknown = [s for s in binding or () if s not in symbols]
    if unknown:
        raise BindingError(f"the program has no symbol {unknown[0]!r}; it has: {', '.join(symbols) or 'none'}")
    return {**dict.fromkeys(symbols, DRAWN_SIZE), **(binding or {})}


def _note(symbols: Sequence[str], binding: Mapping[str, int] | None) -> str:
    sizes = drawn_binding(symbols, binding)
    return f" (drawn for {', '.join(f'{s} = {n}' for s, n in sizes.items())})" if sizes else ""


class _Timeline:
    left, top, width, height = 78.0, 30.0, 880.0, 300.0

    def __init__(self, lir: LirModule, plan: LirBufferPlan, note: str) -> None:
        self.lir, self.plan, self.note = lir, plan, note
        self.steps = steps_of(lir)
        self.lives = {n: life for n, life in lives_of(lir).items() if n in self.plan.assignments}
        self.arena = int(self.plan.arena_size)
        self.kernel_of = {n: i for i, k in enumerate(self.steps) for n in k.outputs}

    def image(self) -> str:
        live = self.live_bytes()
        peak = max(live, default=0)
        size = Size(self.left + self.width + 16, self.top + self.height + 40)
        if not self.arena:
            words = "Nothing lives in the arena: every value stays inside of a kernel, or is an input or a result."
            return _image(Size(size.width, 40), [_text(8, 24, words)], "memory over time")
        heading = f"arena {human_bytes(self.arena)}, most alive at once {human_bytes(peak)}{self.note}"
        content = [_text(8, 18, heading, "title"), *self.axes()]
        content += [self.box(node) for node in self.lives]
        content.append(f'<polyline class="live" points="{self.live_line(live)}"/>')
        return _image(size, content, "memory over time")

    def x(self, step: float) -> float:
        return self.left + self.width * step / (len(self.steps) + 1)

    def y(self, offset: float) -> float:
        return self.top + self.height * (1 - offset / self.arena)

    def live_bytes(self) -> list[int]:
        change = [0] * (len(self.steps) + 2)
        for node, life in self.lives.items():
            change[life.birth] += int(self.plan.assignments[node].size)
            change[life.death + 1] -= int(self.plan.assignments[node].size)
        total, sums = 0, []
        for c in change[:-1]:
            total += c
            sums.append(total)
        return sums

    def live_line(self, live: Sequence[int]) -> str:
        points = [(self.x(step + side), self.y(b)) for step, b in enumerate(live) for side in (0, 1)]
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

    def axes(self) -> list[str]:
        bottom, right = self.top + self.height, self.left + self.width
        lines = [f'<path class="axis" d="M{self.left} {self.top}V{bottom}H{right}"/>']
        for i in range(5):
            at = self.arena * i // 4
            lines.append(_text(self.left - 6, self.y(at) + 4, human_bytes(at), "small", "end"))
        every = max(1, len(self.steps) // 16)
        for step in range(0, len(self.steps), every):
            lines.append(_text(self.x(step + 0.5), bottom + 14, f"k{step}", "small", "middle"))
        return [*lines, _text(right, bottom + 32, "kernels in the order in which they run", "small", "end")]

    def box(self, node: NodeId) -> str:
        slot, life = self.plan.assignments[node], self.lives[node]
        left, right = self.x(life.birth), self.x(life.death + 1)
        top, bottom = self.y(int(slot.offset) + int(slot.size)), self.y(int(slot.offset))
        graph = self.lir.as_graph()
        kernel = self.kernel_of.get(node)
        made = "given" if kernel is None else f"stored by k{kernel} ({self.steps[kernel].kind})"
        last = f"read last by k{life.death}" if life.death < len(self.steps) else "kept to the end"
        tooltip = f"{graph.nodes[node]!r}\n{human_bytes(slot.size)} at {slot.offset}\n{made}, {last}"
        content = _rect(left, top, max(1.0, right - left), max(1.0, bottom - top), 2)
        label = f"{graph.nodes[node].op.mnemonic} {node}"
        if right - left > len(label) * _CHARACTER and bottom - top > 14:
            content += _text((left + right) / 2, (top + bottom) / 2 + 4, label, "small", "middle")
        return _group(content, tooltip, "box", *([] if kernel is None else [kernel]))
