"""`Writer`: LLVM text of one GPU kernel. Values are SSA names with a type; operators append instructions.

Mutable values are stack slots, which LLVM's own passes turn into registers, so loops and branches are plain to write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_LETTERS = {"i16": "h", "i32": "r", "i64": "l", "float": "f", "ptr": "l"}

Number = int | float


class Val:
    """A value with its LLVM type. Integers are not negative where they are divided or shifted to the right."""

    def __init__(self, writer: Writer, name: str, type: str) -> None:
        self.writer, self.name, self.type = writer, name, type

    def _op(self, op: str, other: Val | Number, result: str = "") -> Val:
        right = self.writer.value(other, self.type)
        return self.writer.emit(f"{op} {self.type} {self.name}, {right.name}", result or self.type)

    def _arithmetic(self, op: str, other: Val | Number) -> Val:
        # `contract` lets LLVM make one instruction of a product and a sum.
        return self._op(f"f{op} contract" if self.type == "float" else op, other)

    def __add__(self, other: Val | Number) -> Val:
        return self._arithmetic("add", other)

    def __sub__(self, other: Val | Number) -> Val:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Val | Number) -> Val:
        return self._arithmetic("mul", other)

    def __floordiv__(self, other: Val | int) -> Val:
        return self._op("udiv", other)

    def __mod__(self, other: Val | int) -> Val:
        return self._op("urem", other)

    def __and__(self, other: Val | int) -> Val:
        return self._op("and", other)

    def __or__(self, other: Val | int) -> Val:
        return self._op("or", other)

    def __xor__(self, other: Val | int) -> Val:
        return self._op("xor", other)

    def __lshift__(self, other: Val | int) -> Val:
        return self._op("shl", other)

    def __rshift__(self, other: Val | int) -> Val:
        return self._op("lshr", other)

    def __lt__(self, other: Val | int) -> Val:
        return self._op("icmp slt", other, "i1")

    def __gt__(self, other: Val | int) -> Val:
        return self._op("icmp sgt", other, "i1")

    def equals(self, other: Val | int) -> Val:
        return self._op("icmp eq", other, "i1")


class Var:
    """A mutable value."""

    def __init__(self, writer: Writer, start: Val | Number, type: str = "i32") -> None:
        self._writer, self._type = writer, type
        self._slot = writer.slot(type)
        self.set(start)

    def get(self) -> Val:
        return self._writer.emit(f"load {self._type}, ptr {self._slot}", self._type)

    def set(self, value: Val | Number) -> None:
        self._writer.line(f"store {self._type} {self._writer.value(value, self._type).name}, ptr {self._slot}")


class Writer:
    """Appends to the body of one kernel. `params` are texts of its parameters; `blocks` is how many blocks a
    multiprocessor shall have room for, which limits the registers of a thread."""

    def __init__(self, name: str, threads: int, blocks: int = 1, cluster: int = 1) -> None:
        self.name, self.threads, self.blocks, self.cluster = name, threads, blocks, cluster
        self.params: list[str] = []
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._declared: set[str] = set()
        self._count = 0

    # Values.

    def param(self, name: str, type: str, attributes: str = "") -> Val:
        self.params.append(f"{type} {attributes} %{name}".replace("  ", " "))
        return Val(self, f"%{name}", type.split(" ")[0] if "addrspace" not in type else type)

    def tensor_map(self, name: str) -> Val:
        """128 bytes by value, which the copy engine reads in place: without the attribute LLVM would copy them."""
        self.params.append(f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %{name}')
        return Val(self, f"%{name}", "ptr")

    def value(self, x: Val | Number, type: str = "i32") -> Val:
        if isinstance(x, Val):
            return x
        if type == "float":
            # LLVM writes a float as the bits of the double of the same value.
            (rounded,) = struct.unpack("<f", struct.pack("<f", x))
            return Val(self, f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}", type)
        return Val(self, str(int(x)), type)

    def slot(self, type: str) -> str:
        self._count += 1
        self._slots.append(f"%slot{self._count} = alloca {type}")
        return f"%slot{self._count}"

    def line(self, text: str) -> None:
        self._lines.append(text)

    def emit(self, text: str, type: str) -> Val:
        self._count += 1
        self.line(f"%v{self._count} = {text}")
        return Val(self, f"%v{self._count}", type)

    def call(self, name: str, type: str, *arguments: Val) -> Val:
        self._declared.add(f"declare {type} @{name}({', '.join(a.type for a in arguments)})")
        return self.emit(f"call {type} @{name}({', '.join(f'{a.type} {a.name}' for a in arguments)})", type)

    def let_next_begin(self) -> None:
        """The kernel behind may be brought to the multiprocessors when all blocks of this one have come here."""
        self.asm("griddepcontrol.launch_dependents;")

    def wait_for_others(self) -> None:
        """Wait for all that kernels in front have stored; before it, only weights may be read."""
        self.asm("griddepcontrol.wait;")

    def register(self, name: str) -> Val:
        return self.call(f"llvm.nvvm.read.ptx.sreg.{name}", "i32")

    def select(self, condition: Val, a: Val | Number, b: Val | Number, type: str = "i32") -> Val:
        left, right = self.value(a, type), self.value(b, type)
        return self.emit(f"select i1 {condition.name}, {type} {left.name}, {type} {right.name}", type)

    def least(self, a: Val, b: Val | int) -> Val:
        return self.call("llvm.smin.i32", "i32", a, self.value(b))

    def most(self, a: Val, b: Val | int) -> Val:
        return self.call("llvm.smax.i32", "i32", a, self.value(b))

    def wide(self, x: Val) -> Val:
        return self.emit(f"zext i32 {x.name} to i64", "i64")

    def assume(self, condition: Val) -> None:
        self._declared.add("declare void @llvm.assume(i1)")
        self.line(f"call void @llvm.assume(i1 {condition.name})")

    # Control.

    def _label(self) -> str:
        self._count += 1
        return f"L{self._count}"

    @contextmanager
    def when(self, condition: Val) -> Iterator[None]:
        then, end = self._label(), self._label()
        self.line(f"br i1 {condition.name}, label %{then}, label %{end}\n{then}:")
        yield
        self.line(f"br label %{end}\n{end}:")

    def either(self, condition: Val, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        yes, no, end = self._label(), self._label(), self._label()
        self.line(f"br i1 {condition.name}, label %{yes}, label %{no}\n{yes}:")
        then()
        self.line(f"br label %{end}\n{no}:")
        otherwise()
        self.line(f"br label %{end}\n{end}:")

    @contextmanager
    def loop(self, start: Val | int, stop: Val, step: Val | int = 1) -> Iterator[Val]:
        index, head, body, end = Var(self, start), self._label(), self._label(), self._label()
        self.line(f"br label %{head}\n{head}:")
        here = index.get()
        self.line(f"br i1 {(here < stop).name}, label %{body}, label %{end}\n{body}:")
        yield here
        index.set(here + step)
        self.line(f"br label %{head}\n{end}:")

    @contextmanager
    def loop_while(self, condition: Callable[[], Val]) -> Iterator[None]:
        """Again and again, as long as what `condition` writes is true."""
        head, body, end = self._label(), self._label(), self._label()
        self.line(f"br label %{head}\n{head}:")
        self.line(f"br i1 {condition().name}, label %{body}, label %{end}\n{body}:")
        yield
        self.line(f"br label %{head}\n{end}:")

    def asm(
        self,
        text: str,
        tied: Sequence[Val] = (),
        results: Sequence[str] = (),
        early: bool = False,
        named: Mapping[str, Val | int] | None = None,
        **inputs: Val | int,
    ) -> list[Val]:
        """Inline PTX. `<name>` stands for an input, also one of `named`; tied values are read and written: $0.. are
        their new values, and behind them come results of these types, `early` if they are written before all inputs
        have been read.

        `convergent` forbids LLVM to copy it or move it across branches, `~{memory}` keeps its place among others."""
        given = {name: self.value(x) for name, x in {**inputs, **(named or {})}.items()}
        for number, name in enumerate(given):
            text = text.replace(f"<{name}>", f"${2 * len(tied) + len(results) + number}")
        types = [*(t.type for t in tied), *results]
        outputs = [f"={'&' if early else ''}{_LETTERS[t]}" for t in types]
        constraints = [*outputs, *map(str, range(len(tied))), *(_LETTERS[v.type] for v in given.values()), "~{memory}"]
        arguments = ", ".join(f"{v.type} {v.name}" for v in (*tied, *given.values()))
        returned = "void" if not types else types[0] if len(types) == 1 else f"{{{', '.join(types)}}}"
        call = f'call {returned} asm sideeffect "{" ".join(text.split())}", "{",".join(constraints)}"({arguments}) #1'
        if not types:
            self.line(call)
            return []
        result = self.emit(call, returned)
        if len(types) == 1:
            return [result]
        return [self.emit(f"extractvalue {returned} {result.name}, {i}", t) for i, t in enumerate(types)]

    def module(self, triple: str, beside: str = "") -> str:
        """The whole module; `beside` are functions and declarations of others, whose declarations are not repeated."""
        known = {line for line in beside.splitlines() if line.startswith("declare ")}
        declared = "\n".join(sorted(self._declared - known))
        body = "\n".join([*self._slots, *self._lines])
        cluster = f' "nvvm.cluster_dim"="{self.cluster}"' if self.cluster > 1 else ""
        return f"""target triple = "{triple}"
@smem = external addrspace(3) global [0 x i8], align 1024
{declared}
{beside}
define ptx_kernel void @{self.name}({", ".join(self.params)}) #0 {{
{body}
ret void
}}
attributes #0 = {{ "nvvm.maxntid"="{self.threads}" "nvvm.minctasm"="{self.blocks}"{cluster} }}
attributes #1 = {{ convergent nounwind }}
"""
