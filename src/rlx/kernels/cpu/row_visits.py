"""How often a row is visited, what each visit computes, and what is kept from one visit to the next.

What costs much and is needed on several visits, as the exp of softmax, is computed on the first of them and kept: in
memory of the thread for short rows of a fixed length, else where a result will be, if nothing is read any more by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rlx.kernels.specs.expr import Expr, compute_dtype, is_simple, topological
from rlx.kernels.specs.scopes import LoopNest

# Bytes on the stack of a thread for what is kept of a row.
MAX_KEPT_BYTES = 1 << 15


class Visit(NamedTuple):
    """What one visit of a row computes, operands first: some of it is loaded, and some is saved for later visits."""

    nodes: Sequence[Expr]
    loads: Sequence[Expr]
    saves: Sequence[Expr]


class VisitPlan(NamedTuple):
    """The visits of a row, and where values are kept: an output of the nest by number, or memory of the thread (None).

    `passes` are the reductions that each visit computes; the last visit computes none.
    """

    visits: Sequence[Visit]
    passes: Sequence[Sequence[Expr]]
    kept: dict[Expr, int | None]


def plan_visits(nest: LoopNest, stored: Sequence[int], length: int | None, may_keep: bool) -> VisitPlan:
    """The visits of a row whose outputs `stored` have an element for each of its own.

    `length` is the number of elements of a row, if it is fixed. What is kept in an output is loaded from there.
    """
    return _Planner(nest, stored, length, may_keep).plan()


def may_keep_in_outputs(exprs: Sequence[Expr], length: int | None) -> bool:
    """Whether outputs may have to be read: rows are long, or of any length, and something in them costs much."""
    is_short = length is not None and length * 4 <= MAX_KEPT_BYTES
    return not is_short and not all(is_simple(n) for n in topological(exprs))


def needed(roots: Sequence[Expr], known: Collection[Expr] = ()) -> list[Expr]:
    """Everything that must be computed for `roots`, operands first, given reductions and what is `known`."""
    return topological(roots, lambda node: node.op == "reduce" or node in known)


class _Planner:
    def __init__(self, nest: LoopNest, stored: Sequence[int], length: int | None, may_keep: bool) -> None:
        self.nest, self.stored, self.length = nest, stored, length
        self.passes = self.schedule()
        self.costly = self.costly_values() if may_keep else set()

    def schedule(self) -> list[list[Expr]]:
        """Reductions in the order of passes: each after those that its own operand needs."""
        stage: dict[Expr, int] = {}
        passes: list[list[Expr]] = []
        for node in self.nest.nodes:
            stage[node] = max((stage[a] for a in node.args), default=0)
            if node.op == "reduce":
                stage[node] += 1
                passes += [[] for _ in range(stage[node] - len(passes))]
                passes[stage[node] - 1].append(node)
        return passes

    def costly_values(self) -> set[Expr]:
        """Values of every element that take more than a few instructions."""
        costly: set[Expr] = set()
        for node in self.nest.nodes:
            if node.op != "reduce" and (not is_simple(node) or any(a in costly for a in node.args)):
                costly.add(node)
        return {n for n in costly if self.nest.depends(n) & self.nest.joined}

    def plan(self) -> VisitPlan:
        """What finds no place is computed again, which may change what else has to be kept."""
        refused: set[Expr] = set()
        while True:
            visits = self.visits(self.costly - refused)
            kept: dict[Expr, int | None] = {}
            for node in dict.fromkeys(n for visit in visits for n in visit.loads):
                if not self.keep(node, visits, kept):
                    refused.add(node)
            if not refused & {n for visit in visits for n in visit.loads}:
                return VisitPlan(visits, self.passes, kept)

    def visits(self, may_be_kept: set[Expr]) -> list[Visit]:
        final = [self.nest.exprs[j] for j in self.stored]
        roots = [*([r.args[0] for r in reductions] for reductions in self.passes), final]
        first: dict[Expr, int] = {}
        found: list[tuple[list[Expr], list[Expr]]] = []
        for number, wanted in enumerate(roots):
            early = {n for n in may_be_kept if first.get(n, number) < number}
            nodes = needed(wanted, early)
            found.append((nodes, [n for n in nodes if n in early]))
            for node in nodes:
                first.setdefault(node, number)
        saved = dict.fromkeys(n for _, loads in found for n in loads)
        return [
            Visit(nodes, loads, [n for n in saved if first[n] == number]) for number, (nodes, loads) in enumerate(found)
        ]

    def keep(self, node: Expr, visits: Sequence[Visit], kept: dict[Expr, int | None]) -> bool:
        """Find a place for a value of every element of the row."""
        if self.length is not None:
            local = [compute_dtype(n.dtype).size_bytes for n, place in kept.items() if place is None]
            if (sum(local) + compute_dtype(node.dtype).size_bytes) * self.length <= MAX_KEPT_BYTES:
                kept[node] = None
                return True
        start = next(i for i, visit in enumerate(visits) if node in visit.saves)
        # An output may lie where an input lies, so nothing may be read after something else has been put there.
        if any(self.reads_elements(visit) for visit in visits[start + 1 :]):
            return False
        for j in self.stored:
            number = len(self.nest.inputs) + j
            is_exact = self.nest.accesses[number].dtype is compute_dtype(node.dtype)
            if is_exact and self.nest.buffers[number].reads and number not in kept.values():
                kept[node] = number
                return True
        return False

    def reads_elements(self, visit: Visit) -> bool:
        return any(n.op in ("operand", "gather") and self.nest.depends(n) & self.nest.joined for n in visit.nodes)
