"""`MlxValue` and `MlxSpace`: values in the memory of MLX, which all of its devices share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace
from rlx.backends.mlx.device import has_gpu, in_stream, mx, require_installed
from rlx.backends.mlx.dtypes import mlx_type, to_mlx, to_numpy
from rlx.backends.mlx.walk import Check
from rlx.errors import BackendError
from rlx.ir.dtype import DType


class Outcome:
    """How a run ended: whether all that it checks holds."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = checks

    def check(self) -> None:
        for holds, error in self._checks:
            if not holds.item():
                raise error


class MlxValue(DeviceValue):
    """An array of MLX that is computed, or on its way, and how the run ends that makes it."""

    def __init__(
        self,
        space: MlxSpace,
        array: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        outcome: Outcome | None = None,
    ) -> None:
        # The shape and type that the array stands for; see `dtypes`.
        self._space, self.array, self.shape, self.dtype, self._outcome = space, array, shape, dtype, outcome

    @property
    def space(self) -> MlxSpace:
        return self._space

    def wait(self) -> None:
        with in_stream():
            mx.eval(self.array)
            if self._outcome is not None:
                self._outcome.check()

    def numpy(self) -> HostArray:
        self.wait()
        with in_stream():
            return to_numpy(self.array, DType.of(self.dtype), self.shape)

    def _shared(self) -> Any:
        self.wait()
        dtype = DType.of(self.dtype)
        if dtype.is_storage:
            raise BackendError(f"MLX holds {dtype} as something else, and does not share it; copy it with np.asarray")
        return self.array

    def __dlpack__(self, **options: Any) -> Any:
        return self._shared().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.array.__dlpack_device__()
        return int(kind), int(number)


class MlxSpace(MemorySpace):
    """The memory that MLX computes in."""

    device = "mlx"

    @property
    def about(self) -> str:
        """What computes: a GPU, or the CPU."""
        return "MLX's GPU" if has_gpu() else "MLX's CPU"

    def put(self, array: HostArray) -> MlxValue:
        with in_stream():
            made = to_mlx(array)
            mx.eval(made)
        return MlxValue(self, made, array.shape, array.dtype)

    def adopt(self, value: Any) -> MlxValue | None:
        if type(value).__module__.split(".")[0] != "mlx":
            return None
        found = next(
            (d for d in DType if not d.is_storage and d is not DType.C128 and mlx_type(d) == value.dtype), None
        )
        if found is None:
            return None
        mx.async_eval(value)
        return MlxValue(self, value, tuple(value.shape), found.numpy)

    def copy(self, value: DeviceValue) -> MlxValue:
        assert isinstance(value, MlxValue)
        # Nothing is written in its place, so that the array itself will do.
        return MlxValue(self, value.array, value.shape, value.dtype)


@cache
def open_space() -> MlxSpace:
    """The same object for all who ask."""
    require_installed()
    return MlxSpace()
