"""Integer program → object file with Thumb code, straight from LLVM: no C compiler takes part.

    data = thumb_object(program, core)           # ELF, relocatable: the functions of the header, weights as constants

The functions are those of the C form: NAME_input, NAME_output and NAME_run, over the same arena. Sizes are numbers in
the code, which LLVM simplifies by. Divisions of 64 bits, and all of them on cores that have none, call the compiler's
own functions (libgcc, compiler-rt), as the C form does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from rlx.backends.cortex_m.arena import Arena, plan_arena
from rlx.backends.cortex_m.c_steps import program_name
from rlx.backends.cortex_m.project import Core
from rlx.backends.cortex_m.thumb_ir import I8, I16, I32, Loops, Number
from rlx.backends.cortex_m.thumb_sequences import attention, layer_norm, recurrent
from rlx.errors import RlxError
from rlx.kernels.emit.llvm_codegen import compile_optimized_object
from rlx.kernels.machines import Machine
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
from rlx.quantized.values import Array, Multipliers, Value, Weights, limits

_WIDTHS = {"i8": I8, "i16": I16, "i32": I32}
_BOTH_ENDS = (-(2**31), 2**31 - 1)


def thumb_object(program: Program, core: Core) -> bytes:
    """The object file of a program for a core."""
    name = program_name(program)
    machine = Machine(name=core.name, triple=core.triple, cpu=core.name, vector_bytes=4)
    return compile_optimized_object(thumb_text(program, core.triple), machine, f"cortex-m: {name}")


def thumb_text(program: Program, triple: str) -> str:
    """LLVM IR of a program."""
    name, arena = program_name(program), plan_arena(program)
    module = ir.Module(name)
    module.triple = triple
    writing = Writing(module, program, arena)
    functions = [writing.step(n, step) for n, step in enumerate(program.steps, 1)]
    run = Loops(module, f"{name}_run", is_internal=False)
    for function in functions:
        run.builder.call(function, [run.arena])
    run.finish()
    for what, offset in (("input", arena.offsets[0]), ("output", arena.offsets[-1])):
        pointer = I8.as_pointer()
        function = ir.Function(module, ir.FunctionType(pointer, [pointer]), f"{name}_{what}")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(builder.gep(function.args[0], [ir.Constant(I32, offset)]))
    # Loops that clear or copy stay loops: there may be no library with memclr and memcpy.
    return re.sub(r"^(define .*)$", r'\1 "no-builtins"', str(module), flags=re.MULTILINE)


class Writing:
    """The functions of the steps of one program."""

    def __init__(self, module: Any, program: Program, arena: Arena) -> None:
        self.module, self.program, self.arena = module, program, arena
        self.tables: dict[bytes, Any] = {}

    def step(self, number: int, step: Step) -> Any:
        """The function of a step, which gives the value of this number."""
        b = Loops(self.module, f"step{number}")
        operands = self.program.operands(step)
        xs = [self._pointer(b, i) for i in step.inputs]
        y = self._pointer(b, number)
        match step:
            case Dense():
                self._dense(b, step, operands[0], xs[0], y)
            case Conv2d():
                self._conv(b, step, operands[0], xs[0], y)
            case MaxPool() | MeanPool():
                self._pool(b, step, operands[0], xs[0], y)
            case Add():
                self._add(b, step, operands, xs, y)
            case AddConstant():
                self._add(b, step, [operands[0], step.constant], [xs[0], self.table(b, step.codes)], y)
            case Argmax():
                self._argmax(b, operands[0], xs[0], y)
            case Softmax():
                self._softmax(b, step, xs[0], y)
            case Concat():
                self._concat(b, step, operands, xs, y)
            case Rows():
                first = step.start * operands[0].size // operands[0].dims[0]
                self._each(b, step, y, lambda i: b.load(xs[0], i + first))
            case LayerNorm():
                layer_norm(self, b, step, operands[0], xs[0], y)
            case Attention():
                attention(self, b, step, operands, xs, y, b.pointer(self.arena.scratch[number], I32))
            case Gru() | Lstm():
                recurrent(self, b, step, xs[0], y, b.pointer(self.arena.scratch[number], I16))
            case Mul() | Rescale() | Clamp() | Lookup() | Interpolate():
                self._each(b, step, y, self._pointwise(b, step, operands, xs))
            case _:
                raise RlxError(
                    f"cortex-m: {step.name}: a {type(step).__name__} has no Thumb form; leave out form=object"
                )
        return b.finish()

    def _pointer(self, b: Loops, number: int) -> Any:
        return b.pointer(self.arena.offsets[number], _WIDTHS[str(self.program.values[number].dtype)])

    def table(self, b: Loops, values: Array) -> Any:
        """A pointer to constants; equal ones are stored once."""
        values = np.ascontiguousarray(values).reshape(-1)
        width = {1: I8, 2: I16, 4: I32}[values.dtype.itemsize]
        key = str(width).encode() + values.tobytes()
        if key not in self.tables:
            kind = ir.ArrayType(width, len(values))
            table = ir.GlobalVariable(self.module, kind, f"table{len(self.tables)}")
            table.linkage, table.global_constant, table.align = "internal", True, 4
            table.initializer = ir.Constant(kind, values.tolist())
            self.tables[key] = table
        return b.builder.gep(self.tables[key], [ir.Constant(I32, 0)] * 2)

    def scaled(self, b: Loops, tables: Multipliers, channel: Number | int, acc: Number) -> Number:
        """An i32 sum times its multiplier; 15 bits give the same when they are shifted into 31."""
        m0 = (tables.m0.astype(np.int64) << (31 - tables.fraction_bits)).astype(np.int32)
        shift = b.load(self.table(b, tables.shift), channel)
        if np.any(tables.shift < 0):
            left = (0 - shift).most(0)
            acc = (acc.widened() << left.widened()).limited(*_BOTH_ENDS).narrowed()
        product = acc.widened() * b.load(self.table(b, m0), channel).widened()
        x = ((product + 2**30) >> 31).narrowed()
        shifted = ((x + (x >> 31)) >> (shift - 1).most(0)) + 1 >> 1
        return shift.compare(">", 0).pick(shifted, x)

    def code(self, b: Loops, step: Any, tables: Multipliers, channel: Number | int, acc: Number) -> Number:
        zero = step.out.zero_point
        low, high = getattr(step, "low", None), getattr(step, "high", None)
        low, high = limits(step.out.dtype) if low is None or high is None else (low, high)
        return self.scaled(b, tables, channel, acc).limited(low - zero, high - zero) + zero

    def weight(self, b: Loops, weights: Weights, index: Number) -> Number:
        packed = np.frombuffer(weights.packed, np.int8)
        table = self.table(b, packed)
        if weights.bits == 8:
            return b.load(table, index)
        lanes = 8 // weights.bits
        byte = b.load(table, index >> (lanes.bit_length() - 1))
        lane = index & (lanes - 1)
        return (byte << (32 - weights.bits - lane * weights.bits)) >> (32 - weights.bits)

    def interpolated(self, b: Loops, table: Array, code: Number) -> Number:
        place, entries = code + 2**15, self.table(b, table)
        left, right = b.load(entries, place >> 8), b.load(entries, (place >> 8) + 1)
        return left + (((right - left) * (place & 255) + 128) >> 8)

    def _dense(self, b: Loops, step: Dense, x: Value, source: Any, y: Any) -> None:
        with b.loop(step.channels) as o:
            acc = b.variable(b.load(self.table(b, step.bias), o))
            with b.loop(x.size) as i:
                w = self.weight(b, step.weights, o * x.size + i)
                b.set(acc, b.get(acc) + (b.load(source, i) - x.zero_point) * w)
            b.store(y, o, self.code(b, step, step.multipliers, o, b.get(acc)))

    def _conv(self, b: Loops, step: Conv2d, x: Value, source: Any, y: Any) -> None:
        height, width, inputs = x.dims
        rows, columns, channels = step.out.dims
        (kh, kw), inside = step.kernel, inputs // step.groups
        with b.loop(rows) as i, b.loop(columns) as j, b.loop(channels) as o:
            acc = b.variable(b.load(self.table(b, step.bias), o))
            first = o // (channels // step.groups) * inside if step.groups > 1 else b.number(0)
            with b.loop(kh) as a:
                row = i * step.stride[0] + a * step.dilation[0] - step.padding[0][0]
                with b.when(row.compare(">=", 0), row.compare("<", height)), b.loop(kw) as c:
                    column = j * step.stride[1] + c * step.dilation[1] - step.padding[1][0]
                    with b.when(column.compare(">=", 0), column.compare("<", width)):
                        at, tap = (row * width + column) * inputs + first, ((o * kh + a) * kw + c) * inside
                        with b.loop(inside) as k:
                            seen = b.load(source, at + k) - x.zero_point
                            b.set(acc, b.get(acc) + seen * self.weight(b, step.weights, tap + k))
            place = (i * columns + j) * channels + o
            b.store(y, place, self.code(b, step, step.multipliers, o, b.get(acc)))

    def _pool(self, b: Loops, step: MaxPool | MeanPool, x: Value, source: Any, y: Any) -> None:
        height, width, channels = x.dims
        rows, columns, _ = step.out.dims
        is_max = isinstance(step, MaxPool)
        with b.loop(rows) as i, b.loop(columns) as j, b.loop(channels) as c:
            joined = b.variable(limits(x.dtype)[0] if is_max else 0)
            with b.loop(step.kernel[0]) as a, b.loop(step.kernel[1]) as e:
                row = i * step.stride[0] + a - step.padding[0][0]
                column = j * step.stride[1] + e - step.padding[1][0]
                inside = [
                    v.compare(s, n) for v, n in ((row, height), (column, width)) for s, n in ((">=", 0), ("<", n))
                ]
                with b.when(*inside):
                    seen = b.load(source, (row * width + column) * channels + c)
                    b.set(joined, b.get(joined).most(seen) if is_max else b.get(joined) + seen)
            result = b.get(joined)
            if not is_max:
                count = step.kernel[0] * step.kernel[1]
                half = result.compare("<", 0).pick(-(count // 2), count // 2)
                result = (result + half) // count
            b.store(y, (i * columns + j) * channels + c, result)

    def _each(self, b: Loops, step: Step, y: Any, function: Callable[[Number], Number]) -> None:
        with b.loop(step.out.size) as i:
            b.store(y, i, function(i))

    def _pointwise(
        self, b: Loops, step: Mul | Rescale | Clamp | Lookup | Interpolate, operands: Sequence[Value], xs: Sequence[Any]
    ) -> Callable[[Number], Number]:
        def value(i: Number) -> Number:
            first = b.load(xs[0], i)
            match step:
                case Clamp():
                    return first.limited(step.low, step.high)
                case Lookup():
                    return b.load(self.table(b, step.table), first + 128)
                case Interpolate():
                    return self.interpolated(b, step.table, first)
            acc = first - operands[0].zero_point
            if isinstance(step, Mul):
                acc = acc * (b.load(xs[1], i) - operands[1].zero_point)
            return self.code(b, step, step.multipliers, 0, acc)

        return value

    def _add(self, b: Loops, step: Add | AddConstant, operands: Sequence[Value], xs: Sequence[Any], y: Any) -> None:
        headroom = Add.headroom_of(*operands)

        def sum_at(i: Number) -> Number:
            left, right = (
                self.scaled(b, step.multipliers.take(n), 0, (b.load(x, i) - v.zero_point) << headroom)
                for n, (x, v) in enumerate(zip(xs, operands))
            )
            return self.code(b, step, step.multipliers.take(2), 0, left + right)

        self._each(b, step, y, sum_at)

    def _concat(self, b: Loops, step: Concat, operands: Sequence[Value], xs: Sequence[Any], y: Any) -> None:
        at, width = 0, step.out.dims[-1]
        for n, (x, v) in enumerate(zip(xs, operands)):
            wide = v.dims[-1]
            with b.loop(v.size // wide) as r, b.loop(wide) as i:
                acc = b.load(x, r * wide + i) - v.zero_point
                b.store(y, r * width + i + at, self.code(b, step, step.multipliers.take(n), 0, acc))
            at += wide

    def _argmax(self, b: Loops, x: Value, source: Any, y: Any) -> None:
        best = b.variable(0)
        with b.loop(x.size) as i, b.when(b.load(source, i).compare(">", b.load(source, b.get(best)))):
            b.set(best, i)
        b.store(y, 0, b.get(best))

    def _softmax(self, b: Loops, step: Softmax, source: Any, y: Any) -> None:
        n = step.out.dims[-1]
        with b.loop(step.out.size // n) as r:
            table = self.table(b, step.table)
            largest, total = b.variable(-128), b.variable(0)
            with b.loop(n) as i:
                b.set(largest, b.get(largest).most(b.load(source, r * n + i)))
            with b.loop(n) as i:
                b.set(total, b.get(total) + b.load(table, b.get(largest) - b.load(source, r * n + i)))
            with b.loop(n) as i:
                power = b.load(table, b.get(largest) - b.load(source, r * n + i))
                share = (power * 256 + b.get(total) // 2) // b.get(total) - 128
                b.store(y, r * n + i, share.least(127))
