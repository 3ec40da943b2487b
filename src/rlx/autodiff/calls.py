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
from rlx.ir.tensor import Tensor, lift, target_graph
from rlx.ir.text import large_constants
from rlx.knobs import knobs
from rlx.trace.arguments import FlatCall, Signature
from rlx.trace.jit import Run, compile_graph, concrete
from rlx.trace.tracing import Spec, Traced, entered, spec_of, trace_flat

Function = Callable[..., Any]


class Called:
    """`fn` traced on the arguments of one call, with its operands in the program being built."""

    def __init__(
        self,
        fn: Function,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        graph: Graph,
        specs: Sequence[Spec] | None = None,
    ) -> None:
        signature = Signature(fn)
        self.name = signature.name
        self.call: FlatCall = signature.flatten(args, kwargs)
        self.positions = signature.positions(self.call)
        self.names = signature.leaf_names(self.call)
        self.arguments = [lift(x, graph) for x in self.call.leaves]

        def run(tensors: list[Tensor]) -> Any:
            args, kwargs = signature.unflatten(self.call, tensors)
            return fn(*args, **kwargs)

        types = [spec_of(t) for t in self.arguments] if specs is None else specs
        self.traced: Traced = trace_flat(self.name, run, types, self.names, can_capture=True)
        self.operands = [*self.arguments, *self.traced.captures]

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    @property
    def leaves(self) -> dict[NodeId, Tensor]:
        """The operand of every input of the traced graph."""
        return {node.id: x for node, x in zip(self.graph.inputs, self.operands, strict=True)}

    def input_id(self, index: int) -> NodeId:
        return self.graph.inputs[index].id

    def leaf_indices(self, argument: int) -> list[int]:
        """Which leaves belong to positional argument `argument`."""
        return [i for i, p in enumerate(self.positions) if p == argument]

    def inline(self) -> tuple[Tensor, ...]:
        return inline_graph(self.graph, self.operands)


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

    return run_traced(trace_flat(signature.name, run, specs, names), call.leaves)


def run_traced(traced: Traced, leaves: Sequence[Any]) -> Any:
    """The results of a traced program on arrays, as a tree."""
    return traced.out_tree.unflatten(run_program(traced.graph, leaves))


def run_program(graph: Graph, leaves: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a graph on arrays and numbers, which are given the types of its inputs."""
    arrays = [concrete(x, node.shape.dtype.numpy) for x, node in zip(leaves, graph.inputs, strict=True)]
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


def require_inexact(what: str, called: Called, indices: Sequence[int]) -> None:
    """Refuse to differentiate with respect to integers and bools."""
    for i in indices:
        t = called.arguments[i].type
        if not t.dtype.is_inexact:
            raise AutodiffError(
                f"{what}({called.name}): the argument {called.names[i]!r} is {t}; only float and complex arguments "
                "have derivatives. Convert it with .astype('float32'), or leave it out of argnums"
            )
