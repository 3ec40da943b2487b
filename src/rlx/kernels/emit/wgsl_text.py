"""The words of WGSL: types, literals, and the small functions for what its operators do not promise.

WGSL lets an implementation assume that there are no NaNs and infinities, and refuses them in constant expressions. The
loop IR has them: NaN is asked for by its bits, and infinity is made of bits that are known at run time only.
"""

from __future__ import annotations

import math

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import Literal

# Positions are i64 in the loop IR and i32 here; see `rlx.kernels.words`.
TYPE = {
    DType.BOOL: "bool",
    DType.I32: "i32",
    DType.I64: "i32",
    DType.U32: "u32",
    DType.F32: "f32",
    # Where an adapter has it; its bits are the lower half of a word.
    DType.F16: "f16",
    DType.U16: "u32",
}

_FUNCTIONS = {
    "is_nan": """\
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
""",
    "min_f32": """\
fn min_f32(a: f32, b: f32) -> f32 {
    return select(b, a, a < b || is_nan(a));
}
""",
    "max_f32": """\
fn max_f32(a: f32, b: f32) -> f32 {
    return select(b, a, a > b || is_nan(a));
}
""",
    "i32_from_f32": """\
fn i32_from_f32(x: f32) -> i32 {
    if (is_nan(x)) { return 0; }
    if (x <= -2147483648f) { return i32(-2147483648); }
    if (x >= 2147483648f) { return 2147483647; }
    return i32(x);
}
""",
    "u32_from_f32": """\
fn u32_from_f32(x: f32) -> u32 {
    if (is_nan(x) || x <= 0f) { return 0u; }
    if (x >= 4294967296f) { return 4294967295u; }
    return u32(x);
}
""",
    # Maximum and minimum of whole numbers that lie as floats do, NaN at the end: WGSL's own may lose NaN.
    "subgroup_max_f32": """\
fn subgroup_max_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let key = select(bits ^ select(0x80000000u, 0xffffffffu, bits >= 0x80000000u), 0xffffffffu, is_nan(x));
    let most = subgroupMax(key);
    return bitcast<f32>(most ^ select(0xffffffffu, 0x80000000u, most >= 0x80000000u));
}
""",
    "subgroup_min_f32": """\
fn subgroup_min_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let key = select(bits ^ select(0x80000000u, 0xffffffffu, bits >= 0x80000000u), 0u, is_nan(x));
    let least = subgroupMin(key);
    return bitcast<f32>(least ^ select(0xffffffffu, 0x80000000u, least >= 0x80000000u));
}
""",
    "special": """\
var<private> special_bits: array<u32, 3> = array<u32, 3>(0x7f800000u, 0xff800000u, 0x7fc00000u);
fn special(which: i32) -> f32 {
    return bitcast<f32>(special_bits[which]);
}
""",
}
_NEEDS = dict.fromkeys(
    ("min_f32", "max_f32", "i32_from_f32", "u32_from_f32", "subgroup_min_f32", "subgroup_max_f32"), "is_nan"
)


class Prelude:
    """The functions that a module needs, each once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(f"\n{text}" for text in self._texts.values())

    def function(self, name: str) -> str:
        if name in _NEEDS:
            self.function(_NEEDS[name])
        self._texts.setdefault(name, _FUNCTIONS[name])
        return name

    def define(self, name: str, text: str) -> str:
        self._texts.setdefault(name, text)
        return name

    def literal(self, dtype: DType, literal: Literal) -> str:
        if dtype is DType.F32:
            return self._float(float(literal))
        if dtype is DType.BOOL:
            return "true" if literal else "false"
        if dtype is DType.U32:
            return f"{int(literal)}u"
        return f"{int(literal)}" if literal >= 0 else f"i32({int(literal)})"

    def _float(self, number: float) -> str:
        # The literal may be any double: it is rounded here once, and the text is exact.
        with np.errstate(over="ignore"):
            exact = float(np.float32(number))
        if math.isnan(exact):
            return f"{self.function('special')}(2)"
        if math.isinf(exact):
            return f"{self.function('special')}({int(exact < 0)})"
        digits, exponent = abs(exact).hex().split("p")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        text = f"{digits}p{exponent}f"
        return f"(-{text})" if math.copysign(1.0, exact) < 0 else text
