"""Fine-tune a language model on a text, or on the answers of chats. This trains a small adapter (LoRA) over frozen
weights, which may be quantised, or with --full all weights of a float model.

A line of a .jsonl file has `messages` ([{"role": .., "content": ..}, ..]), or `prompt` and `completion`. The folder
gets the adapter in PEFT's format, metrics.jsonl, loss.png and checkpoints: stop at any time, --resume continues.

examples:
  rlx finetune smollm2 --data chats.jsonl --lora 8 --steps 200 --out run
  rlx finetune smollm2 --data chats.jsonl --lora 8 --steps 400 --out run --resume
  rlx chat smollm2 --adapter run
  rlx finetune model.gguf --data book.txt --lora 16 --dora --target q_proj --target v_proj --out run
  rlx convert smollm2 merged.gguf --adapter run
  rlx launch -n 4 -m rlx finetune smollm2 --data chats.jsonl --batch 8 --out run --mesh data=4
"""

from __future__ import annotations

import argparse
import json
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import joined_layout, not_negative, path, positive
from rlx.cli.waiting import Waiting
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "finetune", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, a Hugging Face directory or a name")
    parser.add_argument("--data", type=path, required=True, metavar="FILE", help="a .txt file, or .jsonl of chats")
    parser.add_argument("--out", type=path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--steps", type=positive, default=100, metavar="N", help="total number of steps (default: 100)")
    parser.add_argument("--resume", action="store_true", help="continue the run in the folder")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--lora", type=positive, default=8, metavar="R", help="the rank of the adapter (default: 8)")
    what.add_argument("--full", action="store_true", help="train all weights, and write model.gguf")
    parser.add_argument(
        "--alpha",
        type=float,
        metavar="A",
        help="scale of the adapter: its update is multiplied by A / R (default: 2 R)",
    )
    parser.add_argument("--dora", action="store_true", help="train row norms too (DoRA)")
    parser.add_argument(
        "--dropout", type=float, default=0.0, metavar="P", help="dropout of adapter inputs (default: 0)"
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="modules to adapt, such as q_proj; may be repeated (default: all linear layers)",
    )
    parser.add_argument("--batch", type=positive, default=1, metavar="B", help="windows or chats per step (default: 1)")
    parser.add_argument(
        "--length", type=positive, default=256, metavar="L", help="tokens of each, at most (default: 256)"
    )
    parser.add_argument("--rate", type=float, metavar="X", help="the learning rate (default: 2e-4; with --full 2e-5)")
    parser.add_argument("--mesh", metavar="MESH", help="shard the work over devices, such as data=2,tensor=2")
    parser.add_argument(
        "--seed",
        type=not_negative,
        default=0,
        metavar="S",
        help="seed of the weights and the order of data (default: 0)",
    )
    parser.add_argument(
        "--save-every", type=positive, default=50, metavar="N", help="steps between checkpoints (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.distributed import process_index
    from rlx.finetune import AdapterConfig, finetune
    from rlx.models.adapters import ALL_LINEAR

    if args.full and (args.alpha is not None or args.dora or args.dropout or args.target):
        raise RlxError("--alpha, --dora, --dropout and --target are about adapters, and --full trains none")
    targets = tuple(args.target) or (ALL_LINEAR,)
    layout = None if args.mesh is None else joined_layout(args.mesh)
    adapter = None if args.full else AdapterConfig(args.lora, args.alpha, args.dropout, targets, args.dora)
    with ExitStack() as waiting:
        waiting.enter_context(Waiting("compiling the step"))
        done = finetune(
            args.model,
            args.data,
            args.out,
            adapter=adapter,
            steps=args.steps,
            batch=args.batch,
            length=args.length,
            rate=args.rate,
            seed=args.seed,
            save_every=args.save_every,
            resume=args.resume,
            # The first step has been made: from here on the line of the run says how it goes.
            callbacks=[lambda report: waiting.close()],
            layout=layout,
        )
    if process_index() > 0:
        # The first process tells it for all.
        return 0
    losses = [row["loss"] for row in done.fit.history] or [math.nan]
    first, last = losses[0], losses[-1]
    if args.json:
        facts = {"path": str(done.path), "steps": int(done.fit.state.step), "trained": done.trained}
        print(json.dumps({**facts, "first_loss": first, "loss": last}))
    else:
        print(f"{done.path}: {done.trained:,} numbers trained, loss {first:.4f} -> {last:.4f}")
    return 0
