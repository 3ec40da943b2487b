"""What lanes of a warp compute in attention kernels: powers of two, maxima, exchanges with other lanes, rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.writer import Val, Writer

# 2^x from -0.5 to 0.5, x^0 first: of all polynomials of a degree those whose largest relative error is least, 7.5e-5
# and 2.6e-6. Weights are rounded to bf16 and f16, whose own errors are up to 2e-3 and 2.4e-4.
POWERS = {
    "bf16": (0.999928074, 0.693260985, 0.242611122, 0.0551716691),
    "f16": (0.999999261, 0.693121815, 0.240247448, 0.0559178603, 0.00957010191),
}
# Added to a number, it leaves the nearest integer in the lowest bits.
_ROUNDER = 1.5 * 2**23
# Lower exponents would run into the sign; what is left of such powers is nothing beside a sum of at least 1.
_LOWEST = -125.0


class Lanes:
    """Writes instructions of lanes; kernels of attention build on it."""

    def __init__(self, w: Writer, attention: AttentionShape) -> None:
        self.w, self.attention = w, attention

    def exp2(self, x: Val) -> Val:
        return self.w.call("llvm.nvvm.ex2.approx.ftz.f", "float", x)

    def exp2_by_polynomial(self, x: Val) -> Val:
        """The same of a number that is not above 0 by much, without the unit for such functions, which has an eighth of
        the others' rate. -inf becomes 2^-125, not 0; NaN becomes what is no number as a weight."""
        w = self.w
        near = w.call("llvm.maximum.f32", "float", x, w.value(_LOWEST, "float"))
        rounded = near + _ROUNDER
        rest = near - (rounded - _ROUNDER)
        *lower, power = POWERS[self.attention.element]
        found = w.value(power, "float")
        for factor in reversed(lower):
            found = found * rest + factor
        bits, exponent = (w.emit(f"bitcast float {v.name} to i32", "i32") for v in (found, rounded))
        return w.emit(f"bitcast i32 {(bits + (exponent << 23)).name} to float", "float")

    def reciprocal(self, x: Val) -> Val:
        return self.w.call("llvm.nvvm.rcp.approx.ftz.f", "float", x)

    def larger(self, a: Val, b: Val) -> Val:
        return self.w.call("llvm.maxnum.f32", "float", a, b)

    def from_lane(self, x: Val, distance: int) -> Val:
        """What the lane has whose number differs in the bits of `distance`."""
        w = self.w
        return w.call("llvm.nvvm.shfl.sync.bfly.f32", "float", w.value(-1), x, w.value(distance), w.value(31))

    def pair(self, low: Val, high: Val) -> Val:
        """Two numbers, rounded to the type of the operands, as one word."""
        w, element = self.w, self.attention.element
        kind = "bfloat" if element == "bf16" else "half"
        both = w.call(f"llvm.nvvm.ff2{element}x2.rn", f"<2 x {kind}>", high, low)
        return w.emit(f"bitcast <2 x {kind}> {both.name} to i32", "i32")

    def unpacked(self, word: Val, which: int) -> Val:
        """One of the two numbers of a word."""
        w = self.w
        kind = "bfloat" if self.attention.element == "bf16" else "half"
        both = w.emit(f"bitcast i32 {word.name} to <2 x {kind}>", f"<2 x {kind}>")
        one = w.emit(f"extractelement <2 x {kind}> {both.name}, i32 {which}", kind)
        return w.emit(f"fpext {kind} {one.name} to float", "float")

    def parts(self, elements: Sequence[Val], count: int) -> list[list[Val]]:
        """Numbers whose sums are the elements, as words of two; the first have the most of them."""
        found = []
        rest = list(elements)
        for left in range(count, 0, -1):
            words = [self.pair(*rest[i : i + 2]) for i in range(0, len(rest), 2)]
            found.append(words)
            if left > 1:
                rest = [x - self.unpacked(words[i // 2], i % 2) for i, x in enumerate(rest)]
        return found

    def is_seen(self, highest: Val) -> Val:
        """Whether a row has seen anything: its highest score is one."""
        w = self.w
        return w.emit(f"fcmp one float {highest.name}, {w.value(-math.inf, 'float').name}", "i1")

    def share(self, total: Val) -> Val:
        """One over the sum of a row; rows that see nothing stay zero."""
        w = self.w
        is_empty = w.emit(f"fcmp oeq float {total.name}, {w.value(0.0, 'float').name}", "i1")
        return self.reciprocal(w.select(is_empty, 1.0, total, "float"))

    def capped(self, score: Val, cap: float) -> Val:
        """A product of query and key under a softcap, as the power of 2 that it stands for."""
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which has no cancellation that counts beside 1.
        power = self.exp2(score * (2 * math.log2(math.e) * self.attention.scale / cap))
        top = cap * math.log2(math.e)
        return self.reciprocal(power + 1.0) * (-2 * top) + top
