"""What can run programs on this machine.

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
    import rlx.runtime  # noqa: F401 - registers the backends
    from rlx.backends.api import registered_devices
    from rlx.runtime.device import is_available

    found = [{"device": d, "available": is_available(d), "detail": _detail(d)} for d in registered_devices()]
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for row in found:
        print(f"{row['device']:<10} {'yes' if row['available'] else 'no':<4} {row['detail']}".rstrip())
    return 0


def _detail(device: str) -> str:
    if device == "cpu":
        from rlx.backends.cpu.threads import thread_count
        from rlx.kernels.targets import host

        return f"{host().name}, {thread_count(None)} threads"
    return "plain NumPy, for checking" if device == "reference" else ""
