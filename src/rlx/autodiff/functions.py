"""Derivatives of Python functions over trees of arrays: `grad`, `value_and_grad`, `jvp`, `vjp`, `linearize`, `hvp`,
`jacfwd`, `jacrev`, `hessian`. Signatures as in JAX; all compose with each other, with `vmap` and with `jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff.calls import Arguments, Called, Function, transformed
from rlx.autodiff.forward import push_forward
from rlx.autodiff.linear import matching, split_jvp, split_vjp
from rlx.autodiff.reverse import Pullback
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.tensor import lift
from rlx.ops.control.body_transforms import chosen as with_flag
from rlx.ops.control.body_transforms import filled, spread, types
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.shape.creation import ones
from rlx.trace.pytree import TreeDef, tree_leaves, tree_structure

Argnums = int | Sequence[int]


def argument_numbers(argnums: Argnums, count: int, what: str) -> list[int]:
    """The positions meant by `argnums` in a call with `count` positional arguments."""
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    for n in numbers:
        if not -count <= n < count:
            raise AutodiffError(f"{what}: argnums={argnums} does not fit a call with {count} positional arguments")
    return [n % count for n in numbers]


def value_and_grad(
    fn: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """A function that returns `(value, gradients)`, or `((value, aux), gradients)` with `has_aux`.

    `fn` must return one real scalar. The gradients have the structure of argument `argnums`; a tuple of argnums gives a
    tuple of gradients. For complex arguments the gradient is the conjugate Wirtinger derivative; with `holomorphic`,
    `fn` takes and returns complex numbers, and the result is its derivative df/dz. With `allow_int`, integers and bools
    among the arguments have gradients of their own type, which are 0.
    """

    def build(graph: Graph, arguments: Arguments) -> Any:
        called = Called(fn, arguments, graph)
        args, _ = arguments.unflatten()
        chosen = argument_numbers(argnums, len(args), f"grad({called.name})")
        groups = [called.leaf_indices(n) for n in chosen]
        wrt = [i for group in groups for i in group]
        if not allow_int:
            called.require_inexact("grad", wrt)
        value_tree, aux_tree = _loss_structure(called, has_aux, holomorphic)
        if holomorphic:
            _require_complex(called, wrt)
        moving = [called.types[i].dtype.is_inexact for i in wrt]
        pullback = Pullback(called.graph, called.leaves, with_flag(map(called.input_id, wrt), moving))
        loss = pullback.outputs[0]
        gradients = pullback.pull([ones((), loss.dtype), *(None for _ in pullback.outputs[1:])])
        found = filled(spread(gradients, moving), [called.types[i] for i in wrt])
        # What is pulled back is conj(f').
        whole = iter([conjugate(g) for g in found] if holomorphic else found)
        trees = [tree_structure(args[n]).unflatten(next(whole) for _ in group) for n, group in zip(chosen, groups)]
        result = trees[0] if isinstance(argnums, int) else tuple(trees)
        value = value_tree.unflatten([loss])
        if has_aux:
            value = (value, aux_tree.unflatten(pullback.outputs[1:]))
        return value, result

    return transformed(fn, build, "value_and_grad", select_positions(argnums))


def select_positions(argnums: Argnums) -> Callable[[Sequence[Any], dict[str, Any]], list[bool]]:
    """The leaves that belong to the arguments `argnums`."""

    def select(args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
        chosen = argument_numbers(argnums, len(args), "grad")
        flags = [i in chosen for i, argument in enumerate(args) for _ in tree_leaves(argument)]
        return [*flags, *(False for _ in tree_leaves(kwargs))]

    return select


def _require_complex(called: Called, wrt: Sequence[int]) -> None:
    for i in wrt:
        if not called.types[i].dtype.is_complex:
            raise AutodiffError(
                f"grad({called.name}): holomorphic=True needs complex arguments, but {called.names[i]!r} is "
                f"{called.types[i]}; convert it with .astype('complex64')"
            )


def _loss_structure(called: Called, has_aux: bool, holomorphic: bool) -> tuple[TreeDef, TreeDef]:
    """The structures of the value, which must be one real (or, if holomorphic, complex) scalar, and of the aux."""
    value_tree, aux_tree, count = called.value_and_aux("grad", has_aux)
    found = called.traced.out_types[:count]
    if count == 1 and found[0].rank == 0 and holomorphic != found[0].dtype.is_complex and found[0].dtype.is_inexact:
        hint = "it is real" if holomorphic else "take rnp.real or rnp.abs of it, or use holomorphic=True"
        raise AutodiffError(f"grad({called.name}): holomorphic={holomorphic}, and it returns {found[0]}: {hint}")
    if count != 1 or found[0].rank != 0 or not found[0].dtype.is_inexact:
        got = ", ".join(str(t) for t in found) or "nothing"
        raise AutodiffError(
            f"grad({called.name}): the function must return one real float scalar, it returns {got}. Reduce it with "
            "rnp.sum or rnp.mean, use has_aux=True for extra results, or rlx.jacrev for a vector"
        )
    return value_tree, aux_tree


def grad(
    fn: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """A function that returns the gradients of `fn`, or `(gradients, aux)` with `has_aux`; see `value_and_grad`."""
    both = value_and_grad(fn, argnums, has_aux, holomorphic, allow_int)

    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    gradients.__name__ = f"grad({getattr(fn, '__name__', type(fn).__name__)})"
    gradients.__wrapped__ = fn  # type: ignore[attr-defined]
    return gradients


def jvp(fn: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> tuple[Any, ...]:
    """`(fn(*primals), directional derivative)`; tangents have the structure and types of the primals.

    With `has_aux`, `fn` returns `(value, aux)` and the result is `(value, directional derivative, aux)`.
    """

    def both(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        return fn(*primals)

    def build(graph: Graph, arguments: Arguments) -> Any:
        primals, tangents = arguments.unflatten()[0]
        called = Called(fn, Arguments(fn, primals, {}), graph)
        what = f"jvp({called.name})"
        value_tree, aux_tree, count = called.value_and_aux("jvp", has_aux)
        directions = matching(tree_structure(primals), tangents, what, called.types, "the primals")
        known = {called.input_id(i): lift(directions[i], graph) for i in called.inexact}
        outputs, pushed = push_forward(called.graph, called.leaves, known)
        tangents = filled(pushed[:count], types(outputs[:count]))
        value, derivative = value_tree.unflatten(outputs[:count]), value_tree.unflatten(tangents)
        return (value, derivative, aux_tree.unflatten(outputs[count:])) if has_aux else (value, derivative)

    for given, what in ((primals, "primals"), (tangents, "tangents")):
        if not isinstance(given, tuple | list):
            raise AutodiffError(f"jvp: {what} are a tuple with one entry for each argument; write ({what[:-1]},)")
    result: tuple[Any, ...] = transformed(both, build, "jvp")(tuple(primals), tuple(tangents))
    return result


def hvp(fn: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Hessian of the scalar function `fn` times `tangents`, forward over reverse; structured like the primals."""
    primals = tuple(primals)
    numbers = tuple(range(len(primals)))
    product = jvp(grad(fn, argnums=numbers), primals, tangents)[1]
    return product[0] if len(primals) == 1 else product


def vjp(fn: Function, *primals: Any, has_aux: bool = False) -> Any:
    """`(fn(*primals), pull)`, where `pull(cotangents)` gives a tuple with one gradient per primal.

    With `has_aux`, `fn` returns `(value, aux)` and the result is `(value, pull, aux)`.
    """
    return split_vjp(fn, primals, has_aux)


def linearize(fn: Function, *primals: Any, has_aux: bool = False) -> Any:
    """`(fn(*primals), push)`, where `push(*tangents)` is the derivative there, without computing `fn` again.

    `fn` is traced and computed once; of its values, those that the derivative reads are kept for as long as `push` is.
    So `push` costs less than a `jvp` from the second direction on. With `has_aux`, `fn` returns `(value, aux)` and the
    result is `(value, push, aux)`.

    >>> import numpy as np
    >>> value, push = linearize(lambda x: x * x, np.float32(3))
    >>> float(value), float(push(np.float32(1))), float(push(np.float32(10)))
    (9.0, 6.0, 60.0)
    """
    return split_jvp(fn, primals, has_aux)


def jacrev(fn: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False) -> Function:
    """The Jacobian by reverse mode: for each output leaf `[*output, *input]` per input leaf.

    With `holomorphic`, arguments and results are complex, and it is the derivative df/dz, as it is by `jacfwd`.
    """
    from rlx.autodiff.jacobians import reverse_jacobian

    return reverse_jacobian(fn, argnums, has_aux, holomorphic)


def jacfwd(fn: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False) -> Function:
    """The Jacobian by forward mode; the same values as `jacrev`, cheaper when there are few inputs."""
    from rlx.autodiff.jacobians import forward_jacobian

    return forward_jacobian(fn, argnums, has_aux, holomorphic)


def hessian(fn: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False) -> Function:
    """The second derivatives of a scalar function, forward over reverse."""
    return jacfwd(jacrev(fn, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
