"""Rewrite tests/compile/golden/*.txt with the grouping and LIR that the compiler makes now.

    python tools/refresh_golden_texts.py [name ...]

Look at the difference (`git diff tests/compile/golden`) before keeping it: a text that changed is a compiler that
changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "compile")]


def main(names: list[str]) -> None:
    from golden_texts import FOLDER, NAMES, golden_text

    FOLDER.mkdir(exist_ok=True)
    for name in names or NAMES:
        file, text = FOLDER / f"{name}.txt", golden_text(name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"{file.name} changed")


if __name__ == "__main__":
    main(sys.argv[1:])
