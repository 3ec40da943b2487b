"""Long contexts: prefill of many tokens and decode after them, beside llama.cpp on the same file, engines in turn.

    python benchmarks/long_context.py --shape 1b --type Q4_K --tokens 8192 --cache f16 --peer-python PYTHON

What attention takes is how much longer a token takes after the long prompt than after a short one; its share of the
memory's bandwidth is the bytes of keys and values by that time, with the bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

SHORT = 16
BATCH = 512
CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8": 1.0}


class Rlx:
    def __init__(self, path: str, tokens: int, cache: str, threads: int) -> None:
        import rlx

        self.model = rlx.load(path, threads=threads, kv_dtype=cache)
        self.session = self.model.session()
        self.vocabulary = self.model.config.vocab

    def prefill(self, ids: list[int]) -> None:
        self.session.truncate(0)
        self.session.prefill(ids)

    def fill(self, ids: list[int]) -> None:
        """A cache of that length with numbers that nobody computed: how long a token takes does not depend on them."""
        import numpy as np

        batch = self.session._batch
        batch._reserve(len(ids) + 1)
        for cache in batch._caches:
            np.asarray(cache).reshape(-1).view(np.uint8)[:] = 17
        batch.tokens[0][:] = ids

    def step(self, after: int) -> None:
        self.session.truncate(after)
        self.session.step(7)


class LlamaCpp:
    def __init__(self, path: str, tokens: int, cache: str, threads: int) -> None:
        import llama_cpp

        kinds = {"f32": 0, "f16": 1, "q8": 8}
        # Flash attention is the faster of its two ways on a CPU, and the one that quantised values need.
        self.model = llama_cpp.Llama(
            path,
            n_ctx=tokens + 64,
            n_batch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=os.environ.get("LLAMA_FLASH", "1") == "1",
            type_k=kinds[cache],
            type_v=kinds[cache],
            verbose=False,
        )
        self.vocabulary = self.model.n_vocab()

    def prefill(self, ids: list[int]) -> None:
        self.model.reset()
        self.model.eval(ids)

    def step(self, after: int) -> None:
        self.model.n_tokens = after
        self.model.eval([7])


def work(args: argparse.Namespace) -> None:
    """An engine's process: a word per line in, seconds out."""
    engine = (Rlx if args.worker == "rlx" else LlamaCpp)(args.path, args.tokens, args.cache, args.threads)
    ids = [100 + 37 * i % 5000 for i in range(args.tokens)]
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        start = time.perf_counter()
        if word == "prefill":
            engine.prefill(ids)
        elif word == "fill":
            engine.fill(ids)
        elif word == "first":
            engine.prefill(ids[:SHORT])
        else:
            start = steps(engine, int(word))
        print(time.perf_counter() - start, flush=True)


def steps(engine: Any, after: int) -> float:
    """The start of the last of a few tokens. The other engine's threads may spin for a while before they sleep."""
    time.sleep(0.05)
    for _ in range(2):
        engine.step(after)
    start = time.perf_counter()
    engine.step(after)
    return start


class Worker:
    def __init__(self, name: str, python: str, args: argparse.Namespace) -> None:
        options = ["--worker", name, "--path", args.path, "--tokens", str(args.tokens)]
        options += ["--cache", args.cache, "--threads", str(args.threads)]
        self.name = name
        self.process = subprocess.Popen(
            [python, __file__, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> float:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return float(self.read())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def medians(workers: list[Worker], after: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {w.name: [] for w in workers}
    for i in range(rounds + 2):
        for worker in workers:
            seconds = worker.ask(str(after))
            if i >= 2:
                found[worker.name].append(seconds)
    return {name: statistics.median(times) for name, times in found.items()}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from rlx.bench.limits import measure_limits
    from rlx.bench.synthetic_models import SHAPES, synthetic_model

    args.path = str(synthetic_model(args.shape, args.type))
    shape = SHAPES[args.shape]
    pythons = {"rlx": sys.executable, "llama.cpp": args.peer_python}
    workers = [Worker(name, python, args) for name, python in pythons.items() if python]
    for worker in workers:
        worker.ask("first")
    short = medians(workers, SHORT, args.rounds)
    prefill = {}
    for number, worker in enumerate(workers, 1):
        is_filled = args.fill and worker.name == "rlx"
        prefill[worker.name] = worker.ask("fill" if is_filled else "prefill")
        so_far = medians(workers[:number], args.tokens, 5)
        print(f"prefill {prefill}, decode after it {so_far}, after {SHORT} {short}", file=sys.stderr, flush=True)
    long = medians(workers, args.tokens, args.rounds)
    for worker in workers:
        worker.end()
    bandwidth = measure_limits(args.threads).bandwidth
    nbytes = 2.0 * shape.layers * shape.kv_heads * shape.head_dim * CACHE_BYTES[args.cache] * args.tokens
    attention = {name: long[name] - short[name] for name in long}
    return {
        "case": f"{args.shape} {args.type}, {args.tokens} tokens, {args.cache} cache",
        "prefill_s": prefill,
        "decode_ms": {name: 1e3 * seconds for name, seconds in long.items()},
        "decode_after_16_ms": {name: 1e3 * seconds for name, seconds in short.items()},
        "attention_share_of_bandwidth": {n: nbytes / seconds / bandwidth for n, seconds in attention.items()},
        "bandwidth_GB_s": bandwidth / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--cache", default="f16", choices=CACHE_BYTES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peer-python", default="", help="the Python that has llama-cpp-python; none: rlx alone")
    parser.add_argument("--fill", action="store_true", help="rlx computes no prefill, and its time says nothing")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
