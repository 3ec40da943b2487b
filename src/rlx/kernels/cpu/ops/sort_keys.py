"""Numbers as integers in the same order: what sorting and searching kernels compare.

Equal numbers have equal keys, 0.0 and -0.0 too. NaN is wherever a kernel wants it: see `is_nan`.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, Const, Value
from rlx.ops.lowered.radix_passes import key_dtype as key_dtype


def order_key(k: KernelBuilder, x: Value) -> Value:
    """Integers that compare as the numbers do, those of NaN excepted."""
    dtype = key_dtype(x.dtype)
    if x.dtype in HALVES:
        x = k.cast(x, DType.F32)
    if x.dtype not in FLOATS:
        return k.cast(x, dtype)
    # Adding 0 makes 0.0 of -0.0. Negative floats are in reverse order as integers, but for the sign.
    bits = k.bitcast(x + 0.0, dtype)
    return bits ^ ((bits >> (8 * dtype.size_bytes - 1)) & largest(k, bits))


def is_nan(k: KernelBuilder, x: Value) -> Value | None:
    """Where a number is NaN; None if it never is."""
    if x.dtype in HALVES:
        x = k.cast(x, DType.F32)
    return k.ne(x, x) if x.dtype in FLOATS else None


def largest(k: KernelBuilder, key: Value) -> Const:
    """The largest key: no number but NaN has it among those of floats."""
    bits = 8 * key.dtype.size_bytes
    return k.const((1 << (bits - key.dtype.is_signed)) - 1, key.type)


def smallest(k: KernelBuilder, key: Value) -> Const:
    bits = 8 * key.dtype.size_bytes
    return k.const(-(1 << (bits - 1)) if key.dtype.is_signed else 0, key.type)


def sort_key(k: KernelBuilder, x: Value, descending: bool) -> Value:
    """Keys of which the smallest comes first; NaN comes last either way."""
    key = order_key(k, x)
    nan = is_nan(k, x)
    if descending:
        key = ~key
    return key if nan is None else k.select(nan, largest(k, key), key)
