"""What plans of Fourier transforms say, against NumPy's transforms."""

import math

import numpy as np
import pytest

from rlx.errors import DTypeError, OpError, ShapeError
from rlx.ir.fft import (
    FFT_INNER_TILE,
    FFT_WORKGROUP_SIZE,
    FftGpuPlan,
    FftNorm,
    bit_reverse,
    fft_meta,
    fftfreq,
    fftn_axes_all,
    gpu_fft_native_eligible,
    next_pow2,
    normalize_fftn_axes,
    prime_factors,
    rfftfreq,
    roots_of_unity,
)
from rlx.ir.shape import Shape


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 64, 65])
def test_frequencies_are_numpys(n):
    np.testing.assert_array_equal(fftfreq(n), np.fft.fftfreq(n))
    np.testing.assert_array_equal(rfftfreq(n), np.fft.rfftfreq(n))


def test_positive_nyquist_differs_in_one_bin():
    ours, numpys = fftfreq(8, positive_nyquist=True), np.fft.fftfreq(8)
    assert ours[4] == 0.5 and np.flatnonzero(ours != numpys).tolist() == [4]
    np.testing.assert_array_equal(fftfreq(7, positive_nyquist=True), np.fft.fftfreq(7))


def test_norm_scales():
    n = 16
    table = {norm: [norm.output_scale(n, inverse) for inverse in (False, True)] for norm in FftNorm}
    assert table == {FftNorm.Backward: [1, 1], FftNorm.Forward: [1, 1 / 16], FftNorm.Ortho: [0.25, 0.25]}


def test_norm_ortho_is_numpys():
    x = np.random.default_rng(0).standard_normal(12)
    np.testing.assert_allclose(np.fft.fft(x) * FftNorm.Ortho.output_scale(12, False), np.fft.fft(x, norm="ortho"))


def test_norm_tags():
    assert [norm.tag() for norm in (FftNorm.Backward, FftNorm.Forward, FftNorm.Ortho)] == [0, 1, 2]
    assert all(FftNorm.from_tag(norm.tag()) is norm for norm in FftNorm)
    assert FftNorm("ortho") is FftNorm.Ortho and str(FftNorm.Ortho) == "ortho"
    with pytest.raises(OpError, match="norm tag"):
        FftNorm.from_tag(3)


def test_meta():
    assert fft_meta(Shape((2, 3, 16), "f32")) == (6, 8, 16)
    for dtype in ("f16", "bf16", "f64"):
        assert fft_meta(Shape((16,), dtype)) == (1, 8, 16)
    assert fft_meta(Shape((4, 7), "c64")) == (4, 7, 7)
    assert str(fft_meta(Shape(("B", 8), "c128")).outer) == "B"


def test_meta_errors():
    with pytest.raises(ShapeError, match=r"must be even, got f32\[7\]"):
        fft_meta(Shape((7,), "f32"))
    for dtype in ("i32", "f8e4m3"):
        with pytest.raises(DTypeError, match="wanted a float type"):
            fft_meta(Shape((8,), dtype))
    with pytest.raises(ShapeError, match="at least one axis"):
        fft_meta(Shape((), "c64"))
    with pytest.raises(ShapeError, match="bind S first"):
        fft_meta(Shape((4, "S"), "c64"))


def test_powers_and_bits():
    assert [next_pow2(n) for n in range(10)] == [1, 1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert [bit_reverse(i, 3) for i in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert all(bit_reverse(bit_reverse(i, 7), 7) == i for i in range(128))


def stages_of(plan):
    """The radix-2 stages (log2 of their half stride) a plan performs, in order."""
    stages = list(range(plan.inner_stages))
    for quarter in plan.radix4_quarter_strides:
        stages += [int(math.log2(quarter)), int(math.log2(quarter)) + 1]
    if plan.radix2_half_stride is not None:
        stages.append(int(math.log2(plan.radix2_half_stride)))
    return stages


@pytest.mark.parametrize("log2n", range(1, 21))
def test_plan_performs_every_stage_once(log2n):
    plan = FftGpuPlan.new(1 << log2n)
    assert stages_of(plan) == list(range(log2n))
    assert plan.log2n == log2n and plan.single_inner_only == (log2n <= 10)


def test_plan_limits():
    assert (FFT_INNER_TILE, FFT_WORKGROUP_SIZE) == (1024, 256)
    for n in (0, 1, 12):
        with pytest.raises(OpError, match="power of two"):
            FftGpuPlan.new(n)


def test_native_eligibility():
    assert gpu_fft_native_eligible("f32", 1024)
    for dtype, n in [("f32", 1), ("f32", 12), ("f32", 0), ("f64", 1024), ("c64", 8)]:
        assert not gpu_fft_native_eligible(dtype, n)


def test_prime_factors():
    for n in range(1, 500):
        factors = prime_factors(n)
        assert math.prod(factors) == n and factors == sorted(factors)
        assert all(f > 1 and all(f % d for d in range(2, f)) for f in factors)
    assert prime_factors(2**31 - 1) == [2**31 - 1]
    with pytest.raises(OpError, match="positive"):
        prime_factors(0)


def test_axes():
    assert fftn_axes_all(3) == (0, 1, 2)
    assert normalize_fftn_axes([2, -3, 0, 2], 3) == (0, 2)
    with pytest.raises(ShapeError, match="axis 3 is out of range"):
        normalize_fftn_axes([3], 3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 12, 100, 1000, 4096])
def test_roots_of_unity(n):
    """To a rounding of those in extended precision; eighths of a turn cancel exactly."""
    numbers = np.arange(-n, 2 * n)
    angles = np.longdouble(2) * np.longdouble(math.pi) * (numbers % n) / n
    angles += np.longdouble(2) * np.longdouble(1.2246467991473532e-16) * (numbers % n) / n  # what is missing in pi
    for inverse in (False, True):
        found = roots_of_unity(numbers, n, inverse)
        np.testing.assert_allclose(found.real, np.cos(angles).astype(float), rtol=0, atol=2.0**-52)
        np.testing.assert_allclose(
            found.imag, np.sin(angles if inverse else -angles).astype(float), rtol=0, atol=2.0**-52
        )
    eighths = roots_of_unity(np.arange(8), 8)
    assert np.unique(np.abs(eighths.view(float))).tolist() == [0.0, math.sqrt(0.5), 1.0]
