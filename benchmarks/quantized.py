"""Products with quantised weights against the read bandwidth of the machine and, for many rows, its FMA peak.

    python benchmarks/quantized.py [Q4_1 Q4_K Q8_0 ...] [--threads 2] [--rounds 9]

Weights are larger than the caches. `read` is what a kernel that only loads gets from the same bytes on the same number
of threads, in the same rounds; the share is the median of the rounds' own ratios, `best` compares the fastest calls,
which on a machine that others use are the ones nobody disturbed.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.native import kernels as native
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import ValueType
from rlx.kernels.machines import host
from rlx.quant.schemes import QuantScheme

COLUMNS, DEPTH = 16384, 8192
CHAINS = 8
PAUSE_S = 0.003


def read_kernel() -> native.NativeKernel:
    """The sum of everything: as many loads as there are vectors, in several chains."""
    lanes = host().lanes(DType.F32)
    k = KernelBuilder("read")
    x, y, first, last = (
        k.pointer("x", DType.F32),
        k.pointer("y", DType.F32, write=True),
        k.index("first"),
        k.index("last"),
    )
    zero = k.const(0, ValueType(DType.F32, lanes))
    with k.fold("i", first, last, CHAINS * lanes, init=[zero] * CHAINS) as fold:
        fold.next(*(v + k.load(x, fold.index + c * lanes, lanes=lanes) for c, v in enumerate(fold.values)))
    total = fold.results[0]
    for value in fold.results[1:]:
        total = total + value
    k.store(y, 0, total)
    return native.load(k.build())


def read_seconds(kernel: native.NativeKernel, data: np.ndarray, threads: int) -> float:
    unit = CHAINS * host().lanes(DType.F32)
    bounds = np.linspace(0, data.size // unit, threads + 1).astype(int) * unit
    results = [np.zeros(64, np.float32) for _ in range(threads)]
    parts = [(data, r, int(a), int(b)) for r, a, b in zip(results, bounds, bounds[1:])]
    workers = [threading.Thread(target=kernel, args=part) for part in parts]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def product(scheme: QuantScheme, stored: np.ndarray, threads: int) -> Callable[[np.ndarray], object]:
    g = rlx.Graph("product")
    x, w = g.input("x", ("M", DEPTH)), g.param("w", stored.shape, "u8")
    g.set_outputs([ops.dequant_matmul(x, w, scheme=scheme, n=COLUMNS)])
    compiled = rlx.Session("cpu", CompileOptions(threads=threads)).compile(g)
    compiled.set_param("w", stored)
    return lambda given: compiled.run({"x": given})[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", default=["Q4_1", "Q4_K", "Q8_0"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    kernel, rng = read_kernel(), np.random.default_rng(3)
    print("type        MB read GB/s gemv GB/s  share   best  4 rows  128 rows GF/s")
    for name in options.types:
        scheme = QuantScheme.of_ggml(name)
        layout = scheme.panel_format
        assert layout is not None, f"{name} has no panels"
        stored = (rng.integers(0, 256, scheme.packed_bytes(DEPTH, COLUMNS), dtype=np.uint8)) & 0xBB
        run = product(scheme, stored, options.threads)
        inputs = {m: rng.normal(size=(m, DEPTH)).astype(np.float32) for m in (1, 4, 128)}
        size = COLUMNS // 16 * layout.panel_bytes(DEPTH)
        # Written to: memory that never was is one page of zeros, which stays in the cache.
        data = np.ones(size // 4, np.float32)
        times: dict[object, list[float]] = {"read": [], **{m: [] for m in inputs}}
        for x in inputs.values():
            assert Shape(np.asarray(run(x)).shape, DType.F32).dims == (len(x), COLUMNS)
        for _ in range(options.rounds):
            time.sleep(PAUSE_S)
            times["read"].append(read_seconds(kernel, data, options.threads))
            for m, x in inputs.items():
                start = time.perf_counter()
                run(x)
                times[m].append(time.perf_counter() - start)
        share = statistics.median(r / t for r, t in zip(times["read"], times[1]))
        best = {key: min(values) for key, values in times.items()}
        rates = (
            f"{size / best['read'] / 1e9:9.1f} {size / best[1] / 1e9:9.1f} {share:6.0%} {best['read'] / best[1]:6.0%}"
        )
        flops = 2.0 * 128 * COLUMNS * DEPTH / best[128] / 1e9
        print(f"{name:8} {size / 2**20:5.0f} {rates} {size / best[4] / 1e9:7.1f} {flops:14.1f}", flush=True)


if __name__ == "__main__":
    main()
