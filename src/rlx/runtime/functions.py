"""How traced functions are compiled: through a session, with plain arrays in and `rlx.Array` values out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.api import CompileOptions, backend_for
from rlx.ir.graph import Graph
from rlx.runtime.arrays import Array, as_array
from rlx.runtime.device import default_device
from rlx.trace.jit import Run, set_compiler


def compile_function(graph: Graph, device: str | None, donated: Sequence[str]) -> Run:
    """The compiler behind `rlx.jit` and the transforms; arguments are checked by the caller."""
    executable = backend_for(default_device() if device is None else device).compile(
        graph, CompileOptions(verify=False)
    )
    keys = [str(node.name) for node in graph.inputs]

    def run(arrays: Sequence[Any]) -> list[Array]:
        inputs = {key: np.asarray(a) for key, a in zip(keys, arrays, strict=True)}
        return [as_array(result) for result in executable.run(inputs, {})]

    return run


set_compiler(compile_function)
