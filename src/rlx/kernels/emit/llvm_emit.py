"""Loop IR -> LLVM IR text. The kernel must have been legalised for the target.

A CPU kernel becomes two functions: `@name`, a C function over the parameters in order plus the range `first`, `last`
of parallel iterations to run, and `@name.packed(args, first, last)`, which reads the parameters from 8-byte slots, so
that a command table can call every kernel alike. A GPU kernel is one entry point: block b runs iteration b.

Text is built here directly: measured at 2.5 us a line where building and printing llvmlite.ir objects takes 6, and
llvmlite stays unloaded until code is wanted.
"""

from __future__ import annotations

from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_exchange import ExchangeOps
from rlx.kernels.emit.llvm_text import ELEMENT, literal_text, llvm_type, mangled, vector_type
from rlx.kernels.ir.groups import Exchange, Peers, WaveMma, refuse_groups
from rlx.kernels.ir.loop_ir import (
    FLOATS,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Space,
    Statement,
    Store,
    Value,
    walk,
)
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import Machine

_GPU_BUILTINS = {
    "nvptx": ("llvm.nvvm.read.ptx.sreg.ctaid.x", "llvm.nvvm.read.ptx.sreg.tid.x"),
    "amdgcn": ("llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workitem.id.x"),
}
# Code objects of version 5 of AMD's interface, and what no kernel asks of it: registers are not spent on it.
_AMD_FLAGS = ["!llvm.module.flags = !{!0}", '!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}']
_AMD_UNUSED = '"uniform-work-group-size"="true" "amdgpu-implicitarg-num-bytes"="0" ' + " ".join(
    f'"amdgpu-no-{what}"'
    for what in (
        *("dispatch-ptr", "dispatch-id", "queue-ptr", "implicitarg-ptr", "lds-kernel-id", "hostcall-ptr", "heap-ptr"),
        *("workgroup-id-y", "workgroup-id-z", "workitem-id-y", "workitem-id-z", "default-queue", "completion-action"),
        *("multigrid-sync-arg", "flat-scratch-init"),
    )
)
# The kernel behind may be brought to the multiprocessors when all blocks of this one have begun; it waits in the same
# way for what this one stores. Where launches do not ask for it, both do nothing.
EARLY_LAUNCH = tuple(
    f'  call void asm sideeffect "griddepcontrol.{what};", "~{{memory}}"()' for what in ("launch_dependents", "wait")
)
# Threads of a block that is large, and threads that a multiprocessor has room for when they are in such blocks or sort.
LARGE_BLOCK, RESIDENT_THREADS = 512, 1024
_GPU_SPACES = {Space.GLOBAL: 1, Space.SHARED: 3, Space.TABLE: 1}


def emit_llvm(kernel: Kernel, machine: Machine) -> str:
    """The LLVM module of one kernel."""
    emitter = f"the LLVM emitter for {machine.name}"
    refuse_groups(kernel, emitter, machine.is_gpu, machine.matrix, with_peers=machine.gpu == "nvptx")
    return _Emitter(kernel, machine).module()


def orders_sums(machine: Machine) -> bool:
    """Whether addresses are written as `AddressOps` does. WebAssembly adds literals for nothing only to what is known
    not to wrap around, and the compilers of GPUs have their own ways."""
    return not machine.is_gpu and not machine.triple.startswith("wasm")


class _Emitter(ExchangeOps):
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__()
        self.kernel = kernel
        self.machine = machine
        self.architecture = machine.triple.split("-")[0]
        self.orders_sums = orders_sums(machine)
        self.globals: list[str] = []
        self.pointers: dict[Buffer, str] = {}
        # Masks of which the first lane alone is set, as is known here.
        self.first_lanes: set[Value] = set()

    def module(self) -> str:
        head = f'target triple = "{self.machine.triple}"'
        entry = self.gpu_entry() if self.machine.is_gpu else self.cpu_entry()
        tail = _AMD_FLAGS if self.machine.gpu == "amdgcn" else []
        return "\n".join([head, *sorted(self.declared), *self.globals, *entry, *tail, ""])

    # Functions.

    def parameters(self) -> list[str]:
        """Typed parameters of the function, and the names by which the body knows them."""
        texts = []
        for param in self.kernel.params:
            if isinstance(param, Buffer):
                self.pointers[param] = f"%{param.name}"
                alias = " noalias" if param.noalias else ""
                access = "" if param.reads and param.writes else " readonly" if param.reads else " writeonly"
                texts.append(f"{self.pointer_type(param)}{alias}{access} align {param.align} %{param.name}")
            else:
                self.names[param] = f"%{param.name}"
                texts.append(f"{llvm_type(param.type)} %{param.name}")
        return texts

    def cpu_entry(self) -> list[str]:
        params = ", ".join([*self.parameters(), "i64 %.first", "i64 %.last"])
        self.body()
        width = 8 * self.machine.vector_bytes
        attributes = f'nounwind "no-builtins" "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
        return [
            f"define dso_local void @{self.kernel.name}({params}) {attributes} {{",
            *self.written(),
            "}",
            *self.packed_entry(attributes),
        ]

    def packed_entry(self, attributes: str) -> list[str]:
        lines, args = [], []
        for slot, param in enumerate(self.kernel.params):
            kind = "ptr" if isinstance(param, Buffer) else llvm_type(param.type)
            lines.append(f"  %s{slot} = getelementptr inbounds i64, ptr %args, i64 {slot}")
            lines.append(f"  %a{slot} = load {kind}, ptr %s{slot}, align 8")
            args.append(f"{kind} %a{slot}")
        call = ", ".join([*args, "i64 %first", "i64 %last"])
        name = packed_symbol(self.kernel.name)
        return [
            f"define dso_local void @{name}(ptr readonly %args, i64 %first, i64 %last) {attributes} {{",
            *lines,
            f"  call void @{self.kernel.name}({call})",
            "  ret void",
            "}",
        ]

    def gpu_entry(self) -> list[str]:
        params = ", ".join(self.parameters())
        threads = self.kernel.thread_count
        if self.machine.gpu == "nvptx":
            convention, bound = "ptx_kernel", f'"nvvm.maxntid"="{threads}"'
            if threads >= LARGE_BLOCK or any(isinstance(s, Peers) for s in walk(self.kernel.body)):
                # They wait for each other at every turn: other blocks fill the gaps, if registers are left to them.
                bound += f' "nvvm.minctasm"="{max(1, RESIDENT_THREADS // threads)}"'
        else:
            convention, bound = "amdgpu_kernel", f'"amdgpu-flat-work-group-size"="{threads},{threads}" {_AMD_UNUSED}'
        self.body()
        if self.machine.has_early_launch:
            self.lines[1:1] = EARLY_LAUNCH
        return [
            f"define {convention} void @{self.kernel.name}({params}) nounwind {bound} {{",
            *self.written(),
            "}",
        ]

    def body(self) -> None:
        self.lines.append("entry:")
        for array in self.kernel.arrays:
            self.array(array)
        self.block(self.kernel.body, is_end=True)
        self.lines.append("  ret void")

    def array(self, array: Buffer) -> None:
        element = self.memory_element(array.dtype)
        kind = f"[{array.size} x {element}]"
        name = f"{self.kernel.name}.{array.name}"
        space = self.space_of(array)
        self.pointers[array] = f"@{name}"
        if array.space is Space.TABLE:
            data = ", ".join(f"{element} {literal_text(array.dtype, x)}" for x in array.data)
            self.globals.append(f"@{name} = private unnamed_addr{space} constant {kind} [{data}], align {array.align}")
        elif array.space is Space.SHARED and self.machine.is_gpu:
            self.globals.append(f"@{name} = internal{space} global {kind} undef, align {array.align}")
        else:
            private = ", addrspace(5)" if self.machine.gpu == "amdgcn" else ""
            self.pointers[array] = f"%{array.name}"
            self.lines.append(f"  %{array.name} = alloca {kind}, align {array.align}{private}")

    def space_of(self, buffer: Buffer) -> str:
        if not self.machine.is_gpu:
            return ""
        if buffer.space is Space.LOCAL:
            return " addrspace(5)" if self.machine.gpu == "amdgcn" else ""
        return f" addrspace({_GPU_SPACES[buffer.space]})"

    def pointer_type(self, buffer: Buffer) -> str:
        return f"ptr{self.space_of(buffer)}"

    @staticmethod
    def memory_element(dtype: DType) -> str:
        return "i8" if dtype is DType.BOOL else ELEMENT[dtype]

    # Statements.

    def block(self, block: Block, is_end: bool = False) -> None:
        """Emit a block; `is_end` says that the kernel ends where the block does."""
        self.open_block()
        for statement in block.statements:
            self.statement(statement, is_end and statement is block.statements[-1])
        self.close_block()

    def statement(self, statement: Statement, is_last: bool) -> None:
        match statement:
            case Let() if self.orders_sums and self.index_let(statement):
                pass
            case Let():
                self.names[statement.result] = self.let(statement)
                self.define(statement.result)
                if statement.op == "lane_mask" and isinstance(count := statement.args[0], Const) and count.literal == 1:
                    self.first_lanes.add(statement.result)
            case Load():
                self.names[statement.result] = self.load(statement)
                self.define(statement.result)
            case Store():
                self.store(statement)
            case Prefetch(buffer, offset) if not self.machine.is_gpu:
                # To read, into all caches, as data.
                where = ("ptr", self.address(buffer, offset, ""))
                self.call("llvm.prefetch.p0", "void", [where, ("i32", "0"), ("i32", "3"), ("i32", "1")])
            case Atomic(op, buffer, offset, value):
                address = self.address(buffer, offset, "")
                operation = (
                    "fadd" if value.dtype in FLOATS else op if op == "add" or value.dtype.is_signed else f"u{op}"
                )
                align = value.dtype.size_bytes
                kind = self.pointer_type(buffer)
                self.emit(f"atomicrmw {operation} {kind} {address}, {self.typed(value)} monotonic, align {align}")
            case Barrier():
                self.barrier()
            case Exchange():
                self.names[statement.result] = self.exchange(statement)
            case Peers():
                self.names.update(zip(statement.results(), self.peers(statement)))
            case WaveMma():
                self.names[statement.result] = self.wave_mma(statement)
            case If():
                self.branch(statement)
            case For(kind=LoopKind.THREADS):
                self.thread_loop(statement, is_last)
            case For(kind=LoopKind.PARALLEL) if self.machine.is_gpu:
                self.block_loop(statement, is_last)
            case For():
                self.loop(statement)

    def address(self, buffer: Buffer, offset: Value, inbounds: str) -> str:
        element = self.memory_element(buffer.dtype)
        if self.orders_sums:
            return self.element_address(element, self.pointers[buffer], offset, inbounds)
        pointer = f"{self.pointer_type(buffer)} {self.pointers[buffer]}"
        return self.emit(f"getelementptr{inbounds} {element}, {pointer}, {self.typed(offset)}")

    def load(self, load: Load) -> str:
        kind = load.result.type
        memory = vector_type(self.memory_element(kind.dtype), kind.lanes)
        pointer = self.pointer_type(load.buffer)
        gathered = load.offset.lanes > 1
        address = self.address(load.buffer, load.offset, "" if load.mask is not None else " inbounds")
        if load.mask is None and not gathered:
            loaded = self.emit(f"load {memory}, {pointer} {address}, align {load.align}")
        elif kind.lanes == 1:
            return self.guarded_scalar_load(load, address)
        else:
            mask = "splat (i1 true)" if load.mask is None else self.ref(load.mask)
            other = "poison" if load.other is None else self.memory_form(load.other)
            loaded = self.masked(
                "gather" if gathered else "load", memory, pointer, kind.lanes, address, load.align, mask, other
            )
        if kind.dtype is DType.BOOL:
            return self.emit(f"icmp ne {memory} {loaded}, {'0' if kind.lanes == 1 else 'zeroinitializer'}")
        return loaded

    def guarded_scalar_load(self, load: Load, address: str) -> str:
        assert load.mask is not None and load.other is not None
        memory, kind = self.memory_element(load.result.dtype), llvm_type(load.result.type)
        inside, after = self.labels("load", "loaded")
        before = self.label
        self.lines.append(f"  br i1 {self.ref(load.mask)}, label %{inside}, label %{after}")
        self.start(inside)
        loaded = self.emit(f"load {memory}, {self.pointer_type(load.buffer)} {address}, align {load.align}")
        if load.result.dtype is DType.BOOL:
            loaded = self.emit(f"icmp ne {memory} {loaded}, 0")
        self.lines.append(f"  br label %{after}")
        self.start(after)
        return self.emit(f"phi {kind} [ {self.ref(load.other)}, %{before} ], [ {loaded}, %{inside} ]")

    def memory_form(self, value: Value) -> str:
        """The value as it lies in memory: a bool is a byte there."""
        if value.dtype is not DType.BOOL:
            return self.ref(value)
        return self.emit(f"zext {self.typed(value)} to {vector_type('i8', value.lanes)}")

    def store(self, store: Store) -> None:
        value = store.value
        memory = vector_type(self.memory_element(value.dtype), value.lanes)
        data = self.memory_form(value)
        pointer = self.pointer_type(store.buffer)
        scattered = store.offset.lanes > 1
        address = self.address(store.buffer, store.offset, "" if store.mask is not None else " inbounds")
        if store.mask is None and not scattered:
            self.lines.append(f"  store {memory} {data}, {pointer} {address}, align {store.align}")
        elif value.lanes == 1:
            assert store.mask is not None
            inside, after = self.labels("store", "stored")
            self.lines.append(f"  br i1 {self.ref(store.mask)}, label %{inside}, label %{after}")
            self.start(inside)
            self.lines.append(f"  store {memory} {data}, {pointer} {address}, align {store.align}")
            self.lines.append(f"  br label %{after}")
            self.start(after)
        elif store.mask in self.first_lanes and not scattered:
            # As a masked store, LLVM 22 writes 4 or 8 bytes with AVX-512 where lanes were cut to fewer.
            element = self.memory_element(value.dtype)
            first = self.emit(f"extractelement {memory} {data}, i32 0")
            self.lines.append(f"  store {element} {first}, {pointer} {address}, align {store.align}")
        else:
            mask = "splat (i1 true)" if store.mask is None else self.ref(store.mask)
            name = "scatter" if scattered else "store"
            self.masked(name, memory, pointer, value.lanes, address, store.align, mask, data)

    def masked(
        self, name: str, memory: str, pointer: str, lanes: int, address: str, align: int, mask: str, data: str
    ) -> str:
        """llvm.masked.{load,store,gather,scatter}; `data` is what is stored or what masked-off lanes give."""
        if name in ("gather", "scatter"):
            pointer = f"<{lanes} x {pointer}>"
        space = pointer.split("addrspace(")[1].split(")")[0] if "addrspace" in pointer else "0"
        suffix = f"v{lanes}p{space}" if name in ("gather", "scatter") else f"p{space}"
        symbol = f"llvm.masked.{name}.{mangled(memory)}.{suffix}"
        where = [(pointer, address), ("i32", str(align)), (f"<{lanes} x i1>", mask)]
        if name in ("store", "scatter"):
            return self.call(symbol, "void", [(memory, data), *where])
        return self.call(symbol, memory, [*where, (memory, data)])

    # Control.

    def labels(self, *names: str) -> list[str]:
        self.count += 1
        return [f"{name}.{self.count}" for name in names]

    def loop(self, loop: For) -> None:
        start, stop = self.ref(loop.start), self.ref(loop.stop)
        if loop.kind is LoopKind.PARALLEL:
            start = self.intrinsic("smax", "i64", "%.first", start)
            stop = self.intrinsic("smin", "i64", "%.last", stop)
        bounds = [b.literal if isinstance(b, Const) else None for b in (loop.start, loop.stop)]
        runs = None not in bounds and bounds[0] < bounds[1] and loop.kind is LoopKind.SERIAL  # type: ignore[operator]
        self.rotated(loop, start, stop, runs)

    def rotated(self, loop: For, start: str, stop: str, surely_runs: bool) -> None:
        """`if (start < stop) do { .. } while (index < stop)`: the form that optimisers want a loop in."""
        head, end = self.labels(loop.index.name, "end")
        before, place = self.label, self.place()
        if surely_runs:
            self.lines.append(f"  br label %{head}")
        else:
            enters = self.emit(f"icmp slt i64 {start}, {stop}")
            self.lines.append(f"  br i1 {enters}, label %{head}, label %{end}")
        self.start(head)
        phis = len(self.lines)
        index = self.names[loop.index] = self.fresh()
        for carried in loop.carried:
            self.names[carried] = self.fresh()
        self.begin_loop(loop, place)
        self.block(loop.body)
        self.end_loop()
        latch = self.label
        following = self.emit(f"add nsw i64 {index}, {self.ref(loop.step)}")
        again = self.emit(f"icmp slt i64 {following}, {stop}")
        if loop.body.again is not None:
            again = self.emit(f"and i1 {again}, {self.ref(loop.body.again)}")
        self.lines.append(f"  br i1 {again}, label %{head}, label %{end}")
        yields = [self.ref(v) for v in loop.body.yields]
        inits = [self.ref(v) for v in loop.inits]
        self.lines[phis:phis] = [
            f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]",
            *(
                f"  {self.names[c]} = phi {llvm_type(c.type)} [ {i}, %{before} ], [ {y}, %{latch} ]"
                for c, i, y in zip(loop.carried, inits, yields)
            ),
        ]
        self.start(end)
        skipped = [] if surely_runs else [(i, before) for i in inits]
        for position, result in enumerate(loop.results):
            ways = [*skipped[position : position + 1], (yields[position], latch)]
            edges = ", ".join(f"[ {value}, %{label} ]" for value, label in ways)
            self.names[result] = self.emit(f"phi {llvm_type(result.type)} {edges}")
            self.define(result)

    def branch(self, branch: If) -> None:
        then, other, end = self.labels("then", "else", "endif")
        self.lines.append(f"  br i1 {self.ref(branch.condition)}, label %{then}, label %{other}")
        ways = []
        for label, side in ((then, branch.then), (other, branch.otherwise)):
            self.start(label)
            self.block(side)
            ways.append((self.label, [self.ref(v) for v in side.yields]))
            self.lines.append(f"  br label %{end}")
        self.start(end)
        for position, result in enumerate(branch.results):
            edges = ", ".join(f"[ {values[position]}, %{label} ]" for label, values in ways)
            self.names[result] = self.emit(f"phi {llvm_type(result.type)} {edges}")
            self.define(result)

    def builtin(self, which: int) -> str:
        number = self.call(_GPU_BUILTINS[self.machine.gpu][which], "i32", [])
        return self.emit(f"zext i32 {number} to i64")

    def block_loop(self, loop: For, is_last: bool) -> None:
        """One iteration, chosen by the block's number."""
        index = self.names[loop.index] = self.builtin(0)
        inside, end = self.labels("block", "end")
        exists = self.emit(f"icmp slt i64 {index}, {self.ref(loop.stop)}")
        self.lines.append(f"  br i1 {exists}, label %{inside}, label %{end}")
        self.start(inside)
        self.block(loop.body, is_last)
        self.lines.append(f"  br label %{end}")
        self.start(end)

    def thread_loop(self, loop: For, is_last: bool) -> None:
        if not self.machine.is_gpu:
            self.rotated(loop, "0", self.ref(loop.stop), True)
            return
        self.names[loop.index] = self.builtin(1)
        self.block(loop.body)
        if not is_last:
            self.barrier()

    def barrier(self) -> None:
        if self.machine.gpu == "nvptx":
            self.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", [("i32", "0")])
        elif self.machine.gpu == "amdgcn":
            self.lines.append('  fence syncscope("workgroup") release')
            self.call("llvm.amdgcn.s.barrier", "void", [])
            self.lines.append('  fence syncscope("workgroup") acquire')
        else:
            raise BackendError(f"kernel {self.kernel.name} has barriers between threads; {self.machine.name} has none")
