"""`SeenKeys`: how many keys there are and where queries stand among them, read from operands of an attention kernel."""

from __future__ import annotations

from rlx.backends.cuda.hopper.attention_shape import AttentionShape, Integers
from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.kernels.gpu.attention import FAR


class SeenKeys:
    """Declares the next parameters of a kernel: if there are lengths, their address and stride, and if there are
    positions, their address, the stride of a batch and that of a query (i64)."""

    def __init__(self, w: Writer, shape: AttentionShape, queries: Val, key_limit: Val) -> None:
        self.w, self.shape, self.queries, self.key_limit = w, shape, queries, key_limit
        if shape.lengths is not None:
            self.lengths, self.length_step = (w.param(n, "i64") for n in ("lengths", "length_step"))
        if shape.positions is not None:
            self.positions, self.batch_step, self.query_step = (
                w.param(n, "i64") for n in ("positions", "batch_step", "query_step")
            )

    def integer(self, kind: Integers, address: Val) -> Val:
        """An integer from memory, cut to what 32 bits hold with room for sums."""
        w = self.w
        pointer = w.emit(f"inttoptr i64 {address.name} to ptr addrspace(1)", "ptr addrspace(1)")
        size = 8 if kind.type == "i64" else 4
        value = w.emit(f"load {kind.type}, ptr addrspace(1) {pointer.name}, align {size}", kind.type)
        limits = [w.value(x, kind.type) for x in (-FAR, FAR)]
        value = w.call(f"llvm.smax.{kind.type}", kind.type, value, limits[0])
        value = w.call(f"llvm.smin.{kind.type}", kind.type, value, limits[1])
        return w.emit(f"trunc i64 {value.name} to i32", "i32") if kind.type == "i64" else value

    def given_length(self, batch: Val) -> Val:
        """How many keys there are, as the operand says."""
        kind = self.shape.lengths
        if kind is None:
            return self.key_limit
        size = 8 if kind.type == "i64" else 4
        return self.integer(kind, self.lengths + self.w.wide(batch) * self.length_step * size)

    def key_count(self, length: Val) -> Val:
        """How many keys there are in memory."""
        w = self.w
        return length if self.shape.lengths is None else w.most(w.least(length, self.key_limit), 0)

    def position(self, batch: Val, query: Val, length: Val) -> Val:
        """Where a query stands among the keys; behind the last one is as the last one."""
        w, kind = self.w, self.shape.positions
        query = w.least(query, self.queries - 1)
        if kind is None:
            return w.most(length - self.queries, 0) + query
        place = w.wide(batch) * self.batch_step + w.wide(query) * self.query_step
        return self.integer(kind, self.positions + place * (8 if kind.type == "i64" else 4))
