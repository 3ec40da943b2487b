"""f32 products against MKL (through torch) and against the machine's FMA peak, in one process.

    python benchmarks/matmul.py [--quick] [--threads 2] [--rounds 9]

Engines take turns in every round, each after a pause in which the other's threads fall asleep. By default a row shows
medians of rounds, and the ratio is the median of the rounds' own ratios, because the machine drifts by more than the
engines differ. With --best it shows the fastest single call of all rounds: on a machine that others use at the same
time, that is the one call nobody disturbed. Results are checked against f64 first. torch is optional: without it the
peak is what remains to compare with.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.native import kernels as native
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import host

try:
    import torch
except ImportError:
    torch = None

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WEIGHTS = ((384, 384), (384, 1536), (1536, 384), (768, 768), (1024, 4096), (2048, 2048), (4096, 1024), (4096, 4096))
PAUSE_S = 0.003
Run = Callable[[], object]


def shapes(quick: bool) -> Iterator[tuple[int, int, int]]:
    for m in ROWS[::3] if quick else ROWS:
        for k, n in WEIGHTS[::2] if quick else WEIGHTS:
            yield m, n, k


def peak_kernel() -> native.NativeKernel:
    """Independent chains of FMAs: more of them than the latency of one needs."""
    machine = host()
    lanes, chains = machine.lanes(DType.F32), machine.vector_registers * 3 // 4
    k = KernelBuilder("peak")
    x, count = k.pointer("x", DType.F32, write=True, read=True), k.index("count")
    factor = k.load(x, 0, lanes=lanes)
    with k.fold("i", 0, count, init=[k.load(x, c * lanes, lanes=lanes) for c in range(chains)]) as fold:
        fold.next(*(k.fma(factor, factor, value) for value in fold.values))
    for c, value in enumerate(fold.results):
        k.store(x, c * lanes, value)
    return native.load(k.build())


def peak_rate(kernel: native.NativeKernel, threads: int) -> float:
    """FLOP/s of all threads together, over about a millisecond."""
    machine = host()
    lanes, chains, count = machine.lanes(DType.F32), machine.vector_registers * 3 // 4, 150_000
    arrays = [np.zeros(chains * lanes, np.float32) for _ in range(threads)]
    workers = [threading.Thread(target=kernel, args=(array, count)) for array in arrays]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * 2.0 * lanes * chains * count / (time.perf_counter() - start)


def ours(x: np.ndarray, weight: np.ndarray, threads: int) -> Run:
    """x @ W.T with the weight stored as torch stores it."""
    g = rlx.Graph("product")
    y = g.input("x", ("M", x.shape[1]), "f32") @ rlx.transpose(g.param("w", weight.shape, "f32"), (1, 0))
    g.set_outputs([y])
    compiled = rlx.Session("cpu", CompileOptions(threads=threads)).compile(g)
    compiled.set_param("w", weight)
    inputs = {"x": x}
    return lambda: compiled.run(inputs)[0]


def peers(x: np.ndarray, weight: np.ndarray, threads: int) -> dict[str, Run]:
    if torch is None:
        return {}
    torch.set_num_threads(threads)
    a, w = torch.from_numpy(x), torch.from_numpy(weight)
    return {"torch": lambda: torch.nn.functional.linear(a, w)}


def seconds(run: Run, repeats: int, best: bool) -> float:
    """The time of one call: the mean, or the fastest, of some after the first."""
    time.sleep(PAUSE_S)
    run()
    if best:
        return min(_one(run) for _ in range(repeats))
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _one(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few shapes only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--best", action="store_true", help="fastest calls instead of medians")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    kernel = peak_kernel()
    ratios: list[float] = []
    shares: list[float] = []
    print(f"{'m':>5} {'n':>5} {'k':>5} {'GF/s':>7} {'torch':>7} {'ratio':>6} {'of peak':>8}")
    with torch.inference_mode() if torch is not None else threading.Lock():
        for m, n, k in shapes(options.quick):
            x = rng.normal(size=(m, k)).astype(np.float32)
            weight = rng.normal(size=(n, k)).astype(np.float32)
            engines = {"rlx": ours(x, weight, options.threads), **peers(x, weight, options.threads)}
            sample = slice(None, None, max(1, n // 64))
            wanted = x.astype(np.float64) @ weight[sample].astype(np.float64).T
            for name, run in engines.items():
                # k terms of about 1, each rounded about as often as there are terms before it.
                error = np.abs(np.asarray(run())[:, sample] - wanted).max() / (k * 2.0**-24)
                assert error < 4, f"{name} at {m}x{n}x{k}: {error:.1f} roundings a term"
            flops = 2.0 * m * n * k
            repeats = max(1, min(200, int(4e8 / flops)))
            times: dict[str, list[float]] = {name: [] for name in engines}
            peaks = []
            for _ in range(options.rounds):
                for name, run in engines.items():
                    times[name].append(seconds(run, repeats, options.best))
                peaks.append(peak_rate(kernel, options.threads))
            typical = min if options.best else statistics.median
            rate = flops / typical(times["rlx"])
            share = rate / (max(peaks) if options.best else statistics.median(peaks))
            shown = f"{m:5} {n:5} {k:5} {rate / 1e9:7.1f}"
            if m >= 128:
                shares.append(share)
            if "torch" in times:
                ratio = statistics.median(t / o for t, o in zip(times["torch"], times["rlx"]))
                if options.best:
                    ratio = min(times["torch"]) / min(times["rlx"])
                ratios.append(ratio)
                shown += f" {flops / typical(times['torch']) / 1e9:7.1f} {ratio:6.2f}"
            else:
                shown += " " * 15
            print(f"{shown} {share:8.1%}", flush=True)
    if ratios:
        print(f"ratio to torch: geomean {statistics.geometric_mean(ratios):.3f}, lowest {min(ratios):.2f}")
    if shares:
        print(f"share of the FMA peak at m >= 128: lowest {min(shares):.1%}, median {statistics.median(shares):.1%}")


if __name__ == "__main__":
    main()
