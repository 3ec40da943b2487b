"""Fourier transforms of any length as native kernels, against NumPy and SciPy in double precision."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st
from op_kernel_checks import Program

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.compile.generators import generator_for
from rlx.compile.lower.fft import fft_form
from rlx.compile.lower.fft_plan import plan_transform
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.kernels.machines import AVX2, MACHINES, NEON, SSE2, host, runs_here
from rlx.ops.lowered.fourier_lines import LARGEST_RADIX, FftLines, passes
from rlx.ops.signal.fourier import Fft

# One, every radix, several passes, two steps, lines in two kernels, and lengths that are convolutions.
LENGTHS = (1, 2, 3, 5, 31, 64, 96, 97, 100, 240, 256, 263, 2 * 263, 500, 1024, 67 * 71, 5040, 1 << 15, 3 << 14)


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


def kinds(n):
    graph = Graph("transform")
    x = graph.input("x", (2, n), "c64")
    graph.set_outputs([plan_transform(Fft(), x, host().line_bytes)(x)])
    return [node.op for node in graph.nodes if isinstance(node.op, FftLines)]


def test_all_ways_are_tested():
    found = [kinds(n) for n in LENGTHS]
    assert {len(steps) for steps in found} == {1, 2}
    assert {step.step.value for steps in found for step in steps} == {"whole", "columns", "rows"}
    assert any(step.before for steps in found for step in steps)
    used = {r for steps in found for s in steps for n in (s.first, s.second) for r, _, _ in passes(n)}
    assert used >= {2, 3, 4, 5, 7, 8, LARGEST_RADIX}


@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n):
    z = signal(3 if n < 5000 else 1, n)
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


@settings(max_examples=10)
@given(
    rows=st.integers(1, 40),
    n=st.integers(1, 700),
    inverse=st.booleans(),
    norm=st.sampled_from(["backward", "forward", "ortho"]),
)
def test_any_number_of_lines_of_any_length(rows, n, inverse, norm):
    z = signal(rows, n, seed=n).astype("c8")
    got = np.asarray(compiled(Fft(inverse, norm), z.shape, "c64").run(x=z)[0])
    transform = scipy.fft.ifft if inverse else scipy.fft.fft
    # Our "forward" scales the inverse by 1/n, as SciPy's "backward" does; our "backward" scales nothing.
    wanted = transform(z.astype("c16"), norm="ortho" if norm == "ortho" else "backward")
    if inverse and norm == "backward":
        wanted = wanted * n
    assert error(got, wanted) < 3e-6


@pytest.mark.parametrize("n", [1, 2, 4, 6, 7, 30, 64, 74, 200, 512, 1000, 1 << 15])
def test_real_signals(n):
    for dtype, bound in (("f4", 2e-6), ("f8", 1e-14)):
        x = signal(5, n).real.astype(dtype)
        spectrum = np.asarray(rlx.jit(rnp.fft.rfft)(x))
        wanted = scipy.fft.rfft(x.astype("f8"))
        assert spectrum.shape == wanted.shape and error(spectrum, wanted) < bound
        # The imaginary parts of the ends do not count.
        half = signal(5, n // 2 + 1, seed=1).astype(spectrum.dtype)
        back = np.asarray(rlx.jit(lambda z: rnp.fft.irfft(z, n))(half))
        assert back.dtype == x.dtype and error(back, scipy.fft.irfft(half.astype("c16"), n)) < bound


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_real_signals_along_any_axis_and_in_several(norm):
    x = signal(6, 10, 12).real.astype("f4")
    wide = x.astype("f8")
    for axis in (0, 1, 2):
        got = rlx.jit(lambda x, a=axis: rnp.fft.rfft(x, 8, a, norm))(x)
        assert error(np.asarray(got), scipy.fft.rfft(wide, 8, axis, norm)) < 2e-6
    spectrum = scipy.fft.rfftn(wide, norm=norm)
    assert error(np.asarray(rlx.jit(lambda x: rnp.fft.rfftn(x, norm=norm))(x)), spectrum) < 2e-6
    back = rlx.jit(lambda z: rnp.fft.irfftn(z, norm=norm))(spectrum.astype("c8"))
    assert error(np.asarray(back), wide) < 2e-6


@pytest.mark.parametrize(
    "dims, axes", [((40, 96), (0, 1)), ((3, 20, 18), (1, 2)), ((12, 3, 5), (0,)), ((4, 5), (0, 1))]
)
def test_other_axes_are_transformed_where_they_lie(dims, axes):
    graph = Graph("axes")
    graph.set_outputs([ops.fftn(graph.input("x", dims, "c64"), axes)])
    program = rlx.Session("cpu").compile(graph)
    assert {k.kind for k in program._executable.lir.kernels} == {"fft"}, program.report
    z = signal(*dims).astype("c8")
    assert error(np.asarray(program.run(x=z)[0]), scipy.fft.fftn(z.astype("c16"), axes=axes)) < 2e-6


def test_any_number_of_lines_with_one_compile():
    program = compiled(Fft(), ("B", 2, 48), "c64")
    for rows in (0, 1, 7, 33):
        z = signal(rows, 2, 48).astype("c8")
        assert error(np.asarray(program.run(x=z)[0]), np.fft.fft(z.astype("c16"))) < 2e-6


def test_transforms_inside_of_a_loop_stay_native():
    def smoothed(x):
        def step(x, _):
            z = rnp.fft.rfft(x)
            return rnp.fft.irfft(z * np.linspace(1, 0, 33, dtype="f4"), 64), None

        return rlx.lax.scan(step, x, None, length=4)[0]

    x = signal(64).real.astype("f4")
    jitted = rlx.jit(smoothed)
    wanted = x.astype("f8")
    for _ in range(4):
        wanted = scipy.fft.irfft(scipy.fft.rfft(wanted) * np.linspace(1, 0, 33), 64)
    assert error(np.asarray(jitted(x)), wanted) < 2e-6


# One of each kind: rows, one and two steps, columns, blocks, convolutions, real signals.
KINDS = {
    "rows": (lambda x: Fft()(x), ((5, 12), "c64")),
    "rows of blocks": (lambda x: Fft(True, "ortho")(x), ((3, 20), "f64")),
    "two steps": (lambda x: Fft()(x), ((2, 300), "c64")),
    "blocks in two steps": (lambda x: Fft(True)(x), ((2, 2 * 264), "f32")),
    "columns": (lambda x: ops.fft_axis(x, 0), ((6, 10), "c128")),
    "convolution": (lambda x: Fft(True, "forward")(x), ((2, 37), "c64")),
    "real": (lambda x: ops.Rfft()(x), ((3, 44), "f32")),
    "back to real": (lambda z: ops.Irfft(44)(z), ((3, 23), "c64")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_target_and_the_interpreter_agree(kind):
    function, (dims, dtype) = KINDS[kind]
    program = Program(function, (dims, dtype))
    numpy = DType(dtype).numpy
    x = (signal(*dims) if numpy.kind == "c" else signal(*dims).real).astype(numpy)
    (wanted,) = program(x)
    bound = 2e-6 if numpy.itemsize <= 4 or dtype == "c64" else 1e-14
    assert error(program.interpreted(x)[0], wanted) < bound
    for target in (AVX2, SSE2):
        assert runs_here(target) or host().name.startswith(("neon", "riscv"))
        if runs_here(target):
            assert error(program.ran_on(target, x)[0], wanted) < bound
    assert all(made.kernel.text for made in program.kernels(NEON))


def test_targets_without_room_for_lines_use_products():
    assert generator_for("cpu").line_bytes and not MACHINES["cortex-m4"].line_bytes
    z = signal(2, 96).astype("c8")
    graph = Graph("products")
    x = graph.input("x", z.shape, "c64")
    graph.set_outputs([fft_form(Fft(), x)(x)])
    program = rlx.Session("cpu").compile(graph)
    assert "fft" not in [k.kind for k in program._executable.lir.kernels]
    assert error(np.asarray(program.run(x=z)[0]), np.fft.fft(z.astype("c16"))) < 2e-6


def test_the_gradient_of_a_real_spectrum():
    weights = np.linspace(0, 1, 33, dtype="f4")

    def power(x):
        z = rnp.fft.rfft(x)
        return rnp.sum((rnp.real(z) ** 2 + rnp.imag(z) ** 2) * weights)

    x = signal(64).real.astype("f4")
    z = np.fft.rfft(x.astype("f8"))
    spread = np.zeros(64, complex)
    spread[:33] = 2 * z * weights
    wanted = (np.fft.ifft(spread) * 64).real
    assert error(np.asarray(rlx.jit(rlx.grad(power))(x)), wanted) < 2e-6
