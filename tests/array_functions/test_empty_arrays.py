"""Functions of arrays without elements give what NumPy gives."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp

NOTHING = np.zeros(0, "f4")
ROWS = np.zeros((0, 3), "f4")

CALLS = {
    "unique": lambda m: m.unique(NOTHING),
    "unique parts": lambda m: m.unique(ROWS, return_index=True, return_inverse=True, return_counts=True),
    "unique_counts": lambda m: m.unique_counts(NOTHING),
    "union1d": lambda m: m.union1d(NOTHING, NOTHING),
    "intersect1d": lambda m: m.intersect1d(NOTHING, NOTHING),
    "setdiff1d": lambda m: m.setdiff1d(NOTHING, NOTHING),
    "setxor1d": lambda m: m.setxor1d(NOTHING, NOTHING),
    "diff": lambda m: m.diff(ROWS, axis=0),
    "diff of few": lambda m: m.diff(np.ones((2, 3), "f4"), n=4, axis=0),
    "ediff1d": lambda m: m.ediff1d(NOTHING),
    "median": lambda m: m.median(ROWS, axis=1),
    "quantile": lambda m: m.quantile(ROWS, np.float32([0.2, 0.7]), axis=1),
    "trapezoid": lambda m: m.trapezoid(ROWS, axis=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing(name):
    found, wanted = CALLS[name](rnp), CALLS[name](np)
    for a, b in zip(rlx.tree.leaves(found), rlx.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.reshape(a, b.shape) if name == "unique parts" else a, b)


def test_filled_places_and_programs():
    found = rnp.unique(NOTHING, size=2, fill_value=7.0, return_counts=True)
    assert [x.tolist() for x in found] == [[7, 7], [0, 0]]
    assert rlx.jit(lambda x: rnp.unique(x, size=3))(NOTHING).tolist() == [0, 0, 0]
    assert rlx.jit(lambda x: rnp.diff(x, axis=0))(ROWS).shape == (0, 3)
