"""Python functions under transformation: traced where they are called, or, on plain arrays, run as a whole program.

A transformed function works in two places. Inside a program being built it adds to that program. Called on arrays it is
traced as a whole, compiled and run; equal programs are compiled once, however often they are traced.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, lift, target_graph
from rlx.ir.text import large_constants
from rlx.knobs import knobs
from rlx.trace.arguments import FlatCall, Signature
from rlx.trace.jit import Run, compile_graph, concrete
from rlx.trace.pytree import TreeDef, tree_flatten
from rlx.trace.tracing import Spec, Traced, entered, spec_of, trace_flat

Function = Callable[..., Any]


class Called:
    """`fn` traced on the arguments of one call. The arguments are tensors of `graph`, or arrays when it is None."""

    def __init__(
        self,
        fn: Function,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        graph: Graph | None,
        specs: Sequence[Spec] | None = None,
    ) -> None:
        signature = Signature(fn)
        self.name = signature.name
        self.call: FlatCall = signature.flatten(args, kwargs)
        self.positions = signature.positions(self.call)
        self.names = signature.leaf_names(self.call)
        self.arguments = self.call.leaves if graph is None else [lift(x, graph) for x in self.call.leaves]

        def run(tensors: list[Tensor]) -> Any:
            args, kwargs = signature.unflatten(self.call, tensors)
            return fn(*args, **kwargs)

        if specs is None:
            specs = [spec_of(x, f"{self.name}: {key!r}") for x, key in zip(self.arguments, self.names)]
        self.types: list[Shape] = [s.type for s in specs]
        self.traced: Traced = trace_flat(self.name, run, specs, self.names, can_capture=True)
        self.operands: list[Any] = [*self.arguments, *self.traced.captures]

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    @property
    def leaves(self) -> dict[NodeId, Tensor]:
        """The operand of every input of the traced graph."""
        return {node.id: x for node, x in zip(self.graph.inputs, self.operands, strict=True)}

    @property
    def inexact(self) -> list[int]:
        """The arguments that have derivatives."""
        return [i for i, t in enumerate(self.types) if t.dtype.is_inexact]

    def input_id(self, index: int) -> NodeId:
        return self.graph.inputs[index].id

    def leaf_indices(self, argument: int) -> list[int]:
        """Which leaves belong to positional argument `argument`."""
        return [i for i, p in enumerate(self.positions) if p == argument]

    def value_and_aux(self, what: str, has_aux: bool) -> tuple[TreeDef, TreeDef, int]:
        """The structures of the value and of the aux that is returned beside it, and how many leaves the value has."""
        tree = self.traced.out_tree
        whole = tree.unflatten(range(tree.num_leaves))
        if has_aux and not (isinstance(whole, tuple) and len(whole) == 2):
            raise AutodiffError(f"{what}({self.name}): with has_aux=True the function must return (value, aux)")
        value, aux = whole if has_aux else (whole, ())
        leaves, value_tree = tree_flatten(value)
        return value_tree, tree_flatten(aux)[1], len(leaves)

    def require_inexact(self, what: str, indices: Sequence[int]) -> None:
        """Refuse to differentiate with respect to integers and bools."""
        for i in indices:
            if not self.types[i].dtype.is_inexact:
                raise AutodiffError(
                    f"{what}({self.name}): the argument {self.names[i]!r} is {self.types[i]}; only float and complex "
                    "arguments have derivatives. Convert it with .astype('float32'), or leave it out of argnums"
                )


def transformed(fn: Function, build: Callable[..., Any], name: str) -> Function:
    """The function `build(graph, args, kwargs)` as users call it: on tensors, or on arrays."""

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = Signature(fn).flatten(args, kwargs).leaves
        graph = target_graph(leaves)
        if graph is not None:
            with entered(graph):
                return build(graph, args, kwargs)
        return run_whole(fn, build, args, kwargs)

    call.__name__ = f"{name}({getattr(fn, '__name__', type(fn).__name__)})"
    return call


def run_whole(fn: Function, build: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Trace `build` on arrays as one program and run it."""
    signature = Signature(fn)
    call = signature.flatten(args, kwargs)
    names = signature.leaf_names(call)
    specs = [spec_of(leaf, f"{signature.name}: {key!r}") for leaf, key in zip(call.leaves, names)]

    def run(tensors: list[Tensor]) -> Any:
        traced_args, traced_kwargs = signature.unflatten(call, tensors)
        graph = target_graph(tensors)
        assert graph is not None
        return build(graph, traced_args, traced_kwargs)

    traced = trace_flat(signature.name, run, specs, names)
    return traced.out_tree.unflatten(apply_program(traced.graph, call.leaves))


def apply_program(graph: Graph, operands: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a graph: as a part of the program being built, or run on arrays and numbers."""
    if target_graph(operands) is not None:
        return inline_graph(graph, operands)
    arrays = [concrete(x, node.shape.dtype.numpy) for x, node in zip(operands, graph.inputs, strict=True)]
    return _compiled(graph)(arrays)


_programs: OrderedDict[tuple[str, ...], Run] = OrderedDict()
_lock = threading.Lock()
_CAPACITY = 256


def _compiled(graph: Graph) -> Run:
    """The compiled form of a graph; graphs with the same text and constants share one."""
    key = (knobs.backend or "", str(graph), *large_constants(graph))
    with _lock:
        found = _programs.get(key)
        if found is not None:
            _programs.move_to_end(key)
            return found
    run = compile_graph(graph)
    with _lock:
        _programs[key] = run
        while len(_programs) > _CAPACITY:
            _programs.popitem(last=False)
    return run
