"""Params as kernels read them: contiguous, aligned, with their addresses. Made when weights change, not at each run."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable, Mapping
from typing import Self

import numpy as np

from rlx.backends.api import Array, Prepared, ShortCall
from rlx.backends.memory import fit
from rlx.backends.program.program import Leaf, Program
from rlx.errors import BindingError

_serials = itertools.count()


class ProgramParams(Prepared):
    """What a program has been given. Weights that only `prepare` has read can be let go."""

    def __init__(self, program: Program, given: Mapping[str, Array]) -> None:
        super().__init__(given)
        self._read = {leaf.name for leaf in program.params}

    def without_originals(self) -> Self:
        twin = copy.copy(self)
        twin.values = {name: value for name, value in self.values.items() if name in self._read}
        return twin


class CpuParams(ProgramParams):
    """The params of a program: those `given` by the caller, and those `made` of them.

    `serial` tells one set from another, so that a context that has written the addresses of a set knows it again
    without keeping it alive. `short_calls` are functions for runs on them, by shapes of inputs.
    """

    def __init__(self, program: Program, given: Mapping[str, Array], made: Mapping[str, Array] | None = None) -> None:
        super().__init__(program, given)
        self.serial = next(_serials)
        self.short_calls: dict[Hashable, ShortCall] = {}
        values = {**given, **(made or {})}
        fitted = [fit(checked_param(program, leaf, values), leaf.align) for leaf in program.params]
        self.arrays = tuple(array for array, _ in fitted)
        self.addresses = np.array([address for _, address in fitted], np.int64)
        # Sizes of the program may depend on them; fixed shapes have been checked.
        pairs = zip(program.params, self.arrays)
        self.symbolic_shapes = tuple(array.shape for leaf, array in pairs if not leaf.shape.is_static)

    @property
    def byte_size(self) -> int:
        return sum(a.nbytes for a in self.arrays)


def checked_param(program: Program, leaf: Leaf, values: Mapping[str, Array]) -> Array:
    """The value of a param, or an error that says what was wanted and what came."""
    if leaf.name not in values:
        raise BindingError(f"@{program.name}: param {leaf.name!r} ({leaf.shape}) has no value yet")
    array = np.asarray(values[leaf.name])
    if array.dtype != leaf.dtype or (leaf.shape.is_static and array.shape != leaf.shape.dims):
        got = f"{array.dtype}{list(array.shape)}"
        raise BindingError(f"@{program.name}: param {leaf.name!r} is declared {leaf.shape}, got {got}")
    return array
