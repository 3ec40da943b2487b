"""Typical mistakes, and that the error says what was wrong in the words of who made it."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import lax
from rlx.errors import RlxError

X = np.ones((2, 3), "f4")

MISTAKES = {
    "arange of a traced number": (lambda: rlx.jit(rnp.arange)(3), "arange: the stop decides the size"),
    "stack of two shapes": (
        lambda: rnp.stack([X, X[0]]),
        r"stack: needs operands of one shape, got f32\[2,3\] and f32\[3\]",
    ),
    "a value that does not fit": (
        lambda: rnp.zeros(3).at[:2].set(X[0]),
        r"x.at\[...\].set: f32\[3\] does not fit into the selected part, whose shape is \(2,\)",
    ),
    "a value that does not fit by ids": (
        lambda: rnp.zeros(3).at[np.array([0, 2])].add(X[0]),
        r"x.at\[...\].add: f32\[3\] does not fit",
    ),
    "cholesky of a matrix that is not square": (lambda: rnp.linalg.cholesky(X), "cholesky: needs square matrices"),
    "grad of a number": (lambda: rlx.grad(1.0), "value_and_grad: needs a function, got 1.0"),
    "vmap of an array": (lambda: rlx.vmap(X[0]), "vmap: needs a function"),
    "a scan that returns no pair": (
        lambda: lax.scan(lambda c, x: c + x, 0.0, X),
        r"must return a pair \(carry, y\), it returns no pair, but f32\[3\]",
    ),
    "scans of two lengths": (
        lambda: lax.scan(lambda c, x: (c, None), 0.0, (X, X.T)),
        "'xs.1' has 3 rows, but 'xs.0' has 2",
    ),
    "text": (lambda: rnp.asarray(["a", "b"]), "arrays hold numbers and bools, not text"),
    "text in an expression": (lambda: rlx.jit(lambda x: x + "a")(1.0), "not text"),
    "a tangent of another shape": (
        lambda: rlx.jvp(lambda p: p["w"], ({"w": X},), ({"w": X[0]},)),
        r"the argument has shape \(3,\) at '0.w'; it must be that of the primals, f32\[2,3\]",
    ),
    "a cotangent of another shape": (
        lambda: rlx.vjp(rnp.sum, X)[1](X),
        r"the argument has shape \(2, 3\); it must be that of the result, f32\[\]",
    ),
    "a function among checkpointed arguments": (
        lambda: rlx.grad(lambda x: rlx.checkpoint(lambda x, f: f(x))(x, rnp.sin))(1.0),
        "'f' is a function; .* static_argnums",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_was_wrong(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(RlxError, match=message):
        call()
