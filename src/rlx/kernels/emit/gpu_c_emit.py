"""`GpuCFunction`: what the C of GPUs has beyond C, for OpenCL C and Metal's C++: address spaces, blocks of threads with
barriers between them, and conversions of bits that need no memory.

A language adds its words for these, the head of a kernel, and what gives a kernel its arguments. Types have their own
widths and memory has their own elements, so nothing needs the words of `rlx.kernels.words`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from rlx.errors import BackendError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_emit import CFunction
from rlx.kernels.emit.c_text import MEMORY_TYPE, VALUE_TYPE, Prelude
from rlx.kernels.emit.text_layer import GridLayer
from rlx.kernels.ir.groups import refuse_groups
from rlx.kernels.ir.loop_ir import FLOATS, Buffer, Const, For, Kernel, Let, LoopKind, Space, Value
from rlx.kernels.legalize import legalize, refuse_missing_types
from rlx.kernels.machines import Machine

# What both languages lack of C's headers: names of types with their widths, and literals of them.
LITERALS = """\
#define INT64_C(number) number##L
#define UINT64_C(number) number##UL
#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807L - 1)
#define LANES(count) for (int l = 0; l < (count); l++)
"""
# The languages' own names of types, as in `as_uint`.
OWN_TYPE = {
    "int8_t": "char",
    "uint8_t": "uchar",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
    "float": "float",
    "double": "double",
}


class GpuKernel(NamedTuple):
    """A kernel that is legal on a machine, and its name in a module."""

    entry: str
    kernel: Kernel


def legal_for_text(kernel: Kernel, machine: Machine, language: str) -> Kernel:
    """A kernel in what the C of GPUs has: no f16 but its bits, no operations of groups but those of the machine's unit
    for matrices and what its threads exchange; an error if it needs others."""
    legal = legalize(kernel, replace(machine, has_f16_conversion=False, dot2_lanes=()))
    refuse_groups(legal, language, with_exchange=machine.matrix is not None, matrix=machine.matrix)
    refuse_missing_types(legal, machine.has_f64)
    return legal


class GpuPrelude(Prelude):
    """The functions of a module. A language says how a word of memory is exchanged."""

    def scale2(self, dtype: DType) -> str:
        kind = VALUE_TYPE[dtype]
        return self.define(f"scale2_{dtype}", kind, f"{kind} x, {kind} n", "return ldexp(x, isfinite(n) ? (int)n : 0);")

    def seen_otherwise(self, kind: str) -> str:
        """A type whose memory is also seen as another one."""
        name = f"{kind}_seen_otherwise"
        self._functions.setdefault(name, f"typedef {kind} __attribute__((may_alias)) {name};\n")
        return name

    def atomic(self, op: str, dtype: DType) -> str:
        if dtype.size_bytes != 4:
            raise BackendError(f"atomic {op} on {dtype}: GPUs promise atomic operations on 4 bytes alone")
        if dtype in FLOATS:
            combined = "seen + x"
        else:
            function = self.wrapped("add", dtype) if op == "add" else self.extreme(op, dtype)
            combined = f"{function}(seen, x)"
        name, kind = f"atomic_{op}_{dtype}", VALUE_TYPE[dtype]
        self._functions.setdefault(name, self.exchange(name, kind, combined))
        return name

    def exchange(self, name: str, kind: str, combined: str) -> str:
        """The function `name(p, x)`: at `p` there is `combined`, an expression in `seen`, after what has been seen."""
        raise NotImplementedError


class GpuCFunction(GridLayer, CFunction):
    """One kernel."""

    # The words for address spaces of buffers, and the expressions for the numbers of a block and of a thread in it.
    spaces: ClassVar[dict[Space, str]]
    block_number: ClassVar[str]
    thread_number: ClassVar[str]
    barrier_call: ClassVar[str]

    def __init__(self, made: GpuKernel, prelude: GpuPrelude) -> None:
        super().__init__(made.kernel, prelude, fused=True)
        self.entry, self.types = made.entry, prelude
        self.threads = self.kernel.thread_count
        # No word of a language begins so.
        self.buffers = {b: f"b_{b.name}" for b in (*self.kernel.params, *self.kernel.arrays) if isinstance(b, Buffer)}
        for param in self.kernel.params:
            if isinstance(param, Value):
                self.names[param] = f"n_{param.name}"
        # Memory that is seen as two types has types that say so, and is read as any other.
        self.overlapping, self.retyped = self.retyped, frozenset()

    @abstractmethod
    def head(self) -> list[str]:
        """The lines up to the brace that begins the body."""

    @abstractmethod
    def arguments(self) -> None:
        """The lines that give parameters their names."""

    @abstractmethod
    def as_type(self, kind: str, x: str) -> str:
        """The bits of a scalar as another type of the same size."""

    def fragment(self, array: Buffer) -> str:
        """The declaration of a matrix that a wave holds, in a language that has them."""
        raise InternalError(f"kernel {self.kernel.name}: {array.name} is a fragment, which this language does not have")

    def text(self) -> str:
        tables = [self.table(a) for a in self.kernel.arrays if a.space is Space.TABLE]
        self.arguments()
        for array in self.kernel.arrays:
            if array.space is Space.FRAGMENT:
                self.line(self.fragment(array))
            elif array.space is not Space.TABLE:
                space = f"{self.spaces[array.space]} ".lstrip()
                kind = MEMORY_TYPE[array.dtype]
                self.line(f"{space}{kind} {self.buffers[array]}[{max(1, array.size or 0)}];")
        self.block(self.kernel.body, is_last=True)
        return "\n".join([*tables, *self.head(), *self.lines, "}", ""])

    def table(self, array: Buffer) -> str:
        self.buffers[array] = name = f"{self.entry}_{array.name}"
        data = ", ".join(self.prelude.literal(array.dtype, x) for x in array.data)
        return f"{self.spaces[Space.TABLE]} {MEMORY_TYPE[array.dtype]} {name}[{array.size}] = {{{data}}};"

    def element(self, buffer: Buffer) -> str:
        """What a parameter points to."""
        kind = MEMORY_TYPE[buffer.dtype]
        kind = self.types.seen_otherwise(kind) if buffer in self.overlapping else kind
        return kind if buffer.writes else f"const {kind}"

    @property
    def params(self) -> tuple[list[Buffer], list[Value]]:
        """Buffers, and scalars."""
        params = self.kernel.params
        return [p for p in params if isinstance(p, Buffer)], [p for p in params if isinstance(p, Value)]

    # Operations.

    def function(self, name: str, dtype: DType) -> str:
        return name

    def bitcast(self, let: Let) -> None:
        (x,) = let.args
        to = VALUE_TYPE[let.result.dtype]
        if let.result.lanes == x.lanes:
            # A literal of a narrow type has the width of an int.
            bits = f"({VALUE_TYPE[x.dtype]}){self.at(x)}" if isinstance(x, Const) else self.at(x)
            self.assign(let.result, self.as_type(to, bits))
            return
        # Lanes of other widths share the memory of both.
        both = f"{self.fresh(let.result)}_bits"
        name = self.names[let.result]
        arrays = f"{VALUE_TYPE[x.dtype]} from[{x.lanes}]; {to} to[{let.result.lanes}];"
        self.line(f"union {{ {arrays} }} {both};")
        self.line(f"LANES({x.lanes}) {both}.from[l] = {self.at(x)};")
        if let.result.lanes == 1:
            self.line(f"{to} {name} = {both}.to[0];")
        else:
            self.line(f"{to} {name}[{let.result.lanes}]; LANES({let.result.lanes}) {name}[l] = {both}.to[l];")

    # Control.

    def number(self, loop: For) -> None:
        which = self.thread_number if loop.kind is LoopKind.THREADS else self.block_number
        self.line(f"const int64_t {self.fresh(loop.index)} = {which};")

    def barrier(self) -> None:
        self.line(self.barrier_call)

    def index_name(self, value: Value) -> str:
        return self.fresh(value)


def gpu_module(header: str, functions: Sequence[GpuCFunction], prelude: GpuPrelude) -> str:
    """The text of a module with all kernels."""
    texts = [f.text() for f in functions]
    return "\n".join([header + prelude.text, *texts])
