"""Gradients of attention on a GPU against f64, for `gpu_suite.py`: forms, layouts and ragged sizes, every element."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_attention_checks import AttentionProgram, as_chip

BOUNDS = {"f16": 2.5e-3, "bf16": 1.2e-2, "f32": 3e-6, "f64": 1e-14}


def programs() -> list[AttentionProgram]:
    make = AttentionProgram
    found = [
        make(dtype, layout, 4, kv_heads, width, queries, keys, kind)
        for dtype, width in (("bf16", 128), ("f16", 64), ("bf16", 64))
        for layout, kv_heads in (("bhsd", 4), ("bshd", 2), ("bsm", 1))
        for queries, keys in ((128, 128), (300, 300), (515, 777), (513, 100))
        for kind in ("none", "causal")
    ]
    for width in (64, 128):
        base = make("bf16", "bshd", 4, 2, width, 700, 700)
        found += [
            base._replace(kind="sliding_window", window=37),
            base._replace(kind="sliding_window", window=300),
            base._replace(kind="causal", softcap=3.0),
            base._replace(softcap=2.0),
            base._replace(queries=1, keys=1),
            base._replace(kind="causal", queries=2048, keys=2048, heads=8, kv_heads=8),
            base._replace(queries=1500, keys=333, heads=16, kv_heads=16, batch=3),
            # Scores far from 0, where what is not there would be larger than what is.
            base._replace(queries=130, keys=130, shift=-20.0),
            base._replace(kind="causal", queries=130, keys=200, shift=20.0),
        ]
    for layout, kv_heads, width in (("bhsd", 4, 64), ("bshd", 2, 128), ("bsm", 1, 40)):
        exact = make("f32", layout, 4, kv_heads, width, 300, 300)
        found += [
            exact,
            exact._replace(kind="causal", queries=129, keys=333),
            exact._replace(kind="sliding_window", window=37, queries=200, keys=260),
            exact._replace(kind="causal", softcap=3.0, queries=33, keys=31),
            exact._replace(dtype="f64", kind="causal", queries=100, keys=130),
        ]
    older = [p._replace(way="sm_80") for p in found if p.dtype in ("f16", "bf16")]
    older += [
        older[-1]._replace(width=width, window=0, kind="causal", softcap=None, shift=0.0) for width in (40, 96, 256)
    ]
    return [*found, *older]


def run_gradients(name: str) -> float:
    """y, dq, dk and dv against f64, and runs against each other."""
    from gpu_suite import check_assembled, distance

    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building
    from rlx.ops.attn.gradients import AttentionBackward

    (p,) = (p for p in programs() if p.name == name)
    rng = np.random.default_rng(p.queries * p.keys + p.width)
    numpy = DType.of(p.dtype).numpy

    def drawn(heads: int, rows: int, shift: float = 0.0) -> Any:
        x = rng.standard_normal((p.batch, heads, rows, p.width)).astype("f4")
        if shift:
            x[..., 0] = shift
        x = x.astype(numpy)
        if p.layout != "bhsd":
            x = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
        return x.reshape(*x.shape[:2], -1) if p.layout == "bsm" else x

    side = np.sqrt(abs(p.shift) * np.sqrt(p.width))
    given = {
        "q": drawn(p.heads, p.queries, side),
        "k": drawn(p.kv_heads, p.keys, side * np.sign(p.shift)),
        "v": drawn(p.kv_heads, p.keys),
        "dy": drawn(p.heads, p.queries),
    }
    graph, axis = Graph("gradients"), 2 if p.layout == "bhsd" else 1
    leaves = []
    for key, array in given.items():
        # All sizes but those of heads are symbolic.
        dims: list[Any] = ["B", *array.shape[1:]]
        dims[axis] = "S" if key in ("q", "dy") else "T"
        leaves.append(graph.input(key, tuple(dims), p.dtype))
    kind: Any = p.kind if not p.window else ("sliding_window", p.window)
    options: dict[str, Any] = {"mask_kind": kind, "layout": p.layout, "softcap": p.softcap}
    if p.layout == "bsm":
        options |= {"num_heads": p.heads, "num_kv_heads": p.kv_heads}
    with building(graph):
        q, k, v, dy = leaves
        y = ops.attention(q, k, v, **options)
        gradients = ops.attention_backward_all(q, k, v, dy, **options)
    graph.set_outputs([y, *gradients])
    executable = as_chip(graph, p.way) if p.way else CudaBackend().compile(graph, None)
    has_tensor_cores, form_name = p.dtype in ("f16", "bf16"), "mma gradients" if p.way else "wgmma gradients"
    assert (form_name in str(executable.report)) == has_tensor_cores, str(executable.report)
    got, *again = ([np.asarray(r) for r in executable.run(given, {})] for _ in range(4))
    for others in again:
        assert [a.tobytes() for a in others] == [a.tobytes() for a in got], "runs differ"
    codes = [step.code for step in executable.programs.main.steps if hasattr(step, "code")]
    launched = [form.name for code in codes for form in code.forms if form._functions]
    # With a window and fewer or more queries than keys the loop kernel runs.
    assert (form_name in launched) == has_tensor_cores or (p.window and p.queries != p.keys), launched
    (node,) = (n for n in graph.nodes if isinstance(n.op, AttentionBackward))
    wide = [given[n].astype("f8") for n in ("q", "k", "v", "dy")]
    want = node.op.eval(*wide)
    worst = 0.0
    for label, a, b in zip(("dq", "dk", "dv"), got[1:], want, strict=True):
        if p.keys == 1 and label != "dv":
            # A query that sees one key does so with weight 1 whatever the scores are: dq and dk are what roundings of
            # f32 leave of terms whose size is that of dv.
            assert float(np.abs(a.astype("f8")).max()) <= 1e-5 * float(np.abs(want[2]).max()), f"{label} is not 0"
            continue
        error = distance(a, b)
        scale = float(np.abs(b).max())
        assert error <= BOUNDS[p.dtype], f"{label} is off by {error:.2g}"
        furthest = float(np.abs(a.astype("f8") - b).max())
        assert furthest <= 0.05 * scale, f"an element of {label} is off by {furthest:.2g} of {scale:.2g}"
        worst = max(worst, error)
    check_assembled(executable)
    return worst
