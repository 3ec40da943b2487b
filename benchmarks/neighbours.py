"""One process, two libraries: products by rlx alone, by NumPy or torch alone, and in turns. A library whose threads
spin while they wait takes a core from the other.

    python benchmarks/neighbours.py [--rounds 40] [--size 768] [--threads 2]

Prints how many times its time alone each takes when the two alternate; 1.15 is what rlx promises for both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

Call = Callable[[], object]


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alone(call: Call, rounds: int) -> float:
    for _ in range(3):
        call()
    return statistics.median(seconds(call) for _ in range(rounds))


def in_turns(first: Call, second: Call, rounds: int) -> tuple[float, float]:
    times = [(seconds(first), seconds(second)) for _ in range(rounds + 3)][3:]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def rlx_product(a: np.ndarray, b: np.ndarray) -> Call:
    import rlx

    product = rlx.jit(lambda x, y: x @ y)
    return lambda: np.asarray(product(a, b))


def peers(a: np.ndarray, b: np.ndarray, threads: int) -> dict[str, Call]:
    found: dict[str, Call] = {"NumPy": lambda: a @ b}
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(threads)
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        found["torch"] = lambda: x @ y
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--size", type=int, default=768)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((args.size, args.size), np.float32) for _ in range(2))
    ours = rlx_product(a, b)
    results = {}
    for name, theirs in peers(a, b, args.threads).items():
        rows = []
        # The machine's speed wanders: each comparison is one of neighbours in time, and the median of some counts.
        for _ in range(5):
            rlx_alone, their_alone = alone(ours, args.rounds), alone(theirs, args.rounds)
            rlx_beside, their_beside = in_turns(ours, theirs, args.rounds)
            rows.append((rlx_beside / rlx_alone, their_beside / their_alone, rlx_alone, their_alone))
        ratios = [statistics.median(column) for column in zip(*rows)]
        results[f"beside {name}"] = {
            "rlx": round(ratios[0], 3),
            name: round(ratios[1], 3),
            "rlx alone, ms": round(1e3 * ratios[2], 3),
            f"{name} alone, ms": round(1e3 * ratios[3], 3),
        }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
