"""Splice one program into another: by name (`inline_into`), or a body by position (`inline_subgraph_into`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.compile.simplify.promote_params import promote_params_to_inputs
from rlx.errors import BindingError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.tensor import Tensor, building


def inline_into(
    target: Graph,
    source: Graph,
    input_bindings: Mapping[str, Any],
    param_bindings: Mapping[str, Any] | None = None,
) -> list[Tensor]:
    """Copy `source` into `target` and return its outputs there.

    Every Input of `source` needs a value of `target` in `input_bindings`. A Param takes the value that
    `param_bindings` gives it; one without becomes a param of `target` under its own name, or is the one that is there.
    """
    leaves = [node.op for node in source.nodes if isinstance(node.op, Input | Param)]
    for op in leaves:
        if isinstance(op, Input) and op.key not in input_bindings:
            known = ", ".join(map(repr, input_bindings)) or "none"
            raise BindingError(f"inline_into: input {op.key!r} ({op.type}) is not bound; bound are: {known}")
    bound = {**input_bindings, **(param_bindings or {})}
    opened = promote_params_to_inputs(source, [op.key for op in leaves])
    with building(target):
        operands = [bound[op.key] if op.key in bound else _own_param(target, op) for op in leaves]
        return list(inline_graph(opened, operands))


def _own_param(target: Graph, op: Input | Param) -> Tensor:
    """The param of `target` that stands for one of the program that is copied into it."""
    if not target.has_leaf(op.key):
        return target.param(op.key, op.type)
    present = target.leaf(op.key)
    if present.op != op:
        raise BindingError(
            f"inline_into: @{target.name} already has {present.op.mnemonic} {op.key!r} of type {present.shape}, "
            f"which is not the param {op.type}; bind it in param_bindings, or rename one of them"
        )
    return target.tensor(present.id)


def inline_subgraph_into_outputs(sub: Graph, captures: Sequence[Any], out: Graph) -> list[Tensor]:
    """Copy `sub` into `out` with its Inputs, in declaration order, bound to `captures`; all outputs."""
    with building(out):
        return list(inline_graph(sub, captures))


def inline_subgraph_into(sub: Graph, captures: Sequence[Any], out: Graph) -> Tensor:
    """The first output of `inline_subgraph_into_outputs`."""
    return inline_subgraph_into_outputs(sub, captures, out)[0]
