"""Products with quantised weights: `DequantMatMul`, `DequantGroupedMatMul`, and `DequantMoEWeights`, which decodes
them.

What the stored bytes mean is defined in `rlx.quant.schemes`. Engines decode inside their matmul kernels; the
decompositions here decode first and multiply afterwards. int8, int4, FP8 and NVFP4 weights decode by elementwise ops.
The block formats of GGUF do not: `DequantMoEWeights` is their primitive, and the products with GGUF weights decompose
to it.

Stored codes have no derivative. x has one, and so have the scales and zero points that are float operands, so that
they can be tuned after quantisation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import Dim, product, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Dims, Shape, Size
from rlx.ops.define.operands import convert, require_dtype, require_float, require_rank
from rlx.ops.define.rules import add_tangents, put_batch_first
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.linalg.contraction import GroupedMatMul, matmul
from rlx.ops.pointwise.arithmetic import and_, shift_right_logical
from rlx.ops.pointwise.bits import bitcast
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import neg
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.indexing import clipped_ids, require_ids
from rlx.ops.shape.movement import expand, expand_dims, flatten, narrow, pad, reshape, swapaxes, transpose
from rlx.quant.nvfp4 import FP4_E2M1_LUT, fp8_e4m3_scale_to_f32
from rlx.quant.schemes import QuantKind, QuantScheme, dequantize_matrix

__all__ = [
    "DequantGroupedMatMul",
    "DequantMatMul",
    "DequantMoEWeights",
    "dequant_grouped_matmul",
    "dequant_matmul",
    "dequant_moe_weights",
]

Array = np.ndarray[Any, np.dtype[Any]]

_FP8_DTYPES = {QuantKind.Fp8E4m3: DType.F8E4M3, QuantKind.Fp8E5m2: DType.F8E5M2}


def _inner_size(op: Op, x: Shape) -> int:
    if x.rank == 0 or isinstance(x.dims[-1], Dim):
        raise op.fail(f"the last axis of x is the inner size k and must be fixed, got {x}")
    return x.dims[-1]


def _byte_count(op: Op, packed: Shape) -> int:
    require_dtype(
        op, packed.dtype.size_bytes == 1 and packed.is_static, "packed weights of one-byte elements (u8)", packed
    )
    return math.prod(packed.static_dims)


def _gguf_row_bytes(op: Op, scheme: QuantScheme, k: int) -> int:
    """Bytes of one row of k elements."""
    block = scheme.block_format
    if block is None:
        raise op.fail(f"needs a GGUF scheme such as gguf_q4k, got {scheme}")
    if k % block.elements:
        raise op.fail(f"{scheme} stores blocks of {block.elements} elements, which do not divide k={k}")
    return k // block.elements * block.bytes


@op("dequant_matmul")
class DequantMatMul(Op):
    """y = x · W, where W[k, n] is stored as `scheme` says; see `rlx.quant.schemes.dequantize_matrix`.

    Operands: x[.., k], the packed weights, and for the formats that keep them apart the scales and the zero points
    (NVFP4: the global scale); an operand without elements counts as absent. GGUF weights are stored as n rows of k.
    `n` may be left out where the operands tell it. W is f32; the sum is held in f32 (f64 for f64) and has x's dtype.
    """

    is_blas = True
    is_heavy = True

    scheme: QuantScheme
    n: int | None = None

    def check(self) -> None:
        if self.n is not None and self.n < 0:
            raise self.fail(f"n must not be negative, got {self.n}")

    def infer(self, x: Shape, w: Shape, scale: Shape | None = None, zp: Shape | None = None) -> Shape:
        require_float(self, x)
        k, count = _inner_size(self, x), _byte_count(self, w)
        n = self._columns(k, count, w, scale)
        wanted = self.scheme.packed_bytes(k, n)
        if count != wanted:
            raise self.fail(f"a {self.scheme} weight [{k}, {n}] has {wanted} bytes, got {w}")
        if self.scheme.is_gguf:
            if scale is not None or zp is not None:
                raise self.fail(f"{self.scheme} keeps its scales inside the blocks; give x and the packed bytes only")
            return x.with_dims((*x.dims[:-1], n))
        block = self.scheme.block_size
        groups = -(-k // block) * n if block else n
        self._require_count("scales", scale, groups, needed=self.scheme.has_scale)
        what = "global scales" if self._is_nvfp4 else "zero points"
        self._require_count(what, zp, 1 if self._is_nvfp4 else groups, needed=self.scheme.has_zero_point)
        return x.with_dims((*x.dims[:-1], n))

    def _columns(self, k: int, count: int, w: Shape, scale: Shape | None) -> int:
        """n: declared, or the second axis of the weights or scales, or what the byte count leaves (GGUF)."""
        if self.n is not None:
            return self.n
        if self.scheme.is_gguf:
            row = _gguf_row_bytes(self, self.scheme, k)
            return count // row if row else 0
        if self.scheme.bits_per_element == 8 and w.rank == 2:
            return w.static_dims[1]
        if scale is not None and scale.rank == 2:
            return scale.static_dims[1]
        raise self.fail(f"cannot tell the number of columns from {w}; give n")

    def _require_count(self, what: str, side: Shape | None, count: int, needed: bool) -> None:
        absent = side is None or side.element_count == 0
        if absent and needed and count:
            raise self.fail(f"{self.scheme} needs an operand with {count} {what}, got {side}")
        if not absent and side is not None and not require_equal(side.element_count, count, self.mnemonic):
            raise self.fail(f"{self.scheme} needs {count} {what} here, got {side}")

    def eval(self, x: Array, w: Array, scale: Array | None = None, zp: Array | None = None) -> Array:
        n = _last_size(self.infer(*_shapes(x, w, scale, zp)))
        weights = dequantize_matrix(self.scheme, x.shape[-1], n, w, scale, zp)
        return _product(x, weights)

    def decompose(self, x: Any, w: Any, scale: Any = None, zp: Any = None) -> Any:
        n, wide = self._columns_of(x, w, scale, zp), x.dtype.accumulator
        if x.dtype is DType.BF16 and self._fits_bf16:
            y = self._product_of_bf16(_rows(x, DType.BF16), n, w, scale, zp)
        else:
            y = matmul(_rows(x, wide), convert(self._weights(x.shape[-1], n, w, scale, zp), wide))
        return reshape(convert(y, x.dtype), (*x.shape[:-1], n))

    @property
    def _fits_bf16(self) -> bool:
        """Whether W without its float factor is exact in bf16: f8 has four significant bits at most, and a 4-bit float
        times such a scale six."""
        return self._is_nvfp4 or self.scheme.kind in _FP8_DTYPES

    def _product_of_bf16(self, rows: Any, n: int, w: Any, scale: Any, zp: Any) -> Any:
        """Tensor cores multiply bf16, and add up in f32; the factor meets the sums."""
        k = rows.shape[-1]
        unscaled = cast(_unscaled(self.scheme, k, n, w, scale, _present(zp)), DType.BF16)
        y = matmul(rows, unscaled, out_dtype=DType.F32)
        factor = _present(self._factor(scale, zp))
        return y if factor is None else y * _spread(cast(factor, DType.F32), self.scheme, k, n)

    def _columns_of(self, *operands: Any) -> int:
        return _last_size(self.infer(*_shapes(*operands)))

    def _weights(self, k: int, n: int, w: Any, scale: Any, zp: Any) -> Any:
        """W as f32[k, n]."""
        if self.scheme.is_gguf:
            return reshape(DequantMoEWeights(self.scheme, 1, k, n)(w), (k, n))
        unscaled = _unscaled(self.scheme, k, n, w, scale, _present(zp))
        factor = _present(self._factor(scale, zp))
        return unscaled if factor is None else unscaled * _spread(cast(factor, DType.F32), self.scheme, k, n)

    def _factor(self, scale: Any, zp: Any) -> Any:
        """The float operand that W is a multiple of."""
        return zp if self._is_nvfp4 else scale

    @property
    def _is_nvfp4(self) -> bool:
        return self.scheme.kind is QuantKind.Nvfp4Block

    @property
    def _subtracts_zero_points(self) -> bool:
        return self.scheme.kind in (QuantKind.Int8BlockAsym, QuantKind.Int4Block)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        x, w, *sides = primals
        dx, _, dscale, dzp = (*tangents, None, None)[:4]
        parts = []
        if dx is not None:
            parts.append(self(dx, w, *sides))
        if (dfactor := _present(self._factor(dscale, dzp))) is not None:
            parts.append(self(x, w, *((sides[0], dfactor) if self._is_nvfp4 else (dfactor, *sides[1:]))))
        if self._subtracts_zero_points and _present(dzp) is not None:
            wide = x.dtype.accumulator
            step, shift = (_in_blocks(convert(v, wide), self.scheme, x, y) for v in (sides[0], dzp))
            moved = matmul(transpose(_block_sums(transpose(_rows(x, wide)), self.scheme)), neg(step * shift))
            parts.append(convert(reshape(moved, y.shape), y.dtype))
        return functools.reduce(add_tangents, parts) if parts else None

    def vjp(self, ct: Any, y: Any, x: Any, w: Any, *sides: Any) -> Any:
        scale, zp = (*sides, None, None)[:2]
        k, n, wide = x.shape[-1], y.shape[-1], x.dtype.accumulator
        rows, upstream = _rows(x, wide), _rows(ct, wide)
        weights = convert(self._weights(k, n, w, scale, zp), wide)
        dx = convert(reshape(matmul(upstream, transpose(weights)), x.shape), x.dtype)
        dfactor = dzero = None
        if (factor := _present(self._factor(scale, zp))) is not None:
            unscaled = convert(_unscaled(self.scheme, k, n, w, scale, _present(zp)), wide)
            total = _unspread(matmul(transpose(rows), upstream) * unscaled, self.scheme)
            dfactor = convert(reshape(total, factor.shape), factor.dtype)
        if self._subtracts_zero_points and _present(zp) is not None:
            # Zero points are shared by the rows of a block, so x is summed over them before it meets the cotangent.
            total = matmul(_block_sums(transpose(rows), self.scheme), upstream)
            dzero = -total * _in_blocks(convert(scale, wide), self.scheme, x, y)
            dzero = convert(reshape(dzero, zp.shape), zp.dtype)
        cotangents = (None, dfactor) if self._is_nvfp4 else (dfactor, dzero)
        return dx, None, *cotangents[: len(sides)]

    def form_for(self, rule: str, active: Sequence[bool]) -> Any:
        """Weights that differ within a batch are decoded before they are multiplied."""
        return self.decompose if rule == "batch" and any(active[1:]) else None

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme in (s for s in map(_scheme_of, QuantKind) if s.is_gguf):
            k = scheme.gguf_block_size or 0
            yield sample(cls(scheme), spec(2, k), _bytes_spec(scheme, k, 3), dtypes=("f32", "f64"))
        eight, four = QuantScheme.int8_block(4), QuantScheme.int4_block(4)
        asym, scales, zeros = QuantScheme.int8_block_asym(4), spec(2, 3, dtype="f32"), spec(2, 3, dtype="f32")
        codes = spec(7, 3, dtype="i8", low=-128, high=127)
        # W is an f32 function of f32 operands: differences in f64 would only show its rounding.
        floats = ("f16", "bf16", "f32")
        yield sample(cls(eight), spec(2, 7), codes, scales, dtypes=floats)
        yield sample(cls(asym), spec(2, 7), codes, scales, zeros, dtypes=floats)
        yield sample(cls(asym), spec("B", "S", 7), codes, scales, zeros, dtypes=floats, B=2, S=3)
        yield sample(cls(four), spec(2, 7), _bytes_spec(four, 7, 3), scales, dtypes=floats)
        yield sample(cls(four, 3), spec(7), _bytes_spec(four, 7, 3), scales, zeros, dtypes=floats)
        yield sample(cls(four, 3), spec(0, 7), _bytes_spec(four, 7, 3), scales, spec(0, dtype="f32"), dtypes=floats)
        for scheme in (QuantScheme.Fp8E4m3, QuantScheme.Fp8E5m2):
            yield sample(cls(scheme, 3), spec(2, 7), _bytes_spec(scheme, 7, 3))
            yield sample(cls(scheme, 3), spec(2, 7), _bytes_spec(scheme, 7, 3), spec(3, dtype="f32"), dtypes=floats)
        nvfp4 = QuantScheme.Nvfp4Block
        steps = spec(2, 3, dtype="u8", values=[[0x38, 0x40, 0x7F], [0x30, 0x01, 0x39]])
        yield sample(cls(nvfp4), spec(2, 20), _bytes_spec(nvfp4, 20, 3), steps, spec(1, dtype="f32"), dtypes=floats)
        yield sample(cls(nvfp4), spec(2, 20), _bytes_spec(nvfp4, 20, 3), steps)


@op("dequant_moe_weights")
class DequantMoEWeights(Op):
    """f32[experts, k, n] from the GGUF bytes of `experts` matrices, each stored as n rows of k elements."""

    is_blas = True
    primitive = True
    is_heavy = True
    jvp = NoRule("stored bytes have no derivative; train float weights, or scales beside the codes (dequant_matmul)")
    vjp = jvp

    scheme: QuantScheme
    experts: int
    k: int
    n: int

    def check(self) -> None:
        if min(self.experts, self.k, self.n) < 0:
            raise self.fail(f"sizes must not be negative, got experts={self.experts}, k={self.k}, n={self.n}")

    def infer(self, packed: Shape) -> Shape:
        wanted = self.experts * self.n * _gguf_row_bytes(self, self.scheme, self.k)
        if _byte_count(self, packed) != wanted:
            raise self.fail(
                f"{self.experts} {self.scheme} matrices [{self.k}, {self.n}] have {wanted} bytes, got {packed}"
            )
        return Shape((self.experts, self.k, self.n), DType.F32)

    def eval(self, packed: Array) -> Array:
        slab = self.scheme.packed_bytes(self.k, self.n)
        slabs = np.ascontiguousarray(packed).reshape(self.experts, slab)
        result = np.empty((self.experts, self.k, self.n), np.float32)
        for expert, codes in enumerate(slabs):
            result[expert] = dequantize_matrix(self.scheme, self.k, self.n, codes)
        return result

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        (packed,) = operands
        if isinstance(size, Dim):
            raise self.fail(f"stored weights have a fixed size, a batch of {size} of them has not; bind it first")
        weights = self.replace(experts=size * self.experts)(packed)
        return reshape(weights, (size, self.experts, self.k, self.n))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme in (QuantScheme.GgufQ4_0, QuantScheme.GgufQ4K, QuantScheme.GgufQ6K):
            k = scheme.gguf_block_size or 0
            yield sample(cls(scheme, 2, k, 3), _bytes_spec(scheme, k, 6), dtypes=("u8",))
        yield sample(cls("gguf_q8_0", 0, 32, 3), spec(0, dtype="u8"), dtypes=("u8",))


@op("dequant_grouped_matmul")
class DequantGroupedMatMul(Op):
    """y[i] = x[i] · W[idx[i]] with GGUF weights: x[M, k], the bytes of all experts one after the other, idx[M].

    Each expert is stored as n rows of k elements; their number E follows from the byte count. Ids outside of 0..E-1
    that the program computed are clipped (negative ones count from the end).
    """

    is_blas = True
    is_heavy = True

    linear_in = (0,)

    scheme: QuantScheme
    n: int

    def infer(self, x: Shape, packed: Shape, idx: Shape) -> Shape:
        require_float(self, x)
        require_rank(self, x, 2)
        self._experts(_inner_size(self, x), packed)
        require_ids(self, idx)
        if idx.rank != 1 or not require_equal(idx.dims[0], x.dims[0], self.mnemonic):
            raise self.fail(f"needs one expert index per row of x {x}, got {idx}")
        return x.with_dims((x.dims[0], self.n))

    def index_operands(self, x: Shape, packed: Shape, idx: Shape) -> dict[int, Dims]:
        return {2: (self._experts(_inner_size(self, x), packed),)}

    def _experts(self, k: int, packed: Shape) -> int:
        slab, count = self.n * _gguf_row_bytes(self, self.scheme, k), _byte_count(self, packed)
        if self.n < 1 or slab == 0 or count % slab or count == 0:
            raise self.fail(
                f"{packed} is not a stack of {self.scheme} matrices [{k}, {self.n}] of {slab} bytes; check n and k"
            )
        return count // slab

    def eval(self, x: Array, packed: Array, idx: Array) -> Array:
        k = x.shape[1]
        slabs = np.ascontiguousarray(packed).reshape(self._experts(k, Shape(packed.shape, DType.U8)), -1)
        chosen = clipped_ids(idx, len(slabs))
        result = np.empty((len(x), self.n), x.dtype)
        for expert in np.unique(chosen):
            rows = chosen == expert
            result[rows] = _product(x[rows], dequantize_matrix(self.scheme, k, self.n, slabs[expert]))
        return result

    def decompose(self, x: Any, packed: Any, idx: Any) -> Any:
        wide = x.dtype.accumulator
        return convert(GroupedMatMul()(convert(x, wide), self._weights(x, packed, wide), idx), x.dtype)

    def _weights(self, x: Any, packed: Any, dtype: DType) -> Any:
        """All experts, [E, k, n]."""
        k = x.shape[1]
        return convert(DequantMoEWeights(self.scheme, self._experts(k, packed.type), k, self.n)(packed), dtype)

    def vjp(self, ct: Any, y: Any, x: Any, packed: Any, idx: Any) -> Any:
        wide = x.dtype.accumulator
        dx = GroupedMatMul()(convert(ct, wide), swapaxes(self._weights(x, packed, wide), 1, 2), idx)
        return convert(dx, x.dtype), None, None

    def form_for(self, rule: str, active: Sequence[bool]) -> Any:
        """Weights that differ within a batch are decoded before they are multiplied."""
        return self.decompose if rule == "batch" and active[1] else None

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        x, packed, idx = operands
        x, idx = put_batch_first(x, batched[0], size), put_batch_first(idx, batched[2], size)
        rows = size * x.shape[1]
        y = self(reshape(x, (rows, x.shape[2])), packed, reshape(idx, (rows,)))
        return reshape(y, (size, x.shape[1], self.n))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        scheme = QuantScheme.GgufQ4_0
        stack = _bytes_spec(scheme, 32, 6)
        yield sample(cls(scheme, 3), spec(4, 32), stack, spec(4, dtype="i32", values=[1, 0, 1, 1]))
        yield sample(cls(scheme, 2), spec(4, 32), stack, spec(4, dtype="f32", values=[1.9, 0, -3, 2]), smooth=False)
        yield sample(cls(scheme, 3), spec("B", 32), stack, spec("B", dtype="i32", low=0, high=1), B=3)
        yield sample(cls(scheme, 3), spec(0, 32), stack, spec(0, dtype="i32"))


def _shapes(*values: Any) -> list[Any]:
    """The types of tensors or arrays; absent operands stay None."""
    return [None if v is None else Shape(v.shape, DType.of(v.dtype)) for v in values]


def _last_size(shape: Shape | tuple[Shape, ...]) -> int:
    assert isinstance(shape, Shape) and isinstance(shape.dims[-1], int)
    return shape.dims[-1]


def _present(operand: Any) -> Any:
    """None for an operand that is absent or has no elements."""
    return None if operand is None or operand.size == 0 else operand


def _product(x: Array, weights: Array) -> Array:
    """x · W in f64, rounded once to x's dtype."""
    with np.errstate(all="ignore"):
        return np.matmul(x.astype(np.float64), weights.astype(np.float64)).astype(x.dtype)


def _rows(x: Any, dtype: DType) -> Any:
    """x[.., k] as a matrix [m, k] of the given type."""
    return reshape(convert(x, dtype), (product(x.shape[:-1]), x.shape[-1]))


def _unscaled(scheme: QuantScheme, k: int, n: int, w: Any, scale: Any, zp: Any) -> Any:
    """f32[k, n]: W without its float factor, by elementwise ops; for the formats with scales beside the codes."""
    if scheme.kind in _FP8_DTYPES:
        return gather(_fp8_values(_FP8_DTYPES[scheme.kind]), reshape(bitcast(w, DType.U8), (k, n)))
    if scheme.kind is QuantKind.Nvfp4Block:
        steps = gather(fp8_e4m3_scale_to_f32(np.arange(256)), bitcast(scale, DType.U8))
        # Both numbers of a byte are looked up at once.
        pairs = flatten(gather(_FP4_PAIRS, flatten(bitcast(w, DType.U8))))
        return reshape(narrow(pairs, 0, 0, k * n), (k, n)) * _per_row(steps, scheme, k, n)
    if scheme.kind is QuantKind.Int4Block:
        weights = cast(_nibbles(w, k, n), DType.F32)
    else:
        weights = cast(reshape(bitcast(w, DType.I8), (k, n)), DType.F32)
    if zp is not None and scheme.kind is not QuantKind.Int8Block:
        weights = weights - _per_row(cast(zp, DType.F32), scheme, k, n)
    return weights


_FP4_PAIRS: Array = np.stack([np.tile(FP4_E2M1_LUT, 16), np.repeat(FP4_E2M1_LUT, 16)], axis=1)


def _fp8_values(dtype: DType) -> Array:
    """f32[256]: what each byte stands for."""
    codes: Array = np.arange(256, dtype=np.uint8)
    return codes.view(dtype.numpy).astype(np.float32)


def _spread(factor: Any, scheme: QuantScheme, k: int, n: int) -> Any:
    """The factor of each element of W: one per column (FP8), one for all (NVFP4), or one per column and block."""
    if scheme.kind in _FP8_DTYPES:
        return reshape(factor, (1, n))
    if scheme.kind is QuantKind.Nvfp4Block:
        return reshape(factor, ())
    return _per_row(factor, scheme, k, n)


def _unspread(values: Any, scheme: QuantScheme) -> Any:
    """The sum of values[k, n] over the elements that share a factor: the adjoint of `_spread`."""
    if scheme.kind in _FP8_DTYPES:
        return reduce_sum(values, (0,))
    if scheme.kind is QuantKind.Nvfp4Block:
        return reduce_sum(values, (0, 1))
    return _block_sums(values, scheme)


def _nibbles(w: Any, k: int, n: int) -> Any:
    """u8[k, n] from two codes per byte, low nibble first in flat order."""
    codes = flatten(bitcast(w, DType.U8))
    pairs = flatten(and_(shift_right_logical(expand_dims(codes, -1), np.array([0, 4], np.uint8)), np.uint8(15)))
    return reshape(narrow(pairs, 0, 0, k * n), (k, n))


def _in_blocks(side: Any, scheme: QuantScheme, x: Any, y: Any) -> Any:
    """A side operand of x[.., k] · W = y[.., n] as [groups, n], whatever its own shape."""
    return reshape(side, (-(-x.shape[-1] // scheme.block_size), y.shape[-1]))


def _per_row(side: Any, scheme: QuantScheme, k: int, n: int) -> Any:
    """[k, n] from one value per column and `block_size` rows."""
    size = scheme.block_size
    groups = -(-k // size)
    repeated = reshape(expand(reshape(side, (groups, 1, n)), (groups, size, n)), (groups * size, n))
    return narrow(repeated, 0, 0, k)


def _block_sums(values: Any, scheme: QuantScheme) -> Any:
    """[groups, n] from values[k, n]: the sum over the rows of each block, the adjoint of `_per_row`."""
    (k, n), size = values.shape, scheme.block_size
    groups = -(-k // size)
    whole = pad(values, 0.0, high=(groups * size - k, 0))
    return reduce_sum(reshape(whole, (groups, size, n)), (1,))


def _scheme_of(kind: QuantKind) -> QuantScheme:
    """A scheme of each kind, for samples."""
    sizes = {QuantKind.Int8Block: 4, QuantKind.Int8BlockAsym: 4, QuantKind.Int4Block: 4, QuantKind.Nvfp4Block: 16}
    return QuantScheme(kind, sizes.get(kind, 0))


def _bytes_spec(scheme: QuantScheme, k: int, n: int) -> Spec:
    """Packed bytes of a [k, n] matrix whose scales, wherever they lie in a block, are finite and not huge."""
    count = scheme.packed_bytes(k, n)
    return spec(count, dtype="u8", values=(np.arange(count) * 37 + 11) % 256 & 0xBB)


def dequant_matmul(
    x: Any, w: Any, scale: Any = None, zp: Any = None, *, scheme: QuantScheme | str, n: int | None = None
) -> Any:
    """x · W with W stored as `scheme` says; see `DequantMatMul`. For NVFP4 `zp` is the global scale."""
    operands = [x, w]
    if scale is not None or zp is not None:
        operands.append(np.zeros(0, np.float32) if scale is None else scale)
    if zp is not None:
        operands.append(zp)
    return DequantMatMul(QuantScheme.of(scheme), n)(*operands)


def dequant_grouped_matmul(x: Any, packed: Any, idx: Any, *, scheme: QuantScheme | str, n: int) -> Any:
    """x[i] · W[idx[i]] for each row, W stored as GGUF blocks; see `DequantGroupedMatMul`."""
    return DequantGroupedMatMul(QuantScheme.of(scheme), n)(x, packed, idx)


def dequant_moe_weights(packed: Any, *, scheme: QuantScheme | str, experts: int, k: int, n: int) -> Any:
    """f32[experts, k, n] from GGUF bytes; see `DequantMoEWeights`.

    >>> dequant_moe_weights(np.zeros(68, np.uint8), scheme="gguf_q8_0", experts=2, k=32, n=1).shape
    (2, 32, 1)
    """
    return DequantMoEWeights(QuantScheme.of(scheme), experts, k, n)(packed)
