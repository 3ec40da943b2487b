"""Programs handed to MLX: Apple's GPUs, and the CPUs that it is built for.

A program is bound to sizes, taken apart into ops that have a rule (`lowering`), and told to MLX op by op (`walk` and
the modules `rules_*`): at every run, or once for `mlx.compile` (`executable`). MLX keeps the memory (`arrays`).
"""

from __future__ import annotations

from rlx.backends.api import Backend, CompileOptions, Executable
from rlx.backends.mlx.arrays import open_space
from rlx.backends.mlx.executable import MlxExecutable
from rlx.backends.mlx.lowering import LOWERING
from rlx.ir.graph import Graph
from rlx.ir.verify import check


class MlxBackend(Backend):
    """`Session("mlx")`."""

    name = "mlx"

    def supported_ops(self) -> frozenset[str]:
        return LOWERING.claimed_ops()

    def compile(self, graph: Graph, options: CompileOptions | None = None) -> Executable:
        options = CompileOptions() if options is None else options
        if options.verify:
            check(graph)
        prepared = LOWERING.require_all(graph, options)
        return MlxExecutable(prepared.copy().freeze(), open_space())
