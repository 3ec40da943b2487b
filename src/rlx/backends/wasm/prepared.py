"""The params of a program that is written to a file: what is made of weights once is made here, by the kernels of this
machine; the same arrays come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlx.backends.cpu.preparer import Preparer
from rlx.backends.memory import Array
from rlx.backends.program.params import CpuParams
from rlx.backends.program.program import Program, host_loading, preparations

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult


def arrays_of(program: Program, compiled: CompileResult, params: Mapping[str, Array]) -> Sequence[Array]:
    """The params of the main program of `compiled`, in order."""
    made: dict[str, Array] = {}
    for preparation in preparations(compiled, host_loading()):
        results = Preparer(preparation.program).run({}, CpuParams(preparation.program, params))
        made.update(zip(preparation.results, results, strict=True))
    return CpuParams(program, params, made).arrays
