"""Attention beside torch's `scaled_dot_product_attention`: the cases that the project has a bar for.

Run `python benchmarks/attention.py [PYTHON]`, where PYTHON has torch. Exits with 1 if a case is below the bar.
"""

from __future__ import annotations

import sys

from rlx.bench import run_suite
from rlx.bench.report import table
from rlx.bench.suites import OPS

BAR = 1.2
ROUNDS = 15


def main() -> int:
    cases = [case for case in OPS if case.group == "attention"]
    python = sys.argv[1] if len(sys.argv) > 1 else None
    result = run_suite("attention", cases, peers=["torch"], peer_python=python, rounds=ROUNDS, threads=2)
    print(table(result))
    missed = [c.case.name for c in result.cases if (c.ratio("torch") or 0.0) < BAR]
    print(f"bar {BAR}x torch: " + (f"missed by {', '.join(missed)}" if missed else "met by all"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
