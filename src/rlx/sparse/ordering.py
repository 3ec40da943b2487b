"""Orders of rows and columns in which a factorisation fills in little, and the pattern of what it fills in.

Both look at the pattern of A + Aᵀ alone, before there are values.
"""

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
    """Rows by how few others they still touch. Cliques that elimination makes are kept as one element each, and sizes
    are bounds that count what two elements share twice (approximate minimum degree)."""
    direct = [set(s) for s in neighbours]
    elements: dict[int, set[int]] = {}
    touching: list[set[int]] = [set() for _ in neighbours]
    degree = [len(s) for s in neighbours]
    queue = [(d, v) for v, d in enumerate(degree)]
    heapq.heapify(queue)
    order: list[int] = []
    done = [False] * len(neighbours)
    while queue:
        d, pivot = heapq.heappop(queue)
        if done[pivot] or d != degree[pivot]:
            continue
        done[pivot] = True
        order.append(pivot)
        clique = direct[pivot].union(*(elements[e] for e in touching[pivot]))
        clique.discard(pivot)
        for e in touching[pivot]:
            del elements[e]
        absorbed = touching[pivot]
        elements[pivot] = clique
        for v in clique:
            direct[v] -= clique
            direct[v].discard(pivot)
            touching[v] -= absorbed
            touching[v].add(pivot)
            degree[v] = len(direct[v]) + sum(len(elements[e]) - 1 for e in touching[v])
            heapq.heappush(queue, (degree[v], v))
    return np.array(order, np.int64)


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


def filled_lower(pattern: Pattern, order: Array) -> Pattern:
    """The pattern of L, of the Cholesky factor of the matrix in this order: row by row what the elimination tree
    reaches from the entries of the row."""
    size = pattern.shape[0]
    position = np.empty(size, np.int64)
    position[order] = np.arange(size)
    rows, columns = position[pattern.rows], position[pattern.indices]
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    places = np.unique(high * max(size, 1) + low)
    high, low = np.divmod(places, max(size, 1))
    bounds = np.searchsorted(high, np.arange(size + 1)).tolist()
    entries = low.tolist()
    parent = [-1] * size
    ancestor = [-1] * size
    mark = [-1] * size
    found: list[list[int]] = []
    for i in range(size):
        mark[i] = i
        reached: list[int] = []
        for j in entries[bounds[i] : bounds[i + 1]]:
            # Compressed paths lead quickly to the root of the tree that j is in, which gets i as its parent.
            step = j
            while step != -1 and step < i:
                above, ancestor[step] = ancestor[step], i
                if above == -1:
                    parent[step] = i
                step = above
            while j < i and mark[j] != i:
                mark[j] = i
                reached.append(j)
                j = parent[j]
        reached.sort()
        found.append([*reached, i])
    lengths = np.array([len(r) for r in found], np.int64)
    flat = np.array([j for r in found for j in r], np.int64)
    dtype = pattern.indices.dtype if len(flat) < np.iinfo(np.int32).max else np.dtype(np.int64)
    return Pattern.from_places(np.repeat(np.arange(size), lengths) * max(size, 1) + flat, (size, size), dtype)
