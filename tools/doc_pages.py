"""Runs the Python and console blocks of Markdown pages, so that what the pages say stays true.

The blocks of a page run in order in an empty folder; Python blocks share one namespace, in a fresh interpreter in which
warnings are errors. The words after the language say how:

    ```python                     the block runs
    ```python raises ShapeError   the block must raise that error, which counts as printed: `ShapeError: message`
    ```python real                the block runs where pulled models are wanted (`make test-real`), else it is skipped
    ```python no-run: the reason  the block is skipped
    ```output                     directly after a Python block: exactly what it prints
    ```console                    commands after `$ `, and below each exactly what it prints; `rlx` and `python3` are
                                  those of this environment; `real` and `no-run: the reason` as for Python

`python tools/doc_pages.py page.md` runs one page; `refreshed(page)` gives its text with the outputs written again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"(?P<indent>[ ]*)```(?P<info>.*)")


class PageError(Exception):
    """A page that cannot be read or does not run; the message names the page and the line."""


class Block(NamedTuple):
    """The code between two fences: its info string, and its lines in the page, counted from 0, without the fences."""

    info: str
    code: str
    first: int
    end: int
    indent: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def expected_error(self) -> str | None:
        words = self.info.split()
        return words[2] if words[1:2] == ["raises"] and len(words) == 3 else None


def documentation() -> list[Path]:
    """Every page whose blocks run: README, CONTRIBUTING and docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, page: str = "page") -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        indent, first = opening["indent"], number
        while number < len(lines) and lines[number].rstrip() != f"{indent}```":
            number += 1
        if number == len(lines):
            raise PageError(f"{page}:{first}: the block is not closed")
        code = "\n".join(line.removeprefix(indent) for line in lines[first:number])
        found.append(_checked(Block(opening["info"].strip(), code, first, number, indent), page))
        number += 1
    return found


def _checked(block: Block, page: str) -> Block:
    """Refuse info strings of Python, console and output blocks that mean nothing."""
    rest = block.info.removeprefix(block.language).strip()
    when = not rest or rest == "real" or re.fullmatch(r"no-run: \S.*", rest) is not None
    ok = {"python": when or block.expected_error is not None, "console": when, "output": not rest}
    if not ok.get(block.language, True):
        raise PageError(
            f"{page}:{block.first}: ```{block.info} means nothing; write ```python, ```python raises SomeError, "
            "```python real, ```python no-run: the reason, ```console (also with real or no-run), or ```output"
        )
    return block


def is_run(block: Block, real: bool = False) -> bool:
    """Whether a block runs; with `real` also if it needs a pulled model."""
    if block.language not in ("python", "console") or "no-run:" in block.info:
        return False
    return real or block.info != f"{block.language} real"


def run_blocks(page: Path, real: bool = False) -> list[str]:
    """What each block that runs prints. An error that the page does not announce is a PageError."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    # A module, because classes look themselves up in the one they were made in.
    module = types.ModuleType("page")
    sys.modules["page"] = module
    found = [block for block in blocks(page.read_text(), name) if is_run(block, real)]
    return [_run_console(b, name) if b.language == "console" else _run(b, vars(module), name) for b in found]


def _run(block: Block, namespace: dict[str, object], page: str) -> str:
    # Blank lines in front give every frame the line number of the page.
    source = "\n" * block.first + block.code
    printed = io.StringIO()
    raised: Exception | None = None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, page, "exec", dont_inherit=True), namespace)
    except Exception as error:
        raised = error
    if raised is not None and type(raised).__name__ != block.expected_error:
        trace = "".join(traceback.format_exception(raised))
        raise PageError(f"{page}:{block.first}: the block fails\n{trace}")
    if raised is None and block.expected_error is not None:
        raise PageError(f"{page}:{block.first}: {block.expected_error} is announced, but nothing is raised")
    text = printed.getvalue() if raised is None else f"{printed.getvalue()}{type(raised).__name__}: {raised}"
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def _run_console(block: Block, page: str) -> str:
    """The block with what its commands print now."""
    lines: list[str] = []
    for command in console_commands(block.code):
        script = f'python3() {{ "{sys.executable}" "$@"; }}\nrlx() {{ python3 -m rlx "$@"; }}\n{command}'
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
        )
        if done.returncode:
            raise PageError(f"{page}:{block.first}: `{command}` fails\n{done.stdout}{done.stderr}")
        lines += f"$ {command}\n{done.stdout}".rstrip().split("\n")
    return "\n".join(line.rstrip() for line in lines)


def console_commands(code: str) -> list[str]:
    """The commands of a console block; one that ends with a backslash goes on in the next line."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)", code, re.MULTILINE)


def run_page(page: Path, real: bool = False) -> list[str]:
    """`run_blocks` in a fresh interpreter, which makes itself an empty folder."""
    command = [sys.executable, "-W", "error", __file__, str(page), *(["--real"] if real else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PageError(done.stderr.strip())
    outputs: list[str] = json.loads(done.stdout)
    return outputs


def refreshed(page: Path, real: bool = False) -> str:
    """The text of the page with every output being what its block prints; outputs of blocks that do not run stay."""
    text = page.read_text()
    found = blocks(text, page.name)
    if not any(is_run(b, real) for b in found):
        return text
    return with_outputs(text, found, run_page(page, real), real)


def with_outputs(text: str, found: list[Block], printed: list[str], real: bool = False) -> str:
    """`text` with the outputs among its blocks replaced by what was printed."""
    lines = text.split("\n")
    outputs = iter(printed)
    changes: list[tuple[Block, str]] = []
    before: Block | None = None
    last = ""
    for block in found:
        if block.language == "output":
            if before is None or before.language != "python" or "no-run:" in before.info:
                raise PageError(f"line {block.first}: an output block must follow the Python block that prints it")
            if is_run(before, real):
                changes.append((block, last))
        if is_run(block, real):
            last = next(outputs)
        if is_run(block, real) and block.language == "console":
            changes.append((block, last))
        before = block
    for block, output in reversed(changes):
        lines[block.first : block.end] = [(block.indent + line).rstrip() for line in output.split("\n")]
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="rlx-page-") as folder, contextlib.chdir(folder):
        try:
            results = run_blocks(chosen, "--real" in sys.argv[2:])
        except PageError as failure:
            sys.exit(str(failure))
    print(json.dumps(results))
