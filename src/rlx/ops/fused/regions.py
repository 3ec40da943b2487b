"""Regions: chains of elementwise steps as one op, as fusion forms them.

A chain is written as text or as nested tuples; steps read inputs (`i0`, `i1`, ..) and earlier steps (`s0`, `s1`, ..):

    add(i0,i1);gelu(s0)        (("binary", "add", ("input", 0), ("input", 1)), ("activation", "gelu", ("step", 0)))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dims import product, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op, attribute_type, op
from rlx.ir.shape import Dims, Shape, Size, broadcast_dims
from rlx.ir.words import Words
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.nn.convolution import ResizeNearest2x
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, CmpOp, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation, ActivationKind

__all__ = [
    "BatchElementwiseRegion",
    "Chain",
    "ChainOperand",
    "ChainStep",
    "ElementwiseRegion",
    "RegionPrologue",
    "TransformRegion",
    "TransformStep",
]

Array = np.ndarray[Any, np.dtype[Any]]
Operand = tuple[str, int]
Step = tuple[Any, ...]


class ChainOperand:
    """Constructors of what a step reads."""

    @staticmethod
    def Input(index: int) -> Operand:
        return ("input", index)

    @staticmethod
    def Step(index: int) -> Operand:
        return ("step", index)


class ChainStep:
    """Constructors of the steps of a chain."""

    @staticmethod
    def Activation(kind: ActivationKind | str, x: Operand) -> Step:
        return ("activation", ActivationKind(kind).value, x)

    @staticmethod
    def Cast(dtype: DTypeLike, x: Operand) -> Step:
        return ("cast", DType.of(dtype).value, x)

    @staticmethod
    def Binary(kind: BinaryOp | str, a: Operand, b: Operand) -> Step:
        return ("binary", BinaryOp(kind).value, a, b)

    @staticmethod
    def Compare(kind: CmpOp | str, a: Operand, b: Operand) -> Step:
        return ("compare", CmpOp(kind).value, a, b)

    @staticmethod
    def Where(condition: Operand, a: Operand, b: Operand) -> Step:
        return ("where", condition, a, b)


@attribute_type
class TransformStep(Words):
    """Steps of a `TransformRegion`."""

    ResizeNearest2x = "resize_nearest_2x"

    def __call__(self, x: Operand) -> Step:
        """The step that applies this transform to an operand."""
        return ("transform", self.value, x)


@attribute_type
class RegionPrologue(Words):
    """How a region reads its prologue input: as it lies, or at half resolution."""

    NoPrologue = "none"
    ResizeNearest2x = "resize_nearest_2x"


_KIND_OF_NAME: dict[str, str] = (
    {k.value: "activation" for k in ActivationKind}
    | {k.value: "binary" for k in BinaryOp}
    | {k.value: "compare" for k in CmpOp}
    | {k.value: "transform" for k in TransformStep}
    | {f"cast_{d.value}": "cast" for d in DType}
    | {"where": "where"}
)
_ARITY = {"activation": 1, "cast": 1, "transform": 1, "binary": 2, "compare": 2, "where": 3}
_SOURCES = {"i": "input", "s": "step"}
_STEP = re.compile(r"(\w+)\((\w+(?:,\w+)*)\)")
_OPERAND = re.compile(r"([is])(\d+)")


@attribute_type
class Chain:
    """An immutable list of steps. Its text is what programs show and `Chain.of` reads back.

    >>> str(Chain.of("add(i0, i1); gelu(s0)"))
    'add(i0,i1);gelu(s0)'
    """

    __slots__ = ("steps",)

    steps: tuple[Step, ...]

    def __init__(self, steps: Sequence[Step]) -> None:
        object.__setattr__(self, "steps", tuple(_checked(i, step) for i, step in enumerate(steps)))
        if not self.steps:
            raise OpError("region: a chain needs at least one step")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Chain is immutable")

    @staticmethod
    def of(value: Chain | str | Sequence[Step]) -> Chain:
        """A chain from its text, from nested tuples, or from a chain."""
        if isinstance(value, Chain):
            return value
        if isinstance(value, str):
            return Chain([_parse_step(text) for text in value.replace(" ", "").split(";")])
        return Chain(value)

    @property
    def input_count(self) -> int:
        """One more than the highest input that is read."""
        return max((i for step in self.steps for source, i in operands_of(step) if source == "input"), default=-1) + 1

    def run(self, inputs: Sequence[Any], apply: Callable[[Op, list[Any]], Any]) -> Any:
        """The last step's value, where `apply` gives the value of an op for the values it reads."""
        values: list[Any] = []
        for step in self.steps:
            read = [inputs[i] if source == "input" else values[i] for source, i in operands_of(step)]
            values.append(apply(op_of(step), read))
        return values[-1]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __str__(self) -> str:
        return ";".join(f"{_name_of(s)}({','.join(f'{o[0][0]}{o[1]}' for o in operands_of(s))})" for s in self.steps)

    def __repr__(self) -> str:
        return f"Chain({str(self)!r})"


def operands_of(step: Step) -> tuple[Operand, ...]:
    """What a step reads."""
    return step[1:] if step[0] == "where" else step[2:]


def op_of(step: Step) -> Op:
    """The op that a step stands for."""
    match step[0]:
        case "activation":
            return Activation(ActivationKind(step[1]))
        case "cast":
            return Cast(DType.of(step[1]))
        case "binary":
            return Binary(BinaryOp(step[1]))
        case "compare":
            return Compare(CmpOp(step[1]))
        case "transform":
            return ResizeNearest2x()
        case _:
            return Where()


def _name_of(step: Step) -> str:
    if step[0] == "where":
        return "where"
    return f"cast_{step[1]}" if step[0] == "cast" else str(step[1])


def _parse_step(text: str) -> Step:
    match = _STEP.fullmatch(text)
    kind = _KIND_OF_NAME.get(match.group(1)) if match else None
    operands = [_OPERAND.fullmatch(part) for part in match.group(2).split(",")] if match else []
    if match is None or kind is None or not all(operands):
        raise OpError(f"region: {text!r} is not a step; write steps like add(i0,i1), gelu(s0) or cast_f16(s1)")
    read = tuple((_SOURCES[o.group(1)], int(o.group(2))) for o in operands if o)
    if kind == "where":
        return ("where", *read)
    return (kind, match.group(1).removeprefix("cast_") if kind == "cast" else match.group(1), *read)


def _checked(index: int, step: Step) -> Step:
    """A step with plain strings for its kind, once it has the right number of operands and only reads earlier steps."""
    kind = step[0] if isinstance(step, tuple) and step else None
    if kind not in _ARITY or (kind != "where" and _KIND_OF_NAME.get(_name_of(step)) != kind):
        raise OpError(f"region: {step!r} is not a step; the kinds are {', '.join(_ARITY)}")
    operands = operands_of(step)
    for operand in operands:
        source, i = operand
        if source not in ("input", "step") or i < 0 or (source == "step" and i >= index):
            raise OpError(f"region: step {index} cannot read {operand!r}; only inputs and earlier steps")
    if len(operands) != _ARITY[kind]:
        raise OpError(f"region: {kind} takes {_ARITY[kind]} operands, step {index} has {len(operands)}")
    read = tuple((str(source), int(i)) for source, i in operands)
    return (kind, *read) if kind == "where" else (kind, str(step[1]), *read)


def _apply_infer(op: Op, shapes: list[Any]) -> Any:
    return op.infer(*shapes)


def _apply_eval(op: Op, arrays: list[Any]) -> Any:
    return op.eval(*arrays)


def _apply_tensors(op: Op, tensors: list[Any]) -> Any:
    return op(*tensors)


@op("elementwise_region")
class ElementwiseRegion(Op):
    """The last step of `chain`, applied elementwise to the operands.

    Element e of the result (in row-major order) reads element e of input i; element 0 when bit i of
    `scalar_input_mask` is set; element e mod m when `input_modulus[i]` is m > 0 (trailing axes, broadcast). With the
    prologue ResizeNearest2x, input `prologue_input` is [N, C, H/2, W/2] and read at (h//2, w//2).
    """

    is_region = True
    is_elementwise = True
    precision_class = "elementwise"

    chain: Chain
    scalar_input_mask: int = 0
    input_modulus: Dims = ()
    prologue: RegionPrologue = RegionPrologue.NoPrologue
    prologue_input: int = 0

    def check(self) -> None:
        count = self.num_inputs()
        # The mask by its length: 2**count does not end when a chain reads input 2**62.
        is_mask = self.scalar_input_mask >= 0 and self.scalar_input_mask.bit_length() <= count
        if not is_mask or len(self.input_modulus) > max(count, 16):
            raise self.fail(f"the chain {self.chain} has {count} inputs, fewer than the mask or moduli are given for")
        if any(step[0] == "transform" for step in self.chain):
            raise self.fail(f"transforms change the shape; use TransformRegion or a prologue for {self.chain}")
        if self.prologue is not RegionPrologue.NoPrologue and not 0 <= self.prologue_input < count:
            raise self.fail(f"prologue_input={self.prologue_input} is not one of the {count} inputs")

    def num_inputs(self) -> int:
        return self.chain.input_count

    def _modulus(self, i: int) -> Size:
        """How many elements of input i are read in turn; 0 for all of them."""
        if self.scalar_input_mask >> i & 1:
            return 1
        return self.input_modulus[i] if i < len(self.input_modulus) else 0

    def _is_resized(self, i: int) -> bool:
        return self.prologue is RegionPrologue.ResizeNearest2x and i == self.prologue_input

    def _result_dims(self, xs: Sequence[Shape]) -> Dims:
        """The dims of the inputs that are read whole; they broadcast."""
        dims: Dims = ()
        whole = [i for i in range(len(xs)) if self._modulus(i) == 0] or range(len(xs))
        for i in whole:
            shape = ResizeNearest2x().infer(xs[i]) if self._is_resized(i) else xs[i]
            dims = broadcast_dims(dims, shape.dims, self.mnemonic)
        return dims

    def infer(self, *xs: Shape) -> Shape:
        if len(xs) != self.num_inputs():
            raise self.fail(f"the chain {self.chain} reads {self.num_inputs()} operands, got {len(xs)}")
        dims = self._result_dims(xs)
        for i, x in enumerate(xs):
            modulus = self._modulus(i)
            if modulus != 0 and not require_equal(x.element_count, modulus, self.mnemonic):
                raise self.fail(f"input {i} must have {modulus} elements, as its modulus says, got {x}")
        result: Shape = self.chain.run([x.with_dims(dims) for x in xs], _apply_infer)
        return result

    def eval(self, *xs: Array) -> Any:
        dims = Shape(self._result_dims([Shape(x.shape) for x in xs])).static_dims
        return self.chain.run([self._spread(i, x, dims) for i, x in enumerate(xs)], _apply_eval)

    def _spread(self, i: int, x: Array, dims: tuple[int, ...]) -> Array:
        if self._is_resized(i):
            x = ResizeNearest2x().eval(x)
        if self._modulus(i) == 0:
            return np.broadcast_to(x, dims)
        count = int(np.prod(dims))
        return x.reshape(-1)[np.arange(count) % max(x.size, 1)].reshape(dims)

    def decompose(self, *xs: Any) -> Any:
        dims = self._result_dims([x.type for x in xs])
        return self.chain.run([self._spread_tensor(i, x, dims) for i, x in enumerate(xs)], _apply_tensors)

    def _spread_tensor(self, i: int, x: Any, dims: Dims) -> Any:
        from rlx.ops.shape.movement import broadcast_to, reshape

        if self._is_resized(i):
            x = ResizeNearest2x()(x)
        modulus = self._modulus(i)
        if modulus == 0:
            return broadcast_to(x, dims)
        for axis in range(len(dims) + 1):
            if product(dims[axis:]) == modulus:
                return broadcast_to(reshape(x, dims[axis:]), dims)
        # The period does not end at an axis: lay copies one after the other.
        copies = product(dims) // modulus
        return reshape(broadcast_to(reshape(x, (1, modulus)), (copies, modulus)), dims)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = spec(2, 3)
        yield sample(cls("add(i0,i1);gelu(s0)"), x, x)
        yield sample(cls("mul(i0,i1);sub(s0,i2)", 2, (0, 0, 3)), x, spec(1), spec(3))
        yield sample(cls("add(i0,i1)", 0, (0, 2)), spec(3, 4), spec(2))
        yield sample(cls("lt(i0,i1);where(s0,i0,i1);cast_f64(s1);neg(s2)"), x, spec(3))
        yield sample(cls("tanh(i0)", 1), spec())
        resized = cls("add(i0,i1);relu(s0)", 0, (), "resize_nearest_2x", 1)
        yield sample(resized, spec(1, 2, 4, 2), spec(1, 2, 2, 1))
        yield sample(cls("exp(i0);mul(s0,i1)", 0, (0, "S*4")), spec("B", "S", 4), spec("S", 4), B=2, S=3)


@op("transform_region")
class TransformRegion(Op):
    """The last of `steps`, a chain of transforms of whole tensors, such as `resize_nearest_2x(i0)`."""

    is_region = True
    precision_class = "data_movement"

    steps: Chain

    def check(self) -> None:
        if any(step[0] != "transform" for step in self.steps):
            raise self.fail(f"only transforms are steps here ({', '.join(TransformStep)}), got {self.steps}")

    def num_inputs(self) -> int:
        return self.steps.input_count

    def infer(self, *xs: Shape) -> Shape:
        if len(xs) != self.num_inputs():
            raise self.fail(f"the steps {self.steps} read {self.num_inputs()} operands, got {len(xs)}")
        result: Shape = self.steps.run(xs, _apply_infer)
        return result

    def eval(self, *xs: Array) -> Any:
        return self.steps.run(xs, _apply_eval)

    def decompose(self, *xs: Any) -> Any:
        return self.steps.run(xs, _apply_tensors)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("resize_nearest_2x(i0)"), spec(1, 2, 2, 3))
        yield sample(cls("resize_nearest_2x(i0);resize_nearest_2x(s0)"), spec("N", 2, 1, 2), N=2)


@op("batch_elementwise_region")
class BatchElementwiseRegion(Op):
    """A chain of one input applied to each of `num_batch_inputs` slices, the results joined along axis 0.

    Slices have one shape [d0, ..]; the result is [N·d0, ..]. With the prologue ResizeNearest2x every slice is read at
    half resolution. `scalar_input_mask` and `input_modulus` exist as in `ElementwiseRegion`; a chain whose only input
    is the slice reads it whole, so they must be 0.
    """

    is_region = True
    precision_class = "elementwise"

    chain: Chain
    num_batch_inputs: int
    scalar_input_mask: int = 0
    input_modulus: Dims = ()
    prologue: RegionPrologue = RegionPrologue.NoPrologue
    prologue_input: int = 0

    def check(self) -> None:
        if self.chain.input_count > 1:
            raise self.fail(f"a chain of one input is needed, got {self.chain}")
        if self.num_batch_inputs < 1:
            raise self.fail(f"needs at least one slice, got num_batch_inputs={self.num_batch_inputs}")
        if self.scalar_input_mask or any(m != 0 for m in self.input_modulus) or self.prologue_input:
            raise self.fail("each slice is read whole: scalar_input_mask, input_modulus and prologue_input must be 0")

    @property
    def _slice(self) -> ElementwiseRegion:
        return ElementwiseRegion(self.chain, prologue=self.prologue)

    def infer(self, *xs: Shape) -> Shape:
        if len(xs) != self.num_batch_inputs:
            raise self.fail(f"needs num_batch_inputs={self.num_batch_inputs} operands, got {len(xs)}")
        for x in xs[1:]:
            same = x.rank == xs[0].rank and all(require_equal(a, b, self.name) for a, b in zip(x.dims, xs[0].dims))
            if not same or x.dtype is not xs[0].dtype:
                raise self.fail(f"all slices need one type, got {xs[0]} and {x}")
        if not xs[0].rank:
            raise self.fail(f"slices are joined along axis 0, so they need one; got {xs[0]}")
        one = self._slice.infer(xs[0])
        return one.with_dim(0, self.num_batch_inputs * one.dims[0])

    def eval(self, *xs: Array) -> Any:
        return np.concatenate([self._slice.eval(x) for x in xs])

    def decompose(self, *xs: Any) -> Any:
        from rlx.ops.shape.movement import concat

        return concat([self._slice(x) for x in xs])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("gelu(i0);mul(s0,i0)", 3), spec(1, 4), spec(1, 4), spec(1, 4))
        yield sample(cls("relu(i0)", 2, prologue="resize_nearest_2x"), spec(1, 2, 2, 1), spec(1, 2, 2, 1))
        yield sample(cls("neg(i0)", 2), spec("B", 3), spec("B", 3), B=2)
