"""What derivative and batching rules share.

Rules are methods of the op classes, written with ops, so that what they build can be transformed again:

    def jvp(self, primals, tangents, y):      # -> tangent of y; tangents are None where they are zero
    def vjp(self, ct, y, *operands):          # -> one cotangent per operand, None where it is zero
    def batch(self, size, operands, batched): # -> y with the batch axis in front; so have the operands that are batched

`ct` and `y` are tuples for ops with several results (entries of `ct` may be None). An op that is linear in some
operands says so (`linear_in`, `multilinear_in`) and needs no jvp. A rule that is missing is derived from `decompose`.

Cotangents of complex values are conjugate Wirtinger derivatives ∂L/∂z̄, so that dL = 2·Re(conj(ct)·dz): holomorphic ops
scale by conj(f'), and where real numbers become complex (or complex ones real) there is a factor of 2 (or ½).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np

from rlx.ir.dims import dims_equal
from rlx.ir.op import Op
from rlx.ir.shape import Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor, lift, target_graph
from rlx.ir.tensor_data import TensorData


def zeros_like(x: Tensor) -> Tensor:
    """A zero of the same type."""
    return zeros_of(x.type, x)


def zeros_of(shape: Shape, near: Tensor) -> Tensor:
    """A zero of the given type in the program of `near`: one scalar constant, expanded."""
    from rlx.ops.shape.movement import expand

    graph = target_graph((near,))
    assert graph is not None
    scalar = lift(graph.constant(TensorData(np.zeros((), shape.dtype.numpy))), graph)
    return scalar if shape.rank == 0 else expand(scalar, shape.dims)


def add_tangents(a: Tensor, b: Tensor) -> Tensor:
    from rlx.ops.pointwise.arithmetic import Binary
    from rlx.ops.pointwise.conversion import cast

    if a.dtype.is_storage:
        # Storage types have no arithmetic of their own.
        return cast(Binary("add")(cast(a, "f32"), cast(b, "f32")), a.dtype)
    return Binary("add")(a, b)


def unbroadcast(ct: Tensor, shape: Shape) -> Tensor:
    """Sum a cotangent over the axes along which an operand of type `shape` was broadcast."""
    from rlx.ops.reduction.reductions import reduce_sum
    from rlx.ops.shape.movement import reshape

    if ct.type.dims == shape.dims:
        return ct
    extra = ct.type.rank - shape.rank
    stretched = [i for i, d in enumerate(shape.dims) if d == 1 and ct.type.dims[i + extra] != 1]
    axes = (*range(extra), *(i + extra for i in stretched))
    summed = reduce_sum(ct, axes) if axes else ct
    return summed if summed.type.dims == shape.dims else reshape(summed, shape.dims)


def as_type(x: Tensor, wanted: Shape) -> Tensor | None:
    """`x` as a value of type `wanted`, or None when it is none: sizes that are equal may be written differently.

    Whether `B` is 3, or `min(N, max(1, N))` is `N`, is not known before the program runs, and checked then.
    """
    from rlx.ops.shape.movement import reshape

    if x.type == wanted:
        return x
    if x.dtype is not wanted.dtype or x.type.rank != wanted.rank:
        return None
    if any(dims_equal(a, b) is False for a, b in zip(x.type.dims, wanted.dims)):
        return None
    reshaped: Tensor = reshape(x, wanted.dims)
    return reshaped


def put_batch_first(x: Tensor, batched: bool, size: Size) -> Tensor:
    """`x` with a leading batch axis: its own, or a new one along which it is repeated."""
    from rlx.ops.shape.movement import expand

    return x if batched else expand(x, (size, *x.type.dims))


def batch_elementwise(op: Op, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    """The rule of ops that broadcast: give batched operands the rank of the others, keeping the batch axis in front."""
    from rlx.ops.shape.movement import reshape

    rank = max(x.type.rank - b for x, b in zip(operands, batched))
    aligned = []
    for x, b in zip(operands, batched):
        missing = rank - (x.type.rank - b)
        if b and missing:
            x = reshape(x, (x.type.dims[0], *(1,) * missing, *x.type.dims[1:]))
        aligned.append(x)
    return op(*aligned)


def batch_by_loop_over_leading(op: Op, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    """The rule of ops whose leading axes are all batch axes anyway: only repeat what is not batched."""
    return op(*(put_batch_first(x, b, size) for x, b in zip(operands, batched)))


def batch_pointwise(op: Op, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    """`batch = batch_pointwise` in the class of an op whose operands broadcast, or whose one operand keeps its axes."""
    return batch_elementwise(op, operands, batched)


def batched_axis(axis: int, x: Tensor) -> int:
    """Where `axis`, an attribute of an op on x, is found now that x has a batch axis in front."""
    return normalize_axis(axis, x.type.rank - 1, "batch") + 1


def batch_along_axis(op: Op, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    """`batch = batch_along_axis` in the class of an op whose operands have the same dims, and an attribute `axis`."""
    whole = [put_batch_first(x, b, size) for x, b in zip(operands, batched)]
    return op.replace(axis=batched_axis(op.attributes["axis"], whole[0]))(*whole)


def unbatched_type(x: Tensor, batched: bool) -> Shape:
    """The type of one example of `x`."""
    return x.type.with_dims(x.type.dims[1:]) if batched else x.type


def derived_form(op: Op, rule: str, uncovered: bool) -> Callable[..., Any] | None:
    """What `op.form_for(rule, active)` returns for an op whose rule does not cover every case: its decomposition where
    the case is `uncovered`, or where there is no such rule; else None."""
    linear = rule == "jvp" and (op.linear_in or op.multilinear_in)
    covered = not uncovered and (getattr(type(op), rule) is not None or bool(linear))
    return None if covered else op.decompose


class SharedInBatch:
    """Mixin of ops whose batch rule needs some operands (gains, weights, tables) to be the same for all examples.

    Where one of them is batched itself, the op is decomposed and its parts are batched.
    """

    shared: ClassVar[tuple[int, ...]] = ()

    def form_for(self, rule: str, active: Sequence[bool]) -> Callable[..., Any] | None:
        assert isinstance(self, Op)
        return derived_form(self, rule, rule == "batch" and any(active[i] for i in self.shared))


def batch_by_folding(
    op: Op, size: Size, operands: Sequence[Tensor], batched: Sequence[bool], folded: Op | None = None
) -> Any:
    """The rule of ops that treat the entries of axis 0 one by one: the batch axis becomes part of it.

    Operands in `op.shared` have no such axis and stay as they are. `folded` is the op on the longer axis, where its
    attributes depend on it.
    """
    from rlx.ops.shape.movement import reshape

    shared = getattr(op, "shared", ())
    types = [unbatched_type(x, b) for x, b in zip(operands, batched)]
    joined = [
        x if i in shared else reshape(put_batch_first(x, b, size), (size * t.dims[0], *t.dims[1:]))
        for i, (x, b, t) in enumerate(zip(operands, batched, types))
    ]
    inferred, result = op.infer(*types), (op if folded is None else folded)(*joined)
    if isinstance(inferred, tuple):
        return tuple(reshape(y, (size, *t.dims)) for y, t in zip(result, inferred, strict=True))
    return reshape(result, (size, *inferred.dims))


_mapped: ContextVar[str | None] = ContextVar("mapped_axis", default=None)


@contextmanager
def mapped_axis(name: str | None) -> Iterator[None]:
    """Inside, batch rules run for the named axis `name`: collectives over it act across the batch axis."""
    token = _mapped.set(name)
    try:
        yield
    finally:
        _mapped.reset(token)


def current_mapped_axis() -> str | None:
    return _mapped.get()
