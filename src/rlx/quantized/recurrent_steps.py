"""Steps with a memory: `Gru` and `Lstm` over the rows of a sequence [T, 1, gates·size].

The products with the input are a step before them, for all rows at once; here are those with the state. Sums of gates
have 12 binary places and 16 bits, gates and states 15. Sigmoid and tanh are tables with straight lines between.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import matmul
from rlx.ops.pointwise.arithmetic import add, clamp, shift_right
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import sigmoid, tanh
from rlx.ops.shape.movement import broadcast_to, narrow, reshape, transpose
from rlx.quantized.steps import Step
from rlx.quantized.table_steps import POINTS, interpolated, interpolated_tensor
from rlx.quantized.values import ACTIVATIONS, Array, Multipliers, Value, Weights

GATE_SCALE, STATE_SCALE = 2.0**-12, 2.0**-15
_LOW, _HIGH = -(2**15), 2**15 - 1
_ONE, _HALF = 2**15, 2**14


class _Integers:
    """What a cell computes with, on arrays or on tensors; products of two numbers are rounded half up."""

    def __init__(self, tables: Array, on_tensors: bool) -> None:
        self.tables, self.on_tensors = tables, on_tensors

    def _limited(self, x: Any) -> Any:
        return clamp(x, _LOW, _HIGH) if self.on_tensors else np.clip(x, _LOW, _HIGH)

    def _shifted(self, x: Any, places: int) -> Any:
        return shift_right(x, places) if self.on_tensors else x >> places

    def _function(self, which: int, x: Any) -> Any:
        return (interpolated_tensor if self.on_tensors else interpolated)(self.tables[which], x)

    def sum(self, a: Any, b: Any) -> Any:
        return self._limited(a + b)

    def sigmoid(self, x: Any) -> Any:
        return self._function(0, x)

    def tanh(self, x: Any) -> Any:
        return self._function(1, x)

    def product(self, a: Any, b: Any) -> Any:
        return self._shifted(a * b + _HALF, 15)

    def mix(self, share: Any, a: Any, b: Any) -> Any:
        """(1 - share)·a + share·b."""
        return self._limited(self._shifted((_ONE - share) * a + share * b + _HALF, 15))

    def kept(self, forget: Any, cell: Any, take: Any, new: Any) -> Any:
        """forget·cell + take·new, with 11 binary places: cells may leave [-1, 1]."""
        return self._limited(self._shifted(forget * cell + self._shifted(take * new, 4) + _HALF, 15))

    def tanh_of_cell(self, cell: Any) -> Any:
        return self.tanh(self._limited(cell * 2))


class _Floats:
    """The same without rounding, on tensors."""

    def sum(self, a: Any, b: Any) -> Any:
        return add(a, b)

    def sigmoid(self, x: Any) -> Any:
        return sigmoid(x)

    def tanh(self, x: Any) -> Any:
        return tanh(x)

    def product(self, a: Any, b: Any) -> Any:
        return a * b

    def mix(self, share: Any, a: Any, b: Any) -> Any:
        return (1 - share) * a + share * b

    def kept(self, forget: Any, cell: Any, take: Any, new: Any) -> Any:
        return forget * cell + take * new

    def tanh_of_cell(self, cell: Any) -> Any:
        return tanh(cell)


_Numbers = _Integers | _Floats


@dataclass(frozen=True, eq=False)
class _Recurrent(Step):
    """Weights [gates·size, size] of the state; the multipliers bring bias + Σ w·h to the scale of the input.

    `length` is T. The result is every state [T, 1, size], or the last one [size]; it starts at 0, and runs from the
    end with `reverse`. `tables` are sigmoid and tanh of sums, 257 codes i16 each; `out_multiplier` is of the result.
    """

    weights: Weights
    bias: Array
    multipliers: Multipliers
    tables: Array
    out_multiplier: Multipliers
    low: int
    high: int
    length: int
    reverse: bool = False

    gates: ClassVar[int]
    carries: ClassVar[int]

    @staticmethod
    def functions() -> Array:
        x = np.linspace(-8.0, 8.0, POINTS)
        tables = np.stack([1 / (1 + np.exp(-x)), np.tanh(x)])
        return np.clip(np.rint(tables / STATE_SCALE), _LOW, _HIGH).astype(np.int16)

    @staticmethod
    def multipliers_for(weights: Weights, fraction_bits: int = 31) -> Multipliers:
        return Multipliers.of(weights.scales * np.float32(STATE_SCALE / GATE_SCALE), fraction_bits)

    @property
    def size(self) -> int:
        return self.weights.codes.shape[1]

    @property
    def macs(self) -> int:
        return self.length * self.weights.codes.size

    def check(self, operands: Sequence[Value]) -> None:
        super().check(operands)
        (x,) = self.take(operands, 1)
        rows, size = self.gates * self.size, self.size
        if x.dtype is not DType.I16 or x.zero_point or x.scale != GATE_SCALE:
            raise self.fail(f"takes sums of gates as i16 with scale {GATE_SCALE} and zero point 0, got {x}")
        if x.dims != (self.length, 1, rows) or self.weights.codes.shape != (rows, size):
            raise self.fail(f"{x.dims} and weights {self.weights.codes.shape} are not {self.gates} gates of one size")
        if self.out.dims not in ((size,), (x.dims[0], 1, size)) or self.out.dtype not in ACTIVATIONS:
            raise self.fail(f"gives i8 or i16 ({size},) or {(x.dims[0], 1, size)}, but declared is {self.out}")
        for what, table in (("bias", self.bias), ("m0", self.multipliers.m0)):
            if table.dtype != np.int32 or table.shape != (rows,):
                raise self.fail(f"{what} must be i32[{rows}], got {table.dtype}{table.shape}")
        if self.tables.dtype != np.int16 or self.tables.shape != (2, POINTS) or self.tables[0].min() < 0:
            raise self.fail(f"needs tables i16[2, {POINTS}], the first of numbers from 0, got {self.tables.shape}")
        if len(self.out_multiplier.m0) != 1:
            raise self.fail("needs one multiplier for the result")
        self.require_clamp(self.low, self.high)
        weights = np.abs(self.weights.codes.astype(np.int64)).sum(axis=1)
        worst = int((weights * _ONE + np.abs(self.bias.astype(np.int64))).max())
        if worst >= 2**31:
            raise self.fail(f"sums can reach {worst}, and i32 ends at {2**31 - 1}; use fewer states")

    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array:
        gates = codes[0][:, :, 0].astype(np.int64)
        weights = self.weights.codes.T.astype(np.float64)
        numbers = _Integers(self.tables.astype(np.int64), on_tensors=False)
        carry = [np.zeros((len(gates), self.size), np.int64)] * self.carries
        states = np.zeros((len(gates), gates.shape[1], self.size), np.int64)
        for t in range(gates.shape[1])[:: -1 if self.reverse else 1]:
            # Sums stay below 2^31, so that f64 is exact.
            sums = (carry[0].astype(np.float64) @ weights).astype(np.int64) + self.bias
            seen = np.clip(self.multipliers.scaled(sums), _LOW, _HIGH)
            row, given = (np.split(x, self.gates, axis=-1) for x in (gates[:, t], seen))
            carry = self.cell(row, given, carry, numbers)
            states[:, t] = carry[0]
        result = carry[0] if len(self.out.dims) == 1 else states[:, :, None]
        finished = self.out_multiplier.scaled(result) + self.out.zero_point
        return np.clip(finished, self.low, self.high).astype(self.out.dtype.numpy)

    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        def sums(h: Any) -> Any:
            total = matmul(h, self.weights.codes.T.astype(np.int32)) + self.bias
            return cast(self.multipliers.requantized(total, 0, DType.I16), DType.I32)

        result = self._scanned(
            cast(tensors[0], DType.I32), sums, _Integers(self.tables.astype(np.int32), on_tensors=True)
        )
        codes = self.out_multiplier.requantized(result, self.out.zero_point, self.out.dtype)
        return self.clamped(codes, self.low, self.high)

    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any:
        dtype = tensors[0].dtype.numpy
        weights, units = self.weights.floats.T, self.weights.scales.astype(np.float64) * STATE_SCALE

        def sums(h: Any) -> Any:
            return matmul(h, np.ascontiguousarray(weights.astype(dtype))) + (self.bias * units).astype(dtype)

        return self._scanned(tensors[0], sums, _Floats())

    def _scanned(self, gates: Any, sums: Callable[[Any], Any], numbers: _Numbers) -> Any:
        """The states of all steps, or the last one, as a loop in the graph."""
        n, length, _, width = gates.shape
        rows = transpose(reshape(gates, (n, length, width)), (1, 0, 2))
        body, dtype, size = Graph("cell"), gates.dtype, self.size
        carry = [body.input(f"carry{i}", (n, size), dtype) for i in range(self.carries)]
        row = body.input("row", (n, width), dtype)
        parts = [[narrow(x, 1, i * size, size) for i in range(self.gates)] for x in (row, sums(carry[0]))]
        after = self.cell(parts[0], parts[1], carry, numbers)
        body.set_outputs([*after, after[0]])
        zero = broadcast_to(gates.graph.constant(0, dtype), (n, size))
        loop = Scan(body, length, num_carry=self.carries, num_xs=1, reverse=self.reverse)
        results = loop(*[zero] * self.carries, rows)
        if len(self.out.dims) == 1:
            return results[0]
        return reshape(transpose(results[-1], (1, 0, 2)), (n, length, 1, size))

    @abstractmethod
    def cell(self, x: Sequence[Any], seen: Sequence[Any], carry: Sequence[Any], numbers: _Numbers) -> list[Any]:
        """The carries after one step, the state first; `x` and `seen` are what input and state give to each gate."""


@dataclass(frozen=True, eq=False)
class Gru(_Recurrent):
    """Gates r, z, n; n sees r·(what the state gives); h = (1 - z)·n + z·h."""

    gates: ClassVar[int] = 3
    carries: ClassVar[int] = 1

    def cell(self, x: Sequence[Any], seen: Sequence[Any], carry: Sequence[Any], numbers: _Numbers) -> list[Any]:
        r, z = (numbers.sigmoid(numbers.sum(a, b)) for a, b in zip(x[:2], seen[:2]))
        n = numbers.tanh(numbers.sum(x[2], numbers.product(r, seen[2])))
        return [numbers.mix(z, n, carry[0])]


@dataclass(frozen=True, eq=False)
class Lstm(_Recurrent):
    """Gates i, f, g, o; c = f·c + i·g, of at most ±16; h = o·tanh(c)."""

    gates: ClassVar[int] = 4
    carries: ClassVar[int] = 2

    def cell(self, x: Sequence[Any], seen: Sequence[Any], carry: Sequence[Any], numbers: _Numbers) -> list[Any]:
        sums = [numbers.sum(a, b) for a, b in zip(x, seen)]
        take, forget, out = (numbers.sigmoid(sums[i]) for i in (0, 1, 3))
        kept = numbers.kept(forget, carry[1], take, numbers.tanh(sums[2]))
        return [numbers.product(out, numbers.tanh_of_cell(kept)), kept]
