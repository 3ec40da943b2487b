"""A GRU and a two-layer transformer in integers: digits read row by row, quantised, and what is lost counted.

    python examples/sequence_int8.py --data FOLDER --train t10k --test train5k --model gru --out rows.rlxq

The folder has IDX files, `NAME-images-idx3-ubyte.gz` and `NAME-labels-idx1-ubyte.gz`, for both names. An image is a
sequence of 28 frames of 28 numbers, as a spectrogram is one of a spoken word.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, quantized, train

FRAMES = FEATURES = 28


def sequences(folder: Path, name: str) -> dict[str, Any]:
    """Frames [N, 28, 28] from 0 to 1, and labels."""
    images = train.read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = train.read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return {"x": np.float32(images) / 255, "y": np.int32(labels)}


def body(model: str, width: int) -> nn.Layer:
    """From sequences [N, 28, width] to sequences of the same width."""
    if model == "gru":
        return nn.gru(width)
    return nn.chain(*(nn.transformer_block(4, 2 * width, use_bias=True) for _ in range(2)))


def init(model: str, width: int, key: Any) -> Any:
    keys = rlx.random.split(key, 4)
    small = nn.initializers.normal(0.02)
    return {
        "in": nn.initializers.lecun_normal()(keys[0], (FEATURES, width), "f32"),
        "places": small(keys[1], (FRAMES, width), "f32"),
        "body": body(model, width).init(keys[2], (1, FRAMES, width)),
        "out": nn.initializers.lecun_normal()(keys[3], (width, 10), "f32"),
    }


def logits(model: str, params: Any, x: Any) -> Any:
    width = params["out"].shape[0]
    inside = body(model, width).apply(params["body"], x @ params["in"] + params["places"])
    # A GRU has seen everything after the last frame; a transformer at each.
    end = inside[:, -1] if model == "gru" else rnp.mean(inside, axis=1)
    return end @ params["out"]


def learn(model: str, params: Any, data: Any, epochs: float, batch: int) -> Any:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        return nn.cross_entropy(logits(model, params, batch["x"]), batch["y"], label_smoothing=0.05)

    batches = train.array_batches(data, batch)
    steps = max(int(epochs * batches.steps_per_epoch), 1)
    optimizer = optim.adamw(optim.one_cycle(steps, 4e-3), weight_decay=1e-2)
    return train.fit(train.make_step(loss, optimizer), train.init_state(params, optimizer), batches, steps).state.params


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the files to learn from")
    parser.add_argument("--test", default="t10k", help="name of the files to count on")
    parser.add_argument("--model", choices=("gru", "transformer"), default="gru")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--out", type=Path, help="the file for the 8-bit program (.rlxq)")
    args = parser.parse_args(argv)

    data, test = sequences(args.data, args.train), sequences(args.data, args.test)
    params = learn(args.model, init(args.model, args.width, rlx.random.key(0)), data, args.epochs, args.batch)

    def label(x: Any) -> Any:
        return rnp.argmax(logits(args.model, params, x), axis=-1)

    graph = rlx.jit(label).trace(rlx.Spec(("N", FRAMES, FEATURES))).graph
    seen = [{"x": data["x"][n : n + 100]} for n in range(0, min(len(data["x"]), 1000), 100)]
    scores = {}
    forms: dict[str, dict[str, Any]] = {"int8": {}, "int4 weights": {"bits": 4}, "int16 values": {"activations": "i16"}}
    for what, options in forms.items():
        program = quantized.quantize(graph, {}, seen, name=args.model, **options)
        report = quantized.compare(program, graph, {}, test["x"], test["y"])
        print(f"{what}: {str(report).splitlines()[0]}")
        scores |= {"float": report.right["float"], what: report.right["integer"]}
        if what == "int8" and args.out is not None:
            quantized.save(program, args.out)
    return scores


if __name__ == "__main__":
    main()
