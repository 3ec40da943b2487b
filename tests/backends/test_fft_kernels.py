"""Fourier transforms of any length as native kernels, against NumPy in double precision."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.compile.lower.fft import LONGEST, SHORT
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ops.signal.fourier import Fft

# One, powers of two, composites, primes on both sides of the bound for products, one with two large factors.
LENGTHS = (1, 2, 3, 31, SHORT, 97, 100, 128, 251, 263, 2 * 263, 500, 1024, 67 * 71)


def compiled(op, dims, dtype, device="cpu"):
    graph = Graph("transform")
    graph.set_outputs([op(graph.input("x", dims, dtype))])
    program = rlx.Session(device).compile(graph)
    if device == "cpu":
        assert "call" not in [k.kind for k in program._executable.lir.kernels], program.report
    return program


def signal(*dims, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=dims) + 1j * rng.normal(size=dims)


def error(got, wanted):
    """The largest difference, in units of the largest value."""
    return np.abs(got - wanted).max(initial=0) / np.abs(wanted).max(initial=1e-30)


def test_both_ways_are_tested():
    assert any(n > LONGEST and all(n % f for f in range(2, n)) for n in LENGTHS)


@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n):
    z = signal(3, n)
    for dtype, bound in (("c64", 2e-6), ("c128", 1e-14)):
        x = z.astype(DType(dtype).numpy)
        forward, backward = (np.asarray(compiled(Fft(i), x.shape, dtype).run(x=x)[0]) for i in (False, True))
        assert forward.dtype == x.dtype
        assert error(forward, np.fft.fft(x.astype("c16"))) < bound
        assert error(backward, np.fft.ifft(x.astype("c16")) * n) < bound


@pytest.mark.parametrize("norm, numpy", [("ortho", "ortho"), ("forward", "backward"), ("backward", None)])
@pytest.mark.parametrize("inverse", [False, True])
def test_norms(norm, numpy, inverse):
    z = signal(2, 96).astype("c8")
    got = np.asarray(compiled(Fft(inverse, norm), z.shape, "c64").run(x=z)[0])
    transform = np.fft.ifft if inverse else np.fft.fft
    wanted = transform(z.astype("c16"), norm=numpy) if numpy else transform(z.astype("c16")) * (96 if inverse else 1)
    assert error(got, wanted) < 2e-6


@pytest.mark.parametrize("dtype, bound", [("f64", 1e-14), ("f32", 2e-6), ("f16", 2e-3), ("bf16", 1e-2)])
def test_real_dtypes_hold_two_blocks(dtype, bound):
    z = signal(4, 40)
    blocks = np.concatenate([z.real, z.imag], -1).astype(DType(dtype).numpy)
    got = np.asarray(compiled(Fft(), blocks.shape, dtype).run(x=blocks)[0]).astype("f8")
    exact = blocks.astype("f8")
    wanted = np.fft.fft(exact[:, :40] + 1j * exact[:, 40:])
    assert error(got[:, :40] + 1j * got[:, 40:], wanted) < bound


def test_a_length_that_only_the_run_knows():
    for norm in ("backward", "forward", "ortho"):
        program = compiled(Fft(True, norm), ("B", "2*N"), "f64")
        defined = compiled(Fft(True, norm), ("B", "2*N"), "f64", "reference")
        for rows, n in ((1, 5), (3, 16), (2, 1)):
            x = signal(rows, 2 * n).real
            assert error(np.asarray(program.run(x=x)[0]), np.asarray(defined.run(x=x)[0])) < 1e-13


def test_transforms_of_nothing():
    for dims in ((0, 6), (3, 0)):
        assert np.asarray(compiled(Fft(), dims, "f32").run(x=np.zeros(dims, "f4"))[0]).shape == dims


def test_the_gradient_of_a_power_spectrum():
    def power(x):
        spectrum = rlx.fft(x)
        return rnp.sum(spectrum * spectrum * np.linspace(0, 1, 128, dtype="f4"))

    x = signal(128).real.astype("f4")
    native, defined = (rlx.jit(rlx.grad(power), device=d)(x) for d in ("cpu", "reference"))
    assert error(np.asarray(native), np.asarray(defined)) < 2e-6
