"""The table of docs/rocm.md: what the kernels of the ten families need on each AMD chip, found by assembling them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from doc_pages import ROOT

from rlx.backends.rocm import compile_to_code_object
from rlx.backends.rocm.code_object import read_code_object
from rlx.kernels.machines import AMD_CHIPS

sys.path.append(str(ROOT / "tests"))

DTYPE = "bf16"


def families_table() -> str:
    """A row for each family and chip, with the most that one of its kernels needs."""
    head = "| family | chip | kernels | VGPR | SGPR | LDS, bytes | scratch, bytes | spilled | waves |"
    return "\n".join([head, "|---" * 9 + "|", *_rows()])


def _rows() -> Iterator[str]:
    from compile.family_programs import FAMILIES, forward

    for name, family in FAMILIES.items():
        for chip in AMD_CHIPS:
            kernels = read_code_object(compile_to_code_object(forward(family, DTYPE), chip.name)).kernels.values()
            most = [max(needs) for needs in zip(*((k.vgprs, k.sgprs, k.lds_bytes, k.scratch_bytes) for k in kernels))]
            waves = [k.occupancy(chip.name) for k in kernels]
            spilled = sum(k.spilled for k in kernels)
            cells = [name, chip.name, len(kernels), *most, spilled, f"{min(waves)} to {max(waves)}"]
            yield f"| {' | '.join(map(str, cells))} |"
