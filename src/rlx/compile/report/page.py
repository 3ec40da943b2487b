"""The page of a `CompileReport`: summary, kernels, what was stored between them and why, graph, memory, times, text.

One file, no resources from elsewhere. Equal layers are shown once, kernels are called by what the user wrote, and what
they are made of is behind a click. Pointing at a kernel anywhere lights it up everywhere. Long texts are packed, and
unpacked when they are opened.
"""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from rlx.compile.fuse.barriers import FusionBarrier
from rlx.compile.memory.lir_liveness import steps_of
from rlx.compile.report.drawing import DRAWN_SIZE, hue, render_graph, render_timeline
from rlx.compile.report.folding import Run, stand_ins
from rlx.compile.report.naming import scope_of, written_name
from rlx.ir.dims import bind_dim
from rlx.ir.graph import NodeId
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.provenance import SourceLocation
from rlx.ir.rewrite.passes import PassRecord
from rlx.ir.shape import Size
from rlx.ir.text.pretty import human_bytes

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport, Crossing, KernelRow

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
td details{margin:0} td summary{font-weight:400;white-space:nowrap} td details code{color:var(--faint)}
tr.lit td{background:var(--card)} tr.many td{background:var(--card);font-weight:600}
tr.inner td:first-child{padding-left:14px} .bar{display:flex;align-items:center;gap:8px;white-space:nowrap}
.bar i{display:block;height:10px;border-radius:3px;background:hsl(var(--h) 50% var(--edge));min-width:1px}
"""

_SCRIPT = """
const light = (name, on) => document.querySelectorAll('.' + name).forEach(e => e.classList.toggle('lit', on));
document.querySelectorAll('[class]').forEach(e => {
  const name = [...e.classList].find(c => /^k[0-9]+$/.test(c));
  if (!name) return;
  e.addEventListener('mouseenter', () => light(name, true));
  e.addEventListener('mouseleave', () => light(name, false));
});
document.querySelectorAll('pre[data-packed]').forEach(e => e.closest('details').addEventListener('toggle', async () => {
  const bytes = Uint8Array.from(atob(e.dataset.packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  e.textContent = await new Response(stream).text();
}, {once: true}));
"""


def page(report: CompileReport, times: Sequence[float] | None = None) -> str:
    """The whole page; `times` are the seconds of each kernel in a run that was measured."""
    title = f"@{report.lir.name} on {report.device}"
    sections = [
        f"<h1>{escape(title)}</h1><div class='sub'>{escape(_headline(report))}</div>",
        _tiles(report),
        _kernels(report, times),
        _fusions(report),
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
    running = len(steps) - kinds[KernelKind.View]
    sizes = report.drawn_sizes()
    bound, arena = report.lower_bound(sizes), int(report.lir.buffers.bind(sizes).arena_size)
    shown = f" for {', '.join(f'{s}={n}' for s, n in sizes.items())}" if sizes else ""
    tiles = [
        _tile(str(running), "kernels"),
        *([_tile(str(_told(report)), "of them different")] if len(report.runs) > 1 else []),
        _tile(str(len({n for k in steps for n in k.nodes})), "ops in them"),
        _tile(str(kinds[KernelKind.Call]), "on the host", warn=kinds[KernelKind.Call] > 0),
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


def _told(report: CompileReport) -> int:
    """Kernels that are shown: each of equal layers once."""
    rows = report.kernels
    return sum(KernelKind.of(r.kind).runs for run in report.runs for r in rows[run.start : run.start + run.length])


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


# Longer sizes are shown for one set of sizes, with the expression behind them.
_LONG_SIZE = 34


def _bytes(size: Size) -> str:
    text = human_bytes(size)
    if isinstance(size, int) or len(text) <= _LONG_SIZE:
        return escape(text)
    sizes = dict.fromkeys(size.symbols, DRAWN_SIZE)
    drawn = human_bytes(int(bind_dim(size, sizes)))
    return f"<span title='{escape(text)}'>{escape(drawn)} at {', '.join(f'{s}={n}' for s, n in sizes.items())}</span>"


def _source(source: SourceLocation | None) -> str:
    if source is None:
        return ""
    return f"<code title='{escape(source.file)}:{source.line}'>{escape(str(source))}</code>"


_NUMBERS = (4, 5)


def _kernels(report: CompileReport, times: Sequence[float] | None) -> str:
    heads = ["", "what", "kind", "runs", "reads", "writes", "from"]
    if times is not None:
        heads.append("time")
    rows = [row for run in report.runs for row in _run_rows(report, run, times, len(heads))]
    lead = (
        "<p>Kernels in the order in which they run, called by what was written; a click on one shows the ops it is "
        "made of. Views, for which nothing runs, are left out.</p>"
    )
    if times is not None:
        lead += f"<p>Times of a run that was measured, on one thread: {_milliseconds(sum(times))} in kernels.</p>"
    return f"<h2>Kernels</h2>{lead}{_table(heads, rows, _NUMBERS)}"


def _run_rows(report: CompileReport, run: Run, times: Sequence[float] | None, columns: int) -> Iterator[str]:
    shown = [r for r in report.kernels[run.start : run.start + run.length] if KernelKind.of(r.kind).runs]
    longest = max(_total_times(report, times), default=0.0) if times is not None else 0.0
    if run.times > 1:
        yield f"<tr class='many'><td colspan='{columns}'>{escape(_times_text(report, run, len(shown)))}</td></tr>"
    for row in shown:
        seconds = None
        if times is not None:
            seconds = sum(times[row.number + i * run.length] for i in range(run.times))
        yield _kernel_row(row, run.times > 1, seconds, longest)


def _total_times(report: CompileReport, times: Sequence[float]) -> list[float]:
    """The time of each kernel that is shown, with that of those it stands for."""
    totals = [0.0] * len(times)
    for shown, seconds in zip(stand_ins(report.runs), times):
        totals[shown] += seconds
    return totals


def _times_text(report: CompileReport, run: Run, kernels: int) -> str:
    """Which part of the model a run of equal kernels is."""
    scopes = [report.kernels[run.start + i * run.length].scope.split(" / ")[0] for i in (0, run.times - 1)]
    named = f"{scopes[0]} to {scopes[1]}: " if all(scopes) and scopes[0] != scopes[1] else ""
    return f"{named}{run.times} times the same {kernels} kernels"


def _kernel_row(row: KernelRow, is_inner: bool, seconds: float | None, longest: float) -> str:
    where = f"<span class='warn'>{escape(row.where)}</span>" if row.kind == KernelKind.Call else escape(row.where)
    ops = " + ".join(row.ops)
    named = f" · {', '.join(row.fusions)}" if row.fusions else ""
    made = f"<code>{escape(ops)}{escape(named)}</code>"
    if row.label and row.label != row.title:
        made += f"<div class='sub'>{escape(row.label)}</div>"
    place = _scope_text(row.scope, is_inner) if row.scope else "<br>".join(_source(s) for s in row.sources)
    cells = [
        _chip(row.number),
        f"<details><summary>{escape(row.title)}</summary>{made}</details>",
        escape(row.kind),
        where,
        _bytes(row.bytes_read),
        _bytes(row.bytes_written),
        place,
    ]
    if seconds is not None:
        share = 100 * seconds / longest if longest else 0.0
        bar = f"<i style='--h:{hue(row.number)};width:{1.1 * share:.0f}px'></i>"
        cells.append(f"<div class='bar'>{bar}{_milliseconds(seconds)}</div>")
    return _row(cells, _NUMBERS, f"k{row.number}{' inner' if is_inner else ''}")


def _scope_text(scope: str, is_inner: bool) -> str:
    """The scope of a kernel; inside of equal layers without the number of the first."""
    rest = scope.partition(" / ")[2]
    return escape(rest if is_inner and rest else scope)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _fusions(report: CompileReport) -> str:
    """Which fused ops kernels amount to, and how often."""
    found: dict[str, list[KernelRow]] = {}
    for row in report.kernels:
        for name in row.fusions:
            found.setdefault(name, []).append(row)
    if not found:
        return ""
    rows = []
    for name, kernels in found.items():
        titles = ", ".join(dict.fromkeys(k.title for k in kernels))
        rows.append(_row([f"<code>{escape(name)}</code>", str(len(kernels)), escape(titles)], (1,)))
    lead = "<p>Fused ops that other engines have by name, counted where kernels joined their parts.</p>"
    return f"<h2>Named fusions</h2>{lead}{_table(('fusion', 'kernels', 'as'), rows, (1,))}"


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
    graph, shown_as = report.lir.as_graph(), stand_ins(report.runs)
    # One row for all readers that a value is stored for, for the same reason; equal layers once.
    together: dict[tuple[NodeId, FusionBarrier], list[Crossing]] = {}
    for crossing in report.crossings:
        if shown_as[crossing.producer] == crossing.producer:
            shown = crossing._replace(reader=shown_as[crossing.reader])
            together.setdefault((crossing.value, crossing.reason), []).append(shown)
    rows = []
    for (value, reason), crossings in together.items():
        first = crossings[0]
        cells = [
            f"<span class='tight'>{_chip(first.producer)} → {' '.join(map(_chip, _readers(crossings)))}</span>",
            f"{escape(written_name(graph.nodes[value]))} <code>{escape(str(value))}</code>",
            f"<code>{escape(str(reason))}</code>",
            _bytes(first.byte_size),
            escape(scope_of(graph.nodes[value])) or _source(first.source),
        ]
        rows.append(_row(cells, (3,)))
    lead = "<p>Every value that goes through memory from one kernel to another, and why it was not kept inside.</p>"
    used = [r for r in FusionBarrier if any(c.reason is r for c in report.crossings)]
    legend = "".join(f"<dt><code>{r}</code></dt><dd>{escape(r.meaning)}</dd>" for r in used)
    heads = ("between", "value", "reason", "bytes", "from")
    return f"<h2>What did not fuse</h2>{lead}<dl>{legend}</dl>{_table(heads, rows, (3,))}"


def _readers(crossings: Sequence[Crossing]) -> list[int]:
    return list(dict.fromkeys(c.reader for c in crossings))


# A picture with more boxes than this is no help, and takes long to draw.
_MOST_BOXES = 900


def _graph(report: CompileReport) -> str:
    lead = (
        "<p>Ops from top to bottom, coloured by kernel; weights and shared inputs are written into the boxes that read "
        "them. A thick line stays inside of a kernel, a thin one goes through memory. Long dashes: on the host; short "
        "dashes: a view, for which nothing runs. Of equal layers one is drawn.</p>"
    )
    steps, shown_as = steps_of(report.lir), stand_ins(report.runs)
    boxes = len({n for number, k in enumerate(steps) if shown_as[number] == number for n in k.nodes})
    if boxes > _MOST_BOXES:
        return f"<h2>Graph</h2><p>{boxes} ops are too many for a picture.</p>"
    picture = render_graph(report.lir.as_graph(), steps, shown_as)
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
        f"<details><summary>{title}</summary><div class='frame tall'>{_pre(str(text))}</div></details>"
        for title, text in texts.items()
        if text is not None
    )


# Longer texts are packed: a program of thirty layers has half a megabyte of them.
_LONG_TEXT = 20_000


def _pre(text: str) -> str:
    if len(text) <= _LONG_TEXT:
        return f"<pre>{escape(text)}</pre>"
    packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    return f"<pre data-packed='{packed}'></pre>"
