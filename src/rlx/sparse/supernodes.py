"""What is known of a Cholesky factor before there are numbers: which columns are alike, and what follows from that.

Columns of L that are neighbours and have the same rows below them are one supernode. It is kept as a dense panel, so
that factorisation is products of dense matrices. All of this follows from the pattern of A:

1. the elimination tree: the parent of a column is the row of the first entry below its diagonal;
2. its postorder, by which a column comes directly behind its subtree (`natural` order stays as it is);
3. the number of entries of every column of L, found from the tree alone;
4. supernodes, from 1 and 3; small ones join their parents where that stores few zeros;
5. for every supernode those before it that change it, and where their rows lie in its panel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.sparse.ordering import order_of
from rlx.sparse.patterns import Pattern

Array = np.ndarray[Any, np.dtype[Any]]

# A supernode joins its parent if both together have at most so many columns, and this share of zeros at most.
RELAXED = ((4, 0.8), (16, 0.1), (48, 0.05))
ALWAYS = 0.02


class Panels(NamedTuple):
    """Supernodes as the numeric factorisation needs them.

    The panel of supernode s begins at `starts[s]`: `widths[s]` columns of `heights[s]` rows each, columns one after the
    other. Row i of L that is column i of the supernode comes first. `sources[links[s] : links[s + 1]]` are those before
    it that change it: (number, first, last, place), where the rows first .. last - 1 of their panels are columns of s,
    and `relative[place:]` says where rows from the first on lie in the panel of s.
    """

    starts: Array
    widths: Array
    heights: Array
    links: Array
    sources: Array
    relative: Array


class Symbolic(NamedTuple):
    """The order of rows, the pattern of L in it, the panels of L, and where in them the entries of L are; `goals` are
    those of the entries of A, on either side of the diagonal."""

    order: Array
    pattern: Pattern
    panels: Panels
    size: int
    places: Array
    goals: Array


def analysed(pattern: Pattern, kind: str) -> Symbolic:
    """Everything about the factor of a matrix with this pattern, of which both triangles are looked at."""
    size = pattern.shape[0]
    order = order_of(pattern, kind)
    low, high = _lower(pattern, order)
    parent = elimination_tree(low, high, size)
    post = postorder(parent)
    if kind != "natural":
        order = order[post]
        moved = np.empty(size, np.int64)
        moved[post] = np.arange(size)
        parent = np.where(parent[post] >= 0, moved[parent[post]], -1)
        post = np.arange(size)
        low, high = _lower(pattern, order)
    counts = column_counts(low, high, parent, post)
    firsts = _fundamental(parent, counts)
    rows, bounds = _structures(low, high, parent, firsts)
    pattern_of_factor = _pattern(rows, bounds, firsts, counts, pattern)
    joined = _relaxed(parent, firsts, np.diff(bounds))
    panels, keys = _panels(rows, bounds, firsts, joined, size)

    def places(row: Array, column: Array) -> Array:
        """Where in the panels entries of L are."""
        owner = np.searchsorted(firsts[joined], column, side="right") - 1
        begin = np.concatenate([[0], np.cumsum(panels.heights)])
        at = np.searchsorted(keys, owner * max(size, 1) + row) - begin[owner]
        found: Array = panels.starts[owner] + (column - firsts[joined][owner]) * panels.heights[owner] + at
        return found

    position = _positions(order)
    r, c = position[pattern.rows], position[pattern.indices]
    goals = places(np.maximum(r, c), np.minimum(r, c))
    of_factor = places(pattern_of_factor.rows, pattern_of_factor.indices.astype(np.int64))
    total = int(panels.starts[-1])
    return Symbolic(order.astype(pattern.indices.dtype), pattern_of_factor, panels, total, of_factor, goals)


def _positions(order: Array) -> Array:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _lower(pattern: Pattern, order: Array) -> tuple[Array, Array]:
    """Columns and rows of the entries below the diagonal of the matrix in an order, column by column."""
    size = max(len(order), 1)
    position = _positions(order)
    rows, columns = position[pattern.rows], position[pattern.indices]
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    places = np.unique((low * size + high)[low < high])
    return np.divmod(places, size)


def elimination_tree(low: Array, high: Array, size: int) -> Array:
    """The parent of every column; -1 for a root. Paths to roots are compressed on the way."""
    by_row = np.argsort(high, kind="stable")
    parent, ancestor = [-1] * size, [-1] * size
    for step, i in zip(low[by_row].tolist(), high[by_row].tolist()):
        while step != -1 and step < i:
            above, ancestor[step] = ancestor[step], i
            if above == -1:
                parent[step] = i
            step = above
    return np.array(parent, np.int64)


def postorder(parent: Array) -> Array:
    """Columns such that each comes directly behind its subtree."""
    size = len(parent)
    children: list[list[int]] = [[] for _ in range(size)]
    stack: list[int] = []
    for j, p in enumerate(parent.tolist()):
        (children[p] if p >= 0 else stack).append(j)
    order: list[int] = []
    # Parents before their subtrees; backwards, subtrees before parents.
    while stack:
        j = stack.pop()
        order.append(j)
        stack += children[j]
    return np.array(order[::-1], np.int64)


def column_counts(low: Array, high: Array, parent: Array, post: Array) -> Array:
    """The number of entries of every column of L, its diagonal included.

    Row i of L is the part of the tree between i and the entries of row i of A. Each leaf of it adds one to all columns
    on its way up; where ways of two leaves meet, one is taken away again. So sums over subtrees give the counts.
    """
    size = len(parent)
    parents = parent.tolist()
    first, change = [-1] * size, [0] * size
    for k, j in enumerate(post.tolist()):
        change[j] = 1 if first[j] == -1 else 0
        while j != -1 and first[j] == -1:
            first[j] = k
            j = parents[j]
    bounds = np.searchsorted(low, np.arange(size + 1)).tolist()
    below = high.tolist()
    latest, last_leaf, ancestor = [-1] * size, [-1] * size, list(range(size))
    for j in post.tolist():
        if parents[j] != -1:
            change[parents[j]] -= 1
        for i in below[bounds[j] : bounds[j + 1]]:
            if first[j] <= latest[i]:
                continue
            latest[i] = first[j]
            before, last_leaf[i] = last_leaf[i], j
            change[j] += 1
            if before != -1:
                meet = before
                while ancestor[meet] != meet:
                    ancestor[meet] = ancestor[ancestor[meet]]
                    meet = ancestor[meet]
                change[meet] -= 1
        if parents[j] != -1:
            ancestor[j] = parents[j]
    for j in post.tolist():
        if parents[j] != -1:
            change[parents[j]] += change[j]
    return np.array(change, np.int64)


def _fundamental(parent: Array, counts: Array) -> Array:
    """Where supernodes begin: a column goes on with the one before if that is its only child, and one entry longer."""
    size = len(parent)
    children = np.bincount(parent[parent >= 0], minlength=size)
    before = np.arange(size) - 1
    goes_on = (before >= 0) & (parent[before] == np.arange(size)) & (counts[before] == counts + 1) & (children == 1)
    return np.flatnonzero(~goes_on)


def _structures(low: Array, high: Array, parent: Array, firsts: Array) -> tuple[Array, Array]:
    """The rows of every supernode, its own columns first, and where they begin."""
    size = len(parent)
    ends = np.append(firsts[1:], size)
    bounds = np.searchsorted(low, np.arange(size + 1))
    owner = np.repeat(np.arange(len(firsts)), ends - firsts)
    inherited: list[list[Array]] = [[] for _ in firsts]
    found: list[Array] = []
    for s, (begin, end) in enumerate(zip(firsts.tolist(), ends.tolist())):
        parts = [high[bounds[begin] : bounds[end]], *inherited[s]]
        inherited[s] = []
        below = np.unique(np.concatenate(parts) if len(parts) > 1 else parts[0])
        below = below[np.searchsorted(below, end) :]
        found.append(np.concatenate([np.arange(begin, end), below]))
        up = int(parent[end - 1])
        if up >= 0:
            inherited[owner[up]].append(below)
    rows = np.concatenate(found) if found else np.zeros(0, np.int64)
    return rows, np.cumsum([0, *(len(f) for f in found)])


def _pattern(rows: Array, bounds: Array, firsts: Array, counts: Array, pattern: Pattern) -> Pattern:
    """The pattern of L: a column of a supernode has its rows from itself on."""
    size = len(counts)
    columns = np.arange(size)
    owner = np.searchsorted(firsts, columns, side="right") - 1
    begin = bounds[owner] + columns - firsts[owner] if size else columns
    places = rows[_ranges(begin, counts)] * max(size, 1) + np.repeat(columns, counts)
    dtype = pattern.indices.dtype if len(places) < np.iinfo(np.int32).max else np.dtype(np.int64)
    return Pattern.from_places(np.sort(places), (size, size), dtype)


def _ranges(begin: Array, lengths: Array) -> Array:
    """begin[0], begin[0] + 1, .., then those from begin[1] on, and so forth."""
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(begin - offsets, lengths) + np.arange(int(lengths.sum()))


def _relaxed(parent: Array, firsts: Array, heights: Array) -> Array:
    """The numbers of those supernodes that stay the first of theirs, others having joined the one before.

    A supernode joins its parent, which must come next, if few zeros have to be stored for that.
    """
    count, size = len(firsts), len(parent)
    ends = np.append(firsts[1:], size).tolist()
    starts, height = firsts.tolist(), heights.tolist()
    stays = [True] * count
    # Of what begins with supernode s: the end of its columns, rows, and zeros.
    end, zeros = list(ends), [0] * count
    for s in range(count - 2, -1, -1):
        if parent[ends[s] - 1] != starts[s + 1]:
            continue
        width, taller = ends[s] - starts[s], ends[s] - starts[s] + height[s + 1]
        more = zeros[s + 1] + width * (taller - height[s])
        columns = end[s + 1] - starts[s]
        stored = columns * taller - columns * (columns - 1) // 2
        allowed = next((share for most, share in RELAXED if columns <= most), ALWAYS)
        if more <= allowed * stored:
            stays[s + 1] = False
            end[s], zeros[s], height[s] = end[s + 1], more, taller
    return np.flatnonzero(stays)


def _panels(rows: Array, bounds: Array, firsts: Array, joined: Array, size: int) -> tuple[Panels, Array]:
    """The panels of supernodes that have joined; also their rows, as keys that ascend: number of supernode, row."""
    begin = firsts[joined]
    widths = np.diff(np.append(begin, size))
    # The last of those that joined has the rows below.
    last = np.append(joined[1:], len(firsts))[: len(joined)] - 1
    own = np.diff(np.append(firsts, size))[last]
    below = bounds[last + 1] - bounds[last] - own
    heights = widths + below
    starts = np.concatenate([[0], np.cumsum(widths * heights)]).astype(np.int64)
    number = np.arange(len(joined))
    tails = rows[_ranges(bounds[last] + own, below)]
    of_tail = np.repeat(number, below)
    keys = np.sort(
        np.concatenate(
            [np.repeat(number, widths) * max(size, 1) + np.arange(size), of_tail * max(size, 1) + tails],
        )
    )
    # Runs of rows below that are columns of one supernode.
    goal = np.searchsorted(begin, tails, side="right") - 1
    place = np.arange(len(tails)) - np.repeat(np.cumsum(below) - below, below) + widths[of_tail]
    is_new = np.append(True, (goal[1:] != goal[:-1]) | (of_tail[1:] != of_tail[:-1]))[: len(tails)]
    runs = np.flatnonzero(is_new)
    first = place[runs]
    end = place[np.append(runs[1:], len(tails)) - 1] + 1 if len(runs) else runs
    source, target = of_tail[runs], goal[runs]
    lengths = heights[source] - first
    offsets = np.cumsum(lengths) - lengths
    wanted = tails[_ranges(runs, lengths)]
    top = np.concatenate([[0], np.cumsum(heights)])
    at = np.repeat(target, lengths)
    relative = np.searchsorted(keys, at * max(size, 1) + wanted) - top[at]
    by_target = np.argsort(target, kind="stable")
    sources = np.stack([source, first, end, offsets], 1)[by_target]
    links = np.searchsorted(target[by_target], np.arange(len(joined) + 1))
    dtype = np.int64
    return (
        Panels(
            starts,
            widths.astype(dtype),
            heights.astype(dtype),
            links.astype(dtype),
            sources.astype(dtype).reshape(-1, 4),
            relative.astype(dtype),
        ),
        keys,
    )
