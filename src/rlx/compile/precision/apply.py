"""Mixed precision: compute in the type that a policy chooses, with conversions only where the type changes.

Only f32 values take part: integers, bools, complex numbers, f64, and what the user already holds in another float
type pass as they are. Inputs, params and outputs keep their types. A param that is read in a lower precision is
converted once, by a node that depends on nothing else, so that the conversion can run when weights are prepared.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rlx.compile.precision.hoist_casts import narrow_captures
from rlx.compile.precision.policy import Precision, PrecisionPolicy, op_kind
from rlx.errors import RlxError
from rlx.ir.dims import collect_constraints
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.op import Op, kind_of
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Replacement, rebuild, rebuild_bodies
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ir.tensor_data import TensorData
from rlx.ir.verify import infer_output_shapes
from rlx.ops.control.body_calls import KeepPrecision
from rlx.ops.pointwise.conversion import Cast, cast
from rlx.ops.shape.creation import DimValue, Iota

# Kinds that compute in f32 under every policy. Solutions and factors lose as many digits as the matrix is badly
# conditioned; the others hold ids or coordinates in floats, or were written by the user for the types they are given.
STAY_F32 = frozenset(
    {
        "DenseSolve",
        "BatchedDenseSolve",
        "TriangularSolve",
        "Cholesky",
        "Qr",
        "Svd",
        "Eigh",
        "Eig",
        "Schur",
        "Expm",
        "PolarFactor",
        "Lu",
        "Pinv",
        "GaussianSplatPrepare",
        "GaussianSplatRasterize",
        "GaussianSplatRender",
        "GaussianSplatRenderBackward",
        "FftButterflyStage",
        "Rfft",
        "WelchPeaks",
        "Custom",
        "Cast",
        "KeepPrecision",
    }
)
# Operands that are never rounded: ids and positions, which floats may hold too, and steps that are being learned.
WIDE_OPERANDS: dict[str, Container[int]] = {
    "Gather": (1,),
    "GatherNd": (1,),
    "GatherBackward": (1,),
    "ScatterNd": (1,),
    "ScatterAdd": (1,),
    "GroupedMatMul": (2,),
    "DequantGroupedMatMul": (2,),
    "SoftmaxCrossEntropyWithLogits": (1,),
    "SoftmaxCrossEntropyBackward": (1,),
    "Rope": (1, 2, 3),
    "RopeBackward": (3,),
    "DynamicSlice": range(1, 64),
    "DynamicUpdateSlice": range(2, 64),
    "FakeQuantize": (1,),
    "FakeQuantizeBackward": (2,),
    "FakeQuantizeLSQ": (1,),
    "FakeQuantizeLSQBackwardX": (1,),
    "FakeQuantizeLSQBackwardScale": (1,),
}


class AutoMixedPrecision(Pass):
    """Apply a precision policy, bodies included, but for those of `KeepPrecision`. An op that does not accept the lower
    precision stays in f32.

    Sums of products and reductions accumulate in f32 whatever type they read. Where everything that reads a product
    computes in f32, the product is not rounded in between.
    """

    name = "auto_mixed_precision"

    def __init__(self, policy: PrecisionPolicy | Precision | str = PrecisionPolicy.AlwaysF32) -> None:
        self.policy = PrecisionPolicy.of(policy)

    def run(self, graph: Graph) -> Graph:
        if all(precision is Precision.F32 for _, precision in self.policy.choices):
            return graph
        inside = rebuild_bodies(graph, self.run, self.name, (KeepPrecision,)).graph
        walk = _Walk(inside, self.policy)
        mixed = remove_dead_nodes(rebuild(inside, walk.visit, self.name).graph).graph
        return graph if mixed == graph else mixed


class _Walk:
    """One walk over one graph. Every old f32 value has an f32 tensor in the new graph; those computed in a lower
    precision are its conversion, and ops of that precision read what was converted."""

    def __init__(self, graph: Graph, policy: PrecisionPolicy) -> None:
        self.policy = policy
        self.positions = find_positions(graph)
        outputs = set(graph.outputs)
        # Nodes that nothing reads in a lower precision; what leaves the program is rounded like everything else.
        self.read_in_f32 = {
            node.id
            for node, users in zip(graph.nodes, graph.use_map())
            if users and node.id not in outputs and all(self.dtype_for(graph.nodes[u]) is None for u in users)
        }
        self.converted: dict[tuple[NodeId, DType], Tensor] = {}

    def dtype_for(self, node: Node) -> DType | None:
        """The lower precision that a node should compute in, None for f32."""
        op = node.op
        if op.is_structural or op.effect or op.bodies or kind_of(op) in STAY_F32 or node.id in self.positions:
            return None
        precision = self.policy.precision_for(op_kind(op))
        return None if precision is Precision.F32 else precision.dtype()

    def visit(self, node: Node, operands: list[Tensor]) -> Replacement:
        if node.op.bodies:
            return self.with_narrow_captures(node, operands)
        dtype = self.dtype_for(node)
        if dtype is None or not any(x.dtype is DType.F32 for x in operands):
            return None
        wide = WIDE_OPERANDS.get(kind_of(node.op), ())
        types = [
            x.type.with_dtype(dtype) if x.dtype is DType.F32 and i not in wide else x.type
            for i, x in enumerate(operands)
        ]
        op = self.unrounded(node)
        if not fits(op, types, node.shapes, dtype):
            return None
        results = op(*(self.convert(x, t.dtype) for x, t in zip(operands, types)))
        several = results if isinstance(results, tuple) else (results,)
        return [cast(r, s.dtype) if r.dtype is not s.dtype else r for r, s in zip(several, node.shapes)]

    def unrounded(self, node: Node) -> Op:
        """The op, with its sum as the result where only f32 is wanted of it."""
        op = node.op
        if node.id in self.read_in_f32 and "out_dtype" in op.attributes and op.attributes["out_dtype"] is None:
            return op.replace(out_dtype=DType.F32)
        return op

    def with_narrow_captures(self, node: Node, operands: list[Tensor]) -> Replacement:
        op, dtypes = narrow_captures(node.op, [x.type for x in operands])
        if not dtypes:
            return None
        replacement: Replacement = op(*(self.convert(x, dtypes.get(i, x.dtype)) for i, x in enumerate(operands)))
        return replacement

    def convert(self, x: Tensor, dtype: DType) -> Tensor:
        """`x` in another type; what was only converted to f32 is read as it was."""
        if x.dtype is dtype:
            return x
        op = x.node.op
        if isinstance(op, Cast):
            source = Tensor(x.graph, x.node.inputs[0])
            if source.dtype is dtype:
                return source
        key = (x.id, dtype)
        if key not in self.converted:
            if isinstance(op, Constant):
                self.converted[key] = x.graph.constant(round_constant(op.value, dtype))
            else:
                self.converted[key] = cast(x, dtype)
        return self.converted[key]


def find_positions(graph: Graph) -> set[NodeId]:
    """The f32 nodes that depend on integers and constants alone: positions, counts, tables of angles.

    Rounded to eleven bits, position 4097 would be position 4096; so these are computed in f32.
    """
    found: set[NodeId] = set()
    for node in graph.nodes:
        read = [graph.nodes[i] for i in node.inputs if _holds_f32(graph.nodes[i])]
        derived = any(n.id in found for n in read) and all(n.id in found or isinstance(n.op, Constant) for n in read)
        if _holds_f32(node) and (derived or _counts(graph, node)):
            found.add(node.id)
    return found


def _holds_f32(node: Node) -> bool:
    return any(s.dtype is DType.F32 for s in node.shapes)


def _counts(graph: Graph, node: Node) -> bool:
    if isinstance(node.op, Cast):
        return graph.shape(node.inputs[0]).dtype.is_int
    return isinstance(node.op, Iota | DimValue)


def fits(op: Op, operands: Sequence[Shape], results: Sequence[Shape], dtype: DType) -> bool:
    """Whether `op` accepts the types and gives what it gave before, with f32 as it is or as `dtype`."""
    try:
        with collect_constraints([]):
            inferred = infer_output_shapes(op, list(operands))
    except RlxError:
        return False
    if len(inferred) != len(results):
        return False
    return all(
        new == old or (old.dtype is DType.F32 and new == old.with_dtype(dtype)) for new, old in zip(inferred, results)
    )


def round_constant(value: TensorData, dtype: DType) -> TensorData:
    """The constant in a lower precision. A mask of -1e9 stays finite and an epsilon of 1e-12 is not 0: finite values
    do not become infinite, nor others zero."""
    limits = ml_dtypes.finfo(dtype.numpy)
    array: np.ndarray[Any, Any] = value.array
    highest, lowest = float(limits.max), float(limits.smallest_subnormal)
    with np.errstate(all="ignore"):
        clipped = np.where(np.isfinite(array), np.clip(array, -highest, highest), array)
        vanishes = (clipped != 0) & (clipped.astype(dtype.numpy) == 0)
        return TensorData(np.where(vanishes, np.copysign(lowest, clipped), clipped).astype(dtype.numpy))
