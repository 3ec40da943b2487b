"""Kernels as code for WebGPU: loop IR in words of 32 bits. Text is made of it when it is known how memory is bound."""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np

from rlx.backends.text_gpu.code import TextCode, TextLoader
from rlx.kernels.emit.wgsl_emit import argument_words, scratch_words, table_words
from rlx.kernels.ir.loop_ir import Kernel, Space
from rlx.kernels.legalize import KernelRefused, legalize
from rlx.kernels.machines import Machine
from rlx.kernels.words.rounds import in_long_rounds, rounds_of
from rlx.kernels.words.words import in_words

# What every implementation of WebGPU has: invocations of a workgroup, and bytes that they share.
MOST_THREADS, MOST_SHARED = 256, 16384
# Combinations of sizes of which it is kept how often loops go round.
KEPT_SIZES = 256


class WgslCode(TextCode):
    """A kernel in words."""

    def __init__(self, kernel: Kernel, key: str, machine: Machine) -> None:
        super().__init__(kernel, key)
        self._kernel, self._machine = kernel, machine
        self._rounds: dict[tuple[int, ...], int] = {}
        self.words = self._in_words(trusts_alignment=True)
        self.argument_words, self.scratch_words = argument_words(self.words), scratch_words(self.words)
        self.tables = np.array(table_words(self.words), np.uint32)
        shared = sum(4 * (a.size or 0) for a in self.words.arrays if a.space is Space.SHARED)
        if self.threads > MOST_THREADS or shared > MOST_SHARED:
            raise KernelRefused(
                f"kernel {kernel.name}: {self.threads} threads with {shared} bytes between them; WebGPU promises "
                f"{MOST_THREADS} and {MOST_SHARED}; use smaller sizes, or the device cpu"
            )

    def rounds(self, sizes: tuple[int, ...]) -> int:
        """How many rounds of its loops an invocation goes through."""
        if sizes not in self._rounds:
            if len(self._rounds) == KEPT_SIZES:
                self._rounds.clear()
            self._rounds[sizes] = rounds_of(self._kernel, sizes)
        return self._rounds[sizes]

    @cached_property
    def in_long_rounds(self) -> WgslCode:
        """The same with fewer rounds, for drivers that stop after so many."""
        return WgslCode(in_long_rounds(self._kernel), f"{self.key}, long rounds", self._machine)

    @cached_property
    def anywhere(self) -> Kernel:
        """The same for elements that do not begin where a word does."""
        return self._in_words(trusts_alignment=False)

    def _in_words(self, trusts_alignment: bool) -> Kernel:
        return in_words(legalize(self._kernel, self._machine), trusts_alignment, self._machine)


@cache
def loader(machine: Machine) -> TextLoader:
    """Of programs for WebGPU, on adapters that have what a machine has."""
    return TextLoader(machine, lambda kernel, key: WgslCode(kernel, key, machine))
