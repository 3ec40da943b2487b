"""Show what a device needs, what is missing here, and what to do about it.

examples:
  rlx doctor cuda
  rlx doctor
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rlx.cli import add_command

if TYPE_CHECKING:
    from rlx.cli import Subparsers
    from rlx.compile.target import Target


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "doctor", __doc__)
    parser.add_argument("device", nargs="?", help="a device as `rlx devices` lists it (default: all)")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.compile.target import select, targets

    chosen = targets() if args.device is None else [select(args.device).target]
    print("\n\n".join("\n".join(_lines(target)) for target in chosen))
    return 0


def _lines(target: Target) -> list[str]:
    from rlx.compile.target import Absent

    names = [*target.aliases, *target.variants]
    lines = [f"{target.name}: {target.about}" + (f" (also called {', '.join(names)})" if names else "")]
    found = target.probe()
    if isinstance(found, Absent):
        lines += [f"  state   {found.why.value}", f"  why     {found.reason}", f"  to do   {found.remedy}"]
        if target.extra:
            lines.append(f'  extra   pip install "rlx[{target.extra}]"')
    else:
        for info in found.devices:
            memory = f", {info.memory_bytes / 2**30:.1f} GiB" if info.memory_bytes else ""
            detail = f", {info.detail}" if info.detail else ""
            lines.append(f"  device  {target.name}:{info.index} {info.name}{detail}{memory}")
    can = [
        word
        for word, has in (
            ("runs programs", target.backend),
            ("holds arrays", target.open),
            ("exports files", target.exporter),
            ("code can be made and looked at", target.generator),
        )
        if has is not None
    ]
    lines.append(f"  rlx     {', '.join(can) or 'knows the name'}")
    return lines
