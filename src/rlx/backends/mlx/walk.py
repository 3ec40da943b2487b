"""`Walk`: a program told to MLX. A rule says what MLX is told for one op.

    @rule(Transpose)
    def _transpose(call, x):
        return mx.transpose(x, call.op.perm)

A rule gets a `Call`, which has the op and the types around it, and arrays of MLX; it gives one array, or a list of them
where the op has several results. Ops without a rule are taken apart before; see `lowering`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlx.backends.engine import Engine
from rlx.backends.mlx.device import has_gpu, in_stream, mx
from rlx.backends.mlx.dtypes import Array, mlx_type, to_mlx, to_numpy
from rlx.errors import InternalError, RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ir.shape import Shape

Rule = Callable[..., Any]

RULES: dict[type[Op], Rule] = {}


def rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Register what MLX is told for ops."""

    def register(tell: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, tell))
        return tell

    return register


class Typed(NamedTuple):
    """An array of MLX, and what it stands for. Weights in a format of MLX are several arrays."""

    array: Any
    type: Shape


class Constant(NamedTuple):
    """An array of a program, kept so that no other can have its number, and the same of MLX."""

    here: Array
    there: Any


class Check(NamedTuple):
    """A run ends with the error unless every element is true."""

    holds: Any
    error: RlxError


class Call(NamedTuple):
    """One op of a program."""

    walk: Walk
    op: Any
    operands: list[Shape]
    results: tuple[Shape, ...]

    @property
    def dtypes(self) -> list[DType]:
        """The types of the operands."""
        return [shape.dtype for shape in self.operands]

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of the first result."""
        return self.results[0].static_dims

    @property
    def dtype(self) -> DType:
        return self.results[0].dtype

    def zeros(self) -> Any:
        return mx.zeros(self.dims, mlx_type(self.dtype))


class Walk(Engine[Typed]):
    """One walk through a program, by a run or by `mlx.compile`; it collects what the program checks.

    `is_traced`: MLX looks at what it is told but has no numbers yet, so nothing may depend on them. `is_eager`: every
    op is computed at once. `by_body` has the compiled programs of bodies; None where they are walked through as well.
    """

    name = "mlx"

    def __init__(
        self,
        constants: dict[int, Constant],
        is_traced: bool = False,
        is_eager: bool = False,
        by_body: dict[int, Any] | None = None,
    ) -> None:
        self.constants, self.is_traced, self.is_eager, self.by_body = constants, is_traced, is_eager, by_body
        self.checks: list[Check] = []

    def constant(self, array: Array) -> Typed:
        """Copied once for all walks."""
        if id(array) not in self.constants:
            self.constants[id(array)] = Constant(array, to_mlx(array))
        return Typed(self.constants[id(array)].there, Shape(array.shape, DType.of(array.dtype)))

    def fetch(self, value: Typed) -> Array:
        return to_numpy(value.array, value.type.dtype, value.type.static_dims)

    def emit(self, node: Node, operands: Sequence[Typed]) -> Sequence[Typed]:
        call = Call(self, node.op, [v.type for v in operands], node.shapes)
        arrays = [v.array for v in operands]
        is_double = any(shape.dtype is DType.F64 for shape in (*call.operands, *node.shapes))
        if is_double and has_gpu():
            with in_stream(of_cpu=True):
                told = RULES[type(node.op)](call, *arrays)
        else:
            told = RULES[type(node.op)](call, *arrays)
        results = told if isinstance(told, list) else [told]
        for result, shape in zip(results, node.shapes, strict=True):
            if tuple(result.shape) != shape.static_dims or result.dtype != mlx_type(shape.dtype):
                raise InternalError(f"mlx: the rule of {node!r} gives {result.dtype}{result.shape}, not {shape}")
        if self.is_eager:
            mx.eval(results)
        return [Typed(result, shape) for result, shape in zip(results, node.shapes)]

    def outputs(self, graph: Graph, leaves: dict[str, Any]) -> list[Any]:
        """The outputs of a program for arrays of its leaves."""
        types = {str(n.op.key): n.shape for n in graph.nodes if n.is_leaf and hasattr(n.op, "key")}
        return [v.array for v in self.walk(graph, {key: Typed(leaves[key], types[key]) for key in leaves})]

    def body(self, graph: Graph, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a body for its operands, in their order."""
        if self.by_body is None:
            return self.outputs(graph, {str(n.name): a for n, a in zip(graph.inputs, operands, strict=True)})
        if id(graph) not in self.by_body:
            self.by_body[id(graph)] = Traced(graph, [str(n.name) for n in graph.inputs], self.constants)
        traced: Traced = self.by_body[id(graph)]
        return traced.run(self, operands)

    def require(self, holds: Any, error: RlxError) -> None:
        self.checks.append(Check(holds, error))


class Traced:
    """A program that `mlx.compile` has seen: told once, run many times."""

    def __init__(self, graph: Graph, keys: Sequence[str], constants: dict[int, Constant]) -> None:
        self._graph, self._keys, self._constants = graph, keys, constants
        self._errors: list[RlxError] = []
        self._run = mx.compile(self._told)

    def _told(self, *arrays: Any) -> list[Any]:
        walk = Walk(self._constants, is_traced=True)
        outputs = walk.outputs(self._graph, dict(zip(self._keys, arrays)))
        self._errors = [check.error for check in walk.checks]
        return [*outputs, *(check.holds for check in walk.checks)]

    def run(self, walk: Walk, arrays: Sequence[Any]) -> list[Any]:
        """The outputs; what is checked goes to the walk that this is part of."""
        results = list(self._run(*arrays))
        count = len(self._graph.outputs)
        for holds, error in zip(results[count:], self._errors, strict=True):
            walk.require(holds, error)
        return results[:count]
