"""How long the compiler itself takes: build, verify, print, parse, store, differentiate and batch graphs.

Run `python benchmarks/compiler_speed.py`. Times should grow linearly with the size of the graph: the last column is the
time per node of the largest graph over that of the smallest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import rlx
from rlx.autodiff.graphs import grad_with_loss, jvp, vmap
from rlx.ir.graph import Graph
from rlx.ir.serialize import from_bytes, to_bytes
from rlx.ir.verify import verify_all

SIZES = (1_000, 3_000, 10_000)


def build(nodes: int) -> Graph:
    """Layers of mul, add, tanh over a vector and two weights, about `nodes` nodes in all."""
    g = Graph("deep")
    x, w, b = g.input("x", ("B", 8)), g.param("w", (8,)), g.param("b", (8,))
    y = x
    while len(g) < nodes:
        y = rlx.tanh(y * w + b)
    g.set_outputs([rlx.reduce_sum(y)])
    return g


def measure(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def import_cost(statement: str) -> float:
    return measure(lambda: subprocess.run([sys.executable, "-c", statement], check=True), 7)


def main() -> None:
    graphs = {n: build(n) for n in SIZES}
    texts = {n: str(g) for n, g in graphs.items()}
    stored = {n: to_bytes(g) for n, g in graphs.items()}
    jobs: dict[str, Callable[[int], object]] = {
        "build": build,
        "verify": lambda n: verify_all(graphs[n]),
        "print": lambda n: str(graphs[n]),
        "parse": lambda n: rlx.parse(texts[n]),
        "compare": lambda n: graphs[n] == graphs[n].copy(),
        "write file": lambda n: to_bytes(graphs[n]),
        "read file": lambda n: from_bytes(stored[n]),
        "gradient": lambda n: grad_with_loss(graphs[n], ["w", "b"]),
        "forward mode": lambda n: jvp(graphs[n], ["w"]),
        "batching": lambda n: vmap(graphs[n], ["x"], 4),
    }
    print(f"{'':14}" + "".join(f"{n:>12,}" for n in SIZES) + "   growth per node")
    for name, job in jobs.items():
        times = [measure(lambda n=n, job=job: job(n)) for n in SIZES]  # type: ignore[misc]
        growth = (times[-1] / SIZES[-1]) / (times[0] / SIZES[0])
        print(f"{name:14}" + "".join(f"{t:10.3f} s" for t in times) + f"   {growth:.2f}x")
    base = import_cost("import numpy, ml_dtypes")
    print(f"import rlx over numpy and ml_dtypes: {import_cost('import numpy, ml_dtypes, rlx') - base:+.3f} s,")
    used = import_cost("import numpy, ml_dtypes, rlx; rlx.Graph; rlx.jit")
    print(f"and with everything that building and jit need loaded: {used - base:+.3f} s")


if __name__ == "__main__":
    main()
