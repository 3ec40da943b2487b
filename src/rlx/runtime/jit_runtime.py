"""How traced functions are compiled: through a session, with plain arrays in and `rlx.Array` values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.api import CompileOptions, Executable, Guards, Prepared, ShortCall
from rlx.backends.program.signature import Signature
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.graph import Graph
from rlx.ir.index_checks import QuickChecks, check_ids, id_checks
from rlx.runtime.arrays import Array, as_array, given_away
from rlx.runtime.compile_cache import compiled_program
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device import default_device
from rlx.runtime.device_arrays import DeviceArray, common_device, results_of, values_for
from rlx.runtime.donation import Back, Lending, Shapes
from rlx.trace.jit import Run, add_array, set_compiled_graph, set_compiler, set_device_finder


def compile_function(graph: Graph, device: str | None, donated: Sequence[str]) -> Run:
    """The compiler behind `rlx.jit` and the transforms; arguments are checked by the caller."""
    executable = compiled_program(graph, default_device() if device is None else device, CompileOptions(verify=False))
    if executable.space is not None:
        return _device_runner(graph, executable)
    signature = Signature.of(graph)
    checks = signature.id_checks
    lending = Lending(signature, executable, [check.key for check in checks])
    overwritten = frozenset(graph.aliases.values())
    leaves = graph.inputs
    keys = [str(node.name) for node in leaves]
    converters = {key: given_away if key in overwritten else np.asarray for key in keys}
    what = f"@{graph.name}"
    others = [key for key in keys if key not in overwritten]
    # A plain run is one of arrays that need no second look.
    quick = None if overwritten else QuickChecks.of(checks, keys)
    no_params = executable.prepare({})

    def check_all(inputs: Mapping[str, np.ndarray[Any, Any]], shapes: Shapes) -> None:
        binding = infer_binding((key, node.shape, dims) for key, node, dims in zip(keys, leaves, shapes))
        for check in checks:
            check_ids(check.op, inputs[check.key], tuple(bind_dim(s, binding) for s in check.sizes), check.key)

    def run_again(back: Back, given: Mapping[str, Any]) -> list[Array] | None:
        inputs = {key: np.asarray(given[key]) for key in others}
        if checks:
            check_all(inputs, lending.shapes(back, inputs))
        elsewhere = executable.run_held(back.loan.held, inputs, no_params)
        return None if elsewhere is None else lending.outputs_again(back, elsewhere)

    def run(arrays: Sequence[Any]) -> list[Array]:
        is_plain = quick is not None and quick.pass_(arrays)
        results = executable.run_plain(arrays, no_params) if is_plain else None
        if results is not None:
            return [as_array(result) for result in results]
        given = dict(zip(keys, arrays, strict=True))
        back = lending.known(given)
        outputs = None if back is None else run_again(back, given)
        if outputs is not None:
            return outputs
        if any(isinstance(array, DeviceArray) for array in arrays):
            values_for(executable, given, what)  # refuses them: nothing is copied to the host unasked
        inputs = {key: converters[key](given[key]) for key in keys}
        if checks:
            check_all(inputs, tuple([array.shape for array in inputs.values()]))
        return lending.outputs(executable.run(inputs, no_params))

    if quick is None or not executable.has_short_calls:
        return run
    return _ShortRun(run, executable, no_params, Array, quick)


class _ShortRun:
    """Runs of a program that has short calls for some sizes, from and to arrays of a class."""

    def __init__(
        self, run: Run, executable: Executable, no_params: Prepared, kind: type, checks: QuickChecks | None = None
    ) -> None:
        self._run, self._executable, self._no_params = run, executable, no_params
        self._kind, self._checks = kind, checks

    def __call__(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return self._run(arrays)

    def short_call(self, guards: Guards) -> ShortCall | None:
        """What does the same for arrays such as those of the last run, if there is such."""
        call = self._executable.short_call(self._no_params, self._kind, guards)
        return call if call is None or self._checks is None else self._checks.before(call)


def _device_runner(graph: Graph, executable: Executable) -> Run:
    """Runs of a program whose memory is not the host's. Ids that live there are not looked at: kernels clamp them."""
    keys = [str(node.name) for node in graph.inputs]
    checks, leaves = id_checks(graph), graph.inputs
    what = f"@{graph.name}"
    no_params = executable.prepare({})

    def run(arrays: Sequence[Any]) -> list[Any]:
        # NumPy's numbers, such as np.int32(2), are arrays for no device.
        values: Iterator[Any] = (np.asarray(a) if isinstance(a, np.generic) else a for a in arrays)
        given = dict(zip(keys, values, strict=True))
        if checks:
            binding = infer_binding((key, node.shape, given[key].shape) for key, node in zip(keys, leaves))
            for check in checks:
                if isinstance(given[check.key], np.ndarray):
                    sizes = tuple(bind_dim(s, binding) for s in check.sizes)
                    check_ids(check.op, given[check.key], sizes, check.key)
        results = executable.run(values_for(executable, given, what), no_params)
        for key in graph.aliases.values():
            if isinstance(given[key], DeviceArray):
                given[key].given_away()
        return results_of(executable, results)

    return _ShortRun(run, executable, no_params, DeviceArray) if executable.has_short_calls else run


def graph_of_function(graph: Graph, device: str | None) -> CompiledGraph:
    """A traced function as `Session.compile` would give it; the program is the one that runs."""
    where = default_device() if device is None else device
    return CompiledGraph(graph, compiled_program(graph, where, CompileOptions(verify=False)), where)


set_compiler(compile_function)
add_array(Array)
add_array(DeviceArray, has_device=True)
set_compiled_graph(graph_of_function)
set_device_finder(common_device)
