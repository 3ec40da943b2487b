"""The schedules of CPUs."""

from __future__ import annotations

from rlx.errors import InternalError
from rlx.kernels.cpu.matmul.blocks import BlockShape, BlockSizes, distinct_sizes
from rlx.kernels.cpu.ops import OpSite, build_op_kernel
from rlx.kernels.cpu.small_loops import SmallLoopSpec, small_loop_kernel
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import Schedule, ScheduleTable
from rlx.kernels.specs.map_parts import MapSpec, RowSpec
from rlx.kernels.specs.products import ProductSpec
from rlx.quant.panels import PanelFormat

# Codes that are floats' own, and not of blocks, are words of two digits, or bytes.
WORD_DIGITS = 2

# Makers are imported when they are first used: a program needs few of them.


def _map(name: str, machine: Machine, spec: MapSpec) -> Kernel:
    from rlx.kernels.cpu.maps import piecewise_kernel

    return piecewise_kernel(name, machine, spec.parts)


def _row(name: str, machine: Machine, spec: RowSpec) -> Kernel:
    from rlx.kernels.cpu.rows import row_kernel

    return row_kernel(name, machine, spec.rows, spec.length, spec.inputs, spec.outputs, spec.exprs)


def _op(name: str, machine: Machine, site: OpSite) -> Kernel:
    return build_op_kernel(site)


def _layout(spec: ProductSpec) -> PanelFormat:
    if spec.layout is None:
        raise InternalError("a product with stored blocks needs their layout")
    return spec.layout


def _codes_of_blocks(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.int8_blocks import int8_block_kernel

    return int8_block_kernel(name, machine, _layout(s), s.product, digits=s.code_digits)


def _codes_by_expert(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.experts import int8_expert_kernel

    return int8_expert_kernel(name, machine, _layout(s), s.experts, s.product, digits=s.code_digits)


def _codes(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.int8 import int8_matmul_kernel

    return int8_matmul_kernel(name, machine, s.product)


def _words(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.int16 import int16_matmul_kernel

    return int16_matmul_kernel(name, machine, s.product)


def _blocks_by_expert(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.experts import expert_matmul_kernel

    return expert_matmul_kernel(name, machine, _layout(s), s.experts, s.product)


def _by_expert(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.experts import routed_matmul_kernel

    return routed_matmul_kernel(name, machine, s.experts, s.product)


def _blocks(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.quant import quant_matmul_kernel

    return quant_matmul_kernel(name, machine, _layout(s), s.product)


def _pairs(name: str, machine: Machine, s: ProductSpec, sizes: BlockSizes) -> Kernel:
    from rlx.kernels.cpu.matmul.pairs import pair_matmul_kernel

    return pair_matmul_kernel(name, machine, s.product, s.packed, sizes)


def _pair_sizes(machine: Machine, s: ProductSpec) -> list[BlockSizes]:
    from rlx.kernels.cpu.matmul.pairs import pair_block

    sums = len(s.product.bs) * s.accumulator.size_bytes
    scratch = machine.scratch_bytes if s.packed else machine.copies_bytes
    return distinct_sizes(scratch, lambda sizes: pair_block(machine, s.product, s.packed, sizes), sums)


def _windows(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.ops.window_maker import window_kernel

    return window_kernel(name, machine, s)


def _narrow(name: str, machine: Machine, s: ProductSpec) -> Kernel:
    from rlx.kernels.cpu.matmul.narrow import narrow_kernel

    return narrow_kernel(name, machine, s)


def _is_narrow(machine: Machine, s: ProductSpec) -> bool:
    from rlx.kernels.cpu.matmul.narrow import is_narrow

    return is_narrow(machine, s)


def _numbers(name: str, machine: Machine, s: ProductSpec, sizes: BlockSizes) -> Kernel:
    from rlx.kernels.cpu.matmul.matmul import matmul_kernel

    return matmul_kernel(name, machine, s.product, packed=s.packed, accumulator=s.accumulator, sizes=sizes)


def _number_sizes(machine: Machine, s: ProductSpec) -> list[BlockSizes]:
    from rlx.kernels.cpu.matmul.matmul import number_block

    sums = len(s.product.bs) * s.accumulator.size_bytes

    def block(sizes: BlockSizes) -> BlockShape:
        return number_block(machine, s.product, s.packed, s.accumulator, sizes)

    return distinct_sizes(machine.copies_bytes, block, sums)


# By how B is stored, and whether rows have their own: what is more special comes first.
PRODUCTS = (
    Schedule("windows", _windows, lambda machine, s: s.windows is not None),
    Schedule("codes by expert", _codes_by_expert, lambda machine, s: bool(s.code_digits and s.experts)),
    Schedule("codes of blocks", _codes_of_blocks, lambda machine, s: bool(s.code_digits) and s.layout is not None),
    Schedule("words", _words, lambda machine, s: s.code_digits == WORD_DIGITS),
    Schedule("codes", _codes, lambda machine, s: bool(s.code_digits)),
    Schedule("blocks by expert", _blocks_by_expert, lambda machine, s: bool(s.experts) and s.layout is not None),
    Schedule("by expert", _by_expert, lambda machine, s: bool(s.experts)),
    Schedule("blocks", _blocks, lambda machine, s: s.layout is not None),
    Schedule("pairs", _pairs, lambda machine, s: s.has_pairs, _pair_sizes),
    Schedule("few columns", _narrow, _is_narrow),
    Schedule("numbers", _numbers, sets=_number_sizes),
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
