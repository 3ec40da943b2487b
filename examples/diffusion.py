"""Diffusion: a network learns to remove noise from handwritten digits, then makes digits from noise alone.

    python examples/diffusion.py --data FOLDER --train t10k --out run

It writes digits that never were to `new_digits.png` in the folder `--out`. The way back from noise is one `rlx.scan`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train

WIDTH, WAVES = 512, 16
BLOCKS = [nn.chain(nn.norm_layer(), nn.dense(WIDTH), nn.silu, nn.dense(WIDTH)) for _ in range(3)]
ENTRY, EXIT = nn.dense(WIDTH), nn.chain(nn.norm_layer(), nn.dense(784))


def init(key: Any) -> dict[str, Any]:
    keys = rlx.random.split(key, len(BLOCKS) + 2)
    return {
        "entry": ENTRY.init(keys[0], (1, 784 + 2 * WAVES)),
        "blocks": [block.init(k, (1, WIDTH)) for block, k in zip(BLOCKS, keys[1:-1])],
        "exit": EXIT.init(keys[-1], (1, WIDTH)),
    }


def strength(t: Any) -> tuple[Any, Any]:
    """How much of the picture and how much noise there is at time t, from 0 (picture) to 1 (noise)."""
    angle = t * (0.98 * math.pi / 2) + 0.01
    return rnp.cos(angle), rnp.sin(angle)


def picture_in(params: Any, x: Any, t: Any) -> Any:
    """The pictures that the network sees in noisy ones x [B, 784] at times t [B].

    Not the noise, which has as many directions as there are pixels, more than fit through the network.
    """
    angles = t[:, None] * np.float32(2.0 ** np.linspace(0, 6, WAVES))
    h = ENTRY.apply(params["entry"], rnp.concatenate([x, rnp.sin(angles), rnp.cos(angles)], axis=1))
    for block, weights in zip(BLOCKS, params["blocks"]):
        h = h + block.apply(weights, h)
    return EXIT.apply(params["exit"], h)


def loss(params: Any, pictures: Any, key: Any) -> Any:
    first, second = rlx.random.split(key)
    t = rlx.random.uniform(first, (pictures.shape[0],))
    noise = rlx.random.normal(second, pictures.shape)
    kept, added = strength(t[:, None])
    return rnp.mean((picture_in(params, kept * pictures + added * noise, t) - pictures) ** 2)


def new_digits(params: Any, count: int, steps: int = 60, seed: int = 1) -> Any:
    """From noise to pictures in `steps` steps without new noise (Song et al. 2020); values about -1 to 1."""

    def step(x: Any, times: Any) -> tuple[Any, None]:
        now, after = times
        picture = rnp.clip(picture_in(params, x, rnp.broadcast_to(now, (count,))), -1.0, 1.0)
        kept, added = strength(now)
        noise = (x - kept * picture) / added
        kept, added = strength(after)
        return kept * picture + added * noise, None

    times = np.linspace(1, 0, steps + 1).astype("f4")
    start = rlx.random.normal(rlx.random.key(seed), (count, 784))
    return rlx.jit(lambda start: rlx.scan(step, start, (times[:-1], times[1:]))[0])(start)


def main(argv: list[str] | None = None) -> train.FitResult:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the file to learn from")
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    parser.add_argument("--epochs", type=float, default=60)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args(argv)
    images = train.read_idx(args.data / f"{args.train}-images-idx3-ubyte.gz")
    batches = train.array_batches(np.float32(images.reshape(len(images), -1)) / 127.5 - 1, args.batch)
    steps = max(int(args.epochs * batches.steps_per_epoch), 1)
    optimizer = optim.adam(optim.warmup_cosine(1e-3, steps // 20, steps))
    state = train.init_state(init(rlx.random.key(0)), optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, batches, steps, out=args.out, save_every=500)
    print(f"mean square of what is wrong in a pixel: {result.history[-1]['loss']:.3f}")
    if args.out is not None:
        pictures = np.clip(np.asarray(new_digits(result.state.params, 40)) * 127.5 + 127.5, 0, 255).astype(np.uint8)
        grid = pictures.reshape(4, 10, 28, 28).transpose(0, 2, 1, 3).reshape(112, 280)
        train.write_png(args.out / "new_digits.png", grid.repeat(2, 0).repeat(2, 1))
    return result


if __name__ == "__main__":
    run(main)
