"""Bodies under transformation: what the rules of control-flow ops are written with.

The engines of `rlx.autodiff` transform whole graphs. They come later in the order of imports and register themselves
here; only they call rules, so they are there whenever a rule runs. All functions emit into the program being built.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Input
from rlx.ir.op import Op
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import build_body, input_types, output_types
from rlx.ops.define.rules import current_mapped_axis, put_batch_first

Flags = tuple[bool, ...]
Leaves = Mapping[NodeId, Tensor]


class Engines(NamedTuple):
    """The transforms of `rlx.autodiff`: forward mode, reverse mode and batching of a graph."""

    push_forward: Callable[[Graph, Leaves, Leaves], tuple[list[Tensor], list[Tensor | None]]]
    # The cotangents of some leaves, for cotangents of the outputs; the values of some nodes may be known.
    pull_back: Callable[[Graph, Leaves, Sequence[NodeId], Sequence[Tensor | None], Leaves], list[Tensor | None]]
    batch: Callable[[Graph, Leaves, Collection[NodeId], Size, str | None], tuple[list[Tensor], list[bool]]]


_engines: list[Engines] = []


def set_engines(engines: Engines) -> None:
    """Called by `rlx.autodiff` when it is loaded."""
    _engines[:] = [engines]


def _engine() -> Engines:
    if not _engines:
        # A program from a file may be batched by the form that it decomposes into, though nobody has transformed it.
        importlib.import_module("rlx.autodiff")
    return _engines[0]


def push_body(
    body: Graph, operands: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The outputs of `body` and their tangents; None is zero."""
    ids = [n.id for n in body.inputs]
    known = {i: t for i, t in zip(ids, tangents, strict=True) if t is not None}
    return _engine().push_forward(body, dict(zip(ids, operands, strict=True)), known)


def pushed_program(body: Graph, types: Sequence[Shape], known: Sequence[bool]) -> tuple[Graph, list[bool]]:
    """The body that takes operands, and tangents of those that are `known` to have one, and gives the outputs of `body`
    and then their tangents, except those that are zero; and which outputs have one."""
    moved: list[bool] = []

    def both(x: list[Tensor], dx: list[Tensor]) -> list[Tensor]:
        outputs, pushed = push_body(body, x, spread(dx, known))
        moved.extend(t is not None for t in pushed)
        return [*outputs, *(t for t in pushed if t is not None)]

    return build_step(f"{body.name}_jvp", both, ("x", types), ("d_x", chosen(types, known))), moved


def pull_body(
    body: Graph,
    operands: Sequence[Tensor],
    wrt: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    saved: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """One cotangent per operand for cotangents of the outputs; None is zero, also for operands not in `wrt`. The last
    outputs are `saved`, if these are given, and are not computed again."""
    ids = [n.id for n in body.inputs]
    chosen = [i for i, flag in zip(ids, wrt, strict=True) if flag]
    known = dict(zip(body.outputs[len(body.outputs) - len(saved) :], saved))
    found = iter(_engine().pull_back(body, dict(zip(ids, operands, strict=True)), chosen, cotangents, known))
    return [next(found) if flag else None for flag in wrt]


def batch_body(
    body: Graph, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]
) -> tuple[list[Tensor], list[bool]]:
    """The outputs of `body` over a leading axis of the batched operands, and which outputs have that axis."""
    ids = [n.id for n in body.inputs]
    chosen = [i for i, flag in zip(ids, batched, strict=True) if flag]
    return _engine().batch(body, dict(zip(ids, operands, strict=True)), chosen, size, current_mapped_axis())


def depends_on(graph: Graph, sources: Collection[NodeId]) -> set[NodeId]:
    """The nodes whose value is computed from one of `sources` through values that have tangents.

    These are the inexact ones (float or complex), and the codes that ops with `codes_have_tangents` hand on.
    """
    found: set[NodeId] = set()
    for node in graph.nodes:
        codes = node.op.codes_have_tangents
        reached = node.id in sources or any(i in found and (codes or _is_inexact(graph.nodes[i])) for i in node.inputs)
        if reached and (codes or _is_inexact(node)) and not node.op.derivative_is_zero:
            found.add(node.id)
    return found


def tangent_type(shape: Shape) -> Shape:
    """The type of tangents and cotangents of a value: its own, or f32 for codes."""
    return shape if shape.dtype.is_inexact else shape.with_dtype(DType.F32)


def _is_inexact(node: Node) -> bool:
    return any(s.dtype.is_inexact for s in node.shapes)


def varies_over(graph: Graph, sources: Collection[NodeId], axis_name: str | None) -> set[NodeId]:
    """The nodes that differ along a batch axis of `sources`: what they reach, and collectives across that axis."""
    found: set[NodeId] = set(sources)
    for node in graph.nodes:
        # A collective over the mapped axis differs along it even when its operand does not (axis_index).
        if any(i in found for i in node.inputs) or (axis_name is not None and _is_across(node.op, axis_name)):
            found.add(node.id)
    return found


def _is_across(op: Op, axis_name: str) -> bool:
    if getattr(op, "axis_name", None) == axis_name:
        return True
    return any(_is_across(node.op, axis_name) for body in op.bodies.values() for node in body.nodes)


def moving_outputs(body: Graph, active: Sequence[bool]) -> Flags:
    """Which outputs depend on the active inputs in a differentiable way."""
    found = depends_on(body, {n.id for n, flag in zip(body.inputs, active, strict=True) if flag})
    return tuple(o in found and _is_inexact(body.nodes[o]) for o in body.outputs)


def batched_outputs(body: Graph, batched: Sequence[bool]) -> Flags:
    """Which outputs have the batch axis when the given inputs have it."""
    sources = {n.id for n, flag in zip(body.inputs, batched, strict=True) if flag}
    found = varies_over(body, sources, current_mapped_axis())
    return tuple(o in found for o in body.outputs)


def settle_carries(
    outputs_of: Callable[[Graph, Sequence[bool]], Flags], body: Graph, carries: Sequence[bool], others: Sequence[bool]
) -> Flags:
    """Which carries of a loop have a property at some step, when the given carries have it at the start.

    `outputs_of(body, flags of all inputs)` says which outputs of one step have it; carries come first in both.
    """
    settled = tuple(carries)
    while True:
        after = outputs_of(body, (*settled, *others))
        grown = tuple(a or b for a, b in zip(settled, after))
        if grown == settled:
            return settled
        settled = grown


def filled(tangents: Iterable[Tensor | None], shapes: Iterable[Shape]) -> list[Tensor]:
    """The tangents with zeros of the given types in the place of None."""
    from rlx.ops.shape.creation import zeros

    return [zeros(s.dims, s.dtype) if t is None else t for t, s in zip(tangents, shapes, strict=True)]


def chosen(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """The values whose flag is set."""
    return [v for v, flag in zip(values, flags, strict=True) if flag]


def spread(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """The inverse of `chosen`: one value per flag that is set, None for the others."""
    rest = iter(values)
    return [next(rest) if flag else None for flag in flags]


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Results of an op as a tuple, also when there is only one."""
    return results if isinstance(results, tuple) else (results,)


def with_batch_axis(outputs: Sequence[Tensor], flags: Sequence[bool], size: Size) -> list[Tensor]:
    """Outputs of `batch_body` that all have the batch axis."""
    return [put_batch_first(o, flag, size) for o, flag in zip(outputs, flags, strict=True)]


def build_step(name: str, build: Callable[..., Any], *groups: tuple[str, Sequence[Shape]]) -> Graph:
    """The body that `build(*lists of tensors)` computes; each group gives a name and the types of one list."""
    inputs = {f"{group}{i}": shape for group, shapes in groups for i, shape in enumerate(shapes)}

    def call(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        return tuple(build(*([next(rest) for _ in shapes] for _, shapes in groups)))

    return build_body(name, call, **inputs)


def types(tensors: Iterable[Tensor]) -> list[Shape]:
    return [t.type for t in tensors]


def without_dead_code(graph: Graph) -> tuple[Graph, Flags]:
    """The graph without what its outputs do not need, effects included, and which of its Inputs are left."""
    needed: set[NodeId] = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.id in needed:
            needed.update(node.inputs)
    pruned = Graph(graph.name)
    pruned.constraints = list(graph.constraints)
    ids: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        if node.id in needed:
            ids[node.id] = pruned.append(node.op, [ids[i] for i in node.inputs], name=node.name, origin=node.origin).id
    pruned.set_outputs([ids[o] for o in graph.outputs])
    return pruned.freeze(), tuple(n.id in needed for n in graph.nodes if isinstance(n.op, Input))


class VjpProgram(NamedTuple):
    """The reverse-mode derivative of a body as a program of its own.

    It takes the inputs of the body and then the cotangents of its outputs, except those that it does not read (`used`
    has one flag for each), and returns the cotangents of the body's inputs that are not zero (`found`).
    """

    graph: Graph
    used: Flags
    found: Flags

    def __call__(self, operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Tensor | None]:
        """One cotangent per operand of the body; None is zero."""
        return spread(inline_graph(self.graph, chosen([*operands, *cotangents], self.used)), self.found)


@functools.lru_cache(maxsize=128)
def vjp_program(body: Graph, wrt: Flags, given: Flags, saved: int = 0) -> VjpProgram:
    """The derivative of `body` to the inputs in `wrt`, for cotangents of the `given` outputs.

    The values of the body that it needs are computed again, without effects: those happen in the forward program. The
    last `saved` outputs are not: the program takes them behind the inputs of the body.
    """
    inputs, outputs = input_types(body), output_types(body)
    cotangents = chosen(outputs, given)
    found: list[bool] = []

    def pull(operands: list[Tensor], kept: list[Tensor], cts: list[Tensor]) -> list[Tensor]:
        results = pull_body(body, operands, wrt, spread(cts, given), kept)
        found.extend(r is not None for r in results)
        return [r for r in results if r is not None]

    groups = (("x", inputs), ("saved", outputs[len(outputs) - saved :]), ("ct", cotangents))
    graph = build_step(f"{body.name}_vjp", pull, *groups)
    return VjpProgram(*without_dead_code(graph), tuple(found))
