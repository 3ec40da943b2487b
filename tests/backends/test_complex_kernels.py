"""Complex arithmetic as native arithmetic of parts, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from op_kernel_checks import Program

import rlx
from rlx import ops
from rlx.ops.pointwise.complex_numbers import MakeComplex, conjugate, imag, real

rng = np.random.default_rng(3)
LIMIT = {"c64": 3e-6, "c128": 1e-14}


def values(*dims, scale=1.0):
    return (rng.normal(size=dims) + 1j * rng.normal(size=dims)) * scale


def close(found, wanted, dtype):
    wanted = np.asarray(wanted, np.complex128)
    size = np.abs(wanted).max(initial=1e-300)
    np.testing.assert_allclose(found.astype(np.complex128), wanted, rtol=LIMIT[dtype], atol=LIMIT[dtype] * size)


FUNCTIONS = {
    "neg": (rlx.neg, np.negative),
    "square": (ops.square, np.square),
    "recip": (ops.recip, np.reciprocal),
    "exp": (rlx.exp, np.exp),
    "log": (rlx.log, np.log),
    "sin": (rlx.sin, np.sin),
    "cos": (rlx.cos, np.cos),
    "tanh": (rlx.tanh, np.tanh),
    "sqrt": (rlx.sqrt, np.sqrt),
    "conjugate": (conjugate, np.conj),
    "add": (lambda z: z + z * 2, lambda z: 3 * z),
    "quotient": (lambda z: (z + 1) / (z * z), lambda z: (z + 1) / (z * z)),
    "parts": (lambda z: MakeComplex()(imag(z), real(z)), lambda z: z.imag + 1j * z.real),
}


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    ours, theirs = FUNCTIONS[name]
    program = Program(ours, (("N",), dtype))
    for scale in (1e-8, 1.0, 30.0):
        z = values(37, scale=scale).astype(rlx.DType.of(dtype).numpy)
        wide = z.astype(np.complex128)
        wanted = theirs(wide)
        keep = np.isfinite(wanted) & (np.abs(wanted) < 1e30)
        close(program(z)[0][keep], wanted[keep], dtype)


def test_functions_far_away_and_on_the_axes():
    z = np.array([0, 1, -1, 1j, -1j, 1e30, -1e30, 1e30j, 3 - 0j, -3 + 0j, -3 - 0j, 1e-40 + 1e-40j], np.complex128)
    for name in ("log", "sqrt", "tanh"):
        ours, theirs = FUNCTIONS[name]
        program = Program(ours, ((len(z),), "c128"))
        with np.errstate(all="ignore"):
            wanted = theirs(z)
        np.testing.assert_allclose(program(z)[0], wanted, rtol=1e-14, atol=1e-300)
    assert Program(FUNCTIONS["exp"][0], ((1,), "c64"))(np.array([1000 + 0j], "c8"))[0][0] == complex(np.inf, 0)


def test_quotients_of_large_and_small_numbers():
    program = Program(lambda a, b: a / b, (("N",), "c128"), (("N",), "c128"))
    a = values(50) * 10.0 ** rng.integers(-150, 150, 50)
    b = values(50) * 10.0 ** rng.integers(-150, 150, 50)
    np.testing.assert_allclose(program(a, b)[0], a / b, rtol=1e-14)


@pytest.mark.parametrize("dtype", LIMIT)
def test_products_of_matrices(dtype):
    program = Program(lambda a, b: a @ b, (("B", 5, 7), dtype), ((7, 3), dtype))
    a, b = (values(*d).astype(rlx.DType.of(dtype).numpy) for d in ((2, 5, 7), (7, 3)))
    close(program(a, b)[0], a.astype(np.complex128) @ b.astype(np.complex128), dtype)


def test_moving_and_choosing():
    def build(x, ids):
        turned = ops.transpose(x, (1, 0))
        taken = ops.gather(ops.concat([turned, ops.reverse(turned, (0,))], 0), ids, 0)
        return ops.where(ops.eq(taken, taken[0, 0]), taken * 2, taken), ops.reduce_sum(x, (0,)), ops.cumsum(x, 1)

    program = Program(build, ((4, 5), "c64"), ((3,), "i32"))
    x, ids = values(4, 5).astype("c8"), np.array([0, 7, 2], "i4")
    taken = np.concatenate([x.T, x.T[::-1]])[ids]
    wanted = np.where(taken == taken[0, 0], taken * 2, taken), x.sum(0), np.cumsum(x, 1)
    for a, b in zip(program(x, ids), wanted, strict=True):
        close(a, b, "c64")


def test_nothing_complex_is_stored_between_ops():
    """|z²| of a complex input: one map, which reads the parts where they lie."""
    program = Program(lambda z: ops.complex_norm_sq(z * z), (("N",), "c64"))
    assert program.kinds == ["map"]
    z = values(100).astype("c8")
    np.testing.assert_allclose(program(z)[0], np.abs(z.astype(np.complex128)) ** 4, rtol=1e-5)


def test_both_parts_are_stored_by_the_loop_that_computes_them():
    program = Program(lambda z: rlx.exp(z) * z, (("N",), "c64"))
    assert program.kinds == ["map"]
    for count in (1, 2, 15, 16, 17, 1000):
        z = values(count).astype("c8")
        close(program(z)[0], np.exp(z.astype(np.complex128)) * z, "c64")


@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 7), (7, 1)), ((1, 7), (7, 9)), ((2, 7), (7, 9)), ((9, 7), (7, 4)), ((3, 2, 7), (3, 7, 5)), ((4, 1), (1, 4))],
)
def test_products_of_many_and_of_few_rows(left, right):
    program = Program(lambda a, b: a @ b, (left, "c64"), (right, "c64"))
    a, b = values(*left).astype("c8"), values(*right).astype("c8")
    close(program(a, b)[0], a.astype(np.complex128) @ b.astype(np.complex128), "c64")
    shared = Program(lambda a, b: (a * 2) @ ops.conjugate(b), (left, "c64"), (right, "c64"))
    close(shared(a, b)[0], 2 * a.astype(np.complex128) @ b.conj().astype(np.complex128), "c64")


def test_parts_of_sums_and_neighbours():
    """Numbers that lie side by side are read together, wherever a slice begins."""
    program = Program(lambda z: (ops.reduce_sum(z, (1,)), z[:, 1:] * z[:, :-1], ops.reverse(z, (1,))), ((6, 37), "c64"))
    z = values(6, 37).astype("c8")
    for found, wanted in zip(program(z), (z.sum(1), z[:, 1:] * z[:, :-1], z[:, ::-1]), strict=True):
        close(found, wanted, "c64")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_real_values_stacked_element_by_element(count):
    program = Program(lambda x: ops.stack([ops.exp(x * i) for i in range(count)], -1), (("N",), "f32"))
    assert program.kinds == ["map"]
    for size in (1, 16, 35):
        x = rng.normal(size=size).astype("f4")
        np.testing.assert_allclose(program(x)[0], np.exp(x[:, None] * np.arange(count)), rtol=1e-5)
