"""Rewrite the expected parts of tests/text/*.rlx with what the passes give now.

    python tools/refresh_text_cases.py [file ...]

Look at the difference (`git diff tests/text`) before keeping it: a text that changed is a compiler that changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def main(names: list[str]) -> None:
    from text_cases import FOLDER, refreshed

    for path in [Path(n) for n in names] or sorted(FOLDER.glob("*.rlx")):
        new = refreshed(path)
        if new != path.read_text():
            path.write_text(new)
            print(f"{path.name} changed")


if __name__ == "__main__":
    main(sys.argv[1:])
