"""Python functions under transformation: traced where they are called, or, on plain arrays, run as a whole program.

A transformed function works in two places. Inside a program being built it adds to that program. Called on arrays it is
traced as a whole, compiled and run; equal programs are compiled once, however often they are traced.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from rlx.errors import AutodiffError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, lift, target_graph
from rlx.ir.text.graph_text import large_constants
from rlx.knobs import knobs
from rlx.ops.control.body_transforms import chosen
from rlx.trace.arguments import Signature
from rlx.trace.jit import Run, compile_graph, concrete, device_of_arguments
from rlx.trace.pytree import TreeDef, tree_flatten
from rlx.trace.tracing import Spec, Traced, entered, spec_of, trace_flat

Function = Callable[..., Any]


# For every leaf of (args, kwargs) whether the transform is about it; None means that it is about all.
Selected = Sequence[bool] | None


class Arguments:
    """The arguments of one call taken apart: leaves that are traced, and leaves that the function gets as they are.

    Arrays are traced, and so is everything that the transform is about. Other leaves, such as a flag beside the
    parameters in `grad(loss)(params, x, train=True)`, stay Python values.
    """

    def __init__(self, fn: Function, args: Sequence[Any], kwargs: dict[str, Any], selected: Selected = None) -> None:
        self._signature = Signature(fn)
        self._call = self._signature.flatten(args, kwargs)
        leaves = self._call.leaves
        flags = [True] * len(leaves) if selected is None else selected
        self._traced = [flag or is_array(x) for x, flag in zip(leaves, flags, strict=True)]
        self.name = self._signature.name
        self.leaves = chosen(leaves, self._traced)
        self.names = chosen(self._signature.leaf_names(self._call), self._traced)
        self.positions = chosen(self._signature.positions(self._call), self._traced)

    def of_traced(self, values: Sequence[Any]) -> list[Any]:
        """Values given for all leaves, restricted to those that are traced."""
        return chosen(values, self._traced)

    def unflatten(self, leaves: Sequence[Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs), with other values for the traced leaves."""
        rest = iter(self.leaves if leaves is None else leaves)
        whole = [next(rest) if traced else x for x, traced in zip(self._call.leaves, self._traced)]
        return self._signature.unflatten(self._call, whole)

    def replaced(self, leaves: Sequence[Any]) -> Arguments:
        """The same call with other values for the traced leaves."""
        twin = copy.copy(self)
        twin.leaves = list(leaves)
        return twin

    def specs(self) -> list[Spec]:
        return [spec_of(x, f"{self.name}: {key!r}") for x, key in zip(self.leaves, self.names)]


def is_array(value: Any) -> bool:
    """Whether it is a value of a program, or may become one."""
    return isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype"))


class Called:
    """`fn` traced on the arguments of one call. The arguments are tensors of `graph`, or arrays when it is None."""

    def __init__(
        self,
        fn: Function,
        arguments: Arguments,
        graph: Graph | None,
        specs: Sequence[Spec] | None = None,
    ) -> None:
        self.name, self.names, self.positions = arguments.name, arguments.names, arguments.positions
        self.arguments = arguments.leaves if graph is None else [lift(x, graph) for x in arguments.leaves]
        specs = arguments.specs() if specs is None else specs
        self.types: list[Shape] = [s.type for s in specs]

        def run(tensors: list[Tensor]) -> Any:
            args, kwargs = arguments.unflatten(tensors)
            return fn(*args, **kwargs)

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
                    "arguments have derivatives. Convert it with .astype('float32'), leave it out of argnums, or give "
                    "allow_int=True, for which the derivative is 0"
                )


def transformed(
    fn: Function,
    build: Callable[[Graph, Arguments], Any],
    name: str,
    select: Callable[[Sequence[Any], dict[str, Any]], Selected] | None = None,
) -> Function:
    """`build`, which adds a transformed call of `fn` to a program, as users call it: on tensors or on arrays."""

    if not callable(fn):
        raise AutodiffError(f"{name}: needs a function, got {_shown(fn)}; give it the function, not what it returned")

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(fn, args, kwargs, None if select is None else select(args, kwargs))
        graph = target_graph(arguments.leaves)
        if graph is not None:
            with entered(graph):
                return build(graph, arguments)
        return _run_whole(build, arguments)

    call.__name__ = f"{name}({getattr(fn, '__name__', type(fn).__name__)})"
    return call


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def _run_whole(build: Callable[[Graph, Arguments], Any], arguments: Arguments) -> Any:
    """Trace `build` on arrays as one program and run it."""

    def run(tensors: list[Tensor]) -> Any:
        graph = target_graph(tensors)
        assert graph is not None
        return build(graph, arguments.replaced(tensors))

    traced = trace_flat(arguments.name, run, arguments.specs(), arguments.names)
    return traced.out_tree.unflatten(apply_program(traced.graph, arguments.leaves))


def apply_program(graph: Graph, operands: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a graph: as a part of the program being built, or run on arrays and numbers."""
    if target_graph(operands) is not None:
        return inline_graph(graph, operands)
    arrays = [concrete(x, node.shape.dtype.numpy) for x, node in zip(operands, graph.inputs, strict=True)]
    return _compiled(graph, device_of_arguments(operands, f"@{graph.name}"))(arrays)


_programs: OrderedDict[tuple[str, ...], Run] = OrderedDict()
_lock = threading.Lock()
_CAPACITY = 256


def _compiled(graph: Graph, device: str | None = None) -> Run:
    """The compiled form of a graph; graphs with the same text and constants share one."""
    key = (device or knobs.backend or "", str(graph), *large_constants(graph))
    with _lock:
        found = _programs.get(key)
        if found is not None:
            _programs.move_to_end(key)
            return found
    run = compile_graph(graph, device)
    with _lock:
        _programs[key] = run
        while len(_programs) > _CAPACITY:
            _programs.popitem(last=False)
    return run
