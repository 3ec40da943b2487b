"""Integer program → C99: one header and one source with weights, tables and the steps in order.

The caller owns the memory: an arena of a size that the header states, in which the input lies when a run begins and the
result when it ends. Weights and tables are const, so that they stay in flash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.cortex_m import c_kernels as kernels
from rlx.backends.cortex_m.arena import Arena, plan_arena
from rlx.backends.export import identifier
from rlx.errors import RlxError
from rlx.quantized import (
    Add,
    Argmax,
    Clamp,
    Conv2d,
    Dense,
    Lookup,
    MaxPool,
    MeanPool,
    Mul,
    Program,
    Rescale,
    Softmax,
)
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, Multipliers, Value

_PER_LINE = 16
_FAST_INCLUDES = """\
#if defined(__ARM_FEATURE_SIMD32) && !defined(RLX_PLAIN)
#include <arm_acle.h>
#define RLX_FAST
#endif
"""


@dataclass(frozen=True)
class CProgram:
    """The texts, and what they take: bytes of the arena, of weights, and of tables (biases and multipliers)."""

    name: str
    header: str
    source: str
    arena: Arena
    weight_bytes: int
    table_bytes: int


def c_program(program: Program) -> CProgram:
    """C of a program; its file names and functions begin with the program's name."""
    name = identifier(program.name, taken=("main", "startup"))
    arena = plan_arena(program)
    body = _Body(program, arena)
    for step in program.steps:
        body.add(step)
    return CProgram(
        name,
        _header(name, program, arena),
        _source(name, body),
        arena,
        body.weight_bytes,
        body.table_bytes,
    )


class _Body:
    """Kernels, constants and calls, collected step by step."""

    def __init__(self, program: Program, arena: Arena) -> None:
        self.program, self.arena = program, arena
        self.kernels: dict[str, None] = {}
        self.constants: list[str] = []
        self.calls: list[str] = []
        self.weight_bytes = self.table_bytes = 0
        # Equal tables are stored once.
        self.tables: dict[str, str] = {}

    def _name(self, step: Step) -> str:
        """The name of a step's constants: with its number, so that no two have the same, and none is a word of C."""
        return f"s{self.program.steps.index(step) + 1}_{identifier(step.name)}"

    def add(self, step: Step) -> None:
        operands = self.program.operands(step)
        codes = [str(v.dtype) for v in operands]
        out = str(step.out.dtype)
        match step:
            case Dense():
                self._product(
                    step, operands[0], "dense", kernels.DENSE_PARAMETERS, self._dense_sizes(operands[0], step)
                )
            case Conv2d():
                self._product(step, operands[0], "conv", kernels.CONV_PARAMETERS, self._conv_sizes(operands[0], step))
            case MaxPool() | MeanPool():
                self._pool(step, operands[0])
            case Add() | Mul():
                kind, make = ("add", kernels.add) if isinstance(step, Add) else ("mul", kernels.mul)
                text, headroom = make(codes[0], codes[1], out), 1 << Add.headroom_of(*operands)
                self._pair(step, operands, f"{kind}_{codes[0]}_{codes[1]}_{out}", text, headroom)
            case Rescale():
                self._pair(step, operands, f"rescale_{codes[0]}_{out}", kernels.rescale(codes[0], out))
            case Clamp():
                self._pair(step, operands, f"clamp_{out}", kernels.clamp(out))
            case Argmax():
                self._use(kernels.argmax(codes[0]))
                self._call(step, f"argmax_{codes[0]}", f"{operands[0].size}u")
            case Lookup():
                self._use(kernels.lookup(out))
                table = self._table(f"{self._name(step)}_table", step.table, kernels.C_TYPES[out])
                self._call(step, f"lookup_{out}", f"{table}, {step.out.size}u")
            case Softmax():
                self._use(kernels.SOFTMAX)
                table = self._table(f"{self._name(step)}_table", step.table)
                self._call(step, "softmax_i8", f"{table}, {step.out.size // step.out.dims[-1]}u, {step.out.dims[-1]}u")
            case _:
                raise RlxError(f"cortex-m: {step.name}: there is no C for a {type(step).__name__}")

    def _use(self, *texts: str) -> None:
        self.kernels.update(dict.fromkeys(texts))

    def _product(self, step: Dense | Conv2d, x: Value, kind: str, parameters: str, sizes: Sequence[int]) -> None:
        codes, out, bits = str(x.dtype), str(step.out.dtype), step.weights.bits
        function = f"{kind}_{codes}_{out}_w{bits}"
        if isinstance(step, Conv2d) and step.is_depthwise and bits == 8 and step.dilation == (1, 1):
            function = f"depthwise_{codes}_{out}_w8"
            self._use(parameters, kernels.depthwise(codes, out))
        else:
            make = kernels.dense if kind == "dense" else kernels.conv
            self._use(parameters, kernels.dot(codes, bits), make(codes, out, bits))
        packed, name = step.weights.packed, self._name(step)
        self.weight_bytes += len(packed)
        rows = _rows([str(b) for b in packed])
        self.constants.append(f"static const uint8_t {name}_weights[{len(packed)}] = {{\n{rows}\n}};\n")
        m0, shift = _in_31_bits(step.multipliers)
        tables = [
            self._table(f"{self._name(step)}_{what}", t)
            for what, t in (("bias", step.bias), ("m0", m0), ("shift", shift))
        ]
        numbers = [*sizes, x.zero_point, step.out.zero_point, step.low, step.high]
        fields = [f"{self._name(step)}_weights", *tables, *map(str, numbers)]
        self.constants.append(f"static const struct {kind} {self._name(step)} = {{{', '.join(fields)}}};\n")
        self._call(step, function, f"&{self._name(step)}")

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
        kind, codes = "max" if isinstance(step, MaxPool) else "mean", str(x.dtype)
        self._use(kernels.POOL_PARAMETERS, (kernels.max_pool if kind == "max" else kernels.mean_pool)(codes))
        pads = (step.padding[0][0], step.padding[1][0])
        numbers = [*x.dims, *step.out.dims[:2], *step.kernel, *step.stride, *pads]
        self.constants.append(f"static const struct pool {self._name(step)} = {{{', '.join(map(str, numbers))}}};\n")
        self._call(step, f"{kind}_pool_{codes}", f"&{self._name(step)}")

    def _pair(
        self, step: Add | Mul | Rescale | Clamp, operands: Sequence[Value], function: str, text: str, headroom: int = 0
    ) -> None:
        self._use(kernels.PAIR_PARAMETERS, text)
        zeros = [v.zero_point for v in operands][:2] + [0] * (2 - len(operands))
        m0 = shift = [0, 0, 0]
        if not isinstance(step, Clamp):
            m0, shift = ([*map(int, t), 0, 0][:3] for t in _in_31_bits(step.multipliers))
        numbers = [*zeros, step.out.zero_point, step.low, step.high, headroom]
        tables = (f"{{{', '.join(map(str, t))}}}" for t in (m0, shift))
        fields = [f"{step.out.size}u", *map(str, numbers), *tables]
        self.constants.append(f"static const struct pair {self._name(step)} = {{{', '.join(fields)}}};\n")
        self._call(step, function, f"&{self._name(step)}")

    def _table(self, name: str, values: Array, c_type: str = "int32_t") -> str:
        key = f"{c_type} {values.tolist()}"
        if key not in self.tables:
            self.tables[key] = name
            self.table_bytes += len(values) * {"int8_t": 1, "int16_t": 2, "int32_t": 4}[c_type]
            numbers = [_literal(int(v)) for v in values]
            self.constants.append(f"static const {c_type} {name}[{len(values)}] = {{\n{_rows(numbers)}\n}};\n")
        return self.tables[key]

    def _call(self, step: Step, function: str, parameters: str) -> None:
        values, offsets = self.program.values, self.arena.offsets
        result = self.program.steps.index(step) + 1
        pointers = [f"(const {_c_type(values[i])} *)(bytes + {offsets[i]})" for i in step.inputs]
        pointers.append(f"({_c_type(step.out)} *)(bytes + {offsets[result]})")
        self.calls.append(f"    {function}({', '.join([parameters, *pointers])});\n")


def _in_31_bits(multipliers: Multipliers) -> tuple[Array, Array]:
    """Multipliers of 15 bits give the same codes when they are shifted into 31: both halves grow by 2^16."""
    grown = multipliers.m0.astype(np.int64) << (31 - multipliers.fraction_bits)
    return grown, multipliers.shift


def _c_type(value: Value) -> str:
    return kernels.C_TYPES[str(value.dtype)]


def _literal(value: int) -> str:
    # The lowest number is no literal of C: the minus sign applies to a number that does not fit.
    return "INT32_MIN" if value == -(2**31) else str(value)


def _rows(items: Sequence[str]) -> str:
    lines = (", ".join(items[n : n + _PER_LINE]) for n in range(0, len(items), _PER_LINE))
    return ",\n".join(f"    {line}" for line in lines)


def _header(name: str, program: Program, arena: Arena) -> str:
    upper, x, y = name.upper(), program.input, program.result
    return f"""\
/* {name}: an integer network. Generated; do not edit. */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

/* The memory of a run, aligned to 4 bytes; nothing in it is kept from run to run. */
#define {upper}_ARENA_BYTES {arena.size}u

/* Codes [{", ".join(map(str, x.dims))}]; each stands for (code - zero point) * scale. The run overwrites them. */
#define {upper}_INPUT_SIZE {x.size}u
#define {upper}_INPUT_SCALE {_c_float(x.scale)}
#define {upper}_INPUT_ZERO_POINT {x.zero_point}
typedef {_c_type(x)} {name}_input_t;

/* {"A label" if not y.dims else f"Codes [{', '.join(map(str, y.dims))}]"}. */
#define {upper}_OUTPUT_SIZE {y.size}u
#define {upper}_OUTPUT_SCALE {_c_float(y.scale)}
#define {upper}_OUTPUT_ZERO_POINT {y.zero_point}
typedef {_c_type(y)} {name}_output_t;

/* Where to put the input before a run, and where the output lies after it. */
{name}_input_t *{name}_input(void *arena);
const {name}_output_t *{name}_output(const void *arena);
void {name}_run(void *arena);

#endif
"""


def _c_float(value: float) -> str:
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"


def _source(name: str, body: _Body) -> str:
    arena, values = body.arena, body.program.values
    # Structures first: functions take them.
    texts = sorted(body.kernels, key=lambda text: not text.startswith("struct"))
    kernels_text = "\n".join(texts)
    needs_codes = "code(" in kernels_text or "limited(" in kernels_text
    needs_scaling = "code(" in kernels_text or "scaled(" in kernels_text
    common = kernels.COMMON if needs_scaling else kernels.COMMON.split("\n/* x /")[0] if needs_codes else ""
    fast = "RLX_FAST" in kernels_text
    includes = _FAST_INCLUDES if fast else ""
    return f"""\
/* {name}: an integer network. Generated; do not edit. */
#include "{name}.h"

{includes}
{common}
{kernels_text}
{chr(10).join(body.constants)}
{name}_input_t *{name}_input(void *arena)
{{
    return ({name}_input_t *)arena + {arena.offsets[0] // values[0].dtype.size_bytes};
}}

const {name}_output_t *{name}_output(const void *arena)
{{
    return (const {name}_output_t *)arena + {arena.offsets[-1] // values[-1].dtype.size_bytes};
}}

void {name}_run(void *arena)
{{
    uint8_t *bytes = (uint8_t *)arena;

{"".join(body.calls)}}}
"""
