"""One run on a GPU: a topic is checked first, then measured beside torch, in one command and within a limit of time.

    python3 tests/backends/cuda/gpu_checks.py attention few_rows --out report.json [--seconds 120]

Checks are those of `gpu_suite.py`, times those of `benchmarks/cuda_peers.py`; both print what they find, and the file
gets all of it, or with `--short` what failed, what was farthest, and times. Exits with 1 if a check fails; times are
taken all the same, since they tell where to look. What has not run on a GPU since it was written are two calls, below 9
minutes each:

    python3 tests/backends/cuda/gpu_checks.py owed --short --out owed.json --seconds 530
    python3 tests/backends/cuda/gpu_checks.py owed_models --short --out owed_models.json --seconds 530

Where a GPU is there for four minutes only, `owed_short` asks for what most programs meet, in three of them:

    python3 tests/backends/cuda/gpu_checks.py owed_short --short --out owed_short.json --seconds 180

`--list` says without a GPU what would run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SUITE, PEERS = ROOT / "tests/backends/cuda/gpu_suite.py", ROOT / "benchmarks/cuda_peers.py"

# What `gpu_suite.py` and `cuda_peers.py` are told for each topic.
CHECKS = {
    "attention": ["--only", "attention"],
    "few_rows": ["--only", "products", "--match", "turned"],
    "decode": ["--only", "attention", "--match", "bhsd 16"],
    "driver": ["--only", "driver"],
    "calls": ["--only", "driver", "--match", "calls_small_programs"],
    "quantised": ["--only", "products", "--match", "codes"],
    "older_chips": ["--only", "products", "--match", "sm_80"],
    "older_attention": ["--only", "attention", "gradients", "--match", "sm_80"],
    "masks": ["--only", "attention", "--match", "custom", "bias", "True"],
    "models": ["--only", "models"],
    "training": ["--only", "training", "gradients"],
    "one_kernel": ["--only", "one_kernel"],
    "split_attention": ["--only", "attention", "--match", "f32"],
    "narrow_attention": ["--only", "attention", "--match", " 96 ", " 40 ", " 80 ", " 160 "],
    "attention_ways": ["--only", "attention", "--match", "polynomials", "reads ahead"],
    "factors": ["--only", "rest", "--match", "factors"],
    "gradients": ["--only", "gradients", "--match", "64"],
    "choices": ["--only", "one_kernel", "--match", "ahead"],
    "exact_attention": ["--only", "ops", "--match", "op Attention"],
    "ops": ["--only", "ops"],
    "embeddings": ["--only", "ops", "--match", "op PanelGather"],
}
TIMES = {
    "attention": ["attention"],
    "decode": ["decode_attention"],
    "few_rows": ["few_rows"],
    "quantised": ["quantised"],
    "older_chips": ["products"],
    "older_attention": ["older_attention"],
    "small": ["small"],
    "decode_model": ["decode_model"],
    "one_kernel": ["decode_model"],
    "prefill_model": ["prefill_model"],
    "training": ["training", "attention_backward"],
    "split_attention": ["split_attention"],
    "narrow_attention": ["narrow_attention"],
    "attention_ways": ["attention_ways", "decode_attention_ways"],
    "factors": ["linear_algebra"],
    "exact_attention": ["exact_attention"],
    "batch_products": ["batch_products"],
    "embeddings": ["embeddings"],
    "step": ["training"],
}
# Topics that have not run since they were written, the surest to be right last: checks come first, all of them.
PLANS = {
    "owed": [
        "calls",
        "masks",
        "older_attention",
        "narrow_attention",
        "split_attention",
        "attention_ways",
        "embeddings",
        "factors",
        "small",
        "exact_attention",
    ],
    "owed_models": ["models", "choices", "gradients", "ops", "step", "batch_products"],
    "owed_short": ["calls", "masks", "narrow_attention", "choices", "split_attention", "factors", "small"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="+", choices=sorted({*CHECKS, *TIMES, *PLANS}))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    topics = [topic for given in args.topics for topic in PLANS.get(given, [given])]
    checks = [(topic, SUITE, CHECKS[topic]) for topic in topics if topic in CHECKS]
    times = [(topic, PEERS, ["--groups", *TIMES[topic]]) for topic in topics if topic in TIMES]
    if args.list:
        return max(subprocess.run([sys.executable, str(s), *a, "--list"]).returncode for _, s, a in (*checks, *times))
    started, found, is_right = time.time(), {}, True
    # Times have the second half, if checks need so much; what is left of one topic is for those behind it.
    for number, (topic, script, arguments) in enumerate(checks):
        share = args.seconds / 2 if times else args.seconds
        limit = started + share * (number + 1) / len(checks)
        code, result = _run(script, [*arguments, "--workers", "14"], limit)
        found[f"{topic} checks"] = _short_checks(result) if args.short else result
        is_right &= code == 0
        Path(args.out).write_text(json.dumps(found, indent=1))
    began = time.time()
    for number, (topic, script, arguments) in enumerate(times):
        limit = began + (started + args.seconds - began) * (number + 1) / len(times)
        _, result = _run(script, arguments, limit)
        found[f"{topic} times"] = _short_times(result) if args.short else result
        # Written each time: whoever stops this has what was found.
        Path(args.out).write_text(json.dumps(found, indent=1))
    return 0 if is_right else 1


def _short_checks(results: Any) -> Any:
    """How many ran, which failed and how, and which were farthest from what they should be."""
    if results is None:
        return "nothing came back"
    farthest = sorted((r for r in results if "error" in r), key=lambda r: -r["error"])[:3]
    return {
        "run": len(results),
        "failed": {r["item"]: r["failed"][:300] for r in results if "failed" in r},
        "farthest": {r["item"]: float(f"{r['error']:.2g}") for r in farthest},
    }


def _short_times(results: Any) -> Any:
    """Microseconds by row and column."""
    if results is None:
        return "nothing came back"
    rows = {r["name"]: {c: round(x["us"], 1) for c, x in r.items() if isinstance(x, dict)} for r in results["rows"]}
    return {"limits": results["limits"], "rows": rows}


def _run(script: Path, arguments: list[str], limit: float) -> tuple[int, Any]:
    """Run a script until some time at most; its output appears as it comes."""
    left = max(5.0, limit - time.time())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, str(script), *arguments, "--out", str(out), "--seconds", f"{left - 3:.0f}"]
        print(f"== {' '.join(command[1:])}", flush=True)
        try:
            code = subprocess.run(command, timeout=left).returncode
        except subprocess.TimeoutExpired:
            print("out of time", flush=True)
            code = 124
        return code, json.loads(out.read_text()) if out.exists() else None


if __name__ == "__main__":
    sys.exit(main())
