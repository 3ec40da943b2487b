"""The stated error bounds of the math functions, against wider arithmetic that others wrote."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere

from rlx.backends.native import kernels as native
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.ir.operations import MATH
from rlx.kernels.legalize import MATH_EXPANSIONS
from rlx.kernels.math import vector_inverse
from rlx.kernels.math.vector_math import gelu, gelu_approx, sigmoid, silu

F32, F64 = DType.F32, DType.F64
LANES = 16

BOUNDS = {"exp": 1, "expm1": 2, "log": 1, "log1p": 2, "tanh": 3, "erf": 5, "erfc": 6, "normal_cdf": 8}
BOUNDS |= {"sin": 3, "cos": 3, "tan": 5, "atan": 3, "pow": 2, "exp_negative": 1, "fmod": 0}


def each(function):
    return lambda x: np.array([function(float(v)) for v in x])


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """C's erfc, corrected to first order for the rounding of x / sqrt(2)."""
    with np.errstate(all="ignore"):
        exact = np.clip(-x.astype(np.longdouble) / np.sqrt(np.longdouble(2)), -40, 40)
        t = exact.astype(np.float64)
        slope = -2 / np.sqrt(np.longdouble(math.pi)) * np.exp(-(t.astype(np.longdouble) ** 2))
        return (each(math.erfc)(t) + (exact - t) * slope) / 2


# NumPy in f64 for f32 and in 80-bit floats for f64; C's erf and erfc, good to an ulp of f64, in both.
WIDER = {name: getattr(np, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan")}
WIDER |= {"atan": np.arctan, "pow": np.power, "erf": each(math.erf), "erfc": each(math.erfc)}
WIDER |= {"normal_cdf": normal_cdf, "exp_negative": np.exp}


def kernel_of(function, dtype: DType, arity: int = 1) -> Kernel:
    k = KernelBuilder("math")
    inputs = [k.pointer(f"x{i}", dtype) for i in range(arity)]
    y, n = k.pointer("y", dtype, write=True), k.index("n")
    with k.loop("i", 0, n, LANES) as i:
        k.store(y, i, function(k, *(k.load(x, i, lanes=LANES) for x in inputs)))
    return k.build()


def native_results(kernel: Kernel, *inputs: np.ndarray):
    count = len(inputs[0])
    padded = [np.concatenate([x, np.ones(-count % LANES, x.dtype)]) for x in inputs]
    for target in NATIVE_TARGETS:
        y = np.zeros_like(padded[0])
        native.load(kernel, target)(*padded, y, len(y))
        yield target.name, y[:count]


def ulps(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the rounded right answer; inf where one is not finite and the other is."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(found.dtype)
        finite = np.isfinite(rounded) & np.isfinite(found)
        unit = np.spacing(np.abs(np.where(finite, rounded, 1)).astype(found.dtype)).astype(np.longdouble)
        distance = np.abs(found.astype(np.longdouble) - wanted) / unit
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        return np.where(finite, distance, np.where(same, 0, np.inf)).astype(np.float64)


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, -1e-40, 5e-324, 0.5, -0.5, 88.7, 88.8, -87.5, -103.9]
EDGES += [-104.5, 709.7, 709.8, -745.1, -745.2, 8192.5, 1e6, 1e22, -3e38, 0.41421357, 2.4142137, -2.0]


def inputs_of(dtype: DType, count: int) -> np.ndarray:
    """Every so-manieth bit pattern, denormals and NaN payloads included, and the usual range more closely."""
    rng = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        edges = np.array(EDGES, dtype.numpy)
    if dtype is F32:
        patterns = np.linspace(0, 2**32 - 1, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        patterns = rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    usual = np.concatenate([rng.normal(size=count), rng.normal(size=count) * 30, rng.uniform(-750, 750, count)])
    return np.concatenate([patterns, usual.astype(dtype.numpy), edges])


def test_every_math_op_has_an_expansion_and_a_bound():
    assert set(MATH) == set(MATH_EXPANSIONS) == set(BOUNDS)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", [op for op in BOUNDS if MATH[op] == 1])
def test_error_bounds(op, dtype):
    x = inputs_of(dtype, 20_000 if op in ("erf", "erfc", "normal_cdf") else 100_000)
    x = -np.abs(x) if op == "exp_negative" else x
    with np.errstate(all="ignore"):
        wanted = WIDER[op](x.astype(np.longdouble if dtype is F64 else np.float64))
    for target, found in native_results(kernel_of(lambda k, v: k.op(op, v), dtype), x):
        distance = ulps(found, wanted)
        worst = int(np.argmax(distance))
        assert distance[worst] <= BOUNDS[op], f"{target}: {op}({x[worst]!r}) = {found[worst]!r}, not {wanted[worst]!r}"


# Of functions that expressions know and loops do not: bounds, and NumPy's in wider floats.
INVERSE = {"asin": (2, np.arcsin), "acos": (2, np.arccos), "asinh": (2, np.arcsinh), "acosh": (3, np.arccosh)}
INVERSE |= {"atanh": (3, np.arctanh), "cbrt": (1, np.cbrt)}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", INVERSE)
def test_inverse_functions(op, dtype):
    bound, wider = INVERSE[op]
    x = inputs_of(dtype, 20_000)
    near = np.random.default_rng(7).uniform(-30, 0, 20_000)
    with np.errstate(all="ignore"):
        x = np.concatenate([x, np.tanh(x), 1 - np.exp(near), 1 + np.exp(near), np.exp(near) - 1]).astype(dtype.numpy)
        wanted = wider(x.astype(np.longdouble if dtype is F64 else np.float64))
    for target, found in native_results(kernel_of(getattr(vector_inverse, op), dtype), x):
        distance = ulps(found, wanted)
        worst = int(np.argmax(distance))
        assert distance[worst] <= bound, f"{target}: {op}({x[worst]!r}) = {found[worst]!r}, not {wanted[worst]!r}"
        zero = wanted == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_pow(dtype):
    rng = np.random.default_rng(5)
    count = 30_000
    limit = 80 if dtype is F32 else 600
    special = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5, -0.5, 3, -3, 7.5, 1e-40, 1e30, -(2.0**60), 1e300]
    with np.errstate(over="ignore"):
        edges = np.array(special, dtype.numpy)
    near_one = 1 + rng.normal(size=count) * 1e-3
    x = np.concatenate([np.exp(rng.uniform(-limit, limit, count)), near_one, rng.normal(size=count)])
    y = np.concatenate(
        [rng.uniform(-10, 10, count), rng.normal(size=count) * 1e5, np.rint(rng.normal(size=count) * 20)]
    )
    x = np.concatenate([x.astype(dtype.numpy), np.repeat(edges, len(edges))])
    y = np.concatenate([y.astype(dtype.numpy), np.tile(edges, len(edges))])
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    for target, found in native_results(kernel_of(lambda k, a, b: k.op("pow", a, b), dtype, 2), x, y):
        distance = ulps(found, wanted)
        worst = int(np.argmax(distance))
        assert distance[worst] <= BOUNDS["pow"], f"{target}: {x[worst]!r}**{y[worst]!r} = {found[worst]!r}"
        zero = found == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))


@pytest.mark.parametrize("op", ["sin", "tan", "atan", "tanh", "erf", "expm1", "log1p"])
def test_odd_functions_keep_the_sign_of_zero(op):
    x = np.array([0.0, -0.0], np.float32)
    for _, found in native_results(kernel_of(lambda k, v: k.op(op, v), F32), x):
        assert np.signbit(found).tolist() == [False, True]


def exact_sigmoid(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def exact_gelu_approx(x):
    return x * exact_sigmoid(2 * np.sqrt(np.longdouble(2) / np.pi) * (x + np.longdouble(0.044715) * x**3))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(
    ("function", "exact", "bound"),
    [
        (sigmoid, exact_sigmoid, 4),
        (silu, lambda x: x * exact_sigmoid(x), 4),
        # The rounding of the cubic in the exponent is a relative error that grows with it.
        (gelu_approx, exact_gelu_approx, 250),
        (gelu, lambda x: x * normal_cdf(x), 9),
    ],
    ids=["sigmoid", "silu", "gelu_approx", "gelu"],
)
def test_activations(function, exact, bound, dtype):
    x = np.random.default_rng(11).uniform(-8.0, 30.0, 20_000).astype(dtype.numpy)
    wanted = exact(x.astype(np.longdouble))
    for target, found in native_results(kernel_of(function, dtype), x):
        distance = ulps(found, np.asarray(wanted, np.longdouble))
        worst = int(np.argmax(distance))
        assert distance[worst] <= bound, f"{target}: {x[worst]!r} -> {found[worst]!r}, {distance[worst]} ulp"


@pytest.mark.parametrize("op", sorted(BOUNDS))
def test_expansions_mean_the_same_in_the_interpreter(op):
    """Any lane count: here the interpreter of the plain node, of its expansion, and native code, on 3 and 1 lanes."""
    for lanes in (1, 3):
        k = KernelBuilder("math")
        inputs = [k.pointer(f"x{i}", F32) for i in range(MATH[op])]
        y = k.pointer("y", F32, write=True)
        k.store(y, 0, k.op(op, *(k.load(x, 0, lanes=lanes) for x in inputs)))
        args = {f"x{i}": np.array([0.7, 12345.678, 1e-3][:lanes], np.float32) for i in range(MATH[op])}
        if op == "exp_negative":
            args["x0"] = -args["x0"]
        if MATH[op] == 2:
            args["x1"] = np.array([1.5, -2.0, 3.0][:lanes], np.float32)
        check_everywhere(k.build(), {**args, "y": np.zeros(lanes, np.float32)}, rtol=1e-6)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 8, 16, 32, 64])
def test_scaling_by_powers_of_two_rounds_once(dtype, lanes):
    """Down to denormals and up to inf, on vectors of any number of registers."""
    k = KernelBuilder("scale")
    x, n, y = k.pointer("x", dtype), k.pointer("n", dtype), k.pointer("y", dtype, write=True)
    with k.loop("i", 0, 960, lanes) as i:
        k.store(y, i, k.op("scale2", *(k.load(p, i, lanes=lanes) for p in (x, n))))
    rng = np.random.default_rng(11)
    limit = 190 if dtype is F32 else 1534
    powers = rng.integers(-limit, limit + 1, 960)
    powers[:4] = [limit, -limit, 0, -limit]
    values = rng.uniform(-4, 4, 960).astype(dtype.numpy)
    values[3:7] = [np.inf, -np.inf, np.nan, 0.0]
    args = {"x": values, "n": powers.astype(dtype.numpy), "y": np.zeros(960, dtype.numpy)}
    with np.errstate(all="ignore"):
        found = check_everywhere(k.build(), args)["y"]
        np.testing.assert_array_equal(found, np.ldexp(values, powers))


@pytest.mark.parametrize("low, high", [(-103.9, 0.0), (0.0, 88.7)])
def test_exp_on_a_dense_sample(low, high):
    """Its bound is tight: a polynomial that is only good to 2**-28 breaks it in one of a million places."""
    x = np.random.default_rng(13).uniform(low, high, 3_000_000).astype(np.float32)
    op = "exp_negative" if high == 0.0 else "exp"
    for target, found in native_results(kernel_of(lambda k, v: k.op(op, v), F32), x):
        assert ulps(found, np.exp(x.astype(np.float64))).max() <= BOUNDS[op], target
