"""`rlx export rocm MODEL FOLDER`: code objects for AMD GPUs, made where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from rlx.backends.export import Array, Exported, Exporter, new_folder
from rlx.backends.rocm import compile_to_code_object
from rlx.backends.rocm.code import amd_machine
from rlx.backends.rocm.code_object import read_code_object, resource_table
from rlx.ir.graph import Graph
from rlx.kernels.machines import AMD_CHIPS


class RocmExporter(Exporter):
    """Writes a folder: a code object for each chip, and a page with what each kernel of it needs. Weights are arguments
    of kernels, and stay in the file of the model."""

    options: ClassVar[Mapping[str, str]] = {
        "arch": f"the chips, with commas between; by default all of {', '.join(chip.name for chip in AMD_CHIPS)}"
    }

    def needs_weights(self, options: Mapping[str, str]) -> bool:
        return False

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        given = self.checked(options).get("arch")
        names = [chip.name for chip in AMD_CHIPS] if given is None else given.split(",")
        chips = [amd_machine(name.strip()).name for name in names]
        figures, files = {}, ["kernels.md"]
        with new_folder(out) as folder:
            page = [f"# Kernels of {graph.name}", "", "Assembled and inspected; never executed on an AMD GPU."]
            for chip in chips:
                image = compile_to_code_object(graph, chip)
                found = read_code_object(image)
                (folder / f"{chip}.hsaco").write_bytes(image)
                files.append(f"{chip}.hsaco")
                page += ["", f"## {chip}", "", *resource_table(found)]
                figures[chip] = f"{len(found.kernels)} kernels, {len(image)} bytes"
            (folder / "kernels.md").write_text("\n".join(page) + "\n")
        return Exported(tuple(out / file for file in files), figures)
