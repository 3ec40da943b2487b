"""What devices share that run generated kernels in memory of their own: weights there, and executables.

Weights are copied when they change, not at each run. A device brings its arrays, and a runner for one program.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from rlx.backends.api import Array, Executable, KernelTime, Prepared
from rlx.backends.kernel_times import timed
from rlx.backends.program.loop_plan import working_bytes
from rlx.backends.program.params import ProgramParams, checked_param
from rlx.backends.program.program import Program, Programs
from rlx.ir.lir import LirModule
from rlx.ir.shape import Size

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult


class _Placed(Protocol):
    """An array in the memory of a device."""

    shape: tuple[int, ...]

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


A = TypeVar("A", bound=_Placed)


class DeviceParams(ProgramParams, Generic[A]):
    """The params of a program: those `given` by the caller, as copies that `put` makes, and those `made` of them."""

    def __init__(
        self,
        program: Program,
        put: Callable[[Array, str], A],
        given: Mapping[str, Array],
        made: Mapping[str, A] | None = None,
        before: DeviceParams[A] | None = None,
    ) -> None:
        super().__init__(program, given)
        self.arrays: dict[str, A] = {}
        for leaf in program.params:
            if made is not None and leaf.name in made:
                self.arrays[leaf.name] = made[leaf.name]
            elif before is not None and before.values.get(leaf.name) is given.get(leaf.name, before):
                # The same array as before: its copy is there.
                self.arrays[leaf.name] = before.arrays[leaf.name]
            else:
                self.arrays[leaf.name] = put(checked_param(program, leaf, given), f"the weight {leaf.name!r}")
        self.addresses = np.array([self.arrays[leaf.name].address for leaf in program.params], np.int64)
        self.symbolic_shapes = tuple(self.arrays[p.name].shape for p in program.params if not p.shape.is_static)

    @property
    def byte_size(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


class DeviceExecutable(Executable, Generic[A]):
    """A program with its code, and those that make of its weights what can be made of them once."""

    def __init__(self, compiled: CompileResult, programs: Programs) -> None:
        self.compiled, self.programs = compiled, programs

    @abstractmethod
    def _runner(self, program: Program) -> Any:
        """What runs a program: `run(inputs, params)` with values of the device."""

    @abstractmethod
    def _put(self, array: Array, what: str) -> A:
        """A copy of an array in the memory of the device."""

    @cached_property
    def _main(self) -> Any:
        return self._runner(self.programs.main)

    @property
    def lir(self) -> LirModule:
        return self.compiled.lir

    @property
    def arena_bytes(self) -> Size:
        return working_bytes(self.programs.main)

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        return timed()

    def prepare(
        self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = ""
    ) -> DeviceParams[A]:
        given = {**(before.values if before is not None else {}), **changed}
        made: dict[str, A] = {}
        for preparation in self.programs.prepare:
            params = DeviceParams(preparation.program, self._put, given)
            made.update(zip(preparation.results, self._runner(preparation.program).run({}, params), strict=True))
        known = before if isinstance(before, DeviceParams) else None
        return DeviceParams(self.programs.main, self._put, given, made, known)

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | A], params: Mapping[str, Array] | Prepared
    ) -> list[A]:
        """The outputs where they were computed. Nothing waits for them: reading one does."""
        results: list[A] = self._main.run(inputs, params if isinstance(params, DeviceParams) else self._params(params))
        return results

    @cached_property
    def _no_params(self) -> DeviceParams[A]:
        return self.prepare({})

    def _params(self, params: Mapping[str, Array] | Prepared) -> DeviceParams[A]:
        if not params and not isinstance(params, Prepared):
            return self._no_params
        return self.prepare(params.values if isinstance(params, Prepared) else params)
