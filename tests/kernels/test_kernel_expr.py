"""Elementwise expressions against NumPy, op by op and dtype by dtype, through real kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import _CHAINS, Access, map_kernel
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, INTS
from rlx.kernels.machines import AVX512
from rlx.kernels.specs.expr import Expr, apply, can_lower, expr_ops, literal, operand
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp

F32, F64, BF16, BOOL = DType.F32, DType.F64, DType.BF16, DType.BOOL
rng = np.random.default_rng(17)


def trunc_div(a, b):
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, 0, np.trunc(a.astype(np.longdouble) / safe)).astype(a.dtype)


def shift(function):
    def shifted(a, b):
        bits = 8 * a.dtype.itemsize
        over = (b < 0) | (b >= bits)
        inside = function(a, np.where(over, 0, b).astype(b.dtype))
        sign = a >> (bits - 1) if function is np.right_shift and a.dtype.kind == "i" else np.zeros_like(a)
        return np.where(over, sign, inside)

    return shifted


def on_floats(function):
    return lambda x: function(x) if x.dtype.kind == "f" else x


def shift_right_logical(a, b):
    unsigned = f"u{a.dtype.itemsize}"
    return shift(np.right_shift)(a.view(unsigned), b.view(unsigned)).view(a.dtype)


def gelu_approx(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ORACLES = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": trunc_div,
    "rem": lambda a, b: (
        np.fmod(a, b) if a.dtype.kind == "f" else np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))
    ),
    "max": np.maximum,
    "min": np.minimum,
    "pow": Binary(BinaryOp.Pow).eval,
    "copysign": np.copysign,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": shift(np.left_shift),
    "shift_right": shift(np.right_shift),
    "shift_right_logical": shift_right_logical,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "round": on_floats(np.rint),
    "floor": on_floats(np.floor),
    "ceil": on_floats(np.ceil),
    "trunc": on_floats(np.trunc),
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "cbrt": np.cbrt,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": lambda x: 1 / x,
    "sigmoid": scipy.special.expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_approx": gelu_approx,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "stop_gradient": lambda x: x,
    **{name: getattr(np, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan", "sqrt")},
}
BINARY = {op for op in ORACLES if can_lower(op, F32, F32) or can_lower(op, DType.I32, DType.I32)}


def data(dtype: DType, count: int) -> np.ndarray:
    if dtype is BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype in INTS:
        info = np.iinfo(dtype.numpy)
        some = rng.integers(max(-9, info.min), 9, count).astype(dtype.numpy)
        some[:4] = [info.min, info.max, 0, 1]
        return rng.permutation(some)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5]
    return rng.permutation(np.concatenate([rng.normal(size=count) * 3, special])[-count:]).astype(dtype.numpy)


def pointwise(expr: Expr, dtypes: list[DType], target=AVX512):
    inputs = [Access(f"x{i}", d, (1,)) for i, d in enumerate(dtypes)]
    return map_kernel("f", target, ("n",), inputs, [Access("y", expr.dtype, (1,))], [expr])


def test_every_lowering_has_an_oracle():
    assert set(ORACLES) | {"where", "cast", "bitcast"} == set(expr_ops())


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", sorted(INTS | FLOATS | HALVES | {BOOL}, key=str), ids=str)
def test_ops(dtype, target):
    """Every op that the dtype has, several in one kernel: a compile takes most of its time for whatever it is of."""
    arrays = [data(dtype, 21) for _ in range(2)]
    # NumPy itself is wrong or warns for the smallest integer over -1; that case has a test of its own.
    divisor = np.where(arrays[1] == -1, 2, arrays[1]).astype(dtype.numpy) if dtype in INTS else arrays[1]
    inputs = {"x0": arrays[0], "x1": arrays[1], "x2": divisor}
    wide = {k: a.astype(np.float64) if dtype in FLOATS | HALVES else a for k, a in inputs.items()}
    # Lanes follow from the type of the result, and are more of them for these functions where they stand alone.
    found: dict[tuple[DType, str], list[tuple[str, Expr, np.ndarray]]] = {}
    for op in sorted(ORACLES):
        names = ["x0"] if op not in BINARY else ["x0", "x2" if op in ("rem", "div") else "x1"]
        if can_lower(op, *[dtype] * len(names)):
            expr = apply(op, *(operand(int(name[1]), dtype) for name in names))
            with np.errstate(all="ignore"):
                wanted = np.asarray(ORACLES[op](*(wide[name] for name in names))).astype(expr.dtype.numpy)
            found.setdefault((expr.dtype, op if op in _CHAINS else ""), []).append((op, expr, wanted))
    assert found
    for (result, _), ops in found.items():
        for some in (ops[i : i + 6] for i in range(0, len(ops), 6)):
            outputs = {f"y{i}": np.zeros(21, result.numpy) for i in range(len(some))}
            accesses = [Access(name, dtype, (1,)) for name in inputs], [Access(y, result, (1,)) for y in outputs]
            kernel = map_kernel("f", target, ("n",), *accesses, [expr for _, expr, _ in some])
            after = ran_natively(kernel, {**inputs, **outputs, "n": 21}, target)
            exact = result in INTS or result is BOOL
            limit = {BF16: 2**-8, DType.F16: 2**-11, F32: 1e-6, F64: 4e-15}.get(result, 0.0)
            for y, (op, _, wanted) in zip(outputs, some, strict=True):
                pair = (after[y], wanted) if exact else (after[y].astype(np.float64), wanted.astype(np.float64))
                np.testing.assert_allclose(*pair, rtol=limit, atol=limit, err_msg=f"{op} {dtype} {target.name}")


@pytest.mark.parametrize("dtype", [DType.I8, DType.I32, DType.I64])
def test_integer_division_never_traps(dtype):
    lowest = np.iinfo(dtype.numpy).min
    a, b = np.array([lowest, lowest, 5, -5, 0], dtype.numpy), np.array([-1, 0, 0, -1, -1], dtype.numpy)
    x, y = operand(0, dtype), operand(1, dtype)
    for op, wanted in (("div", [lowest, 0, 0, 5, 0]), ("rem", [0, 0, 0, 0, 0])):
        args = {"x0": a, "x1": b, "y": np.zeros(5, dtype.numpy), "n": 5}
        np.testing.assert_array_equal(check_everywhere(pointwise(apply(op, x, y), [dtype] * 2), args)["y"], wanted)


def test_where_cast_bitcast_and_literals():
    x, half = operand(0, F32), literal(0.5, F32)
    expr = apply("where", apply("lt", x, half), apply("cast", apply("cast", x, to=DType.I32), to=F32), half)
    args = {"x0": data(F32, 37), "y": np.zeros(37, np.float32), "n": 37}
    found = check_everywhere(pointwise(expr, [F32]), args)["y"]
    x_array = args["x0"]
    inside = np.nan_to_num(np.trunc(x_array), neginf=-(2.0**31))
    np.testing.assert_array_equal(found, np.where(x_array < 0.5, inside, np.float32(0.5)))
    bits = apply("bitcast", x, to=DType.I32)
    args = {"x0": x_array, "y": np.zeros(37, np.int32), "n": 37}
    np.testing.assert_array_equal(check_everywhere(pointwise(bits, [F32]), args)["y"], x_array.view(np.int32))


def test_halves_are_computed_in_f32_and_rounded_where_asked():
    """(x + 1) - 1 keeps its digits inside one kernel, and loses them where a cast asks for bf16."""
    x, one = operand(0, BF16), literal(1.0, BF16)
    kept = apply("sub", apply("add", x, one), one)
    rounded = apply("sub", apply("cast", apply("cast", apply("add", x, one), to=BF16), to=F32), literal(1.0, F32))
    small = np.full(5, 2.0**-10, np.float32).astype(BF16.numpy)
    for expr, wanted in ((kept, 2.0**-10), (rounded, 0.0)):
        args = {"x0": small, "y": np.zeros(5, expr.dtype.numpy), "n": 5}
        found = check_everywhere(pointwise(expr, [BF16]), args)["y"]
        np.testing.assert_array_equal(found.astype(np.float32), np.full(5, wanted, np.float32))


def test_shared_nodes_are_computed_once_and_long_chains_do_not_recurse():
    x = operand(0, F32)
    e = apply("exp", x)
    kernel = pointwise(apply("add", e, e), [F32])
    assert kernel.text.count("= exp") == 2, "once for whole vectors, once for the tail"
    for _ in range(3000):
        x = apply("add", x, x)
    assert len(pointwise(x, [F32]).text) > 3000


def test_mistakes():
    x, i = operand(0, F32), operand(1, DType.I32)
    with pytest.raises(DTypeError, match="add: operands must have one dtype, got f32 and i32"):
        apply("add", x, i)
    with pytest.raises(OpError, match="exp on i32 has no lowering"):
        apply("exp", i)
    with pytest.raises(OpError, match="cast needs the dtype"):
        apply("cast", x)
    assert not can_lower("exp", DType.I32) and not can_lower("add", DType.C64, DType.C64) and not can_lower("fft", F32)
