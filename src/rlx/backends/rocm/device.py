"""`AmdGpu`: one AMD GPU behind HIP, with all that `rlx.backends.cuda.device.Gpu` has."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rlx.backends.cuda.device import Gpu, GpuInfo, Gpus
from rlx.backends.cuda.driver import Driver
from rlx.backends.rocm.hip import PROCESS, HipDriver
from rlx.errors import BackendError
from rlx.kernels.machines import AMD_CHIPS


@dataclass(frozen=True)
class AmdInfo(GpuInfo):
    """What an AMD GPU is, as HIP says."""

    chip: str
    hip: str

    @property
    def arch(self) -> str:
        return self.chip

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:.1f} GiB"
        return f"{self.name}, {self.arch}, {self.multiprocessors} compute units, {memory}, {self.hip}"


class AmdGpu(Gpu):
    """A device that is in use."""

    @staticmethod
    def described(started: Driver, device: int, index: int) -> AmdInfo:
        assert isinstance(started, HipDriver)
        info = Gpu.described(started, device, index)
        known = {field.name: getattr(info, field.name) for field in fields(info)}
        return AmdInfo(**known, chip=started.arch(device), hip=started.version_name)

    def check_chip(self) -> None:
        chips = [chip.name for chip in AMD_CHIPS]
        if self.info.arch not in chips:
            raise BackendError(
                f"rocm: {self.info.name} (rocm:{self.info.index}) is a {self.info.arch}; kernels are made for "
                f"{', '.join(chips)}; use another GPU, or the device 'cpu'"
            )


_GPUS = Gpus(PROCESS, AmdGpu)


def open_amd_gpu(index: int = 0) -> Gpu:
    """The GPU of that number; `BackendError` where it does not exist, with the reason."""
    return _GPUS.open(index)


def amd_infos() -> list[GpuInfo]:
    """All AMD GPUs of this machine; none where there is no ROCm."""
    return _GPUS.infos()
