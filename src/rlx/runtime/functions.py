"""How traced functions are compiled: through a session, with plain arrays in and `rlx.Array` values out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.api import CompileOptions
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.graph import Graph
from rlx.ir.outside_ids import check_ids, id_checks
from rlx.runtime.arrays import Array, as_array, given_away
from rlx.runtime.compile_cache import compiled_program
from rlx.runtime.device import default_device
from rlx.trace.jit import Run, set_compiler


def compile_function(graph: Graph, device: str | None, donated: Sequence[str]) -> Run:
    """The compiler behind `rlx.jit` and the transforms; arguments are checked by the caller."""
    executable = compiled_program(graph, default_device() if device is None else device, CompileOptions(verify=False))
    keys = [str(node.name) for node in graph.inputs]
    overwritten = frozenset(graph.aliases.values())
    converters = [given_away if key in overwritten else np.asarray for key in keys]
    checks = id_checks(graph)

    def run(arrays: Sequence[Any]) -> list[Array]:
        inputs = {key: convert(a) for key, convert, a in zip(keys, converters, arrays, strict=True)}
        if checks:
            binding = infer_binding((key, n.shape, inputs[key].shape) for key, n in zip(keys, graph.inputs))
            for check in checks:
                check_ids(check.op, inputs[check.key], tuple(bind_dim(s, binding) for s in check.sizes), check.key)
        return [as_array(result) for result in executable.run(inputs, {})]

    return run


set_compiler(compile_function)
