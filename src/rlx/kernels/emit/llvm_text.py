"""The words of LLVM's text form: types, literals, and a list of lines that instructions are appended to."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import FLOATS, SHORT_FLOATS, Const, Literal, Value, ValueType

# Short floats are carried as bits, so that no LLVM pass can turn a conversion of them into a library call.
ELEMENT = {
    DType.BOOL: "i1",
    **{d: f"i{8 * d.size_bytes}" for d in DType if d.is_int and not d.is_storage},
    DType.F16: "i16",
    DType.BF16: "i16",
    DType.F8E4M3: "i8",
    DType.F8E5M2: "i8",
    DType.F32: "float",
    DType.F64: "double",
}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def llvm_type(kind: ValueType) -> str:
    element = ELEMENT[kind.dtype]
    return element if kind.lanes == 1 else f"<{kind.lanes} x {element}>"


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def mangled(kind: str) -> str:
    """The suffix of an overloaded intrinsic: `<16 x float>` -> v16f32."""
    if not kind.startswith("<"):
        return _SUFFIX.get(kind, kind)
    lanes, element = kind[1:-1].split(" x ")
    return f"v{lanes}{_SUFFIX.get(element, element)}"


def literal_text(dtype: DType, literal: Literal) -> str:
    if dtype in FLOATS:
        # LLVM writes a float as the bits of the double of the same value.
        return f"0x{struct.unpack('<Q', struct.pack('<d', literal))[0]:016X}"
    if dtype in SHORT_FLOATS:
        return str(int(np.asarray(literal, dtype.numpy).view(f"u{dtype.size_bytes}")))
    return str(literal)


def constant_text(const: Const) -> str:
    text = literal_text(const.dtype, const.literal)
    return text if const.lanes == 1 else f"splat ({ELEMENT[const.dtype]} {text})"


def zero_text(kind: ValueType) -> str:
    if kind.lanes > 1:
        return "zeroinitializer"
    return "0.0" if kind.dtype in FLOATS else "false" if kind.dtype is DType.BOOL else "0"


class FunctionText:
    """The instructions of one function, with the names of the values they define."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.names: dict[Value, str] = {}
        self.label = "entry"
        self.count = 0

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
        return constant_text(value) if isinstance(value, Const) else self.names[value]

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
        return self.call(f"llvm.{name}.{mangled(kind)}", kind, [(kind, a) for a in args], flags)
