"""GGUF weights in panels: `QuantPanels` lays them out, `PanelMatMul` and `PanelGather` read them.

The compiler writes `dequant_matmul` and `dequant_gather` of stored weights in this form, so that the layout is made
once, when weights are set, and serves products of any number of rows and lookups. `rlx.quant.panels` says what
panels hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import convert, require_dtype, require_float, same_graph
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.linalg.contraction import matmul
from rlx.ops.shape.creation import iota
from rlx.ops.shape.indexing import clipped_ids, require_ids
from rlx.ops.shape.movement import narrow, reshape
from rlx.quant.panels import PANEL_ROWS, PanelFormat, pack_rows, unpack_rows
from rlx.quant.schemes import QuantScheme

__all__ = ["PanelGather", "PanelMatMul", "QuantPanels"]

Array = np.ndarray[Any, np.dtype[Any]]

INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use dequant_matmul")
# Panels are packed in pieces of this many elements, so that the intermediates stay small.
_PIECE_ELEMENTS = 1 << 21
# How many elements of a weight the gradient of a product has as floats at a time: 16 MiB.
_DECODED_ELEMENTS = 1 << 22


class PanelOp(Op):
    """What the ops on panels share: a scheme that has them, and its sizes."""

    lowered = True
    jvp: ClassVar[Any] = INTERNAL
    vjp: ClassVar[Any] = INTERNAL
    batch = INTERNAL

    scheme: QuantScheme

    def layout(self, k: int) -> PanelFormat:
        found = self.scheme.panel_format
        if found is None:
            raise self.fail(f"{self.scheme} has no panels; products decode it as a whole")
        elements = self.scheme.gguf_block_size or 1
        if k < 1 or k % elements:
            raise self.fail(f"{self.scheme} stores blocks of {elements} elements, which do not divide k={k}")
        return found

    def panels(self, k: int, n: int, count: int = 1) -> Shape:
        """The type of the panels of `count` matrices of n rows of k elements; each begins with a panel of its own."""
        if n < 0 or count < 1:
            raise self.fail(f"panels hold at least one matrix of n >= 0 rows, got {count} of {n} rows")
        return Shape((count * -(-n // PANEL_ROWS), self.layout(k).panel_bytes(k)), DType.U8)

    def require_panels(self, panels: Shape, k: int, n: int, count: int = 1) -> None:
        wanted = self.panels(k, n, count)
        if panels != wanted:
            what = f"{n} rows" if count == 1 else f"{count} times {n} rows"
            raise self.fail(f"{what} of {k} elements as {self.scheme} are panels {wanted}, got {panels}")


@op("quant_panels")
class QuantPanels(PanelOp):
    """The panels of a GGUF weight, given as n rows of k elements: u8[ceil(n/16), bytes]; or of `count` such weights,
    one after the other."""

    primitive = True

    k: int
    n: int
    count: int = 1

    def infer(self, packed: Shape) -> Shape:
        require_dtype(
            self, packed.dtype.size_bytes == 1 and packed.is_static, "packed bytes (u8) of a fixed size", packed
        )
        result = self.panels(self.k, self.n, self.count)
        wanted = self.count * self.scheme.packed_bytes(self.k, self.n)
        if packed.element_count != wanted:
            times = f"{self.count} times " if self.count != 1 else ""
            raise self.fail(f"{times}{self.n} rows of {self.k} as {self.scheme} have {wanted} bytes, got {packed}")
        return result

    def eval(self, packed: Array) -> Array:
        layout = self.layout(self.k)
        block = self.scheme.gguf_block_bytes or 1
        matrices = np.ascontiguousarray(packed).view(np.uint8).reshape(self.count, self.n, -1)
        result = np.empty(self.panels(self.k, self.n, self.count).static_dims, np.uint8)
        piece = max(1, _PIECE_ELEMENTS // (self.k * PANEL_ROWS))
        for rows, panels in zip(matrices, result.reshape(self.count, -1, result.shape[1])):
            for first in range(0, len(panels), piece):
                part = rows[first * PANEL_ROWS : (first + piece) * PANEL_ROWS]
                panels[first : first + piece] = pack_rows(layout, part.reshape(-1, block), len(part), self.k)
        return result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme, k, n in _SAMPLES:
            yield sample(cls(scheme, k, n), sample_bytes(scheme.packed_bytes(k, n)), dtypes=("u8",))
        yield sample(cls(scheme, k, n, 2), sample_bytes(2 * scheme.packed_bytes(k, n)), dtypes=("u8",))


@op("panel_matmul")
class PanelMatMul(PanelOp):
    """y = x · W with the panels of W[k, n]; the sum is held in f32 (f64 for f64) and has x's dtype."""

    primitive = True
    jvp = None
    linear_in = (0,)

    n: int

    def infer(self, x: Shape, panels: Shape) -> Shape:
        require_float(self, x)
        if x.rank == 0 or not isinstance(x.dims[-1], int):
            raise self.fail(f"the last axis of x is the inner size k and must be fixed, got {x}")
        self.require_panels(panels, x.dims[-1], self.n)
        return x.with_dims((*x.dims[:-1], self.n))

    def eval(self, x: Array, panels: Array) -> Array:
        weights = decoded(self.layout(x.shape[-1]), panels, self.n, x.shape[-1])
        with np.errstate(all="ignore"):
            return np.asarray(x.astype(np.float64) @ weights.T.astype(np.float64)).astype(x.dtype)

    def vjp(self, ct: Any, y: Any, x: Any, panels: Any) -> Any:
        """The weights are decoded for it some rows at a time, so that those of a large vocabulary are never all there
        as floats."""
        k, wide = int(x.shape[-1]), x.dtype.accumulator
        upstream, dx = reshape(convert(ct, wide), (-1, self.n)), None
        piece = max(PANEL_ROWS, _DECODED_ELEMENTS // k // PANEL_ROWS * PANEL_ROWS)
        for first in range(0, self.n, piece):
            count = min(piece, self.n - first)
            with same_graph(panels):
                ids = iota((count,), DType.I32) + np.int32(first)
            rows = PanelGather(self.scheme, k, self.n)(panels, ids)
            part = matmul(narrow(upstream, 1, first, count), convert(rows, wide))
            dx = part if dx is None else dx + part
        return None if dx is None else convert(reshape(dx, x.shape), x.dtype), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme, k, n in _SAMPLES:
            panels = cls(scheme, n).panels(k, n).static_dims
            yield sample(cls(scheme, n), spec(2, k), sample_bytes(*panels), dtypes=("f32",))
        yield sample(cls(scheme, n), spec("B", "S", k), sample_bytes(*panels), dtypes=("f32", "f64", "bf16"), B=2, S=9)


@op("panel_gather")
class PanelGather(PanelOp):
    """y[i.., :] = row idx[i..] of n rows of k elements in panels, as f32; ids are clipped, negative ones count from the
    end."""

    primitive = True

    k: int
    n: int

    def infer(self, panels: Shape, idx: Shape) -> Shape:
        require_ids(self, idx)
        if self.n < 1:
            raise self.fail(f"there is nothing to look up in n={self.n} rows")
        self.require_panels(panels, self.k, self.n)
        return Shape((*idx.dims, self.k), DType.F32)

    def index_operands(self, panels: Shape, idx: Shape) -> dict[int, Dims]:
        return {1: (self.n,)}

    def eval(self, panels: Array, idx: Array) -> Array:
        rows = decoded(self.layout(self.k), panels, self.n, self.k)
        return np.asarray(rows[clipped_ids(idx, self.n)])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scheme, k, n in _SAMPLES:
            panels = cls(scheme, k, n).panels(k, n).static_dims
            ids = spec(2, 2, dtype="i32", values=[[0, n - 1], [1, 2]])
            yield sample(cls(scheme, k, n), sample_bytes(*panels), ids, dtypes=("u8",))
        yield sample(
            cls(scheme, k, n), sample_bytes(*panels), spec("B", dtype="i32", low=0, high=n - 1), dtypes=("u8",), B=3
        )


def decoded(layout: PanelFormat, panels: Array, n: int, k: int) -> Array:
    # A file may hold any bits: a scale of inf or NaN is data, not a reason to warn.
    with np.errstate(all="ignore"):
        return unpack_rows(layout, panels, n, k)


def sample_bytes(*dims: int) -> Spec:
    """Bytes among which no half is huge or not a number, wherever one may lie."""
    count = int(np.prod(dims))
    return spec(*dims, dtype="u8", values=((np.arange(count) * 37 + 11) % 256 & 0xBB).reshape(dims))


_SAMPLES: tuple[tuple[QuantScheme, int, int], ...] = (
    (QuantScheme.GgufQ4_1, 64, 3),
    (QuantScheme.GgufQ8_0, 96, 17),
    (QuantScheme.GgufQ5_0, 32, 4),
    (QuantScheme.GgufQ4K, 256, 5),
    (QuantScheme.GgufQ6K, 512, 3),
)
