"""Writes the pages of docs/ that are generated, and the outputs shown in all pages.

    python tools/generate_docs.py            # writes
    python tools/generate_docs.py --check    # changes nothing; fails and names the pages that are out of date
    python tools/generate_docs.py --real     # also what needs pulled models, which it pulls
    python tools/generate_docs.py docs/api   # only the pages whose names begin so

Generated as a whole: docs/ops.md (from the op registry), docs/backends.md (by compiling the samples of all ops),
docs/knobs.md (from rlx.knobs) and docs/pictures/benchmarks.svg (from docs/benchmarks.md, which tools/benchmark_page.py
writes). Generated in part: docs/primitives.md and docs/rocm.md (by assembling ten families for five chips), between
two comments, and docs/api/, below one (see tools/api_pages.py). All others are written by hand, with outputs from
running their Python blocks (tools/doc_pages.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from api_pages import api_pages
from backend_pages import backends_page
from benchmark_bars import bars
from doc_pages import ROOT, PageError, documentation, refreshed
from op_pages import ops_page, primitives_table
from rocm_pages import families_table

from rlx.knobs import all_knobs, knobs

DOCS = ROOT / "docs"
NOTE = "<!-- Written by tools/generate_docs.py (`make docs`); do not edit. -->\n"
TABLE_START, TABLE_END = "<!-- table: written by tools/generate_docs.py -->", "<!-- end of table -->"


def knobs_page() -> str:
    return f"""{NOTE}
# Knobs

Every setting of the process, in one place: `rlx.knobs`. A value comes from the innermost `with`, else from `set`, else
from the environment, else it is the default. A value that makes no sense is an error that says what is accepted.

```python
import rlx

with rlx.knobs(backend="reference"):     # in this thread, inside the block
    assert rlx.knobs.backend == "reference"
rlx.knobs.set(threads=2)                 # in the whole process
assert rlx.knobs.threads == 2
rlx.knobs.reset()
```

In a shell: `RLX_BACKEND=reference python train.py`.

{knobs.markdown()}
Accepted, but read by nothing yet: {", ".join(f"`{name}`" for name in unread_knobs()) or "none"}.
"""


def unread_knobs() -> list[str]:
    """Knobs that no module of the package looks at."""
    sources = [p.read_text() for p in (ROOT / "src" / "rlx").rglob("*.py") if p.name != "knobs.py"]
    read = {name for text in sources for name in re.findall(r"\bknobs\.(\w+)", text)}
    return [knob.name for knob in all_knobs() if knob.name not in read]


def with_table(name: str, table: Callable[[], str]) -> str:
    """The page as it is, with the table written again."""
    text = (DOCS / name).read_text()
    before, start, rest = text.partition(TABLE_START)
    _, end, after = rest.partition(TABLE_END)
    if not start or not end:
        raise PageError(f"docs/{name} needs the comments {TABLE_START!r} and {TABLE_END!r} around its table")
    return f"{before}{start}\n{table()}\n{end}{after}"


# Page -> its text, by definitions in the package alone.
GENERATED: dict[str, Callable[[], str]] = {
    "docs/ops.md": lambda: ops_page(NOTE),
    "docs/backends.md": lambda: backends_page(NOTE),
    "docs/knobs.md": knobs_page,
    "docs/primitives.md": lambda: with_table("primitives.md", primitives_table),
    "docs/rocm.md": lambda: with_table("rocm.md", families_table),
    "docs/pictures/benchmarks.svg": bars,
    **api_pages(),
}


def write(page: Path, text: str, check: bool) -> bool:
    """Whether the page had to change."""
    stale = not page.exists() or page.read_text() != text
    if stale and not check:
        page.write_text(text)
    return stale


def main(check: bool, real: bool, wanted: tuple[str, ...]) -> int:
    generated = {name: text for name, text in GENERATED.items() if name.startswith(wanted)}
    stale = [name for name, text in generated.items() if write(ROOT / name, text(), check)]
    pages = [page for page in documentation() if page.relative_to(ROOT).as_posix().startswith(wanted)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for page, text in zip(pages, pool.map(lambda page: refreshed(page, real), pages)):
            if write(page, text, check):
                stale.append(page.relative_to(ROOT).as_posix())
    for name in stale:
        print(f"{name} is out of date" if check else f"wrote {name}")
    if check and stale:
        print("refresh them with: make docs")
    return int(check and bool(stale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=[""], help="how the names of the wanted pages begin: docs/api")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where a page is out of date")
    parser.add_argument("--real", action="store_true", help="also run what needs pulled models")
    chosen = parser.parse_args()
    try:
        sys.exit(main(chosen.check, chosen.real, tuple(chosen.pages)))
    except PageError as failure:
        sys.exit(str(failure))
