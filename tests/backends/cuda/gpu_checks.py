"""One run on a GPU: a topic is checked first, then measured beside torch, in one command and within a limit of time.

    python3 tests/backends/cuda/gpu_checks.py attention few_rows --out report.json [--seconds 120]

Checks are those of `gpu_suite.py`, times those of `benchmarks/cuda_peers.py`; both print what they find, and the file
gets all of it. Exits with 1 if a check fails; times are taken all the same, since they tell where to look.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SUITE, PEERS = ROOT / "tests/backends/cuda/gpu_suite.py", ROOT / "benchmarks/cuda_peers.py"

# What `gpu_suite.py` and `cuda_peers.py` are told for each topic.
CHECKS = {
    "attention": ["--only", "attention"],
    "few_rows": ["--only", "products", "--match", "turned"],
    "decode": ["--only", "attention", "--match", "bhsd 16"],
    "driver": ["--only", "driver"],
    "quantised": ["--only", "products", "--match", "codes"],
    "older_chips": ["--only", "products", "--match", "sm_80"],
    "models": ["--only", "models"],
    "training": ["--only", "training", "gradients"],
    "one_kernel": ["--only", "one_kernel"],
}
TIMES = {
    "attention": ["attention"],
    "decode": ["decode_attention"],
    "few_rows": ["few_rows"],
    "quantised": ["quantised"],
    "older_chips": ["products"],
    "small": ["small"],
    "decode_model": ["decode_model"],
    "one_kernel": ["decode_model"],
    "prefill_model": ["prefill_model"],
    "training": ["training", "attention_backward"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="+", choices=sorted({*CHECKS, *TIMES}))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    started, found, is_right = time.time(), {}, True
    for topic in args.topics:
        if topic in CHECKS:
            code, found[f"{topic} checks"] = _run(SUITE, [*CHECKS[topic], "--workers", "14"], args.seconds, started)
            is_right &= code == 0
    for topic in args.topics:
        if topic in TIMES:
            _, found[f"{topic} times"] = _run(PEERS, ["--groups", *TIMES[topic]], args.seconds, started)
    Path(args.out).write_text(json.dumps(found, indent=1))
    return 0 if is_right else 1


def _run(script: Path, arguments: list[str], limit: float, started: float) -> tuple[int, object]:
    """Run a script with what is left of the time; its output appears as it comes."""
    left = max(5.0, limit - (time.time() - started))
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
