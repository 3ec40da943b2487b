"""The programs that engines are compared on, written once for all of them.

A program takes the words of an engine and its operands by name. Weights are operands too, which an engine may prepare.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlx.bench.kernel_programs import ExactWords, kernel_programs

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = Mapping[str, int]
Value = Any

LAYERS, HIDDEN, HEADS, INNER, VOCABULARY, LONGEST = 6, 384, 12, 1536, 30522, 512


class Words(Protocol):
    """What an engine must be able to say; shapes follow NumPy's rules."""

    def matmul(self, a: Value, b: Value) -> Value: ...
    def linear(self, x: Value, weight: Value, bias: Value) -> Value:
        """x·weight + bias."""
        ...

    def add(self, a: Value, b: Value) -> Value: ...
    def mul(self, a: Value, b: Value) -> Value: ...
    def gelu(self, x: Value) -> Value:
        """x·Φ(x), by erf."""
        ...

    def silu(self, x: Value) -> Value: ...
    def softmax(self, x: Value) -> Value:
        """Along the last axis."""
        ...

    def layer_norm(self, x: Value, gamma: Value, beta: Value) -> Value: ...
    def rms_norm(self, x: Value, gamma: Value) -> Value: ...
    def cross_entropy(self, logits: Value, labels: Value) -> Value:
        """One loss per row."""
        ...

    def attention(self, q: Value, k: Value, v: Value, causal: bool) -> Value:
        """On [batch, heads, sequence, depth]; k and v may have fewer heads."""
        ...

    def take(self, table: Value, ids: Value) -> Value: ...
    def first_rows(self, table: Value, like: Value) -> Value:
        """As many rows of a table as `like` has along axis 1."""
        ...

    def split_heads(self, x: Value, heads: int) -> Value:
        """[batch, sequence, heads·depth] to [batch, heads, sequence, depth]."""
        ...

    def join_heads(self, x: Value) -> Value: ...


class Program(NamedTuple):
    """`build(words, operands)`; `operands(sizes, rng)` are inputs and weights. `work` is flops and bytes for sizes.

    `dynamic` names the axes of inputs that may change between runs, for engines that compile once for all sizes.
    """

    build: Callable[[Words, Mapping[str, Value]], Value]
    operands: Callable[[Sizes, np.random.Generator], tuple[dict[str, Array], dict[str, Array]]]
    work: Callable[[Sizes], tuple[float, float]]
    dynamic: Mapping[str, tuple[str | int, ...]] = {}


def normal(rng: np.random.Generator, *dims: int, scale: float = 1.0) -> Array:
    values: Array = rng.standard_normal(dims, np.float32) * np.float32(scale)
    return values


def _matrices(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    x = normal(rng, s["m"], s["k"])
    weights = {"w": normal(rng, s["k"], s["n"], scale=s["k"] ** -0.5), "b": normal(rng, s["n"])}
    return {"x": x}, weights


def _two_matrices(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    scale = s["k"] ** -0.5
    weights = {name: normal(rng, s["k"], s["n"], scale=scale) for name in ("gate", "up")}
    return {"x": normal(rng, s["m"], s["k"])}, weights


def _product_work(products: int) -> Callable[[Sizes], tuple[float, float]]:
    def work(s: Sizes) -> tuple[float, float]:
        m, n, k = s["m"], s["n"], s["k"]
        return 2.0 * products * m * n * k, 4.0 * (m * k + products * n * k + m * n)

    return work


def _rows(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    rows, width = s["rows"], s["width"]
    inputs = {"x": normal(rng, rows, width), "r": normal(rng, rows, width)}
    return inputs, {"gamma": normal(rng, width), "beta": normal(rng, width)}


def _labelled_rows(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    labels = rng.integers(0, s["width"], s["rows"]).astype(np.int32)
    return {"x": normal(rng, s["rows"], s["width"]), "labels": labels}, {}


def _row_work(passes: int, flops: int) -> Callable[[Sizes], tuple[float, float]]:
    """`passes` reads or writes of the rows, and operations for each element."""

    def work(s: Sizes) -> tuple[float, float]:
        count = float(s["rows"] * s["width"])
        return flops * count, 4.0 * passes * count

    return work


def _heads(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    kv_heads, keys = s.get("kv_heads", s["heads"]), s.get("keys", s["seq"])
    q = normal(rng, s["batch"], s["heads"], s["seq"], s["depth"])
    k, v = (normal(rng, s["batch"], kv_heads, keys, s["depth"]) for _ in range(2))
    return {"q": q, "k": k, "v": v}, {}


def _attention_work(causal: bool) -> Callable[[Sizes], tuple[float, float]]:
    def work(s: Sizes) -> tuple[float, float]:
        kv_heads, keys = s.get("kv_heads", s["heads"]), s.get("keys", s["seq"])
        queries = s["batch"] * s["heads"] * s["seq"]
        flops = 4.0 * queries * keys * s["depth"] * (0.5 if causal else 1.0)
        return flops, 8.0 * s["depth"] * (queries + s["batch"] * kv_heads * keys)

    return work


def _encoder_operands(s: Sizes, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    weights = {"words": normal(rng, VOCABULARY, HIDDEN), "places": normal(rng, LONGEST, HIDDEN)}
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN)}
    shapes |= {"up": (HIDDEN, INNER), "down": (INNER, HIDDEN)}
    names = ["start", *(f"{i}.{part}" for i in range(LAYERS) for part in ("mid", "end"))]
    for name in names:
        weights |= {
            f"{name}.gamma": 1.0 + normal(rng, HIDDEN, scale=0.1),
            f"{name}.beta": normal(rng, HIDDEN, scale=0.1),
        }
    for i in range(LAYERS):
        for name, (rows, columns) in shapes.items():
            weights[f"{i}.{name}.w"] = normal(rng, rows, columns, scale=rows**-0.5)
            weights[f"{i}.{name}.b"] = normal(rng, columns, scale=0.1)
    ids = rng.integers(0, VOCABULARY, (s["batch"], s["seq"])).astype(np.int32)
    return {"ids": ids}, weights


def _encoder_work(s: Sizes) -> tuple[float, float]:
    tokens = s["batch"] * s["seq"]
    weights = LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER)
    return 2.0 * tokens * weights + LAYERS * 4.0 * tokens * s["seq"] * HIDDEN, 4.0 * weights


def _encoder(m: Words, a: Mapping[str, Value]) -> Value:
    """Post-norm transformer encoder: ids to hidden states."""

    def linear(x: Value, name: str) -> Value:
        return m.linear(x, a[f"{name}.w"], a[f"{name}.b"])

    def norm(x: Value, name: str) -> Value:
        return m.layer_norm(x, a[f"{name}.gamma"], a[f"{name}.beta"])

    x = m.take(a["words"], a["ids"])
    x = norm(m.add(x, m.first_rows(a["places"], x)), "start")
    for i in range(LAYERS):
        q, k, v = (m.split_heads(linear(x, f"{i}.{part}"), HEADS) for part in ("q", "k", "v"))
        mixed = m.join_heads(m.attention(q, k, v, causal=False))
        x = norm(m.add(x, linear(mixed, f"{i}.o")), f"{i}.mid")
        x = norm(m.add(x, linear(m.gelu(linear(x, f"{i}.up")), f"{i}.down")), f"{i}.end")
    return x


PROGRAMS: dict[str, Program] = {
    "matmul": Program(lambda m, a: m.matmul(a["x"], a["w"]), _matrices, _product_work(1)),
    "matmul+bias+gelu": Program(lambda m, a: m.gelu(m.linear(a["x"], a["w"], a["b"])), _matrices, _product_work(1)),
    "swiglu": Program(
        lambda m, a: m.mul(m.silu(m.matmul(a["x"], a["gate"])), m.matmul(a["x"], a["up"])),
        _two_matrices,
        _product_work(2),
    ),
    "softmax": Program(lambda m, a: m.softmax(a["x"]), _rows, _row_work(2, 4)),
    "layer_norm": Program(lambda m, a: m.layer_norm(a["x"], a["gamma"], a["beta"]), _rows, _row_work(2, 8)),
    "rms_norm": Program(lambda m, a: m.rms_norm(a["x"], a["gamma"]), _rows, _row_work(2, 5)),
    "residual+norm": Program(
        lambda m, a: m.layer_norm(m.add(a["x"], a["r"]), a["gamma"], a["beta"]), _rows, _row_work(3, 9)
    ),
    "cross_entropy": Program(lambda m, a: m.cross_entropy(a["x"], a["labels"]), _labelled_rows, _row_work(1, 4)),
    "attention": Program(
        lambda m, a: m.attention(a["q"], a["k"], a["v"], causal=False), _heads, _attention_work(False)
    ),
    "causal attention": Program(
        lambda m, a: m.attention(a["q"], a["k"], a["v"], causal=True), _heads, _attention_work(True)
    ),
    "encoder": Program(_encoder, _encoder_operands, _encoder_work, {"ids": ("B", "S")}),
    # Three nodes: what a call costs when there is next to nothing to compute.
    "three nodes": Program(lambda m, a: m.mul(m.add(a["x"], a["r"]), m.silu(a["x"])), _rows, _row_work(3, 5)),
    **{name: Program(*parts) for name, parts in kernel_programs().items()},
}


def operands_of(program: str, sizes: Sizes) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and weights that the program reads, the same in every process; not to be written to."""
    return _operands_of(program, tuple(sizes.items()))


@functools.lru_cache(maxsize=1)
def _operands_of(program: str, sizes: tuple[tuple[str, int], ...]) -> tuple[dict[str, Array], dict[str, Array]]:
    inputs, weights = PROGRAMS[program].operands(dict(sizes), np.random.default_rng(7))
    used = _Used({**inputs, **weights})
    PROGRAMS[program].build(_Nothing(), used)
    return ({n: x for n, x in inputs.items() if n in used.seen}, {n: w for n, w in weights.items() if n in used.seen})


class _Used(dict[str, Value]):
    """Operands that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.seen.add(name)
        return super().__getitem__(name)


class _Nothing:
    """Words that compute nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *operands, **options: None


class NumpyWords(ExactWords):
    """What is right: the words in NumPy, in the type of the operands (f64 for reference values)."""

    def matmul(self, a: Array, b: Array) -> Array:
        return np.asarray(a @ b)

    def linear(self, x: Array, weight: Array, bias: Array) -> Array:
        return np.asarray(x @ weight + bias)

    def add(self, a: Array, b: Array) -> Array:
        return np.asarray(a + b)

    def mul(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b)

    def gelu(self, x: Array) -> Array:
        return np.asarray(0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))))

    def silu(self, x: Array) -> Array:
        return np.asarray(x / (1.0 + np.exp(-x)))

    def softmax(self, x: Array) -> Array:
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def layer_norm(self, x: Array, gamma: Array, beta: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * gamma + beta)

    def rms_norm(self, x: Array, gamma: Array) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * gamma)

    def cross_entropy(self, logits: Array, labels: Array) -> Array:
        highest = logits.max(axis=-1)
        total = np.log(np.exp(logits - highest[:, None]).sum(axis=-1)) + highest
        return np.asarray(total - np.take_along_axis(logits, labels[:, None], -1)[:, 0])

    def attention(self, q: Array, k: Array, v: Array, causal: bool) -> Array:
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, axis=1) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        return np.asarray(self.softmax(scores) @ v)

    def take(self, table: Array, ids: Array) -> Array:
        return np.asarray(table[ids])

    def first_rows(self, table: Array, like: Array) -> Array:
        return np.asarray(table[: like.shape[1]])

    def split_heads(self, x: Array, heads: int) -> Array:
        batch, seq, width = x.shape
        return x.reshape(batch, seq, heads, width // heads).swapaxes(1, 2)

    def join_heads(self, x: Array) -> Array:
        batch, heads, seq, depth = x.shape
        return x.swapaxes(1, 2).reshape(batch, seq, heads * depth)


_erf = np.vectorize(math.erf, otypes=[np.float64])


class Expected(NamedTuple):
    """What is right, in f64, for some of the examples along the first axis of a result."""

    examples: Array
    values: Array


def exact(program: str, sizes: Sizes, most_flops: float = math.inf) -> Expected:
    """The result for all examples, or for as many, evenly spread, as cost at most so much.

    Every program treats the rows of its inputs (or the batch) one by one, so that some of them can be looked at alone.
    """
    inputs, weights = operands_of(program, sizes)
    count = len(next(iter(inputs.values())))
    flops, _ = PROGRAMS[program].work(sizes)
    chosen = count if flops <= most_flops else max(1, int(count * most_flops / flops))
    examples = np.unique(np.linspace(count - 1, 0, chosen).astype(np.int64))
    some = {n: x[examples] for n, x in inputs.items()}
    types = {"f": np.float64, "c": np.complex128}
    wide = {n: x.astype(types.get(x.dtype.kind, x.dtype)) for n, x in {**some, **weights}.items()}
    return Expected(examples, PROGRAMS[program].build(NumpyWords(), wide))
