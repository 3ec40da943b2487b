"""The printed form of a kernel: one statement a line, every result with its type, names stable across machines."""

from __future__ import annotations

from functools import cache

from rlx.ir.dtype import DType
from rlx.kernels.ir.groups import Roles
from rlx.kernels.ir.loop_ir import (
    Atomic,
    Attr,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    GroupStatement,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Statement,
    Store,
    Value,
    ValueType,
)


def kernel_text(kernel: Kernel) -> str:
    return _Printer(kernel).text()


def statement_text(kernel: Kernel, wanted: Statement) -> str:
    """The line of one statement as it stands in `kernel.text`, for messages."""
    return _Printer(kernel, wanted).found


class _Printer:
    def __init__(self, kernel: Kernel, wanted: Statement | None = None) -> None:
        self.kernel = kernel
        self.wanted = wanted
        self.found = ""
        self.names: dict[Value, str] = {}
        self.used: set[str] = set()
        self.lines: list[str] = []
        self.count = 0
        params = ", ".join(_parameter(p) if isinstance(p, Buffer) else self.define(p) for p in kernel.params)
        self.lines.append(f"kernel @{kernel.name}({params}) {{")
        for array in kernel.arrays:
            data = f" = {list(array.data)}" if array.data else ""
            size = f"{array.rows}x{array.cols}" if array.cols else array.size
            self.lines.append(f"  {array.space} {array.name}: {array.dtype}[{size}] align {array.align}{data}")
        self.block(kernel.body, "  ")
        self.lines.append("}")

    def text(self) -> str:
        return "\n".join(self.lines)

    def define(self, value: Value) -> str:
        """The value's name with its type, at the place where it is defined."""
        name = value.name
        if not name:
            name = str(self.count)
            self.count += 1
        base, suffix = name, 1
        while name in self.used:
            suffix += 1
            name = f"{base}_{suffix}"
        self.used.add(name)
        shown = self.names[value] = f"%{name}"
        return f"{shown}: {_type_text(value.type)}"

    def use(self, value: Value) -> str:
        shown = self.names.get(value)
        if shown is not None:
            return shown
        if not isinstance(value, Const):
            return f"%undefined:{value.type}"
        shown = self.names[value] = repr(value)  # literals are shared
        return shown

    def uses(self, values: tuple[Value, ...]) -> str:
        return ", ".join([self.use(value) for value in values])

    def block(self, block: Block, indent: str) -> None:
        for statement in block.statements:
            start = len(self.lines)
            if type(statement) is Let:  # most are
                self.let(statement, indent)
            else:
                self.statement(statement, indent)
            if statement is self.wanted:
                self.found = self.lines[start].strip()
        if block.yields:
            self.lines.append(f"{indent}yield {self.uses(block.yields)}")
        if block.again is not None:
            self.lines.append(f"{indent}again if {self.use(block.again)}")

    def let(self, let: Let, indent: str) -> None:
        operands = f" {self.uses(let.args)}" if let.args else ""
        attr = "" if let.attr is None else _attr_text(let.attr)
        self.lines.append(f"{indent}{self.define(let.result)} = {let.op}{operands}{attr}")

    def statement(self, statement: Statement, indent: str) -> None:
        line = self.lines.append
        match statement:
            case Load(result, buffer, offset, mask, other, align):
                tail = (
                    f" mask {self.use(mask)} else {self.use(other)}" if mask is not None and other is not None else ""
                )
                where = f"{buffer.name}[{self.use(offset)}]"
                line(f"{indent}{self.define(result)} = load {where}{tail}{_align_text(align, buffer)}")
            case Store(buffer, offset, value, mask, align):
                tail = f" mask {self.use(mask)}" if mask is not None else ""
                where = f"{buffer.name}[{self.use(offset)}]"
                line(f"{indent}store {where}, {self.use(value)}{tail}{_align_text(align, buffer)}")
            case Prefetch(buffer, offset):
                line(f"{indent}prefetch {buffer.name}[{self.use(offset)}]")
            case Atomic(op, buffer, offset, value):
                line(f"{indent}atomic {op} {buffer.name}[{self.use(offset)}], {self.use(value)}")
            case Barrier():
                line(f"{indent}barrier")
            case For():
                self.loop(statement, indent)
            case If(condition, then, otherwise, results):
                head = f"if {self.use(condition)} {{"
                at = len(self.lines)
                line("")
                self.block(then, indent + "  ")
                if otherwise.statements or otherwise.yields:
                    line(f"{indent}}} else {{")
                    self.block(otherwise, indent + "  ")
                line(f"{indent}}}")
                self.lines[at] = f"{indent}{self.results(results)}{head}"
            case Roles(roles):
                line(f"{indent}roles {{")
                for role in roles:
                    limit = f" registers {role.registers}" if role.registers else ""
                    index = self.define(role.index).split(":")[0]
                    line(f"{indent}  {role.name} {index} = 0 to {role.copies} threads {role.threads}{limit} {{")
                    self.block(role.body, indent + "    ")
                    line(f"{indent}  }}")
                line(f"{indent}}}")
            case GroupStatement():
                line(f"{indent}{self.results(statement.results())}{statement.text(self.use)}")

    def loop(self, loop: For, indent: str) -> None:
        bounds = f"{self.use(loop.start)} to {self.use(loop.stop)}"
        step = "" if isinstance(loop.step, Const) and loop.step.literal == 1 else f" step {self.use(loop.step)}"
        inits = [self.use(v) for v in loop.inits]
        index = self.define(loop.index).split(":")[0]
        carried = ", ".join(f"{self.define(c)} = {i}" for c, i in zip(loop.carried, inits))
        carry = f" carry ({carried})" if carried else ""
        word = loop.kind.value if loop.kind is LoopKind.SERIAL else f"{loop.kind.value} for"
        at = len(self.lines)
        self.lines.append("")
        self.block(loop.body, indent + "  ")
        self.lines.append(f"{indent}}}")
        self.lines[at] = f"{indent}{self.results(loop.results)}{word} {index} = {bounds}{step}{carry} {{"

    def results(self, results: tuple[Value, ...]) -> str:
        return ", ".join(map(self.define, results)) + " = " if results else ""


def _parameter(buffer: Buffer) -> str:
    access = "read" if not buffer.writes else "write" if not buffer.reads else "readwrite"
    align = f" align {buffer.align}" if buffer.align != buffer.dtype.size_bytes else ""
    alias = "" if buffer.noalias else " alias"
    return f"{buffer.name}: {access} {buffer.dtype}{align}{alias}"


@cache
def _type_text(type: ValueType) -> str:
    return str(type)


def _attr_text(attr: Attr) -> str:
    if attr is None or isinstance(attr, ValueType | DType):
        return ""  # the result type says it
    return f" {{{attr if isinstance(attr, int) else ' '.join(map(str, attr))}}}"


def _align_text(align: int, buffer: Buffer) -> str:
    return "" if align == buffer.dtype.size_bytes else f" align {align}"
