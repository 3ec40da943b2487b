"""A variational autoencoder of handwritten digits: images to a few numbers and back, then new digits from noise.

    python examples/vae.py --data FOLDER --train t10k --out run

It writes digits that never were to `new_digits.png` in the folder `--out`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train

CODE = 12
ENCODER, DECODER = nn.mlp([256, 2 * CODE]), nn.mlp([256, 784])


def loss(params: Any, batch: Any, key: Any) -> Any:
    """The negative evidence bound: what the picture costs given the code, and the code given a normal distribution."""
    mean, log_var = rnp.split(ENCODER.apply(params["encoder"], batch), 2, axis=-1)
    code = mean + rnp.exp(0.5 * log_var) * rlx.random.normal(key, mean.shape)
    logits = DECODER.apply(params["decoder"], code)
    pixels = rnp.mean(rnp.sum(nn.binary_cross_entropy_with_logits(logits, batch, reduction="none"), axis=1))
    divergence = rnp.mean(0.5 * rnp.sum(mean**2 + rnp.exp(log_var) - 1 - log_var, axis=1))
    return pixels + divergence, {"pixels": pixels, "divergence": divergence}


def new_digits(params: Any, count: int, seed: int = 1) -> Any:
    code = rlx.random.normal(rlx.random.key(seed), (count, CODE))
    return np.asarray(nn.sigmoid(DECODER.apply(params["decoder"], code))).reshape(count, 28, 28)


def main(argv: list[str] | None = None) -> train.FitResult:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the file to learn from")
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--batch", type=int, default=100)
    args = parser.parse_args(argv)
    images = train.read_idx(args.data / f"{args.train}-images-idx3-ubyte.gz")
    batches = train.array_batches(np.float32(images.reshape(len(images), -1)) / 255, args.batch)
    steps = max(int(args.epochs * batches.steps_per_epoch), 1)
    first, second = rlx.random.split(rlx.random.key(0))
    params = {"encoder": ENCODER.init(first, (1, 784)), "decoder": DECODER.init(second, (1, CODE))}
    optimizer = optim.adam(optim.warmup_cosine(2e-3, steps // 20, steps))
    state = train.init_state(params, optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, batches, steps, out=args.out, save_every=500)
    last = result.history[-1]
    print(f"bound {last['loss']:.1f} nats: {last['pixels']:.1f} for the pixels, {last['divergence']:.1f} for the code")
    if args.out is not None:
        grid = new_digits(result.state.params, 40).reshape(4, 10, 28, 28).transpose(0, 2, 1, 3).reshape(112, 280)
        train.write_png(args.out / "new_digits.png", np.uint8(255 * grid).repeat(2, 0).repeat(2, 1))
    return result


if __name__ == "__main__":
    run(main)
