"""What a target lacks, expressed by what it has: the last step before an emitter, and still loop IR.

Expanded for every target: math functions (`vector_math`), lane reductions, bf16 conversions, walks. Expanded where the
target's description says so: f16 conversions, rounding to integers. The result can be interpreted like any kernel.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from rlx.compile.claims.legalize import LegalizeError
from rlx.errors import BackendError
from rlx.ir.dtype import BYTE_FLOATS, DType
from rlx.kernels.ir.builder import Fold, KernelBuilder
from rlx.kernels.ir.loop_ir import (
    INDEX,
    Attr,
    Buffer,
    For,
    Kernel,
    Let,
    LoopKind,
    Operand,
    Statement,
    Value,
    ValueType,
    walk,
)
from rlx.kernels.ir.operations import MATH, REDUCTIONS
from rlx.kernels.ir.rewrite import copy_into
from rlx.kernels.machines import Machine
from rlx.kernels.math.exact_math import float_remainder
from rlx.kernels.math.vector_math import (
    copysign,
    erf,
    erfc,
    exp,
    exp_negative,
    expm1,
    float_format,
    log,
    log1p,
    normal_cdf,
    rounded,
    tanh,
)
from rlx.kernels.math.vector_pow import pow
from rlx.kernels.math.vector_trig import atan, cos, sin, tan


def legalize(kernel: Kernel, machine: Machine) -> Kernel:
    """The same kernel in operations that an emitter for the target takes; the kernel itself where it has no others."""
    builder = _LegalBuilder(kernel.name, machine)
    return kernel if all(map(builder.takes, walk(kernel.body))) else copy_into(kernel, builder)


class KernelRefused(LegalizeError):
    """A kernel that a machine cannot run, and why."""

    def __init__(self, reason: str) -> None:
        BackendError.__init__(self, reason)
        self.offenders = ()


def refuse_missing_types(kernel: Kernel, has_f64: bool) -> None:
    """For text: an error if a kernel computes in what a machine does not have, or has scalars that are no sizes."""
    buffers = [b for b in (*kernel.params, *kernel.arrays) if isinstance(b, Buffer)]
    named = [b.name for b in buffers if b.dtype is DType.F64]
    inside = any(isinstance(s, Let) and s.result.dtype is DType.F64 for s in walk(kernel.body))
    if not has_f64 and (named or inside):
        where = f"its {named[0]} is f64" if named else "it computes in f64"
        reason = f"kernel {kernel.name}: {where}, which this machine does not have; use f32, or the device cpu"
        raise KernelRefused(reason)
    for param in kernel.params:
        if isinstance(param, Value) and param.type != INDEX:
            raise KernelRefused(f"kernel {kernel.name}: the scalar parameter {param.name} is {param.type}, not a size")


class _LegalBuilder(KernelBuilder):
    """A builder that never appends an illegal operation; expansions pass through it too, so they may nest."""

    def __init__(self, name: str, machine: Machine) -> None:
        super().__init__(name)
        self.machine = machine
        self._share: tuple[Operand, Operand] = (0, 1)  # this block's number, and how many there are

    @contextmanager
    def loop_of(
        self, kind: LoopKind, name: str, start: Operand, stop: Operand, step: Operand = 1, init: Sequence[Value] = ()
    ) -> Iterator[Fold]:
        """A walk is a plain loop from the block's number in steps of the number of blocks."""
        if kind is LoopKind.WALK:
            kind, (start, step) = LoopKind.SERIAL, self._share
        with super().loop_of(kind, name, start, stop, step, init) as fold:
            if kind is LoopKind.PARALLEL:
                self._share = (fold.index, stop)
            yield fold

    def has_scale2(self, kind: ValueType) -> bool:
        size = kind.lanes * kind.dtype.size_bytes
        return self.machine.has_scale2 and (size in _VECTOR_SIZES or size % max(_VECTOR_SIZES) == 0)

    def has_f64(self) -> bool:
        return self.machine.has_f64

    def has_fma(self) -> bool:
        return self.machine.has_fma

    def takes(self, statement: Statement) -> bool:
        """Whether a statement is copied as it stands."""
        if isinstance(statement, Let):
            return self._expansion(statement.op, statement.args, statement.attr) is None
        return not (isinstance(statement, For) and statement.kind is LoopKind.WALK)

    def pure(self, op: str, args: tuple[Value, ...], attr: Attr = None) -> Value:
        expansion = self._expansion(op, args, attr)
        return super().pure(op, args, attr) if expansion is None else expansion(self, *args)

    def _expansion(self, op: str, args: tuple[Value, ...], attr: Attr) -> Callable[..., Value] | None:
        if op in _BY_EXP2 and self.machine.has_exp2 and args[0].dtype is DType.F32:
            return exp_by_exp2
        if op == "quotient" and not (self.machine.has_quick_division and args[0].dtype is DType.F32):
            return lambda k, a, b: a / b
        if op == "exp2" and not self.machine.has_exp2:
            return lambda k, x: k.op("exp", x * math.log(2.0))
        if op in MATH:
            return MATH_EXPANSIONS[op]
        if op in REDUCTIONS:
            return lambda k, vector: reduce_lanes(k, REDUCTIONS[op], vector)
        if op in _ROUNDING and not self.machine.has_rounding:
            return _ROUNDING[op]
        if op == "scale2":
            if not self.has_scale2(args[0].type):
                return scale2_by_factors
            return None if args[0].lanes * args[0].dtype.size_bytes in _VECTOR_SIZES else scale2_in_parts
        if op == "lookup":
            return None if args[0].lanes in self.machine.lookup_lanes else lookup_by_comparing
        if op == "byte_lookup":
            return None if args[0].lanes in self.machine.byte_lookup_lanes else byte_lookup_by_comparing(attr)
        if op == "dot4":
            return self._dot4_expansion(args)
        if op in _PAIRS:
            lanes = args[0].lanes // 4 if op == "byte_pairs" else args[0].lanes
            return None if lanes in self.machine.pair_lanes else _PAIRS[op]
        if op == "dot2":
            if args[0].dtype is DType.I32:
                return None if args[0].lanes in self.machine.pair_lanes else word_dot2_by_halves
            return None if args[0].lanes in self.machine.dot2_lanes else dot2_by_halves
        if op != "cast":
            return None
        source = args[0].dtype
        if source in BYTE_FLOATS:
            return byte_to_f32
        if attr in BYTE_FLOATS:
            assert isinstance(attr, DType)
            return partial(f32_to_byte, to=attr)
        if source is DType.F16 or attr is DType.F16:
            if self.machine.has_f16_conversion:
                return None
            if source is DType.F32:
                return f32_to_f16
            return f16_to_f32 if self.machine.keeps_subnormals else f16_to_f32_by_parts
        if source is DType.BF16:
            return bf16_to_f32
        return f32_to_bf16 if attr is DType.BF16 and not self.machine.has_bf16_conversion else None

    def _dot4_expansion(self, args: tuple[Value, ...]) -> Callable[..., Value] | None:
        total, first, _ = args
        is_signed = first.dtype is DType.I8
        if total.lanes not in self.machine.dot4_lanes or (is_signed and not self.machine.dot4_is_signed):
            return dot4_by_pairs
        return None if is_signed == self.machine.dot4_is_signed else dot4_by_signs


def dot4_by_signs(k: KernelBuilder, total: Value, a: Value, b: Value) -> Value:
    """128 is taken from the bytes without signs, and its products with the others are added again, in halves, since it
    is no byte with a sign itself."""
    signed = ValueType(DType.I8, a.lanes)
    half = k.const(64, signed)
    return k.dot4(k.dot4(k.dot4(total, k.bitcast(a ^ 128, signed), b), half, b), half, b)


def scale2_by_factors(k: KernelBuilder, x: Value, n: Value) -> Value:
    """Two factors, because 2**n itself may not be a number."""
    f = float_format(x)
    whole, _ = rounded(k, n)
    half = whole >> 1
    for part in (half, whole - half):
        x = x * k.bitcast((part + f.bias) << f.mantissa, x.dtype)
    return x


def exp_by_exp2(k: KernelBuilder, x: Value) -> Value:
    """2**(x log2 e) from the rounded product, times what its rounding lost."""
    x = k.max(k.min(x, 89.0), -104.0)
    power = x * _LOG2_E
    lost = k.fma(x, _LOG2_E_REST, k.fma(x, _LOG2_E, -power))
    return k.op("exp2", power) * k.fma(lost, math.log(2.0), 1.0)


def scale2_in_parts(k: KernelBuilder, x: Value, n: Value) -> Value:
    """A vector of several registers, register by register."""
    lanes = max(_VECTOR_SIZES) // x.dtype.size_bytes
    starts = range(0, x.lanes, lanes)
    parts = [k.op("scale2", *(k.shuffle(v, range(s, s + lanes)) for v in (x, n))) for s in starts]
    whole = parts[0]
    for part in parts[1:]:
        # Lanes of a shuffle are those of two vectors of one type.
        grown = k.shuffle(part, [i % lanes for i in range(whole.lanes)])
        whole = k.shuffle(whole, [*range(whole.lanes), *range(whole.lanes, whole.lanes + lanes)], grown)
    return whole


def lookup_by_comparing(k: KernelBuilder, table: Value, index: Value) -> Value:
    """Every lane of the table in turn, where the index is its number."""
    if table.lanes == 1:
        return table
    low = index & (table.lanes - 1)
    found = k.splat(k.extract(table, 0), table.lanes)
    for lane in range(1, table.lanes):
        found = k.select(k.eq(low, lane), k.splat(k.extract(table, lane), table.lanes), found)
    return found


def byte_lookup_by_comparing(table: Attr) -> Callable[[KernelBuilder, Value], Value]:
    """Every entry in turn, where the index is its number."""
    entries = [entry for entry in table if isinstance(entry, int)] if isinstance(table, tuple) else []

    def expand(k: KernelBuilder, index: Value) -> Value:
        low = index & 15
        found: Value = k.const(entries[0], index.type)
        for number, entry in enumerate(entries[1:], 1):
            found = k.select(k.eq(low, number), k.const(entry, index.type), found)
        return found

    return expand


def dot4_by_pairs(k: KernelBuilder, total: Value, a: Value, b: Value) -> Value:
    """Neighbours' products of 16 bits added two by two, which x86 has an instruction for, then the pairs."""

    def pairs(x: Value) -> list[Value]:
        """The lanes with even and with odd numbers."""
        return [k.shuffle(x, range(first, x.lanes, 2)) for first in (0, 1)]

    wide = [[k.cast(part, DType.I32) for part in pairs(k.cast(x, DType.I16))] for x in (a, b)]
    even, odd = (x * y for x, y in zip(*wide))
    first, second = pairs(even + odd)
    return total + (first + second)


def byte_pairs_by_halves(k: KernelBuilder, a: Value, b: Value) -> Value:
    """The lanes with even numbers and those with odd ones."""
    wide = [k.cast(x, DType.I32) for x in (a, b)]
    even, odd = (
        operator.mul(*(k.shuffle(x, range(first, x.lanes, 2)) if x.lanes > 2 else k.extract(x, first) for x in wide))
        for first in (0, 1)
    )
    return k.cast(k.max(k.min(even + odd, 2**15 - 1), -(2**15)), DType.I16)


def add_pairs_by_halves(k: KernelBuilder, total: Value, a: Value) -> Value:
    wide = k.cast(a, DType.I32)
    if total.lanes == 1:
        return total + (k.extract(wide, 0) + k.extract(wide, 1))
    even, odd = (k.shuffle(wide, range(first, wide.lanes, 2)) for first in (0, 1))
    return total + (even + odd)


_PAIRS: dict[str, Callable[..., Value]] = {"byte_pairs": byte_pairs_by_halves, "add_pairs": add_pairs_by_halves}


def dot2_by_halves(k: KernelBuilder, total: Value, a: Value, b: Value) -> Value:
    """Both halves of every word of 32 bits as f32, of which bf16 is the upper half."""
    words = [k.bitcast(x, ValueType(DType.I32, total.lanes)) for x in (a, b)]
    even = [k.bitcast(word << 16, DType.F32) for word in words]
    odd = [k.bitcast(word & -(1 << 16), DType.F32) for word in words]
    return k.fma(odd[0], odd[1], k.fma(even[0], even[1], total))


def word_dot2_by_halves(k: KernelBuilder, total: Value, a: Value, b: Value) -> Value:
    """The lower and the upper half of every word of 32 bits."""
    words = [k.bitcast(x, ValueType(DType.I32, total.lanes)) for x in (a, b)]
    low, high = (operator.mul(*halves) for halves in ([(w << 16) >> 16 for w in words], [w >> 16 for w in words]))
    return total + (low + high)


def reduce_lanes(k: KernelBuilder, op: str, vector: Value) -> Value:
    """Combine the first and second half of the lanes until one is left; an odd last lane waits for its turn."""
    while vector.lanes > 1:
        half, rest = divmod(vector.lanes, 2)
        low = k.shuffle(vector, range(half)) if half > 1 else k.extract(vector, 0)
        high = k.shuffle(vector, range(half, 2 * half)) if half > 1 else k.extract(vector, 1)
        combined = k.op(op, low, high)
        if rest:
            # Bring the waiting lane and the combined ones together: pad to one width, then pick.
            waiting = k.splat(k.extract(vector, 2 * half), max(half, 2))
            padded = k.splat(combined, 2) if half == 1 else combined
            combined = k.shuffle(padded, [*range(half), padded.lanes], waiting)
        vector = combined
    return vector


def bf16_to_f32(k: KernelBuilder, x: Value) -> Value:
    bits = k.cast(k.bitcast(x, DType.U16), DType.U32)
    return k.bitcast(bits << 16, DType.F32)


def f32_to_bf16(k: KernelBuilder, x: Value) -> Value:
    """Half to even on the low 16 bits; a NaN keeps its sign and is made quiet, so that no payload rounds to inf."""
    bits = k.bitcast(x, DType.U32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    quiet = (bits >> 16) | 0x40
    return k.bitcast(k.cast(k.select(k.ne(x, x), quiet, rounded), DType.U16), DType.BF16)


def byte_to_f32(k: KernelBuilder, x: Value) -> Value:
    """E5M2 is the upper byte of f16. E4M3 has one bit less of exponent, whose bias is 8 smaller, and no infinity: its
    largest code is NaN."""
    bits = k.cast(k.bitcast(x, DType.U8), DType.U16)
    if x.dtype is DType.F8E5M2:
        return k.cast(k.bitcast(bits << 8, DType.F16), DType.F32)
    size = bits & 0x7F
    number = k.cast(k.bitcast(((bits & 0x80) << 8) | (size << 7), DType.F16), DType.F32) * 256.0
    return k.select(k.eq(size, 0x7F), math.nan, number)


def f32_to_byte(k: KernelBuilder, x: Value, to: DType) -> Value:
    """Half to even. Below the smallest normal number adding one with the right last place rounds; what is too large
    becomes infinity, or NaN where there is none, and keeps its sign."""
    mantissa, bias, largest, beyond = (2, 15, 0x7B, 0x7C) if to is DType.F8E5M2 else (3, 7, 0x7E, 0x7F)
    bits = k.bitcast(x, DType.U32)
    size = bits & 0x7FFFFFFF
    cut = 23 - mantissa
    normal = ((size + (((size >> cut) & 1) + ((1 << (cut - 1)) - 1))) >> cut) - ((127 - bias) << mantissa)
    smallest = 2.0 ** (1 - bias)
    place = smallest * 2.0 ** (23 - mantissa)
    shifted = k.bitcast(k.bitcast(size, DType.F32) + place, DType.U32)
    tiny = shifted - int(np.float32(place).view(np.uint32))
    code = k.select(k.bitcast(size, DType.F32) < smallest, tiny, normal)
    code = k.select(code > largest, beyond, code)
    code = k.select(k.ne(x, x), 0x7F, code) | ((bits >> 24) & 0x80)
    return k.bitcast(k.cast(code, DType.U8), to)


def f16_to_f32(k: KernelBuilder, x: Value) -> Value:
    """The exponent is rebased by a multiplication, which also normalises denormals."""
    bits = k.cast(k.bitcast(x, DType.U16), DType.U32)
    magnitude = (bits & 0x7FFF) << 13
    scaled = k.bitcast(k.bitcast(magnitude, DType.F32) * 2.0**112, DType.U32)
    special = magnitude | 0x7F800000
    number = k.select(magnitude >= 0x0F800000, special, scaled)
    return k.bitcast(number | ((bits & 0x8000) << 16), DType.F32)


def f16_to_f32_by_parts(k: KernelBuilder, x: Value) -> Value:
    """The same where f32 has no denormals: those of f16 are whole numbers times 2**-24, and normal as f32."""
    bits = k.cast(k.bitcast(x, DType.U16), DType.U32)
    size = bits & 0x7FFF
    magnitude = size << 13
    denormal = k.bitcast(k.cast(size, DType.F32) * 2.0**-24, DType.U32)
    number = k.select(magnitude < 0x00800000, denormal, magnitude + (112 << 23))
    number = k.select(magnitude >= 0x0F800000, magnitude | 0x7F800000, number)
    return k.bitcast(number | ((bits & 0x8000) << 16), DType.F32)


def f32_to_f16(k: KernelBuilder, x: Value) -> Value:
    """Half to even: by carry for normal results, by an addition of 0.5 (whose last bit is 2**-24) for denormal ones."""
    bits = k.bitcast(x, DType.U32)
    magnitude = bits & 0x7FFFFFFF
    rebias = (112 << 23) - 0xFFF
    normal = ((magnitude + ((magnitude >> 13) & 1)) - rebias) >> 13
    denormal = k.bitcast(k.bitcast(magnitude, DType.F32) + 0.5, DType.U32) - 0x3F000000
    number = k.select(magnitude < 0x38800000, denormal, normal)
    number = k.select(magnitude >= 0x47800000, 0x7C00, number)
    number = k.select(magnitude > 0x7F800000, 0x7E00, number)
    return k.bitcast(k.cast(number | ((bits >> 16) & 0x8000), DType.U16), DType.F16)


def round_even(k: KernelBuilder, x: Value) -> Value:
    """Adding and subtracting 2**mantissa leaves an integer; larger numbers are integers already."""
    limit = 2.0**23 if x.dtype is DType.F32 else 2.0**52
    magnitude = k.abs(x)
    rounded = copysign(k, (magnitude + limit) - limit, x)
    return k.select(magnitude < limit, rounded, x)


def floor(k: KernelBuilder, x: Value) -> Value:
    near = round_even(k, x)
    return k.select(near > x, near - 1.0, near)


def ceil(k: KernelBuilder, x: Value) -> Value:
    near = round_even(k, x)
    return copysign(k, k.select(near < x, near + 1.0, near), x)


def trunc(k: KernelBuilder, x: Value) -> Value:
    return copysign(k, floor(k, k.abs(x)), x)


# log2 e as an f32, and what is left of it.
_LOG2_E = float(np.float32(math.log2(math.e)))
_LOG2_E_REST = math.log2(math.e) - _LOG2_E
_BY_EXP2 = ("exp", "exp_negative")

# Bytes of the vectors of machines that have `scale2`.
_VECTOR_SIZES = (16, 32, 64)

MATH_EXPANSIONS: dict[str, Callable[..., Value]] = {
    f.__name__: f for f in (exp, exp_negative, expm1, log, log1p, tanh, erf, erfc, normal_cdf, sin, cos, tan, atan, pow)
} | {"fmod": float_remainder}
_ROUNDING: dict[str, Callable[..., Value]] = {"round": round_even, "floor": floor, "ceil": ceil, "trunc": trunc}
