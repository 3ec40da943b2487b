"""Move conversions out of bodies: a loop whose body reads a weight only after rounding it takes the rounded weight.

scan(h, w) { .. cast(w, f16) .. }  ->  scan(h, cast(w, f16)) { .. w .. }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.errors import RlxError
from rlx.ir.dims import collect_constraints
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Input
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import Replacement, map_bodies, rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ir.verify import infer_output_shapes
from rlx.ops.control.branches import If, Switch, While
from rlx.ops.control.recomputation import Checkpoint
from rlx.ops.control.scans import Scan
from rlx.ops.pointwise.conversion import Cast

# Ops whose operands, from this number on, are the inputs of every program they hold. A branch is chosen by operand 0.
_OFFSETS: dict[type[Op], int] = {If: 1, Switch: 1, While: 0, Scan: 0, Checkpoint: 0}


def narrow_captures(op: Op, operands: Sequence[Shape]) -> tuple[Op, dict[int, DType]]:
    """The op with narrower body inputs, and the type of every operand that must be converted for it.

    Carries, whose type is also that of a result, stay as they are.
    """
    offset = _OFFSETS.get(type(op))
    if offset is None:
        return op, {}
    chosen: dict[int, DType] = {}
    for number, dtype in enumerate(_wanted_dtypes(op)):
        if dtype is not None and _accepts(op, operands, {**chosen, number: dtype}, offset):
            chosen[number] = dtype
    narrowed = map_bodies(op, lambda body: _narrowed(body, chosen)) if chosen else op
    return narrowed, {number + offset: dtype for number, dtype in chosen.items()}


def _wanted_dtypes(op: Op) -> list[DType | None]:
    """For every input, the float type to which each program of `op` that reads it converts it first."""
    per_body = []
    for body in op.bodies.values():
        uses = body.use_map()
        per_body.append([_read_as(body, node, uses) for node in body.inputs])
    wanted: list[DType | None] = []
    for found in zip(*per_body):
        dtypes = set[DType]().union(*found)
        only = dtypes.pop() if len(dtypes) == 1 else None
        wanted.append(only if only in (DType.F16, DType.BF16) else None)
    return wanted


def _read_as(body: Graph, node: Node, uses: list[list[NodeId]]) -> set[DType]:
    """The types to which an f32 input is converted before it is read; F32 where it is read as it is."""
    if node.shape.dtype is not DType.F32 or node.id in body.outputs:
        return {DType.F32}
    readers = (body.nodes[u].op for u in uses[node.id])
    return {r.to if isinstance(r, Cast) else DType.F32 for r in readers}


def _accepts(op: Op, operands: Sequence[Shape], chosen: Mapping[int, DType], offset: int) -> bool:
    types = [s.with_dtype(chosen[i - offset]) if i - offset in chosen else s for i, s in enumerate(operands)]
    try:
        with collect_constraints([]):
            narrowed = map_bodies(op, lambda body: _narrowed(body, chosen))
            return infer_output_shapes(narrowed, types) == infer_output_shapes(op, list(operands))
    except RlxError:
        return False


def _narrowed(body: Graph, chosen: Mapping[int, DType]) -> Graph:
    numbers = {node.id: number for number, node in enumerate(body.inputs)}

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        if isinstance(node.op, Input) and numbers[node.id] in chosen:
            narrow = Input(node.op.key, node.shape.with_dtype(chosen[numbers[node.id]]))()
            wide: Tensor = Cast(DType.F32)(narrow)
            return wide
        if isinstance(node.op, Cast) and numbers.get(node.inputs[0]) in chosen:
            return Tensor(operands[0].graph, operands[0].node.inputs[0])
        return None

    return remove_dead_nodes(rebuild(body, visit).graph).graph
