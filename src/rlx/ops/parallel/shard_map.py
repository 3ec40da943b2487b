"""`ShardMap`: one program on the parts that each device of a mesh has; collectives speak to the others.

Every participant runs `body` on its part of each operand. A collective over an axis of the mesh (`psum(x, "x")`) joins
the participants along that axis. What they return are parts of the results.

The meaning is that of nested `vmap`: parts are stacked along one new axis for each mesh axis, the body is batched over
these, and collectives become ops along them. This is how it runs wherever XLA does not divide the program.

A result axis that no name divides is the same on all participants along the others; the first one's is taken. From a
Python function: `rlx.shard_map`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.graph import Graph
from rlx.ir.op import op
from rlx.ir.rewrite.inline import check_operands, inline_graph
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import Array, TransformableBodyOp, build_body, one_or_tuple, output_types, run_body
from rlx.ops.control.body_transforms import (
    Flags,
    as_tuple,
    batch_body,
    build_step,
    chosen,
    pull_body,
    pushed_program,
    spread,
    with_batch_axis,
)
from rlx.ops.define.rules import mapped_axis
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.parallel.collectives import AllReduce, AxisIndex, Collective
from rlx.ops.pointwise.arithmetic import add, div
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import sin
from rlx.ops.shape.movement import narrow, reshape, transpose
from rlx.sharding import Mesh, NamedSharding
from rlx.sharding.partition_spec import names_of

__all__ = ["ShardMap"]


@op("shard_map")
class ShardMap(TransformableBodyOp):
    """`body` on every device of a mesh: on its parts of the operands as `in_shardings` divide them, giving its parts of
    the results as `out_shardings` do."""

    body: Graph
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]

    def check(self) -> None:
        super().check()
        given = (len(self.in_shardings), len(self.out_shardings))
        wanted = (len(self.body.inputs), len(self.body.outputs))
        if given != wanted:
            raise self.fail(f"@{self.body.name} has {wanted} operands and results, got {given} shardings")
        shardings = (*self.in_shardings, *self.out_shardings)
        if not self.out_shardings or len({s.mesh for s in shardings}) != 1:
            raise self.fail("results are needed, and one mesh for all operands and results")
        if any(s.is_open for s in shardings):
            raise self.fail("every axis needs an entry that says where it lies; UNCONSTRAINED says nothing")
        if any(isinstance(node.op, ShardMap) for node in self.body.nodes):
            raise self.fail("it cannot be inside of another one: all axes of the mesh are taken")
        for inner in (node.op for graph in (self.body, *all_bodies(self.body)) for node in graph.nodes):
            if isinstance(inner, Collective) and inner.axis_size != self.mesh.shape.get(
                inner.axis_name, inner.axis_size
            ):
                size = self.mesh.shape[inner.axis_name]
                raise self.fail(
                    f"axis {inner.axis_name!r} of the mesh is {size}, and {inner.axis_size} in {inner.mnemonic}"
                )

    @property
    def mesh(self) -> Mesh:
        return self.out_shardings[0].mesh

    def num_inputs(self) -> int:
        return len(self.in_shardings)

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        for whole, sharding in zip(operands, self.in_shardings, strict=True):
            sharding.require_divides(whole.dims, self.mnemonic)
        check_operands(self.body, [_part(x, s) for x, s in zip(operands, self.in_shardings)], self.mnemonic)
        return tuple(_whole(t, s) for t, s in zip(output_types(self.body), self.out_shardings))

    def eval(self, *operands: Array) -> Any:
        inputs = {f"x{i}": Shape(x.shape, n.shape.dtype) for i, (x, n) in enumerate(zip(operands, self.body.inputs))}
        program = build_body(self.body.name, lambda *x: tuple(as_tuple(self.decompose(*x))), **inputs)
        return one_or_tuple(run_body(program, operands))

    def decompose(self, *operands: Tensor) -> Any:
        """Nested batching over the axes of the mesh, the last one first."""
        stacked = [_stacked(x, s) for x, s in zip(operands, self.in_shardings)]
        body = self.body
        for name in reversed(self.mesh.axis_names):
            body = _over(body, name, self.mesh.shape[name], [name in _names(s) for s in self.in_shardings])
        results = inline_graph(body, stacked)
        return one_or_tuple([_unstacked(y, s) for y, s in zip(results, self.out_shardings)])

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        known = [t is not None for t in tangents]
        body, moved = pushed_program(self.body, self._part_types(primals), known)
        ins = (*self.in_shardings, *chosen(self.in_shardings, known))
        outs = (*self.out_shardings, *chosen(self.out_shardings, moved))
        results = as_tuple(ShardMap(body, ins, outs)(*primals, *chosen(tangents, known)))
        return one_or_tuple(results[: len(moved)]), one_or_tuple(spread(results[len(moved) :], moved))

    def vjp_wrt(self, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> Sequence[Tensor | None]:
        cotangents = as_tuple(ct)
        given = [c is not None for c in cotangents]
        types = self._part_types(operands)
        cts = [_part(c.type, s) for c, s in zip(cotangents, self.out_shardings) if c is not None]
        shared = [self._other_axes(s) for s in chosen(self.out_shardings, given)]
        found: list[bool] = []

        def back(x: list[Tensor], parts: list[Tensor]) -> list[Tensor]:
            # A result that is the same on n participants was returned n times: each of them answers for its share.
            shares = [_divided(c, self.mesh.axis_size(axes)) for c, axes in zip(parts, shared)]
            results = pull_body(self.body, x, wrt, spread(shares, given))
            found.extend(r is not None for r in results)
            return [self._summed(r, s) for r, s in zip(results, self.in_shardings) if r is not None]

        body = build_step(f"{self.body.name}_vjp", back, ("x", types), ("ct", cts))
        if not any(found):
            return [None] * len(operands)
        ins = (*self.in_shardings, *chosen(self.out_shardings, given))
        program = ShardMap(body, ins, tuple(chosen(self.in_shardings, found)))
        return spread(as_tuple(program(*operands, *chosen(cotangents, given))), found)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        ins = tuple(s.with_leading(None) if b else s for s, b in zip(self.in_shardings, batched))

        def over_batch(x: list[Tensor]) -> list[Tensor]:
            return with_batch_axis(*batch_body(self.body, size, x, batched), size)

        types = [_part(x.type, s) for x, s in zip(operands, ins)]
        body = build_step(self.body.name, over_batch, ("x", types))
        return ShardMap(body, ins, tuple(s.with_leading(None) for s in self.out_shardings))(*operands)

    def _part_types(self, operands: Sequence[Tensor]) -> list[Shape]:
        return [_part(x.type, s) for x, s in zip(operands, self.in_shardings)]

    def _other_axes(self, sharding: NamedSharding) -> list[str]:
        return [name for name in self.mesh.axis_names if name not in _names(sharding)]

    def _summed(self, x: Tensor, sharding: NamedSharding) -> Any:
        """A cotangent of an operand that several participants have: the sum of theirs."""
        for name in self._other_axes(sharding):
            x = AllReduce(name, self.mesh.shape[name], "psum")(x)
        return x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows, whole = "[x=2,y=1](x)", "[x=2,y=1]()"
        for dtype in ("f32", "f64"):
            part, scalar = Shape((2, 3), dtype), Shape((3,), dtype)
            total = build_body(
                "total", lambda a, b: (AllReduce("x", 2, "psum")(sin(a) * b), add(a, b)), a=part, b=scalar
            )
            yield sample(cls(total, (rows, whole), (whole, rows)), spec(4, 3), spec(3), dtypes=(dtype,))
        number = build_body("number", lambda a: add(a, cast(AxisIndex("x", 2)(), "f64")), a=Shape(("B", 2), "f64"))
        yield sample(cls(number, ("[x=2](None, x)",), ("[x=2](x)",)), spec("B", 4), dtypes=("f64",), B=3)


def _names(sharding: NamedSharding) -> list[str]:
    return [name for entry in sharding.spec for name in names_of(entry)]


def _part(whole: Shape, sharding: NamedSharding) -> Shape:
    return whole.with_dims([d // n if n > 1 else d for d, n in zip(whole.dims, sharding.counts(whole.rank))])


def _whole(part: Shape, sharding: NamedSharding) -> Shape:
    return part.with_dims([d * n for d, n in zip(part.dims, sharding.counts(part.rank))])


def _divided(ct: Tensor, count: int) -> Any:
    return ct if count == 1 else div(ct, np.asarray(count, ct.dtype.numpy))


def _over(body: Graph, name: str, size: int, mapped: Sequence[bool]) -> Graph:
    """The body over one more axis in front of the mapped operands and of all results."""
    types = [n.shape.with_dims((size, *n.shape.dims)) if m else n.shape for n, m in zip(body.inputs, mapped)]

    def build(x: list[Tensor]) -> list[Tensor]:
        with mapped_axis(name):
            return with_batch_axis(*batch_body(body, size, x, mapped), size)

    return build_step(body.name, build, ("x", types))


def _stacked(x: Tensor, sharding: NamedSharding) -> Any:
    """The parts of x along new axes in front, one for each mesh axis that divides it, in the order of the mesh."""
    mesh, entries = sharding.mesh, sharding.entries(x.type.rank)
    dims: list[Any] = []
    place: dict[str, int] = {}
    rest: list[int] = []
    for size, entry in zip(x.type.dims, entries):
        for name in names_of(entry):
            place[name] = len(dims)
            dims.append(mesh.shape[name])
        rest.append(len(dims))
        count = mesh.axis_size(names_of(entry))
        dims.append(size // count if count > 1 else size)
    front = [place[name] for name in mesh.axis_names if name in place]
    return transpose(reshape(x, tuple(dims)), (*front, *rest)) if place else x


def _unstacked(y: Tensor, sharding: NamedSharding) -> Any:
    """The whole of parts along one axis in front for each axis of the mesh."""
    mesh = sharding.mesh
    used = _names(sharding)
    for axis, name in enumerate(mesh.axis_names):
        if name not in used:
            y = narrow(y, axis, 0, 1)
    count = len(mesh.axis_names)
    rank = y.type.rank - count
    order: list[int] = [i for i, name in enumerate(mesh.axis_names) if name not in used]
    dims: list[Any] = []
    for axis, entry in enumerate(sharding.entries(rank)):
        names = names_of(entry)
        order += [*(mesh.axis_names.index(name) for name in names), count + axis]
        dims.append(y.type.dims[count + axis] * mesh.axis_size(names))
    return reshape(transpose(y, tuple(order)), tuple(dims))
