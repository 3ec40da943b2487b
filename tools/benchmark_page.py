"""Writes docs/benchmarks.md from the JSON files of `rlx bench`, measured on one machine:

for suite in ops minilm llm embed startup; do rlx bench $suite --json $suite.json; done
python tools/benchmark_page.py ops.json minilm.json llm.json embed.json startup.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlx.bench.page import page
from rlx.bench.report import from_json

TARGET = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> int:
    documents = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    machines = {document["machine"] for document in documents}
    if len(machines) != 1:
        print(f"{__doc__}\nthe files of one machine are needed, got {len(machines)} machines", file=sys.stderr)
        return 2
    TARGET.write_text(page([from_json(document) for document in documents], machines.pop()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
