"""What the inner loop of a kernel is made of, counted in the assembly that LLVM writes for an AMD GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_MATRIX = ("v_mfma", "v_wmma", "v_swmmac")
_MEMORY = ("ds_", "global_", "buffer_", "flat_", "scratch_")
# They order memory and move nothing.
_ORDER = ("buffer_gl", "buffer_inv", "buffer_wb", "global_inv", "global_wb")


class Mix(NamedTuple):
    """Instructions of a loop: those that multiply matrices, all of the vector units, and those that move memory."""

    matrix: int
    vector: int
    memory: int

    @property
    def share(self) -> float:
        """How much of what the vector units issue are products of matrices."""
        return self.matrix / self.vector if self.vector else 0.0


def inner_loop(assembly: str) -> Mix:
    """The loop that multiplies most; nothing but zeros where no loop multiplies matrices.

    >>> inner_loop(".LBB0_1:\\n v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]\\n s_cbranch_scc1 .LBB0_1\\n")
    Mix(matrix=1, vector=1, memory=0)
    """
    found = [mix for mix in map(_counted, _loops(assembly)) if mix.matrix]
    # The innermost of those that have the same products around each other.
    return max(found, key=lambda mix: (mix.matrix, -mix.vector), default=Mix(0, 0, 0))


def _loops(assembly: str) -> Iterator[list[str]]:
    """The lines between each label and a branch back to it."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if re.fullmatch(r"\.LBB\w+:", line)}
    for at, line in enumerate(lines):
        branch = re.match(r"s_c?branch\w*\s+(\.LBB\w+)", line)
        if branch and labels.get(branch[1], at) < at:
            yield lines[labels[branch[1]] : at]


def _counted(lines: list[str]) -> Mix:
    matrix = vector = memory = 0
    for line in lines:
        matrix += line.startswith(_MATRIX)
        vector += line.startswith("v_")
        memory += line.startswith(_MEMORY) and not line.startswith(_ORDER)
    return Mix(matrix, vector, memory)
