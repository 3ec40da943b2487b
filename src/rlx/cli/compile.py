"""Compile a model or a program into one file for CPUs like this one; the same as `rlx export cpu`.

`rlx.load_compiled(OUT)` runs it without compiling anything.

examples:
  rlx compile smollm2 smollm2.rlxc
  rlx compile model.onnx model.rlxc
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.export import add_arguments, export

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "compile", __doc__)
    add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    return export("cpu", args)
