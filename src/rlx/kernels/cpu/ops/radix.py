"""Steps of sorts and searches of long rows: most of them only have kernels for the threads of a block together
(`rlx.kernels.gpu.radix_tiles` and `top_blocks`)."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import are_native
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.machines import Machine
from rlx.ops.lowered.radix_passes import RadixCounts, RadixPlaces, key_dtype
from rlx.ops.lowered.sort_order import InverseOrder
from rlx.ops.lowered.top_of_parts import TopOfParts


def _is_native(op: Op, operands: Sequence[Shape]) -> bool:
    return are_native(*operands)


def _has_small_keys(op: Op, operands: Sequence[Shape]) -> bool:
    """Elements are their keys and places in one number."""
    return are_native(*operands) and key_dtype(operands[0].dtype).size_bytes <= 4


def _sorts_blocks(machine: Machine) -> bool:
    return machine.sorts_blocks


@op_kernel(RadixCounts, RadixPlaces, kind="radix", supports=_is_native, strided={0}, runs_on=_sorts_blocks)
@op_kernel(TopOfParts, kind="top", supports=_has_small_keys, strided={0}, runs_on=_sorts_blocks)
def by_schedule(site: OpSite) -> None:
    raise InternalError(f"{site.op.mnemonic} has a schedule of its own")


@op_kernel(InverseOrder, kind="rank")
def inverse_order(site: OpSite) -> None:
    """Every element brings its number to its place; no two go to the same one."""
    k, (order,), (rank,) = site.k, site.inputs, site.outputs
    length = order.dims[-1]
    with k.parallel("element", total(k, order.dims)) as number:
        *_, i = unflatten(number, order.dims)
        place = k.cast(k.load(order.buffer, order.offset + number), DType.I64)
        k.store(rank.buffer, number - i + k.max(k.min(place, length - 1), 0), k.cast(i, DType.I32))
