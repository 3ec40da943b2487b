"""What stands under a name while a model is read, and what a rule sees of its node.

A value is one of these:

    Tensor      computed by the program
    ndarray     known now: a weight, an attribute, or what follows from them
    Sizes       whole numbers that are expressions of sizes, such as the shape of an input
    list        a sequence of the above
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

import rlx.numpy as rnp
from rlx.errors import FormatError, RlxError, UnsupportedOnnx
from rlx.formats.onnx import OnnxGraph, OnnxNode, OnnxTensor
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Size: TypeAlias = int | Dim


@dataclass(frozen=True, eq=False)
class Sizes:
    """An array of objects, each an int or a Dim, and the element type that ONNX gives them."""

    numbers: Array
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape


Value: TypeAlias = Any


def sizes(numbers: Any, dtype: DType = DType.I64) -> Sizes | Array:
    """Sizes as they are; an ordinary array where all are plain numbers."""
    found = np.asarray(numbers, object)
    if all(isinstance(n, int | float | bool | np.generic) for n in found.reshape(-1).tolist()):
        return found.astype(dtype.numpy)
    return Sizes(found, dtype)


def as_tensor(value: Value) -> Any:
    """A value that ops take: sizes are read when the program runs."""
    if not isinstance(value, Sizes):
        return value
    entries = [
        rnp.dim_value(n, value.dtype) if isinstance(n, Dim) else np.asarray(n, value.dtype.numpy)
        for n in value.numbers.reshape(-1).tolist()
    ]
    return rnp.reshape(rnp.stack(entries), value.shape) if entries else np.zeros(value.shape, value.dtype.numpy)


def dtype_of(value: Value) -> DType:
    return value.dtype if isinstance(value, Tensor | Sizes) else DType.of(value.dtype)


def rank_of(value: Value) -> int:
    return len(value.shape)


class NeedsValue(Exception):
    """A shape depends on the value of `name`, which only a run knows."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Call:
    """A node with the values of its inputs; rules read it and return what its outputs are."""

    def __init__(
        self,
        node: OnnxNode,
        inputs: Sequence[Value],
        opset: int,
        path: str,
        lift: Callable[[str, Value], Any] = lambda _, value: value,
        run_graph: Callable[[OnnxGraph, Sequence[Value]], list[Value]] | None = None,
    ) -> None:
        self.node, self.inputs, self.opset, self.path = node, list(inputs), opset, path
        # A value of this name as what ops take: a large array becomes a weight of the program.
        self.lift = lift
        # The values of the outputs of a graph in an attribute, for values of its inputs.
        self.run_graph = run_graph

    def fail(self, what: str) -> NoReturn:
        raise FormatError(f"{self.path}: node {self.node}: {what}")

    def unsupported(self, what: str) -> NoReturn:
        raise UnsupportedOnnx(f"{self.path}: node {self.node}: {what} is not supported")

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def __getitem__(self, index: int) -> Any:
        """An input as an array or a tensor; it must be there."""
        return self.lift(self.node.inputs[index], self.value(index))

    def value(self, index: int) -> Value:
        """An input as it is."""
        if not self.has(index):
            self.fail(f"input {index} is missing")
        return self.inputs[index]

    def optional(self, index: int) -> Any:
        return self[index] if self.has(index) else None

    def all(self) -> list[Any]:
        return [self[i] for i, value in enumerate(self.inputs) if value is not None]

    def wants(self, index: int) -> bool:
        """Whether something reads this output."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def known(self, index: int) -> Array:
        """The numbers of an input that shapes depend on; where they are not known yet, the program is divided."""
        value = self.value(index)
        if isinstance(value, Sizes):
            return value.numbers
        if isinstance(value, np.ndarray):
            return value
        raise NeedsValue(self.node.inputs[index])

    def numbers(self, index: int, attribute: str | None = None) -> list[Any] | None:
        """A list that is an input in newer opsets and an attribute in older ones; None where it is neither."""
        if self.has(index):
            return self.known(index).reshape(-1).tolist()
        given = None if attribute is None else self.attribute(attribute)
        return None if given is None else list(given)

    def number(self, index: int, otherwise: Any = None) -> Any:
        """One known number."""
        if not self.has(index):
            return otherwise
        found = self.known(index).reshape(-1).tolist()
        if len(found) != 1:
            self.fail(f"input {index} must be one number, got {len(found)}")
        return found[0]

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        """An attribute as a number, a text, an array, a graph, or a list of these."""
        value = self.node.attributes.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, OnnxTensor):
            return value.array()
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            return [text.decode("utf-8", "replace") for text in value]
        return value

    def axis(self, rank: int, otherwise: int = -1, name: str = "axis") -> int:
        return self.in_rank(int(self.attribute(name, otherwise)), rank)

    def in_rank(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            self.fail(f"axis {axis} does not exist in an array of rank {rank}")
        return axis % rank

    def axes(self, index: int, rank: int, attribute: str = "axes") -> tuple[int, ...] | None:
        given = self.numbers(index, attribute)
        return None if given is None else tuple(self.in_rank(int(a), rank) for a in given)


Rule: TypeAlias = Callable[[Call], Any]
RULES: dict[tuple[str, str], Rule] = {}
MICROSOFT = "com.microsoft"


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Registers what nodes of these ops mean."""

    def register(function: Rule) -> Rule:
        for name in names:
            if (domain, name) in RULES:
                raise RlxError(f"there is a rule for {name} already")
            RULES[domain, name] = function
        return function

    return register


class Grown(NamedTuple):
    """An array with as many entries along `axis` as its values said; its size is open in what follows."""

    array: Array
    axis: int | None


HostRule: TypeAlias = Callable[[Call], Sequence[Grown]]
# Ops that run between programs, on NumPy arrays: how large their results are, only values say.
HOST_RULES: dict[tuple[str, str], HostRule] = {}


def host_rule(*names: str, domain: str = "") -> Callable[[HostRule], HostRule]:
    def register(function: HostRule) -> HostRule:
        HOST_RULES.update({(domain, name): function for name in names})
        return function

    return register
