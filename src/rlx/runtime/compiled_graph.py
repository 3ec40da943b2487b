"""`CompiledGraph`: a compiled program with its weights, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.backends.api import Executable
from rlx.errors import BindingError
from rlx.ir.binding import infer_binding
from rlx.ir.dims import Dim, bind_dim
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input, Param
from rlx.ir.outside_ids import check_ids, id_checks
from rlx.ir.shape import Shape
from rlx.runtime.arrays import Array, as_array


class CompiledGraph:
    """Set the params once, run as often as you like.

    Everything that comes from outside is checked first: a wrong name, shape or dtype raises and changes nothing.
    """

    def __init__(self, graph: Graph, executable: Executable, device: str) -> None:
        self._executable = executable
        self._device = device
        self._name = graph.name
        self._inputs = {n.op.key: n.shape for n in graph.nodes if isinstance(n.op, Input)}
        self._params = {n.op.key: n.shape for n in graph.nodes if isinstance(n.op, Param)}
        self._constraints = list(graph.constraints)
        self._id_checks = id_checks(graph)
        self._values: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def device(self) -> str:
        return self._device

    @property
    def report(self) -> str:
        """What runs where, as text."""
        return self._executable.report

    @property
    def input_types(self) -> dict[str, Shape]:
        return dict(self._inputs)

    @property
    def param_types(self) -> dict[str, Shape]:
        return dict(self._params)

    def set_param(self, name: str, value: Any) -> None:
        """Give a weight its value; floats are converted to the declared float type."""
        if name not in self._params:
            raise BindingError(self._unknown("param", name, self._params))
        declared = self._params[name]
        array = np.asarray(value)
        if array.dtype != declared.dtype.numpy:
            if not (declared.dtype.is_float and array.dtype.kind == "f"):
                raise BindingError(self._wrong_type("param", name, declared, array))
            array = array.astype(declared.dtype.numpy)
        infer_binding([(f"param {name}", declared, array.shape)])
        kept = np.array(array, order="C", copy=True)
        kept.flags.writeable = False
        self._values = {**self._values, name: kept}

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Set several weights; if one is refused, none is set."""
        before = self._values
        try:
            for name, value in values.items():
                self.set_param(name, value)
        except BindingError:
            self._values = before
            raise

    def run(self, inputs: Mapping[str, Any] | None = None, **more: Any) -> list[Array]:
        """The outputs, in order, for inputs given by name."""
        given = {**(inputs or {}), **more}
        unknown = [name for name in given if name not in self._inputs]
        if unknown:
            raise BindingError(self._unknown("input", unknown[0], self._inputs))
        missing = [name for name in self._inputs if name not in given]
        if missing:
            needed = ", ".join(f"{n!r} ({self._inputs[n]})" for n in missing)
            raise BindingError(f"@{self._name}: no value for input {needed}")
        params = self._values
        unset = [name for name in self._params if name not in params]
        if unset:
            raise BindingError(
                f"@{self._name}: param {', '.join(map(repr, unset))} has no value yet; call set_param first"
            )
        arrays = {name: self._checked(name, given[name]) for name in self._inputs}
        self._check_values(arrays, params)
        return [as_array(result) for result in self._executable.run(arrays, params)]

    def _checked(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        declared = self._inputs[name]
        array = np.asarray(value)
        if isinstance(value, bool | int | float | complex):
            array = array.astype(declared.dtype.numpy)
        if array.dtype != declared.dtype.numpy:
            raise BindingError(self._wrong_type("input", name, declared, array))
        return array

    def _check_values(self, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        leaves = [(name, shape, arrays[name].shape) for name, shape in self._inputs.items()]
        leaves += [(name, shape, params[name].shape) for name, shape in self._params.items()]
        binding = infer_binding(leaves)
        for constraint in self._constraints:
            symbols = [s for d in (constraint.left, constraint.right) if isinstance(d, Dim) for s in d.symbols]
            if all(s in binding for s in symbols):
                constraint.check(binding)
        for check in self._id_checks:
            # Native code trusts ids, so those that come from outside are looked at here, whatever the backend.
            check_ids(check.op, arrays[check.key], tuple(bind_dim(s, binding) for s in check.sizes), check.key)

    def _unknown(self, kind: str, name: str, known: Mapping[str, Shape]) -> str:
        listed = ", ".join(f"{n!r} ({s})" for n, s in known.items()) or "none"
        return f"@{self._name} has no {kind} {name!r}; it has: {listed}"

    def _wrong_type(self, kind: str, name: str, declared: Shape, array: np.ndarray[Any, Any]) -> str:
        return (
            f"@{self._name}: {kind} {name!r} is declared {declared}, got {array.dtype}{list(array.shape)}; "
            f"convert it with .astype({declared.dtype.numpy.name!r})"
        )
