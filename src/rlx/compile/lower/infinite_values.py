"""Whether a value may hold infinities that a program means, as masks do."""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Constant
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import ConvBase
from rlx.ops.pointwise.arithmetic import Where
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.indexing import GatherNd

# Ops whose results are infinite by overflow alone, which nobody means by a mask.
_ORDINARY = (MatMul, ConvBase)


def may_be_infinite(graph: Graph, node: NodeId) -> bool:
    """Whether a constant, a weight or an input below a node can bring one; conditions and indices bring none."""
    work, seen = [node], set()
    while work:
        found = graph.nodes[work.pop()]
        if found.id in seen or not found.shape.dtype.is_float or isinstance(found.op, _ORDINARY):
            continue
        seen.add(found.id)
        if isinstance(found.op, Constant):
            if np.any(np.isinf(found.op.value.array.astype(np.float64))):
                return True
        elif found.is_leaf or len(found.shapes) > 1:
            return True
        elif isinstance(found.op, Where):
            work += found.inputs[1:]
        elif isinstance(found.op, Gather | GatherNd):
            work.append(found.inputs[0])
        else:
            work += found.inputs
    return False
