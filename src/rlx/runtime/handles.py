"""Values that stay with a compiled program between runs: inputs that need not be given again, outputs that are kept.

On a CPU all memory is within reach of the program, so what other devices hold apart (`gpu` handles) is the same here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.runtime.arrays import Array

# Bound by the user: read only, so that a program which overwrites an input copies it first.
Plain = np.ndarray[Any, np.dtype[Any]]


class Handles(NamedTuple):
    """What is bound, at one moment; replaced as a whole when something changes.

    `inputs` are used where a run is not given another value. `outputs` holds output i of the last run as `kept[i]`.
    `feeds` names the inputs that take over an output after every run.
    """

    inputs: Mapping[str, Plain | Array] = {}
    kept: Mapping[int, Array] = {}
    feeds: Mapping[str, int] = {}

    def with_input(self, name: str, value: Plain | Array) -> Handles:
        return self._replace(inputs={**self.inputs, name: value})

    def with_output(self, number: int, value: Array) -> Handles:
        return self._replace(kept={**self.kept, number: value})

    def with_feed(self, name: str, number: int) -> Handles:
        return self._replace(feeds={**self.feeds, name: number})

    def after(self, outputs: Sequence[Array]) -> Handles:
        """The handles after a run. Outputs are never written to, so nothing is copied."""
        kept = {number: outputs[number] for number in self.kept}
        fed = {name: outputs[number] for name, number in self.feeds.items()}
        return self._replace(inputs={**self.inputs, **fed}, kept=kept)


def output_number(name: str, count: int) -> int | None:
    """i for `out{i}`, if there is such an output.

    >>> output_number("out1", 2), output_number("out2", 2), output_number("other", 2)
    (1, None, None)
    """
    digits = name.removeprefix("out")
    if name == digits or not digits.isdecimal() or int(digits) >= count:
        return None
    return int(digits)
