"""Loop IR -> LLVM IR text. The kernel must have been legalised for the target.

A CPU kernel becomes two functions: `@name`, a C function over the parameters in order plus the range `first`, `last`
of parallel iterations to run, and `@name.packed(args, first, last)`, which reads the parameters from 8-byte slots, so
that a command table can call every kernel alike. A GPU kernel is one entry point: block b runs iteration b.

Text is built here directly because it is some twenty times as fast as building and printing llvmlite.ir objects, and
it keeps llvmlite unloaded until code is wanted. f16 and bf16 are carried as i16, so no LLVM pass can turn a conversion
of them into a library call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from rlx.errors import BackendError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.loop_ir import (
    COMPARISONS,
    FLOATS,
    HALVES,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    Literal,
    Load,
    LoopKind,
    Space,
    Statement,
    Store,
    Value,
    ValueType,
)
from rlx.kernels.targets import Target

_ELEMENT = {
    DType.BOOL: "i1",
    **{d: f"i{8 * d.size_bytes}" for d in DType if d.is_int and not d.is_storage},
    DType.F16: "i16",
    DType.BF16: "i16",
    DType.F32: "float",
    DType.F64: "double",
}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}

_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_BY_SIGN = {"div": ("sdiv", "udiv"), "rem": ("srem", "urem"), "shr": ("ashr", "lshr")}
_FLOAT_UNARY = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundeven",
}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}

_GPU_BUILTINS = {
    "nvptx": ("llvm.nvvm.read.ptx.sreg.ctaid.x", "llvm.nvvm.read.ptx.sreg.tid.x"),
    "amdgcn": ("llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workitem.id.x"),
}
_GPU_SPACES = {Space.GLOBAL: 1, Space.SHARED: 3, Space.TABLE: 1}


def packed_symbol(kernel_name: str) -> str:
    """The symbol of the entry that reads its parameters from slots."""
    return f"{kernel_name}.packed"


def emit_llvm(kernel: Kernel, target: Target) -> str:
    """The LLVM module of one kernel."""
    return _Emitter(kernel, target).module()


def llvm_type(kind: ValueType) -> str:
    element = _ELEMENT[kind.dtype]
    return element if kind.lanes == 1 else f"<{kind.lanes} x {element}>"


def _vector_of(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _mangled(kind: str) -> str:
    """The suffix of an overloaded intrinsic: `<16 x float>` -> v16f32."""
    if not kind.startswith("<"):
        return _SUFFIX.get(kind, kind)
    lanes, element = kind[1:-1].split(" x ")
    return f"v{lanes}{_SUFFIX.get(element, element)}"


def _literal(dtype: DType, literal: Literal) -> str:
    if dtype in FLOATS:
        # LLVM writes a float as the bits of the double of the same value.
        return f"0x{struct.unpack('<Q', struct.pack('<d', literal))[0]:016X}"
    if dtype in HALVES:
        return str(int(np.asarray(literal, dtype.numpy).view(np.uint16)))
    return str(literal)


def _constant(const: Const) -> str:
    text = _literal(const.dtype, const.literal)
    return text if const.lanes == 1 else f"splat ({_ELEMENT[const.dtype]} {text})"


class _Emitter:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.lines: list[str] = []
        self.globals: list[str] = []
        self.declared: set[str] = set()
        self.names: dict[Value, str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.label = "entry"
        self.count = 0

    def module(self) -> str:
        head = f'target triple = "{self.target.triple}"'
        entry = self.gpu_entry() if self.target.is_gpu else self.cpu_entry()
        return "\n".join([head, *sorted(self.declared), *self.globals, *entry, ""])

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
        width = 8 * self.target.vector_bytes
        attributes = f'nounwind "no-builtins" "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
        return [
            f"define dso_local void @{self.kernel.name}({params}) {attributes} {{",
            *self.lines,
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
        if self.target.gpu == "nvptx":
            convention, bound = "ptx_kernel", f'"nvvm.maxntid"="{threads}"'
        else:
            convention, bound = "amdgpu_kernel", f'"amdgpu-flat-work-group-size"="1,{threads}"'
        self.body()
        return [
            f"define {convention} void @{self.kernel.name}({params}) nounwind {bound} {{",
            *self.lines,
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
            data = ", ".join(f"{element} {_literal(array.dtype, x)}" for x in array.data)
            self.globals.append(f"@{name} = private unnamed_addr{space} constant {kind} [{data}], align {array.align}")
        elif array.space is Space.SHARED and self.target.is_gpu:
            self.globals.append(f"@{name} = internal{space} global {kind} undef, align {array.align}")
        else:
            private = ", addrspace(5)" if self.target.gpu == "amdgcn" else ""
            self.pointers[array] = f"%{array.name}"
            self.lines.append(f"  %{array.name} = alloca {kind}, align {array.align}{private}")

    def space_of(self, buffer: Buffer) -> str:
        if not self.target.is_gpu:
            return ""
        if buffer.space is Space.LOCAL:
            return " addrspace(5)" if self.target.gpu == "amdgcn" else ""
        return f" addrspace({_GPU_SPACES[buffer.space]})"

    def pointer_type(self, buffer: Buffer) -> str:
        return f"ptr{self.space_of(buffer)}"

    @staticmethod
    def memory_element(dtype: DType) -> str:
        return "i8" if dtype is DType.BOOL else _ELEMENT[dtype]

    # Text.

    def fresh(self) -> str:
        self.count += 1
        return f"%.{self.count}"

    def emit(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def ref(self, value: Value) -> str:
        return _constant(value) if isinstance(value, Const) else self.names[value]

    def typed(self, value: Value) -> str:
        return f"{llvm_type(value.type)} {self.ref(value)}"

    def call(self, name: str, result: str, args: Sequence[tuple[str, str]], flags: str = "") -> str:
        self.declared.add(f"declare {result} @{name}({', '.join(kind for kind, _ in args)})")
        operands = ", ".join(f"{kind} {text}" for kind, text in args)
        text = f"call {flags}{result} @{name}({operands})"
        if result != "void":
            return self.emit(text)
        self.lines.append(f"  {text}")
        return ""

    def intrinsic(self, name: str, kind: str, *args: str, flags: str = "") -> str:
        """`llvm.name` on operands of one type that is also its result's."""
        return self.call(f"llvm.{name}.{_mangled(kind)}", kind, [(kind, a) for a in args], flags)

    # Statements.

    def block(self, block: Block, is_end: bool = False) -> None:
        """Emit a block; `is_end` says that the kernel ends where the block does."""
        for statement in block.statements:
            self.statement(statement, is_end and statement is block.statements[-1])

    def statement(self, statement: Statement, is_last: bool) -> None:
        match statement:
            case Let():
                self.names[statement.result] = self.let(statement)
            case Load():
                self.names[statement.result] = self.load(statement)
            case Store():
                self.store(statement)
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
            case If():
                self.branch(statement)
            case For(kind=LoopKind.THREADS):
                self.thread_loop(statement, is_last)
            case For(kind=LoopKind.PARALLEL) if self.target.is_gpu:
                self.block_loop(statement, is_last)
            case For():
                self.loop(statement)

    def address(self, buffer: Buffer, offset: Value, inbounds: str) -> str:
        element = self.memory_element(buffer.dtype)
        pointer = f"{self.pointer_type(buffer)} {self.pointers[buffer]}"
        return self.emit(f"getelementptr{inbounds} {element}, {pointer}, {self.typed(offset)}")

    def load(self, load: Load) -> str:
        kind = load.result.type
        memory = _vector_of(self.memory_element(kind.dtype), kind.lanes)
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
        return self.emit(f"zext {self.typed(value)} to {_vector_of('i8', value.lanes)}")

    def store(self, store: Store) -> None:
        value = store.value
        memory = _vector_of(self.memory_element(value.dtype), value.lanes)
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
        symbol = f"llvm.masked.{name}.{_mangled(memory)}.{suffix}"
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
        before = self.label
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
        self.block(loop.body)
        latch = self.label
        following = self.emit(f"add nsw i64 {index}, {self.ref(loop.step)}")
        again = self.emit(f"icmp slt i64 {following}, {stop}")
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

    def builtin(self, which: int) -> str:
        number = self.call(_GPU_BUILTINS[self.target.gpu][which], "i32", [])
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
        if not self.target.is_gpu:
            self.rotated(loop, "0", self.ref(loop.stop), True)
            return
        self.names[loop.index] = self.builtin(1)
        self.block(loop.body)
        if not is_last:
            self.barrier()

    def barrier(self) -> None:
        if self.target.gpu == "nvptx":
            self.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", [("i32", "0")])
        elif self.target.gpu == "amdgcn":
            self.lines.append('  fence syncscope("workgroup") release')
            self.call("llvm.amdgcn.s.barrier", "void", [])
            self.lines.append('  fence syncscope("workgroup") acquire')
        else:
            raise BackendError(f"kernel {self.kernel.name} has barriers between threads; {self.target.name} has none")

    # Pure operations.

    def let(self, let: Let) -> str:
        op, args, kind = let.op, let.args, llvm_type(let.result.type)
        refs = [self.ref(a) for a in args]
        source = args[0].dtype if args else let.result.dtype
        if op in COMPARISONS:
            return self.compare(op, args[0].type, refs)
        if op in ("min", "max"):
            if source in FLOATS:
                return self.intrinsic(f"{op}imum", kind, *refs, flags="nsz ")
            return self.intrinsic(f"{'s' if source.is_signed else 'u'}{op}", kind, *refs)
        if source in FLOATS and op in _FLOAT_BINARY:
            return self.emit(f"{_FLOAT_BINARY[op]} {kind} {refs[0]}, {refs[1]}")
        if source in FLOATS and op in _FLOAT_UNARY:
            return self.intrinsic(_FLOAT_UNARY[op], kind, *refs)
        if op in _INT_BINARY:
            return self.emit(f"{_INT_BINARY[op]} {kind} {refs[0]}, {refs[1]}")
        if op in _BY_SIGN:
            return self.emit(f"{_BY_SIGN[op][not source.is_signed]} {kind} {refs[0]}, {refs[1]}")
        match op:
            case "fma":
                return self.intrinsic("fmuladd", kind, *refs)
            case "neg" if source in FLOATS:
                return self.emit(f"fneg {kind} {refs[0]}")
            case "neg":
                return self.emit(f"sub {kind} {_zero(args[0].type)}, {refs[0]}")
            case "abs":
                return self.call(f"llvm.abs.{_mangled(kind)}", kind, [(kind, refs[0]), ("i1", "false")])
            case "not":
                ones = "true" if source is DType.BOOL else "-1"
                every = ones if args[0].lanes == 1 else f"splat ({_ELEMENT[source]} {ones})"
                return self.emit(f"xor {kind} {refs[0]}, {every}")
            case "select":
                return self.emit(f"select {self.typed(args[0])}, {kind} {refs[1]}, {kind} {refs[2]}")
            case "cast":
                return self.cast(args[0], let.result.type)
            case "bitcast":
                old = llvm_type(args[0].type)
                return refs[0] if old == kind else self.emit(f"bitcast {old} {refs[0]} to {kind}")
            case "splat":
                one = self.emit(f"insertelement {kind} poison, {self.typed(args[0])}, i32 0")
                zeros = f"<{let.result.lanes} x i32> zeroinitializer"
                return self.emit(f"shufflevector {kind} {one}, {kind} poison, {zeros}")
            case "extract":
                return self.emit(f"extractelement {self.typed(args[0])}, i32 {let.attr}")
            case "shuffle":
                return self.shuffle(let)
            case "iota":
                return self.iota(let.result.type)
            case "lane_mask":
                return self.lane_mask(refs[0], let.result.lanes)
        raise InternalError(f"kernel {self.kernel.name}: {op} was not legalised for {self.target.name}")

    def compare(self, op: str, kind: ValueType, refs: list[str]) -> str:
        if kind.dtype in FLOATS:
            return self.emit(f"fcmp {_FLOAT_COMPARE[op]} {llvm_type(kind)} {refs[0]}, {refs[1]}")
        condition = op if op in ("eq", "ne") else f"{'s' if kind.dtype.is_signed else 'u'}{op}"
        return self.emit(f"icmp {condition} {llvm_type(kind)} {refs[0]}, {refs[1]}")

    def cast(self, x: Value, to: ValueType) -> str:
        old, new, text = x.dtype, to.dtype, self.typed(x)
        target = llvm_type(to)
        if new is DType.BOOL:
            word = "fcmp une" if old in FLOATS else "icmp ne"
            return self.emit(f"{word} {text}, {_zero(x.type)}")
        if DType.F16 in (old, new):
            return self.half_cast(x, to)
        if old in FLOATS and new in FLOATS:
            return self.emit(f"{'fpext' if new is DType.F64 else 'fptrunc'} {text} to {target}")
        if old in FLOATS:
            name = f"llvm.fpto{'s' if new.is_signed else 'u'}i.sat"
            kind = llvm_type(x.type)
            return self.call(f"{name}.{_mangled(target)}.{_mangled(kind)}", target, [(kind, self.ref(x))])
        if new in FLOATS:
            return self.emit(f"{'sitofp' if old.is_signed else 'uitofp'} {text} to {target}")
        old_bits = 1 if old is DType.BOOL else 8 * old.size_bytes
        new_bits = 8 * new.size_bytes
        if old_bits == new_bits:
            return self.ref(x)
        word = "trunc" if new_bits < old_bits else "sext" if old.is_signed else "zext"
        return self.emit(f"{word} {text} to {target}")

    def half_cast(self, x: Value, to: ValueType) -> str:
        half, bits = _vector_of("half", to.lanes), _vector_of("i16", to.lanes)
        if to.dtype is DType.F16:
            rounded = self.emit(f"fptrunc {self.typed(x)} to {half}")
            return self.emit(f"bitcast {half} {rounded} to {bits}")
        read = self.emit(f"bitcast {self.typed(x)} to {half}")
        return self.emit(f"fpext {half} {read} to {llvm_type(to)}")

    def shuffle(self, let: Let) -> str:
        a, b = let.args
        assert isinstance(let.attr, tuple)
        lanes = let.attr
        if a.lanes == 1:
            raise InternalError(f"kernel {self.kernel.name}: shuffle of scalars was not legalised")
        picks = f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
        shuffled = self.emit(f"shufflevector {self.typed(a)}, {self.typed(b)}, {picks}")
        if len(lanes) > 1:
            return shuffled
        return self.emit(f"extractelement <1 x {_ELEMENT[a.dtype]}> {shuffled}, i32 0")

    def iota(self, kind: ValueType) -> str:
        element = _ELEMENT[kind.dtype]
        return f"<{', '.join(f'{element} {i}' for i in range(kind.lanes))}>" if kind.lanes > 1 else "0"

    def lane_mask(self, count: str, lanes: int) -> str:
        if lanes == 1:
            return self.emit(f"icmp sgt i64 {count}, 0")
        # Clamped first, so that the comparison can be on narrow lanes.
        capped = self.intrinsic("smin", "i64", self.intrinsic("smax", "i64", count, "0"), str(lanes))
        narrow = self.emit(f"trunc i64 {capped} to i32")
        kind = f"<{lanes} x i32>"
        one = self.emit(f"insertelement {kind} poison, i32 {narrow}, i32 0")
        every = self.emit(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        return self.emit(f"icmp ugt {kind} {every}, {self.iota(ValueType(DType.I32, lanes))}")


def _zero(kind: ValueType) -> str:
    if kind.lanes > 1:
        return "zeroinitializer"
    return "0.0" if kind.dtype in FLOATS else "false" if kind.dtype is DType.BOOL else "0"
