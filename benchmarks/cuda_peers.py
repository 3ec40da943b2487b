"""rlx on an NVIDIA GPU beside torch eager, torch.compile, cuBLAS and torch's attentions, in one run.

    python3 benchmarks/cuda_peers.py --out results.json [--groups maps products] [--seconds 200] [--no-rlx]

Every group measures all its columns in shuffled order with pauses, on one stream and with one pair of events, and the
limits of the chip (a copy, a large product) in the same run. Needs torch with CUDA; results name device and versions.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import cuda_decoding
import cuda_dense
import cuda_rest
import numpy as np
import torch
from cuda_columns import RUN, SLOW, Work, randn, rows_of

import rlx
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.streams import Stream
from rlx.backends.cuda.timing import Case, Measured, measure, measure_limits

GROUPS = {
    **cuda_decoding.GROUPS,
    **cuda_dense.GROUPS,
    **{name: rows_of(group) for name, group in cuda_rest.GROUPS.items()},
}


def peak() -> float:
    """The rate of a large product, in this run."""
    a, b = randn(8192, 8192), randn(8192, 8192)
    found = measure(RUN.gpu, [Case("peak", lambda i: a @ b.T)], stream=RUN.stream, launches=10)["peak"]
    return 2 * 8192**3 / found.median


def versions() -> dict[str, str]:
    return {
        "device": str(RUN.gpu.info),
        "driver": f"{RUN.gpu.info.driver_version}",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "rlx": rlx.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main(args: argparse.Namespace) -> None:
    started = time.time()
    results: dict[str, Any] = {"versions": versions(), "rows": []}
    with torch.cuda.stream(torch.cuda.ExternalStream(RUN.stream.handle.value or 0)):
        results["limits"] = {"copy": measure_limits(RUN.gpu, RUN.stream).copy, "product": peak()}
        print(json.dumps(results["versions"]), json.dumps(results["limits"]), flush=True)
        for group in args.groups:
            for work in GROUPS[group]():
                if time.time() - started > args.seconds:
                    print("out of time", flush=True)
                    break
                results["rows"].append(measured(work, results["limits"]))
                torch.cuda.empty_cache()
    Path(args.out).write_text(json.dumps(results, indent=1))


def seconds_of(case: Case) -> float:
    """One launch, with the way there and back."""
    RUN.stream.synchronize()
    began = time.time()
    case.enqueue(0)
    RUN.stream.synchronize()
    return time.time() - began


def measured(work: Work, limits: dict[str, float]) -> dict[str, Any]:
    cases = [Case(name, run) for name, run in work.columns.items()]
    row: dict[str, Any] = {"name": work.name}
    text = []
    slow = [case for case in cases if seconds_of(case) > SLOW]
    quick = [case for case in cases if case not in slow]
    readings = measure(RUN.gpu, quick, stream=RUN.stream, rounds=5, launches=work.launches, pause=0.02)
    # Nothing that takes so long depends on what lies in the caches.
    readings |= {case.name: Measured((seconds_of(case),)) for case in slow}
    for name, found in readings.items():
        seconds = found.median / work.repeats
        row[name] = {"us": seconds * 1e6, "spread": found.spread}
        shown = f"{name} {seconds * 1e6:.1f} us"
        if work.bytes:
            row[name]["of_copy"] = work.bytes / seconds / limits["copy"]
            shown += f" {row[name]['of_copy']:.1%}"
        if work.flops:
            row[name]["tflops"] = work.flops / seconds / 1e12
            shown += f" {row[name]['tflops']:.0f} TF"
        text.append(shown)
    print(f"{work.name}: {'; '.join(text)}", flush=True)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="cuda_peers.json")
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--no-rlx", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="whole models: without torch's own times")
    parser.add_argument("--no-eager", action="store_true", help="decode steps: torch.compile alone, and no profile")
    parser.add_argument("--stored", nargs="+", default=["Q4_K"], help="GGUF types of `decode_stored`")
    parser.add_argument("--models", nargs="+", default=[name for name, _ in cuda_decoding.MODELS])
    parser.add_argument("--list", action="store_true", help="say which groups there are, without a GPU")
    given = parser.parse_args()
    if given.list:
        print("\n".join(given.groups))
        sys.exit()
    if not torch.cuda.is_available():
        sys.exit("cuda_peers: torch finds no GPU here")
    RUN.gpu = open_gpu(0)
    RUN.stream = Stream(RUN.gpu) if given.no_rlx else RUN.gpu.stream
    RUN.no_rlx, RUN.no_peers, RUN.models = given.no_rlx, given.no_peers, given.models
    RUN.no_eager, RUN.stored = given.no_eager, given.stored
    main(given)
