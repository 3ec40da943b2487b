"""StableHLO as text: typed values, and blocks of ops that are written one by one.

    block = Block()
    x = block.argument(Kind((2, 3), DType.F32))
    y = block.op("add", [x, x], x.kind)
    block.lines            # ['%1 = "stablehlo.add"(%0, %0) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>']

Every op is written in MLIR's generic form: one grammar for all of them, and no pretty form that moves with a release.
A block knows nothing of rlx's ops; the rules for these are in the modules `rules_*`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENTS = {
    DType.BOOL: "i1",
    **{d: d.value for d in (DType.I4, DType.I8, DType.I16, DType.I32, DType.I64)},
    **{d: f"ui{d.value[1:]}" for d in (DType.U4, DType.U8, DType.U16, DType.U32, DType.U64)},
    **{d: d.value for d in (DType.BF16, DType.F16, DType.F32, DType.F64)},
    DType.F4E2M1: "f4E2M1FN",
    DType.F8E4M3: "f8E4M3FN",
    DType.F8E5M2: "f8E5M2",
    DType.C64: "complex<f32>",
    DType.C128: "complex<f64>",
}


class Kind(NamedTuple):
    """The type of a value; all sizes are known."""

    dims: tuple[int, ...]
    dtype: DType

    @staticmethod
    def of(shape: Shape) -> Kind:
        return Kind(shape.static_dims, shape.dtype)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    def with_dims(self, dims: Sequence[int]) -> Kind:
        return Kind(tuple(dims), self.dtype)

    def with_dtype(self, dtype: DType) -> Kind:
        return Kind(self.dims, dtype)

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{d}x' for d in self.dims)}{_ELEMENTS[self.dtype]}>"


class Value(NamedTuple):
    """The result of an op, or an argument."""

    name: str
    kind: Kind

    @property
    def dims(self) -> tuple[int, ...]:
        return self.kind.dims

    @property
    def dtype(self) -> DType:
        return self.kind.dtype


def ints(numbers: Sequence[int]) -> str:
    """Numbers as an attribute."""
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def bools(truths: Sequence[bool]) -> str:
    return f"array<i1: {', '.join('true' if t else 'false' for t in truths)}>" if truths else "array<i1>"


def int_table(rows: Sequence[Sequence[int]], columns: int) -> str:
    """A table of numbers as an attribute."""
    text = "[" + ", ".join("[" + ", ".join(map(str, row)) + "]" for row in rows) + "]"
    return f"dense<{text if rows else ''}> : tensor<{len(rows)}x{columns}xi64>"


class Block:
    """The body of a function or of a region. Blocks inside of it go on with its numbers and see its values."""

    def __init__(self, outer: Block | None = None) -> None:
        self._numbers: Iterator[int] = itertools.count() if outer is None else outer._numbers
        self.arguments: list[Value] = []
        self.lines: list[str] = []

    def number(self) -> int:
        """One that nothing else in the module has."""
        return next(self._numbers)

    def _fresh(self) -> str:
        return f"%{self.number()}"

    def argument(self, kind: Kind) -> Value:
        value = Value(self._fresh(), kind)
        self.arguments.append(value)
        return value

    def ops(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Kind],
        attributes: str = "",
        regions: Sequence[Block] = (),
    ) -> list[Value]:
        """An op with any number of results; the name of one that is not StableHLO's has its dialect in front."""
        full = name if "." in name else f"stablehlo.{name}"
        made = self._fresh()
        head = f"{made}:{len(results)} = " if len(results) > 1 else f"{made} = " if results else ""
        inside = f" ({', '.join(r.region() for r in regions)})" if regions else ""
        attributes = f" {{{attributes}}}" if attributes else ""
        types = ", ".join(str(v.kind) for v in operands)
        after = str(results[0]) if len(results) == 1 else f"({', '.join(map(str, results))})"
        names = ", ".join(v.name for v in operands)
        self.lines.append(f'{head}"{full}"({names}){inside}{attributes} : ({types}) -> {after}')
        if len(results) == 1:
            return [Value(made, results[0])]
        return [Value(f"{made}#{i}", kind) for i, kind in enumerate(results)]

    def op(
        self, name: str, operands: Sequence[Value], result: Kind, attributes: str = "", regions: Sequence[Block] = ()
    ) -> Value:
        return self.ops(name, operands, [result], attributes, regions)[0]

    def returns(self, values: Sequence[Value], name: str = "stablehlo.return") -> None:
        self.ops(name, values, [])

    def region(self) -> str:
        """The block as a region of an op."""
        arguments = ", ".join(f"{v.name}: {v.kind}" for v in self.arguments)
        head = f"^bb0({arguments}):\n" if self.arguments else ""
        return "{\n" + head + "\n".join(self.lines) + "\n}"

    # What rules are written with.

    def constant(self, array: Any, dtype: DType) -> Value:
        """An array or a number as a value, bit for bit."""
        return _constant(self, np.asarray(array).astype(dtype.numpy), dtype)

    def full(self, value: Any, kind: Kind) -> Value:
        """One number everywhere."""
        return self.broadcast(self.constant(value, kind.dtype), kind.dims, ())

    def broadcast(self, x: Value, dims: Sequence[int], axes: Sequence[int] | None = None) -> Value:
        """x repeated; its axes become `axes` of the result, by default the last ones."""
        dims = tuple(dims)
        if axes is None:
            axes = range(len(dims) - x.kind.rank, len(dims))
        if x.dims == dims and tuple(axes) == tuple(range(len(dims))):
            return x
        return self.op("broadcast_in_dim", [x], x.kind.with_dims(dims), f"broadcast_dimensions = {ints(tuple(axes))}")

    def together(self, *values: Value) -> list[Value]:
        """Values broadcast against each other, as NumPy does it."""
        dims = np.broadcast_shapes(*(v.dims for v in values))
        return [self.broadcast(v, dims) for v in values]

    def reshape(self, x: Value, dims: Sequence[int]) -> Value:
        return x if x.dims == tuple(dims) else self.op("reshape", [x], x.kind.with_dims(dims))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if tuple(perm) == tuple(range(x.kind.rank)):
            return x
        kind = x.kind.with_dims([x.dims[p] for p in perm])
        return self.op("transpose", [x], kind, f"permutation = {ints(tuple(perm))}")

    def slice(self, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Value:
        dims = [-(-(b - a) // s) for a, b, s in zip(starts, limits, strides)]
        attributes = f"start_indices = {ints(starts)}, limit_indices = {ints(limits)}, strides = {ints(strides)}"
        return self.op("slice", [x], x.kind.with_dims(dims), attributes)

    def narrow(self, x: Value, axis: int, start: int, length: int) -> Value:
        """`length` elements of one axis."""
        starts = [start if i == axis else 0 for i in range(x.kind.rank)]
        limits = [start + length if i == axis else d for i, d in enumerate(x.dims)]
        return self.slice(x, starts, limits, [1] * x.kind.rank)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        if len(values) == 1:
            return values[0]
        dims = [sum(v.dims[axis] for v in values) if i == axis else d for i, d in enumerate(values[0].dims)]
        return self.op("concatenate", values, values[0].kind.with_dims(dims), f"dimension = {axis} : i64")

    def iota(self, kind: Kind, axis: int) -> Value:
        return self.op("iota", [], kind, f"iota_dimension = {axis} : i64")

    def convert(self, x: Value, dtype: DType) -> Value:
        """XLA's own conversion; `rules_pointwise.cast` has the cases that it leaves open."""
        return x if x.dtype is dtype else self.op("convert", [x], x.kind.with_dtype(dtype))

    def unary(self, name: str, x: Value) -> Value:
        return self.op(name, [x], x.kind)

    def binary(self, name: str, a: Value, b: Value | float) -> Value:
        """An elementwise op of operands of one type, or of one and a number."""
        other = self.full(b, a.kind) if not isinstance(b, Value) else b
        return self.op(name, [a, other], a.kind)

    def compare(self, direction: str, a: Value, b: Value | float) -> Value:
        other = self.full(b, a.kind) if not isinstance(b, Value) else b
        attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.op("compare", [a, other], a.kind.with_dtype(DType.BOOL), attributes)

    def select(self, condition: Value, a: Value | float, b: Value) -> Value:
        chosen = self.full(a, b.kind) if not isinstance(a, Value) else a
        return self.op("select", [condition, chosen, b], b.kind)

    def reduce(self, x: Value, axes: Sequence[int], join: str, identity: Any) -> Value:
        """The elements along axes joined by an op, the axes gone."""
        inside = Block(self)
        scalar = Kind((), x.dtype)
        a, b = inside.argument(scalar), inside.argument(scalar)
        inside.returns([inside.op(join, [a, b], scalar)])
        dims = [d for i, d in enumerate(x.dims) if i not in axes]
        start = self.constant(identity, x.dtype)
        attributes = f"dimensions = {ints(tuple(axes))}"
        return self.op("reduce", [x, start], x.kind.with_dims(dims), attributes, [inside])


def _constant(block: Block, array: Array, dtype: DType) -> Value:
    kind = Kind(array.shape, dtype)
    if not array.size:
        text = "dense<>"
    elif dtype is DType.BOOL:
        # MLIR packs the bits of many bools, so these are written out.
        flat = array.reshape(-1)
        if flat.all() or not flat.any():
            text = f"dense<{'true' if flat[0] else 'false'}>"
        else:
            codes = _constant(block, array.astype(np.uint8), DType.U8)
            return block.compare("NE", codes, 0)
    else:
        data = np.ascontiguousarray(array)
        first = data.reshape(-1)[:1].tobytes()
        data_bytes = data.tobytes()
        is_same = array.size > 1 and data_bytes == first * array.size
        text = f'dense<"0x{(first if is_same else data_bytes).hex().upper()}">'
    return block.op("constant", [], kind, f"value = {text} : {kind}")


def function(name: str, block: Block, results: Sequence[str], attributes: Callable[[int], str], public: bool) -> str:
    """A block as a function; `attributes` are those of an argument with a number, `results` types with theirs."""
    arguments = ", ".join(f"{v.name}: {v.kind}{attributes(i)}" for i, v in enumerate(block.arguments))
    shown = "public" if public else "private"
    lines = "\n".join(block.lines)
    return f"func.func {shown} @{name}({arguments}) -> ({', '.join(results)}) {{\n{lines}\n}}"
