"""How targets open GPUs that are given their kernels as text; nothing of it is loaded before one is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.backends.memory_space import MemorySpace


def text_gpu_space(folder: str) -> Callable[[int], MemorySpace]:
    """The memory of such a GPU; `device.py` of the target's folder opens it."""

    def open_space(index: int) -> MemorySpace:
        from rlx.backends.text_gpu.arrays import GpuSpace

        return GpuSpace.of(import_module(f"rlx.backends.{folder}.device").open_gpu(index))

    return open_space
