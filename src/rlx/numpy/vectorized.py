"""`vectorize`: a function of single elements, or of the core axes that a signature names, over all other axes.

>>> import numpy as np
>>> dot = vectorize(lambda a, b: (a * b).sum(), signature="(n),(n)->()")
>>> dot(np.ones((4, 3), "f4"), np.arange(3, dtype="f4")).tolist()
[3.0, 3.0, 3.0, 3.0]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Any

from rlx.errors import OpError, ShapeError
from rlx.ir.shape import Dims, broadcast_dims
from rlx.numpy.arguments import rank_of, value
from rlx.ops.define.operands import dims_of
from rlx.ops.shape.movement import broadcast_to

__all__ = ["vectorize"]

_CORE = r"\((\w+(?:,\w+)*)?\)"
_SIGNATURE = re.compile(rf"{_CORE}(?:,{_CORE})*->{_CORE}(?:,{_CORE})*|->{_CORE}")


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int] = (), signature: str | None = None
) -> Callable[..., Any]:
    """`pyfunc` over the axes in front of those it takes, which broadcast, by `rlx.vmap` and without a loop.

    A signature such as "(n,m),(m)->(n)" names the axes that `pyfunc` itself takes and gives; without one it takes and
    gives single elements. Arguments whose positions are `excluded` are passed as they are.
    """
    given = _given(signature) if signature is not None else None

    @functools.wraps(pyfunc, updated=())
    def call(*args: Any) -> Any:
        from rlx.autodiff import vmap

        chosen = [i for i in range(len(args)) if i not in excluded]
        cores = [()] * len(chosen) if given is None else given
        if len(cores) != len(chosen):
            raise OpError(f"vectorize: the signature {signature!r} has {len(cores)} arguments, got {len(chosen)}")
        values = [value(args[i]) for i in chosen]
        sizes: dict[str, Any] = {}
        loops = [_loop_dims(x, core, sizes) for x, core in zip(values, cores)]
        lead: Dims = ()
        for dims in loops:
            lead = broadcast_dims(lead, dims, "vectorize")
        values = [broadcast_to(x, (*lead, *dims_of(x)[len(dims) :])) for x, dims in zip(values, loops)]

        def inner(*xs: Any) -> Any:
            whole = list(args)
            for i, x in zip(chosen, xs):
                whole[i] = x
            return pyfunc(*whole)

        mapped = inner
        for _ in lead:
            mapped = vmap(mapped)
        return mapped(*values)

    return call


def _given(signature: str) -> list[tuple[str, ...]]:
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise OpError(f"vectorize: a signature is written (n,m),(m)->(n), got {signature!r}")
    return [tuple(core.split(",")) if core else () for core in re.findall(r"\(([\w,]*)\)", text.partition("->")[0])]


def _loop_dims(x: Any, core: tuple[str, ...], sizes: dict[str, Any]) -> Dims:
    """The dims of x in front of its core; those of the core must be the same wherever a name stands."""
    rank = rank_of(x)
    if rank < len(core):
        raise ShapeError(f"vectorize: ({','.join(core)}) needs {len(core)} axes, got dims {dims_of(x)}")
    for name, size in zip(core, dims_of(x)[rank - len(core) :]):
        if sizes.setdefault(name, size) != size:
            raise ShapeError(f"vectorize: the axis {name} has size {sizes[name]} and {size}")
    return dims_of(x)[: rank - len(core)]
