"""What `gpu_suite.py --only rest` checks of convolutions on a GPU: results and both gradients, turned pictures, and
products of several matrices."""

from __future__ import annotations

import numpy as np
from gpu_suite import check_assembled, distance

# Images, channels, filters, size, window, stride, padding, dilation.
SETTINGS = (
    (2, 64, 64, 14, 3, 1, 1, 1),
    (3, 3, 64, 33, 7, 2, 3, 1),
    (2, 40, 72, 15, 3, 2, 1, 1),
    (1, 24, 136, 17, 3, 1, 2, 2),
    (5, 128, 256, 9, 1, 1, 1, 1),
    (5, 128, 256, 9, 1, 1, 0, 1),
    (4, 256, 512, 12, 1, 2, 0, 1),
    (3, 64, 64, 28, 1, 1, 0, 1),
    (32, 64, 256, 56, 1, 1, 0, 1),
    (8, 64, 64, 56, 3, 1, 1, 1),
)
WINDOWS = [
    ("windows", way, *settings)
    for way in ("forward", "input", "weight")
    for settings in SETTINGS
    # Gradients of pictures through windows that begin inside of their padding have loops.
    if way != "input" or settings[4] > settings[6]
]


def run_windows(way: str, *settings: str) -> float:
    """A convolution and its gradients against the op's own meaning in f64, with sums of the kernel's order."""
    from rlx import ops
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    images, channels, filters, size, window, stride, padding, dilation = map(int, settings)
    rng = np.random.default_rng(channels + size)
    result = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    x, w, dy = (
        rng.standard_normal(s).astype(DType.BF16.numpy)
        for s in (
            (images, channels, size, size),
            (filters, channels, window, window),
            (images, filters, result, result),
        )
    )
    graph = Graph("windows")
    given = {"forward": (x, w), "input": (dy, w), "weight": (x, dy)}[way]
    a, b = (graph.input(name, array.shape, "bf16") for name, array in zip("ab", given))
    with building(graph):
        if way == "forward":
            y = ops.conv(a, b, stride, padding, dilation)
        elif way == "input":
            y = ops.conv2d_backward_input(a, b, x.shape, stride, padding, dilation)
        else:
            y = ops.conv2d_backward_weight(a, b, (window, window), stride, padding, dilation)
        graph.set_outputs([y])
    (node,) = (n for n in graph.nodes if not n.is_leaf)
    want = np.asarray(node.op.eval(*(array.astype("f8") for array in given)))
    return checked(graph, dict(zip("ab", given)), want, 8e-3, 2e-2)


# Matrices, which operands are others for each, rows, columns, depth, and how the operands lie.
MATRICES = [
    ("matrices", which, *sizes, lies)
    for which in ("left", "right", "both")
    for sizes in ((3, 64, 200, 72), (5, 130, 264, 136), (32, 64, 3136, 64))
    for lies in ("plain", "turned")
]


def run_matrices(which: str, batch: str, m: str, n: str, k: str, lies: str) -> float:
    """Products of several matrices, of which some are the same for all, with a bias for each row and a residual."""
    from rlx import ops
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    count, rows, columns, depth = int(batch), int(m), int(n), int(k)
    rng = np.random.default_rng(rows + columns)
    left = (count, rows, depth) if which != "right" else (1, rows, depth)
    right = (count, depth, columns) if which != "left" else (1, depth, columns)
    stored = [left, right] if lies == "plain" else [(left[0], depth, rows), (right[0], columns, depth)]
    shapes = [*stored, (rows, 1), (count, rows, columns)]
    arrays = [rng.standard_normal(s).astype(DType.BF16.numpy) for s in shapes]
    graph = Graph("matrices")
    a, b, bias, r = (graph.input(f"x{i}", s, "bf16") for i, s in enumerate(shapes))
    with building(graph):
        if lies == "turned":
            a, b = (ops.transpose(t, (0, 2, 1)) for t in (a, b))
        a, b = ops.expand(a, (count, rows, depth)), ops.expand(b, (count, depth, columns))
        graph.set_outputs([ops.matmul(a, b) + bias + r])
    wide = [array.astype("f8") for array in arrays]
    matrices = [t.transpose(0, 2, 1) if lies == "turned" else t for t in wide[:2]]
    want = matrices[0] @ matrices[1] + wide[2] + wide[3]
    return checked(graph, {f"x{i}": array for i, array in enumerate(arrays)}, want, 8e-3, 2e-2)


# The dims of an array, its order afterwards, and its type.
TURNS = [
    ("turn", dtype, *dims)
    for dtype in ("bf16", "f32")
    for dims in ((32, 64, 56, 56), (4, 256, 14, 14), (3, 48, 7, 7), (64, 64, 3, 3), (5, 3, 50, 60))
]


def run_turn(dtype: str, *dims: str) -> float:
    """Channels last and back, bit for bit, with a factor for each channel."""
    from rlx import ops
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    shape = tuple(map(int, dims))
    x = np.random.default_rng(1).standard_normal(shape).astype(DType.of(dtype).numpy)
    for order in ((0, 2, 3, 1), (0, 3, 1, 2)):
        graph = Graph("turn")
        given = graph.input("x", shape, dtype)
        with building(graph):
            graph.set_outputs([ops.transpose(given * 2, order)])
        checked(graph, {"x": x}, (x * np.array(2, x.dtype)).transpose(order).astype("f8"), 0.0, 0.0, "")
    return 0.0


def checked(graph, given, want, most: float, most_of_one: float, form: str = "wgmma tiles") -> float:
    """The program's result, the same in four runs, as near to what is wanted as asked for."""
    from rlx.backends.cuda.backend import CudaBackend

    executable = CudaBackend().compile(graph, None)
    assert form in str(executable.report), str(executable.report)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    error, worst = distance(got, want), float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    assert error <= most and worst <= most_of_one, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


RUNS = {"windows": run_windows, "matrices": run_matrices, "turn": run_turn}
CHECKS = [" ".join(map(str, check)) for check in (*WINDOWS, *MATRICES, *TURNS)]
