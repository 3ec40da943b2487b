"""What `gpu_suite.py` checks of sorts, largest elements and running joins on a GPU: every element, to the bit where
nothing is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_suite import check_assembled, distance

# Rows of a block, of several, and of so many that their counts are summed up before; of one program for all lengths.
ORDERS = [
    ("order", dtype, way, *size)
    for dtype in ("f32", "bf16", "f64", "i64", "u8")
    for way in ("ascending", "descending")
    for size in ((300, 257), (70, 1024), (5, 4096), (3, 4097), (64, 32768), (1, 300_001))
]
ORDERS += [("order", dtype, "symbolic", 3, 1) for dtype in ("f32", "f16", "i32", "bool")]
TOPS = [
    ("top", dtype, k, *size)
    for dtype in ("f32", "bf16", "i32", "f64")
    for k, *size in ((1, 3, 300), (50, 2, 1000), (8, 40, 8192), (50, 3, 128_256), (64, 1, 1_000_003), (7, 20, 4099))
]
RUNNING = [
    ("running", kind, dtype, *size)
    for kind, dtype in (("sum", "f32"), ("sum", "i32"), ("prod", "f32"), ("max", "bf16"), ("logsumexp", "f32"))
    for size in ((0, 8192, 96), (1, 3, 1000), (1, 2, 1 << 18), (0, 1 << 20), (1, 7, 333, 40))
]


def numbers(dtype: str, shape: tuple[int, ...]) -> Any:
    from rlx.ir.dtype import DType

    kind = DType.of(dtype)
    rng = np.random.default_rng(sum(shape))
    if kind is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not kind.is_float:
        limits = np.iinfo(kind.numpy)
        x = rng.integers(limits.min, limits.max, shape, dtype=kind.numpy, endpoint=True)
        return np.where(rng.random(shape) < 0.5, x % 5, x).astype(kind.numpy)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 20, shape)
    # Half of them have equals.
    x = np.where(rng.random(shape) < 0.5, np.round(rng.standard_normal(shape)), x).astype(kind.numpy)
    for special in (np.nan, np.inf, -np.inf, -0.0, 0.0):
        x = np.where(rng.random(shape) < 0.01, kind.numpy.type(special), x)
    return x


def compiled(op: Any, shape: tuple[int | str, ...], dtype: str) -> Any:
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.graph import Graph

    graph = Graph("order")
    result = graph.append_node(op, [graph.input("x", shape, dtype)])
    graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
    executable = CudaBackend().compile(graph, None)
    assert "host" not in str(executable.report), str(executable.report)
    return executable


def exact(executable: Any, op: Any, x: Any) -> None:
    want = op.eval(x)
    for _ in range(2):
        for got, wanted in zip(executable.run({"x": x}, {}), want, strict=True):
            assert np.asarray(got).tobytes() == wanted.tobytes(), f"{op} of {x.dtype}{x.shape} differs"


def run_order(dtype: str, way: str, *dims: str) -> float:
    from rlx.ops.lowered.sort_order import SortOrder

    op = SortOrder(way == "descending")
    if way == "symbolic":
        executable = compiled(op, ("B", "N"), dtype)
        for shape in ((3, 1), (2, 5), (1, 4096), (4, 9000), (2, 0)):
            exact(executable, op, numbers(dtype, shape))
        return 0.0
    shape = tuple(map(int, dims))
    executable = compiled(op, shape, dtype)
    exact(executable, op, numbers(dtype, shape))
    check_assembled(executable)
    return 0.0


def run_top(dtype: str, k: str, *dims: str) -> float:
    from rlx.ops.reduction.sort import TopKWithValues

    op, shape = TopKWithValues(int(k)), tuple(map(int, dims))
    executable = compiled(op, shape, dtype)
    exact(executable, op, numbers(dtype, shape))
    # All equal, and all of them the largest in few threads.
    exact(executable, op, np.ones(shape, numbers(dtype, (1,)).dtype))
    x = numbers(dtype, shape)
    exact(executable, op, np.sort(x.reshape(-1)).reshape(shape).astype(x.dtype))
    check_assembled(executable)
    return 0.0


def run_running(kind: str, dtype: str, axis: str, *dims: str) -> float:
    from rlx.ir.dtype import DType
    from rlx.ops.reduction.cumulative import Cumulative

    shape, worst = tuple(map(int, dims)), 0.0
    rng = np.random.default_rng(shape[-1])
    # Products stay near 1.
    x = np.exp(rng.standard_normal(shape) * 1e-3) if kind == "prod" else rng.standard_normal(shape) * 9
    x = x.astype(DType.of(dtype).numpy)
    for exclusive, reverse in ((False, False), (True, True)):
        op = Cumulative(kind, axis=int(axis), exclusive=exclusive, reverse=reverse)
        executable = compiled(op, shape, dtype)
        got, again = (np.asarray(executable.run({"x": x}, {})[0]) for _ in range(2))
        assert again.tobytes() == got.tobytes(), "runs differ"
        check_assembled(executable)
        if kind == "max" or dtype == "i32":
            assert got.tobytes() == op.eval(x).tobytes(), "an element differs"
            continue
        want = op.eval(x.astype("f8"))
        ends = np.isfinite(want)
        assert np.array_equal(np.isfinite(got), ends)
        error = distance(got[ends], want[ends])
        allowed = 2e-6
        if kind == "prod":
            # One by one in f32, products of a million numbers are far off.
            one_by_one = np.multiply.accumulate(x, int(axis), np.float32)
            allowed += 2 * distance(one_by_one, np.multiply.accumulate(x.astype("f8"), int(axis)))
        assert error <= allowed, f"off by {error:.2g}, allowed are {allowed:.2g}"
        worst = max(worst, error)
    return worst


RUNS = {"order": run_order, "top": run_top, "running": run_running}
CHECKS = [*ORDERS, *TOPS, *RUNNING]
