"""Programs as files for CPUs like this one: what `rlx export cpu` and `rlx compile` write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.cpu.saved_programs import WEIGHTS, weights_file
from rlx.backends.export import Array, Exported, Exporter
from rlx.backends.program.signature import Signature
from rlx.ir.graph import Graph


class CpuExporter(Exporter):
    """A program with its machine code and weights in one file, for `rlx.load_compiled`."""

    options: ClassVar[Mapping[str, str]] = {
        "weights": f"where the weights go: {', '.join(WEIGHTS)} (inside by default)"
    }

    def needs_weights(self, options: Mapping[str, str]) -> bool:
        return options.get("weights") != "none"

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        weights = self.checked(options).get("weights", "inside")
        executable = CpuBackend().compile(graph, CompileOptions())
        assert isinstance(executable, CpuExecutable)
        prepared = None if weights == "none" else executable.prepare(params)
        executable.save(str(out), Signature.of(graph), prepared, weights)
        files = (out, weights_file(out)) if weights == "beside" else (out,)
        size = sum(f.stat().st_size for f in files)
        return Exported(files, {"size": f"{size / 1e6:.1f} MB", "kernels": str(len(executable.programs.main.steps))})
