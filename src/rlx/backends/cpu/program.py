"""A LIR program as code: native kernels and host calls in order, and where each of them finds its operands.

What is here holds for every binding of the symbols; `plan` puts the numbers in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.cpu.code import loader
from rlx.backends.cpu.grid import Grid
from rlx.backends.cpu.spmd import Executor, executor
from rlx.backends.memory import fit
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.shape import Shape, Size
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.loop_ir import Buffer
from rlx.kernels.native import NativeKernel
from rlx.kernels.targets import host

Array = np.ndarray[Any, np.dtype[Any]]

# The first of the addresses that a run has; the others follow as `Program.values` numbers them.
ARENA = 0


class Place(NamedTuple):
    """Where a value lies: so many bytes after the start of one of the addresses of a run."""

    value: int
    offset: Size


class Operand(NamedTuple):
    """A value that a kernel reads or writes; `slot` is the part of the arena, offset and size, that it lies in."""

    place: Place
    slot: tuple[Size, Size]
    writes: bool


class NativeStep(NamedTuple):
    """A kernel with one argument per parameter: an operand, or the value of a size."""

    code: NativeKernel
    grid: Grid
    arguments: tuple[Operand | Size, ...]


class HostStep(NamedTuple):
    """An op that runs by its definition, on the host."""

    node: Node


Step = NativeStep | HostStep


class Leaf(NamedTuple):
    """An input or a param; kernels need its address to be a multiple of `align`."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    align: int


@dataclass(frozen=True)
class Program:
    """Steps, leaves, and the numbering of the addresses: the arena, inputs, stored outputs, host results, constants,
    params.

    `stored` are the outputs that kernels write to memory of their own. `returned` has for each output its number among
    them, or -1 where it must be copied from where it lies: an input, a view, a host result, an output named twice.
    """

    lir: LirModule
    graph: Graph
    steps: tuple[Step, ...]
    inputs: tuple[Leaf, ...]
    params: tuple[Leaf, ...]
    stored: tuple[NodeId, ...]
    returned: tuple[int, ...]
    host_results: tuple[NodeId, ...]
    constants: tuple[tuple[int, Array], ...]
    first_param: int
    values: dict[NodeId, int]
    alignments: dict[NodeId, int]
    native: Executor
    # Whether a run needs nothing of the host but memory.
    is_native: bool

    def place(self, node: NodeId) -> Place:
        return _place(self.lir, self.values, node)


def build_program(lir: LirModule) -> Program:
    """Compile or find the kernels of a LIR program."""
    graph = lir.as_graph()
    made = [_made(graph, k) for k in lir.kernels if k.kind != "view"]
    inputs = [n for n in graph.nodes if isinstance(n.op, Input)]
    params = [n for n in graph.nodes if isinstance(n.op, Param)]
    constants = [n for n in graph.nodes if isinstance(n.op, Constant)]
    stored = [n for m in made if m.code is not None for n in m.lir.outputs if _is_own(lir, n)]
    hosted = [m.node.id for m in made if m.code is None and _is_own(lir, m.node.id)]
    order = [*(n.id for n in inputs), *stored, *hosted, *(n.id for n in constants), *(n.id for n in params)]
    values = {node: ARENA + 1 + i for i, node in enumerate(order)}
    alignments = _alignments(lir, made)

    def leaf(node: Node) -> Leaf:
        assert isinstance(node.op, Input | Param)
        return Leaf(node.op.key, node.shape, node.shape.dtype.numpy, alignments.get(node.id, 1))

    sizes: dict[Size, Size] = {}
    steps = tuple(_step(lir, values, sizes, m) for m in made)
    returned = tuple(_returned(graph.outputs, stored))
    return Program(
        lir=lir,
        graph=graph,
        steps=steps,
        inputs=tuple(map(leaf, inputs)),
        params=tuple(map(leaf, params)),
        stored=tuple(stored),
        returned=returned,
        host_results=tuple(hosted),
        constants=tuple((values[n.id], fit(n.op.eval(), alignments.get(n.id, 1))[0]) for n in constants),
        first_param=1 + len(order) - len(params),
        values=values,
        alignments=alignments,
        native=executor(),
        is_native=-1 not in returned and all(isinstance(s, NativeStep) for s in steps),
    )


def _returned(outputs: Sequence[NodeId], stored: Sequence[NodeId]) -> Iterator[int]:
    left = {node: number for number, node in enumerate(stored)}
    for node in outputs:
        yield left.pop(node, -1)


class _Made(NamedTuple):
    """A kernel, its code, and what it is called with."""

    lir: LirKernel
    node: Node
    code: NativeKernel | None
    buffers: tuple[NodeId, ...]
    extents: tuple[Size, ...]


def _made(graph: Graph, kernel: LirKernel) -> _Made:
    node = graph.nodes[kernel.nodes[0]]
    if kernel.kind == "call":
        return _Made(kernel, node, None, (), ())
    # Named by its kind alone: equal kernels of different layers and programs are one piece of code.
    made = make_kernel(kernel.kind, graph, kernel, host())
    return _Made(kernel, node, loader().load(made.kernel), made.buffers, made.extents)


def _step(lir: LirModule, values: dict[NodeId, int], sizes: dict[Size, Size], made: _Made) -> Step:
    """A kernel with its arguments. Equal sizes become one object, in `sizes`: a plan then finds their numbers by
    identity, several times as fast as by comparing."""
    if made.code is None:
        return HostStep(made.node)

    def same(size: Size) -> Size:
        return sizes.setdefault(size, size)

    buffers, extents = iter(made.buffers), iter(made.extents)
    arguments: list[Operand | Size] = []
    for param in made.code.kernel.params:
        if isinstance(param, Buffer):
            node = next(buffers)
            value, offset = _place(lir, values, node)
            slot = lir.buffers.slot(_root(lir, node)) or (0, 0)
            arguments.append(Operand(Place(value, same(offset)), (same(slot[0]), same(slot[1])), param.writes))
        else:
            arguments.append(same(next(extents)))
    return NativeStep(made.code, Grid(made.code.kernel), tuple(arguments))


def _root(lir: LirModule, node: NodeId) -> NodeId:
    view = lir.buffers.view_aliases.get(node)
    return node if view is None else view.root


def _place(lir: LirModule, values: dict[NodeId, int], node: NodeId) -> Place:
    address = lir.buffers.address(node)
    if address is not None:
        return Place(ARENA, address)
    view = lir.buffers.view_aliases.get(node)
    return Place(values[node], 0) if view is None else Place(values[view.root], view.byte_offset)


def _is_own(lir: LirModule, node: NodeId) -> bool:
    """Whether a result lies neither in the arena nor in the memory of another value."""
    return lir.buffers.slot(node) is None and not lir.buffers.is_view(node)


def _alignments(lir: LirModule, made: Sequence[_Made]) -> dict[NodeId, int]:
    """What the kernels that read a value, or a view of it, need its address to be a multiple of."""
    found: dict[NodeId, int] = {}
    for m in made:
        if m.code is None:
            continue
        pointers = [p for p in m.code.kernel.params if isinstance(p, Buffer)]
        for node, pointer in zip(m.buffers, pointers, strict=True):
            root = _root(lir, node)
            found[root] = max(found.get(root, 1), pointer.align)
    return found
