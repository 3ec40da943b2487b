"""Rows of a quantised table: `DequantGather`, the embedding lookup of a model whose weights stay packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Dims, Shape, Size
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.quant.quantized_weights import DequantMoEWeights
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.indexing import clipped_ids, require_ids
from rlx.ops.shape.movement import reshape, transpose
from rlx.quant.schemes import QuantScheme, dequantize_blocks

__all__ = ["DequantGather", "dequant_gather"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("dequant_gather")
class DequantGather(Op):
    """y[i.., :] = row idx[i..] of a table whose rows of `k` elements are stored as GGUF blocks; y is f32.

    The packed operand is the one that `DequantMatMul` takes for the transposed table, so that tied embeddings are
    stored once. Ids that the program computed are clipped (negative ones count from the end).
    """

    scheme: QuantScheme
    k: int

    jvp = NoRule("stored bytes have no derivative; train float weights")
    vjp = jvp

    def infer(self, packed: Shape, idx: Shape) -> Shape:
        require_ids(self, idx)
        self._row_count(packed)
        return Shape((*idx.dims, self.k), DType.F32)

    def index_operands(self, packed: Shape, idx: Shape) -> dict[int, Dims]:
        return {1: (self._row_count(packed),)}

    def _row_count(self, packed: Shape) -> int:
        if not self.scheme.is_gguf or self.k < 1:
            raise self.fail(f"needs a GGUF scheme such as gguf_q4k and a positive k, got {self.scheme} and {self.k}")
        row = self.scheme.packed_bytes(self.k, 1)
        if packed.dtype.size_bytes != 1 or not packed.is_static:
            raise self.fail(f"needs packed rows of one-byte elements (u8), got {packed}")
        count = int(np.prod(packed.static_dims))
        if count == 0 or count % row:
            raise self.fail(f"{packed} is not a table of {self.scheme} rows of {self.k} elements in {row} bytes")
        return count // row

    def eval(self, packed: Array, idx: Array) -> Array:
        rows = np.ascontiguousarray(packed).reshape(self._row_count(Shape(packed.shape, DType.U8)), -1)
        chosen = rows[clipped_ids(idx, len(rows))]
        return dequantize_blocks(self.scheme, chosen).reshape(*idx.shape, self.k)

    def decompose(self, packed: Any, idx: Any) -> Any:
        rows = self._row_count(packed.type)
        table = reshape(DequantMoEWeights(self.scheme, 1, self.k, rows)(packed), (self.k, rows))
        return gather(transpose(table), idx)

    def form_for(self, rule: str, active: Sequence[bool]) -> Any:
        """Tables that differ within a batch are decoded first."""
        return self.decompose if rule == "batch" and active[0] else None

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme in (QuantScheme.GgufQ4_1, QuantScheme.GgufQ8_0, QuantScheme.GgufQ4K):
            k = scheme.gguf_block_size or 0
            count = scheme.packed_bytes(k, 3)
            table = spec(count, dtype="u8", values=(np.arange(count) * 37 + 11) % 256 & 0xBB)
            yield sample(cls(scheme, k), table, spec(2, 2, dtype="i32", values=[[0, 2], [1, 2]]), dtypes=("u8",))
            yield sample(cls(scheme, k), table, spec("B", dtype="i32", low=0, high=2), dtypes=("u8",), B=3)


def dequant_gather(packed: Any, idx: Any, *, scheme: QuantScheme | str, k: int) -> Any:
    """Rows of a packed table of GGUF blocks, as f32; see `DequantGather`.

    >>> dequant_gather(np.zeros((3, 34), np.uint8), np.array([2, 0]), scheme="gguf_q8_0", k=32).shape
    (2, 32)
    """
    return DequantGather(QuantScheme.of(scheme), k)(packed, idx)
