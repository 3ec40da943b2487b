"""What `gpu_suite.py` checks on a GPU beyond products of floats, attention and whole ops: products of
f8, products with experts, convolutions, Fourier transforms, factorisations, and what `gpu_order_checks` has."""

from __future__ import annotations

import gpu_conv_checks
import gpu_order_checks
import numpy as np
from gpu_suite import check_assembled, distance

# f8 of both kinds, and both together.
BYTE_PRODUCTS = [
    ("bytes", left, right, *size)
    for left, right in (("f8e4m3", "f8e4m3"), ("f8e5m2", "f8e4m3"), ("f8e5m2", "f8e5m2"))
    for size in ((1, 72, 144), (5, 264, 144), (130, 264, 80), (300, 257, 208), (1000, 776, 336), (2048, 2048, 1024))
]


def run_bytes(left: str, right: str, m: str, n: str, k: str) -> float:
    """A product of f8 with a scale against f64, every element; rows are quantised on the GPU, to the same bits."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, columns, depth = int(m), int(n), int(k)
    rng = np.random.default_rng(rows * columns + depth)
    x = rng.standard_normal((rows, depth)).astype("f4")
    w = rng.standard_normal((columns, depth)).astype(DType.of(right).numpy)
    graph = Graph("bytes")
    a, b = graph.input("a", ("M", depth), "f32"), graph.input("b", w.shape, right)
    scale = graph.input("s", (), "f32")
    with building(graph):
        codes = ops.cast(a, left)
        y = ops.matmul(ops.cast(codes, "bf16"), ops.cast(b, "bf16").T, out_dtype="f32") * scale
        graph.set_outputs([codes, ops.cast(y, "bf16")])
    executable = CudaBackend().compile(graph, None)
    assert "byte_matmul" in str(executable.report), str(executable.report)
    given = {"a": x, "b": w, "s": np.array(0.25, np.float32)}
    stored, got = (np.asarray(r) for r in executable.run(given, {}))
    assert stored.tobytes() == x.astype(DType.of(left).numpy).tobytes(), "a cast to f8 differs"
    assert np.asarray(executable.run(given, {})[1]).tobytes() == got.tobytes(), "runs differ"
    check_assembled(executable)
    want = 0.25 * (stored.astype("f8") @ w.astype("f8").T)
    error, worst = distance(got, want), float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    assert error <= 8e-3 and worst <= 1e-2, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


# How ids are drawn, whether matrices lie along K, rows, experts, depth, columns.
EXPERT_PRODUCTS = [
    ("experts", draw, turned, *size)
    for draw in ("even", "one", "few")
    for turned in ("plain", "turned")
    for size in ((3, 4, 64, 72), (100, 7, 72, 136), (1000, 16, 200, 264), (4096, 64, 512, 776))
]


def run_experts(draw: str, turned: str, m: str, count: str, k: str, n: str) -> float:
    """Rows by the matrices of their experts against f64, every element, with a bias behind it."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, experts, depth, columns = int(m), int(count), int(k), int(n)
    rng = np.random.default_rng(rows + depth)
    numbers = {"even": rng.integers(0, experts, rows), "one": np.full(rows, experts - 1)}
    numbers["few"] = rng.choice([0, experts // 2], rows, p=[0.9, 0.1])
    ids = numbers[draw].astype(np.int32)
    x, w = (rng.standard_normal(s).astype(DType.BF16.numpy) for s in ((rows, depth), (experts, depth, columns)))
    bias = rng.standard_normal(columns).astype(DType.BF16.numpy)
    stored = np.ascontiguousarray(w.transpose(0, 2, 1)) if turned == "turned" else w
    graph = Graph("experts")
    a, b = graph.input("x", ("M", depth), "bf16"), graph.input("w", stored.shape, "bf16")
    i, c = graph.input("ids", ("M",), "i32"), graph.input("bias", bias.shape, "bf16")
    with building(graph):
        matrices = ops.transpose(b, (0, 2, 1)) if turned == "turned" else b
        graph.set_outputs([ops.grouped_matmul(a, matrices, i) + c])
    executable = CudaBackend().compile(graph, None)
    assert "wgmma tiles of experts" in str(executable.report), str(executable.report)
    given = {"x": x, "w": stored, "ids": ids, "bias": bias}
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    want = np.concatenate(
        [bias.astype("f8") + x[r : r + 1].astype("f8") @ w[e].astype("f8") for r, e in enumerate(ids)]
    )
    error, worst = distance(got, want), float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    assert error <= 8e-3 and worst <= 2e-2, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


# Lines by one block, several in one, in two kernels, and as convolutions; the axis and both directions.
TRANSFORMS = [
    ("fourier", dtype, way, *size)
    for dtype in ("c64", "c128")
    for way in ("forward", "inverse")
    for size in ((1000, 64), (33, 1024), (7, 2048), (5, 4096), (2, 1 << 20), (9, 930), (4, 37), (3, 263), (3, 12, 19))
]
TRANSFORMS += [("fourier", "c64", "forward", 3, 512, 512), ("fourier", "c64", "inverse", 3, 65536)]
REAL_TRANSFORMS = [
    ("real", dtype, way, *size)
    for dtype in ("f32", "f64")
    for way in ("forward", "inverse")
    for size in ((1000, 64), (33, 1024), (7, 2), (5, 4096), (3, 1 << 14), (9, 930), (4, 74))
]


def run_fourier(dtype: str, way: str, *dims: str) -> float:
    """A transform of the second axis against NumPy in double precision."""
    import rlx.numpy as rnp
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    shape = tuple(map(int, dims))
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(DType.of(dtype).numpy)
    graph = Graph("fourier")
    with building(graph):
        transform = rnp.fft.fft if way == "forward" else rnp.fft.ifft
        graph.set_outputs([transform(graph.input("x", shape, dtype), axis=1)])
    executable = CudaBackend().compile(graph, None)
    got, again = (np.asarray(executable.run({"x": x}, {})[0]) for _ in range(2))
    assert again.tobytes() == got.tobytes(), "runs differ"
    want = (np.fft.fft if way == "forward" else np.fft.ifft)(x.astype("c16"), axis=1)
    error = distance(got, want)
    assert error <= (1e-6 if dtype == "c64" else 1e-14), f"off by {error:.2g}"
    return error


def run_real(dtype: str, way: str, lines: str, points: str) -> float:
    """A transform of real numbers, or back to them, against NumPy in double precision."""
    import rlx.numpy as rnp
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, count = int(lines), int(points)
    x = np.random.default_rng(count).standard_normal((rows, count))
    if way == "inverse":
        x = np.fft.rfft(x)
    kind = DType.of(dtype).numpy if way == "forward" else np.result_type(DType.of(dtype).numpy, np.complex64)
    x = x.astype(kind)
    graph = Graph("fourier")
    with building(graph):
        given = graph.input("x", x.shape, str(DType.of(x.dtype)))
        graph.set_outputs([rnp.fft.rfft(given) if way == "forward" else rnp.fft.irfft(given, count)])
    executable = CudaBackend().compile(graph, None)
    got, again = (np.asarray(executable.run({"x": x}, {})[0]) for _ in range(2))
    assert again.tobytes() == got.tobytes(), "runs differ"
    want = np.fft.rfft(x.astype("f8")) if way == "forward" else np.fft.irfft(x.astype("c16"), count)
    error = distance(got, want)
    assert error <= (1e-6 if dtype == "f32" else 1e-14), f"off by {error:.2g}"
    return error


# What is asked of matrices, their type, how many and how large: several in a block, one, and more than it holds.
FACTORS = [
    ("factors", what, dtype, *size)
    for what in ("cholesky", "solve", "inverse", "determinant")
    for dtype in ("f32", "f64")
    for size in ((1000, 3), (33, 8), (2048, 32), (7, 45), (5, 77), (3, 100))
]


def run_factors(what: str, dtype: str, count: str, size: str) -> float:
    """Factorisations against NumPy in double precision."""
    import rlx.numpy as rnp
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    matrices, n = int(count), int(size)
    rng = np.random.default_rng(n)
    a = rng.standard_normal((matrices, n, n)) / n + 2 * np.eye(n)
    a = (a @ a.transpose(0, 2, 1) if what == "cholesky" else a).astype(DType.of(dtype).numpy)
    b = rng.standard_normal((matrices, n, 2)).astype(a.dtype)
    asked = {
        "cholesky": lambda np_, a, b: np_.linalg.cholesky(a),
        "solve": lambda np_, a, b: np_.linalg.solve(a, b),
        "inverse": lambda np_, a, b: np_.linalg.inv(a),
        "determinant": lambda np_, a, b: np_.linalg.det(a),
    }[what]
    graph = Graph("factors")
    with building(graph):
        graph.set_outputs([asked(rnp, graph.input("a", a.shape, dtype), graph.input("b", b.shape, dtype))])
    executable = CudaBackend().compile(graph, None)
    got, again = (np.asarray(executable.run({"a": a, "b": b}, {})[0]) for _ in range(2))
    assert again.tobytes() == got.tobytes(), "runs differ"
    check_assembled(executable)
    error = distance(got, asked(np, a.astype("f8"), b.astype("f8")))
    assert error <= (1e-6 if dtype == "f32" else 1e-13), f"off by {error:.2g}"
    return error


RUNS = {"fourier": run_fourier, "factors": run_factors, "real": run_real, "bytes": run_bytes, "experts": run_experts}
RUNS |= gpu_order_checks.RUNS | gpu_conv_checks.RUNS
ALL = (*BYTE_PRODUCTS, *EXPERT_PRODUCTS, *TRANSFORMS, *REAL_TRANSFORMS, *FACTORS, *gpu_order_checks.CHECKS)
CHECKS = [*(" ".join(map(str, check)) for check in ALL), *gpu_conv_checks.CHECKS]


def run(name: str) -> float:
    kind, *arguments = name.split(" ")
    return RUNS[kind](*arguments)
