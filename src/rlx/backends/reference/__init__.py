"""The reference: every graph, by the definition of its ops. The oracle of all others; never optimised."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.api import Array
from rlx.backends.engine import Engine
from rlx.ir.graph import Node
from rlx.ir.interpret import evaluate


class ReferenceEngine(Engine[Array]):
    """Values are arrays, and `emit` is the definition of the op."""

    name = "reference"
    where = "NumPy, by definition"

    def constant(self, array: Array) -> Array:
        return array

    def emit(self, node: Node, operands: Sequence[Array]) -> Sequence[Array]:
        return evaluate(node, operands)

    def fetch(self, value: Array) -> Array:
        # A result may be an input itself or a view of one; the caller's arrays must not be shared.
        return value.copy()
