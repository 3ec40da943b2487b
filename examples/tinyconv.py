"""TinyConv-MNIST with weights of 8, 4 and 2 bits: train, round, write the RLXM file of each, count the right digits.

    python examples/tinyconv.py --data FOLDER --train t10k --test train5k --out weights

The folder has IDX files, `NAME-images-idx3-ubyte.gz` and `NAME-labels-idx1-ubyte.gz`, for both names. With fewer than 8
bits, training goes on with weights rounded as the program will have them, one scale per output channel.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, ops, optim, quantized, train

# Rounded weights jump: the fewer their codes, the smaller the steps that settle.
RATES = {8: 0.1, 4: 0.05, 2: 0.01}
SHAPES = {"conv1": (8, 1, 3, 3), "conv2": (16, 8, 3, 3), "fc": (400, 10)}


def digits(folder: Path, name: str) -> dict[str, Any]:
    """Images [N, 1, 28, 28] from -1 to 1, and their labels."""
    images = train.read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = train.read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return {"x": np.float32(images[:, None]) * np.float32(2 / 255) - 1, "y": np.int32(labels)}


def init(key: Any) -> Any:
    keys = rlx.random.split(key, len(SHAPES))
    conv, dense = nn.initializers.he_normal(in_axis=1, out_axis=0), nn.initializers.he_normal()
    made = {name: (dense if name == "fc" else conv)(k, s, "f32") for (name, s), k in zip(SHAPES.items(), keys)}
    channels = {name: s[1] if name == "fc" else s[0] for name, s in SHAPES.items()}
    return {name: {"w": w, "b": np.zeros(channels[name], np.float32)} for name, w in made.items()}


def logits(params: Any, x: Any, bits: int) -> Any:
    """With fewer than 8 bits, weights are rounded; output channels are axis 0 of a convolution, axis 1 of fc."""

    def weight(name: str, axis: int) -> Any:
        w = params[name]["w"]
        return w if bits == 8 else ops.fake_quantize(w, bits=bits, axis=axis)

    # The scale of pixels is part of the format.
    x = ops.fake_quantize(x, 8, scale_mode="fixed", state=np.array([1 / 127], np.float32))
    for name in ("conv1", "conv2"):
        x = nn.max_pool(nn.relu(nn.conv(x, weight(name, 0), params[name]["b"])), 2)
    return x.reshape(x.shape[0], 400) @ weight("fc", 1) + params["fc"]["b"]


def learn(params: Any, data: Any, epochs: float, bits: int, batch: int) -> Any:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        return nn.cross_entropy(logits(params, batch["x"], bits), batch["y"])

    batches = train.array_batches(data, batch)
    steps = max(int(epochs * batches.steps_per_epoch), 1)
    optimizer = optim.sgd(optim.one_cycle(steps, RATES[bits]), momentum=0.9)
    return train.fit(train.make_step(loss, optimizer), train.init_state(params, optimizer), batches, steps).state.params


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the IDX files")
    parser.add_argument("--train", default="train", help="name of the files to learn from")
    parser.add_argument("--test", default="t10k", help="name of the files to count on")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path, help="the folder for tinyconv8.rlxm, tinyconv4.rlxm and tinyconv2.rlxm")
    args = parser.parse_args(argv)

    data, test = digits(args.data, args.train), digits(args.data, args.test)
    floats = learn(init(rlx.random.key(0)), data, args.epochs, 8, args.batch)
    scores: dict[str, float] = {}
    for bits in (8, 4, 2):
        params = floats if bits == 8 else learn(floats, data, args.epochs / 2, bits, args.batch)

        def label(x: Any, params: Any = params, bits: int = bits) -> Any:
            return rnp.argmax(logits(params, x, bits), axis=-1)

        graph = rlx.jit(label).trace(rlx.Spec(("N", 1, 28, 28))).graph
        batches = [{"x": data["x"][:1000]}]
        program = quantized.quantize(graph, {}, batches, bits=bits, name=f"tinyconv{bits}")
        right = quantized.compare(program, graph, {}, test["x"], test["y"]).right
        print(f"{bits}-bit weights: {right['float'] * 100:.2f} % before, {right['integer'] * 100:.2f} % in integers")
        scores |= {f"{bits} bits": right["integer"], f"float, {bits} bits": right["float"]}
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            path = args.out / f"tinyconv{bits}.rlxm"
            quantized.write_rlxm(program, path, right["float"], program.encode(test["x"][:1])[0])
            again = quantized.read_rlxm(path).program
            same = np.array_equal(again.run(program.encode(test["x"])), program.run(test["x"]))
            print(f"  {path.name}: {path.stat().st_size} bytes; labels from the file are the same: {same}")
    return scores


if __name__ == "__main__":
    main()
