"""Names of `jax` itself that rlx has under others; `rlx.jacobian` and the like come from here.

rlx.eval_shape(f, rlx.ShapeDtypeStruct((3, 4), "float32"))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlx.autodiff import jacrev as jacobian
from rlx.autodiff import vjp
from rlx.ir.dtype import DTypeLike
from rlx.ir.provenance import named_scope
from rlx.runtime.compile_cache import clear_compile_cache as clear_caches
from rlx.runtime.device import default_device
from rlx.trace.abstract import make_graph as make_jaxpr
from rlx.trace.arguments import function_name
from rlx.trace.pytree import tree_map
from rlx.trace.tracing import Spec, spec_of

__all__ = [
    "ShapeDtypeStruct",
    "block_until_ready",
    "clear_caches",
    "default_backend",
    "device_get",
    "jacobian",
    "linear_transpose",
    "make_jaxpr",
    "named_call",
    "typeof",
]


def ShapeDtypeStruct(shape: Iterable[Any], dtype: DTypeLike) -> Spec:
    """The type of an argument without its value; sizes may be names."""
    return Spec(shape, dtype)


def typeof(x: Any) -> Spec:
    """The shape and dtype of a value."""
    return spec_of(x, "typeof")


def block_until_ready(x: Any) -> Any:
    """x, once its values are there: calls return when they have been computed, or wait here where a device is slow."""

    def wait(leaf: Any) -> Any:
        return leaf.block_until_ready() if hasattr(leaf, "block_until_ready") else leaf

    return tree_map(wait, x)


def device_get(x: Any) -> Any:
    """The tree with NumPy arrays in the place of arrays of any device."""
    return tree_map(np.asarray, x)


def default_backend() -> str:
    """The name of the device on which functions run unless they are told."""
    return str(default_device())


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """`fun`, whose ops are marked as belonging to a part of the program called `name`; see `rlx.named_scope`."""

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        with named_scope(name or function_name(fun)):
            return fun(*args, **kwargs)

    return call


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from cotangents of its result to those of its arguments.

    `primals` say what the arguments look like: arrays, or `Spec`s of known sizes.
    """
    zeros = tree_map(_zeros, primals)
    transposed: Callable[[Any], tuple[Any, ...]] = vjp(fun, *zeros)[1]
    return transposed


def _zeros(like: Any) -> Any:
    spec = like if isinstance(like, Spec) else spec_of(like, "linear_transpose")
    return np.zeros([int(n) for n in spec.shape], spec.dtype.numpy)
