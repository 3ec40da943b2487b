"""Tiles of products on this GPU, measured by `rlx tune`, as the table that comes with rlx.

    python3 benchmarks/cuda_tiles.py --out sm_90a.json

Writes what won by more than the noise; `src/rlx/kernels/tuned` has such a file for the H200.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path

import rlx
from rlx.cli import main as command
from rlx.ir.tensor import building

# Rows, columns and depth of products with weights [n, k].
SIZES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (2048, 4096, 4096),
    (2048, 6144, 4096),
    (2048, 14336, 4096),
)


def products() -> rlx.Graph:
    graph, found = rlx.Graph("products"), []
    for number, (m, n, k) in enumerate(SIZES):
        a, w = graph.input(f"a{number}", (m, k), "bf16"), graph.input(f"w{number}", (n, k), "bf16")
        with building(graph):
            found.append(a @ w.T)
    graph.set_outputs(found)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="sm_90a.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "products.rlx"
        path.write_text(str(products()))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            failed = command(["tune", str(path), "--device", "cuda", "--json", "--runs", "20"])
    if failed:
        raise SystemExit(failed)
    kernels = json.loads(said.getvalue())["kernels"]
    for kernel in kernels:
        gain = kernel["usual_seconds"] / kernel["seconds"]
        print(f"{kernel['kernel'].split(' ')[0]}: {kernel['parameters']}, {gain:.3f}x; us of all sets:", flush=True)
        print("  " + " ".join(f"{1e6 * seconds:.1f}" for seconds in kernel["tried"]), flush=True)
    names = ("schedule", "kernel", "parameters", "seconds", "usual_seconds")
    choices = [{name: kernel[name] for name in names} for kernel in kernels if not kernel["usual"]]
    Path(args.out).write_text(json.dumps({"choices": choices}, indent=1) + "\n")


if __name__ == "__main__":
    main()
