"""What a compiled program costs: memory, and the time of each of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rlx.backends.api import Executable, KernelTime
from rlx.errors import BackendError
from rlx.ir.shape import Shape, Size


class MemoryInfo(NamedTuple):
    """Bytes. `arena` (values between kernels, shared over time) and `outputs` may depend on symbolic sizes; each run
    at the same time as others has an arena of its own. `weights` are those that have been set, and once they are
    frozen what is left of them."""

    weights: int
    arena: Size
    outputs: Size

    def __str__(self) -> str:
        return f"weights {self.weights}, arena {self.arena}, outputs {self.outputs} bytes"


def memory_info(executable: Executable, weights: int, outputs: Sequence[Shape]) -> MemoryInfo:
    total: Size = 0
    for shape in outputs:
        total = total + shape.byte_size
    return MemoryInfo(weights, executable.arena_bytes, total)


class Profile(NamedTuple):
    """The kernels of a program in the order in which they run, each with the median of its times, on one thread or on
    a device, and with nothing else going on. Printed, the slowest come first."""

    program: str
    kernels: tuple[KernelTime, ...]
    where: str = "one thread"

    @property
    def seconds(self) -> float:
        return sum(k.seconds for k in self.kernels)

    def __str__(self) -> str:
        lines = [f"@{self.program}: {self.seconds * 1e6:.1f} us in {len(self.kernels)} kernels, {self.where}"]
        for kernel in sorted(self.kernels, key=lambda k: -k.seconds):
            share = kernel.seconds / self.seconds if self.seconds else 0.0
            lines.append(f"  {kernel.seconds * 1e6:10.1f} us {share:6.1%}  {kernel.kind:8} {kernel.what}")
        return "\n".join(lines)


def profile(name: str, executable: Executable, run: Callable[[], object], runs: int) -> Profile:
    """The times of the kernels of one program while `run()` runs it, once in each call."""
    if runs < 1:
        raise BackendError(f"profile: at least one run is needed, got {runs}")
    # The first run also prepares weights, which is no part of the others.
    run()
    timed: list[list[KernelTime]] = []
    for _ in range(runs):
        with executable.timed() as times:
            run()
        timed.append(times)
    medians = (k[0]._replace(seconds=float(np.median([t.seconds for t in k]))) for k in zip(*timed, strict=True))
    space = executable.space
    return Profile(name, tuple(medians), Profile._field_defaults["where"] if space is None else space.device)
