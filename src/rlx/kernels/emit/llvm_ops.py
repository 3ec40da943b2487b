"""Pure operations of the loop IR as LLVM instructions."""

from __future__ import annotations

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_text import ELEMENT, FunctionText, literal_text, llvm_type, mangled, vector_type, zero_text
from rlx.kernels.ir.index_facts import ANYTHING, Fact, exactly
from rlx.kernels.ir.loop_ir import FLOATS, Const, Let, Value, ValueType
from rlx.kernels.ir.operations import COMPARISONS

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

# Architecture and lanes -> the instruction that multiplies unsigned with signed bytes and adds four products to each.
_DOTS = {
    ("x86_64", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("x86_64", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("x86_64", 4): "llvm.x86.avx512.vpdpbusd.128",
    ("aarch64", 4): "llvm.aarch64.neon.usdot.v4i32.v16i8",
}
# Bytes -> the x86 instructions that add products of bytes, and of 16 bits, two by two.
_BYTE_PAIRS = {
    16: "llvm.x86.ssse3.pmadd.ub.sw.128",
    32: "llvm.x86.avx2.pmadd.ub.sw",
    64: "llvm.x86.avx512.pmaddubs.w.512",
}
_PAIRS = {16: "llvm.x86.sse2.pmadd.wd", 32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}
_SIGNED_DOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"
# Lanes -> the x86 instruction that adds two products of bf16.
_DOTS_OF_TWO = {lanes: f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}" for lanes in (4, 8, 16)}
# Integers all of which an i32 holds.
_NARROW = frozenset({DType.I8, DType.U8, DType.I16, DType.U16, DType.I32})
# The largest number of lanes with 32 bits, and minus the smallest, or nearly so.
_NARROW_LIMIT = 2**31 - 1
# Lanes -> the x86 instruction that permutes them by a vector.
_LOOKUPS = {16: "llvm.x86.avx512.permvar.sf.512", 8: "llvm.x86.avx2.permps"}
# Architecture and bytes -> the instruction that picks bytes of a table of 16.
_BYTE_LOOKUPS = {
    ("x86_64", 64): "llvm.x86.avx512.pshuf.b.512",
    ("x86_64", 32): "llvm.x86.avx2.pshuf.b",
    ("x86_64", 16): "llvm.x86.ssse3.pshuf.b.128",
    ("aarch64", 16): "llvm.aarch64.neon.tbl1.v16i8",
}


class PureOps(FunctionText):
    """Appends instructions for `Let` statements."""

    architecture: str

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
            case "scale2":
                return self.scale2(let, refs)
            case "quotient":
                return self.by_lanes("llvm.nvvm.div.full", "float", refs, let.result.lanes)
            case "exp2":
                return self.by_lanes("llvm.nvvm.ex2.approx.f", "float", refs, let.result.lanes)
            case "neg" if source in FLOATS:
                return self.emit(f"fneg {kind} {refs[0]}")
            case "neg":
                return self.emit(f"sub {kind} {zero_text(args[0].type)}, {refs[0]}")
            case "abs":
                return self.call(f"llvm.abs.{mangled(kind)}", kind, [(kind, refs[0]), ("i1", "false")])
            case "not":
                ones = "true" if source is DType.BOOL else "-1"
                every = ones if args[0].lanes == 1 else f"splat ({ELEMENT[source]} {ones})"
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
            case "lookup":
                return self.call(_LOOKUPS[let.result.lanes], kind, [(llvm_type(a.type), self.ref(a)) for a in args])
            case "byte_lookup":
                return self.byte_lookup(let)
            case "dot4":
                return self.dot4(let)
            case "byte_pairs":
                return self.call(_BYTE_PAIRS[args[0].lanes], kind, [(llvm_type(a.type), self.ref(a)) for a in args])
            case "add_pairs":
                halves = llvm_type(args[1].type)
                pairs = self.call(_PAIRS[2 * args[1].lanes], kind, [(halves, refs[1]), (halves, "splat (i16 1)")])
                return self.emit(f"add {kind} {refs[0]}, {pairs}")
            case "dot2" if let.result.dtype is DType.I32:
                halves = llvm_type(args[1].type)
                sums = self.call(_PAIRS[2 * args[1].lanes], kind, [(halves, refs[1]), (halves, refs[2])])
                return self.emit(f"add {kind} {refs[0]}, {sums}")
            case "dot2":
                pairs = vector_type("bfloat", 2 * let.result.lanes)
                given = [self.emit(f"bitcast {self.typed(a)} to {pairs}") for a in args[1:]]
                instruction = _DOTS_OF_TWO[let.result.lanes]
                return self.call(instruction, kind, [(kind, refs[0]), *((pairs, x) for x in given)])
            case "iota":
                return self.iota(let.result.type)
            case "lane_mask":
                return self.lane_mask(args[0], let.result.lanes)
        raise InternalError(f"{op} on {source} reached the LLVM emitter; legalize expands it first")

    def byte_lookup(self, let: Let) -> str:
        kind, lanes = llvm_type(let.result.type), let.result.lanes
        assert isinstance(let.attr, tuple)
        # x86 has the table in every 16 bytes of a vector, and gives 0 for an index with the highest bit.
        table = f"<{', '.join(f'i8 {entry}' for entry in let.attr * (lanes // 16))}>"
        index = self.emit(f"and {self.typed(let.args[0])}, splat (i8 15)")
        return self.call(_BYTE_LOOKUPS[self.architecture, lanes], kind, [(kind, table), (kind, index)])

    def dot4(self, let: Let) -> str:
        kind, given = llvm_type(let.result.type), [(llvm_type(x.type), self.ref(x)) for x in let.args]
        is_signed = let.args[1].dtype is DType.I8
        return self.call(_SIGNED_DOT if is_signed else _DOTS[self.architecture, let.result.lanes], kind, given)

    def scale2(self, let: Let, refs: list[str]) -> str:
        """x86's vscalef: all lanes, rounded to nearest."""
        lanes, kind = let.result.lanes, llvm_type(let.result.type)
        bits = 8 * lanes * let.result.dtype.size_bytes
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if let.result.dtype is DType.F32 else 'pd'}.{bits}"
        mask = ("i16" if lanes == 16 else "i8", "-1")
        rounding = [("i32", "4")] if bits == 512 else []
        return self.call(name, kind, [(kind, refs[0]), (kind, refs[1]), (kind, "zeroinitializer"), mask, *rounding])

    def by_lanes(self, name: str, element: str, vectors: list[str], lanes: int) -> str:
        """An instruction that only single numbers have, for each lane of vectors."""
        if lanes == 1:
            return self.call(name, element, [(element, v) for v in vectors])
        kind, result = f"<{lanes} x {element}>", "poison"
        for lane in range(lanes):
            ones = [self.emit(f"extractelement {kind} {v}, i32 {lane}") for v in vectors]
            found = self.call(name, element, [(element, one) for one in ones])
            result = self.emit(f"insertelement {kind} {result}, {element} {found}, i32 {lane}")
        return result

    def compare(self, op: str, kind: ValueType, refs: list[str]) -> str:
        if kind.dtype in FLOATS:
            return self.emit(f"fcmp {_FLOAT_COMPARE[op]} {llvm_type(kind)} {refs[0]}, {refs[1]}")
        condition = op if op in ("eq", "ne") else f"{'s' if kind.dtype.is_signed else 'u'}{op}"
        return self.emit(f"icmp {condition} {llvm_type(kind)} {refs[0]}, {refs[1]}")

    def cast(self, x: Value, to: ValueType) -> str:
        old, new, text = x.dtype, to.dtype, self.typed(x)
        target = llvm_type(to)
        if old is new:
            return self.ref(x)
        if new is DType.BOOL:
            word = "fcmp une" if old in FLOATS else "icmp ne"
            return self.emit(f"{word} {text}, {zero_text(x.type)}")
        if DType.F16 in (old, new) or new is DType.BF16:
            return self.half_cast(x, to)
        if old in FLOATS and new in FLOATS:
            return self.emit(f"{'fpext' if new is DType.F64 else 'fptrunc'} {text} to {target}")
        if old in FLOATS and to.lanes > 1 and self.architecture == "x86_64" and new in _NARROW:
            return self.saturated(x, to)
        if old in FLOATS:
            name = f"llvm.fpto{'s' if new.is_signed else 'u'}i.sat"
            kind = llvm_type(x.type)
            return self.call(f"{name}.{mangled(target)}.{mangled(kind)}", target, [(kind, self.ref(x))])
        if new in FLOATS:
            return self.emit(f"{'sitofp' if old.is_signed else 'uitofp'} {text} to {target}")
        old_bits = 1 if old is DType.BOOL else 8 * old.size_bytes
        new_bits = 8 * new.size_bytes
        if old_bits == new_bits:
            return self.ref(x)
        word = "trunc" if new_bits < old_bits else "sext" if old.is_signed else "zext"
        return self.emit(f"{word} {text} to {target}")

    def saturated(self, x: Value, to: ValueType) -> str:
        """Floats clamped, then converted: the intrinsic that saturates would go lane by lane."""
        kind, wide = llvm_type(x.type), vector_type("i32", to.lanes)
        bits = 8 * to.dtype.size_bytes
        lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if to.dtype.is_signed else (0, 2**bits - 1)
        # The largest f32 below 2^31; what is larger is told apart afterwards.
        is_cut = x.dtype is DType.F32 and bits == 32
        number = self.ref(x)
        ordered = self.emit(f"fcmp ord {kind} {number}, zeroinitializer")
        number = self.emit(f"select <{to.lanes} x i1> {ordered}, {kind} {number}, {kind} zeroinitializer")
        for condition, bound in (("ogt", lowest), ("olt", 2**31 - 128 if is_cut else highest)):
            limit = f"splat ({ELEMENT[x.dtype]} {literal_text(x.dtype, bound)})"
            inside = self.emit(f"fcmp {condition} {kind} {number}, {limit}")
            number = self.emit(f"select <{to.lanes} x i1> {inside}, {kind} {number}, {kind} {limit}")
        result = self.emit(f"fptosi {kind} {number} to {wide}")
        if is_cut:
            limit = f"splat ({ELEMENT[x.dtype]} {literal_text(x.dtype, 2**31)})"
            above = self.emit(f"fcmp oge {kind} {self.ref(x)}, {limit}")
            result = self.emit(f"select <{to.lanes} x i1> {above}, {wide} splat (i32 {highest}), {wide} {result}")
        return result if bits == 32 else self.emit(f"trunc {wide} {result} to {llvm_type(to)}")

    def half_cast(self, x: Value, to: ValueType) -> str:
        half = vector_type("bfloat" if to.dtype is DType.BF16 else "half", to.lanes)
        bits = vector_type("i16", to.lanes)
        if to.dtype in (DType.F16, DType.BF16):
            rounded = self.emit(f"fptrunc {self.typed(x)} to {half}")
            return self.emit(f"bitcast {half} {rounded} to {bits}")
        read = self.emit(f"bitcast {self.typed(x)} to {half}")
        return self.emit(f"fpext {half} {read} to {llvm_type(to)}")

    def shuffle(self, let: Let) -> str:
        a, b = let.args
        assert isinstance(let.attr, tuple)
        lanes = let.attr
        if a.lanes == 1:
            raise InternalError("shuffle of scalars")
        picks = f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
        shuffled = self.emit(f"shufflevector {self.typed(a)}, {self.typed(b)}, {picks}")
        if len(lanes) > 1:
            return shuffled
        return self.emit(f"extractelement <1 x {ELEMENT[a.dtype]}> {shuffled}, i32 0")

    def iota(self, kind: ValueType) -> str:
        element = ELEMENT[kind.dtype]
        return f"<{', '.join(f'{element} {i}' for i in range(kind.lanes))}>" if kind.lanes > 1 else "0"

    def fact(self, index: Value) -> Fact:
        """What is known of an index."""
        return exactly(int(index.literal)) if isinstance(index, Const) else ANYTHING

    def lane_mask(self, count: Value, lanes: int) -> str:
        number, fact = self.ref(count), self.fact(count)
        if lanes == 1:
            return self.emit(f"icmp sgt i64 {number}, 0")
        # Clamped, unless it is known to fit, so that the comparison can be on narrow lanes.
        if fact.low < -_NARROW_LIMIT:
            number = self.intrinsic("smax", "i64", number, "0")
        if fact.high > _NARROW_LIMIT:
            number = self.intrinsic("smin", "i64", number, str(lanes))
        narrow = self.emit(f"trunc i64 {number} to i32")
        kind = f"<{lanes} x i32>"
        one = self.emit(f"insertelement {kind} poison, i32 {narrow}, i32 0")
        every = self.emit(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        return self.emit(f"icmp sgt {kind} {every}, {self.iota(ValueType(DType.I32, lanes))}")
