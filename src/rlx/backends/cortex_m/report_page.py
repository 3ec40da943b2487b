"""An HTML page about an export: what takes flash and RAM, what lies where in the arena and when, the work of each step.

The page needs nothing else: no script, no file beside it. Figures of the image are the linker's, where a compiler for
the core is here; those of a run are QEMU's, for the cores that it counts instructions of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from rlx.backends.cortex_m.arena import last_uses
from rlx.backends.cortex_m.c_program import CProgram
from rlx.backends.cortex_m.c_sequences import scratch_bytes
from rlx.backends.cortex_m.checking import COUNTED, linked, measure
from rlx.backends.cortex_m.project import Core
from rlx.compile.report.drawing import hue
from rlx.errors import NotInstalled
from rlx.quantized import Program

_COLUMN, _HEIGHT, _LEFT, _FOOT = 46, 300, 80, 90

_STYLE = """
:root{--ink:#1d2433;--faint:#68728a;--line:#d5dae4;--paper:#fff;--light:82%;--bar:#5b8def}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebf2;--faint:#9aa4b8;--line:#3a4354;--paper:#171b24;--light:30%}}
body{font:15px/1.5 ui-sans-serif,system-ui,"Segoe UI",sans-serif;color:var(--ink);background:var(--paper);
margin:2rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.5rem} h2{font-size:1.15rem;margin-top:2.2rem} p,caption{color:var(--faint)}
table{border-collapse:collapse} th,td{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums} .scroll{overflow-x:auto}
.bar{height:.7rem;background:var(--bar);min-width:1px} svg text{fill:var(--ink);font-size:11px}
svg .axis{fill:var(--faint)} svg line{stroke:var(--line)}
svg rect{fill:hsl(var(--h) 60% var(--light));stroke:hsl(var(--h) 45% 50%)}
"""


def report_page(program: Program, made: CProgram, core: Core, folder: Path) -> str:
    """The page of an export whose files lie in `folder`."""
    title = f"{made.name} on {core.name}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(program.steps)} steps, {program.macs:,} products per run.</p>",
        "<h2>Memory</h2>",
        _table(("what", "amount", ""), _figures(program, made, core, folder)),
        "<h2>Arena over time</h2>",
        f"<p>{made.arena.size:,} bytes; {made.arena.lower_bound:,} are alive at once. A column is a step, a box is a "
        "value from the step that writes it to the last one that reads it.</p>",
        f'<div class="scroll">{_memory_map(program, made)}</div>',
        "<h2>Work of each step</h2>",
        '<div class="scroll">',
        _work(program, made),
        "</div>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _figures(program: Program, made: CProgram, core: Core, folder: Path) -> list[tuple[object, ...]]:
    constants = made.weight_bytes + made.table_bytes
    rows: list[tuple[object, ...]] = [
        ("weights", made.weight_bytes, "bytes in flash"),
        ("tables", made.table_bytes, "bytes in flash: biases, multipliers, functions"),
        ("arena", made.arena.size, "bytes in RAM, the caller's"),
    ]
    try:
        if core.name in COUNTED:
            codes = np.zeros((1, *program.input.dims), program.input.dtype.numpy)
            run = measure(program, folder, made.name, core, codes)
            rows.append(("stack", run.stack, "bytes in RAM, of one run, measured in QEMU"))
            rows.append(("instructions", run.instructions, "of one run on zeros, counted by QEMU; a count, no time"))
        image = linked(folder, made.name, core)
        rows.append(
            ("code", image.flash - constants, "bytes in flash: kernels, sizes of steps, main and start-up code")
        )
        rows.append(("flash", image.flash, "bytes, all of the image, as linked"))
        rows.append(("RAM", image.ram, "bytes, all of the image but the stack, as linked"))
    except NotInstalled as missing:
        rows.append(("flash, RAM, stack", "", f"not measured here: {missing}"))
    return rows


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def cell(value: object, tag: str) -> str:
        is_number = isinstance(value, int)
        shown = f"{value:,}" if is_number else str(value)
        return f"<{tag}{' class=n' if is_number else ''}>{shown if shown.startswith('<div') else escape(shown)}</{tag}>"

    lines = ["<tr>" + "".join(f"<th>{escape(h)}</th>" for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(cell(v, "td") for v in row) + "</tr>" for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _work(program: Program, made: CProgram) -> str:
    most = max([s.macs for s in program.steps] + [1])
    rows = []
    for step, (weights, tables) in zip(program.steps, made.step_bytes):
        dims = "x".join(map(str, step.out.dims)) or "label"
        bar = f'<div class="bar" style="width:{160 * step.macs / most:.0f}px"></div>'
        kind = type(step).__name__
        rows.append((step.name, kind, dims, str(step.out.dtype), step.macs, weights, tables, step.out.size_bytes, bar))
    head = ("step", "kind", "gives", "codes", "products", "weight bytes", "table bytes", "bytes of the result", "")
    return _table(head, rows)


def _memory_map(program: Program, made: CProgram) -> str:
    arena, ends, steps = made.arena, last_uses(program), len(program.steps)
    width, scale = _LEFT + _COLUMN * (steps + 1), _HEIGHT / arena.size
    content = []
    for n in range(5):
        y, size = _HEIGHT - n * _HEIGHT / 4, arena.size * n // 4
        content.append(f'<line x1="{_LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        content.append(f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{size:,}</text>')
    boxes = [(v.name, arena.offsets[i], v.size_bytes, i, ends[i]) for i, v in enumerate(program.values)]
    boxes += [
        (f"{program.steps[n - 1].name}, beside its values", at, scratch_bytes(program.steps[n - 1]), n, n)
        for n, at in arena.scratch.items()
    ]
    for n, (name, at, size, first, last) in enumerate(boxes):
        left, top = _LEFT + _COLUMN * first, _HEIGHT - (at + size) * scale
        place = f'x="{left + 1}" y="{top:.1f}" width="{_COLUMN * (last - first + 1) - 2}" height="{size * scale:.1f}"'
        tip = f"{name}: bytes {at} to {at + size}, steps {first} to {last}"
        content.append(f'<rect {place} rx="2" style="--h:{hue(n)}"><title>{escape(tip)}</title></rect>')
    for n, name in enumerate(["input", *(s.name for s in program.steps)]):
        middle, y = _LEFT + _COLUMN * (n + 0.6), _HEIGHT + 14
        content.append(f'<text x="{middle:.1f}" y="{y}" transform="rotate(50 {middle:.1f} {y})">{escape(name)}</text>')
    frame = f'width="{width + 40}" height="{_HEIGHT + _FOOT}" viewBox="0 -8 {width + 40} {_HEIGHT + _FOOT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" aria-label="memory map">{"".join(content)}</svg>'
    )
