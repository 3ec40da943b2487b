"""Where to draw the boxes of a directed acyclic graph: in layers from top to bottom, with few crossings.

Every box goes one layer below the lowest box that points to it. Edges that span several layers get a point in each, so
that boxes make room for them. Layers are ordered by the mean position of their neighbours, and coordinates pull
neighbours together as far as the gaps between boxes allow. The result depends on the input only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

Point = tuple[float, float]
Edge = tuple[int, int]

GAP_X, GAP_Y = 18.0, 30.0
_ORDER_SWEEPS, _PLACE_SWEEPS = 6, 10
# Edges should be straight: a point on the way pulls harder than a box.
_ROUTE_WEIGHT = 4.0


class Size(NamedTuple):
    width: float
    height: float


class Layout(NamedTuple):
    """Centres of the boxes, the points on the way of every edge, and the size of the whole drawing."""

    centres: list[Point]
    routes: dict[Edge, list[Point]]
    size: Size


def lay_out(boxes: Sequence[Size], edges: Sequence[Edge]) -> Layout:
    """A drawing of `boxes` joined by `edges` (from, to), where `from` always comes before `to` in the list."""
    edges = list(dict.fromkeys(edges))
    ranks = _ranks(len(boxes), edges)
    drawing = _Drawing(boxes, edges, ranks)
    drawing.order()
    drawing.place()
    return drawing.layout()


def _ranks(count: int, edges: Sequence[Edge]) -> list[int]:
    """Longest path from the top; boxes without predecessors stand right above their first reader."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    ranks = [0] * count
    for box in range(count):
        ranks[box] = max((ranks[a] + 1 for a in before[box]), default=0)
    for box in range(count):
        if not before[box] and after[box]:
            ranks[box] = min(ranks[b] for b in after[box]) - 1
    return ranks


class _Drawing:
    """Boxes and route points in layers. Points are numbered after the boxes."""

    def __init__(self, boxes: Sequence[Size], edges: Sequence[Edge], ranks: list[int]) -> None:
        self.boxes, self.ranks = boxes, list(ranks)
        self.chains: dict[Edge, list[int]] = {}
        for a, b in edges:
            chain = list(range(len(self.ranks), len(self.ranks) + ranks[b] - ranks[a] - 1))
            self.ranks += range(ranks[a] + 1, ranks[b])
            self.chains[a, b] = [a, *chain, b]
        self.above: list[list[int]] = [[] for _ in self.ranks]
        self.below: list[list[int]] = [[] for _ in self.ranks]
        for chain in self.chains.values():
            for a, b in pairwise(chain):
                self.below[a].append(b)
                self.above[b].append(a)
        self.layers: list[list[int]] = [[] for _ in range(max(self.ranks, default=-1) + 1)]
        for item in range(len(self.ranks)):
            self.layers[self.ranks[item]].append(item)
        self.x = [0.0] * len(self.ranks)

    def half_width(self, item: int) -> float:
        return self.boxes[item].width / 2 if item < len(self.boxes) else 2.0

    def order(self) -> None:
        for sweep in range(_ORDER_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            position = [0] * len(self.ranks)
            for layer in self.layers:
                for i, item in enumerate(layer):
                    position[item] = i
            for layer in self.layers if down else reversed(self.layers):
                layer.sort(key=lambda item: _mean([position[n] for n in neighbours[item]], position[item]))
                for i, item in enumerate(layer):
                    position[item] = i

    def place(self) -> None:
        for layer in self.layers:
            self.spread(layer, [0.0] * len(layer))
        for sweep in range(_PLACE_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for layer in self.layers if down else reversed(self.layers):
                self.spread(layer, [_mean([self.x[n] for n in neighbours[i]], self.x[i]) for i in layer])

    def spread(self, layer: list[int], wanted: list[float]) -> None:
        """Move the items of a layer as close to where they want to be as their order and the gaps allow.

        Least squares under x[i+1] - x[i] >= gap: subtract the gaps, then merge neighbours that are out of order.
        """
        starts, offset = [], 0.0
        for i, item in enumerate(layer):
            if i:
                offset += self.half_width(layer[i - 1]) + self.half_width(item) + GAP_X
            starts.append(offset)
        # Blocks of (sum of weighted targets, weight, number of items).
        blocks: list[tuple[float, float, int]] = []
        for item, target, start in zip(layer, wanted, starts):
            weight = 1.0 if item < len(self.boxes) else _ROUTE_WEIGHT
            blocks.append(((target - start) * weight, weight, 1))
            while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
                last, previous = blocks.pop(), blocks.pop()
                blocks.append((previous[0] + last[0], previous[1] + last[1], previous[2] + last[2]))
        index = 0
        for total, weight, count in blocks:
            for _ in range(count):
                self.x[layer[index]] = total / weight + starts[index]
                index += 1

    def layout(self) -> Layout:
        left = min((self.x[i] - self.half_width(i) for i in range(len(self.ranks))), default=0.0) - GAP_X
        right = max((self.x[i] + self.half_width(i) for i in range(len(self.ranks))), default=0.0) + GAP_X
        tops, bottom = [], GAP_Y / 2
        for layer in self.layers:
            height = max((self.boxes[i].height for i in layer if i < len(self.boxes)), default=0.0)
            tops.append((bottom, height))
            bottom += height + GAP_Y
        middle = [top + height / 2 for top, height in tops]
        points = [(x - left, middle[rank]) for x, rank in zip(self.x, self.ranks)]
        routes = {edge: self.route(chain, points) for edge, chain in self.chains.items()}
        return Layout(points[: len(self.boxes)], routes, Size(right - left, bottom - GAP_Y / 2))

    def route(self, chain: list[int], points: list[Point]) -> list[Point]:
        """From the lower edge of the first box to the upper edge of the last."""
        first, last = chain[0], chain[-1]
        start = (points[first][0], points[first][1] + self.boxes[first].height / 2)
        end = (points[last][0], points[last][1] - self.boxes[last].height / 2)
        return [start, *(points[i] for i in chain[1:-1]), end]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
