"""Move conversions out of bodies: a loop whose body reads a weight only after rounding it takes the rounded weight.

scan(h, w) { .. cast(w, f16) .. }  ->  scan(h, cast(w, f16)) { .. w .. }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.errors import RlxError
from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.dims import collect_constraints
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input
from rlx.ir.op import Op
from rlx.ir.rebuild import Replacement, map_bodies, rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ir.verify import infer_output_shapes
from rlx.ops.conversion import Cast


def narrow_captures(op: Op, operands: Sequence[Shape]) -> tuple[Op, dict[int, DType]]:
    """The op with narrower body inputs, and the type of every operand that must be converted for it.

    Carries, whose type is also that of a result, stay as they are.
    """
    counts = {len(body.inputs) for body in op.bodies.values()}
    if len(counts) != 1:
        return op, {}
    # Branches are chosen by a first operand that their programs do not see.
    offset = len(operands) - counts.pop()
    chosen: dict[int, DType] = {}
    for number in range(len(operands) - offset):
        dtype = _wanted_dtype(op, number)
        if dtype is not None and _accepts(op, operands, {**chosen, number: dtype}, offset):
            chosen[number] = dtype
    narrowed = map_bodies(op, lambda body: _narrowed(body, chosen)) if chosen else op
    return narrowed, {number + offset: dtype for number, dtype in chosen.items()}


def _wanted_dtype(op: Op, number: int) -> DType | None:
    """The float type to which every program of `op` that reads input `number` converts it first."""
    dtypes: set[DType] = set()
    for body in op.bodies.values():
        node = body.inputs[number]
        if node.id in body.outputs:
            return None
        readers = [body.nodes[u].op for u in body.users(node.id)]
        if node.shape.dtype is not DType.F32 or not all(isinstance(r, Cast) for r in readers):
            return None
        dtypes |= {r.to for r in readers if isinstance(r, Cast)}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return dtype if dtype in (DType.F16, DType.BF16) else None


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
