"""The schedules of CPUs."""

from __future__ import annotations

from rlx.errors import InternalError
from rlx.kernels.cpu.maps import piecewise_kernel
from rlx.kernels.cpu.matmul.experts import expert_matmul_kernel, routed_matmul_kernel
from rlx.kernels.cpu.matmul.int8 import int8_matmul_kernel
from rlx.kernels.cpu.matmul.int8_blocks import int8_block_kernel
from rlx.kernels.cpu.matmul.matmul import matmul_kernel
from rlx.kernels.cpu.matmul.pairs import pair_matmul_kernel
from rlx.kernels.cpu.matmul.quant import quant_matmul_kernel
from rlx.kernels.cpu.ops import OpSite, build_op_kernel
from rlx.kernels.cpu.rows import row_kernel
from rlx.kernels.cpu.small_loops import SmallLoopSpec, small_loop_kernel
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import Schedule, ScheduleTable
from rlx.kernels.specs.map_parts import MapSpec, RowSpec
from rlx.kernels.specs.products import ProductSpec
from rlx.quant.panels import PanelFormat


def _map(name: str, machine: Machine, spec: MapSpec) -> Kernel:
    return piecewise_kernel(name, machine, spec.parts)


def _row(name: str, machine: Machine, spec: RowSpec) -> Kernel:
    return row_kernel(name, machine, spec.rows, spec.length, spec.inputs, spec.outputs, spec.exprs)


def _op(name: str, machine: Machine, site: OpSite) -> Kernel:
    return build_op_kernel(site)


def _layout(spec: ProductSpec) -> PanelFormat:
    if spec.layout is None:
        raise InternalError("a product with stored blocks needs their layout")
    return spec.layout


# By how B is stored, and whether rows have their own: what is more special comes first.
PRODUCTS = (
    Schedule(
        "codes of blocks",
        lambda name, machine, s: int8_block_kernel(name, machine, _layout(s), s.product, digits=s.code_digits),
        lambda machine, s: bool(s.code_digits) and s.layout is not None,
    ),
    Schedule(
        "codes",
        lambda name, machine, s: int8_matmul_kernel(name, machine, s.product),
        lambda machine, s: bool(s.code_digits),
    ),
    Schedule(
        "blocks by expert",
        lambda name, machine, s: expert_matmul_kernel(name, machine, _layout(s), s.experts, s.product),
        lambda machine, s: bool(s.experts) and s.layout is not None,
    ),
    Schedule(
        "by expert",
        lambda name, machine, s: routed_matmul_kernel(name, machine, s.experts, s.product),
        lambda machine, s: bool(s.experts),
    ),
    Schedule(
        "blocks",
        lambda name, machine, s: quant_matmul_kernel(name, machine, _layout(s), s.product),
        lambda machine, s: s.layout is not None,
    ),
    Schedule(
        "pairs",
        lambda name, machine, s: pair_matmul_kernel(name, machine, s.product),
        lambda machine, s: s.has_pairs,
    ),
    Schedule(
        "numbers",
        lambda name, machine, s: matmul_kernel(name, machine, s.product, packed=s.packed, accumulator=s.accumulator),
    ),
)

TABLE = ScheduleTable(
    {
        MapSpec: [Schedule("map", _map)],
        RowSpec: [Schedule("rows", _row)],
        ProductSpec: PRODUCTS,
        OpSite: [Schedule("op", _op)],
        SmallLoopSpec: [Schedule("small loop", small_loop_kernel)],
    }
)
