"""`load`: an ONNX file as a model that runs, and whose graph and weights are those of any program."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.collector import collector_at_rest
from rlx.errors import BindingError, RlxError
from rlx.foreign_names import no_attribute
from rlx.formats.onnx import OnnxFile, OnnxTensor, open_onnx, read_onnx
from rlx.ir.binding import infer_binding
from rlx.ir.dims import Dim, bind_dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.onnx.expansion import CONTROL
from rlx.onnx.program import Builder, Held, Part, bound_sizes
from rlx.onnx.values import HOST_RULES, RULES, Array, Call, Grown, Sizes, Value
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.runtime.compiled_graph import CompiledGraph

# Parts that were built for values of a run; the oldest go first.
_MOST_KEPT = 64


def load(
    model: str | os.PathLike[str] | bytes,
    device: str = "cpu",
    *,
    sizes: Mapping[str, int] | None = None,
    precision: str | None = None,
    mmap: bool = True,
) -> OnnxModel:
    """An ONNX model of a file, or of its bytes.

    `sizes` fixes open sizes by the names they have in the file: `{"batch": 1}`. `precision` is that of `rlx.Session`.
    With `mmap=False` the file is read into memory instead of being mapped.
    """
    with collector_at_rest():
        file = read_onnx(model) if isinstance(model, bytes) else open_onnx(model, mmap)
        return OnnxModel(file, Session(device, precision=precision), sizes or {})


def supported_ops(domain: str = "") -> list[str]:
    """The names of the ops that have a rule; `domain` is that of the standard unless given."""
    return sorted(name for where, name in {*RULES, *HOST_RULES, *CONTROL} if where == domain)


class _Compiled(NamedTuple):
    part: Part
    program: CompiledGraph | None


class OnnxModel:
    """A model that was read from ONNX. It is compiled at its first run, once for all of its open sizes."""

    # Type checkers must go on to find names that do not exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Asked for what is not there; other libraries may have it under this name."""
            no_attribute("OnnxModel", name)

    def __init__(self, file: OnnxFile, session: Session, sizes: Mapping[str, int]) -> None:
        self._file, self._session = file, session
        self._builder = Builder(file, dict(sizes))
        self._first = self._builder.first()
        self._compiled: dict[Any, _Compiled] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        given = ", ".join(f"{name}: {type}" for name, type in self.inputs.items())
        later = "" if self.is_one_program else f"; divided at {self._first.rest[0]}"
        return f"OnnxModel({self._file.path!r}: {given} -> {', '.join(self.outputs)}{later})"

    @property
    def inputs(self) -> dict[str, Shape]:
        """The type of each input."""
        return dict(self._builder.inputs)

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return list(self._builder.outputs)

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        return dict(self._file.metadata)

    @property
    def is_one_program(self) -> bool:
        """Whether no shape depends on values, so that the model is a graph."""
        return not self._first.rest

    @property
    def graph(self) -> Graph:
        """The program, with a param for each large weight; see `params`."""
        self._require_one("its graph")
        return self._first.graph

    @property
    def params(self) -> dict[str, Array]:
        """The weights of `graph`, by name, as they lie in the file."""
        self._require_one("its weights")
        return dict(self._first.params)

    @property
    def report(self) -> CompileReport:
        """What became which kernel; of the first program, where there are several."""
        program = self._program((), lambda: self._first).program
        if program is None:
            raise RlxError(f"{self._file.path}: all of it is known without running anything")
        return program.report

    def compile(self) -> CompiledGraph:
        """The model as a compiled graph with its weights, to be run, profiled or saved like any other."""
        self._require_one("one compiled graph")
        program = self._session.compile(self._first.graph)
        program.set_params(self._first.params)
        return program

    def _require_one(self, what: str) -> None:
        if not self.is_one_program:
            raise RlxError(
                f"{self._file.path}: {what}: sizes after node {self._first.rest[0]} depend on values, so that this is "
                "several programs, which only run() joins"
            )

    def __call__(self, *arrays: Any) -> Any:
        """The output, or a tuple of them, for the inputs in their order."""
        if len(arrays) != len(self._builder.inputs):
            raise BindingError(
                f"{self._file.path} takes {len(self._builder.inputs)} inputs, got {len(arrays)}: {self!r}"
            )
        if any(isinstance(array, Mapping) for array in arrays):
            raise BindingError(f"{self._file.path}: a call takes arrays, in the order of the inputs; run() has names")
        results = self.run(dict(zip(self._builder.inputs, arrays)))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Any = None, *behind_names: Any, **more: Any) -> list[Any]:
        """The outputs, in their order, for inputs by name.

        `run(names, inputs)`, as sessions of ONNX Runtime are called, gives the outputs of these names, or all for None.
        """
        if not behind_names:
            return self._run(inputs, more)
        if len(behind_names) > 1:
            raise BindingError(f"{self._file.path}: run(inputs) takes a mapping from names to arrays")
        names, inputs = inputs, behind_names[0]
        names = self.outputs if names is None else list(names)
        if unknown := [name for name in names if name not in self.outputs]:
            raise BindingError(
                f"{self._file.path}: there is no output {unknown[0]!r}; it has {', '.join(self.outputs)}"
            )
        results = dict(zip(self.outputs, self._run(inputs, more)))
        return [results[name] for name in names]

    def _run(self, inputs: Any, more: Mapping[str, Any]) -> list[Any]:
        wanted = self._builder.inputs
        if inputs is not None and not isinstance(inputs, Mapping):
            name = next(iter(wanted), "x")
            raise BindingError(
                f"{self._file.path}: inputs are given by name, as run({{{name!r}: ...}}), got {type(inputs).__name__}"
            )
        given: dict[str, Any] = {**(inputs or {}), **more}
        if given.keys() != wanted.keys():
            missing, extra = [n for n in wanted if n not in given], [n for n in given if n not in wanted]
            said = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(extra)}"] * bool(extra)
            raise BindingError(f"{self._file.path}: its inputs are {', '.join(wanted)}; {'; '.join(said)}")
        key: tuple[Any, ...] = ()
        current = self._program(key, lambda: self._first)
        while True:
            part, program = current
            results = program.run({name: given[name] for name in part.inputs}) if program is not None else []
            values = dict(zip(part.outputs, results))
            if not part.rest:
                return [values.get(name, part.known.get(name)) for name in self._builder.outputs]
            key, given, env = self._after(key, part, given, values)
            current = self._program(key, lambda env=env, part=part: self._builder.part(env, self._rest_of(part)))

    @staticmethod
    def _rest_of(part: Part) -> Sequence[Any]:
        return part.rest if part.needs else part.rest[1:]

    def _program(self, key: Any, build: Any) -> _Compiled:
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                part = build()
                program = None
                if part.graph.outputs:
                    program = self._session.compile(part.graph)
                    program.set_params(part.params)
                found = self._compiled[key] = _Compiled(part, program)
                while len(self._compiled) > _MOST_KEPT:
                    del self._compiled[next(k for k in self._compiled if k != ())]
            return found

    def _after(
        self, key: tuple[Any, ...], part: Part, given: Mapping[str, Any], values: Mapping[str, Array]
    ) -> tuple[tuple[Any, ...], dict[str, Array], dict[str, Value]]:
        """The key of the next part, the arrays that it runs on, and what its names stand for."""
        leaves = [(name, type, np.shape(given[name])) for name, type in part.inputs.items()]
        binding = infer_binding(leaves)
        arrays = {name: np.asarray(value) for name, value in values.items()}
        # Sizes stay open where an array of the next part tells them.
        told = {str(d) for type in part.types.values() for d in type.dims if isinstance(d, Dim) and str(d) in binding}
        fixed = {symbol: size for symbol, size in binding.items() if symbol not in told}
        env: dict[str, Value] = {}
        for name, value in part.known.items():
            env[name] = bound_sizes(value, fixed) if isinstance(value, Sizes) else value
        for name, type in part.types.items():
            env[name] = Held(Shape([bind_dim(d, fixed) for d in type.dims], type.dtype))
        told_now: Any = ()
        if part.needs:
            array = arrays.pop(part.needs)
            env[part.needs] = array
            told_now = (array.dtype.str, array.shape, array.tobytes())
        else:
            grown = self._on_host(part, arrays)
            for number, (name, found) in enumerate(grown.items()):
                dims: list[Any] = list(found.array.shape)
                if found.axis is not None:
                    dims[found.axis] = f"found_{len(key)}_{number}" if number else f"found_{len(key)}"
                arrays[name] = found.array
                env[name] = Held(Shape(dims, DType.of(found.array.dtype)))
            told_now = tuple(str(env[name].type) for name in grown)
        key = (*key, tuple(sorted(fixed.items())), told_now)
        return key, arrays, env

    def _on_host(self, part: Part, arrays: Mapping[str, Array]) -> dict[str, Grown]:
        node = part.rest[0]
        known = {n: v.array() if isinstance(v, OnnxTensor) else v for n, v in part.known.items() if n in node.inputs}
        inputs = [None if not name else arrays.get(name, known.get(name)) for name in node.inputs]
        opset = node.opset or self._file.opsets.get(node.domain, 1)
        found = HOST_RULES[node.domain, node.op](Call(node, inputs, opset, self._file.path))
        return {name: grown for name, grown in zip(node.outputs, found) if name}
