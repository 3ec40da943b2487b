"""Attention on a GPU against f64, for `gpu_suite.py`: forms, layouts, caches and ragged lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gpu_suite import check_assembled, distance


class AttentionProgram(NamedTuple):
    """One attention to check, or one with its gradients; rows beyond `lengths` of k and v are NaN, which nobody may
    read."""

    dtype: str
    layout: str
    heads: int
    kv_heads: int
    width: int
    queries: int
    keys: int
    kind: str = "none"
    window: int = 0
    softcap: float | None = None
    lengths: tuple[int, ...] = ()
    start: int | None = None  # queries stand at these positions and after it, those of the last batch in reverse
    batch: int = 2
    value_width: int = 0
    shift: float = 0.0  # added to the scores by the first element of queries and keys; of gradients only
    rows: str = ""  # the type of q, if it is not that of k and v
    way: str = ""  # a setting that is not the usual one: powers by polynomials, or reading ahead; or as sm_80 runs it
    mask: str = ""  # the type of an operand, a mask where it is bool, else a bias
    sinks: bool = False

    @property
    def name(self) -> str:
        return " ".join(map(str, self)).replace("None", "-")


def attention_programs() -> list[AttentionProgram]:
    make = AttentionProgram
    found = [
        make(dtype, layout, 4, kv_heads, width, queries, keys, kind)
        for dtype, width in (("bf16", 128), ("f16", 64))
        for layout, kv_heads in (("bhsd", 4), ("bshd", 2), ("bsm", 1))
        for queries, keys in ((128, 128), (300, 300), (1000, 1333))
        for kind in ("none", "causal")
    ]
    long = {"queries": 600, "keys": 900, "kind": "causal"}
    for width in (64, 128, 256):
        base = make("bf16", "bhsd", 4, 2, width, 512, 512)
        found += [
            base,
            base._replace(kind="causal"),
            base._replace(kind="sliding_window", window=37),
            base._replace(kind="sliding_window", window=300, queries=700, keys=700),
            base._replace(**long, softcap=3.0),
            base._replace(**long, lengths=(900, 611)),
            base._replace(**long, lengths=(700, 13), start=100),
            base._replace(**long, lengths=(900, 0), start=0),
        ]
    few = [make("bf16", "bhsd", 16, 4, width, 1, 1500, "causal", lengths=(1500, 1)) for width in (64, 128)]
    found += few
    for program in few:
        found += [
            program._replace(queries=4, lengths=(1500, 777)),
            program._replace(queries=8, lengths=(1203, 64), start=400, dtype="f16"),
            program._replace(kind="none", lengths=(), keys=9000),
            program._replace(kind="sliding_window", window=200),
            program._replace(layout="bshd", softcap=5.0, heads=8, kv_heads=8),
            program._replace(heads=32, kv_heads=4, lengths=(1499, 130)),
        ]
    found.append(make("bf16", "bhsd", 4, 4, 192, 300, 300, "causal", value_width=128))
    exact = [p._replace(rows="f32") for p in found if p.dtype == "bf16"]
    ways = [p._replace(way="polynomials") for p in found if p.queries > 128 and p.width == 64 and not p.start]
    ways += [p._replace(way="reads ahead") for p in (*found, *exact) if p.queries <= 8]
    narrow = [make("bf16", layout, 4, 2, 96, 300, 300, "causal") for layout in ("bhsd", "bshd", "bsm")]
    narrow += [make("f16", "bshd", 4, 4, width, 200, 900, lengths=(900, 77)) for width in (40, 80, 160)]
    masked = [
        make("bf16", "bhsd", 4, 2, width, queries, 700, kind, mask=mask, lengths=lengths)
        for width, queries, kind, mask, lengths in (
            (64, 300, "custom", "bool", ()),
            (128, 300, "bias", "bf16", (700, 411)),
            (40, 77, "bias", "f32", ()),
            (256, 130, "custom", "bool", (699, 0)),
            (64, 1, "bias", "bf16", ()),
        )
    ]
    masked += [make("bf16", "bhsd", 8, 2, 64, rows, 500, "causal", lengths=(500, 33), sinks=True) for rows in (1, 200)]
    # As chips without wgmma run it: the same code for sm_80, on this chip.
    older = [p._replace(way="sm_80") for p in (*found, *narrow, *masked)]
    return [*found, *exact, *ways, *narrow, *masked, *older]


# What forms of attention are told, by the name of a way.
WAYS = {"": {}, "sm_80": {}, "polynomials": {"polynomials": 3}, "reads ahead": {"reads_ahead": True}}


def as_chip(graph: Any, arch: str) -> Any:
    """A program with the code of an older chip, which this one runs."""
    from rlx.backends.cuda.device import open_gpu
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline

    return CudaExecutable.of(replace(CompilePipeline.new("cuda"), machine=arch).compile(graph), open_gpu(0), arch)


def run_attention(name: str) -> float:
    """Attention against f64, every element."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building
    from rlx.ops.attn.attention import WholeAttention

    (p,) = (p for p in attention_programs() if p.name == name)
    rng = np.random.default_rng(p.queries * p.keys + p.width)
    numpy = DType.of(p.dtype).numpy
    value_width = p.value_width or p.width

    def draw(heads: int, rows: int, width: int, kind: Any = numpy) -> Any:
        return rng.standard_normal((p.batch, heads, rows, width)).astype("f4").astype(kind)

    def laid(x: Any) -> Any:
        if p.layout != "bhsd":
            x = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
        return x.reshape(*x.shape[:2], -1) if p.layout == "bsm" else x

    q, k, v = (
        draw(p.heads, p.queries, p.width, DType.of(p.rows or p.dtype).numpy),
        draw(p.kv_heads, p.keys, p.width),
        draw(p.kv_heads, p.keys, value_width),
    )
    given, extras = {}, {}
    if p.lengths:
        given["lengths"] = np.array(p.lengths, "i4")
        for b, length in enumerate(p.lengths):
            k[b, :, length:] = v[b, :, length:] = np.nan
    if p.start is not None:
        rows = p.start + np.arange(p.queries)
        given["positions"] = np.stack([rows] * (p.batch - 1) + [rows[::-1]]).astype("i8")
    given |= {"q": laid(q), "k": laid(k), "v": laid(v)}
    if p.mask:
        drawn = rng.standard_normal((1, p.heads, p.queries, p.keys)).astype("f4")
        given["mask"] = drawn > -1 if p.mask == "bool" else drawn.astype(DType.of(p.mask).numpy)
        given["mask"] = given["mask"][:, 0].repeat(p.batch, 0) if p.mask == "bool" else given["mask"]
    if p.sinks:
        given["sinks"] = rng.standard_normal(p.heads).astype("f4")
    graph = Graph("attention")
    # All sizes but those of heads are symbolic, as in a model.
    names = {"q": "S", "k": "T", "v": "T"}
    axis = 2 if p.layout == "bhsd" else 1
    leaves = {}
    for key, array in given.items():
        dims: list[Any] = ["B", *array.shape[1:]]
        if key in names:
            dims[axis] = names[key]
        elif key == "positions":
            dims[1] = "S"
        elif key == "mask":
            dims = ["B", "S", "T"] if p.mask == "bool" else [1, p.heads, "S", "T"]
        elif key == "sinks":
            dims = [p.heads]
        leaves[key] = graph.input(key, tuple(dims), DType.of(array.dtype).value)
    kind = p.kind if not p.window else ("sliding_window", p.window)
    options = {"num_heads": p.heads, "num_kv_heads": p.kv_heads, "layout": p.layout, "softcap": p.softcap}
    if p.layout != "bsm":
        del options["num_heads"], options["num_kv_heads"]
    with building(graph):
        extras = {"kv_len": leaves.get("lengths"), "positions": leaves.get("positions")}
        extras |= {name: leaves.get(name) for name in ("mask", "sinks")}
        y = ops.attention(leaves["q"], leaves["k"], leaves["v"], mask_kind=kind, **options, **extras)
    graph.set_outputs([y])
    executable = as_chip(graph, p.way) if p.way == "sm_80" else CudaBackend().compile(graph, None)
    for form in (form for step in executable.programs.main.steps if hasattr(step, "code") for form in step.code.forms):
        vars(form).update(WAYS[p.way])
    wanted = "mma attention" if p.way == "sm_80" or p.mask or p.sinks else "wgmma attention"
    assert wanted in str(executable.report), str(executable.report)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    (node,) = (n for n in graph.nodes if isinstance(n.op, WholeAttention))
    order = [given[n] for n in ("q", "k", "v", "mask", "lengths", "positions", "sinks") if n in given]
    want = np.asarray(node.op.eval(*(np.nan_to_num(a.astype("f8")) if a.dtype.kind not in "iub" else a for a in order)))
    error = distance(got, want)
    worst = float(np.abs(got.astype("f8") - want).max())
    # Rows of f32: weights have 18 bits, queries of wide heads 16.
    farthest = 2e-5 if p.rows else 0.03
    assert np.isfinite(worst) and worst <= farthest * float(np.abs(want).max()), f"an element is off by {worst:.2g}"
    bound = 1e-5 if p.rows else {"f16": 1.5e-3, "bf16": 6e-3}[p.dtype]
    assert error <= bound, f"off by {error:.2g}"
    return error
