"""The C of each step of a program: the kernels that it needs, its constants, and the call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cortex_m import c_elementwise as elementwise
from rlx.backends.cortex_m import c_products as products
from rlx.backends.cortex_m import c_sequences as sequences
from rlx.backends.cortex_m.arena import Arena
from rlx.backends.cortex_m.c_arithmetic import C_TYPES
from rlx.backends.export import identifier
from rlx.errors import RlxError
from rlx.quantized import (
    Add,
    AddConstant,
    Argmax,
    Attention,
    Clamp,
    Concat,
    Conv2d,
    Dense,
    Gru,
    Interpolate,
    LayerNorm,
    Lookup,
    Lstm,
    MaxPool,
    MeanPool,
    Mul,
    Program,
    Rescale,
    Rows,
    Softmax,
)
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, Multipliers, Value, limits

_PER_LINE = 16


def program_name(program: Program) -> str:
    """What files and functions of a program are called; the project that they are in has others."""
    return identifier(program.name, taken=("main", "startup"))


class Body:
    """Kernels, constants and calls, collected step by step."""

    def __init__(self, program: Program, arena: Arena) -> None:
        self.program, self.arena = program, arena
        self.numbers = {id(step): n for n, step in enumerate(program.steps, 1)}
        self.kernels: dict[str, None] = {}
        self.constants: list[str] = []
        self.calls: list[str] = []
        # How many calls there are before those of each step; some have several.
        self.calls_before: list[int] = []
        self.weight_bytes = self.table_bytes = 0
        # Equal tables are stored once.
        self.tables: dict[str, str] = {}

    def _name(self, step: Step) -> str:
        """The name of a step's constants: with its number, so that no two have the same, and none is a word of C."""
        return f"s{self._number(step)}_{identifier(step.name)}"

    def add(self, step: Step) -> None:
        self.calls_before.append(len(self.calls))
        operands = self.program.operands(step)
        codes = [str(v.dtype) for v in operands]
        out = str(step.out.dtype)
        match step:
            case Dense():
                self._product(
                    step, operands[0], "dense", products.DENSE_PARAMETERS, self._dense_sizes(operands[0], step)
                )
            case Conv2d():
                self._product(step, operands[0], "conv", products.CONV_PARAMETERS, self._conv_sizes(operands[0], step))
            case MaxPool() | MeanPool():
                self._pool(step, operands[0])
            case Add() | Mul():
                kind, make = ("add", elementwise.add) if isinstance(step, Add) else ("mul", elementwise.mul)
                text, headroom = make(codes[0], codes[1], out), 1 << Add.headroom_of(*operands)
                self._pair(step, operands, f"{kind}_{codes[0]}_{codes[1]}_{out}", text, headroom)
            case Rescale():
                self._pair(step, operands, f"rescale_{codes[0]}_{out}", elementwise.rescale(codes[0], out))
            case Clamp():
                self._pair(step, operands, f"clamp_{out}", elementwise.clamp(out))
            case Argmax():
                self._use(elementwise.argmax(codes[0]))
                self._call(step, f"argmax_{codes[0]}", f"{operands[0].size}u")
            case Lookup():
                self._use(elementwise.lookup(out))
                table = self._table(f"{self._name(step)}_table", step.table, C_TYPES[out])
                self._call(step, f"lookup_{out}", f"{table}, {step.out.size}u")
            case Softmax():
                self._use(sequences.SOFTMAX)
                table = self._table(f"{self._name(step)}_table", step.table)
                self._call(step, "softmax_i8", f"{table}, {step.out.size // step.out.dims[-1]}u, {step.out.dims[-1]}u")
            case Interpolate():
                self._use(elementwise.INTERPOLATE)
                table = self._table(f"{self._name(step)}_table", step.table, "int16_t")
                self._call(step, "interpolate", f"{table}, {step.out.size}u")
            case AddConstant():
                self._add_constant(step, operands[0])
            case Concat():
                self._concat(step, operands)
            case Rows():
                self._use(elementwise.copy(out))
                first = step.start * operands[0].size // operands[0].dims[0]
                pointers = [f"{self._pointer(step.inputs[0])} + {first}", self._pointer(self._number(step), False)]
                self.calls.append(f"    copy_{out}({step.out.size}u, {', '.join(pointers)});\n")
            case LayerNorm():
                self._layer_norm(step, operands[0])
            case Attention():
                self._attention(step, operands)
            case Gru() | Lstm():
                self._recurrent(step, operands[0])
            case _:
                raise RlxError(f"cortex-m: {step.name}: there is no C for a {type(step).__name__}")

    def _use(self, *texts: str) -> None:
        self.kernels.update(dict.fromkeys(texts))

    def _product(self, step: Dense | Conv2d, x: Value, kind: str, parameters: str, sizes: Sequence[int]) -> None:
        codes, out, bits = str(x.dtype), str(step.out.dtype), step.weights.bits
        function = f"{kind}_{codes}_{out}_w{bits}"
        if isinstance(step, Conv2d) and _is_plain_depthwise(step):
            function = f"depthwise_{codes}_{out}_w8"
            self._use(parameters, products.depthwise(codes, out))
        else:
            make = products.dense if kind == "dense" else products.conv
            shared = [products.row(out)] if (codes, bits) == ("i8", 8) else []
            self._use(parameters, products.dot(codes, bits), *shared, make(codes, out, bits))
        weights, tables = self._weights(step), self._product_tables(step)
        numbers = [*sizes, x.zero_point, step.out.zero_point, step.low, step.high]
        self._structure(kind, self._name(step), [weights, *tables, *numbers])
        self._call(step, function, f"&{self._name(step)}")

    def _weights(self, step: Dense | Conv2d | Gru | Lstm) -> str:
        packed, name = step.weights.packed, f"{self._name(step)}_weights"
        if isinstance(step, Conv2d) and _is_plain_depthwise(step):
            packed = np.ascontiguousarray(np.moveaxis(step.weights.codes[..., 0], 0, -1)).tobytes()
        self.weight_bytes += len(packed)
        elements = rows([str(b) for b in packed])
        self.constants.append(f"static const uint8_t {name}[{len(packed)}] = {{\n{elements}\n}};\n")
        return name

    def _product_tables(self, step: Dense | Conv2d | Gru | Lstm) -> list[str]:
        """Biases and multipliers per output channel."""
        m0, shift = _in_31_bits(step.multipliers)
        tables = (("bias", step.bias), ("m0", m0), ("shift", shift))
        return [self._table(f"{self._name(step)}_{what}", t) for what, t in tables]

    def _dense_sizes(self, x: Value, step: Dense) -> list[int]:
        return [x.size, step.channels]

    def _conv_sizes(self, x: Value, step: Conv2d) -> list[int]:
        channels = step.channels
        return [
            *x.dims,
            *step.out.dims,
            *step.kernel,
            x.dims[2] // step.groups,
            channels // step.groups,
            *step.stride,
            *step.dilation,
            step.padding[0][0],
            step.padding[1][0],
        ]

    def _pool(self, step: MaxPool | MeanPool, x: Value) -> None:
        codes = str(x.dtype)
        kind, make = ("max", elementwise.max_pool) if isinstance(step, MaxPool) else ("mean", elementwise.mean_pool)
        self._use(elementwise.POOL_PARAMETERS, make(codes))
        pads = (step.padding[0][0], step.padding[1][0])
        numbers = [*x.dims, *step.out.dims[:2], *step.kernel, *step.stride, *pads]
        self._structure("pool", self._name(step), numbers)
        self._call(step, f"{kind}_pool_{codes}", f"&{self._name(step)}")

    def _pair(
        self,
        step: Add | AddConstant | Mul | Rescale | Clamp,
        operands: Sequence[Value],
        function: str,
        text: str,
        headroom: int = 0,
        constants: Sequence[str] = (),
    ) -> None:
        self._use(elementwise.PAIR_PARAMETERS, text)
        zeros = [v.zero_point for v in operands][:2] + [0] * (2 - len(operands))
        m0 = shift = [0, 0, 0]
        if not isinstance(step, Clamp):
            m0, shift = ([*map(int, t), 0, 0][:3] for t in _in_31_bits(step.multipliers))
        numbers = [*zeros, step.out.zero_point, step.low, step.high, headroom]
        tables = (f"{{{', '.join(map(str, t))}}}" for t in (m0, shift))
        self._structure("pair", self._name(step), [f"{step.out.size}u", *numbers, *tables])
        self._call(step, function, f"&{self._name(step)}", constants)

    def _add_constant(self, step: AddConstant, x: Value) -> None:
        codes, out, constant = str(x.dtype), str(step.out.dtype), step.constant
        kind = str(constant.dtype)
        table = self._table(f"{self._name(step)}_codes", step.codes.reshape(-1), C_TYPES[kind])
        text, headroom = elementwise.add(codes, kind, out), 1 << Add.headroom_of(x, constant)
        self._pair(step, [x, constant], f"add_{codes}_{kind}_{out}", text, headroom, [table])

    def _concat(self, step: Concat, operands: Sequence[Value]) -> None:
        out, width, at = str(step.out.dtype), step.out.dims[-1], 0
        m0, shift = _in_31_bits(step.multipliers)
        for i, x in enumerate(operands):
            self._use(elementwise.JOIN_PARAMETERS, elementwise.join(str(x.dtype), out))
            sizes = [x.size // x.dims[-1], x.dims[-1], width]
            numbers = [*sizes, x.zero_point, step.out.zero_point, *limits(step.out.dtype), int(m0[i]), int(shift[i])]
            name = f"{self._name(step)}_part{i + 1}"
            self._structure("join", name, numbers)
            pointers = [self._pointer(step.inputs[i]), f"{self._pointer(self._number(step), False)} + {at}"]
            self.calls.append(f"    join_{x.dtype}_{out}({', '.join([f'&{name}', *pointers])});\n")
            at += x.dims[-1]

    def _layer_norm(self, step: LayerNorm, x: Value) -> None:
        self._use(sequences.LAYER_NORM_PARAMETERS, sequences.WHOLE_ROOT)
        self._use(sequences.layer_norm(str(x.dtype), str(step.out.dtype)))
        name, n = self._name(step), x.dims[-1]
        tables = [self._table(f"{name}_gamma", step.gamma, "int16_t"), self._table(f"{name}_beta", step.beta)]
        m0, shift = _in_31_bits(step.multipliers)
        numbers = [n, step.places(n), int(m0[0]), int(shift[0]), step.out.zero_point, step.low, step.high]
        self._structure("layer_norm", name, [*tables, f"{step.epsilon}u", f"{x.size // n}u", *numbers])
        self._call(step, f"layer_norm_{x.dtype}_{step.out.dtype}", f"&{name}")

    def _attention(self, step: Attention, operands: Sequence[Value]) -> None:
        v, out, name = str(operands[2].dtype), str(step.out.dtype), self._name(step)
        self._use(sequences.ATTENTION_PARAMETERS, products.dot("i8", 8), sequences.attention(v, out))
        table = self._table(f"{name}_table", step.table)
        sizes = [step.out.dims[0], step.heads, step.heads // step.kv_heads, step.head, int(step.causal)]
        pairs = [f"{{{', '.join(str(int(n)) for n in t)}}}" for t in _in_31_bits(step.multipliers)]
        ends = [step.out.zero_point, step.low, step.high]
        self._structure("attention", name, [table, *sizes, *(x.zero_point for x in operands), *pairs, *ends])
        self._call(step, f"attention_{v}_{out}", f"&{name}, (int32_t *)(bytes + {self._scratch(step)})")

    def _recurrent(self, step: Gru | Lstm, x: Value) -> None:
        out, bits, name = str(step.out.dtype), step.weights.bits, self._name(step)
        kind = "lstm" if isinstance(step, Lstm) else "gru"
        texts = (products.dot("i16", bits), sequences.gate(bits), sequences.recurrent(type(step), out, bits))
        self._use(sequences.RECURRENT_PARAMETERS, *texts)
        weights, tables = self._weights(step), self._product_tables(step)
        functions = [self._table(f"{name}_{what}", t, "int16_t") for what, t in zip(("sigmoid", "tanh"), step.tables)]
        m0, shift = _in_31_bits(step.out_multiplier)
        sizes = [x.dims[0], step.size, int(step.reverse), int(len(step.out.dims) == 1)]
        ends = [int(m0[0]), int(shift[0]), step.out.zero_point, step.low, step.high]
        self._structure("recurrent", name, [weights, *tables, *functions, *sizes, *ends])
        self._call(step, f"{kind}_{out}_w{bits}", f"&{name}, (int16_t *)(bytes + {self._scratch(step)})")

    def _structure(self, kind: str, name: str, fields: Sequence[object]) -> None:
        self.constants.append(f"static const struct {kind} {name} = {{{', '.join(map(str, fields))}}};\n")

    def _scratch(self, step: Step) -> int:
        return self.arena.scratch[self._number(step)]

    def _number(self, step: Step) -> int:
        """The number of the value that a step gives."""
        return self.numbers[id(step)]

    def _table(self, name: str, values: Array, c_type: str = "int32_t") -> str:
        key = f"{c_type} {values.tolist()}"
        if key not in self.tables:
            self.tables[key] = name
            self.table_bytes += len(values) * {"int8_t": 1, "int16_t": 2, "int32_t": 4}[c_type]
            numbers = [_literal(int(v)) for v in values]
            self.constants.append(f"static const {c_type} {name}[{len(values)}] = {{\n{rows(numbers)}\n}};\n")
        return self.tables[key]

    def _pointer(self, number: int, is_const: bool = True) -> str:
        kind = C_TYPES[str(self.program.values[number].dtype)]
        return f"({'const ' if is_const else ''}{kind} *)(bytes + {self.arena.offsets[number]})"

    def _call(self, step: Step, function: str, parameters: str, constants: Sequence[str] = ()) -> None:
        pointers = [*map(self._pointer, step.inputs), *constants, self._pointer(self._number(step), False)]
        self.calls.append(f"    {function}({', '.join([parameters, *pointers])});\n")


def _is_plain_depthwise(step: Conv2d) -> bool:
    return step.is_depthwise and step.weights.bits == 8 and step.dilation == (1, 1)


def _in_31_bits(multipliers: Multipliers) -> tuple[Array, Array]:
    """Multipliers of 15 bits give the same codes when they are shifted into 31: both halves grow by 2^16."""
    grown = multipliers.m0.astype(np.int64) << (31 - multipliers.fraction_bits)
    return grown, multipliers.shift


def _literal(value: int) -> str:
    # The lowest number is no literal of C: the minus sign applies to a number that does not fit.
    return "INT32_MIN" if value == -(2**31) else str(value)


def rows(items: Sequence[str]) -> str:
    """The elements of a table, some per line."""
    lines = (", ".join(items[n : n + _PER_LINE]) for n in range(0, len(items), _PER_LINE))
    return ",\n".join(f"    {line}" for line in lines)
