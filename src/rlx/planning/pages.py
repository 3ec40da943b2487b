"""Plans as text, as a picture of the mesh, and as a page.

plan_text(plan, 12)                  # a table for terminals
mesh_svg(plan, plan.picked)          # devices with what each holds, and what moves along which axis
write_page(plan, "plan.html")        # both, with bars of memory and time; one file, nothing from elsewhere
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.distributed.layouts import Layout
from rlx.formats.mapped_file import replace_file
from rlx.planning.exchanges import seconds

if TYPE_CHECKING:
    from rlx.planning.planner import LayoutPlan, Plan

__all__ = ["mesh_svg", "plan_text", "write_page"]

# Hues of the roles, the same in all pictures.
_HUES = {"data": 210, "fsdp": 265, "tensor": 20, "sequence": 150, "expert": 325}
# Devices that are drawn along one side; more are hinted at.
_DRAWN = 8
_BOX, _GAP, _STRIP = 104, 10, 12
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2433;--faint:#68728a;--line:#dfe3ea;--paper:#fff;--card:#f6f7fa}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebf2;--faint:#9aa4b8;--line:#2c3444;--paper:#171b24;--card:#1f2531}}
body{margin:0 auto;padding:28px 32px 64px;max-width:1120px;background:var(--paper);color:var(--ink);
font:14px/1.5 ui-sans-serif,system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:24px;margin:0 0 2px} h2{font-size:17px;margin:32px 0 10px} p{color:var(--faint);max-width:100ch}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-size:12.5px;color:var(--faint)}
th,td{padding:5px 12px 5px 4px;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;white-space:nowrap} tr.no td{color:var(--faint)} tr.best td{font-weight:600}
.frame{overflow:auto;border:1px solid var(--line);border-radius:10px;padding:8px}
.bar{display:flex;height:10px;width:190px;background:var(--card)} .bar i{display:block;height:10px}
"""
_PICTURE_STYLE = (
    "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1d2433}.f{fill:#68728a;font-size:11px}"
    "rect{rx:6}.d{fill:#f6f7fa;stroke:#c8cedb}.b{font-weight:600}"
    "@media (prefers-color-scheme:dark){text{fill:#e8ebf2}.f{fill:#9aa4b8}.d{fill:#1f2531;stroke:#3a4356}}"
)


def plan_text(plan: Plan, shown: int) -> str:
    """The table of layouts, the picked one in detail, and why it was picked."""
    lines = [_title(plan), ""]
    heads = ("layout", "memory", "work", "exchanges", "step", "tokens/s", "")
    rows = [_row(plan, each) for each in plan.layouts[:shown]]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    if len(plan.layouts) > shown:
        lines.append(f"and {len(plan.layouts) - shown} more")
    lines += ["", plan.why]
    best = plan.picked
    if best is not None:
        lines += ["", *_details(plan, best)]
    return "\n".join(lines)


def _title(plan: Plan) -> str:
    work = plan.work
    what = "all weights with AdamW" if work.lora is None else f"an adapter of rank {work.lora}"
    return (
        f"{plan.shape.name}, {plan.shape.parameters / 1e9:.2f} billion parameters: {what}, {work.batch} texts of "
        f"{work.length} tokens a step in f32, on {plan.layouts[0].layout.mesh.size} x {plan.chip.name}"
    )


def _row(plan: Plan, each: LayoutPlan) -> tuple[str, ...]:
    speed = plan.work.batch * plan.work.length / each.seconds
    return (
        str(each.layout.mesh),
        size_text(each.memory_bytes),
        time_text(max(each.compute_seconds, each.memory_seconds)),
        time_text(each.exchange_seconds),
        time_text(each.seconds),
        f"{speed:,.0f}",
        "<- picked" if each is plan.picked else "" if each.fits else "too large",
    )


def _details(plan: Plan, each: LayoutPlan) -> Iterator[str]:
    cost = each.cost
    kept = sum(e.kept_bytes for e in each.exchanges)
    yield (
        f"On each device: weights and optimiser {size_text(cost.argument_bytes)}, values in between "
        f"{size_text(cost.peak_bytes + kept - cost.gathered_bytes)}, gathered weights {size_text(cost.gathered_bytes)}."
    )
    for e in each.exchanges:
        yield (
            f"  {e.what} ({e.kind} along {', '.join(e.axes)}): {e.times} x {size_text(e.result_bytes)}, "
            f"{size_text(e.moved_bytes(each.layout))} sent, {time_text(seconds(e, each.layout, plan.chip))}"
        )
    if not each.exchanges:
        yield "  nothing moves between devices"


def size_text(count: float) -> str:
    """Bytes in units of 1000.

    >>> size_text(0), size_text(1.5e6), size_text(2.25e10)
    ('0 B', '1.5 MB', '22.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def time_text(value: float) -> str:
    """Seconds in a unit that fits.

    >>> time_text(0), time_text(2.5e-5), time_text(0.0312), time_text(4.2)
    ('0', '25 us', '31.2 ms', '4.20 s')
    """
    if not value:
        return "0"
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def mesh_svg(plan: Plan, each: LayoutPlan) -> str:
    """Devices in rows along the last axis of the mesh, each with what it holds; beside them what moves along each
    axis. Of large meshes the first devices are drawn."""
    layout = each.layout
    columns = layout.mesh.axis_sizes[-1]
    rows = layout.mesh.size // columns
    wide, high = min(columns, _DRAWN), min(rows, _DRAWN)
    left, top = 16, 30
    box = 26 + _STRIP * len(layout.mesh.axis_names)
    content = [f'<text class="b" x="{left}" y="18">{escape(_caption(layout, columns, rows))}</text>']
    for row in range(high):
        for column in range(wide):
            x, y = left + column * (_BOX + _GAP), top + row * (box + _GAP)
            content.append(f'<rect class="d" x="{x}" y="{y}" width="{_BOX}" height="{box}"/>')
            content += _device(each, row * columns + column, x, y)
    bottom = top + high * (box + _GAP) + 14
    more = layout.mesh.size - wide * high
    if more:
        content.append(f'<text class="f" x="{left}" y="{bottom}">and {more} devices more, alike</text>')
        bottom += 22
    by_axis: dict[str, list[str]] = {}
    for e in each.exchanges:
        took = time_text(seconds(e, layout, plan.chip))
        told = f"{e.what}: {e.times} x {size_text(e.result_bytes)}, {took}"
        by_axis.setdefault(" and ".join(e.axes), []).append(told)
    for axis, lines in by_axis.items():
        hue = _HUES.get(axis.split(" ")[0], 0)
        bottom += 8
        content.append(f'<rect x="{left}" y="{bottom - 10}" width="12" height="12" fill="hsl({hue} 60% 60%)"/>')
        content.append(f'<text class="b" x="{left + 18}" y="{bottom}">along {escape(axis)}</text>')
        for line in lines:
            bottom += 18
            content.append(f'<text class="f" x="{left + 18}" y="{bottom}">{escape(line)}</text>')
        bottom += 14
    width = max(left * 2 + wide * (_BOX + _GAP), 640)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 8}"'
    label = escape(f"the mesh {layout.mesh}")
    return (
        f'{head} role="img" aria-label="{label}"><style>{_PICTURE_STYLE}</style>\n' + "\n".join(content) + "\n</svg>\n"
    )


def _caption(layout: Layout, columns: int, rows: int) -> str:
    names = layout.mesh.axis_names
    down = f", downwards {' and '.join(names[:-1])} ({rows})" if len(names) > 1 else ""
    return f"mesh {layout.mesh}: to the right {names[-1]} ({columns}){down}"


def _device(each: LayoutPlan, position: int, x: float, y: float) -> Iterator[str]:
    """The number of a device, the memory that it needs, and strips: the parts that it has of what each axis divides."""
    mesh = each.layout.mesh
    yield f'<text class="b" x="{x + 8}" y="{y + 16}">{mesh.flat_ids[position]}</text>'
    yield f'<text class="f" x="{x + _BOX - 8}" y="{y + 16}" text-anchor="end">{size_text(each.memory_bytes)}</text>'
    length = _BOX - 16
    for number, (axis, index) in enumerate(mesh.coordinates(position).items()):
        count = mesh.shape[axis]
        part = max(length / count, 2)
        start = x + 8 + length * index / count
        at = y + 24 + number * _STRIP
        hue = _HUES.get(axis, 0)
        yield f'<rect x="{x + 8}" y="{at}" width="{length}" height="7" fill="hsl({hue} 30% 60% / 0.25)"/>'
        tip = f"{_divided(axis)}: part {index + 1} of {count}"
        yield (
            f'<rect x="{start:.1f}" y="{at}" width="{part:.1f}" height="7" fill="hsl({hue} 60% 60%)">'
            f"<title>{escape(tip)}</title></rect>"
        )


def _divided(axis: str) -> str:
    words = {
        "data": "texts",
        "fsdp": "texts, weights and optimiser state",
        "tensor": "heads, features and words",
        "sequence": "tokens of each text",
        "expert": "experts",
    }
    return words.get(axis, axis)


def write_page(plan: Plan, path: str | os.PathLike[str]) -> None:
    """One page; it is there as a whole or not at all."""
    shown = plan.picked or plan.layouts[0]
    body = [f"<h1>{escape(plan.shape.name)} on {shown.layout.mesh.size} x {escape(plan.chip.name)}</h1>"]
    body += [f"<p>{escape(_title(plan))}</p>", f"<p>{escape(plan.why)}</p>", "<h2>The mesh</h2>"]
    body += [f'<div class="frame">{mesh_svg(plan, shown)}</div>', "<h2>Layouts</h2>", _table(plan)]
    body += ["<h2>What moves in a step</h2>", *(f"<p>{escape(line)}</p>" for line in _details(plan, shown))]
    body.append(
        "<p>Times are arithmetic or memory traffic, whichever is slower, and exchanges one after the other: nothing is "
        f"taken to overlap. Products are taken to reach {plan.chip.share_of_peak:.0%} of the peak.</p>"
    )
    head = f'<meta charset="utf-8"><title>rlx plan: {escape(plan.shape.name)}</title><style>{_STYLE}</style>'
    page = f"<!doctype html>\n<html lang='en'><head>{head}</head>\n<body>" + "\n".join(body) + "</body></html>\n"
    with replace_file(Path(path)) as file:
        file.write(page.encode())


def _table(plan: Plan) -> str:
    slowest = max((each.seconds for each in plan.layouts if each.fits), default=0.0)
    slowest = slowest or max(each.seconds for each in plan.layouts)
    rows = []
    for each in plan.layouts:
        cells = _row(plan, each)
        css = "best" if each is plan.picked else "" if each.fits else "no"
        work = max(each.compute_seconds, each.memory_seconds)
        bars = _bar([(work / slowest, 210), (each.exchange_seconds / slowest, 20)])
        used = _bar([(each.memory_bytes / plan.chip.memory_bytes, 265 if each.fits else 0)])
        numbers = "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells[1:6])
        rows.append(f'<tr class="{css}"><td>{escape(cells[0])}</td>{numbers}<td>{used}</td><td>{bars}</td></tr>')
    heads = ("memory", "work", "exchanges", "step", "tokens/s")
    top = "".join(f'<th class="n">{name}</th>' for name in heads)
    top = f"<tr><th>layout</th>{top}<th>of the memory of a chip</th><th>work and exchanges</th></tr>"
    return f"<table>{top}{''.join(rows)}</table>"


def _bar(parts: Sequence[tuple[float, int]]) -> str:
    found, left = [], 100.0
    for share, hue in parts:
        width = min(100 * share if math.isfinite(share) else 100.0, left)
        left -= width
        found.append(f'<i style="width:{width:.1f}%;background:hsl({hue} 60% 60%)"></i>')
    return f'<div class="bar">{"".join(found)}</div>'
