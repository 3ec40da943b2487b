"""The position of the largest or smallest element: the first of equals, and the first NaN before everything else.

Along the last axis the lanes of a vector search every so many elements; along others they are neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape, normalize_axis
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.sort_keys import is_nan, key_dtype, largest, order_key, smallest
from rlx.kernels.cpu.ops.strips import are_native, around, columns, is_one, whole_rows
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.reduction.reductions import ArgReduce, ArgReduceOp

_LAST = 2**31 - 1


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    return are_native(*operands)


@op_kernel(ArgReduce, kind="search", supports=_supports)
def arg_reduce(site: OpSite) -> None:
    search = Search(site)
    if is_one(search.sizes[2]):
        search.along_rows()
    else:
        search.along_columns()


class Search:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, ArgReduce)
        self.site, self.k, self.kind = site, site.k, site.op.kind
        (self.x,), (self.y,) = site.inputs, site.outputs
        axis = normalize_axis(site.op.axis, len(self.x.dims), site.op.mnemonic)
        self.sizes = around(self.k, self.x, axis)
        self.key_dtype = key_dtype(self.x.shape.dtype)

    def key(self, x: Value) -> Value:
        """What is searched for has the largest key."""
        k = self.k
        key, nan = order_key(k, x), is_nan(k, x)
        if self.kind is ArgReduceOp.ArgMin:
            key = ~key
        return key if nan is None else k.select(nan, largest(k, key), key)

    def start(self, lanes: int) -> tuple[Value, Value]:
        """Nothing is smaller; should nothing be larger either, the first element is the one."""
        k = self.k
        lowest = smallest(k, k.const(0, ValueType(self.key_dtype, lanes)))
        return lowest, k.const(0, ValueType(DType.I32, lanes))

    def better(self, so_far: Sequence[Value], key: Value, at: Value) -> tuple[Value, Value]:
        best, place = so_far
        is_better = key > best
        return self.k.select(is_better, key, best), self.k.select(is_better, at, place)

    def along_columns(self) -> None:
        k = self.k
        _, length, inner = self.sizes

        def column(outer: Value, i: Value, lanes: int, mask: Value | None) -> None:
            base = outer * length * inner + i
            with k.fold("j", 0, length, init=self.start(lanes)) as f:
                key = self.key(k.load(self.x.buffer, base + f.index * inner, lanes=lanes, mask=mask))
                f.next(*self.better(f.values, key, k.splat(k.cast(f.index, DType.I32), lanes)))
            k.store(self.y.buffer, outer * inner + i, f.results[1], mask=mask)

        dtypes = [self.x.shape.dtype, self.key_dtype, DType.I32]
        columns(k, self.site.machine, dtypes, self.sizes, column)

    def along_rows(self) -> None:
        k = self.k
        rows, length, _ = self.sizes
        lanes = self.site.machine.lanes(self.key_dtype)
        with whole_rows(k, rows, length) as row:
            base = row * length
            best, place = self.start(1)
            if lanes > 1:
                best, place = self.whole_vectors(base, length, lanes)
            with k.fold("j", length // lanes * lanes, length, init=(best, place)) as f:
                key = self.key(k.load(self.x.buffer, base + f.index))
                f.next(*self.better(f.values, key, k.cast(f.index, DType.I32)))
            k.store(self.y.buffer, row, f.results[1])

    def whole_vectors(self, base: Value, length: Value, lanes: int) -> tuple[Value, Value]:
        """The best of all elements but the last few, and the first place that has it."""
        k = self.k
        with k.fold("v", 0, length // lanes * lanes, lanes, init=self.start(lanes)) as f:
            key = self.key(k.load(self.x.buffer, base + f.index, lanes=lanes))
            places = k.splat(k.cast(f.index, DType.I32), lanes) + k.iota(DType.I32, lanes)
            f.next(*self.better(f.values, key, places))
        keys, places = f.results
        best = k.reduce("max", keys)
        return best, k.reduce("min", k.select(k.eq(keys, k.splat(best, lanes)), places, _LAST))
