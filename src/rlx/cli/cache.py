"""What rlx keeps on disk: machine code, compiled programs, prepared weights and pulled models.

`show` lists it. `clear` deletes what can be made again (objects, programs, prepared), or only the kinds that are named.
Models are deleted only when they are named, because they have to be downloaded again.

examples:
  rlx cache show
  rlx cache clear
  rlx cache clear prepared models --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlx.cache_directory import cache_directory
from rlx.cli import add_command

if TYPE_CHECKING:
    from rlx.cli import Subparsers

# Kind of what is kept, which is also its folder -> what it is.
KINDS = {
    "objects": "machine code, one file per kernel",
    "programs": "compiled programs",
    "prepared": "weights as kernels read them",
    "models": "pulled models",
}
_MADE_AGAIN = ("objects", "programs", "prepared")


class Kept(NamedTuple):
    """How much there is of one kind."""

    kind: str
    path: Path
    files: int
    bytes: int


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "cache", __doc__)
    parser.add_argument("action", choices=("show", "clear"), nargs="?", default="show", help="default: show")
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    wrong = [kind for kind in args.kinds if kind not in KINDS]
    if wrong:
        from rlx.errors import RlxError

        raise RlxError(f"there is no kind {wrong[0]!r}; kinds are {', '.join(KINDS)}")
    clears = args.action == "clear"
    kinds = args.kinds or (_MADE_AGAIN if clears else KINDS)
    found = [measured(kind) for kind in kinds]
    if clears:
        for kept in found:
            clear(kept.path)
    if args.json:
        rows = [kept._asdict() | {"path": str(kept.path)} for kept in found]
        print(json.dumps({"directory": str(cache_directory()), "cleared": clears, "kinds": rows}, indent=2))
        return 0
    print(cache_directory())
    for kept in found:
        done = "  deleted" if clears else ""
        print(f"  {kept.kind:<9} {kept.files:>6} files {kept.bytes / 1e6:>10,.1f} MB  {KINDS[kept.kind]}{done}")
    return 0


def measured(kind: str) -> Kept:
    """What is there of a kind; links are counted as themselves."""
    folder, files, size = cache_directory() / kind, 0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # another process has deleted it
            files += 1
    return Kept(kind, folder, files, size)


def clear(folder: Path) -> None:
    """Delete what a folder holds. Processes that use it keep what they have open; links are deleted, not followed."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.endswith(".lock"):
            continue  # somebody may hold it
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink(missing_ok=True)
