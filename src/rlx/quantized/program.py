"""`Program`: a network in integers, as a list of steps. What it computes is the same everywhere, bit for bit.

program = quantize(graph, params, batches)
program.run(images)                          # NumPy; floats are encoded first
program.run(images, device="cpu")            # the same codes from compiled kernels
rlx.Session("cpu").compile(program.graph())  # an ordinary graph from codes to codes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ops.define.rounding import round_half_away
from rlx.ops.pointwise.arithmetic import clamp
from rlx.ops.pointwise.conversion import cast
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, QuantizedError, Value, limits
from rlx.trace.jit import Run, compile_graph

# How many elements of the largest value are computed at a time.
_PART_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in order; the result of the last one is the result. Images are [H, W, C].

    `input_axes` says where each axis of the input was in the model that the program was made of: (1, 2, 0) for one that
    takes [C, H, W].
    """

    name: str
    input: Value
    input_axes: tuple[int, ...]
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise QuantizedError(f"program {self.name!r} has no steps")
        if sorted(self.input_axes) != list(range(len(self.input.dims))):
            raise QuantizedError(f"input_axes {self.input_axes} do not name the axes of {self.input.dims}")
        known = [self.input]
        for step in self.steps:
            if not all(isinstance(i, int) and 0 <= i < len(known) for i in step.inputs):
                raise step.fail(f"reads the values {step.inputs}, but only 0 to {len(known) - 1} come before it")
            step.check([known[i] for i in step.inputs])
            known.append(step.out)

    @property
    def values(self) -> tuple[Value, ...]:
        """The input, and the result of each step."""
        return (self.input, *(s.out for s in self.steps))

    @property
    def result(self) -> Value:
        return self.steps[-1].out

    @property
    def macs(self) -> int:
        return sum(s.macs for s in self.steps)

    def operands(self, step: Step) -> list[Value]:
        values = self.values
        return [values[i] for i in step.inputs]

    def encode(self, x: Any) -> Array:
        """Codes of a batch of floats that lie as in the model."""
        x = np.asarray(x)
        wanted = tuple(self.input.dims[self.input_axes.index(a)] for a in range(len(self.input_axes)))
        if len(wanted) == 3 and wanted[1] == 1 and x.shape[1:] == (wanted[0], wanted[2]):
            # A sequence [T, C] is an image of one column.
            x = x[:, :, None]
        if x.shape[1:] != wanted:
            raise QuantizedError(f"{self.name}: inputs are [N, {', '.join(map(str, wanted))}], got {list(x.shape)}")
        return np.ascontiguousarray(self.input.encode(x.transpose(0, *(a + 1 for a in self.input_axes))))

    def run(self, x: Any, device: str | None = None) -> Array:
        """The result for a batch of codes [N, *dims], or of floats, which are encoded; without a device in NumPy."""
        codes = self._codes(x)
        run = self.run_all if device is None else _single(compile_graph(self.graph(), device))
        # Sums and products of NumPy take 8 bytes where codes take one or two: part by part.
        step = max(_PART_ELEMENTS // max(v.size for v in self.values), 1)
        parts = [np.asarray(run(codes[n : n + step])[-1]) for n in range(0, max(len(codes), 1), step)]
        return np.concatenate(parts)

    def run_all(self, x: Any) -> list[Array]:
        """The codes of every value, the input first; NumPy."""
        results = [self._codes(x)]
        for step in self.steps:
            results.append(step.run(self.operands(step), [results[i] for i in step.inputs]))
        return results

    def _codes(self, x: Any) -> Array:
        x = np.asarray(x)
        if x.dtype.kind == "f":
            return self.encode(x)
        if x.dtype != self.input.dtype.numpy or x.shape[1:] != self.input.dims or x.ndim < 1:
            wanted = f"{self.input.dtype}[N, {', '.join(map(str, self.input.dims))}]"
            raise QuantizedError(f"{self.name}: takes codes {wanted} or floats, got {x.dtype}{list(x.shape)}")
        return x

    def graph(self, every_value: bool = False) -> Graph:
        """Codes [N, *dims] in, the result out (or all values): an ordinary graph of integer ops."""
        return self._graph(self.name, every_value, lambda step, tensors: step.build(self.operands(step), tensors))

    def simulation(self, every_value: bool = False, exact: bool = False) -> Graph:
        """The same program with the products of each step in floats: what training with fake quantisation computes.

        In f32 with one rounding per step, codes may differ from the program's by one, where a rounding falls the other
        way. `exact` computes in f64 and rounds as the program does, twice: all codes are the program's, bit for bit.
        """

        def simulated(step: Step, codes: Sequence[Any]) -> Any:
            operands = self.operands(step)
            dtype = DType.F64 if exact else DType.F32
            result = step.simulate(operands, [_decoded(v, c, dtype) for v, c in zip(operands, codes)])
            if step.out.dtype is DType.I32:
                return result
            if exact and (units := step.units(operands)) is not None:
                return step.finish(cast(round_half_away(result / units), DType.I32))
            return step.build(operands, codes) if exact else _encoded(step, result)

        return self._graph(f"{self.name}_simulated", every_value, simulated)

    def _graph(self, name: str, every_value: bool, build: Callable[[Step, Sequence[Any]], Any]) -> Graph:
        graph = Graph(name)
        tensors: list[Any] = [graph.input("codes", ("N", *self.input.dims), self.input.dtype)]
        for step in self.steps:
            tensors.append(build(step, [tensors[i] for i in step.inputs]))
        graph.set_outputs(tensors if every_value else [tensors[-1]])
        return graph


def _single(run: Run) -> Callable[[Array], Sequence[Any]]:
    return lambda codes: run([codes])


def _decoded(value: Value, codes: Any, dtype: DType) -> Any:
    return cast(cast(codes, DType.I32) - value.zero_point, dtype) * value.scale


def _encoded(step: Step, x: Any) -> Any:
    value = step.out
    low, high = limits(value.dtype)
    low, high = getattr(step, "low", low), getattr(step, "high", high)
    codes = round_half_away(x * float(np.float32(1) / np.float32(value.scale))) + float(value.zero_point)
    return cast(clamp(codes, float(low), float(high)), value.dtype)
