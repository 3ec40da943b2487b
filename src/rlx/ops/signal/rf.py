"""Radio-frequency building blocks on f32[1] values: complex division, input impedance, reflection coefficient.

Complex numbers are pairs (real part, imaginary part) of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import BindingError
from rlx.ir.dtype import DType
from rlx.ir.leaves import Param
from rlx.ir.shape import Shape
from rlx.ops.pointwise.arithmetic import add, div, mul, sub

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, NodeId
    from rlx.ir.tensor import Tensor

__all__ = [
    "complex_div",
    "const_f32",
    "cs_degen_z_in",
    "find_param_node",
    "find_param_nodes",
    "mag2",
    "s11_from_z",
    "scalar_f32",
]

Complex = tuple[Any, Any]


def scalar_f32() -> Shape:
    """The type of every value here, f32[1]."""
    return Shape((1,), DType.F32)


def const_f32(graph: Graph, value: float, shape: Shape | None = None) -> Tensor:
    """A constant filled with `value`; f32[1] unless a shape is given."""
    dims = (scalar_f32() if shape is None else shape).static_dims
    return graph.constant(np.full(dims, value, np.float32))


def mag2(re: Any, im: Any) -> Any:
    """|z|² = re² + im²."""
    return add(mul(re, re), mul(im, im))


def complex_div(a: Any, b: Any, c: Any, d: Any) -> Complex:
    """(a + ib)/(c + id) = ((ac + bd) + i(bc - ad)) / (c² + d²)."""
    size = mag2(c, d)
    return div(add(mul(a, c), mul(b, d)), size), div(sub(mul(b, c), mul(a, d)), size)


def cs_degen_z_in(gm: Any, cgs: Any, lg: Any, ls: Any, f: Any) -> Complex:
    """The input impedance of a common-source stage with inductive degeneration.

    R = gm·Ls/Cgs and X = ω(Lg + Ls) - 1/(ω·Cgs), with ω = 2πf.
    """
    omega = mul(f, 2.0 * math.pi)
    resistance = div(mul(gm, ls), cgs)
    reactance = sub(mul(omega, add(lg, ls)), div(1.0, mul(omega, cgs)))
    return resistance, reactance


def s11_from_z(zr: Any, zi: Any, z0: Any) -> Complex:
    """The reflection coefficient (Z - z0)/(Z + z0) of an impedance against a real reference."""
    return complex_div(sub(zr, z0), zi, add(zr, z0), zi)


def find_param_node(graph: Graph, name: str) -> NodeId | None:
    """The id of a param, or None when there is none of that name."""
    if not graph.has_leaf(name):
        return None
    node = graph.leaf(name)
    return node.id if isinstance(node.op, Param) else None


def find_param_nodes(graph: Graph, names: Sequence[str]) -> list[NodeId]:
    """The ids of several params, in the order of `names`."""
    found = []
    for name in names:
        node = find_param_node(graph, name)
        if node is None:
            known = ", ".join(str(n.name) for n in graph.params) or "none"
            raise BindingError(f"graph @{graph.name} has no param {name!r}; it has: {known}")
        found.append(node)
    return found
