"""The schedules of GPUs: makers that know threads and shared memory first, then those of CPUs, spread over threads."""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.schedules import TABLE as CPU_TABLE
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.schedules import Schedule
from rlx.kernels.specs.products import ProductSpec


def _spread_product(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    return iterations_as_threads(CPU_TABLE.make(name, machine, spec))


def _spread_op(name: str, machine: Machine, site: OpSite) -> Kernel:
    return iterations_as_threads(CPU_TABLE.make(name, machine, site))


# Maps and rows know GPUs themselves.
TABLE = CPU_TABLE.over(
    {
        ProductSpec: [Schedule("thread per block", _spread_product)],
        OpSite: [Schedule("thread per iteration", _spread_op)],
    }
)
