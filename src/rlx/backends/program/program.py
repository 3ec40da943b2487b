"""A LIR program as code: native kernels and host calls in order, and where each of them finds its operands.

What is here holds for every binding of the symbols; `plan` puts the numbers in.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from rlx.backends.memory import fit
from rlx.backends.native.code_cache import loader
from rlx.backends.program.grid import Grid
from rlx.ir.dims import DimConstraint, distinct
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, LOOP, VIEW
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import Op
from rlx.ir.shape import Shape, Size
from rlx.kernels.machines import Machine, host

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult
    from rlx.ir.lir import LirKernel, LirModule
    from rlx.kernels.ir.loop_ir import Kernel
    from rlx.kernels.reuse import KernelMaker
    from rlx.kernels.schedules import ScheduleTable

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


class Code(Protocol):
    """The code of a kernel; `address` is the number by which what runs programs knows it, `key` what caches call it."""

    name: str
    key: str

    @property
    def address(self) -> int: ...


class LoadedKernel(Protocol):
    """A kernel in the form in which it runs, with its code."""

    @property
    def kernel(self) -> Kernel: ...

    @property
    def code(self) -> Code: ...


class Loading(NamedTuple):
    """For which machine kernels are made, what makes code of them, and the schedules of a target that has its own."""

    machine: Machine
    load: Callable[[Kernel], LoadedKernel]
    schedules: ScheduleTable | None = None
    # Told of kernels that will be loaded, where something can be done about them meanwhile.
    start: Callable[[Kernel], None] | None = None


def host_loading() -> Loading:
    """Kernels for this machine, as functions of this process."""
    return Loading(host(), loader().load, start=loader().start)


class NativeStep(NamedTuple):
    """A kernel with one argument per parameter: an operand, or the value of a size."""

    code: Code
    grid: Grid
    arguments: tuple[Operand | Size, ...]
    label: tuple[str, str]  # its kind, and the ops in it


class HostStep(NamedTuple):
    """An op that runs by its definition, on the host. Kernels need its result to begin at a multiple of `align`."""

    op: Op
    node: NodeId
    operands: tuple[NodeId, ...]
    align: int


class LoopStep(NamedTuple):
    """A loop or a branch whose bodies are programs like this one; `rlx.compile.lower.bodies` says what they compute."""

    op: Op
    bodies: tuple[Program, ...]
    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    types: tuple[Shape, ...]  # of the results


Step = NativeStep | HostStep | LoopStep


class Leaf(NamedTuple):
    """An input or a param; kernels need its address to be a multiple of `align`."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    align: int


class ConstantValue(NamedTuple):
    """An array that never changes, and the number of its address."""

    value: int
    array: Array


class Value(NamedTuple):
    """A value that the host looks at: where it lies, and its type."""

    place: Place
    shape: Shape


@dataclass(frozen=True)
class Program:
    """Steps, leaves, and the numbering of the addresses, of which there are `addresses`: the arena, inputs, stored
    outputs, host results, constants, params.

    `stored` are the types of the outputs that kernels write to memory of their own. `visible` are the outputs and what
    host calls read and compute, where it is one array. `returned` has for each output its number among
    the inputs and them, or -1 where it must be copied from where it lies: an input, a view, a host result, an output
    named twice. An output that is returned in the memory of an input has been stored over it. `moved` has those that
    were to be stored over an input but could not, with the number of the input: they are copied into it at the end.
    `overwritten` are all inputs that a run writes into.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[Leaf, ...]
    params: tuple[Leaf, ...]
    outputs: tuple[NodeId, ...]
    visible: Mapping[NodeId, Value]
    stored: tuple[Shape, ...]
    returned: tuple[int, ...]
    moved: tuple[tuple[int, int], ...]
    overwritten: tuple[int, ...]
    host_results: int
    constants: tuple[ConstantValue, ...]
    addresses: int
    arena_size: Size
    constraints: tuple[DimConstraint, ...]

    @property
    def first_param(self) -> int:
        return self.addresses - len(self.params)

    @property
    def is_native(self) -> bool:
        """Whether a run needs nothing of the host but memory."""
        return -1 not in self.returned and not any(isinstance(s, HostStep) for s in self.steps)

    @property
    def checks(self) -> tuple[HostStep, ...]:
        """The steps with which the program ends, that only look whether matrices have factors."""
        found: list[HostStep] = []
        for step in reversed(self.steps):
            if not isinstance(step, HostStep) or not step.op.is_late_check:
                break
            found.append(step)
        return tuple(reversed(found))

    @property
    def is_native_but_for_checks(self) -> bool:
        """Whether a run needs nothing of the host but memory, and a look at flags when all kernels are done."""
        checks = self.checks
        others = self.steps[: len(self.steps) - len(checks)]
        in_arena = all(self.visible[step.operands[0]].place.value == ARENA for step in checks)
        return -1 not in self.returned and in_arena and not any(isinstance(s, HostStep) for s in others)


class Preparation(NamedTuple):
    """A program that makes of some weights what can be made of them once: the params of `main` called `results`."""

    program: Program
    results: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """Whether kernels do all the work."""
        return not any(isinstance(step, HostStep) for step in self.program.steps)


class Programs(NamedTuple):
    """What is compiled of one graph: the program that runs, and those that run once, when there are weights; none of
    these needs another."""

    main: Program
    prepare: tuple[Preparation, ...] = ()


def build_programs(compiled: CompileResult, loading: Loading | None = None) -> Programs:
    """Compile or find the kernels of all programs, by default for this machine."""
    from rlx.kernels.reuse import KernelMaker

    loading = loading or host_loading()
    wanted = [lir for lir in (compiled.lir, compiled.prepare) if lir is not None]
    makers = [KernelMaker(lir.as_graph(), loading.machine, loading.schedules) for lir in wanted]
    if loading.start is not None:
        # Those of all programs, before one is waited for.
        for maker, lir in zip(makers, wanted):
            _start_all(maker, lir, loading.start)
    main = build_program(compiled.lir, makers[0], loading=loading)
    return Programs(main, tuple(preparations(compiled, loading, makers[-1])))


def preparations(compiled: CompileResult, loading: Loading, maker: KernelMaker | None = None) -> Iterator[Preparation]:
    """What makes the params of the program, for a machine that need not be the one that the program is for."""
    from rlx.compile.weights.pieces import prepare_pieces
    from rlx.kernels.reuse import KernelMaker

    if compiled.prepare is None:
        return
    # One for all pieces, whose nodes are the same: layers that lie in different pieces have the same kernels.
    maker = maker or KernelMaker(compiled.prepare.as_graph(), loading.machine, loading.schedules)
    for lir, outputs in prepare_pieces(compiled.prepare):
        program = build_program(lir, maker, _read(lir), loading)
        yield Preparation(program, tuple(compiled.prepared[n] for n in outputs))


def _read(lir: LirModule) -> frozenset[NodeId]:
    """The values that kernels of a program read."""
    return frozenset(i for k in lir.kernels for n in k.nodes for i in lir.as_graph().nodes[n].inputs)


def build_program(
    lir: LirModule,
    maker: KernelMaker | None = None,
    leaves: Container[NodeId] | None = None,
    loading: Loading | None = None,
) -> Program:
    """Compile or find the kernels of a LIR program. It has those of its leaves that are in `leaves`, by default all.
    A `maker` that is given has started them."""
    from rlx.kernels.reuse import KernelMaker

    graph = lir.as_graph()
    loading = loading or host_loading()
    loaded: _Loaded = {}
    if maker is None:
        maker = KernelMaker(graph, loading.machine, loading.schedules)
        if loading.start is not None:
            _start_all(maker, lir, loading.start)
    made = [_made(graph, maker, k, loaded, loading) for k in lir.kernels if k.kind != VIEW]
    nodes = graph.nodes if leaves is None else [n for n in graph.nodes if n.id in leaves or n.id in graph.outputs]
    inputs = [n for n in nodes if isinstance(n.op, Input)]
    params = [n for n in nodes if isinstance(n.op, Param)]
    constants = [n for n in nodes if isinstance(n.op, Constant)]
    native = [m.lir for m in made if not m.is_hosted]
    # Views have no memory of their own, but for results in which what they name is stored.
    stored = [n for k in (*native, *(k for k in lir.kernels if k.kind == VIEW)) for n in k.outputs if _is_own(lir, n)]
    hosted = [m.node.id for m in made if m.is_hosted and _is_own(lir, m.node.id)]
    order = [*(n.id for n in inputs), *stored, *hosted, *(n.id for n in constants), *(n.id for n in params)]
    values = {node: ARENA + 1 + i for i, node in enumerate(order)}
    alignments = _alignments(lir, made)

    def leaf(node: Node) -> Leaf:
        assert isinstance(node.op, Input | Param)
        return Leaf(node.op.key, node.shape, node.shape.dtype.numpy, alignments.get(node.id, 1))

    sizes: dict[Size, Size] = {}
    steps = tuple(_step(lir, graph, values, sizes, alignments, m) for m in made)
    number_of = {n.id: number for number, n in enumerate(inputs)}
    returned = tuple(_returned(lir, number_of, stored))
    given = {output: number_of[graph.leaf(key).id] for output, key in graph.aliases.items()}
    moved = tuple((output, number) for output, number in given.items() if returned[output] != number)
    seen = {i for s in steps if isinstance(s, HostStep) for i in (*s.operands, s.node)} | set(graph.outputs)
    visible = {
        i: Value(_place(lir, values, i), graph.shape(i)) for i in sorted(seen) if len(graph.nodes[i].shapes) == 1
    }
    return Program(
        name=lir.name,
        steps=steps,
        inputs=tuple(map(leaf, inputs)),
        params=tuple(map(leaf, params)),
        outputs=tuple(graph.outputs),
        visible=visible,
        stored=tuple(graph.shape(n) for n in stored),
        returned=returned,
        moved=_once(moved, returned),
        overwritten=tuple(sorted({*given.values()})),
        host_results=len(hosted),
        constants=tuple(ConstantValue(values[n.id], fit(n.op.eval(), alignments.get(n.id, 1))[0]) for n in constants),
        addresses=1 + len(order),
        arena_size=lir.arena_size,
        constraints=distinct(graph.constraints),
    )


def _returned(lir: LirModule, inputs: Mapping[NodeId, int], stored: Sequence[NodeId]) -> Iterator[int]:
    graph = lir.as_graph()
    left = {node: len(inputs) + number for number, node in enumerate(stored)}
    for number, node in enumerate(graph.outputs):
        source = graph.leaf(graph.aliases[number]).id if number in graph.aliases else None
        if source is not None and source == _root(lir, node) and source in inputs:
            # Each input is returned once; another output that lies there is copied.
            yield inputs[source] if graph.outputs.index(node) == number else -1
        else:
            yield left.pop(node, -1)


def _once(moved: Sequence[tuple[int, int]], returned: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Outputs that are copied into inputs which hold no other output yet."""
    taken = set(returned)
    found = []
    for output, number in moved:
        if number not in taken:
            taken.add(number)
            found.append((output, number))
    return tuple(found)


class _Made(NamedTuple):
    """A kernel, its code, and what it is called with; a loop has bodies instead of code, a host call has neither."""

    lir: LirKernel
    node: Node
    code: LoadedKernel | None
    buffers: tuple[NodeId, ...] = ()
    extents: tuple[Size, ...] = ()
    bodies: tuple[Program, ...] = ()

    @property
    def is_hosted(self) -> bool:
        return self.code is None and not self.bodies


def _made(graph: Graph, maker: KernelMaker, kernel: LirKernel, loaded: _Loaded, loading: Loading) -> _Made:
    node = graph.nodes[kernel.nodes[0]]
    from rlx.compile.lower.bodies import native_bodies
    from rlx.kernels.from_lir import generator

    if kernel.kind == CALL:
        return _Made(kernel, node, None)
    if kernel.kind == LOOP:
        found = native_bodies(graph, node, generator(maker.machine))
        bodies = tuple(build_program(body, loading=loading) for body in found)
        return _Made(kernel, node, None, bodies=bodies)
    made = maker.make(kernel)
    return _Made(kernel, node, _native(made.kernel, loaded, loading), made.buffers, made.extents)


def _start_all(maker: KernelMaker, lir: LirModule, start: Callable[[Kernel], None]) -> None:
    """Make the loops of all kernels, and let code be made of each while the next one is. Each is made once: `maker`
    knows it again."""
    started: dict[int, Kernel] = {}
    for kernel in lir.kernels:
        if kernel.kind in (VIEW, CALL, LOOP):
            continue
        made = maker.make(kernel).kernel
        if id(made) not in started:
            started[id(made)] = made
            start(made)


# By identity, with the kernel itself, so that none other takes its identity.
_Loaded: TypeAlias = "dict[int, tuple[Kernel, LoadedKernel]]"


def _native(kernel: Kernel, loaded: _Loaded, loading: Loading) -> LoadedKernel:
    """The code of a kernel; equal layers have one and the same, whose text need not be hashed for each of them."""
    if id(kernel) not in loaded:
        loaded[id(kernel)] = kernel, loading.load(kernel)
    return loaded[id(kernel)][1]


def _step(
    lir: LirModule,
    graph: Graph,
    values: dict[NodeId, int],
    sizes: dict[Size, Size],
    alignments: Mapping[NodeId, int],
    made: _Made,
) -> Step:
    """A kernel with its arguments. Equal sizes become one object, in `sizes`: a plan then finds their numbers by
    identity, several times as fast as by comparing."""
    from rlx.kernels.ir.loop_ir import Buffer

    if made.bodies:
        operands, results = made.node.inputs, sorted(made.lir.outputs, key=lambda n: _result_number(graph.nodes[n]))
        read, written = (tuple(_place(lir, values, n) for n in nodes) for nodes in (operands, results))
        return LoopStep(made.node.op, made.bodies, read, written, made.node.shapes)
    if made.code is None:
        called = made.node
        return HostStep(called.op, called.id, tuple(called.inputs), alignments.get(called.id, 1))

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
    ops = " + ".join(graph.nodes[n].op.mnemonic for n in made.lir.nodes)
    return NativeStep(made.code.code, Grid.of(made.code.kernel), tuple(arguments), (made.lir.kind, ops))


def _result_number(node: Node) -> int:
    return node.op.index if isinstance(node.op, Project) else 0


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
    from rlx.kernels.ir.loop_ir import Buffer

    found: dict[NodeId, int] = {}
    for m in made:
        if m.code is None:
            continue
        pointers = [p for p in m.code.kernel.params if isinstance(p, Buffer)]
        for node, pointer in zip(m.buffers, pointers, strict=True):
            root = _root(lir, node)
            found[root] = max(found.get(root, 1), pointer.align)
    return found
