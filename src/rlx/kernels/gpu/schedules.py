"""The schedules of GPUs: makers that know threads and shared memory first, then those of CPUs, spread over threads."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.schedules import TABLE as CPU_TABLE
from rlx.kernels.gpu.attention import attention_origin
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.gpu.matmul import ProductOrigin, RoutedOrigin, TensorTiles, gpu_matmul_kernel, tile_sets
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import Schedule
from rlx.kernels.specs.products import ProductSpec
from rlx.ops.attn.attention import Attention
from rlx.ops.lowered.expert_products import ExpertRoute
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.window_products import WindowMatMul
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.sort import TopK, TopKWithValues
from rlx.ops.shape.indexing import ScatterNd


def _tiles(name: str, machine: Machine, spec: ProductSpec, tiles: TensorTiles) -> Kernel:
    limits = (machine.shared_bytes, machine.few_rows, machine.has_subgroups)
    kernel = gpu_matmul_kernel(name, spec.product, spec.accumulator, *limits)
    kernel.origin = ProductOrigin(spec.product, spec.accumulator, tiles)
    return kernel


def _tile_sets(machine: Machine, spec: ProductSpec) -> list[TensorTiles]:
    return tile_sets(machine.has_wgmma, spec.product, spec.accumulator)


def _waves(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    from rlx.kernels.gpu.matmul_waves import wave_matmul_kernel

    return wave_matmul_kernel(name, machine, spec.product, spec.accumulator)


def _has_waves(machine: Machine, spec: ProductSpec) -> bool:
    """Products that instructions for whole matrices compute; those of few rows are bound by memory."""
    if machine.matrix is None or not _is_plain(machine, spec):
        return False
    from rlx.kernels.gpu.matmul_waves import is_wave_product

    rows = spec.product.m
    is_few = isinstance(rows, int) and rows <= machine.few_rows
    return not is_few and is_wave_product(machine, spec.product, spec.accumulator)


def _is_plain(machine: Machine, spec: ProductSpec) -> bool:
    """Whether B is numbers that lie by their strides."""
    return not (spec.packed or spec.has_pairs or spec.layout or spec.code_digits or spec.experts)


def _column_codes(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    from rlx.kernels.gpu.matmul_codes import gpu_codes_kernel

    assert spec.layout is not None
    return gpu_codes_kernel(name, machine, spec.layout, spec.product, spec.experts)


def _has_column_codes(machine: Machine, spec: ProductSpec) -> bool:
    """Stored blocks where compilers take their time for the many forms of the CPU's kernel."""
    is_plain = spec.layout is not None and not spec.code_digits
    return machine.is_text and is_plain and spec.accumulator is DType.F32


def _spread_product(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    kernel = iterations_as_threads(CPU_TABLE.make(name, machine, spec), machine.wave)
    if spec.layout is not None and not (spec.code_digits or spec.experts):
        from rlx.kernels.gpu.matmul_codes import CodesOrigin

        kernel.origin = CodesOrigin(spec.product, spec.accumulator, spec.layout)
    if spec.experts and spec.layout is None:
        kernel.origin = RoutedOrigin(spec.product, spec.accumulator, spec.experts)
    return kernel


def _attention_rows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.attention_rows import attention_rows_kernel

    return attention_rows_kernel(site)


def _is_row_attention(machine: Machine, site: OpSite) -> bool:
    return machine.is_text and type(site.op) is Attention


def _attention_waves(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.attention_waves import wave_attention_kernel

    kernel = wave_attention_kernel(machine, site)
    kernel.origin = attention_origin(site)
    return kernel


def _is_wave_attention(machine: Machine, site: OpSite) -> bool:
    if machine.matrix is None or machine.matrix.is_by_memory or not isinstance(site.op, Attention):
        return False
    from rlx.kernels.gpu.attention_waves import is_wave_attention

    return is_wave_attention(machine, site)


def _scatter_rows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.scatter_rows import scatter_rows_kernel

    return scatter_rows_kernel(site)


def _is_row_scatter(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, ScatterNd):
        return False
    from rlx.kernels.gpu.scatter_rows import is_row_scatter

    return is_row_scatter(site)


def _expert_route(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.expert_route import expert_route_kernel

    return expert_route_kernel(site)


def _is_block_route(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, ExpertRoute):
        return False
    from rlx.kernels.gpu.expert_route import is_block_route

    return is_block_route(site)


def _running_rows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.running_rows import running_rows_kernel

    return running_rows_kernel(site)


def _is_block_running(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, Cumulative):
        return False
    from rlx.kernels.gpu.running_rows import is_block_running

    return is_block_running(site)


def _sort_blocks(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.sort_blocks import sort_blocks_kernel

    return sort_blocks_kernel(site)


def _is_block_sort(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, SortOrder | TopK | TopKWithValues):
        return False
    from rlx.kernels.gpu.sort_blocks import is_block_sort

    return is_block_sort(site)


def _windows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.windows import window_kernel

    return window_kernel(site)


def _spread_op(name: str, machine: Machine, site: OpSite) -> Kernel:
    origin = attention_origin(site)
    kernel = iterations_as_threads(CPU_TABLE.make(name, machine, site), machine.wave)
    kernel.origin = origin
    return kernel


# Maps and rows know GPUs themselves.
TABLE = CPU_TABLE.over(
    {
        ProductSpec: [
            Schedule("waves", _waves, _has_waves),
            Schedule("tiles", _tiles, _is_plain, _tile_sets),
            Schedule("thread per column", _column_codes, _has_column_codes),
            Schedule("thread per block", _spread_product),
        ],
        OpSite: [
            Schedule("waves", _attention_waves, _is_wave_attention),
            Schedule("thread per query", _attention_rows, _is_row_attention),
            Schedule("block per update", _scatter_rows, _is_row_scatter),
            Schedule("block per expert", _expert_route, _is_block_route),
            Schedule("block per row", _running_rows, _is_block_running),
            Schedule("block per row", _sort_blocks, _is_block_sort),
            Schedule("thread per element", _windows, lambda machine, site: isinstance(site.op, WindowMatMul)),
            Schedule("thread per iteration", _spread_op),
        ],
    }
)
