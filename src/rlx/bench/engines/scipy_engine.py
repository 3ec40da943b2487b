"""SciPy: Fourier transforms alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

scipy: Any = importlib.import_module("scipy")
transforms: Any = importlib.import_module("scipy.fft")


class ScipyWords:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def fft(self, x: Any, axes: int) -> Any:
        chosen = tuple(range(-axes, 0))
        transform = transforms.fftn if x.dtype.kind == "c" else transforms.rfftn
        return transform(x, axes=chosen, workers=self.threads)


class ScipyEngine:
    def __init__(self, threads: int) -> None:
        self.words: Any = ScipyWords(threads)

    @property
    def version(self) -> str:
        return str(scipy.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        inputs, weights = operands_of(program, sizes)
        operands = {**inputs, **weights}
        return lambda: PROGRAMS[program].build(self.words, operands)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result)
