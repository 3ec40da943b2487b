"""The page of a `CompileReport`: summary, kernels, what was stored between them and why, graph, memory, times, text.

One file, no resources from elsewhere. Pointing at a kernel anywhere lights it up everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rlx.compile.fuse.barriers import FusionBarrier
from rlx.compile.memory.lir_liveness import steps_of
from rlx.compile.report.drawing import hue, render_graph, render_timeline
from rlx.ir.graph import NodeId
from rlx.ir.provenance import SourceLocation
from rlx.ir.rewrite.passes import PassRecord
from rlx.ir.text.pretty import human_bytes

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport, Crossing

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2433;--faint:#68728a;--line:#dfe3ea;--paper:#fff;--card:#f6f7fa;--warn:#b4540a;
--light:90%;--depth:55%;--edge:48%}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebf2;--faint:#9aa4b8;--line:#2c3444;--paper:#171b24;--card:#1f2531;
--warn:#f0a35e;--light:25%;--depth:38%;--edge:62%}}
body{margin:0 auto;padding:28px 32px 64px;max-width:1280px;background:var(--paper);color:var(--ink);
font:14px/1.5 ui-sans-serif,system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:24px;margin:0 0 2px} h2{font-size:17px;margin:36px 0 10px} p{margin:4px 0 12px;max-width:110ch}
p,.sub,dl{color:var(--faint)} .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));gap:12px}
.tiles{margin:20px 0} .tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;font-size:20px;font-weight:600} .tile span{color:var(--faint);font-size:12.5px}
.tile.warn b{color:var(--warn)}
.frame{overflow:auto;border:1px solid var(--line);border-radius:10px;padding:8px} .tall{max-height:860px}
.frame svg{display:block;margin:auto} .tight{white-space:nowrap}
dl{margin:4px 0 14px;display:grid;grid-template-columns:max-content 1fr;gap:2px 14px} dd{margin:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{position:sticky;top:-8px;background:var(--paper);text-align:left;font-weight:600;font-size:12.5px;color:var(--faint)}
th,td{padding:5px 12px 5px 4px;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap} tr:last-child td{border-bottom:0}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace} pre{margin:0;white-space:pre}
.chip{display:inline-block;padding:0 7px;border-radius:6px;font-size:12.5px;white-space:nowrap;
background:hsl(var(--h) var(--depth) var(--light));border:1px solid hsl(var(--h) 50% var(--edge))}
.warn{color:var(--warn)} details{margin:12px 0} summary{cursor:pointer;font-weight:600}
tr.lit td{background:var(--card)}
"""

_SCRIPT = """
const light = (name, on) => document.querySelectorAll('.' + name).forEach(e => e.classList.toggle('lit', on));
document.querySelectorAll('[class]').forEach(e => {
  const name = [...e.classList].find(c => /^k[0-9]+$/.test(c));
  if (!name) return;
  e.addEventListener('mouseenter', () => light(name, true));
  e.addEventListener('mouseleave', () => light(name, false));
});
"""


def page(report: CompileReport) -> str:
    """The whole page."""
    title = f"@{report.lir.name} on {report.device}"
    sections = [
        f"<h1>{escape(title)}</h1><div class='sub'>{escape(_headline(report))}</div>",
        _tiles(report),
        _kernels(report),
        _missed(report),
        _crossings(report),
        _graph(report),
        _memory(report),
        _times(report),
        _texts(report),
    ]
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    body = "\n".join(sections)
    return (
        f"<!doctype html>\n<html lang='en'><head>{head}<style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _headline(report: CompileReport) -> str:
    symbols = report.lir.dynamic_symbols()
    sizes = f"one program for every {', '.join(symbols)}" if symbols else "all sizes fixed"
    return f"fingerprint {report.lir.fingerprint()} · {sizes}"


def _tiles(report: CompileReport) -> str:
    steps = steps_of(report.lir)
    kinds = Counter(k.kind for k in steps)
    running = len(steps) - kinds["view"]
    sizes = report.drawn_sizes()
    bound, arena = report.lower_bound(sizes), int(report.lir.buffers.bind(sizes).arena_size)
    shown = f" for {', '.join(f'{s}={n}' for s, n in sizes.items())}" if sizes else ""
    tiles = [
        _tile(str(running), "kernels"),
        _tile(str(len({n for k in steps for n in k.nodes})), "ops in them"),
        _tile(str(kinds["call"]), "on the host", warn=kinds["call"] > 0),
        _tile(human_bytes(arena), f"arena{shown}"),
        _tile(f"{arena / bound:.2f}×" if bound else "1.00×", "of what must be alive"),
        _tile(human_bytes(report.lir.buffers.bind(sizes).bytes_saved), "saved by sharing"),
    ]
    if report.found.prepare is not None:
        tiles.append(_tile(str(len(report.found.prepare.kernels)), "kernels run once, on weights"))
    if report.found.passes:
        tiles.append(
            _tile(f"{1e3 * sum(p.seconds for p in report.found.passes if not p.within):.1f} ms", "to compile to LIR")
        )
    return f"<div class='tiles'>{''.join(tiles)}</div>"


def _tile(value: str, label: str, warn: bool = False) -> str:
    return f"<div class='tile{' warn' if warn else ''}'><b>{escape(value)}</b><span>{escape(label)}</span></div>"


# Longer tables scroll.
_MANY_ROWS = 30


def _table(heads: Sequence[str], rows: Sequence[str], numbers: Sequence[int] = ()) -> str:
    cells = "".join(f"<th{' class=n' if i in numbers else ''}>{escape(h)}</th>" for i, h in enumerate(heads))
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div class='frame{' tall' if len(rows) > _MANY_ROWS else ''}'>{table}</div>"


def _row(cells: Sequence[str], numbers: Sequence[int] = (), css: str = "") -> str:
    body = "".join(f"<td{' class=n' if i in numbers else ''}>{c}</td>" for i, c in enumerate(cells))
    return f"<tr class='{css}'>{body}</tr>"


def _chip(number: int, text: str | None = None) -> str:
    return f"<span class='chip' style='--h:{hue(number)}'>{escape(text or f'k{number}')}</span>"


def _source(source: SourceLocation | None) -> str:
    if source is None:
        return ""
    return f"<code title='{escape(source.file)}:{source.line}'>{escape(str(source))}</code>"


def _kernels(report: CompileReport) -> str:
    numbers = (4, 5)
    rows = []
    for row in report.kernels:
        where = f"<span class='warn'>{escape(row.where)}</span>" if row.kind == "call" else escape(row.where)
        label = f"<div class='sub'>{escape(row.label)}</div>" if row.label else ""
        cells = [
            _chip(row.number),
            escape(row.kind),
            f"<code>{escape(' + '.join(row.ops))}</code>{label}",
            where,
            "" if row.kind == "view" else escape(human_bytes(row.bytes_read)),
            "" if row.kind == "view" else escape(human_bytes(row.bytes_written)),
            "<br>".join(_source(s) for s in row.sources),
        ]
        rows.append(_row(cells, numbers, f"k{row.number}"))
    heads = ("", "kind", "ops", "runs", "reads", "writes", "from")
    return f"<h2>Kernels</h2>{_table(heads, rows, numbers)}"


def _missed(report: CompileReport) -> str:
    missed = report.found.fusion.missed
    if not missed:
        return ""
    rows = [
        _row(
            [
                f"<code>{escape(m.pattern)}</code>",
                f"{escape(str(m.node))} {escape(m.context)}",
                f"<code>{escape(str(m.reason))}</code> {escape(m.detail)}",
                escape(m.hint),
                escape(human_bytes(m.bytes_lost)),
                _source(m.source),
            ],
            (4,),
        )
        for m in missed
    ]
    heads = ("pattern", "at", "reason", "what to do", "traffic", "from")
    return f"<h2>Patterns that did not fuse</h2>{_table(heads, rows, (4,))}"


def _crossings(report: CompileReport) -> str:
    if not report.crossings:
        return ""
    graph = report.lir.as_graph()
    # One row for all readers that a value is stored for, for the same reason.
    together: dict[tuple[NodeId, FusionBarrier], list[Crossing]] = {}
    for crossing in report.crossings:
        together.setdefault((crossing.value, crossing.reason), []).append(crossing)
    rows = []
    for (value, reason), crossings in together.items():
        first = crossings[0]
        cells = [
            f"<span class='tight'>{_chip(first.producer)} → {' '.join(_chip(c.reader) for c in crossings)}</span>",
            f"<code class='tight'>{escape(graph.nodes[value].op.mnemonic)} {escape(str(value))}</code>",
            f"<code>{escape(str(reason))}</code>",
            escape(human_bytes(first.byte_size)),
            _source(first.source),
        ]
        rows.append(_row(cells, (3,)))
    lead = "<p>Every value that goes through memory from one kernel to another, and why it was not kept inside.</p>"
    used = [r for r in FusionBarrier if any(c.reason is r for c in report.crossings)]
    legend = "".join(f"<dt><code>{r}</code></dt><dd>{escape(r.meaning)}</dd>" for r in used)
    heads = ("between", "value", "reason", "bytes", "from")
    return f"<h2>What did not fuse</h2>{lead}<dl>{legend}</dl>{_table(heads, rows, (3,))}"


def _graph(report: CompileReport) -> str:
    lead = (
        "<p>Ops from top to bottom, coloured by kernel; weights and shared inputs are written into the boxes that read "
        "them. A thick line stays inside of a kernel, a thin one goes through memory. Long dashes: on the host; short "
        "dashes: a view, for which nothing runs.</p>"
    )
    picture = render_graph(report.lir.as_graph(), steps_of(report.lir))
    return f"<h2>Graph</h2>{lead}<div class='frame tall'>{picture}</div>"


def _memory(report: CompileReport) -> str:
    lead = (
        "<p>A box is a buffer of the arena, from the kernel that stores it to its last reader. The dashed line is the "
        "sum of what is alive: no plan can need less than its highest point.</p>"
    )
    return f"<h2>Memory over time</h2>{lead}<div class='frame'>{render_timeline(report.lir)}</div>"


def _times(report: CompileReport) -> str:
    if not report.found.passes:
        return ""
    rows = [
        _row([f"<code>{escape(p.name)}</code>", f"{1e3 * p.seconds:.2f} ms", _change(p)], (1,))
        for p in report.found.passes
    ]
    table = _table(("step", "time", "nodes"), rows, (1,))
    return f"<h2>Time</h2><details><summary>{len(rows)} steps</summary>{table}</details>"


def _change(record: PassRecord) -> str:
    return f"{record.nodes_before} → {record.nodes_after}" if record.changed else "no change"


def _texts(report: CompileReport) -> str:
    texts = {
        "How each kind of op runs": report.found.dispatch,
        "LIR": report.lir,
        "LIR of prepare": report.found.prepare,
    }
    return "".join(
        f"<details><summary>{title}</summary><div class='frame tall'><pre>{escape(str(text))}</pre></div></details>"
        for title, text in texts.items()
        if text is not None
    )
