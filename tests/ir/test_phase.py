"""Phases of a graph: what may run before its heavy part, that part, and what follows it."""

from __future__ import annotations

import pytest

from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.phase import Phase, PhaseSchedule, derive_phases
from rlx.ir.shape import Shape


class MatMul(Op):
    is_heavy = True

    def infer(self, x: Shape) -> Shape:
        return x


class Relu(Op):
    def infer(self, x: Shape) -> Shape:
        return x


class Sample(Op):
    picks = True

    def infer(self, x: Shape) -> Shape:
        return x


OPS = {"m": MatMul, "r": Relu, "s": Sample}


def phases_of(ops: str) -> str:
    """Phases of a chain: `i` is an input, other letters are ops; p, S and e are the answers."""
    g = Graph("chain")
    last = 0
    for i, letter in enumerate(ops):
        last = g.input(f"x{i}", (4,)).id if letter == "i" else g.append(OPS[letter](), [last]).id
    letters = {Phase.Prologue: "p", Phase.SteadyState: "S", Phase.Epilogue: "e"}
    phases = derive_phases(g)
    assert len(phases) == len(g)
    return "".join(letters[phases.get(n.id)] for n in g.nodes)


@pytest.mark.parametrize(
    ("ops", "phases"),
    [
        ("irr", "pSS"),
        ("irmrm", "pSSSS"),
        ("irmrmrr", "pSSSSee"),
        ("irms", "pSSe"),
        ("irmrsr", "pSSeee"),
        ("irsr", "pSee"),
        ("imsmir", "pSeepe"),
        ("imrir", "pSepe"),
        ("", ""),
    ],
)
def test_derived_phases(ops, phases):
    assert phases_of(ops) == phases


def test_schedule():
    schedule = PhaseSchedule()
    assert schedule.is_empty() and len(schedule) == 0 and schedule.get(0) is None
    for node, phase in [(5, Phase.Epilogue), (2, Phase.Prologue), (9, Phase.Prologue), (1, Phase.Prologue)]:
        schedule.set(node, phase)
    assert schedule.nodes_in(Phase.Prologue) == [1, 2, 9]
    assert schedule.nodes_in_ordered(Phase.Prologue, [9, 5, 1, 2]) == [9, 1, 2]
    assert schedule.nodes_in(Phase.SteadyState) == []
    assert dict(schedule)[5] is Phase.Epilogue and not schedule.is_empty()


def test_phases_are_ordered():
    assert [p.order() for p in (Phase.Prologue, Phase.SteadyState, Phase.Epilogue)] == [0, 1, 2]
    assert str(Phase.SteadyState) == "steady_state"
