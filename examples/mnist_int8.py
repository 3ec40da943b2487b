"""Handwritten digits in integers: train, quantise to 8 and 4 bits, and count what is lost.

    python examples/mnist_int8.py --data FOLDER --train t10k --test train5k --out digits.rlxq

The folder has IDX files, `NAME-images-idx3-ubyte.gz` and `NAME-labels-idx1-ubyte.gz`, for both names. The 8-bit program
comes from a calibration alone; the 4-bit one also from a few epochs of training that rounds as the program will.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, ops, optim, quantized, train

# Name, shape of the weights, axis of their output channels; images get smaller by half after each convolution.
CONVOLUTIONS = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "conv3": (32, 32, 3, 3)}
DENSE = {"dense1": (288, 64), "dense2": (64, 10)}


def digits(folder: Path, name: str) -> dict[str, Any]:
    """Images [N, 1, 28, 28] from 0 to 1, and their labels."""
    images = train.read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = train.read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return {"x": np.float32(images[:, None]) / 255, "y": np.int32(labels)}


def init(key: Any) -> Any:
    keys = iter(rlx.random.split(key, len(CONVOLUTIONS) + len(DENSE)))
    he_conv, he = nn.initializers.he_normal(in_axis=1, out_axis=0), nn.initializers.he_normal()
    weights = {name: he_conv(next(keys), shape, "f32") for name, shape in CONVOLUTIONS.items()}
    weights |= {name: he(next(keys), shape, "f32") for name, shape in DENSE.items()}
    channels = {name: shape[0] for name, shape in CONVOLUTIONS.items()} | {n: s[1] for n, s in DENSE.items()}
    return {name: {"w": w, "b": np.zeros(channels[name], np.float32)} for name, w in weights.items()}


def logits(params: Any, x: Any, key: Any = None, bits: int | None = None) -> Any:
    """With `bits`, weights are rounded to so many, and activations to 8, with the steps that are learned in params."""

    def weight(name: str, axis: int) -> Any:
        w = params[name]["w"]
        return w if bits is None else ops.fake_quantize(w, bits=bits, axis=axis)

    def rounded(name: str, x: Any) -> Any:
        return x if bits is None else ops.fake_quantize_lsq(x, rnp.exp(params["log_steps"][name]), bits=8)

    x = rounded("input", x)
    for name in CONVOLUTIONS:
        x = rounded(name, nn.relu(nn.conv(x, weight(name, 0), params[name]["b"], padding="same")))
        x = nn.max_pool(x, 2)
    x = x.reshape(x.shape[0], 288)
    if key is not None:
        x = nn.dropout(x, 0.2, key)
    x = rounded("dense1", nn.relu(x @ weight("dense1", 1) + params["dense1"]["b"]))
    return rounded("dense2", x @ weight("dense2", 1) + params["dense2"]["b"])


def shifted(x: Any, key: Any, most: int = 2) -> Any:
    """Every image moved by its own number of rows and columns, up to `most`."""
    padded = rnp.pad(x, ((0, 0), (0, 0), (most, most), (most, most)))
    starts = rlx.random.randint(key, (x.shape[0], 2), 0, 2 * most + 1)
    return rlx.vmap(lambda image, at: rlx.dynamic_slice(image, (0, at[0], at[1]), x.shape[1:]))(padded, starts)


def learn(params: Any, data: Any, epochs: float, rate: float, batch: int, bits: int | None = None) -> Any:
    """The parameters after so many epochs."""

    def loss(params: Any, batch: Any, key: Any) -> Any:
        keys = rlx.random.split(key, 2)
        found = logits(params, shifted(batch["x"], keys[0]), None if bits else keys[1], bits)
        return nn.cross_entropy(found, batch["y"], label_smoothing=0.05)

    batches = train.array_batches(data, batch)
    steps = max(int(epochs * batches.steps_per_epoch), 1)
    optimizer = optim.adamw(optim.one_cycle(steps, rate), weight_decay=1e-2)
    step = train.make_step(loss, optimizer)
    return train.fit(step, train.init_state(params, optimizer), batches, steps).state.params


def program_of(params: Any, images: Any, bits: int, trained: bool = False) -> tuple[Any, Any]:
    """The graph from images to labels, and its integer program; `trained` graphs have their own rounding."""

    def label(x: Any) -> Any:
        return rnp.argmax(logits(params, x, bits=bits if trained else None), axis=-1)

    graph = rlx.jit(label).trace(rlx.Spec(("N", 1, 28, 28))).graph
    batches = [] if trained else [{"x": images[n : n + 100]} for n in range(0, len(images), 100)]
    return graph, quantized.quantize(graph, {}, batches, bits=bits, name="mnist" if bits == 8 else f"mnist_int{bits}")


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the files to learn from")
    parser.add_argument("--test", default="t10k", help="name of the files to count on")
    parser.add_argument("--epochs", type=float, default=15)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--tune", type=float, default=3, help="epochs of training with 4-bit weights")
    parser.add_argument("--out", type=Path, help="the file for the 8-bit program (.rlxq); the 4-bit one lies beside it")
    args = parser.parse_args(argv)

    data, test = digits(args.data, args.train), digits(args.data, args.test)
    params = learn(init(rlx.random.key(0)), data, args.epochs, 3e-3, args.batch)
    seen = data["x"][:1000]
    float_graph, eight = program_of(params, seen, 8)
    _, four = program_of(params, seen, 4)

    # Training goes on from the scales that the calibration found, and learns their logarithms: they stay positive.
    steps = {"input": eight.input.scale, **{s.name: s.out.scale for s in eight.steps if s.macs}}
    params["log_steps"] = {name: np.log(np.float32([step])) for name, step in steps.items()}
    tuned_params = learn(params, data, args.tune, 5e-4, args.batch, bits=4)
    _, tuned = program_of(tuned_params, seen, 4, trained=True)

    scores = {}
    for what, program in {"8 bits": eight, "4 bits": four, "4 bits, trained": tuned}.items():
        report = quantized.compare(program, float_graph, {}, test["x"], test["y"])
        print(f"{what}: {report}")
        scores |= {"float": report.right["float"], what: report.right["integer"]}
    if args.out is not None:
        quantized.save(eight, args.out)
        quantized.save(tuned, args.out.with_stem(f"{args.out.stem}_int4"))
        same = np.array_equal(quantized.load(args.out).run(test["x"], device="cpu"), eight.run(test["x"]))
        print(f"{args.out}: {args.out.stat().st_size} bytes; labels from the file on the CPU are the same: {same}")
    return scores


if __name__ == "__main__":
    main()
