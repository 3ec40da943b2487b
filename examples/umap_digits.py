"""Put pictures of digits on a map where similar ones are neighbours (UMAP).

    python examples/umap_digits.py --out digits.png
    python examples/umap_digits.py --images train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz --count 10000

Without files the digits are drawn here, slanted, stretched and blurred at random; with files they are those of MNIST.
The steps are those of McInnes, Healy and Melville (arXiv 1802.03426): nearest neighbours by products and `top_k`, a
weight for each pair of neighbours, and an embedding in the plane that pulls neighbours together and pushes others
apart. The gradient of that is `rlx.grad`; a step of Adam is one compiled program.
"""

from __future__ import annotations

import argparse
import functools
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from pictures import INKS, Canvas, write_png

import rlx
import rlx.numpy as rnp
from rlx import ops

# 1/(1 + A·d^(2B)) is nearest to a curve that is 1 up to the distance 0.1 and then falls as exp(0.1 - d).
A, B = 1.577, 0.895
# Others that push for each neighbour that pulls, and how many of them are drawn for a row in a round.
NEIGHBOURS, PUSHES, SAMPLES = 15, 5, 20
COLOURS = [*INKS, (200, 40, 60), (240, 180, 40), (90, 190, 200), (140, 140, 140)]

# Strokes of each digit in a square, as points that are joined.
_STROKES: list[list[list[tuple[float, float]]]] = [
    [[(0.5, 0.1), (0.2, 0.3), (0.2, 0.7), (0.5, 0.9), (0.8, 0.7), (0.8, 0.3), (0.5, 0.1)]],
    [[(0.35, 0.25), (0.55, 0.1), (0.55, 0.9)]],
    [[(0.2, 0.25), (0.5, 0.1), (0.8, 0.3), (0.2, 0.9), (0.8, 0.9)]],
    [[(0.2, 0.15), (0.75, 0.15), (0.45, 0.45), (0.8, 0.65), (0.55, 0.9), (0.2, 0.8)]],
    [[(0.65, 0.9), (0.65, 0.1), (0.2, 0.6), (0.85, 0.6)]],
    [[(0.75, 0.1), (0.3, 0.1), (0.25, 0.45), (0.7, 0.5), (0.75, 0.8), (0.25, 0.9)]],
    [[(0.7, 0.1), (0.3, 0.45), (0.25, 0.8), (0.6, 0.9), (0.75, 0.65), (0.3, 0.6)]],
    [[(0.2, 0.1), (0.8, 0.1), (0.4, 0.9)]],
    [[(0.5, 0.5), (0.25, 0.3), (0.5, 0.1), (0.75, 0.3), (0.25, 0.7), (0.5, 0.9), (0.75, 0.7), (0.5, 0.5)]],
    [[(0.7, 0.4), (0.35, 0.45), (0.3, 0.2), (0.6, 0.1), (0.7, 0.35), (0.6, 0.9)]],
]


def drawn_digits(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Images f32[count, 784] from 0 to 1 and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    grid = np.stack(np.meshgrid(np.arange(28), np.arange(28)), -1).reshape(-1, 2) + 0.5
    images = np.zeros((count, 784), np.float32)
    for i, label in enumerate(labels):
        bend = np.eye(2) + rng.normal(0, 0.12, (2, 2))
        width = rng.uniform(0.9, 1.6)
        nearest = np.full(784, np.inf)
        for stroke in _STROKES[label]:
            points = ((np.array(stroke) - 0.5 + rng.normal(0, 0.025, (len(stroke), 2))) @ bend.T * 22) + 14
            for p, q in zip(points[:-1], points[1:]):  # noqa: RUF007 (arrays of points)
                part = np.clip((grid - p) @ (q - p) / max(np.sum((q - p) ** 2), 1e-9), 0, 1)
                nearest = np.minimum(nearest, np.linalg.norm(grid - p - part[:, None] * (q - p), axis=-1))
        images[i] = np.clip(1.5 - nearest / width, 0, 1)
    return images, labels


def read_idx(path: Path) -> Any:
    """An array of a file in MNIST's format."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not a file of bytes in MNIST's format")
    dims = np.frombuffer(data, ">u4", data[3], 4).astype(int)
    return np.frombuffer(data, np.uint8, int(dims.prod()), 4 + 4 * len(dims)).reshape(dims)


@functools.partial(rlx.jit, static_argnums=3)
def _nearest(rows: Any, ids: Any, x: Any, k: int) -> Any:
    squared = rnp.sum(rows * rows, -1)[:, None] + rnp.sum(x * x, -1) - 2.0 * (rows @ x.T)
    itself = ids[:, None] == rnp.arange(len(x))
    near, found = ops.top_k(rnp.where(itself, -np.inf, -rnp.maximum(squared, 0.0)), k)
    return found, rnp.sqrt(-near)


def neighbours(x: Any, k: int = NEIGHBOURS, block: int = 1000) -> tuple[Any, Any]:
    """The k nearest others of each row, i32[n, k], and their distances."""
    parts = []
    for first in range(0, len(x), block):
        ids = np.arange(first, min(first + block, len(x)), dtype=np.int32)
        parts.append([np.asarray(p) for p in _nearest(x[ids], ids, x, k)])
    found, distances = (np.concatenate(p) for p in zip(*parts))
    return found, distances


@rlx.jit
def weights(distances: Any) -> Any:
    """exp(-(d - nearest)/scale) for each neighbour, the scale of a row being such that the sum is log2(k)."""
    beyond = distances - distances[:, :1]
    wanted = np.log2(distances.shape[1])

    def halve(_: Any, bounds: Any) -> Any:
        low, high = bounds
        middle = 0.5 * (low + high)
        too_much = rnp.sum(rnp.exp(-beyond / middle[:, None]), -1) > wanted
        return rnp.where(too_much, low, middle), rnp.where(too_much, middle, high)

    low = rnp.full(distances.shape[:1], 1e-3, "float32") * (rnp.mean(distances) + 1e-6)
    low, high = rlx.fori_loop(0, 40, halve, (low, 1e4 * low))
    return rnp.exp(-beyond / (0.5 * (low + high))[:, None])


def joined(found: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Pairs (i < j) and a + b - a·b of the weights that they have for each other."""
    n, k = found.shape
    i, j = np.repeat(np.arange(n), k), found.reshape(-1).astype(np.int64)
    keys, where = np.unique(np.minimum(i, j) * n + np.maximum(i, j), return_inverse=True)
    sums = np.bincount(where, weight.reshape(-1))
    products = np.zeros(len(keys))
    twice = np.bincount(where) == 2
    logs = np.bincount(where, np.log(np.maximum(weight.reshape(-1), 1e-30)))
    products[twice] = np.exp(logs[twice])
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32), (sums - products).astype(np.float32)


def first_map(x: Any) -> Any:
    """The two main directions of the data, ten wide; some rounds of subspace iteration find them well enough."""
    centred = x - x.mean(0)
    square = centred.T @ centred
    axes = np.random.default_rng(0).standard_normal((len(square), 6)).astype(np.float32)
    for _ in range(20):
        axes, _ = np.linalg.qr(square @ axes)
    flat = centred @ axes[:, :2]
    return (10.0 * flat / abs(flat).max()).astype(np.float32)


def loss(y: Any, i: Any, j: Any, w: Any, strength: Any, others: Any) -> Any:
    """Of places f32[2, n], with the points along the long axis, as vector units like them. Neighbours i and j pull each
    other with the weight w, and each point is pushed by some `others`, which stay where they are: they are pushed when
    it is their turn."""
    near = rnp.sum((y[:, i] - y[:, j]) ** 2, 0)
    far = rnp.sum((y[:, None] - rlx.stop_gradient(y)[:, others]) ** 2, 0)
    pull = rnp.sum(w * rnp.log1p(A * (near + 1e-9) ** B))
    # -log(1 - q) with q = 1/(1 + A·d^(2B)), kept from infinity at 0.
    grown = A * (far + 1e-9) ** B
    push = rnp.sum(strength * (rnp.log1p(grown) - rnp.log(grown + 1e-3)))
    return (pull + push) / y.shape[1]


@rlx.jit
def update(y: Any, m: Any, v: Any, t: Any, rate: Any, key: Any, pairs: Any) -> Any:
    """The next places, by a step of Adam."""
    key, own = rlx.random.split(key)
    others = rlx.random.randint(own, (SAMPLES, y.shape[1]), 0, y.shape[1])
    slope = rlx.grad(loss)(y, *pairs, others)
    m, v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope * slope
    return y - rate * (m / (1 - 0.9**t)) / (rnp.sqrt(v / (1 - 0.99**t)) + 1e-8), m, v, key


def embed(x: Any, rounds: int = 700, seed: int = 0) -> Any:
    """Places f32[n, 2] of the rows of x."""
    found, distances = neighbours(x)
    i, j, w = joined(found, np.asarray(weights(distances)))
    # Every pair has its pushes at both ends; a row has all of its own together, from few others.
    ends = np.bincount(i, w, len(x)) + np.bincount(j, w, len(x))
    pairs = i, j, w, (ends * PUSHES / SAMPLES).astype(np.float32)
    y = first_map(x).T.copy()
    m, v, key = np.zeros_like(y), np.zeros_like(y), rlx.random.key(seed)
    for t in range(1, rounds + 1):
        rate = 0.35 * (1.0 - t / (rounds + 1.0))
        y, m, v, key = update(y, m, v, np.float32(t), np.float32(rate), key, pairs)
    return np.asarray(y).T.copy()


def trustworthiness(x: Any, y: Any, k: int = NEIGHBOURS) -> float:
    """1 where all neighbours on the map are neighbours in the data, too; the measure of Venna and Kaski."""
    n = len(x)
    near, _ = neighbours(np.ascontiguousarray(y), k)
    excess = 0.0
    for row in range(n):
        distance = np.sum((x - x[row]) ** 2, -1)
        distance[row] = -1.0
        rank = np.empty(n, int)
        rank[np.argsort(distance, kind="stable")] = np.arange(n)
        excess += np.maximum(rank[near[row]] - k, 0).sum()
    return 1.0 - 2.0 / (n * k * (2 * n - 3 * k - 1)) * excess


def purity(y: Any, labels: Any) -> float:
    """The share of neighbours on the map that show the same digit."""
    near, _ = neighbours(np.ascontiguousarray(y))
    return float(np.mean(labels[near] == labels[:, None]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits.png"))
    parser.add_argument("--images", type=Path, help="MNIST's images")
    parser.add_argument("--labels", type=Path, help="MNIST's labels")
    parser.add_argument("--count", type=int, default=2000)
    args = parser.parse_args()
    if (args.images is None) != (args.labels is None):
        parser.error("--images and --labels belong together")
    if args.images is None:
        x, labels = drawn_digits(args.count)
    else:
        x = read_idx(args.images)[: args.count].reshape(args.count, -1).astype(np.float32) / 255
        labels = read_idx(args.labels)[: args.count]
    y = embed(x)
    print(f"{len(x)} images; trustworthiness {trustworthiness(x, y):.3f}; neighbours alike {purity(y, labels):.1%}")
    low, high = y.min(0) - 1, y.max(0) + 1
    canvas = Canvas(tuple(low), tuple(high), 720, 720)
    for digit in range(10):
        canvas.dots(y[labels == digit, 0], y[labels == digit, 1], COLOURS[digit], 3)
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
