"""`small_loop_kernel`: a scan, a while or a branch whose rounds compute a few numbers, as one kernel.

Every element of every value is a scalar of its own: a body is straight code, carries are what a loop carries from round
to round, and memory is touched for rows of `xs` and `ys` alone. `rlx.compile.lower.small_loops` says what is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlx.compile.fuse.index_maps import is_view
from rlx.errors import InternalError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Project
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.tiles import multiply_add
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.ir.loop_ir import Kernel, Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import JOINS, lower_expr, operand
from rlx.kernels.specs.from_nest import pointwise_value
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.reduction.reductions import Reduce, identity_of
from rlx.ops.shape.creation import Iota
from rlx.ops.shape.movement import Concat

# The scalars of a value, an array of objects in its shape.
Scalars: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class SmallLoopSpec(NamedTuple):
    """A small loop: where its operands and results lie, which results are stored, and the bodies of a small loop."""

    site: OpSite
    results: tuple[int, ...]
    bodies_of: Callable[[Op, tuple[Shape, ...]], tuple[Graph, ...]]


def small_loop_kernel(name: str, machine: Machine, spec: SmallLoopSpec) -> Kernel:
    k = spec.site.k
    with k.parallel("once", 1):
        _SmallLoop(spec).run()
    return k.build()


class _SmallLoop:
    def __init__(self, spec: SmallLoopSpec) -> None:
        self.site, self.k, self.spec = spec.site, spec.site.k, spec
        self.results = dict(zip(spec.results, spec.site.outputs))

    def run(self) -> None:
        op, inputs = self.site.op, self.site.inputs
        types = tuple(x.shape for x in inputs)
        if isinstance(op, Scan):
            self.scan(op, self.spec.bodies_of(op, types)[0])
            return
        found = self.computed(op, types, [self.loaded(x, x.shape) for x in inputs])
        for number, value in enumerate(found):
            self.stored(number, value)

    # Memory.

    def loaded(self, x: Slab, shape: Shape, row: Value | None = None) -> Scalars:
        """A value from memory, or one of its rows."""
        found = _empty(shape)
        start = x.offset if row is None else x.offset + row * found.size
        for i in range(found.size):
            found.flat[i] = self.k.load(x.buffer, start + i)
        return found

    def stored(self, number: int, value: Scalars, row: Value | None = None) -> None:
        """A result to memory, all of it or one of its rows, if anybody reads it."""
        y = self.results.get(number)
        if y is None:
            return
        start = y.offset if row is None else y.offset + row * value.size
        for i in range(value.size):
            self.k.store(y.buffer, start + i, value.flat[i])

    # Loops.

    def scan(self, op: Scan, body: Graph) -> None:
        k, (carries, bcasts, xs) = self.k, op.split(self.site.inputs)
        begun = [self.loaded(x, x.shape) for x in carries]
        still = [self.loaded(x, x.shape) for x in bcasts]
        length = self.site.size(op.length)
        with k.fold("step", 0, length, init=_flat(begun)) as f:
            row = length - 1 - f.index if op.reverse else f.index
            rows = [self.loaded(x, x.shape.with_dims(x.shape.dims[1:]), row) for x in xs]
            found = self.body(body, [*_shaped(f.values, begun), *still, *rows])
            for number, value in enumerate(found):
                if number >= op.num_carry or op.save_trajectory:
                    self.stored(number, value, row)
            f.next(*_flat(found[: op.num_carry]))
        if not op.save_trajectory:
            for number, value in enumerate(_shaped(f.results, begun)):
                self.stored(number, value)

    def computed(self, op: Op, types: tuple[Shape, ...], operands: Sequence[Scalars]) -> list[Scalars]:
        """The results of a branch or a while."""
        bodies = self.spec.bodies_of(op, types)
        if isinstance(op, If):
            return self.branch(bodies, operands)
        assert isinstance(op, While)
        return self.repeat(op, bodies, operands)

    def branch(self, bodies: Sequence[Graph], operands: Sequence[Scalars]) -> list[Scalars]:
        predicate, *sides = bodies
        holds = self.holds(predicate, operands[:1])
        kept: list[Scalars] = []

        def side(body: Graph) -> list[Value]:
            kept[:] = self.body(body, operands[1:])
            return _flat(kept)

        found = self.k.choose(holds, lambda: side(sides[0]), lambda: side(sides[1]))
        return _shaped(found, kept)

    def repeat(self, op: While, bodies: Sequence[Graph], operands: Sequence[Scalars]) -> list[Scalars]:
        """`if (cond) do { body } while (cond)`, so that each round has one jump."""
        condition, body = bodies
        count = len(operands) - op.num_bcast
        carries, still = list(operands[:count]), operands[count:]
        if not op.max_iterations:
            return carries

        def rounds() -> Sequence[Value]:
            with self.k.fold("round", 0, op.max_iterations or 0, init=_flat(carries)) as f:
                following = self.body(body, [*_shaped(f.values, carries), *still])
                f.next(*_flat(following), again=self.holds(condition, [*following, *still]))
            return f.results

        found = self.k.choose(self.holds(condition, operands), rounds, lambda: _flat(carries))
        return _shaped(found, carries)

    # Bodies.

    def holds(self, condition: Graph, operands: Sequence[Scalars]) -> Value:
        (value,) = self.body(condition, operands)
        found: Value = value.item()
        return found

    def body(self, graph: Graph, operands: Sequence[Scalars]) -> list[Scalars]:
        """The outputs of a body for values of its inputs."""
        values: dict[NodeId, list[Scalars]] = {}
        given = iter(operands)
        for node in graph.nodes:
            if isinstance(node.op, Input):
                values[node.id] = [next(given)]
            elif isinstance(node.op, Project):
                values[node.id] = [values[node.inputs[0]][node.op.index]]
            else:
                values[node.id] = self.node(graph, node, [values[i][0] for i in node.inputs])
        return [values[o][0] for o in graph.outputs]

    def node(self, graph: Graph, node: Node, args: list[Scalars]) -> list[Scalars]:
        match node.op:
            case If() | While():
                return self.computed(node.op, tuple(graph.shape(i) for i in node.inputs), args)
            case Constant() | Iota():
                return [self.constant(np.asarray(node.op.eval()), node.shape)]
            case Concat():
                return [self.rearranged(node.op, args)]
        if isinstance(node.op, MatMul):
            return [self.product(node.shape, *args)]
        # One over axes of size 1 is a view, too, but its definition is not for numbers of elements.
        if isinstance(node.op, Reduce):
            return [self.reduced(node.op, node.shape, args[0])]
        if is_view(graph, node):
            return [self.rearranged(node.op, args)]
        return [self.pointwise(graph, node, args)]

    def constant(self, array: Scalars, shape: Shape) -> Scalars:
        found = _empty(shape)
        for i, number in enumerate(array.reshape(-1).tolist()):
            found.flat[i] = self.k.const(number, shape.dtype)
        return found

    def rearranged(self, op: Op, args: Sequence[Scalars]) -> Scalars:
        """A view or a concat. Its definition, applied to the numbers of elements, says which element goes where."""
        start, numbers = 0, []
        for arg in args:
            numbers.append(np.arange(start, start + arg.size).reshape(arg.shape))
            start += arg.size
        everything = np.array([*(v for arg in args for v in arg.flat), None], object)[:-1]
        places = np.asarray(op.eval(*numbers))
        found: Scalars = everything[places.reshape(-1)].reshape(places.shape)
        return found

    def reduced(self, op: Reduce, shape: Shape, x: Scalars) -> Scalars:
        """Elements joined in their order, beginning with the first one."""
        groups = np.empty(x.shape, object)
        for i in range(x.size):
            groups.flat[i] = [x.flat[i]]
        joined = groups.sum(axis=tuple(op.axes), keepdims=True) if x.size else groups
        found, join = _empty(shape), JOINS[op.kind.value][0]
        for i in range(found.size):
            members = joined.flat[i] if x.size else []
            total = members[0] if members else self.k.const(_number(identity_of(op.kind, shape.dtype)), shape.dtype)
            for member in members[1:]:
                total = self.k.op(join, total, member)
            found.flat[i] = total
        return found

    def product(self, shape: Shape, a: Scalars, b: Scalars) -> Scalars:
        """Every element is summed in the order of the steps."""
        found, lead = _empty(shape), shape.static_dims[:-2]
        a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        for *at, i, j in np.ndindex(*shape.static_dims):
            total: Value = self.k.const(0, shape.dtype)
            for p in range(a.shape[-1]):
                total = multiply_add(self.k, a[(*at, i, p)], b[(*at, p, j)], total)
            found[(*at, i, j)] = total
        return found

    def pointwise(self, graph: Graph, node: Node, args: Sequence[Scalars]) -> Scalars:
        dims = node.shape.static_dims
        spread = [np.broadcast_to(arg, dims).reshape(-1) for arg in args]
        dtypes = [graph.shape(i).dtype for i in node.inputs]
        expr = pointwise_value(node, [operand(i, dtype) for i, dtype in enumerate(dtypes)])
        found = _empty(node.shape)
        for i in range(found.size):
            (found.flat[i],) = lower_expr(self.k, [expr], [arg.item(i) for arg in spread])
        return found


def _empty(shape: Shape) -> Scalars:
    return np.empty(shape.static_dims, object)


def _flat(values: Sequence[Scalars]) -> list[Value]:
    scalars: list[Value] = []
    for value in values:
        scalars += [value.item(i) for i in range(value.size)]
    return scalars


def _shaped(scalars: Sequence[Value], like: Sequence[Scalars]) -> list[Scalars]:
    """Scalars that lie one after the other, as values of the same shapes as others."""
    found, rest = [], iter(scalars)
    for value in like:
        shaped = np.empty(value.shape, object)
        for i in range(value.size):
            shaped.flat[i] = next(rest)
        found.append(shaped)
    return found


def _number(value: Any) -> int | float:
    if isinstance(value, int | float):
        return value
    item = value.item()
    if not isinstance(item, int | float):
        raise InternalError(f"{value!r} is no number of a kernel")
    return item
