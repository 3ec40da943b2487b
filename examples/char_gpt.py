"""A character-level GPT, trained from scratch on any text file.

    python examples/char_gpt.py --data text.txt --steps 2000 --out run

`--steps 100 --width 192` takes half a minute. Stop it at any time; the same command goes on where it stopped. The model
and its training are in `rlx.train.char_gpt`, a file of a hundred lines to read; `rlx train` is the same as a command.
"""

from __future__ import annotations

import argparse
import math

from command_line import run

from rlx import train


def main(argv: list[str] | None = None) -> train.FitResult:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--out", help="a folder for checkpoints, metrics and the loss curve")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--sample", type=int, default=300, help="how many characters to write at the end")
    args = parser.parse_args(argv)

    model = train.CharGpt(args.layers, args.width, args.heads, args.length)
    result = train.train_char_gpt(args.data, args.steps, out=args.out, model=model, batch=args.batch, rate=args.rate)
    if result.history:
        last = result.history[-1]
        print(f"loss {last['loss']:.3f}, on text it has not seen {last.get('eval_loss', math.nan):.3f}")
    print(train.char_gpt_text(result.state.params, model, b"\n", args.sample))
    return result


if __name__ == "__main__":
    run(main)
