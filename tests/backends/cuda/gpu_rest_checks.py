"""What `gpu_suite.py` checks on a GPU beyond products of floats, attention and whole ops: products of f8."""

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
    given = {"a": x, "b": w, "s": np.float32(0.25)}
    stored, got = (np.asarray(r) for r in executable.run(given, {}))
    assert stored.tobytes() == x.astype(DType.of(left).numpy).tobytes(), "a cast to f8 differs"
    assert np.asarray(executable.run(given, {})[1]).tobytes() == got.tobytes(), "runs differ"
    check_assembled(executable)
    want = 0.25 * (stored.astype("f8") @ w.astype("f8").T)
    error, worst = distance(got, want), float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    assert error <= 8e-3 and worst <= 1e-2, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


RUNS = {"bytes": run_bytes}
CHECKS = [" ".join(map(str, check)) for check in BYTE_PRODUCTS]


def run(name: str) -> float:
    kind, *arguments = name.split(" ")
    return RUNS[kind](*arguments)
