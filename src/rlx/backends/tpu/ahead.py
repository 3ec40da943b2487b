"""`compile_ahead`: a program for a TPU that is not here, with what its compiler says of memory and layouts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.backends.api import CompileOptions
from rlx.backends.by_sizes import leaves_of
from rlx.backends.tpu.dumps import dump
from rlx.backends.tpu.plugin import PLUGIN, require_library
from rlx.backends.tpu.policy import tpu_options
from rlx.backends.xla.adapter import AheadProgram, compile_for_topology
from rlx.backends.xla.executable import donated_inputs
from rlx.backends.xla.lowering import lowered, require_all
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import BindingError, RlxError
from rlx.ir.binding import bind_graph
from rlx.ir.graph import Graph

# The memory of one chip, by the first part of the name of a topology.
CHIP_BYTES = {"v4": 32 << 30, "v5e": 16 << 30, "v5p": 95 << 30, "v6e": 32 << 30}
DEFAULT_TOPOLOGY = "v5e:2x4"


@dataclass(frozen=True)
class AheadCompiled:
    """An executable for one chip of a topology. `arguments` and `results` are names (or numbers), types and layouts."""

    name: str
    topology: str
    program: AheadProgram
    stablehlo: str
    arguments: tuple[tuple[str, str, str], ...]
    results: tuple[tuple[str, str, str], ...]
    seconds: float

    @property
    def needed_bytes(self) -> int:
        """The memory of the chip that a run takes: what arguments and results share counts once."""
        memory = self.program.memory
        return sum(memory.values()) - 2 * memory["shared"]

    @property
    def chip_bytes(self) -> int:
        return CHIP_BYTES[self.topology.partition(":")[0]]

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.chip_bytes

    def figures(self) -> dict[str, Any]:
        """What the report says, as numbers and texts."""
        return {
            "program": self.name,
            "topology": self.topology,
            "chip": self.program.device_kind,
            "compile_seconds": round(self.seconds, 3),
            "memory": self.program.memory,
            "needed_bytes": self.needed_bytes,
            "chip_bytes": self.chip_bytes,
            "flops": self.program.flops,
            "arguments": [list(a) for a in self.arguments],
            "results": [list(r) for r in self.results],
        }

    def __str__(self) -> str:
        memory = ", ".join(f"{name} {size}" for name, size in self.program.memory.items())
        room = f"{self.needed_bytes} of {self.chip_bytes} bytes" if self.fits else "does not fit"
        head = f"@{self.name} for one chip of {self.topology} ({self.program.device_kind}): {room}; {memory}"
        lines = [f"  {name}: {kind} {layout}" for name, kind, layout in (*self.arguments, *self.results)]
        return "\n".join([head, *lines])

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the executable, the module it was made of, what XLA made of it, and the figures."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        contents = {
            "program.pjrt": self.program.serialized(),
            "program.stablehlo.mlir": self.stablehlo.encode(),
            "program.hlo": self.program.optimized_text().encode(),
            "report.json": json.dumps(self.figures(), indent=1).encode(),
        }
        for name, content in contents.items():
            (place / name).write_bytes(content)
        return tuple(place / name for name in contents)


def compile_ahead(
    graph: Graph,
    topology: str = DEFAULT_TOPOLOGY,
    options: CompileOptions | None = None,
    sizes: Mapping[str, int] | None = None,
) -> AheadCompiled:
    """A program compiled for one chip of a topology (`v5e:2x4`, `v6e:2x4`). All sizes must be known, by `sizes` if not
    by the program; params are arguments like inputs."""
    if topology.partition(":")[0] not in CHIP_BYTES:
        raise RlxError(f"tpu: there is no topology {topology!r}; write chips and their arrangement, as in v5e:2x4")
    library = require_library()
    # Nobody is asked which TPU this machine is, and other processes may compile as well: no chip is taken.
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        os.environ.setdefault(name, "1")
    bound = bind_graph(graph, dict(sizes)) if sizes else graph
    free = bound.dynamic_symbols()
    if free:
        raise BindingError(f"tpu: @{graph.name} is compiled for sizes; give {', '.join(free)}")
    made = lowered(require_all(bound, tpu_options(options)))
    module = module_of(made, donated_inputs(bound))
    dump(graph.name, "mlir", lambda: module.text)
    start = time.perf_counter()
    program = compile_for_topology(PLUGIN, library, topology, module.text, graph.name)
    seconds = time.perf_counter() - start
    dump(graph.name, "hlo", program.optimized_text)
    given, results = program.layouts
    arguments = [(name, str(shape), layout) for (name, shape), layout in zip(leaves_of(made), given, strict=True)]
    outputs = [(f"result {i}", str(made.shape(o)), layout) for i, (o, layout) in enumerate(zip(made.outputs, results))]
    return AheadCompiled(graph.name, topology, program, module.text, tuple(arguments), tuple(outputs), seconds)
