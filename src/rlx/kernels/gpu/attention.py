"""What an attention kernel was made of, so that a target may have another way to compute it.

The loop kernel that a GPU runs goes through tiles (`attention_tiles`), or is the CPU's, spread over threads: right for
every layout, mask and type, and slow. Its `AttentionOrigin` says in the words of its parameters where operands lie; a
backend that knows a faster way for the chip launches that instead, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.attention_case import value_width
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import Const, Value
from rlx.kernels.machines import Machine
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.gradients import AttentionBackward
from rlx.ops.attn.operands import AttentionBase, AttentionLayout
from rlx.ops.attn.sinks import AttentionWithSinks
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs
from rlx.ops.lowered.attention_parts import AttentionParts

# f32 is multiplied as the sum of numbers of bf16, where keys and values are of that type.
TENSOR_TYPES = (DType.F16, DType.BF16)
# Widths of heads: multiples of the widest swizzled row, as far as registers hold the sums.
TENSOR_WIDTHS = (64, 128, 192, 256)
# Elements of masks and biases that kernels read.
MASK_TYPES = (DType.BOOL, DType.F16, DType.BF16, DType.F32)
# The axis of positions.
SEQUENCES = {AttentionLayout.Bsm: -2, AttentionLayout.Bshd: 1, AttentionLayout.Bhsd: 2}
# Heads whose gradients registers hold beside the scores, on Hopper.
WIDEST_GRADIENTS = 128
# Positions and lengths are cut to this, so that sums of them fit into 32 bits.
FAR = 1 << 29


class Strided(NamedTuple):
    """An operand or the result: the parameter that points to its buffer, where it begins in it, and how far it is from
    one to the next along each axis, in elements."""

    pointer: str
    dtype: DType
    offset: Extent
    strides: tuple[Extent, ...]


class AttentionOrigin(NamedTuple):
    """q, k, v and the result as [batch, head, position, element]; lengths [batch] and positions [batch, query], which
    may have no stride along the batch; a mask as [batch, head, query, key], with no stride where one serves all; sinks
    [head]."""

    op: AttentionBase
    refusal: str  # why there is no kernel for tensor cores for many rows, whatever the strides
    few_refusal: str  # and for few rows
    q: Strided
    k: Strided
    v: Strided
    out: Strided
    width: int
    batch: Extent
    queries: Extent
    keys: Extent
    lengths: Strided | None
    positions: Strided | None
    logs: Strided | None
    mask: Strided | None
    sinks: Strided | None


class GradientOrigin(NamedTuple):
    """q, k, v, dy, y and the results as [batch, head, position, element]; logs as [batch, head, query]."""

    op: AttentionGradients
    refusal: str
    q: Strided
    k: Strided
    v: Strided
    dy: Strided
    y: Strided
    logs: Strided
    dq: Strided
    dk: Strided
    dv: Strided
    batch: Extent
    queries: Extent
    keys: Extent


def tensor_width(width: int) -> int:
    """That of the kernel for heads which are so wide: what is missing is read as zeros, and not written."""
    return next((known for known in TENSOR_WIDTHS if width <= known), 0)


def is_filled_up(op: AttentionBase, width: int) -> bool:
    """Whether heads of q and k, or those of v, which are so wide, are not as wide as a kernel's."""
    return any(w not in TENSOR_WIDTHS for w in (op.head_dim, width))


def has_own_scores(op: AttentionBase) -> bool:
    """Whether scores are more than products that some rows do not see: a mask or sinks are operands."""
    return op.mask_kind.is_operand or isinstance(op, AttentionWithSinks)


def few_rows_refusal(machine: Machine, op: AttentionBase, operands: Sequence[Shape]) -> str:
    """Why an attention has no kernel for tensor cores in which blocks share keys, wherever its operands lie; empty if
    it has one. f32 is multiplied as the sum of numbers of bf16."""
    reason = _refusal(machine, op, operands)
    if reason:
        return reason
    if has_own_scores(op):
        return "sinks" if isinstance(op, AttentionWithSinks) else f"a {op.mask_kind} operand"
    width = value_width(op, operands[2])
    return f"heads of {op.head_dim} and {width}" if is_filled_up(op, width) else ""


def many_rows_refusal(machine: Machine, op: AttentionBase, operands: Sequence[Shape]) -> str:
    """The same of many rows."""
    reason = _refusal(machine, op, operands)
    if reason:
        return reason
    if _is_split(operands):
        if not machine.has_wgmma:
            return f"{machine.name} has no wgmma, and queries are f32"
        return few_rows_refusal(machine, op, operands)
    widths = op.head_dim, value_width(op, operands[2])
    return (
        ""
        if all(0 < w <= TENSOR_WIDTHS[-1] and w % 8 == 0 for w in widths)
        else f"heads of {widths[0]} and {widths[1]}"
    )


def _is_split(operands: Sequence[Shape]) -> bool:
    return operands[0].dtype is DType.F32 and operands[1].dtype is DType.BF16


def _refusal(machine: Machine, op: AttentionBase, operands: Sequence[Shape]) -> str:
    """What no kernel takes."""
    q, k, v = operands[:3]
    if not machine.has_mma:
        return f"{machine.name} has no mma of bf16"
    if k.dtype is not v.dtype or not (_is_split(operands) or (q.dtype in TENSOR_TYPES and q.dtype is k.dtype)):
        return f"{q.dtype} queries of {k.dtype} keys"
    if op.scale <= 0 or op.window >= FAR:
        return f"a scale of {op.scale} and a window of {op.window}"
    named = op.extras(tuple(operands[3:]))
    if any(x is not None and x.dtype not in (DType.I32, DType.I64) for x in (named.kv_len, named.positions)):
        return "lengths or positions that are not i32 or i64"
    if named.mask is not None and named.mask.dtype not in MASK_TYPES:
        return f"a {op.mask_kind} operand of {named.mask.dtype}"
    if named.sinks is not None and named.sinks.dtype is not DType.F32:
        return f"sinks of {named.sinks.dtype}"
    return ""


def gradient_refusal(machine: Machine, op: AttentionBase, operands: Sequence[Shape]) -> str:
    """The same of the gradients of an attention; operands q, k, v, and what may be missing at the end."""
    if op.has_kv_len or op.has_positions:
        return "lengths or positions"
    if op.mask_kind.is_operand:
        return f"a {op.mask_kind} operand"
    reason = many_rows_refusal(machine, op, operands[:3])
    if reason:
        return reason
    if operands[0].dtype is not operands[1].dtype:
        return f"gradients of {operands[0].dtype} queries of {operands[1].dtype} keys"
    widths = op.head_dim, value_width(op, operands[2])
    has_kernel = not machine.has_wgmma or (widths[0] in TENSOR_WIDTHS and widths[0] <= WIDEST_GRADIENTS)
    return "" if widths[0] == widths[1] and has_kernel else f"gradients of heads of {widths[0]} and {widths[1]}"


class AttentionRefusal(NamedTuple):
    """Why an attention that was cut into parts has no kernel for tensor cores."""

    reason: str


def attention_origin(site: OpSite) -> AttentionOrigin | GradientOrigin | AttentionRefusal | None:
    """That of a site; None if it is no attention."""
    op = site.op
    if isinstance(op, AttentionParts):
        return AttentionRefusal(few_rows_refusal(site.machine, op, [x.shape for x in site.inputs]))
    if isinstance(op, AttentionBackward):
        return AttentionRefusal(gradient_refusal(site.machine, op, [x.shape for x in site.inputs]))
    if isinstance(op, AttentionGradients):
        return _gradient_origin(site, op)
    if not isinstance(op, Attention | AttentionWithLogs | AttentionWithSinks):
        return None
    named = op.extras(site.inputs[3:])
    q, k, v = site.inputs[:3]
    width = value_width(op, v.shape)
    sequence = SEQUENCES[op.layout]
    shapes = [x.shape for x in site.inputs]
    return AttentionOrigin(
        op,
        many_rows_refusal(site.machine, op, shapes),
        few_rows_refusal(site.machine, op, shapes),
        _by_heads(q, op.layout, op.head_dim),
        _by_heads(k, op.layout, op.head_dim),
        _by_heads(v, op.layout, width),
        _by_heads(site.outputs[0], op.layout, width),
        width,
        1 if len(q.dims) == 2 else _extent(q.dims[0]),
        _extent(q.dims[sequence]),
        _extent(k.dims[sequence]),
        None if named.kv_len is None else _strided(named.kv_len),
        None if named.positions is None else _per_batch(_strided(named.positions)),
        _strided(site.outputs[1]) if isinstance(op, AttentionWithLogs) else None,
        None if named.mask is None else _mask(named.mask),
        None if named.sinks is None else _strided(named.sinks),
    )


def _gradient_origin(site: OpSite, op: AttentionGradients) -> GradientOrigin:
    q, k, v, dy, y = (_by_heads(x, op.layout, op.head_dim) for x in site.inputs[:5])
    dq, dk, dv = (_by_heads(x, op.layout, op.head_dim) for x in site.outputs)
    q_dims, k_dims = (x.dims for x in site.inputs[:2])
    sequence = SEQUENCES[op.layout]
    return GradientOrigin(
        op,
        gradient_refusal(site.machine, op, [x.shape for x in site.inputs]),
        *(q, k, v, dy, y, _strided(site.inputs[5]), dq, dk, dv),
        1 if len(q_dims) == 2 else _extent(q_dims[0]),
        _extent(q_dims[sequence]),
        _extent(k_dims[sequence]),
    )


def _extent(value: Value) -> Extent:
    """A size or stride of a slab is a number or a parameter."""
    return int(value.literal) if isinstance(value, Const) else value.name


def _strided(slab: Slab) -> Strided:
    return Strided(
        slab.buffer.name, slab.shape.dtype, _extent(slab.offset), tuple(_extent(step) for step in slab.strides)
    )


def _per_batch(positions: Strided) -> Strided:
    return positions if len(positions.strides) == 2 else positions._replace(strides=(0, *positions.strides))


def _mask(slab: Slab) -> Strided:
    place = _strided(slab)
    axes = {2: (0, 3), 3: (0, 2, 3), 4: (0, 1, 2, 3)}[len(place.strides)]
    steps = {axis: 0 if size == 1 else step for axis, size, step in zip(axes, slab.shape.dims, place.strides)}
    return place._replace(strides=tuple(steps.get(axis, 0) for axis in range(4)))


def _by_heads(slab: Slab, layout: AttentionLayout, width: int) -> Strided:
    place = _strided(slab)
    steps = place.strides
    if layout is AttentionLayout.Bhsd:
        return place
    if layout is AttentionLayout.Bshd:
        return place._replace(strides=(steps[0], steps[2], steps[1], steps[3]))
    batch, position, element = steps if len(steps) == 3 else (0, *steps)
    # Heads lie side by side, if elements do; nobody reads the stride of heads otherwise.
    return place._replace(strides=(batch, width, position, element))
