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
from rlx.kernels.specs.map_parts import MapSpec
from rlx.kernels.specs.products import ProductSpec
from rlx.ops.attn.attention import Attention
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs
from rlx.ops.lowered.expert_products import ExpertRoute
from rlx.ops.lowered.factor_steps import CholeskyFactor, SmallCholesky, SmallSolve
from rlx.ops.lowered.fourier_lines import FftLines, FftRealLines
from rlx.ops.lowered.quantized_panels import PanelGather
from rlx.ops.lowered.radix_passes import RadixPass
from rlx.ops.lowered.running_from import RunningFrom
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.top_of_parts import TopOfParts
from rlx.ops.lowered.window_gradients import PixelMatMul, WindowGradient
from rlx.ops.lowered.window_products import WindowMatMul
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.reductions import ArgReduce
from rlx.ops.reduction.sort import TopK, TopKWithValues
from rlx.ops.shape.indexing import ScatterNd


def _turned_map(name: str, machine: Machine, spec: MapSpec) -> Kernel:
    from rlx.kernels.gpu.turned_maps import turned_map_kernel

    return turned_map_kernel(name, spec)


def _is_turned_map(machine: Machine, spec: MapSpec) -> bool:
    if machine.gpu != "nvptx":
        return False
    from rlx.kernels.gpu.turned_maps import is_turned_map

    return is_turned_map(spec)


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


def _routed_tiles(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    from rlx.kernels.gpu.matmul_routed import routed_tiles_kernel

    kernel = routed_tiles_kernel(name, machine, spec.experts, spec.product, spec.accumulator)
    kernel.origin = RoutedOrigin(spec.product, spec.accumulator, spec.experts)
    return kernel


def _column_codes(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    from rlx.kernels.gpu.matmul_codes import gpu_codes_kernel

    assert spec.layout is not None
    return gpu_codes_kernel(name, machine, spec.layout, spec.product, spec.experts)


def _has_column_codes(machine: Machine, spec: ProductSpec) -> bool:
    """Stored blocks of experts, and all where compilers take their time for the many forms of the CPU's kernel."""
    is_plain = spec.layout is not None and not spec.code_digits
    return (machine.is_text or bool(spec.experts)) and is_plain and spec.accumulator is DType.F32


def _spread_product(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    kernel = iterations_as_threads(CPU_TABLE.make(name, machine, spec), machine.wave)
    if spec.layout is not None and not (spec.code_digits or spec.experts):
        from rlx.kernels.gpu.matmul_codes import CodesOrigin

        kernel.origin = CodesOrigin(spec.product, spec.accumulator, spec.layout)
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
    if machine.matrix is None or not isinstance(site.op, Attention):
        return False
    from rlx.kernels.gpu.attention_waves import is_wave_attention

    return is_wave_attention(machine, site)


def _attention_tiles(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.attention_gradient_tiles import tile_gradients_kernel
    from rlx.kernels.gpu.attention_tiles import tile_attention_kernel

    is_gradient = isinstance(site.op, AttentionGradients)
    kernel = tile_gradients_kernel(site) if is_gradient else tile_attention_kernel(site)
    kernel.origin = attention_origin(site)
    return kernel


def _is_tile_attention(machine: Machine, site: OpSite) -> bool:
    if not isinstance(site.op, Attention | AttentionWithLogs | AttentionGradients):
        return False
    from rlx.kernels.gpu.attention_tiles import has_tiles

    return has_tiles(machine, site.op, [x.shape for x in site.inputs])


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


def _running_columns(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.running_rows import running_columns_kernel

    return running_columns_kernel(site)


def _is_column_running(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, Cumulative | RunningFrom):
        return False
    from rlx.kernels.gpu.running_rows import is_column_running

    return is_column_running(site)


def _is_block_running(machine: Machine, site: OpSite) -> bool:
    if machine.gpu != "nvptx" or not isinstance(site.op, Cumulative | RunningFrom):
        return False
    from rlx.kernels.gpu.running_rows import is_block_running

    return is_block_running(site)


def _sort_blocks(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.sort_blocks import sort_blocks_kernel

    return sort_blocks_kernel(site)


def _is_block_sort(machine: Machine, site: OpSite) -> bool:
    if not machine.sorts_blocks or not isinstance(site.op, SortOrder | TopK | TopKWithValues):
        return False
    from rlx.kernels.gpu.sort_blocks import is_block_sort

    return is_block_sort(site)


def _sort_by_digits(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.sort_blocks import sort_by_digits_kernel

    return sort_by_digits_kernel(site)


def _is_by_digits(machine: Machine, site: OpSite) -> bool:
    if not machine.sorts_blocks or not isinstance(site.op, SortOrder):
        return False
    from rlx.kernels.gpu.sort_blocks import is_by_digits

    return is_by_digits(site)


def _top_blocks(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.top_blocks import top_block_kernel

    return top_block_kernel(site)


def _is_top_block(machine: Machine, site: OpSite) -> bool:
    if not machine.sorts_blocks or not isinstance(site.op, TopK | TopKWithValues | TopOfParts):
        return False
    from rlx.kernels.gpu.top_blocks import is_top_block

    return is_top_block(site)


def _search_rows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.search_rows import search_rows_kernel

    return search_rows_kernel(site)


def _is_block_search(machine: Machine, site: OpSite) -> bool:
    if not machine.sorts_blocks or not isinstance(site.op, ArgReduce):
        return False
    from rlx.kernels.gpu.search_rows import is_block_search

    return is_block_search(site)


def _radix_tiles(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.radix_tiles import radix_kernel

    return radix_kernel(site)


def _is_radix_pass(machine: Machine, site: OpSite) -> bool:
    return isinstance(site.op, RadixPass)


def _fourier_blocks(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.fourier_blocks import fourier_blocks_kernel

    return fourier_blocks_kernel(site)


def _is_block_fourier(machine: Machine, site: OpSite) -> bool:
    if not machine.shares_lines or not isinstance(site.op, FftLines | FftRealLines):
        return False
    from rlx.kernels.gpu.fourier_blocks import is_block_fourier

    return is_block_fourier(site)


def _factor_blocks(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.factor_blocks import factor_blocks_kernel

    return factor_blocks_kernel(site)


def _is_block_factor(machine: Machine, site: OpSite) -> bool:
    if not isinstance(site.op, CholeskyFactor | Lu | SmallCholesky | SmallSolve):
        return False
    from rlx.kernels.gpu.factor_blocks import is_block_factor

    return is_block_factor(machine, site)


def _gather_codes(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.gather_codes import gather_codes_kernel

    return gather_codes_kernel(site)


def _is_code_gather(machine: Machine, site: OpSite) -> bool:
    return machine.gpu == "nvptx" and isinstance(site.op, PanelGather)


def _windows(name: str, machine: Machine, site: OpSite) -> Kernel:
    from rlx.kernels.gpu.windows import window_kernel

    return window_kernel(site)


def _is_window_product(machine: Machine, site: OpSite) -> bool:
    return isinstance(site.op, WindowMatMul | WindowGradient | PixelMatMul)


def _spread_op(name: str, machine: Machine, site: OpSite) -> Kernel:
    origin = attention_origin(site)
    kernel = iterations_as_threads(CPU_TABLE.make(name, machine, site), machine.wave)
    kernel.origin = origin
    return kernel


# Rows and other maps know GPUs themselves.
TABLE = CPU_TABLE.over(
    {
        MapSpec: [Schedule("tile per block", _turned_map, _is_turned_map)],
        ProductSpec: [
            Schedule("waves", _waves, _has_waves),
            Schedule("tiles", _tiles, _is_plain, _tile_sets),
            Schedule("tiles by expert", _routed_tiles, lambda machine, spec: spec.experts > 0 and spec.layout is None),
            Schedule("thread per column", _column_codes, _has_column_codes),
            Schedule("thread per block", _spread_product),
        ],
        OpSite: [
            Schedule("waves", _attention_waves, _is_wave_attention),
            Schedule("thread per query", _attention_rows, _is_row_attention),
            Schedule("tiles", _attention_tiles, _is_tile_attention),
            Schedule("block per update", _scatter_rows, _is_row_scatter),
            Schedule("block per expert", _expert_route, _is_block_route),
            Schedule("block per row", _running_rows, _is_block_running),
            Schedule("thread per column", _running_columns, _is_column_running),
            Schedule("block per row", _sort_by_digits, _is_by_digits),
            Schedule("block per part", _top_blocks, _is_top_block),
            Schedule("block per row", _sort_blocks, _is_block_sort),
            Schedule("block per row", _search_rows, _is_block_search),
            Schedule("block per tile", _radix_tiles, _is_radix_pass),
            Schedule("block per line", _fourier_blocks, _is_block_fourier),
            Schedule("block per matrix", _factor_blocks, _is_block_factor),
            Schedule("thread per chunk", _gather_codes, _is_code_gather),
            Schedule("thread per element", _windows, _is_window_product),
            Schedule("thread per iteration", _spread_op),
        ],
    }
)
