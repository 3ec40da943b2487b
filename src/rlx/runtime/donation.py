"""Loans: arrays that go round. A program returns an output in the memory of the input that it is stored over; if all
such arrays come back as they are, what was found out about them the last time still holds.

A decoder gets its caches back at every step. Looking at each again, and making new arrays of the same memory, costs
more than some of its layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import Executable
from rlx.backends.donation import Held
from rlx.backends.program.signature import Signature
from rlx.runtime.arrays import Array, as_array

Shapes = tuple[tuple[int, ...], ...]


class Loan(NamedTuple):
    """What is known of the arrays of one run. Each of them has the loan and its place in it, which no other array has;
    the loan does not hold the arrays, so that each is freed when nobody uses it."""

    lender: Executable
    places: list[object]
    held: Held
    shapes: dict[str, tuple[int, ...]]


class Back(NamedTuple):
    """The arrays of a loan that came back, in the order of their places."""

    loan: Loan
    arrays: list[Array]


class Lending:
    """Gives loans for the arrays that an executable returns in the memory of inputs, and knows them when they come
    back."""

    def __init__(self, program: Signature, executable: Executable, looked_at: Sequence[str] = ()) -> None:
        """There are no loans if an input that is overwritten is one of those whose values are `looked_at`."""
        self._executable = executable
        self.names = list(program.inputs)
        homes = {key: output for output, key in program.aliases.items()}
        is_possible = len(homes) == len(program.aliases) and not homes.keys() & {*looked_at}
        self._homes = homes if is_possible else {}
        self._keys = list(self._homes)
        # Outputs that lie elsewhere come first, then the arrays that came back: the place of each output among them.
        elsewhere = [o for o in range(len(program.outputs)) if o not in self._homes.values()]
        places = {output: number for number, output in enumerate([*elsewhere, *self._homes.values()])}
        self._order = [places[output] for output in range(len(program.outputs))]

    def known(self, given: Mapping[str, Any]) -> Back | None:
        """The arrays for overwritten inputs, if all are of one loan of this executable, each in its own place."""
        if not self._keys or self._keys[0] not in given:
            return None
        loan: Loan | None = getattr(given[self._keys[0]], "_loan", None)
        if loan is None or loan.lender is not self._executable:
            return None
        try:
            arrays = [given[key] for key in self._keys]
            return Back(loan, arrays) if [a._place for a in arrays] == loan.places else None
        except (AttributeError, KeyError):
            return None

    def shapes(self, back: Back, others: Mapping[str, np.ndarray[Any, Any]]) -> Shapes:
        """Of all inputs, in order."""
        lent = back.loan.shapes
        return tuple([lent[name] if name in lent else others[name].shape for name in self.names])

    def outputs_again(self, back: Back, elsewhere: Sequence[np.ndarray[Any, Any]]) -> list[Array]:
        """All outputs of a run: the arrays that came back, which it has stored over, and its other results."""
        found = [*[as_array(result) for result in elsewhere], *back.arrays]
        return [found[number] for number in self._order]

    def outputs(self, results: Sequence[np.ndarray[Any, Any]]) -> list[Array]:
        """Results of a run as arrays, with a loan for those that may come back."""
        outputs = [as_array(result) for result in results]
        held = self._executable.hold(results, self._homes) if self._keys else None
        if held is None:
            return outputs
        shapes = {key: results[output].shape for key, output in self._homes.items()}
        loan = Loan(self._executable, [object() for _ in self._keys], held, shapes)
        for output, place in zip(self._homes.values(), loan.places):
            outputs[output]._loan, outputs[output]._place = loan, place
        return outputs
