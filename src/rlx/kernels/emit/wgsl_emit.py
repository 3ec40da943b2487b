"""Loop IR in 32-bit words -> WGSL: one module of many kernels.

Buffers are bound as arrays of u32. Which parameters share a binding is decided by whoever runs the kernel, since WebGPU
forbids to bind memory that is written twice: a `Bound` for each buffer parameter says where its words are. Memory
larger than a binding may be takes several of them. Scalars come in a uniform array: first the places where buffers
begin, then sizes. A block is a workgroup; blocks are numbered through a grid of two dimensions.

Compilers of WGSL may compute (a + b) - b as a, a - a as 0, a x - a y as a (x - y), 0 x as 0 and not (a < b) as a >= b.
The loop IR means what it says: where two operations could become one, the value between them is joined with a word that
only the run knows to be 0, and zeros are made of that word.

WGSL begins variables with zeros, and compilers write them out one by one, in time that grows with their square: larger
arrays of a thread lie in a buffer of scratch, and larger tables in one of their words, for each of which there is one
more `Bound`.

What an adapter has beyond WGSL's core comes as what the loop IR has for it: subgroups as wide as the machine's, dot
products of four bytes, which are one word here, and f16 between two casts. A sum, difference or product of numbers that
come from f16 and go there is computed in f16: that rounds to the same number.

>>> from rlx.ir.dtype import DType
>>> from rlx.kernels.ir.builder import KernelBuilder
>>> from rlx.kernels.words.words import in_words
>>> k = KernelBuilder("double")
>>> x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
>>> with k.parallel("i", n) as i:
...     k.store(y, i, k.load(x, i) * 2.0)
>>> print(wgsl_module([WgslKernel("k0", in_words(k.build()), (Bound(1), Bound(2)))]))
@group(0) @binding(0) var<uniform> args: array<vec4<i32>, 16>;
@group(0) @binding(1) var<storage, read_write> w1: array<u32>;
@group(0) @binding(2) var<storage, read_write> w2: array<u32>;
<BLANKLINE>
@compute @workgroup_size(1)
fn k0(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let v0 = args[0].x;
    let v1 = args[0].y;
    let v2 = args[0].z;
    let v3 = i32(group.x + group.y * 32768u);
    if (v3 < v2) {
        let v4 = v0 + v3;
        let v5 = w1[v4];
        let v6 = bitcast<f32>(v5);
        let v7 = v6 * 0x1p+1f;
        let v8 = v1 + v3;
        let v9 = bitcast<u32>(v7);
        w2[v8] = v9;
    }
}
<BLANKLINE>
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.text_layer import GridLayer
from rlx.kernels.emit.wgsl_text import TYPE, Prelude
from rlx.kernels.ir.groups import Exchange, SubgroupPlace
from rlx.kernels.ir.loop_ir import (
    Atomic,
    Buffer,
    Const,
    For,
    Kernel,
    Let,
    Load,
    LoopKind,
    Space,
    Statement,
    Store,
    Value,
    walk,
)
from rlx.kernels.ir.operations import COMPARISONS

# Blocks side by side; a dimension of a grid has at most 65535.
GRID_ROW = 32768
# Elements of the largest array of a thread that is a variable.
LARGEST_VARIABLE = 64
# Words of arguments of most kernels, and of the largest; the last of them is always 0.
ARGUMENTS, MOST_ARGUMENTS = 64, 1024

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "quotient": "/",
    "rem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_LOGICAL = {"and": "&&", "or": "||", "xor": "!="}
_CALLS = {"sqrt", "floor", "ceil", "trunc", "round", "abs", "fma"}
_SUMS = {"add", "sub", "fma"}
_PRODUCTS = {"mul", "div", "quotient"}
_DIFFERENCES = {"sub", "div", "quotient"}
_LANES = "xyzw"
_IN_F16 = {"add": "+", "sub": "-", "mul": "*"}
_PLACE_BUILTINS = {
    "subgroup_lane": "subgroup_invocation_id",
    "subgroup_width": "subgroup_size",
    "subgroup_number": "subgroup_id",
    "subgroup_count": "num_subgroups",
}


class Bound(NamedTuple):
    """Where a parameter's words are: the first binding, how many there are, and the words of all but the last. Without
    windows that is not known yet: `first` is the number of the memory in an `OpenKernel`."""

    first: int
    windows: int = 1
    window: int = 0


class WgslKernel(NamedTuple):
    """A kernel in words, its name in the module, and where its buffers are."""

    entry: str
    kernel: Kernel
    bounds: tuple[Bound, ...]


class OpenKernel(NamedTuple):
    """A kernel whose memory somebody else binds: the text of its entry point and of what it declares, and of each
    memory which functions are to be written for it: `read0(place: i32) -> u32`, `store0(place: i32, x: u32)`, `or0`."""

    text: str
    calls: tuple[tuple[str, ...], ...]


def scratch_arrays(kernel: Kernel) -> list[Buffer]:
    """The arrays of a thread that lie in scratch."""
    return [a for a in kernel.arrays if a.space is Space.LOCAL and (a.size or 0) > LARGEST_VARIABLE]


def stored_tables(kernel: Kernel) -> list[Buffer]:
    """The tables that are too large for a variable."""
    return [a for a in kernel.arrays if a.space is Space.TABLE and (a.size or 0) > LARGEST_VARIABLE]


def table_words(kernel: Kernel) -> list[int]:
    """The words of these tables, one after the other."""
    kinds = {DType.F32: np.float32, DType.I32: np.int32, DType.U32: np.uint32}
    return [int(w) for a in stored_tables(kernel) for w in np.array(a.data, kinds[a.dtype]).view(np.uint32)]


def scratch_words(kernel: Kernel) -> int:
    """Words of scratch that a thread needs."""
    return sum(a.size or 0 for a in scratch_arrays(kernel))


def argument_words(kernel: Kernel) -> int:
    """How many words of arguments are bound to a kernel."""
    return ARGUMENTS if sum(isinstance(p, Value) for p in kernel.params) < ARGUMENTS else MOST_ARGUMENTS


def wgsl_module(kernels: Sequence[WgslKernel]) -> str:
    """The text of a module with an entry point for each kernel."""
    prelude = Prelude()
    functions = [_Function(k, prelude) for k in kernels]
    texts = [f.text() for f in functions]
    declared: dict[str, None] = {}
    for function in functions:
        declared.update(dict.fromkeys(function.declarations))
    enabled = ["enable f16;"] if any(f.uses_f16 for f in functions) else []
    return "\n".join([*enabled, *sorted(declared)]) + "\n" + prelude.text + "\n" + "\n".join(texts)


def open_kernel(kernel: Kernel, prelude: Prelude) -> OpenKernel:
    """A kernel with the entry point `main` for whoever binds its memory. The functions in `prelude` belong to it."""
    count = sum(isinstance(p, Buffer) for p in kernel.params)
    count += bool(scratch_arrays(kernel)) + bool(stored_tables(kernel))
    made = _Function(WgslKernel("main", kernel, tuple(Bound(n, 0) for n in range(count))), prelude)
    text = made.text()
    declared = "".join(f"{line}\n" for line in dict.fromkeys(made.declarations))
    return OpenKernel(declared + text, tuple(tuple(made.calls[n]) for n in range(count)))


class _Function(GridLayer):
    has_bare_statements = False

    def __init__(self, made: WgslKernel, prelude: Prelude) -> None:
        super().__init__()
        self.entry, self.kernel, self.prelude = made.entry, made.kernel, prelude
        self.declarations: list[str] = []
        buffers = [p for p in self.kernel.params if isinstance(p, Buffer)]
        self.bounds = dict(zip(buffers, made.bounds))
        rest = list(made.bounds[len(buffers) :])
        # Where arrays begin in what they share: those of a thread in its part of the scratch, and tables.
        self.inside: dict[Buffer, str] = {}
        for group, base in ((scratch_arrays(self.kernel), "scratch + "), (stored_tables(self.kernel), "")):
            starts = itertools.accumulate([0, *(a.size or 0 for a in group)])
            self.inside.update({a: f"{base}{start} + " for a, start in zip(group, starts)})
            if group:
                self.bounds.update(dict.fromkeys(group, rest.pop(0)))
        changed = {s.buffer for s in walk(self.kernel.body) if isinstance(s, Atomic)}
        # All parameters of a binding see the same type.
        self.atomic_bindings = {b.first for buffer, b in self.bounds.items() if buffer in changed}
        self.arrays: dict[Buffer, str] = {}
        self.threads = self.kernel.thread_count
        self.made = {s.result: s for s in walk(self.kernel.body) if isinstance(s, Let)}
        self.loaded = {s.result: (s.buffer, s.offset) for s in walk(self.kernel.body) if isinstance(s, Load)}
        self.last_argument = ""
        self.uses_nothing = False
        lets = [s for s in walk(self.kernel.body) if isinstance(s, Let)]
        self.uses_f16 = any(DType.F16 in (let.result.dtype, *(a.dtype for a in let.args)) for let in lets)
        self.has_places = any(isinstance(s, SubgroupPlace) for s in walk(self.kernel.body))
        # Of memory that is bound elsewhere, what is done with it.
        self.calls: defaultdict[int, dict[str, None]] = defaultdict(dict)

    def text(self) -> str:
        self.scalars()
        if scratch_arrays(self.kernel):
            block = f"i32(group.x + group.y * {GRID_ROW}u)"
            self.line(f"let scratch = ({block} * {self.threads} + i32(thread)) * {scratch_words(self.kernel)};")
        for number, array in enumerate(self.kernel.arrays):
            if array not in self.inside:
                self.array(array, number)
        self.block(self.kernel.body, is_last=True)
        for bound in self.bounds.values():
            for number in range(bound.first, bound.first + bound.windows):
                kind = "atomic<u32>" if bound.first in self.atomic_bindings else "u32"
                name = self.binding(bound, number)
                self.declarations.append(
                    f"@group(0) @binding({number}) var<storage, read_write> {name}: array<{kind}>;"
                )
        builtins = "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32"
        if self.has_places:
            builtins += "".join(f", @builtin({builtin}) {name}: u32" for name, builtin in _PLACE_BUILTINS.items())
        head = [f"@compute @workgroup_size({self.threads})", f"fn {self.entry}({builtins}) {{"]
        if self.uses_nothing:
            head.append(f"    let nothing = bitcast<u32>({self.last_argument});")
        return "\n".join([*head, *self.lines, "}", ""])

    def statement(self, statement: Statement) -> None:
        match statement:
            case Exchange(result, how, value, _, _):
                is_float = value.dtype is DType.F32 and how != "add"
                name = self.prelude.function(f"subgroup_{how}_f32") if is_float else f"subgroup{how.capitalize()}"
                self.line(f"let {self.fresh(result)} = {name}({self.at(value)});")
            case SubgroupPlace():
                for value, name in zip(statement.results(), _PLACE_BUILTINS):
                    self.line(f"let {self.fresh(value)} = i32({name});")
            case _:
                super().statement(statement)

    def scalars(self) -> None:
        params = [p for p in self.kernel.params if isinstance(p, Value)]
        if len(params) >= MOST_ARGUMENTS:
            raise InternalError(f"kernel {self.kernel.name} has {len(params)} sizes, more than {MOST_ARGUMENTS - 1}")
        is_small = argument_words(self.kernel) == ARGUMENTS
        name, size = ("args", ARGUMENTS // 4) if is_small else ("many_args", MOST_ARGUMENTS // 4)
        self.last_argument = f"{name}[{size - 1}].w"
        self.declarations.append(f"@group(0) @binding(0) var<uniform> {name}: array<vec4<i32>, {size}>;")
        for number, param in enumerate(params):
            self.line(f"let {self.fresh(param)} = {name}[{number // 4}].{_LANES[number % 4]};")

    # Memory.

    def array(self, array: Buffer, number: int) -> None:
        kind = f"array<{TYPE[array.dtype]}, {max(1, array.size or 0)}>"
        name = self.arrays[array] = f"m{number}" if array.space is Space.LOCAL else f"{self.entry}_m{number}"
        match array.space:
            case Space.LOCAL:
                self.line(f"var {name}: {kind};")
            case Space.SHARED:
                self.declarations.append(f"var<workgroup> {name}: {kind};")
            case _:
                data = ", ".join(self.prelude.literal(array.dtype, x) for x in array.data)
                self.declarations.append(f"var<private> {name}: {kind} = {kind}({data});")

    def binding(self, bound: Bound, number: int) -> str:
        return f"{'a' if bound.first in self.atomic_bindings else 'w'}{number}"

    def place(self, buffer: Buffer, offset: Value) -> str:
        """The number of a word in its binding or array."""
        place = self.at(offset)
        if buffer in self.inside:
            return f"{self.inside[buffer]}{place}"
        if buffer in self.arrays and isinstance(offset, Const) and not 0 <= offset.literal < (buffer.size or 0):
            # In a branch that is never taken; WGSL refuses what it knows to be outside.
            self.uses_nothing = True
            return f"{place} + i32(nothing)"
        return place

    def word(self, buffer: Buffer, offset: Value) -> str:
        """A word where it is read."""
        place = self.place(buffer, offset)
        if buffer in self.arrays:
            return f"{self.arrays[buffer]}[{place}]"
        bound = self.bounds[buffer]
        if bound.windows != 1:
            word = f"{self.read_function(bound)}({place})"
        else:
            name = f"{self.binding(bound, bound.first)}[{place}]"
            word = f"atomicLoad(&{name})" if bound.first in self.atomic_bindings else name
        return word if buffer.dtype is DType.U32 else f"bitcast<{TYPE[buffer.dtype]}>({word})"

    def load(self, load: Load) -> None:
        word = self.word(load.buffer, load.offset)
        if load.mask is None or load.other is None:
            self.line(f"let {self.fresh(load.result)} = {word};")
            return
        self.line(f"{self.declared(load.result)} = {self.unknown_zero(load.other)};")
        self.line(f"if ({self.at(load.mask)}) {{ {self.names[load.result]} = {word}; }}")

    def store(self, store: Store) -> None:
        # What is stored may be loaded again.
        value, place = self.unknown_zero(store.value), self.place(store.buffer, store.offset)
        bound = self.bounds.get(store.buffer)
        if bound is None:
            text = f"{self.arrays[store.buffer]}[{place}] = {value};"
        else:
            text = self.written(bound, place, value if store.value.dtype is DType.U32 else self.bits_of(store.value))
        self.line(text if store.mask is None else f"if ({self.at(store.mask)}) {{ {text} }}")

    def bits_of(self, value: Value) -> str:
        if isinstance(value, Const):
            literal = self.unknown_zero(value)
            self.line(f"{self.declared(value)} = {literal};")
            return f"bitcast<u32>({self.names[value]})"
        return f"bitcast<u32>({self.at(value)})"

    def written(self, bound: Bound, place: str, word: str) -> str:
        if bound.windows != 1:
            return f"{self.write_function(bound, 'store')}({place}, {word});"
        name = f"{self.binding(bound, bound.first)}[{place}]"
        return f"atomicStore(&{name}, {word});" if bound.first in self.atomic_bindings else f"{name} = {word};"

    def atomic(self, atomic: Atomic) -> None:
        bound = self.bounds[atomic.buffer]
        place, value = self.at(atomic.offset), self.at(atomic.value)
        if bound.windows != 1:
            self.line(f"{self.write_function(bound, atomic.op)}({place}, {value});")
        else:
            call = f"atomic{atomic.op.capitalize()}"
            self.line(f"{call}(&{self.binding(bound, bound.first)}[{place}], {value});")

    def open_function(self, bound: Bound, op: str) -> str:
        self.calls[bound.first][op] = None
        return f"{op}{bound.first}"

    def read_function(self, bound: Bound) -> str:
        if not bound.windows:
            return self.open_function(bound, "read")
        is_atomic = bound.first in self.atomic_bindings
        cases = []
        for i in range(bound.windows):
            name = f"{self.binding(bound, bound.first + i)}[place - {i * bound.window}]"
            cases.append(f"return {f'atomicLoad(&{name})' if is_atomic else name};")
        name = f"read_{'a' if is_atomic else 'w'}{bound.first}_{bound.windows}_{bound.window}"
        return self.prelude.define(name, _by_window(f"fn {name}(place: i32) -> u32 {{", bound, cases))

    def write_function(self, bound: Bound, op: str) -> str:
        if not bound.windows:
            return self.open_function(bound, op)
        is_atomic = bound.first in self.atomic_bindings
        cases = []
        for i in range(bound.windows):
            name = f"{self.binding(bound, bound.first + i)}[place - {i * bound.window}]"
            cases.append(f"atomic{op.capitalize()}(&{name}, x);" if is_atomic else f"{name} = x;")
        name = f"{op}_{'a' if is_atomic else 'w'}{bound.first}_{bound.windows}_{bound.window}"
        return self.prelude.define(name, _by_window(f"fn {name}(place: i32, x: u32) {{", bound, cases))

    def barrier(self) -> None:
        self.line("storageBarrier();")
        self.line("workgroupBarrier();")

    # Operations.

    def at(self, value: Value) -> str:
        return self.prelude.literal(value.dtype, value.literal) if isinstance(value, Const) else self.names[value]

    def declared(self, value: Value) -> str:
        return f"var {self.fresh(value)}: {TYPE[value.dtype]}"

    def flag(self, name: str, condition: str) -> str:
        return f"let {name} = {condition}"

    def let(self, let: Let) -> None:
        if all(isinstance(a, Const) for a in let.args):
            # A constant expression that overflows is an error; one of variables is not.
            for arg in dict.fromkeys(let.args):
                literal = self.at(arg)
                self.line(f"{self.declared(arg)} = {literal};")
            args = [self.names[a] for a in let.args]
        else:
            args = self.operands(let)
        expression = self.expression(let, args)
        self.line(f"let {self.fresh(let.result)} = {expression};")

    def operands(self, let: Let) -> list[str]:
        """Operands such that no compiler that takes floats for real numbers does without the operation: (a + b) - b,
        a + 0, a * 0, a - a."""
        found = []
        known = [self.known_by(a) for a in let.args]
        for number, arg in enumerate(let.args):
            is_same = known[number] in known[:number] and let.op in _DIFFERENCES and _is_real(let)
            is_merged = is_same or self.could_merge(let, arg)
            found.append(self.kept(arg) if is_merged else self.at(arg))
        return found

    def could_merge(self, let: Let, arg: Value) -> bool:
        if isinstance(arg, Const):
            return arg.literal == 0 and (_is_real(let) or let.op == "select") and arg.dtype is DType.F32
        if arg not in self.made:
            return False
        before = self.made[arg]
        if let.op == "not":
            return before.op in COMPARISONS and before.args[0].dtype is DType.F32
        if not _is_real(let):
            return False
        if let.op in _SUMS and self.shares_factor(let, arg):
            return True
        others = {self.known_by(a) for a in let.args if a is not arg}
        return (before.op in _SUMS) == (let.op in _SUMS) and not others.isdisjoint(map(self.known_by, before.args))

    def shares_factor(self, let: Let, arg: Value) -> bool:
        """Whether the terms of a sum are products with a common factor: a * x - a * y."""
        products = [self.made[a] for a in let.args if a in self.made and self.made[a].op == "mul"]
        if let.op == "fma" or len(products) < 2 or arg is not let.args[0]:
            return False
        return not {*map(self.known_by, products[0].args)}.isdisjoint(map(self.known_by, products[1].args))

    def known_by(self, value: Value) -> Value | float | tuple[Buffer, Value]:
        """What an operand is known by: literals by their size, what was loaded by its place, since two loads of one
        place are one number for a compiler."""
        if isinstance(value, Const):
            return abs(value.literal)
        made = self.made.get(value)
        return self.loaded.get(made.args[0] if made is not None and made.op == "bitcast" else value, value)

    def copy(self, target: str, source: Value) -> None:
        self.line(f"{target} = {self.unknown_zero(source)};")

    def unknown_zero(self, value: Value) -> str:
        """A value where it is one of several that a variable or a place may have; of 0 compilers would know that 0 * x
        is 0."""
        is_zero = isinstance(value, Const) and value.dtype in (DType.F32, DType.U32) and value.literal == 0
        return self.kept(value) if is_zero else self.at(value)

    def kept(self, arg: Value) -> str:
        """A value that compilers know nothing of."""
        self.uses_nothing = True
        if isinstance(arg, Const) and arg.dtype is DType.U32:
            return "nothing"
        if isinstance(arg, Const):
            zero = "bitcast<f32>(nothing)"
            return f"(-{zero})" if math.copysign(1.0, arg.literal) < 0 else zero
        if arg.dtype is DType.BOOL:
            return f"({self.at(arg)} != (nothing != 0u))"
        return f"bitcast<f32>(bitcast<u32>({self.at(arg)}) | nothing)"

    def expression(self, let: Let, args: Sequence[str]) -> str:
        op, source = let.op, let.args[0].dtype
        is_float = source is DType.F32
        if op == "ne" and let.args[0] is let.args[1] and is_float:
            return f"{self.prelude.function('is_nan')}({args[0]})"
        if op == "ne" and is_float:
            return self.differs(args[0], args[1])
        if op in COMPARISONS:
            return f"{args[0]} {_SIGNS[op]} {args[1]}"
        if op in _LOGICAL and source is DType.BOOL:
            return f"{args[0]} {_LOGICAL[op]} {args[1]}"
        if op in ("min", "max"):
            if not is_float:
                return f"{op}({args[0]}, {args[1]})"
            if isinstance(let.args[1], Const):
                args = [args[1], args[0]]
            return f"{self.prelude.function(f'{op}_f32')}({args[0]}, {args[1]})"
        if op in _BINARY:
            return f"{args[0]} {_BINARY[op]} {args[1]}"
        if op in _CALLS:
            return f"{op}({', '.join(args)})"
        match op:
            case "shl" | "shr":
                count = args[1] if let.args[1].dtype is DType.U32 else f"u32({args[1]})"
                return f"{args[0]} {'<<' if op == 'shl' else '>>'} {count}"
            case "neg":
                return f"-{args[0]}"
            case "not":
                return f"!{args[0]}" if source is DType.BOOL else f"~{args[0]}"
            case "select":
                return f"select({args[2]}, {args[1]}, {args[0]})"
            case "cast" if let.result.dtype is DType.F16:
                return self.in_f16(let.args[0]) or f"f16({args[0]})"
            case "cast":
                return self.cast(args[0], source, let.result.dtype)
            case "bitcast":
                return self.bitcast(let, args[0])
            case "dot4":
                return f"{args[0]} + dot4I8Packed({args[1]}, {args[2]})"
        raise InternalError(f"{op} on {source} reached the WGSL emitter; legalize expands it first")

    def in_f16(self, value: Value) -> str:
        """A float as an operation on f16, where all its operands come from there; else nothing."""
        made = self.made.get(value)
        if made is None or made.op not in _IN_F16:
            return ""
        sources = [self.made.get(a) for a in made.args]
        halves = [s.args[0] for s in sources if s is not None and s.op == "cast" and s.args[0].dtype is DType.F16]
        if len(halves) < 2 or (made.op == "sub" and halves[0] is halves[1]):
            return ""
        return f" {_IN_F16[made.op]} ".join(map(self.at, halves))

    def bitcast(self, let: Let, x: str) -> str:
        source, to = let.args[0].dtype, let.result.dtype
        if to is DType.F16:
            return f"f16(unpack2x16float({x}).x)"
        if source is DType.F16:
            # What is computed of it begins with a number that compilers know nothing of.
            self.uses_nothing = True
            return f"pack2x16float(vec2<f32>(f32({x}), 0f)) | nothing"
        if let.result.lanes == 4:
            return f"bitcast<u32>({x})"
        return f"bitcast<{TYPE[to]}>({x})"

    def differs(self, a: str, b: str) -> str:
        """a != b of floats: that sign of WGSL is false of NaN with some compilers, and what they make of !(a == b)."""
        self.uses_nothing = True
        return f"({a} == {b}) == (nothing != 0u)"

    def cast(self, x: str, source: DType, to: DType) -> str:
        if to is DType.BOOL and source is DType.F32:
            return self.differs(x, self.prelude.literal(source, 0))
        if to is DType.BOOL:
            return f"{x} != {self.prelude.literal(source, 0)}"
        if source is DType.F32 and to is not DType.F32:
            return f"{self.prelude.function(f'{TYPE[to]}_from_f32')}({x})"
        return f"{TYPE[to]}({x})"

    # Control.

    def number(self, loop: For) -> None:
        which = "thread" if loop.kind is LoopKind.THREADS else f"group.x + group.y * {GRID_ROW}u"
        self.line(f"let {self.fresh(loop.index)} = i32({which});")

    def block_loop(self, loop: For, is_last: bool) -> None:
        self.number(loop)
        # A grid of two dimensions has more blocks than there are iterations.
        self.line(f"if ({self.names[loop.index]} < {self.at(loop.stop)}) {{")
        outer, self.indent = self.indent, f"{self.indent}    "
        self.block(loop.body, is_last)
        self.indent = outer
        self.line("}")

    def loop_ends(self, loop: For) -> None:
        """Every index has a name of its own."""

    def loop_head(self, loop: For) -> str:
        start, stop, step = (self.at(v) for v in (loop.start, loop.stop, loop.step))
        index = self.fresh(loop.index)
        return f"for (var {index} = {start}; {index} < {stop}; {index} += {step}) {{"


def _is_real(let: Let) -> bool:
    """Whether it is an operation on floats that is another one for real numbers."""
    return let.result.dtype is DType.F32 and let.op in _SUMS | _PRODUCTS


def _by_window(head: str, bound: Bound, cases: Sequence[str]) -> str:
    """A function that does the case of the binding which has the word `place`."""
    lines = [f"    if (place < {(i + 1) * bound.window}) {{ {case} }}" for i, case in enumerate(cases[:-1])]
    if not cases[0].startswith("return"):
        lines = [line.replace(" }", " return; }") for line in lines]
    return "\n".join([head, *lines, f"    {cases[-1]}", "}", ""])
