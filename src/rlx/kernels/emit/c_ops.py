"""Pure operations of the loop IR as C expressions, one lane at a time."""

from __future__ import annotations

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_text import VALUE_TYPE, Prelude
from rlx.kernels.emit.text_layer import TextLayer
from rlx.kernels.ir.loop_ir import FLOATS, Const, Let, Value, ValueType
from rlx.kernels.ir.operations import COMPARISONS

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FLOAT_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BIT_SIGNS = {"and": "&", "or": "|", "xor": "^"}
_TRUNCATING = {"div": "/", "rem": "%", "shr": ">>"}
# round is half to even: C's rint, in the rounding mode that every program starts with.
_LIBRARY = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "abs": "fabs"}


class COps(TextLayer):
    """Appends the statements of `Let`; a vector is an array, and a loop over its lanes computes it."""

    def __init__(self, prelude: Prelude, fused: bool) -> None:
        super().__init__()
        self.prelude = prelude
        self.fused = fused

    def function(self, name: str, dtype: DType) -> str:
        """A function of the math library for a type."""
        return f"{name}f" if dtype is DType.F32 else name

    def declared(self, value: Value) -> str:
        """A declaration of a new variable for the value."""
        name = self.fresh(value)
        return f"{VALUE_TYPE[value.dtype]} {name}" + (f"[{value.lanes}]" if value.lanes > 1 else "")

    def at(self, value: Value, lane: str = "l") -> str:
        """One lane of a value; a scalar has the same in every lane."""
        if isinstance(value, Const):
            return self.prelude.literal(value.dtype, value.literal)
        return self.names[value] if value.lanes == 1 else f"{self.names[value]}[{lane}]"

    def assign(self, result: Value, expression: str) -> None:
        """Define the result by an expression for lane `l`."""
        declaration = self.declared(result)
        if result.lanes == 1:
            self.line(f"{declaration} = {expression};")
        else:
            self.line(f"{declaration}; LANES({result.lanes}) {self.names[result]}[l] = {expression};")

    def copy(self, target: str, source: Value) -> None:
        """A variable of the source's type gets its value."""
        if source.lanes == 1:
            self.line(f"{target} = {self.at(source)};")
        else:
            self.line(f"LANES({source.lanes}) {target}[l] = {self.at(source)};")

    def let(self, let: Let) -> None:
        match let.op:
            case "bitcast":
                self.bitcast(let)
            case "shuffle":
                self.shuffle(let)
            case "lookup":
                table, index = let.args
                self.assign(let.result, self.at(table, f"{self.at(index)} & {table.lanes - 1}"))
            case "byte_lookup":
                entries = ", ".join(map(str, let.attr)) if isinstance(let.attr, tuple) else ""
                picked = f"[{self.at(let.args[0])} & 15]"
                self.assign(let.result, f"((const unsigned char[16]){{{entries}}}){picked}")
            case "dot4":
                self.dot4(let)
            case _:
                self.assign(let.result, self.expression(let))

    def expression(self, let: Let) -> str:
        """The result in lane `l`."""
        op, kind = let.op, let.result.type
        args = [self.at(a) for a in let.args]
        source = let.args[0].dtype if let.args else kind.dtype
        if op in COMPARISONS:
            return f"{args[0]} {_SIGNS[op]} {args[1]}"
        if op in ("min", "max"):
            # Which of two zeros comes back is open; in this order it is the one that LLVM's code for x86 gives.
            if isinstance(let.args[1], Const):
                args.reverse()
            return f"{self.prelude.extreme(op, source)}({args[0]}, {args[1]})"
        if source in FLOATS and op in _FLOAT_SIGNS:
            return f"{args[0]} {_FLOAT_SIGNS[op]} {args[1]}"
        if source in FLOATS and op in _LIBRARY:
            return f"{self.function(_LIBRARY[op], source)}({args[0]})"
        if op in _BIT_SIGNS:
            return f"({VALUE_TYPE[source]})({args[0]} {_BIT_SIGNS[op]} {args[1]})"
        if op in _TRUNCATING:
            return f"({VALUE_TYPE[source]})({args[0]} {_TRUNCATING[op]} {args[1]})"
        if op in ("add", "sub", "mul", "shl"):
            return f"{self.prelude.wrapped(op, source)}({args[0]}, {args[1]})"
        match op:
            case "fma" if self.fused:
                return f"{self.function('fma', source)}({', '.join(args)})"
            case "fma":
                return f"{args[0]} * {args[1]} + {args[2]}"
            case "scale2":
                return f"{self.prelude.scale2(source)}({args[0]}, {args[1]})"
            case "neg" if source in FLOATS:
                return f"-{args[0]}"
            case "neg":
                return f"{self.prelude.wrapped('neg', source)}({args[0]})"
            case "abs":
                return f"{self.prelude.absolute(source)}({args[0]})"
            case "not":
                return f"!{args[0]}" if source is DType.BOOL else f"({VALUE_TYPE[source]})~{args[0]}"
            case "select":
                return f"{args[0]} ? {args[1]} : {args[2]}"
            case "cast":
                return self.cast(args[0], source, kind)
            case "splat":
                return args[0]
            case "extract":
                return self.at(let.args[0], str(let.attr))
            case "iota":
                return f"({VALUE_TYPE[kind.dtype]})l" if kind.lanes > 1 else "0"
            case "lane_mask":
                return f"l < {args[0]}" if kind.lanes > 1 else f"0 < {args[0]}"
        raise InternalError(f"{op} on {source} reached the C emitter; legalize expands it first")

    def cast(self, x: str, source: DType, to: ValueType) -> str:
        if to.dtype is DType.BOOL:
            return f"{x} != 0"
        if source in FLOATS and to.dtype not in FLOATS:
            return f"{self.prelude.saturated(source, to.dtype)}({x})"
        return f"({VALUE_TYPE[to.dtype]}){x}"

    def bitcast(self, let: Let) -> None:
        (x,) = let.args
        if isinstance(x, Const):
            self.assign(x, self.prelude.literal(x.dtype, x.literal))
        source = self.names[x]
        self.line(f"{self.declared(let.result)};")
        target = self.names[let.result]
        addresses = [name if v.lanes > 1 else f"&{name}" for name, v in ((target, let.result), (source, x))]
        self.line(f"memcpy({', '.join(addresses)}, sizeof {target});")

    def shuffle(self, let: Let) -> None:
        a, b = let.args
        assert isinstance(let.attr, tuple)
        lanes = [self.at(v, str(i)) for v in (a, b) for i in range(v.lanes)]
        picks = [lanes[i] for i in let.attr if isinstance(i, int)]
        if let.result.lanes == 1:
            self.assign(let.result, picks[0])
        else:
            self.line(f"{self.declared(let.result)} = {{{', '.join(picks)}}};")

    def dot4(self, let: Let) -> None:
        total, a, b = let.args
        one = let.result.lanes == 1
        products = [
            f"{self.at(a, f'{j}' if one else f'4 * l + {j}')} * {self.at(b, f'{j}' if one else f'4 * l + {j}')}"
            for j in range(4)
        ]
        # Products of bytes and sums of four of them fit an int; only the last addition may wrap.
        add = self.prelude.wrapped("add", DType.I32)
        self.assign(let.result, f"{add}({self.at(total)}, {' + '.join(products)})")
