"""What the builder methods share: operands of one graph in, the functional constructor, the declared type checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, collect_constraints
from rlx.ir.graph import NodeId, compatible
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

# A declared output type: a Shape, its text, or only the dims.
DeclaredShape = Shape | str | Sequence[int | str | Dim] | None
# The type of a forward operand, or only its dims.
TargetShape = Shape | Sequence[int | str | Dim]


class Builder:
    """Base of the mixins; their methods end up on `Graph`."""

    __slots__ = ()

    def _build(
        self, function: Callable[..., Any], *operands: Any, shape: DeclaredShape = None, **attributes: Any
    ) -> Any:
        """`function(*operands, **attributes)` recorded in this graph; node ids are accepted wherever tensors are."""
        graph = cast("Graph", self)
        with building(graph):
            result = function(
                *[_handle(graph, x) for x in operands], **{k: _handle(graph, v) for k, v in attributes.items()}
            )
        if shape is not None:
            _check_declared(graph, result, shape)
        return result


def dims_of_target(target: TargetShape) -> Sequence[int | str | Dim]:
    return target.dims if isinstance(target, Shape) else target


def _handle(graph: Graph, value: Any) -> Any:
    if isinstance(value, NodeId):
        return graph.tensor(value)
    if isinstance(value, list | tuple) and any(isinstance(v, NodeId) for v in value):
        handles = [_handle(graph, v) for v in value]
        return type(value)(*handles) if hasattr(value, "_fields") else handles
    return value


def _check_declared(graph: Graph, result: Any, shape: DeclaredShape) -> None:
    assert shape is not None
    if not isinstance(result, Tensor):
        raise OpError("an output shape can be declared for a builder with one result only; leave it out")
    op = result.node.op.mnemonic
    declared = Shape.of(shape) if isinstance(shape, Shape | str) else Shape(shape, result.dtype)
    with collect_constraints(graph.constraints):
        if not compatible(result.type, declared, op):
            raise ShapeError(f"{op}: the declared output is {declared}, but inference gives {result.type}")
