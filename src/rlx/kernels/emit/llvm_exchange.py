"""What the threads of a subgroup exchange and multiply together, as instructions of NVIDIA's and AMD's GPUs."""

from __future__ import annotations

from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_addresses import AddressOps
from rlx.kernels.emit.llvm_text import llvm_type, mangled, vector_type
from rlx.kernels.ir.groups import Exchange, Peers, WaveMma
from rlx.kernels.ir.loop_ir import Let, Value
from rlx.kernels.machines import Machine

# Threads of a warp.
_SUBGROUP = 32


class ExchangeOps(AddressOps):
    """Appends instructions for `Exchange` and `WaveMma`."""

    machine: Machine

    def exchange(self, exchange: Exchange) -> str:
        if exchange.width > self.machine.wave:
            raise BackendError(
                f"exchange between {exchange.width} threads; {self.machine.name} has subgroups of {self.machine.wave}"
            )
        if exchange.how in ("lane", "xor"):
            lane = self.emit(f"trunc {self.typed(exchange.lane)} to i32")
            return self.moved(exchange.how, exchange.value, lane, exchange.width)
        # Halves first, as lanes of a vector are reduced; the two operands may stand in either order.
        current, bits = exchange.value, exchange.width // 2
        while bits:
            other = Value(current.builder, current.type)
            self.names[other] = self.moved("xor", current, str(bits), exchange.width)
            combined = Value(current.builder, current.type)
            self.names[combined] = self.let(Let(combined, exchange.how, (current, other)))
            current, bits = combined, bits // 2
        return self.ref(current)

    def moved(self, how: str, value: Value, lane: str, width: int) -> str:
        """The value of another thread, in words of 32 bits."""
        kind, bits = llvm_type(value.type), 1 if value.dtype is DType.BOOL else 8 * value.dtype.size_bytes
        whole = self.ref(value)
        if value.dtype in (DType.F32, DType.F64):
            whole = self.emit(f"bitcast {kind} {whole} to i{bits}")
        if bits < 32:
            wide = self.emit(f"zext i{bits} {whole} to i32")
            return self.emit(f"trunc i32 {self.word(how, wide, lane, width)} to i{bits}")
        if bits == 32:
            got = self.word(how, whole, lane, width)
        else:
            low = self.emit(f"trunc i64 {whole} to i32")
            high = self.emit(f"trunc i64 {self.emit(f'lshr i64 {whole}, 32')} to i32")
            parts = [self.emit(f"zext i32 {self.word(how, part, lane, width)} to i64") for part in (low, high)]
            shifted = self.emit(f"shl i64 {parts[1]}, 32")
            got = self.emit(f"or i64 {shifted}, {parts[0]}")
        return self.emit(f"bitcast i{bits} {got} to {kind}") if value.dtype in (DType.F32, DType.F64) else got

    def word(self, how: str, word: str, lane: str, width: int) -> str:
        if self.machine.gpu == "nvptx":
            name = f"llvm.nvvm.shfl.sync.{'idx' if how == 'lane' else 'bfly'}.i32"
            # The upper half of the last operand keeps threads within their own part of the warp.
            clamp = (_SUBGROUP - width) << 8 | (_SUBGROUP - 1)
            return self.call(name, "i32", [("i32", "-1"), ("i32", word), ("i32", lane), ("i32", str(clamp))])
        low = self.call("llvm.amdgcn.mbcnt.lo", "i32", [("i32", "-1"), ("i32", "0")])
        own = self.call("llvm.amdgcn.mbcnt.hi", "i32", [("i32", "-1"), ("i32", low)])
        first = self.emit(f"and i32 {own}, {-width}")
        source = self.emit(f"or i32 {first}, {lane}") if how == "lane" else self.emit(f"xor i32 {own}, {lane}")
        address = self.emit(f"shl i32 {source}, 2")
        return self.call("llvm.amdgcn.ds.bpermute", "i32", [("i32", address), ("i32", word)])

    def peers(self, peers: Peers) -> tuple[str, str, str]:
        """A vote for every bit: those who have the same one as oneself in all votes."""
        self.call("llvm.nvvm.bar.warp.sync", "void", [("i32", "-1")])
        number = self.emit(f"zext {self.typed(peers.value)} to i32")
        same = "-1"
        for bit in range(8):
            has = self.emit(f"icmp ne i32 {self.emit(f'and i32 {number}, {1 << bit}')}, 0")
            votes = self.call("llvm.nvvm.vote.ballot.sync", "i32", [("i32", "-1"), ("i1", has)])
            others = self.emit(f"xor i32 {votes}, -1")
            same = self.emit(f"and i32 {same}, {self.emit(f'select i1 {has}, i32 {votes}, i32 {others}')}")
        lower = self.call("llvm.nvvm.read.ptx.sreg.lanemask.lt", "i32", [])
        before = self.call("llvm.ctpop.i32", "i32", [("i32", self.emit(f"and i32 {same}, {lower}"))])
        count = self.call("llvm.ctpop.i32", "i32", [("i32", same)])
        first = self.call("llvm.cttz.i32", "i32", [("i32", same), ("i1", "true")])
        return before, count, self.emit(f"zext i32 {first} to i64")

    def wave_mma(self, product: WaveMma) -> str:
        """MFMA where waves have 64 threads, WMMA where they have 32."""
        dtype, lanes = product.a.dtype, product.unit.factor_lanes
        sums = llvm_type(product.total.type)
        factor = vector_type("half" if dtype is DType.F16 else "i16", lanes)
        factors = []
        for value in (product.a, product.b):
            text = self.ref(value)
            factors.append(text if dtype is DType.BF16 else self.emit(f"bitcast {self.typed(value)} to {factor}"))
        operands = [*((factor, text) for text in factors), (sums, self.ref(product.total))]
        if product.unit.threads == 64:
            name = f"llvm.amdgcn.mfma.f32.16x16x16{'f16' if dtype is DType.F16 else 'bf16.1k'}"
            return self.call(name, sums, [*operands, *[("i32", "0")] * 3])
        name = f"llvm.amdgcn.wmma.f32.16x16x16.{dtype}.{mangled(sums)}.{mangled(factor)}"
        return self.call(name, sums, operands)
