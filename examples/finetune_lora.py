"""LoRA of a small language model: the base stays as it is, packed, and 40 steps teach it a rhyme.

    python examples/finetune_lora.py                                     # the model that comes with rlx
    python examples/finetune_lora.py --model smollm2 --data chats.jsonl --steps 200 --out run

Stop it at any time; the same command goes on where it stopped. `rlx finetune` is the same as a command.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from command_line import run

import rlx
import rlx.models
from rlx.finetune import AdapterConfig, FinetuneResult, finetune

SHIPPED = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
RHYME = "Jack and Jill went up the hill to fetch a pail of water. "


def main(argv: list[str] | None = None) -> FinetuneResult:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(SHIPPED), help="a GGUF file, a Hugging Face directory or a name")
    parser.add_argument("--data", help="a .txt file, or a .jsonl file of chats (default: a rhyme)")
    parser.add_argument("--out", help="a folder for the adapter (default: one that is thrown away)")
    parser.add_argument("--prompt", default="Jack and")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--targets", nargs="+", default=["v_proj", "down_proj"])
    args = parser.parse_args(argv)

    with tempfile.TemporaryDirectory() as scratch:
        data = Path(args.data) if args.data else Path(scratch) / "rhyme.txt"
        if not args.data:
            data.write_text(RHYME * 40)
        done = finetune(
            args.model,
            data,
            args.out or Path(scratch) / "run",
            adapter=AdapterConfig(rank=args.rank, targets=tuple(args.targets)),
            steps=args.steps,
            length=args.length,
            rate=args.rate,
            resume=True,
        )
        losses = [row["loss"] for row in done.fit.history]
        print(f"{done.trained:,} numbers trained, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
        for name, adapter in (("before", None), ("after", done.path)):
            lm = rlx.load(args.model, adapter=adapter)
            print(f"{name}: {args.prompt}{lm.generate(args.prompt, max_tokens=16)!r}")
    return done


if __name__ == "__main__":
    run(main)
