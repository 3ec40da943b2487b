"""Orders of rows and columns in which a factorisation fills in little, from the pattern of A + Aᵀ alone."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.sparse.patterns import Pattern

Array = np.ndarray[Any, np.dtype[Any]]

ORDERS = ("amd", "rcm", "natural")


def order_of(pattern: Pattern, kind: str) -> Array:
    """`order[k]` is the row that comes k-th."""
    if kind not in ORDERS:
        raise OpError(f"sparse: order must be one of {ORDERS}, got {kind!r}")
    if kind == "natural":
        return np.arange(pattern.shape[0])
    neighbours = _neighbours(pattern)
    return minimum_degree(neighbours) if kind == "amd" else reverse_cuthill_mckee(neighbours)


def _neighbours(pattern: Pattern) -> list[set[int]]:
    """For every row the others that share an entry with it."""
    size = pattern.shape[0]
    both = np.union1d(pattern.places, pattern.transposed.pattern.places)
    rows, columns = np.divmod(both, max(size, 1))
    kept = rows != columns
    bounds = np.searchsorted(rows[kept], np.arange(size + 1))
    found = columns[kept].tolist()
    return [set(found[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist())]


def minimum_degree(neighbours: list[set[int]]) -> Array:
    """Rows by how few others they still touch (approximate minimum degree).

    Cliques that elimination makes are kept as one element each. Rows that touch the same others are one from then on,
    and those that touch nothing besides the new clique follow their pivot at once. Degrees are bounds: what two
    elements share outside of the new clique counts twice.
    """
    size = len(neighbours)
    direct = [set(s) for s in neighbours]
    touching: list[set[int]] = [set() for _ in neighbours]
    elements: dict[int, set[int]] = {}
    # How many rows an element has, and how many a row stands for, 0 where another stands for it.
    sizes: dict[int, int] = {}
    weight = [1] * size
    members = [[v] for v in range(size)]
    degree = [len(s) for s in neighbours]
    queue = [(d, v) for v, d in enumerate(degree)]
    heapq.heapify(queue)
    order: list[int] = []
    while queue:
        d, pivot = heapq.heappop(queue)
        if not weight[pivot] or d != degree[pivot]:
            continue
        order += members[pivot]
        absorbed = touching[pivot]
        clique = direct[pivot].union(*(elements[e] for e in absorbed))
        clique.discard(pivot)
        for e in absorbed:
            del elements[e], sizes[e]
        weight[pivot] = 0
        whole = sum(weight[v] for v in clique)
        outside: dict[int, int] = {}
        for v in clique:
            touching[v] -= absorbed
            for e in touching[v]:
                outside[e] = outside.get(e, sizes[e]) - weight[v]
        alike: dict[tuple[int, int, int], list[int]] = {}
        for v in sorted(clique):
            direct[v] -= clique
            direct[v].discard(pivot)
            # Elements inside of the new one say nothing more.
            touching[v] = {e for e in touching[v] if outside[e]}
            if not direct[v] and not touching[v]:
                order += members[v]
                whole -= weight[v]
                weight[v] = 0
                continue
            degree[v] = sum(weight[u] for u in direct[v]) + sum(outside[e] for e in touching[v])
            alike.setdefault((len(direct[v]), sum(direct[v]), sum(touching[v])), []).append(v)
        for group in (g for g in alike.values() if len(g) > 1):
            _join_equal(group, direct, touching, elements, weight, members)
        for e, rest in outside.items():
            if not rest:
                del elements[e], sizes[e]
        elements[pivot], sizes[pivot] = {v for v in clique if weight[v]}, whole
        for v in elements[pivot]:
            touching[v].add(pivot)
            degree[v] += whole - weight[v]
            heapq.heappush(queue, (degree[v], v))
    return np.array(order, np.int64)


def _join_equal(
    group: list[int],
    direct: list[set[int]],
    touching: list[set[int]],
    elements: dict[int, set[int]],
    weight: list[int],
    members: list[list[int]],
) -> None:
    """Let one row stand for all that touch the same others."""
    for place, u in enumerate(group):
        if not weight[u]:
            continue
        for v in group[place + 1 :]:
            if not weight[v] or direct[u] != direct[v] or touching[u] != touching[v]:
                continue
            weight[u], weight[v] = weight[u] + weight[v], 0
            members[u] += members[v]
            for e in touching[v]:
                elements[e].discard(v)
            for other in direct[v]:
                direct[other].discard(v)


def reverse_cuthill_mckee(neighbours: list[set[int]]) -> Array:
    """Rows breadth first from one of few neighbours, backwards: entries stay close to the diagonal."""
    degree = [len(s) for s in neighbours]
    seen = [False] * len(neighbours)
    order: list[int] = []
    for start in np.argsort(degree, kind="stable").tolist():
        if seen[start]:
            continue
        seen[start] = True
        layer = len(order)
        order.append(start)
        while layer < len(order):
            here = order[layer]
            layer += 1
            fresh = sorted((v for v in neighbours[here] if not seen[v]), key=degree.__getitem__)
            for v in fresh:
                seen[v] = True
            order += fresh
    return np.array(order[::-1], np.int64)
