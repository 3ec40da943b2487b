"""List the devices that can run programs on this machine, and why others cannot.

examples:
  rlx devices
  rlx devices --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "devices", __doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.compile.target import Absent, targets

    rows: list[dict[str, object]] = []
    for target in targets():
        found = target.probe()
        if isinstance(found, Absent):
            rows.append(_row(target.name, found.why.value, found.reason, found.remedy))
            continue
        for info in found.devices:
            name = target.name if info.index == 0 else f"{target.name}:{info.index}"
            detail = ", ".join(part for part in (info.name, info.detail) if part)
            rows.append(_row(name, "ready", detail))
    rows.sort(key=lambda row: not row["available"])
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(f"{row['device']:<10} {row['state']:<15} {row['detail']}".rstrip())
    print("`rlx doctor DEVICE` says what one of them needs.")
    return 0


def _row(device: str, state: str, detail: str, remedy: str = "") -> dict[str, object]:
    return {"device": device, "available": state == "ready", "state": state, "detail": detail, "remedy": remedy}
