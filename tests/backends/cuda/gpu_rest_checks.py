"""What `gpu_suite.py` checks on a GPU beyond products of floats, attention and whole ops: products of
f8, products with experts, convolutions."""

from __future__ import annotations

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


# Which gradient, images, channels, filters, size, window, stride, padding, dilation.
WINDOWS = [
    ("windows", way, *settings)
    for way in ("forward", "input")
    for settings in (
        (2, 64, 64, 14, 3, 1, 1, 1),
        (3, 3, 64, 33, 7, 2, 3, 1),
        (2, 40, 72, 15, 3, 2, 1, 1),
        (1, 24, 136, 17, 3, 1, 2, 2),
        # A window of one element has this form forward only with padding, backward only without.
        (5, 128, 256, 9, 1, 1, int(way == "forward"), 1),
        (4, 256, 512, 12, 1, 2, 0, 1),
    )
]


def run_windows(way: str, *settings: str) -> float:
    """A convolution and the gradient of its input against the op's own meaning in f64."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    images, channels, filters, size, window, stride, padding, dilation = map(int, settings)
    rng = np.random.default_rng(channels + size)
    x, w = (
        rng.standard_normal(s).astype(DType.BF16.numpy)
        for s in ((images, channels, size, size), (filters, channels, window, window))
    )
    graph = Graph("windows")
    result = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    dy = rng.standard_normal((images, filters, result, result)).astype(DType.BF16.numpy)
    first = x if way == "forward" else dy
    a, b = graph.input("a", first.shape, "bf16"), graph.input("b", w.shape, "bf16")
    with building(graph):
        if way == "forward":
            y = ops.conv(a, b, stride, padding, dilation)
        else:
            y = ops.conv2d_backward_input(a, b, x.shape, stride, padding, dilation)
        graph.set_outputs([y])
    (node,) = (n for n in graph.nodes if not n.is_leaf)
    executable = CudaBackend().compile(graph, None)
    assert "wgmma tiles of windows" in str(executable.report), str(executable.report)
    got, *again = (np.asarray(executable.run({"a": first, "b": w}, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    want = np.asarray(node.op.eval(first.astype("f8"), w.astype("f8")))
    error, worst = distance(got, want), float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    assert error <= 8e-3 and worst <= 2e-2, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


RUNS = {"bytes": run_bytes, "experts": run_experts, "windows": run_windows}
CHECKS = [" ".join(map(str, check)) for check in (*BYTE_PRODUCTS, *EXPERT_PRODUCTS, *WINDOWS)]


def run(name: str) -> float:
    kind, *arguments = name.split(" ")
    return RUNS[kind](*arguments)
