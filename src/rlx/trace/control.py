"""Loops and branches over Python functions, with the signatures of jax.lax: `scan`, `cond`, `switch`, `while_loop`,
`fori_loop`, `map`.

Functions are traced once. Values of the enclosing program that they read become operands of the op. Outside of any
program the op is evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlx.errors import TraceError
from rlx.ir.dims import Dim, collect_constraints, require_equal
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import is_python_scalar, target_graph
from rlx.ops.control.branches import If, Switch, While
from rlx.ops.control.scans import Scan
from rlx.ops.define.operands import convert
from rlx.trace.arguments import function_name
from rlx.trace.bodies import all_captures, assemble, named_path, require_structure, trace_body
from rlx.trace.pytree import TreeDef, path_text, tree_flatten, tree_structure
from rlx.trace.tracing import Spec, Traced, category, entered, spec_of

Function = Callable[..., Any]


def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    length: int | Dim | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    num_checkpoints: int = 0,
) -> tuple[Any, Any]:
    """Loop over the leading axis of `xs`: `carry, y = f(carry, x)`. Returns the last carry and the stacked ys.

    `carry`, `xs` and `ys` are trees; `xs` may be None when `length` is given. The carry keeps its structure and types
    over the steps; numbers in `init` take the dtype that the loop gives them. With `reverse` the rows are read from
    the last to the first (and ys stand where their x stood). `unroll` is advice for the compiler.

    Reverse mode keeps the carry of every step; with `num_checkpoints` = K it keeps K of them, and computes the others
    again when it gets there: K + length / K carries at any time.

    >>> import numpy as np
    >>> total, products = scan(lambda total, x: (total + x, total * x), 0, np.arange(4, dtype="f4"))
    >>> float(total), np.asarray(products).tolist()
    (6.0, [0.0, 0.0, 2.0, 9.0])
    """
    name = function_name(f)
    init_leaves, init_tree = tree_flatten(init)
    xs_leaves, xs_tree = tree_flatten(xs)
    specs = _specs("scan", "init", init_leaves, init_tree)
    xs_specs = _specs("scan", "xs", xs_leaves, xs_tree)
    graph = target_graph([*init_leaves, *xs_leaves])
    steps = _scan_length(graph, xs_specs, xs_tree, length)
    rows = [Spec(s.dims[1:], s.dtype) for s in xs_specs]
    with entered(graph):

        def trace(carry: Sequence[Spec]) -> Traced:
            return trace_body(f, (init, xs), [*carry, *rows])

        body, specs = _settled("scan", f"{name} returns", trace, specs, _carry_part, init_tree)
        ys_tree = _scan_output(body)[1]
        carry_types = [s.type for s in specs]
        graph_body = assemble(body, carry_types, body.captures, [r.type for r in rows], [t.dtype for t in carry_types])
        op = Scan(
            graph_body,
            steps,
            num_carry=len(specs),
            num_bcast=len(body.captures),
            num_xs=len(rows),
            reverse=reverse,
            num_checkpoints=num_checkpoints,
            unroll=_unroll(unroll, steps),
        )
        carries = [convert(x, s.dtype) for x, s in zip(init_leaves, specs)]
        results = _as_tuple(op(*carries, *body.captures, *xs_leaves))
    return init_tree.unflatten(results[: len(specs)]), ys_tree.unflatten(results[len(specs) :])


def _scan_length(graph: Graph | None, specs: Sequence[Spec], tree: TreeDef, length: int | Dim | None) -> Size:
    steps, source = length, "length is"
    for spec, path in zip(specs, tree.paths()):
        place = named_path("xs", path)
        if not spec.dims:
            raise TraceError(f"scan: {place} is {spec.type}, it needs a leading axis to loop over")
        if steps is None:
            steps, source = spec.dims[0], f"{place} has"
        with collect_constraints(graph.constraints if graph is not None else []):
            if not require_equal(steps, spec.dims[0], "scan"):
                raise TraceError(f"scan: {place} has {spec.dims[0]} rows, but {source} {steps}")
    if steps is None:
        raise TraceError("scan: without xs the number of steps must be given as length=...")
    return steps


def _unroll(unroll: int | bool, steps: Size) -> int:
    if isinstance(unroll, bool):
        return max(steps, 1) if unroll and isinstance(steps, int) else 1
    if unroll < 1:
        raise TraceError(f"scan: unroll must be True, False or at least 1, got {unroll}")
    return unroll


def _scan_output(body: Traced) -> tuple[TreeDef, TreeDef]:
    """The structures of the carry and of y in what the function returns, which is a pair of them."""
    pair = body.out_tree.unflatten(range(body.out_tree.num_leaves))
    if not isinstance(pair, tuple) or len(pair) != 2:
        got = ", ".join(str(t) for t in body.out_types)
        raise TraceError(f"scan: {body.graph.name} must return a pair (carry, y), it returns no pair, but {got}")
    return tree_structure(pair[0]), tree_structure(pair[1])


def _carry_part(body: Traced) -> TreeDef:
    return _scan_output(body)[0]


def _specs(op: str, root: str, leaves: Sequence[Any], tree: TreeDef) -> list[Spec]:
    return [spec_of(leaf, f"{op}: {named_path(root, path)}") for leaf, path in zip(leaves, tree.paths())]


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _settled(
    op: str,
    returns: str,
    trace: Callable[[Sequence[Spec]], Traced],
    specs: list[Spec],
    carry_of: Callable[[Traced], TreeDef],
    tree: TreeDef,
) -> tuple[Traced, list[Spec]]:
    """The traced body and the types of the carry, with which body and carry agree.

    Numbers in the initial carry are weak: they take the dtype that the body returns for them, which may change other
    results in turn. Each round makes one of them strong or moves it up a category, so this ends.
    """
    while True:
        body = trace(specs)
        require_structure(f"{op}: the carry that {returns} must look like the initial one", tree, carry_of(body))
        adopted = [_adopted(spec, t, w) for spec, t, w in zip(specs, body.out_types, body.weak_outputs)]
        if adopted == specs:
            break
        specs = adopted
    for spec, after, weak, path in zip(specs, body.out_types, body.weak_outputs, tree.paths()):
        fits = weak and category(after.dtype) <= category(spec.dtype)
        if after.dims != spec.dims or (after.dtype is not spec.dtype and not fits):
            raise TraceError(
                f"{op}: the carry must keep its type, but {named_path('carry', path)} is {spec.type} at first and "
                f"{returns} {after}; convert one of them (astype, reshape)"
            )
    return body, specs


def _adopted(spec: Spec, after: Shape, weak_after: bool) -> Spec:
    """The type of a carry leaf after the body has shown what it makes of it."""
    stays = after.dtype is spec.dtype or (weak_after and category(after.dtype) == category(spec.dtype))
    if not spec.weak or stays or after.dims != spec.dims or category(after.dtype) < category(spec.dtype):
        return spec
    return Spec(spec.dims, after.dtype, weak_after)


def while_loop(cond_fun: Function, body_fun: Function, init_val: Any, max_iterations: int | None = None) -> Any:
    """`val = body_fun(val)` as long as `cond_fun(val)`; returns the last `val`, a tree that keeps its types.

    With `max_iterations` the loop ends after that many rounds at the latest, and can be differentiated in reverse.
    """
    leaves, tree = tree_flatten(init_val)
    specs = _specs("while_loop", "init_val", leaves, tree)
    graph = target_graph(leaves)
    with entered(graph):

        def trace(carry: Sequence[Spec]) -> Traced:
            return trace_body(body_fun, (init_val,), carry)

        returns = f"{function_name(body_fun)} returns"
        body, specs = _settled("while_loop", returns, trace, specs, lambda b: b.out_tree, tree)
        condition = trace_body(cond_fun, (init_val,), specs)
        _check_condition(condition)
        types = [s.type for s in specs]
        captures = all_captures([condition, body])
        op = While(
            assemble(condition, types, captures),
            assemble(body, types, captures, dtypes=[t.dtype for t in types]),
            max_iterations,
            num_bcast=len(captures),
        )
        carries = [convert(x, s.dtype) for x, s in zip(leaves, specs)]
        results = _as_tuple(op(*carries, *captures))
    return tree.unflatten(results)


def _check_condition(condition: Traced) -> None:
    types = condition.out_types
    if condition.out_tree.nodes != (None,) or types[0].dims:
        got = types[0] if condition.out_tree.nodes == (None,) else condition.out_tree
        raise TraceError(f"while_loop: {condition.graph.name} must return one scalar, it returns {got}")


class _Counted(NamedTuple):
    """The carry of a counted loop; the field names appear in messages."""

    index: Any
    value: Any


def fori_loop(lower: Any, upper: Any, body_fun: Function, init_val: Any, *, unroll: int | bool = 1) -> Any:
    """`for i in range(lower, upper): val = body_fun(i, val)`; returns the last `val`.

    Bounds that are Python integers give a scan, which can be differentiated, and an `i` that takes the dtype of what
    it meets, as they do. Other bounds give a while loop over i32. `unroll` is advice for the compiler.
    """
    fixed = is_python_scalar(lower) and is_python_scalar(upper)
    start = _Counted(lower if fixed else convert(lower, DType.I32), init_val)

    def step(carry: _Counted, x: None = None) -> tuple[_Counted, None]:
        return _Counted(carry.index + 1, body_fun(carry.index, carry.value)), None

    step.__name__ = function_name(body_fun)
    if fixed:
        counted = scan(step, start, None, max(upper - lower, 0), unroll=unroll)[0]
    else:
        last = convert(upper, DType.I32)
        counted = while_loop(lambda carry: carry.index < last, lambda carry: step(carry)[0], start)
    return counted.value


def map(f: Function, xs: Any) -> Any:
    """`f` applied to every row of the leading axis of the tree `xs`, one after the other; the results stacked."""

    def step(nothing: tuple[()], x: Any) -> tuple[tuple[()], Any]:
        return nothing, f(x)

    step.__name__ = function_name(f)
    return scan(step, (), xs)[1]


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """`true_fun(*operands)` when the scalar `pred` holds, else `false_fun(*operands)`; only one of them runs.

    Both functions return trees of the same structure and types.
    """
    spec = spec_of(pred, "cond: the predicate")
    if spec.type.element_count != 1:
        raise TraceError(f"cond: the predicate must be a scalar, got {spec.type}; use rnp.where to choose by element")
    return _branch("cond", (true_fun, false_fun), pred, operands)


def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """`branches[index](*operands)`, the index being clamped to the branches there are; only one of them runs."""
    if not branches:
        raise TraceError("switch: needs at least one branch")
    spec = spec_of(index, "switch: the index")
    if spec.dims or not spec.dtype.is_int:
        raise TraceError(f"switch: the index must be an integer scalar, got {spec.type}")
    return _branch("switch", tuple(branches), index, operands)


def _branch(op: str, functions: Sequence[Function], selector: Any, operands: Sequence[Any]) -> Any:
    leaves, tree = tree_flatten(tuple(operands))
    specs = _specs(op, "operands", leaves, tree)
    graph = target_graph([selector, *leaves])
    with entered(graph):
        branches = [trace_body(f, operands, specs) for f in functions]
        dtypes = _joined_dtypes(op, branches)
        captures = all_captures(branches)
        types = [s.type for s in specs]
        bodies = [assemble(b, types, captures, dtypes=dtypes) for b in branches]
        node = If(*bodies) if op == "cond" else Switch(tuple(bodies))
        results = _as_tuple(node(selector, *leaves, *captures))
    return branches[0].out_tree.unflatten(results)


def _joined_dtypes(op: str, branches: Sequence[Traced]) -> list[DType]:
    """The dtype of every output: weak ones join the others; anything else that differs is an error."""
    first = branches[0]
    for other in branches[1:]:
        what = f"{op}: {other.graph.name} must return the same structure as {first.graph.name}"
        require_structure(what, first.out_tree, other.out_tree)
    dtypes: list[DType] = []
    for i, path in enumerate(first.out_tree.paths()):
        strong = [b.out_types[i].dtype for b in branches if not b.weak_outputs[i]]
        weak = [b.out_types[i].dtype for b in branches if b.weak_outputs[i]]
        dtype = strong[0] if strong else max(weak, key=category)
        dtypes.append(dtype)
        for b in branches:
            found = b.out_types[i]
            fits = found.dtype is dtype or (b.weak_outputs[i] and category(found.dtype) <= category(dtype))
            if found.dims != first.out_types[i].dims or not fits:
                place = f"result {path_text(path)!r}" if path else "the result"
                types = ", ".join(f"{b.out_types[i]} from {b.graph.name}" for b in branches)
                raise TraceError(f"{op}: all branches must return the same types, but {place} is {types}")
    return dtypes
