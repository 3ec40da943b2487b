"""One HTML page about a circuit: clocks and resources of each layer, and a picture of one frame in time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.estimates import estimate
from rlx.backends.fpga.parts import PARTS, Part, Resources, total
from rlx.backends.fpga.schedules import layer_clocks, reuse_of

_STYLE = """\
body{font:14px system-ui,sans-serif;margin:2em;max-width:70em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}svg text{font:12px system-ui,sans-serif}
"""
_WIDTH, _ROW, _LEFT = 900, 22, 150


def report_page(circuit: Circuit, part: Part | None) -> str:
    """The page; without a part, resources are those of the smallest one that is known."""
    chip = part or PARTS["up5k"]
    shares = estimate(circuit, chip)
    clocks = layer_clocks(circuit)
    rows = []
    for layer in circuit.layers:
        cells = [
            layer.out.name,
            layer.kind,
            "×".join(map(str, layer.out.dims)) or "1",
            layer.lanes if layer.macs else "",
            reuse_of(layer) or "",
            layer.parameters.get("ACC_BITS", ""),
            clocks[layer.name],
            *shares[layer.name],
        ]
        rows.append(_row("td", cells))
    needed = total(list(shares.values()))
    rows.append(_row("th", ["all", "", "", "", "", "", circuit.clocks, *needed]))
    rows.append(_row("td", [chip.name, "", "", "", "", "", "", *chip.has]))
    names = ["layer", "kind", "result", "lanes", "reuse", "bits of sums", "clocks"]
    head = _row("th", [*names, *Resources._fields])
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{escape(circuit.name)}</title>\n"
        f"<style>{_STYLE}</style>\n<h1>{escape(circuit.program.name)} as a circuit for {escape(chip.about)}</h1>\n"
        f"<p>{circuit.clocks} clocks from the first code in to the last one out; {circuit.program.macs} products. "
        f"Clocks are exact, resources are estimates.</p>\n"
        f"<table>\n{head}\n{chr(10).join(rows)}\n</table>\n<h2>One frame in time</h2>\n{_picture(circuit)}\n</html>\n"
    )


def _row(kind: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(str(c))}</{kind}>" for c in cells) + "</tr>"


def _picture(circuit: Circuit) -> str:
    """A bar per layer: pale while codes come in, dark from the last of them to its last result."""
    scale, bars = (_WIDTH - _LEFT) / circuit.clocks, []
    for n, layer in enumerate(circuit.layers):
        entering = [circuit.times[i] for i in layer.inputs]
        first, loaded = min(int(t[0]) for t in entering), max(int(t[-1]) for t in entering)
        done = int(circuit.times[circuit.number_of(layer)][-1])
        y = n * _ROW
        bars.append(f'<text x="0" y="{y + 15}">{escape(layer.out.name)}</text>')
        for begin, end, colour in ((first, loaded, "#bcd"), (loaded, done, "#357")):
            width = max((end - begin) * scale, 0.5)
            bars.append(
                f'<rect x="{_LEFT + begin * scale:.1f}" y="{y + 3}" width="{width:.1f}" height="16" fill="{colour}">'
                f"<title>{begin} to {end}</title></rect>"
            )
    return f'<svg width="{_WIDTH}" height="{_ROW * len(circuit.layers)}">{"".join(bars)}</svg>'
