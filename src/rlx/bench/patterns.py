"""What a device is measured on: single ops (tier L1) and small compositions of them (tier L2), each with its work.

    pattern = matmul(128, 384, 1536)
    pattern.build_graph(), pattern.input_data(), pattern.param_data()

Most are the programs that engines are compared on (`rlx.bench.programs`). A pattern says what is right, in f64, so that
nothing wrong is ever timed, and how many operations and bytes it takes, so that times can be held to what a machine can
do.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlx.bench.engines.rlx_engine import program_graph
from rlx.bench.programs import PROGRAMS, Array, Sizes, exact, normal, operands_of
from rlx.errors import RlxError
from rlx.ir.graph import Graph


class Tier(enum.StrEnum):
    """How much a pattern joins."""

    L1 = "L1"  # one op
    L2 = "L2"  # several that compilers fuse


class BenchmarkPattern(NamedTuple):
    """A program with its data. `flops` and `traffic` are operations and bytes that any way to compute it takes;
    `expected` is the result in f64."""

    name: str
    tier: Tier
    build_graph: Callable[[], Graph]
    input_data: Callable[[], dict[str, Array]]
    param_data: Callable[[], dict[str, Array]]
    expected: Callable[[], Array]
    flops: float
    traffic: float


def of_program(name: str, tier: Tier, program: str, sizes: Sizes) -> BenchmarkPattern:
    """A pattern of one of the programs of `rlx.bench.programs`."""
    return BenchmarkPattern(
        name,
        tier,
        lambda: program_graph(program, sizes)[0],
        lambda: operands_of(program, sizes)[0],
        lambda: operands_of(program, sizes)[1],
        lambda: exact(program, sizes).values,
        *PROGRAMS[program].work(sizes),
    )


def matmul(m: int, k: int, n: int) -> BenchmarkPattern:
    """[m, k] times weights [k, n]."""
    return of_program(f"matmul {m}x{k}x{n}", Tier.L1, "matmul", _sizes(m=m, k=k, n=n))


def layer_norm(rows: int, hidden: int) -> BenchmarkPattern:
    return of_program(f"layer_norm {rows}x{hidden}", Tier.L1, "layer_norm", _sizes(rows=rows, width=hidden))


def softmax(rows: int, width: int) -> BenchmarkPattern:
    return of_program(f"softmax {rows}x{width}", Tier.L1, "softmax", _sizes(rows=rows, width=width))


def attention(batch: int, heads: int, seq: int, depth: int) -> BenchmarkPattern:
    sizes = _sizes(batch=batch, heads=heads, seq=seq, depth=depth)
    return of_program(f"attention {batch}x{heads}x{seq}x{depth}", Tier.L1, "attention", sizes)


def fft(batch: int, n: int, inverse: bool = False) -> BenchmarkPattern:
    """Complex transforms of n numbers. Operations are counted as is usual for them, 5·n·log2(n) each."""
    from rlx import ops

    _sizes(batch=batch, n=n)

    @functools.cache
    def data() -> Array:
        rng = np.random.default_rng(7)
        return np.asarray(normal(rng, batch, n) + 1j * normal(rng, batch, n), np.complex64)

    def graph() -> Graph:
        built = Graph("bench")
        built.set_outputs([ops.fft_norm(built.input("x", (batch, n), "c64"), inverse, "ortho")])
        return built

    def expected() -> Array:
        transform = np.fft.ifft if inverse else np.fft.fft
        return np.asarray(transform(data().astype(np.complex128), norm="ortho"))

    name = f"{'inverse ' if inverse else ''}fft {batch}x{n}"
    flops = 5.0 * batch * n * math.log2(max(n, 2))
    return BenchmarkPattern(name, Tier.L1, graph, lambda: {"x": data()}, dict, expected, flops, 16.0 * batch * n)


def matmul_bias_relu(m: int, k: int, n: int) -> BenchmarkPattern:
    """The larger of 0 and [m, k] times weights [k, n] plus a bias."""
    from rlx import ops

    sizes = _sizes(m=m, k=k, n=n)

    @functools.cache
    def data() -> tuple[dict[str, Array], dict[str, Array]]:
        return PROGRAMS["matmul+bias+gelu"].operands(sizes, np.random.default_rng(7))

    def graph() -> Graph:
        built = Graph("bench")
        x, w, b = built.input("x", (m, k)), built.param("w", (k, n)), built.param("b", (n,))
        built.set_outputs([ops.relu(ops.matmul(x, w) + b)])
        return built

    def expected() -> Array:
        (x, w, b) = (array.astype(np.float64) for part in data() for array in part.values())
        return np.maximum(x @ w + b, 0.0)

    flops, traffic = PROGRAMS["matmul+bias+gelu"].work(sizes)
    name = f"matmul+bias+relu {m}x{k}x{n}"
    return BenchmarkPattern(name, Tier.L2, graph, lambda: data()[0], lambda: data()[1], expected, flops, traffic)


def matmul_bias_gelu(m: int, k: int, n: int) -> BenchmarkPattern:
    return of_program(f"matmul+bias+gelu {m}x{k}x{n}", Tier.L2, "matmul+bias+gelu", _sizes(m=m, k=k, n=n))


def swiglu(m: int, k: int, n: int) -> BenchmarkPattern:
    return of_program(f"swiglu {m}x{k}x{n}", Tier.L2, "swiglu", _sizes(m=m, k=k, n=n))


def residual_norm(rows: int, hidden: int) -> BenchmarkPattern:
    return of_program(f"residual+norm {rows}x{hidden}", Tier.L2, "residual+norm", _sizes(rows=rows, width=hidden))


def patterns_of(tier: Tier | str) -> list[BenchmarkPattern]:
    """The patterns of a tier, at sizes that take milliseconds on a few cores."""
    if tier not in [*Tier]:
        raise RlxError(f"there is no tier {str(tier)!r}; use L1 (single ops) or L2 (compositions)")
    return [p for p in _all() if p.tier == tier]


def _all() -> list[BenchmarkPattern]:
    return [
        matmul(1, 768, 3072),
        matmul(128, 768, 3072),
        matmul(512, 768, 768),
        layer_norm(1024, 768),
        softmax(1024, 1024),
        attention(1, 12, 128, 64),
        fft(64, 1024),
        fft(64, 1024, inverse=True),
        matmul_bias_relu(128, 768, 3072),
        matmul_bias_gelu(128, 768, 768),
        swiglu(128, 576, 1536),
        residual_norm(1024, 768),
    ]


def _sizes(**sizes: int) -> dict[str, int]:
    for name, size in sizes.items():
        if size < 1:
            raise RlxError(f"a benchmark pattern needs sizes from 1 on, got {name}={size}")
    return sizes
