"""The words of C: types, literals, and the small functions for what C's operators do not promise.

C leaves overflow of signed integers, conversions out of range and the order of NaNs open; the loop IR does not. Each
function below says one such operation exactly. A file gets those that its kernels use.
"""

from __future__ import annotations

import math

import numpy as np

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, Literal

# f16 and bf16 are carried as bits.
VALUE_TYPE = {
    DType.BOOL: "bool",
    **{d: f"{'' if d.is_signed else 'u'}int{8 * d.size_bytes}_t" for d in DType if d.is_int and not d.is_storage},
    DType.F16: "uint16_t",
    DType.BF16: "uint16_t",
    DType.F32: "float",
    DType.F64: "double",
}
MEMORY_TYPE = VALUE_TYPE | {DType.BOOL: "uint8_t"}

HEADER = """\
/* C99. Compile without contraction of products and sums (-ffp-contract=off) and link the math library. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "floats must be computed in their own type, not in a wider one"
#endif

#define LANES(count) for (int l = 0; l < (count); l++)
"""

_TAKEN = """auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true
false l first last args memcpy isfinite LANES NAN INFINITY
fma sqrt floor ceil trunc rint fabs scalbn fmaf sqrtf floorf ceilf truncf rintf fabsf scalbnf"""
RESERVED = frozenset(_TAKEN.split())


def identifier(name: str) -> str:
    """A parameter's or buffer's name; `v` and a number are for values, a trailing `_` marks a name that is taken."""
    is_value = name[:1] == "v" and name[1:].isdigit()
    return f"{name}_" if name in RESERVED or is_value or name.endswith("_") else name


def literal_text(dtype: DType, literal: Literal) -> str:
    if dtype in FLOATS:
        return _float_text(float(literal), "f" if dtype is DType.F32 else "")
    if dtype in HALVES:
        return f"{int(np.asarray(literal, dtype.numpy).view(np.uint16)):#06x}"
    if dtype is DType.BOOL:
        return "true" if literal else "false"
    number = int(literal)
    if dtype.is_signed and number == -(2 ** (8 * dtype.size_bytes - 1)):
        return f"INT{8 * dtype.size_bytes}_MIN"
    if dtype.size_bytes == 8:
        text = f"{'' if dtype.is_signed else 'U'}INT64_C({abs(number)})"
    else:
        text = f"{abs(number)}{'' if dtype.is_signed else 'u'}"
    return f"(-{text})" if number < 0 else text


def _float_text(number: float, suffix: str) -> str:
    if math.isnan(number):
        return "NAN" if suffix else "(double)NAN"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if math.isinf(number):
        text = f"{sign}{'' if suffix else '(double)'}INFINITY"
    else:
        # An f32 literal may be given as any double: it is rounded here once, and the C text is exact.
        exact = float(np.float32(number)) if suffix else number
        if math.isinf(exact):
            return _float_text(exact, suffix)
        digits, exponent = abs(exact).hex().split("p")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        text = f"{sign}{digits}p{exponent}{suffix}"
    return f"({text})" if sign else text


class Prelude:
    """The functions that a file needs, each written once, in the order of first use."""

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(f"\n{text}" for text in self._functions.values())

    def literal(self, dtype: DType, literal: Literal) -> str:
        return literal_text(dtype, literal)

    def define(self, name: str, result: str, params: str, body: str) -> str:
        self._functions.setdefault(name, f"static inline {result} {name}({params}) {{\n    {body}\n}}\n")
        return name

    def wrapped(self, op: str, dtype: DType) -> str:
        """add, sub, mul, shl or neg of integers, which wraps."""
        kind = VALUE_TYPE[dtype]
        # Narrow unsigned integers would be promoted to int, which overflows.
        wide = "uint64_t" if dtype.size_bytes == 8 else "uint32_t"
        if op == "neg":
            return self.define(f"neg_{dtype}", kind, f"{kind} a", f"return ({kind})(0 - ({wide})a);")
        sign = {"add": "+", "sub": "-", "mul": "*", "shl": "<<"}[op]
        right = "b" if op == "shl" else f"({wide})b"
        return self.define(f"{op}_{dtype}", kind, f"{kind} a, {kind} b", f"return ({kind})(({wide})a {sign} {right});")

    def absolute(self, dtype: DType) -> str:
        kind = VALUE_TYPE[dtype]
        negated = self.wrapped("neg", dtype)
        return self.define(f"abs_{dtype}", kind, f"{kind} a", f"return a < 0 ? {negated}(a) : a;")

    def extreme(self, op: str, dtype: DType) -> str:
        """min or max; of floats, NaN if either operand is NaN."""
        kind, sign = VALUE_TYPE[dtype], "<" if op == "min" else ">"
        nan = " || a != a" if dtype in FLOATS else ""
        return self.define(f"{op}_{dtype}", kind, f"{kind} a, {kind} b", f"return a {sign} b{nan} ? a : b;")

    def saturated(self, source: DType, to: DType) -> str:
        """A float to an integer: truncated, the nearest end if it is out of range, 0 for NaN."""
        number, kind = VALUE_TYPE[source], VALUE_TYPE[to]
        bits = 8 * to.size_bytes
        lowest, beyond = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if to.is_signed else (0, 2**bits)
        low, high = self.literal(to, lowest), self.literal(to, beyond - 1)
        lines = [
            "if (x != x) return 0;",
            f"if (x <= {self.literal(source, lowest)}) return {low};",
            f"if (x >= {self.literal(source, beyond)}) return {high};",
            f"return ({kind})x;",
        ]
        return self.define(f"{to}_from_{source}", kind, f"{number} x", "\n    ".join(lines))

    def scale2(self, dtype: DType) -> str:
        """x * 2**n, rounded once, for whole n."""
        kind, call = VALUE_TYPE[dtype], "scalbnf" if dtype is DType.F32 else "scalbn"
        return self.define(
            f"scale2_{dtype}", kind, f"{kind} x, {kind} n", f"return {call}(x, isfinite(n) ? (int)n : 0);"
        )

    def fetch(self, dtype: DType) -> str:
        """A load from memory that is also seen as another type."""
        kind = MEMORY_TYPE[dtype]
        body = f"{kind} x;\n    memcpy(&x, p, sizeof x);\n    return x;"
        return self.define(f"fetch_{dtype}", kind, "const void *p", body)

    def put(self, dtype: DType) -> str:
        """A store to memory that is also seen as another type."""
        return self.define(f"put_{dtype}", "void", f"void *p, {MEMORY_TYPE[dtype]} x", "memcpy(p, &x, sizeof x);")

    def atomic(self, op: str, dtype: DType) -> str:
        """`*p = op(*p, x)`, whole where threads exist: C99 knows none, GCC and Clang do."""
        kind = MEMORY_TYPE[dtype]
        if op == "add" and dtype not in FLOATS:
            combined = f"{self.wrapped('add', dtype)}(old, x)"
        elif op == "add":
            combined = "old + x"
        elif dtype in FLOATS:
            raise InternalError(f"atomic {op} on {dtype} reached the C emitter; the builder refuses it")
        else:
            combined = f"{self.extreme(op, dtype)}(old, x)"
        body = f"""\
{kind} old, new;
#if defined(__GNUC__)
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do new = {combined};
    while (!__atomic_compare_exchange(p, &old, &new, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
#else
    old = *p;
    new = {combined};
    *p = new;
#endif"""
        return self.define(f"atomic_{op}_{dtype}", "void", f"{kind} *p, {kind} x", body)
