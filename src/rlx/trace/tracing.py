"""`trace`: a Python function becomes a graph, by calling it once on tensors that stand for its arguments.

>>> import rlx.ops
>>> traced = trace(lambda x, s: x * s, Spec(("B", 4), "f32"), 2.0)
>>> print(str(traced.graph).strip())
mir @lambda(%x: f32[B,4], %s: f32[]) {
  %0: f32[B,4] = mul(%x, %s)
  return %0
}
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx.ops  # noqa: F401  (gives Tensor its operators)
from rlx.errors import DTypeError, TraceError
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor import Tensor, building, constant_data, current_scope, is_python_scalar, lift
from rlx.trace.arguments import Signature
from rlx.trace.pytree import Path, TreeDef, path_text, tree_flatten


class Spec:
    """The type of an argument without its value: `Spec(("B", 4), "f32")`. Names are symbolic sizes.

    A weak spec stands for a Python number, which takes the dtype of what it meets.
    """

    __slots__ = ("type", "weak")

    def __init__(self, dims: Iterable[int | str | Dim], dtype: DTypeLike = DType.F32, weak: bool = False) -> None:
        self.type = Shape(dims, dtype)
        self.weak = weak

    @property
    def dims(self) -> Dims:
        return self.type.dims

    @property
    def shape(self) -> Dims:
        return self.type.dims

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.type == other.type and self.weak == other.weak

    def __hash__(self) -> int:
        return hash((self.type, self.weak))

    def __repr__(self) -> str:
        return f"Spec({self.type}{', weak' if self.weak else ''})"


def spec_of(value: Any, what: str = "a value") -> Spec:
    """The spec of a tensor, array, number, Shape or Spec; `what` names the value in the error for anything else."""
    if isinstance(value, Spec):
        return value
    if isinstance(value, Tensor):
        return Spec(value.shape, value.dtype, value.weak)
    if isinstance(value, Shape):
        return Spec(value.dims, value.dtype)
    if is_python_scalar(value):
        dtype = constant_data(value).shape.dtype
        # An integer that needs 64 bits keeps them whatever it meets.
        return Spec((), dtype, weak=dtype is not DType.I64)
    if isinstance(value, np.ndarray | np.generic) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        try:
            return Spec(value.shape, value.dtype, getattr(value, "weak", False))
        except DTypeError as error:
            raise TraceError(f"{what} is an array of {value.dtype}, which no op accepts: {error}") from None
    shown = repr(value)
    raise TraceError(
        f"{what} is a {type(value).__name__} ({shown if len(shown) < 40 else shown[:40] + '...'}); arguments are "
        "arrays, numbers and trees of them. If it selects how the function works, mark it with static_argnames"
    )


def category(dtype: DType) -> int:
    """bool, integer, float, complex: a weak value fits a type of its own category or a later one."""
    return 3 if dtype.is_complex else 2 if dtype.is_float else 1 if dtype.is_int else 0


@dataclass(frozen=True)
class Traced:
    """A function as a graph over flat values. Inputs are the arguments, then the values captured from outside."""

    graph: Graph
    out_tree: TreeDef
    # Values of the enclosing program, read by closures.
    captures: tuple[Tensor, ...]
    # Outputs that are Python numbers or weak tensors may still take another dtype.
    weak_outputs: tuple[bool, ...]
    # Outputs that are Python numbers, by position: they are converted from the exact value.
    scalar_outputs: dict[int, bool | int | float | complex]

    @property
    def out_types(self) -> tuple[Shape, ...]:
        return tuple(self.graph.shape(o) for o in self.graph.outputs)


def trace_flat(
    name: str,
    call: Callable[[list[Tensor]], Any],
    specs: Sequence[Spec],
    names: Sequence[str],
    can_capture: bool = False,
) -> Traced:
    """Call `call` on one tensor per spec, and record what it does in a new graph."""
    graph = Graph(name)
    with building(graph, can_capture) as scope:
        tensors = [
            Tensor(graph, graph.append(Input(key, spec.type)).id, spec.weak)
            for key, spec in zip(names, specs, strict=True)
        ]
        try:
            leaves, out_tree = tree_flatten(call(tensors))
        except RecursionError:
            raise TraceError(
                f"{name}: functions that are traced call one another too deeply for Python's stack "
                f"(sys.getrecursionlimit() is {sys.getrecursionlimit()}). Write repetition as rlx.scan or "
                "rlx.while_loop, or jit the outermost function only"
            ) from None
        outputs = [_output(graph, leaf, path) for leaf, path in zip(leaves, out_tree.paths())]
    if not outputs and any(not n.is_leaf for n in graph.nodes) and not any(n.op.effect for n in graph.nodes):
        raise TraceError(
            f"{name} computes something but returns nothing, so its results would be lost. Return them: storing traced "
            "values in a global, an attribute or a list does not work"
        )
    graph.set_outputs(outputs)
    scalars = {i: leaf for i, leaf in enumerate(leaves) if is_python_scalar(leaf)}
    weak = tuple(t.weak for t in outputs)
    return Traced(graph.freeze(), out_tree, tuple(scope.captures), weak, scalars)


def _output(graph: Graph, leaf: Any, path: Path) -> Tensor:
    if isinstance(leaf, Tensor | Dim) or is_python_scalar(leaf) or hasattr(leaf, "__array__"):
        return lift(leaf, graph)
    place = f" at {path_text(path)!r}" if path else ""
    raise TraceError(
        f"{graph.name} returns a {type(leaf).__name__}{place}; a traced function returns arrays, numbers and trees of "
        "them (dict, list, tuple, None, or classes given to rlx.tree.register_pytree_node)"
    )


@contextmanager
def entered(graph: Graph | None) -> Iterator[None]:
    """Makes `graph` the program being built, so that bodies traced inside may capture its values."""
    scope = current_scope()
    if graph is None or (scope is not None and scope.graph is graph):
        yield
        return
    with building(graph):
        yield


@dataclass(frozen=True)
class TracedFunction:
    """What `trace` returns: the graph, and how arguments and results map to its inputs and outputs."""

    graph: Graph
    # The structure of (args, kwargs), static arguments left out.
    in_tree: TreeDef
    out_tree: TreeDef
    in_specs: tuple[Spec, ...]

    @property
    def out_specs(self) -> Any:
        """The types of the results, as a tree."""
        types = [self.graph.shape(o) for o in self.graph.outputs]
        return self.out_tree.unflatten(Spec(t.dims, t.dtype) for t in types)

    def __str__(self) -> str:
        return str(self.graph)


def trace(
    fn: Callable[..., Any],
    *specs: Any,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    **kwspecs: Any,
) -> TracedFunction:
    """The graph of `fn` for arguments of the given types.

    Arguments are `Spec`s, `Shape`s, type texts ("f32[B,4]"), arrays (only their types count), Python numbers (weak
    scalars), and trees of these. Inputs are called after the parameters and the paths into them: `x`, `p.w`.
    """
    signature = Signature(fn, static_argnums, static_argnames)
    call = signature.flatten(specs, kwspecs)
    names = signature.leaf_names(call)
    leaf_specs = tuple(
        spec_of(Shape.of(leaf) if isinstance(leaf, str) else leaf, f"trace({signature.name}): {name!r}")
        for leaf, name in zip(call.leaves, names)
    )

    def run(tensors: list[Tensor]) -> Any:
        args, kwargs = signature.unflatten(call, tensors)
        return fn(*args, **kwargs)

    traced = trace_flat(signature.name, run, leaf_specs, names)
    return TracedFunction(traced.graph, call.structure, traced.out_tree, leaf_specs)
