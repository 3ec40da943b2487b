"""The vocabulary of `Graph`: `g.matmul(x, w)`, `g.layer_norm(x, gamma, beta, -1, 1e-5)`, ...

Each method calls the functional constructor of the same name inside the graph. Operands are tensors, node ids, arrays
or Python numbers; a trailing output shape may be declared and is then checked against what inference finds.
"""

from __future__ import annotations

from rlx.ir import graph as graph_module
from rlx.ops.builders.attention import AttentionBuilders
from rlx.ops.builders.backward import BackwardBuilders
from rlx.ops.builders.control import ControlBuilders
from rlx.ops.builders.elementwise import ElementwiseBuilders
from rlx.ops.builders.fourier import FourierBuilders
from rlx.ops.builders.matmul import MatmulBuilders
from rlx.ops.builders.movement import MovementBuilders
from rlx.ops.builders.nn import NeuralBuilders
from rlx.ops.builders.quantized import QuantizedBuilders
from rlx.ops.builders.splat import SplatBuilders

__all__ = ["GraphBuilders", "GraphExt", "install"]


class GraphBuilders(
    ElementwiseBuilders,
    MatmulBuilders,
    MovementBuilders,
    NeuralBuilders,
    AttentionBuilders,
    BackwardBuilders,
    QuantizedBuilders,
    FourierBuilders,
    ControlBuilders,
    SplatBuilders,
):
    """All builder methods, by subject."""

    __slots__ = ()


# The seed's trait of builders with inferred types; here every builder infers.
GraphExt = GraphBuilders


def install() -> None:
    """Give `Graph` these methods; `rlx.ir` cannot, because they need the ops."""
    target = graph_module.Graph.__mro__[1]
    for mixin in reversed(GraphBuilders.__mro__[:-1]):
        for name, value in vars(mixin).items():
            if not (name.startswith("__") and name.endswith("__")):
                setattr(target, name, value)
