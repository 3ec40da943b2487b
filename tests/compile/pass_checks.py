"""What every test of a pass asks: same values, valid programs, nothing left to do, names and effects kept."""

from __future__ import annotations

import numpy as np

from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all


def same_bits(a, b):
    """Equal to the bit; of NaN only that it is one (in both parts, if complex)."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind == "c":
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    nan_a, nan_b = a != a, b != b
    if not np.array_equal(nan_a, nan_b):
        return False
    return np.where(nan_a, a.dtype.type(0), a).tobytes() == np.where(nan_b, b.dtype.type(0), b).tobytes()


def run_and_check(graph, step, leaves=None, binding=None, exact=True):
    """The graph after a pass; it must be valid, compute the same, and be left as it is by a second run."""
    before = str(graph)
    after = step.run(graph)
    assert str(graph) == before, "a pass must not change its input"
    assert verify_all(after) == []
    assert step.run(after) is after
    assert [n.op for n in after.nodes if n.is_leaf] == [n.op for n in graph.nodes if n.is_leaf]
    assert effects(after) == effects(graph)
    if leaves is not None:
        for a, b in zip(interpret(graph, leaves, binding), interpret(after, leaves, binding), strict=True):
            if exact:
                assert same_bits(a, b), f"{a} became {b}"
            else:
                np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=1e-6, atol=1e-6)
    return after


def effects(graph):
    return [n.op for n in graph.nodes if n.op.effect]


def mnemonics(graph):
    return [n.op.mnemonic for n in graph.nodes if not n.is_leaf and n.op.mnemonic != "constant"]
