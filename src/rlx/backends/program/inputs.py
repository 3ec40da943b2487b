"""What a run is given: sizes that follow from it, and what is said of an input that does not fit. All devices that run
programs have the same."""

from __future__ import annotations

from typing import Any, TypeAlias

from rlx.backends.program.program import Leaf, Program
from rlx.errors import BindingError
from rlx.ir.binding import infer_binding
from rlx.ir.dim_binding import DimBinding

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def bound_sizes(program: Program, inputs: Shapes, params: Shapes) -> DimBinding:
    """The sizes for shapes of inputs and of those params that have symbolic sizes; an error if they do not fit."""
    leaves = [*program.inputs, *(p for p in program.params if not p.shape.is_static)]
    given = zip(leaves, (*inputs, *params), strict=True)
    binding = infer_binding((leaf.name, leaf.shape, dims) for leaf, dims in given)
    for constraint in program.constraints:
        if constraint.symbols <= binding.keys():
            constraint.check(binding)
    return binding


def wrong_input(program: Program, leaf: Leaf, given: Any) -> BindingError:
    """The error about an input that is missing or of another type."""
    if given is None:
        return BindingError(f"@{program.name}: no value for input {leaf.name!r} ({leaf.shape})")
    is_array = hasattr(given, "dtype") and hasattr(given, "shape")
    got = f"{given.dtype}{list(given.shape)}" if is_array else type(given).__name__
    return BindingError(f"@{program.name}: input {leaf.name!r} is declared {leaf.shape}, got {got}")
