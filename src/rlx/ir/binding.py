"""Giving symbols their sizes: `bind_graph`, and finding the sizes from what a caller passes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlx.errors import BindingError
from rlx.ir.dim_binding import DimBinding
from rlx.ir.dims import Dim, bind_dim, product
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input
from rlx.ir.shape import Shape


def has_dynamic_dims(graph: Graph) -> bool:
    return graph.has_dynamic_dims()


def collect_dynamic_symbols(graph: Graph) -> tuple[str, ...]:
    return graph.dynamic_symbols()


def bind_graph(graph: Graph, binding: Mapping[str, int | Dim]) -> Graph:
    """The graph with symbols replaced in every type, attribute and body. Node ids, names and origins stay.

    Types are inferred again from the bound leaves, so they always agree with the attributes; constraints that the
    binding decides are checked here, all others stay.
    """
    bound = graph.empty_like()
    for node in graph.nodes:
        bound.append(node.op.bind(binding), node.inputs, name=node.name, origin=node.origin)
    bound.outputs = list(graph.outputs)
    sizes = {k: v for k, v in binding.items() if isinstance(v, int)}
    known = set(bound.constraints)
    for constraint in graph.constraints:
        still = constraint.bind(binding)
        if not still.symbols:
            constraint.check(sizes)
        elif still not in known:
            bound.constraints.append(still)
    return bound


def infer_binding(leaves: Iterable[tuple[str, Shape, Sequence[int]]]) -> DimBinding:
    """Sizes of all symbols from (name, declared type, actual dims) triples.

    >>> infer_binding([("x", Shape(("B", "S + 1")), (2, 9))])
    {'B': 2, 'S': 8}
    """
    binding = DimBinding()
    pending: list[tuple[str, int, int | Dim, int]] = []
    for name, shape, actual in leaves:
        if len(actual) != shape.rank:
            raise BindingError(
                f"{name!r} is declared {shape} (rank {shape.rank}), got an array of shape {tuple(actual)}"
            )
        pending += [(name, axis, d, int(size)) for axis, (d, size) in enumerate(zip(shape.dims, actual))]
    # Plain symbols first; then expressions in which one unknown is left, until nothing more is learnt.
    progress = True
    while progress:
        progress = False
        for name, axis, dim, size in pending:
            unknown = _unknown_symbols(dim, binding)
            if len(unknown) == 1 and isinstance(dim, Dim):
                solved = _solve(bind_dim(dim, binding), unknown[0], size)
                if solved is not None:
                    binding[unknown[0]] = solved
                    progress = True
                elif _is_linear(bind_dim(dim, binding), unknown[0]):
                    raise BindingError(f"{name!r}: no size of {unknown[0]} makes axis {axis} ({dim}) equal to {size}")
    for name, axis, dim, size in pending:
        value = bind_dim(dim, binding)
        if isinstance(value, int) and value != size:
            known = f", since {', '.join(f'{k}={v}' for k, v in binding.items())}" if isinstance(dim, Dim) else ""
            raise BindingError(
                f"{name!r}: axis {axis} must be {dim}{f' = {value}' if known else ''}{known}, got {size}"
            )
        if isinstance(value, Dim):
            raise BindingError(
                f"{name!r}: axis {axis} has size {size}, which does not determine {dim}; bind it explicitly"
            )
    return binding


def _unknown_symbols(dim: int | Dim, binding: Mapping[str, int]) -> list[str]:
    return [s for s in dim.symbols if s not in binding] if isinstance(dim, Dim) else []


def _is_linear(dim: int | Dim, symbol: str) -> bool:
    return isinstance(dim, Dim) and all(m in ((), (symbol,)) for m, _ in dim.terms)


def _solve(dim: int | Dim, symbol: str, size: int) -> int | None:
    """The value of `symbol` in `a*symbol + b == size`, or None when there is no such value or the form is another."""
    if not isinstance(dim, Dim) or not _is_linear(dim, symbol):
        return None
    terms = dict(dim.terms)
    slope, offset = terms[(symbol,)], terms.get((), 0)
    value, rest = divmod(size - offset, slope)
    return value if rest == 0 and value >= 0 else None


def infer_bindings_from_inputs(graph: Graph, inputs: Iterable[tuple[str, int | Sequence[int]]]) -> DimBinding:
    """Sizes from (input name, element count or actual shape) pairs. A count needs an input with one unknown size."""
    binding = DimBinding()
    for name, given in inputs:
        node = _input_node(graph, name)
        if not isinstance(given, int):
            found = infer_binding([(name, node.shape, tuple(given))])
        else:
            found = _binding_from_count(name, node.shape, given)
        for symbol, size in found.items():
            if binding.setdefault(symbol, size) != size:
                raise BindingError(
                    f"{name!r} needs {symbol} = {size}, another input needs {symbol} = {binding[symbol]}"
                )
    return binding


def infer_bindings_from_f32_inputs(graph: Graph, inputs: Mapping[str, Sequence[float]]) -> DimBinding:
    """Sizes from flat inputs: their lengths are element counts."""
    return infer_bindings_from_inputs(graph, [(name, len(values)) for name, values in inputs.items()])


def _input_node(graph: Graph, name: str) -> Node:
    node = graph.leaf(name)
    if not isinstance(node.op, Input):
        raise BindingError(f"{name!r} is a param of graph @{graph.name}, not an input")
    return node


def _binding_from_count(name: str, shape: Shape, count: int) -> DimBinding:
    symbolic = [d for d in shape.dims if isinstance(d, Dim)]
    fixed = product(d for d in shape.dims if isinstance(d, int))
    if not symbolic:
        if fixed != count:
            raise BindingError(f"{name!r} is {shape} with {fixed} elements, got {count}")
        return DimBinding()
    if len(symbolic) > 1:
        raise BindingError(
            f"{name!r} is {shape}: {count} elements do not determine several sizes; bind them explicitly"
        )
    if fixed == 0:
        raise BindingError(f"{name!r} is {shape}: its fixed sizes multiply to 0, so {count} elements determine nothing")
    assert isinstance(fixed, int)
    if count % fixed:
        raise BindingError(f"{name!r} is {shape}: {count} elements are not a multiple of {fixed}")
    return infer_binding([(name, Shape(symbolic), (count // fixed,))])


def sync_graph_shapes(graph: Graph) -> Graph:
    """Every type inferred again from the leaves; what `bind_graph` already guarantees, for graphs edited by hand."""
    return bind_graph(graph, {})


# Binding rewrites attributes and types together, so the separate repairs of the seed documents are all this one.
sync_reshape_ops = sync_expand_ops = sync_concat_shapes = sync_narrow_ops = sync_graph_shapes
