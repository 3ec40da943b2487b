"""Named axes that are bound while a function is traced: which there are, and how many participants share each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from rlx.errors import OpError
from rlx.ir.shape import Size

_axes: ContextVar[Mapping[str, Size]] = ContextVar("named_axes", default=MappingProxyType({}))


@contextmanager
def named_axis(name: str, size: Size) -> Iterator[None]:
    """Inside, collectives may refer to an axis called `name` with `size` participants."""
    bound = _axes.get()
    if name in bound:
        raise OpError(f"named_axis: an axis called {name!r} is already bound; give the inner one another name")
    token = _axes.set({**bound, name: size})
    try:
        yield
    finally:
        _axes.reset(token)


def bound_axes() -> tuple[tuple[str, Size], ...]:
    """All axes with their sizes: what a function that is traced here may depend on beside its arguments."""
    return tuple(_axes.get().items())


def axis_size(name: str) -> Size:
    """How many participants share the axis, which a surrounding vmap, shard_map or `named_axis` has bound."""
    bound = _axes.get()
    if name not in bound:
        known = f"the bound axes are: {', '.join(map(repr, bound))}" if bound else "no axis is bound"
        raise OpError(
            f"no axis is called {name!r} here; {known}. Name one: rlx.vmap(f, axis_name={name!r}), rlx.shard_map over "
            f"a mesh that has it, or `with rlx.ops.named_axis({name!r}, size)`"
        )
    return bound[name]
