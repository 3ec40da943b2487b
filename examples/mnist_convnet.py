"""A convolutional network for handwritten digits, with random shifts of the images, in one compiled step.

    python examples/mnist_convnet.py --data FOLDER --train t10k --test train5k

The folder has IDX files, `NAME-images-idx3-ubyte.gz` and `NAME-labels-idx1-ubyte.gz`, for both names.
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


def digits(folder: Path, name: str) -> dict[str, Any]:
    """Images [N, 1, 28, 28] from 0 to 1, and their labels."""
    images = train.read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = train.read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return {"x": np.float32(images[:, None]) / 255, "y": np.int32(labels)}


NETWORK = nn.chain(
    nn.conv_layer(32, 3),
    nn.relu,
    lambda x: nn.max_pool(x, 2),
    nn.conv_layer(64, 3),
    nn.relu,
    lambda x: nn.max_pool(x, 2),
    nn.flatten(),
    nn.dropout_layer(0.3),
    nn.dense(128),
    nn.relu,
    nn.dense(10),
)


def shifted(x: Any, key: Any, most: int = 2) -> Any:
    """All images of a batch moved by up to `most` pixels; every batch by its own number of rows and columns."""
    padded = rnp.pad(x, ((0, 0), (0, 0), (most, most), (most, most)))
    start = rlx.random.randint(key, (2,), 0, 2 * most + 1)
    return rlx.dynamic_slice(padded, (0, 0, start[0], start[1]), x.shape)


def loss(params: Any, batch: Any, key: Any) -> Any:
    logits = NETWORK.apply(params, shifted(batch["x"], key), rlx.random.fold_in(key, 1))
    return nn.cross_entropy(logits, batch["y"], label_smoothing=0.05)


@rlx.jit
def right(params: Any, x: Any, y: Any) -> Any:
    return rnp.sum(rnp.argmax(NETWORK.apply(params, x), axis=-1) == y)


def accuracy(params: Any, data: dict[str, Any], batch: int = 500) -> float:
    found = [right(params, data["x"][n : n + batch], data["y"][n : n + batch]) for n in range(0, len(data["y"]), batch)]
    return sum(int(n) for n in found) / len(data["y"])


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the files to learn from")
    parser.add_argument("--test", default="t10k", help="name of the files to count on")
    parser.add_argument("--out", help="a folder for checkpoints, metrics and the loss curve")
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args(argv)

    learn, test = digits(args.data, args.train), digits(args.data, args.test)
    batches = train.array_batches(learn, args.batch)
    steps = max(int(args.epochs * batches.steps_per_epoch), 1)
    optimizer = optim.adamw(optim.one_cycle(steps, args.rate), weight_decay=1e-2)
    params = NETWORK.init(rlx.random.key(0), learn["x"].shape)
    result = train.fit(
        train.make_step(loss, optimizer),
        train.init_state(params, optimizer),
        batches,
        steps,
        out=args.out,
        save_every=500,
        evaluate=lambda params: {"loss": 1 - accuracy(params, test)},
        evaluate_every=batches.steps_per_epoch,
    )
    score = accuracy(result.state.params, test)
    print(f"{score:.2%} of {len(test['y'])} test images are read right after {steps} steps")
    return score


if __name__ == "__main__":
    run(main)
