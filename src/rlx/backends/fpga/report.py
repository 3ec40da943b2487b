"""One HTML page about a circuit: clocks and resources of each layer, and a picture of one frame in time.

After placement it also has what the tools made of it, and a plan of the chip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.estimates import estimate
from rlx.backends.fpga.parts import PARTS, Part, Resources, total
from rlx.backends.fpga.routing import Routed
from rlx.backends.fpga.schedules import RESOURCE_WORDS, layer_clocks, reuse_of

_STYLE = """\
body{font:14px system-ui,sans-serif;margin:2em;max-width:70em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}svg text{font:12px system-ui,sans-serif}
"""
_WIDTH, _ROW, _LEFT = 900, 22, 150
_TILE = 14
# Words in the kinds of cells that are no logic.
_LARGE = ("RAM", "MAC16", "DP16", "MULT", "DSP")


def report_page(circuit: Circuit, part: Part | None, routed: Routed | None = None) -> str:
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
        f"<p>{circuit.clocks} clocks from the first code in to the last one out, about {circuit.interval} between "
        f"frames in a row; {circuit.program.macs} products. Clocks of one frame are exact, all else estimated.</p>\n"
        f"<table>\n{head}\n{chr(10).join(rows)}\n</table>\n<h2>One frame in time</h2>\n{_picture(circuit)}\n"
        f"{_tools_part(circuit, needed, routed) if routed is not None else ''}</html>\n"
    )


def _tools_part(circuit: Circuit, foretold: Resources, routed: Routed) -> str:
    """What Yosys and nextpnr say beside the estimates, and the plan of the chip."""
    rows = [_row("th", ["", "foretold", "Yosys", "foretold of it"])]
    for what, guess, used in zip(Resources._fields, foretold, routed.used):
        share = f"{100 * guess / used:.0f} %" if used else ""
        rows.append(_row("td", [RESOURCE_WORDS[what], guess, used, share]))
    return (
        f"<h2>What the tools made</h2>\n<p>{routed.mhz:.1f} MHz after routing, as nextpnr estimates it: "
        f"{routed.mhz * 1e6 / circuit.clocks:.0f} inferences per second.</p>\n<table>\n{chr(10).join(rows)}\n</table>\n"
        f"<h2>The chip</h2>\n<p>A square per tile, in the colour of the layer that has most of its cells; memories and "
        f"multipliers have a dark edge.</p>\n{_floor_plan(circuit, routed)}\n"
    )


def _floor_plan(circuit: Circuit, routed: Routed) -> str:
    colours = {layer.name: f"hsl({int(n * 137.5) % 360} 60% 65%)" for n, layer in enumerate(circuit.layers)}
    tiles: dict[tuple[int, int], Counter[str]] = {}
    large: set[tuple[int, int]] = set()
    for layer, cells in routed.cells.items():
        for x, y, kind in cells:
            tiles.setdefault((x, y), Counter())[layer] += 1
            if any(word in kind for word in _LARGE):
                large.add((x, y))
    if not tiles:
        return "<p>The tool gave no places.</p>"
    highest = max(y for _, y in tiles)
    across = (max(x for x, _ in tiles) + 1) * _TILE
    names = {layer.name: layer.out.name for layer in circuit.layers}
    drawn = []
    # Row 0 is at the bottom of the chip.
    for (x, y), counts in sorted(tiles.items()):
        layer = max(sorted(counts), key=lambda name: counts[name])
        edge = ' stroke="#222" stroke-width="2"' if (x, y) in large else ""
        drawn.append(
            f'<rect x="{x * _TILE}" y="{(highest - y) * _TILE}" width="{_TILE - 1}" height="{_TILE - 1}"'
            f' fill="{colours.get(layer, "#ccc")}"{edge}><title>{x}, {y}: {escape(names.get(layer, "between layers"))},'
            f" {counts.total()} cells</title></rect>"
        )
    for n, layer in enumerate([a.name for a in circuit.layers] + [""]):
        y, count = n * _ROW, len(routed.cells.get(layer, ()))
        drawn.append(
            f'<rect x="{across + 20}" y="{y}" width="14" height="14" fill="{colours.get(layer, "#ccc")}"/>'
            f'<text x="{across + 42}" y="{y + 12}">{escape(names.get(layer, "between layers"))}, {count} cells</text>'
        )
    height = max((highest + 1) * _TILE, _ROW * (len(circuit.layers) + 1))
    return f'<svg width="{across + 260}" height="{height}">{"".join(drawn)}</svg>'


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
