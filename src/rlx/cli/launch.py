"""Run a script in several processes that make one mesh of their devices, and watch over them.

Each process finds the others with rlx.distributed.initialize(). Their output has the number of the process in front.
When one dies, the others are ended within two seconds; with --restarts all of them are started again, and a script that
resumes from its last checkpoint goes on.

examples:
  rlx launch -n 4 train.py --steps 1000
  rlx launch -n 2 --devices 4 --restarts 3 train.py
  rlx launch -n 2 --devices 4 -m rlx train --data book.txt --out run --resume --mesh data=8
  rlx launch -n 8 --nodes 2 --node 1 --coordinator node0:29400 train.py
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import not_negative, positive

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "launch", __doc__)
    parser.add_argument(
        "-n", "--processes", type=positive, required=True, metavar="N", help="processes on this machine"
    )
    parser.add_argument("--devices", type=positive, metavar="K", help="XLA devices per process")
    parser.add_argument(
        "--restarts",
        type=not_negative,
        default=0,
        metavar="N",
        help="restart after a failure at most N times (default: 0)",
    )
    parser.add_argument(
        "--nodes", type=positive, default=1, metavar="N", help="number of machines that run this command (default: 1)"
    )
    parser.add_argument("--node", type=not_negative, default=0, metavar="I", help="the index of this machine, from 0")
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="where process 0 listens (default: this machine, a free port)"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.distributed.launch import launch

    return launch(
        [*(["-m"] if args.module else []), args.script, *args.arguments],
        args.processes,
        devices=args.devices,
        restarts=args.restarts,
        nodes=args.nodes,
        node=args.node,
        coordinator=args.coordinator,
    )
