"""Loops of small bodies, and many small functions that differ in a number: rlx and JAX, which have the same words.

while_loop   x = 0.999·x + 0.001 so many times, with a counter
scan         c = 0.5·c + x over so many numbers, all sums kept
constants    so many functions x·number + number compiled and called once; no two rounds have the same numbers
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes


class _Loops:
    """The programs, in the words of an engine."""

    def __init__(self, jit: Any, while_loop: Any, scan: Any) -> None:
        self._jit, self._while_loop, self._scan = jit, while_loop, scan
        self._numbers = itertools.count(1)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        makers = {"while_loop": self._rounds, "scan": self._steps, "constants": self._constants}
        return makers[program](sizes["count"])

    def _rounds(self, count: int) -> Callable[[], Any]:
        def body(carry: Any) -> Any:
            number, x = carry
            return number + 1, x * 0.999 + 0.001

        def whole(number: Any, x: Any) -> Any:
            return self._while_loop(lambda carry: carry[0] < count, body, (number, x))[1]

        function, first = self._jit(whole), np.int32(0)
        return lambda: self.as_numpy(function(first, np.float32(2.0)))

    def _steps(self, count: int) -> Callable[[], Any]:
        def step(carry: Any, x: Any) -> Any:
            total = carry * 0.5 + x
            return total, total

        function = self._jit(lambda xs: self._scan(step, np.float32(0), xs)[1])
        numbers = np.linspace(-1, 1, count, dtype=np.float32)
        return lambda: self.as_numpy(function(numbers))

    def _constants(self, count: int) -> Callable[[], Any]:
        x = np.linspace(-1, 1, 64, dtype=np.float32)

        def compiled_and_called() -> Any:
            first = next(self._numbers) * count
            scales = [1.0 + (first + i) / 2**20 for i in range(count)]
            return [self.as_numpy(self._jit(lambda x, s=s: x * s + s)(x)) / s for s in scales]

        return compiled_and_called

    def as_numpy(self, result: Any) -> Array:
        return np.atleast_1d(np.asarray(result, np.float32))


class RlxLoops(_Loops):
    def __init__(self, threads: int) -> None:
        import rlx
        from rlx.knobs import knobs

        knobs.set(threads=threads)
        self.version = rlx.__version__
        super().__init__(rlx.jit, rlx.while_loop, rlx.scan)


class JaxLoops(_Loops):
    def __init__(self, threads: int) -> None:
        jax: Any = importlib.import_module("jax")
        jax.config.update("jax_platforms", "cpu")
        self.version = str(jax.__version__)
        super().__init__(jax.jit, jax.lax.while_loop, jax.lax.scan)
