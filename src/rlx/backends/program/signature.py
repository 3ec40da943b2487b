"""What a program takes and gives, apart from how: all that a compiled graph has to know of the graph it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlx.ir.dims import DimConstraint, distinct
from rlx.ir.graph import Graph
from rlx.ir.index_checks import IdCheck, id_checks
from rlx.ir.leaves import Input, Param
from rlx.ir.shape import Shape


class Signature(NamedTuple):
    """Types by name, in the order of their declaration; which outputs are stored over which inputs; what must hold of
    sizes and of ids."""

    name: str
    inputs: Mapping[str, Shape]
    params: Mapping[str, Shape]
    outputs: tuple[Shape, ...]
    aliases: Mapping[int, str]
    constraints: tuple[DimConstraint, ...]
    id_checks: tuple[IdCheck, ...]

    @staticmethod
    def of(graph: Graph) -> Signature:
        return Signature(
            graph.name,
            {n.op.key: n.shape for n in graph.nodes if isinstance(n.op, Input)},
            {n.op.key: n.shape for n in graph.nodes if isinstance(n.op, Param)},
            tuple(graph.shape(o) for o in graph.outputs),
            dict(graph.aliases),
            distinct(graph.constraints),
            tuple(id_checks(graph)),
        )
