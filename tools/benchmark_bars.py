"""Draws docs/pictures/benchmarks.svg: the geometric means of docs/benchmarks.md as bars, one for each peer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

# Group in the page -> what it is called in the picture.
TITLES = {
    "matmul": "matrix products, 16 shapes",
    "fused": "norms, softmax, loss, gated products",
    "attention": "attention, 5 shapes",
    "batch 1": "MiniLM-shaped encoder, batch 1",
    "prefill": "SmolLM2 Q4_1, prefill",
    "decode": "SmolLM2 Q4_1, decode",
}
WIDTH, LEFT, ROW, BAR, TOP = 760, 250, 17, 12, 64
# Ratios beyond this have a bar that is cut off; the number is beside it.
MOST = 5.0


class Group(NamedTuple):
    title: str
    ratios: dict[str, float]


def groups(page: str) -> list[Group]:
    """The rows of geometric means, with the peers that stand in the head of their table."""
    found, peers = [], list[str]()
    for line in page.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == ["case", "best peer"]:
            peers = cells[2:-2]
        mean = re.fullmatch(r"\*(.*): geometric mean\*", cells[0])
        if mean and mean[1] in TITLES:
            numbers = [float(cell.rstrip("x")) if cell.endswith("x") else None for cell in cells[2 : 2 + len(peers)]]
            found.append(Group(TITLES[mean[1]], {p: n for p, n in zip(peers, numbers, strict=True) if n is not None}))
    return found


def bars() -> str:
    """The picture as SVG."""
    drawn, y = list[str](), TOP
    scale = (WIDTH - LEFT - 70) / MOST
    for group in groups(PAGE.read_text(encoding="utf-8")):
        drawn.append(f'<text x="16" y="{y + 11}" font-weight="600">{group.title}</text>')
        for peer, ratio in sorted(group.ratios.items(), key=lambda item: item[1]):
            y += ROW
            width = min(ratio, MOST) * scale
            colour = "#2f7d5b" if ratio >= 1 else "#b5533c"
            drawn.append(f'<text x="{LEFT - 8}" y="{y + 10}" text-anchor="end" fill="#555">{peer}</text>')
            drawn.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>')
            drawn.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 10}" fill="#555">{ratio:.2f}x</text>')
        y += 2 * ROW
    one = LEFT + scale
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
            ' font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>',
            '<text x="16" y="24" font-size="15" font-weight="700">How many times as long others take as rlx</text>',
            '<text x="16" y="42" fill="#555">Two x86-64 cores, f32; geometric means of docs/benchmarks.md.'
            " Right of the line rlx is faster.</text>",
            *drawn,
            f'<line x1="{one:.1f}" y1="{TOP - 8}" x2="{one:.1f}" y2="{y - 12}" stroke="#222" stroke-dasharray="3 3"/>',
            "</svg>\n",
        )
    )
