"""`CompiledGraph`: a compiled program with its weights, ready to run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.backends.api import Executable, Prepared
from rlx.backends.memory import aligned_copy
from rlx.errors import BindingError
from rlx.ir.binding import infer_binding
from rlx.ir.dims import Dim, bind_dim
from rlx.ir.graph import Graph
from rlx.ir.leaves import Input, Param
from rlx.ir.outside_ids import check_ids, id_checks
from rlx.ir.shape import Shape
from rlx.runtime.arrays import Array, as_array

if TYPE_CHECKING:
    from rlx.compile.report import CompileReport


# Combinations of input shapes whose sizes are remembered as checked.
_REMEMBERED = 1024


class _Ready(NamedTuple):
    """What follows from one set of weights: the form in which the program reads them, and the sizes of the symbols for
    input shapes that have been checked against them."""

    values: Mapping[str, np.ndarray[Any, Any]]
    prepared: Prepared
    bindings: dict[tuple[tuple[int, ...], ...], Mapping[str, int]]


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
        self._dtypes = {name: shape.dtype.numpy for name, shape in self._inputs.items()}
        # Replaced as wholes, so that a run sees one set of weights whatever other threads set meanwhile.
        self._values: Mapping[str, np.ndarray[Any, Any]] = {}
        self._ready: _Ready | None = None
        self._setting = threading.Lock()

    @property
    def device(self) -> str:
        return self._device

    @property
    def report(self) -> CompileReport:
        """What runs where: `print` it, or see more of it with `.json()` and `.html(path)`."""
        return self._executable.report

    @property
    def input_types(self) -> dict[str, Shape]:
        return dict(self._inputs)

    @property
    def param_types(self) -> dict[str, Shape]:
        return dict(self._params)

    def set_param(self, name: str, value: Any) -> None:
        """Give a weight its value; floats are converted to the declared float type."""
        self.set_params({name: value})

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Set several weights at once: if one is refused, none is set, and no run sees only some of them."""
        accepted = {name: self._accepted(name, value) for name, value in values.items()}
        with self._setting:
            self._values = {**self._values, **accepted}

    def _accepted(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        if name not in self._params:
            raise BindingError(self._unknown("param", name, self._params))
        declared = self._params[name]
        array = np.asarray(value)
        if array.dtype != declared.dtype.numpy:
            if not (declared.dtype.is_float and array.dtype.kind == "f"):
                raise BindingError(self._wrong_type("param", name, declared, array))
            array = array.astype(declared.dtype.numpy)
        infer_binding([(f"param {name}", declared, array.shape)])
        kept = aligned_copy(array)
        kept.flags.writeable = False
        return kept

    def run(self, inputs: Mapping[str, Any] | None = None, **more: Any) -> list[Array]:
        """The outputs, in order, for inputs given by name."""
        given = {**(inputs or {}), **more}
        if given.keys() != self._inputs.keys():
            raise BindingError(self._wrong_names(given))
        arrays = {name: self._checked(name, given[name], dtype) for name, dtype in self._dtypes.items()}
        values, ready = self._values, self._ready
        if ready is None or ready.values is not values:
            ready = self._prepare(values)
        shapes = tuple([array.shape for array in arrays.values()])
        binding = ready.bindings.get(shapes)
        if binding is None:
            binding = self._bind(shapes, ready)
        for check in self._id_checks:
            # Native code trusts ids, so those that come from outside are looked at here, whatever the backend.
            check_ids(check.op, arrays[check.key], tuple(bind_dim(s, binding) for s in check.sizes), check.key)
        return [as_array(result) for result in self._executable.run(arrays, ready.prepared)]

    def _prepare(self, values: Mapping[str, np.ndarray[Any, Any]]) -> _Ready:
        unset = [name for name in self._params if name not in values]
        if unset:
            raise BindingError(
                f"@{self._name}: param {', '.join(map(repr, unset))} has no value yet; call set_param first"
            )
        before = self._ready.prepared if self._ready is not None else None
        known = before.values if before is not None else {}
        changed = {name: value for name, value in values.items() if known.get(name) is not value}
        self._ready = ready = _Ready(values, self._executable.prepare(changed, before), {})
        return ready

    def _checked(self, name: str, value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        array = np.asarray(value)
        if array.dtype == dtype:
            return array
        if isinstance(value, bool | int | float | complex):
            return array.astype(dtype)
        raise BindingError(self._wrong_type("input", name, self._inputs[name], array))

    def _bind(self, shapes: tuple[tuple[int, ...], ...], ready: _Ready) -> Mapping[str, int]:
        """The sizes of the symbols, with everything checked that the program says of them."""
        leaves = [(name, shape, actual) for (name, shape), actual in zip(self._inputs.items(), shapes)]
        leaves += [(name, shape, ready.values[name].shape) for name, shape in self._params.items()]
        binding = infer_binding(leaves)
        for constraint in self._constraints:
            symbols = [s for d in (constraint.left, constraint.right) if isinstance(d, Dim) for s in d.symbols]
            if all(s in binding for s in symbols):
                constraint.check(binding)
        if len(ready.bindings) >= _REMEMBERED:
            ready.bindings.clear()
        ready.bindings[shapes] = binding
        return binding

    def _wrong_names(self, given: Mapping[str, Any]) -> str:
        unknown = [name for name in given if name not in self._inputs]
        if unknown:
            return self._unknown("input", unknown[0], self._inputs)
        needed = ", ".join(f"{name!r} ({shape})" for name, shape in self._inputs.items() if name not in given)
        return f"@{self._name}: no value for input {needed}"

    def _unknown(self, kind: str, name: str, known: Mapping[str, Shape]) -> str:
        listed = ", ".join(f"{n!r} ({s})" for n, s in known.items()) or "none"
        return f"@{self._name} has no {kind} {name!r}; it has: {listed}"

    def _wrong_type(self, kind: str, name: str, declared: Shape, array: np.ndarray[Any, Any]) -> str:
        return (
            f"@{self._name}: {kind} {name!r} is declared {declared}, got {array.dtype}{list(array.shape)}; "
            f"convert it with .astype({declared.dtype.numpy.name!r})"
        )
