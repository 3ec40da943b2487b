"""Train a small language model from scratch: a character-level GPT on any text file, with a sample at the end.

The folder gets metrics.jsonl, loss.png, settings.json and checkpoints: stop at any time, --resume continues, with the
sizes that the run began with. To tune a pretrained model, use `rlx finetune`.

examples:
  rlx train --data book.txt --steps 2000 --out run
  rlx train --data book.txt --steps 2000 --out run --resume --sample 500
  RLX_XLA_DEVICES=8 rlx train --data book.txt --out run --mesh data=4,tensor=2
  rlx launch -n 2 --devices 4 -m rlx train --data book.txt --out run --resume --mesh data=4,tensor=2
"""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import joined_layout, not_negative, path, positive
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers


# The sizes of a run, which a resumed one keeps: what is usual, and what each is.
_SIZES = {
    "layers": (6, "N", "transformer layers"),
    "width": (384, "N", "width of the model"),
    "heads": (6, "N", "attention heads"),
    "length": (128, "L", "context length in bytes"),
    "batch": (8, "B", "windows per step"),
}


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "train", __doc__)
    parser.add_argument("--data", type=path, required=True, metavar="FILE", help="a text file")
    parser.add_argument("--out", type=path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument(
        "--steps", type=positive, default=2000, metavar="N", help="total number of steps (default: 2000)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in the folder")
    for name, (usual, letter, doc) in _SIZES.items():
        parser.add_argument(f"--{name}", type=positive, metavar=letter, help=f"{doc} (default: {usual})")
    parser.add_argument("--rate", type=float, default=1e-3, metavar="X", help="the learning rate (default: 1e-3)")
    parser.add_argument("--mesh", metavar="MESH", help="shard the work over devices, such as data=4,tensor=2")
    parser.add_argument(
        "--save-every", type=positive, default=200, metavar="N", help="steps between checkpoints (default: 200)"
    )
    parser.add_argument(
        "--sample", type=not_negative, default=300, metavar="N", help="characters to sample at the end (default: 300)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.distributed import gather, process_index
    from rlx.train import CharGpt, char_gpt_text, train_char_gpt

    sizes = _sizes(args)
    if sizes["width"] % sizes["heads"]:
        raise RlxError(f"--heads {sizes['heads']} do not divide --width {sizes['width']}")
    if not 0 < args.rate < 10:
        raise RlxError(f"--rate must be above 0 and below 10, got {args.rate}")
    layout = None if args.mesh is None else joined_layout(args.mesh)
    batch = sizes.pop("batch")
    model = CharGpt(**sizes)
    result = train_char_gpt(
        args.data,
        args.steps,
        out=args.out,
        model=model,
        batch=batch,
        rate=args.rate,
        save_every=args.save_every,
        resume=args.resume,
        layout=layout,
    )
    params = result.state.params if layout is None else gather(result.state.params)
    if process_index() > 0:
        return 0
    if not result.history:
        raise RlxError(f"{args.out}: the run has ended, and its metrics.jsonl is gone; choose another folder")
    last = result.history[-1]
    text = char_gpt_text(params, model, b"\n", args.sample) if args.sample else ""
    if args.json:
        facts = {"path": str(args.out), "steps": last["step"], "loss": last["loss"], "eval_loss": last.get("eval_loss")}
        print(json.dumps({**facts, "text": text}))
    else:
        print(f"{args.out}: loss {last['loss']:.4f}, on text it has not seen {last.get('eval_loss', math.nan):.4f}")
        print(_without_controls(text))
    return 0


def _sizes(args: argparse.Namespace) -> dict[str, int]:
    """The sizes that were given; others are those of the run that is resumed, or the usual ones."""
    from rlx.train.settings import kept_settings

    kept = kept_settings(args.out) if args.resume else {}
    given = {name: getattr(args, name) for name in _SIZES}
    return {name: kept.get(name, usual) if given[name] is None else given[name] for name, (usual, *_) in _SIZES.items()}


def _without_controls(text: str) -> str:
    """What a terminal shows as it is: a model that has learned little writes any bytes."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
