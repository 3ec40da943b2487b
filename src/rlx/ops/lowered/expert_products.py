"""Products with the experts of a stack of weights: `ExpertRoute` finds whose rows are whose, `ExpertMatMul` multiplies
them with GGUF weights, `Int8ExpertMatMul` too as whole numbers, `RoutedMatMul` with floats.

The compiler writes `dequant_grouped_matmul` and `grouped_matmul` in this form: rows of one expert become neighbours by
name, not in memory, and only the experts that some row has chosen are read. Products by the same ids share one route.

A false route, which only Python code can hand in, reads and writes nothing outside of the operands: its numbers are
clipped. Rows that it does not name are zeros here and undefined in kernels, which write each row once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import require_float, require_rank
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.int8_products import Int8BlockMatMul, Int8Blocks
from rlx.ops.lowered.quantized_panels import INTERNAL, PanelOp, decoded, sample_bytes
from rlx.ops.shape.indexing import clipped_ids, require_ids
from rlx.quant.panels import PANEL_ROWS
from rlx.quant.schemes import QuantScheme

__all__ = ["ExpertMatMul", "ExpertRoute", "Int8ExpertMatMul", "RoutedMatMul"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("expert_route")
class ExpertRoute(Op):
    """i32[2·experts + M] for ids[M]: the experts that are chosen, where the rows of each end, and all rows.

    Rows are listed expert by expert and in their order. Chosen experts ascend; for those that are not there, the lists
    are filled up with 0 and with M. Ids are clipped, negative ones count from the end.

    >>> ExpertRoute(3).eval(np.array([2, 0, 2, 2])).tolist()
    [0, 2, 0, 1, 4, 4, 1, 0, 2, 3]
    """

    primitive = True
    lowered = True
    jvp = INTERNAL
    vjp = INTERNAL
    batch = INTERNAL

    experts: int

    def check(self) -> None:
        if self.experts < 1:
            raise self.fail(f"needs at least one expert, got {self.experts}")

    def infer(self, ids: Shape) -> Shape:
        require_ids(self, ids)
        require_rank(self, ids, 1)
        return Shape((ids.dims[0] + 2 * self.experts,), DType.I32)

    def index_operands(self, ids: Shape) -> dict[int, Dims]:
        return {0: (self.experts,)}

    def eval(self, ids: Array) -> Array:
        numbers = clipped_ids(ids, self.experts)
        chosen, counts = np.unique(numbers, return_counts=True)
        route = np.zeros(2 * self.experts + len(ids), np.int32)
        experts, ends, rows = np.split(route, [self.experts, 2 * self.experts])
        experts[: len(chosen)] = chosen
        ends[:] = len(ids)
        ends[: len(chosen)] = np.cumsum(counts)
        rows[:] = np.argsort(numbers, kind="stable")
        return route

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = ("i32", "i64")
        yield sample(cls(3), spec(7, values=[1, 0, 2, 1, 1, -1, -3]), dtypes=ids)
        yield sample(cls(5), spec(4, values=[3, 3, 3, 3]), dtypes=ids)
        yield sample(cls(2), spec(0), dtypes=ids)
        yield sample(cls(4), spec("M", low=0, high=3), dtypes=ids, M=9)


@op("expert_matmul")
class ExpertMatMul(PanelOp):
    """y[i] = x[i] · W of the expert of row i, for x[M, k], the panels of `experts` matrices W[k, n] one after the
    other, and the route of the rows; the sum is held in f32 (f64 for f64) and has x's dtype."""

    primitive = True

    experts: int
    n: int

    def infer(self, x: Shape, panels: Shape, route: Shape) -> Shape:
        require_float(self, x)
        require_rank(self, x, 2)
        if not isinstance(x.dims[-1], int):
            raise self.fail(f"the last axis of x is the inner size k and must be fixed, got {x}")
        self.require_panels(panels, x.dims[-1], self.n, self.experts)
        _require_route(self, x, route, self.experts)
        return x.with_dims((x.dims[0], self.n))

    def eval(self, x: Array, panels: Array, route: Array) -> Array:
        layout = self.layout(x.shape[1])
        slabs = panels.reshape(self.experts, -1, panels.shape[1])
        y = np.zeros((len(x), self.n), x.dtype)
        for expert, rows in _groups(route, self.experts):
            y[rows] = _product(x[rows], decoded(layout, slabs[expert], self.n, x.shape[1]).T)
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for name, k, n in (("gguf_q4_1", 64, 3), ("gguf_q8_0", 96, 17), ("gguf_q6k", 256, 5)):
            made = cls(name, 3, n)
            stored = (3 * -(-n // PANEL_ROWS), made.layout(k).panel_bytes(k))
            ids: Array = np.array([2, 0, 2, 2, 0])
            route = spec(11, dtype="i32", values=ExpertRoute(3).eval(ids))
            yield sample(made, spec(5, k), sample_bytes(*stored), route, dtypes=("f32",))
        yield sample(made, spec(5, k), sample_bytes(*stored), route, dtypes=("f64", "bf16"))


@op("int8_expert_matmul")
class Int8ExpertMatMul(Op):
    """y[i] = x[i] · W of the expert of row i, for M rows x as `int8_blocks` stores them for codes of this type: what
    `int8_block_matmul` is for one matrix. The panels of `experts` matrices lie one after the other."""

    primitive = True
    lowered = True
    jvp = INTERNAL
    vjp = INTERNAL
    batch = INTERNAL

    scheme: QuantScheme
    experts: int
    n: int
    digits: int = 1

    @property
    def one(self) -> Int8BlockMatMul:
        """The product with the matrix of one expert."""
        return Int8BlockMatMul(self.scheme, self.n, self.digits)

    def infer(self, rows: Shape, panels: Shape, route: Shape) -> Shape:
        require_rank(self, rows, 2)
        require_rank(self, panels, 2)
        count = panels.dims[0]
        if self.experts < 1 or not isinstance(count, int) or count % self.experts:
            raise self.fail(f"needs the panels of at least one expert, each as many, got {panels}")
        _require_route(self, rows, route, self.experts)
        return self.one.infer(rows, panels.with_dims((count // self.experts, panels.dims[1])))

    def eval(self, rows: Array, panels: Array, route: Array) -> Array:
        slabs = panels.reshape(self.experts, -1, panels.shape[1])
        y = np.zeros((len(rows), self.n), np.float32)
        for expert, chosen in _groups(route, self.experts):
            y[chosen] = self.one.eval(rows[chosen], slabs[expert])
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(5)
        route = spec(11, dtype="i32", values=ExpertRoute(3).eval(np.array([2, 0, 2, 2, 0])))
        for scheme, k, n, digits in ((QuantScheme.GgufQ4_1, 64, 3, 2), (QuantScheme.GgufQ6K, 256, 20, 1)):
            codes = Int8Blocks(scheme, digits).eval(rng.standard_normal((5, k)).astype(np.float32))
            rows = spec(*codes.shape, dtype="u8", values=codes)
            layout = scheme.panel_format
            assert layout is not None
            stored = sample_bytes(3 * -(-n // PANEL_ROWS), layout.panel_bytes(k))
            yield sample(cls(scheme, 3, n, digits), rows, stored, route, dtypes=("u8",))


@op("routed_matmul")
class RoutedMatMul(Op):
    """y[i] = x[i] · w[e] for the expert e of row i, x[M, K], w[E, K, N] of the same float type, and the route of the
    rows; the sum is held in f32 (f64 for f64)."""

    primitive = True
    lowered = True
    jvp = INTERNAL
    vjp = INTERNAL
    batch = INTERNAL

    def infer(self, x: Shape, w: Shape, route: Shape) -> Shape:
        require_float(self, x)
        require_rank(self, x, 2)
        require_rank(self, w, 3)
        if (
            not isinstance(w.dims[0], int)
            or w.dims[0] < 1
            or w.dtype is not x.dtype
            or not require_equal(x.dims[1], w.dims[1], self.name)
        ):
            raise self.fail(f"needs x [M,K] and w [E,K,N] of the same type with a fixed E >= 1, got {x} and {w}")
        _require_route(self, x, route, w.dims[0])
        return x.with_dims((x.dims[0], w.dims[2]))

    def eval(self, x: Array, w: Array, route: Array) -> Array:
        y = np.zeros((len(x), w.shape[2]), x.dtype)
        for expert, rows in _groups(route, len(w)):
            y[rows] = _product(x[rows], w[expert])
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        route = spec(11, dtype="i32", values=ExpertRoute(3).eval(np.array([2, 0, 2, 2, 0])))
        for k, n in ((7, 3), (40, 70), (0, 4)):
            yield sample(cls(), spec(5, k), spec(3, k, n), route)


def _require_route(op: Op, x: Shape, route: Shape, experts: int) -> None:
    wanted = x.dims[0] + 2 * experts
    is_route = route.dtype is DType.I32 and route.rank == 1
    if not is_route or not require_equal(route.dims[0], wanted, op.mnemonic):
        raise op.fail(f"needs the route i32[{wanted}] of the rows of {x}, got {route}")


def _groups(route: Array, experts: int) -> Iterator[tuple[int, Array]]:
    """Experts that are chosen, and the rows of each. What a false route names is clipped, as kernels clip it."""
    chosen, ends, order = np.split(route, [experts, 2 * experts])
    count = len(order)
    ends = np.maximum.accumulate(np.clip(ends, 0, count))[: min(count, experts)]
    order = np.clip(order, 0, max(count - 1, 0))
    for expert, rows in zip(np.clip(chosen, 0, experts - 1), np.split(order, ends)):
        if len(rows):
            yield int(expert), rows


def _product(x: Array, w: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(np.float64) @ w.astype(np.float64)).astype(x.dtype)
