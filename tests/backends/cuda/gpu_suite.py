"""Everything that needs a real GPU, as a script that needs no pytest: results on the GPU against the CPU engine.

    python3 tests/backends/cuda/gpu_suite.py [--workers 8] [--only families ops driver] [--out report.json]

Programs run in worker processes: a kernel that faults takes the process of its worker with it, is named, and the rest
goes on in a new one. Prints one line for each program that is wrong and a summary; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "compile"), str(HERE.parents[2] / "benchmarks")]

POLICIES = ("AlwaysF32", "AutoMixed", "AutoMixedBf16")
# How far results may be from those of the CPU engine, relative to their length: the same arithmetic in another order.
FAMILY_BOUNDS = {"AlwaysF32": 2e-6, "AutoMixed": 5e-3, "AutoMixedBf16": 4e-2}
OP_BOUNDS = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 4e-6, "f64": 1e-12, "c64": 4e-6, "c128": 1e-12}
# Their results are not decided by their operands, or they talk to the caller.
NOT_COMPARED = {"DebugPrint", "HostCallback", "Custom", "RngUniform"}
LEAVES = {"Input", "Param", "Constant", "Project"}
# Differences that are known, each with its reason.
ACCEPTED = {
    "Int8MatMul": "its operand is a weight in panels of the CPU's width, which only the CPU's compiler makes",
    "ByteMatMul": "tensor cores add f8 with fewer digits than f32 has; the group `rest` looks at it",
}
# A NaN has no sign that conversions keep, so predicates are compared where their operand is a number.
AT_NUMBERS = {"Predicate"}
# f64 operands meet weights whose scales are f32 products.
IN_F32 = {"DequantMatMul", "ExpertMatMul"}


def distance(got: Any, want: Any) -> float:
    """How far an array is from another, relative to its length; where either is not finite both must be the same."""
    a, b = (np.asarray(x).astype("c16" if np.asarray(x).dtype.kind == "c" else "f8") for x in (got, want))
    if a.shape != b.shape:
        return float("inf")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = np.where(same, 0, a), np.where(same, 0, b)
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return float("inf")
    whole = np.linalg.norm(np.nan_to_num(np.asarray(want).astype("c16"), posinf=0, neginf=0))
    return float(np.linalg.norm(a - b) / max(whole, 1e-30))


def run_family(name: str, way: str, policy: str) -> float:
    from family_programs import FAMILIES, forward, training, values_for

    from rlx.backends.cpu import CpuExecutable
    from rlx.backends.cuda.device import open_gpu
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline

    graph = {"forward": forward, "training": training}[way](FAMILIES[name], "f32")
    values = values_for(FAMILIES[name], graph)
    inputs, params = ({n.op.key: values[n.op.key] for n in leaves} for leaves in (graph.inputs, graph.params))
    want = CpuExecutable.of(CompilePipeline.new("cpu").with_precision(policy).compile(graph)).run(
        {k: v.copy() for k, v in inputs.items()}, params
    )
    compiled = CompilePipeline.new("cuda").with_precision(policy).compile(graph)
    assert not any(k.kind == "call" for k in compiled.lir.kernels), "an op runs on the host"
    executable = CudaExecutable.of(compiled, open_gpu(0))
    got, again = ([np.asarray(r) for r in executable.run(inputs, params)] for _ in range(2))
    assert [a.tobytes() for a in got] == [a.tobytes() for a in again], "two runs differ"
    error = max(distance(a, b) for a, b in zip(got, want, strict=True))
    assert error <= FAMILY_BOUNDS[policy], f"off by {error:.2g}"
    return error


def run_op(name: str) -> float:
    """All samples of an op in all its types."""
    from rlx.backends.cpu import CpuBackend
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.op import OP_CLASSES

    worst = 0.0
    for sample in OP_CLASSES[name].samples():
        for dtype in sample.dtypes:
            graph = Graph("sample")
            inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes(dtype))]
            result = graph.append_node(sample.op, inputs)
            graph.set_outputs(result if isinstance(result, tuple) else [result])
            arrays = {f"x{i}": np.asarray(a) for i, a in enumerate(sample.arrays(dtype))}
            graph = graph.bind(sample.binding)
            want = CpuBackend().compile(graph.copy(), None).run({k: v.copy() for k, v in arrays.items()}, {})
            got = [np.asarray(r) for r in CudaBackend().compile(graph.copy(), None).run(arrays, {})]
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape, f"{sample} as {dtype}: {a.dtype}{a.shape}"
                if name in AT_NUMBERS:
                    a, b = (np.where(np.isnan(arrays["x0"]), False, r) for r in (a, b))
                error = distance(a, b)
                kinds = (dtype, DType.of(b.dtype).value, *(["f32"] if name in IN_F32 else []))
                bound = max(OP_BOUNDS.get(k, 0.0) for k in kinds) if b.dtype.kind not in "iub" else 0.0
                assert error <= bound, f"{sample} as {dtype}: off by {error:.2g}"
                worst = max(worst, error)
    return worst


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def check_assembled(executable: Any) -> None:
    """No tensor-core code was serialized, spilled or denied its registers; what the driver has kept says nothing."""
    codes = [step.code for step in executable.programs.main.steps if hasattr(step, "code")]
    for form in (form for code in codes for form in code.forms):
        for function in form._functions.values():
            assert "(C75" not in function.module.log, f"{form.name}: {function.module.log[:400]}"
            assert function.resources.local_bytes == 0, f"{form.name} uses the stack"


def run_product(dtype: str, b_turned: str, epilogue: str, m: str, n: str, k: str, arch: str = "") -> float:
    """A product against f64, with what is done to it: every element of C is looked at. `arch` is an older chip whose
    code this one runs."""
    import rlx.numpy as rnp  # noqa: F401
    from rlx import nn
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.backends.cuda.device import open_gpu
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, columns, depth = int(m), int(n), int(k)
    turned = b_turned == "turned"
    rng = np.random.default_rng(rows * columns + depth)
    numpy = DType.of(dtype).numpy
    draw = lambda *s: rng.standard_normal(s).astype("f4").astype(numpy)  # noqa: E731
    a, b = draw(rows, depth), draw(columns, depth) if turned else draw(depth, columns)
    bias, residual = draw(columns), draw(rows, columns)
    graph = Graph("product")
    given = {"a": a, "b": b}
    # "across": A lies along its rows, as in the gradient of a weight.
    across = b_turned == "across"
    x, w = graph.input("a", (depth, "M") if across else ("M", depth), dtype), graph.input("b", b.shape, dtype)
    given["a"] = np.ascontiguousarray(a.T) if across else a
    wide = [v.astype("f8") for v in (a, b.T if turned else b, bias, residual)]
    want = wide[0] @ wide[1]
    with building(graph):
        y = (x.T if across else x) @ (w.T if turned else w)
        if epilogue == "gelu":
            y = nn.gelu(y + graph.input("bias", bias.shape, dtype), approximate=True)
            given["bias"], want = bias, _gelu(want + wide[2])
        if epilogue == "residual":
            y = y + graph.input("residual", ("M", columns), dtype)
            given["residual"], want = residual, want + wide[3]
    graph.set_outputs([y])
    if arch:
        executable = CudaExecutable.of(CompilePipeline.new("cuda").compile(graph), open_gpu(0), arch)
        assert "mma tiles" in str(executable.report), str(executable.report)
    else:
        executable = CudaBackend().compile(graph, None)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(6))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    error = distance(got, want)
    # Each element, too: a wrong tile must not hide behind a large matrix.
    scale = np.abs(want).max()
    assert float(np.abs(got.astype("f8") - want).max()) <= 0.02 * scale, "an element is wrong"
    bound = {"f32": 1e-5, "f16": 1.5e-3, "bf16": 8e-3}[dtype]
    assert error <= bound, f"off by {error:.2g}"
    return error


PRODUCTS = [
    (dtype, turned, epilogue, *size)
    for dtype in ("bf16", "f16", "f32")
    for turned in ("plain", "turned")
    for epilogue in ("none", "gelu", "residual")
    for size in ((1, 264, 136), (5, 264, 136), (9, 264, 136), (130, 264, 72), (300, 257, 200), (1000, 776, 328))
] + [("bf16", "turned", "none", 2048, 2048, 1024), ("bf16", "plain", "gelu", 2048, 2048, 1024)]
# Few rows whose weights stream through shared memory.
PRODUCTS += [
    (dtype, "turned", epilogue, *size)
    for dtype in ("bf16", "f16")
    for epilogue in ("none", "gelu", "residual")
    for size in ((1, 1000, 2056), (8, 257, 1544), (3, 4099, 1024), (1, 2048, 8192))
]
PRODUCTS += [
    (dtype, "across", epilogue, *size)
    for dtype in ("bf16", "f16")
    for epilogue in ("none", "residual")
    for size in ((8, 264, 136), (264, 136, 200), (300, 257, 200), (1000, 776, 328), (768, 768, 4096))
]
PRODUCTS += [
    (dtype, turned, epilogue, *size, "sm_80")
    for dtype in ("bf16", "f16")
    for turned in ("plain", "turned")
    for epilogue in ("none", "gelu", "residual")
    for size in ((17, 264, 136), (130, 264, 72), (300, 264, 200), (1000, 776, 328), (2048, 2048, 1024))
]


def run_codes(name: str, dtype: str, epilogue: str, m: str, n: str, k: str) -> float:
    """A product with stored GGUF blocks against f64: every element, and twice the same bits."""
    from random_panels import random_panels

    from rlx import nn
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building
    from rlx.ops.lowered.quantized_panels import PanelMatMul
    from rlx.quant.panels import unpack_rows
    from rlx.quant.schemes import QuantScheme

    rows, columns, depth = int(m), int(n), int(k)
    scheme = QuantScheme.of_ggml(name)
    layout = scheme.panel_format
    assert layout is not None
    rng = np.random.default_rng(rows * columns + depth)
    a = rng.standard_normal((rows, depth)).astype("f4").astype(DType.of(dtype).numpy)
    panels = random_panels(layout, columns, depth, 3)
    graph, given = Graph("codes"), {"a": a, "panels": panels}
    x, w = graph.input("a", ("M", depth), dtype), graph.input("panels", panels.shape, "u8")
    want = a.astype("f8") @ unpack_rows(layout, panels, columns, depth).astype("f8").T
    with building(graph):
        y = PanelMatMul(scheme, columns)(x, w)
        if epilogue == "residual":
            given["residual"] = rng.standard_normal((rows, columns)).astype("f4").astype(a.dtype)
            y, want = y + graph.input("residual", ("M", columns), dtype), want + given["residual"].astype("f8")
        if epilogue == "gated":
            half = columns // 2
            y = nn.silu(y[:, :half]) * y[:, half:]
            want = want[:, :half] / (1 + np.exp(-want[:, :half])) * want[:, half:]
    graph.set_outputs([y])
    executable = CudaBackend().compile(graph, None)
    assert "mma of codes" in str(executable.report), str(executable.report)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    error = distance(got, want)
    worst = float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    bound = {"f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
    assert error <= bound and worst <= 2 * bound, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


def code_products() -> Iterator[tuple[Any, ...]]:
    """Every panel format; then rows, epilogues and types of A for some."""
    from rlx.quant.fields import PANEL_FORMATS
    from rlx.quant.schemes import QuantScheme

    for name in PANEL_FORMATS:
        yield (name, "f32", "none", 1, 72, 768)
        # 864 is no multiple of a chunk.
        yield (name, "f32", "none", 5, 72, 768 if 864 % (QuantScheme.of_ggml(name).gguf_block_size or 1) else 864)
    for name in ("Q4_K", "Q8_0", "Q6_K", "Q4_0"):
        for dtype in ("f32", "bf16", "f16"):
            for rows in (1, 2, 4, 8, 9, 16, 50):
                yield (name, dtype, "residual" if rows % 2 else "none", rows, 104, 2048)
            yield (name, dtype, "gated", 3, 96, 1024)


WIDE_PRODUCTS = [(1, 1000, 2056), (2, 4099, 1024), (8, 264, 1544), (1, 2048, 8192)]


def run_wide_product(m: str, n: str, k: str) -> float:
    """f32 rows with a weight that is stored in bf16, against f64: no more is lost than by sums in f32."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, columns, depth = int(m), int(n), int(k)
    rng = np.random.default_rng(rows * columns + depth)
    x = (rng.standard_normal((rows, depth)) * np.exp(3 * rng.standard_normal((rows, depth)))).astype("f4")
    w = rng.standard_normal((columns, depth)).astype(DType.BF16.numpy)
    graph = Graph("wide")
    a, b = graph.input("a", ("M", depth), "f32"), graph.param("w", w.shape, "bf16")
    with building(graph):
        graph.set_outputs([ops.matmul(a, ops.transpose(ops.cast(b, DType.F32), (1, 0)))])
    executable = CudaBackend().compile(graph, None)
    assert "mma of few rows" in str(executable.report), str(executable.report)
    params = executable.prepare({"w": w})
    got, *again = (np.asarray(executable.run({"a": x}, params)[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    x[0, 3] = np.inf
    assert np.isinf(np.asarray(executable.run({"a": x}, params)[0])[0]).all(), "infinity is lost"
    x[0, 3] = 0
    wanted = x.astype("f8") @ w.astype("f8").T
    found = np.asarray(executable.run({"a": x}, params)[0]).astype("f8")
    scale = np.abs(x).astype("f8") @ np.abs(w.astype("f8")).T
    worst = float((np.abs(found - wanted) / scale).max())
    # Each of eight warps adds 16 elements of K at a time to a sum of f32, which tensor cores cut instead of rounding.
    bound = max(1, depth // 128) * 2.0**-23
    assert worst <= bound, f"off by {worst:.2g} of the sum of all sizes"
    return worst


class AttentionProgram(NamedTuple):
    """One attention to check; rows beyond `lengths` of k and v are NaN, which nobody may read."""

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
    return [*found, make("bf16", "bhsd", 4, 4, 192, 300, 300, "causal", value_width=128)]


def run_attention(name: str) -> float:
    """Attention against f64, every element."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building
    from rlx.ops.attn.attention import Attention

    (p,) = (p for p in attention_programs() if p.name == name)
    rng = np.random.default_rng(p.queries * p.keys + p.width)
    numpy = DType.of(p.dtype).numpy
    value_width = p.value_width or p.width

    def draw(heads: int, rows: int, width: int) -> Any:
        return rng.standard_normal((p.batch, heads, rows, width)).astype("f4").astype(numpy)

    def laid(x: Any) -> Any:
        if p.layout != "bhsd":
            x = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
        return x.reshape(*x.shape[:2], -1) if p.layout == "bsm" else x

    q, k, v = (
        draw(p.heads, p.queries, p.width),
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
        leaves[key] = graph.input(key, tuple(dims), DType.of(array.dtype).value)
    kind = p.kind if not p.window else ("sliding_window", p.window)
    options = {"num_heads": p.heads, "num_kv_heads": p.kv_heads, "layout": p.layout, "softcap": p.softcap}
    if p.layout != "bsm":
        del options["num_heads"], options["num_kv_heads"]
    with building(graph):
        extras = {"kv_len": leaves.get("lengths"), "positions": leaves.get("positions")}
        y = ops.attention(leaves["q"], leaves["k"], leaves["v"], mask_kind=kind, **options, **extras)
    graph.set_outputs([y])
    executable = CudaBackend().compile(graph, None)
    assert "wgmma attention" in str(executable.report), str(executable.report)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    (node,) = (n for n in graph.nodes if isinstance(n.op, Attention))
    order = [given[n] for n in ("q", "k", "v", "lengths", "positions") if n in given]
    want = np.asarray(node.op.eval(*(np.nan_to_num(a.astype("f8")) if a.dtype.kind not in "iu" else a for a in order)))
    error = distance(got, want)
    worst = float(np.abs(got.astype("f8") - want).max())
    assert np.isfinite(worst) and worst <= 0.03 * float(np.abs(want).max()), f"an element is off by {worst:.2g}"
    bound = {"f16": 1.5e-3, "bf16": 6e-3}[p.dtype]
    assert error <= bound, f"off by {error:.2g}"
    return error


MODEL_TOKENS = 64
# How far logits may be from those of the CPU engine with activations of f32: the same weights and arithmetic, in
# another order. With its default, activations as 16-bit codes, it is itself 2.9e-3 from that with 8-bit caches.
MODEL_BOUND = 2e-3


def run_model(kv_dtype: str) -> float:
    """The shipped model token by token: the greedy choices of the CPU engine, and its logits."""
    import rlx
    from rlx.models import language_model

    path = Path(language_model.__file__).parent / "data" / "tiny.gguf"
    cpu = rlx.load(path, device="cpu", kv_dtype=kv_dtype, activations="f32").session()
    gpu = rlx.load(path, device="cuda", kv_dtype=kv_dtype).session()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    logits = [session.prefill(prompt) for session in (cpu, gpu)]
    worst, tokens = 0.0, 0
    while True:
        worst = max(worst, distance(logits[1], logits[0]))
        first, second = (int(np.argmax(x)) for x in logits)
        gap = float(np.partition(logits[0], -2)[-1] - np.partition(logits[0], -2)[-2])
        # A tie within the rounding may fall either way; both go on with the choice of the CPU.
        assert first == second or gap <= 2 * worst * float(np.abs(logits[0]).max()), f"token {tokens} differs"
        tokens += 1
        if tokens == MODEL_TOKENS:
            break
        logits = [session.step(first) for session in (cpu, gpu)]
    assert worst <= MODEL_BOUND, f"logits off by {worst:.2g}"
    cpu.truncate(len(prompt))
    gpu.truncate(len(prompt))
    assert distance(gpu.step(7), cpu.step(7)) <= MODEL_BOUND, "after going back"
    return worst


def run_driver(name: str) -> float:
    import gpu_driver_checks

    getattr(gpu_driver_checks, name)()
    return 0.0


def run_gradients(name: str) -> float:
    import gpu_gradient_checks

    return gpu_gradient_checks.run_gradients(name)


def run_rest(name: str) -> float:
    import gpu_rest_checks

    return gpu_rest_checks.run(name)


def run_one_kernel(name: str) -> float:
    import gpu_step_checks

    return gpu_step_checks.run(name)


def run_training(name: str) -> float:
    import gpu_training_checks

    return gpu_training_checks.CHECKS[name]()


def items(only: list[str]) -> Iterator[list[str]]:
    if "driver" in only:
        import gpu_driver_checks

        for name in gpu_driver_checks.CHECKS:
            yield ["driver", name]
    if "products" in only:
        for product in PRODUCTS:
            yield ["product", *map(str, product)]
        for product in code_products():
            yield ["codes", *map(str, product)]
        for size in WIDE_PRODUCTS:
            yield ["wide", *map(str, size)]
    if "attention" in only:
        for program in attention_programs():
            yield ["attention", program.name]
    if "gradients" in only:
        import gpu_gradient_checks

        for gradient_program in gpu_gradient_checks.programs():
            yield ["gradients", gradient_program.name]
    if "rest" in only:
        import gpu_rest_checks

        for name in gpu_rest_checks.CHECKS:
            yield ["rest", name]
    if "training" in only:
        import gpu_training_checks

        for name in gpu_training_checks.CHECKS:
            yield ["training", name]
    if "one_kernel" in only:
        import gpu_step_checks

        for name in gpu_step_checks.CHECKS:
            yield ["one_kernel", name]
    if "models" in only:
        for kv_dtype in ("f32", "f16", "bf16", "q8"):
            yield ["model", kv_dtype]
    if "families" in only:
        from family_programs import FAMILIES

        for policy in POLICIES:
            for name in FAMILIES:
                for way in ("forward", "training"):
                    yield ["family", name, way, policy]
    if "ops" in only:
        import rlx  # noqa: F401  (registers the ops)
        from rlx.ir.op import OP_CLASSES

        for name, cls in OP_CLASSES.items():
            if name not in LEAVES | NOT_COMPARED | ACCEPTED.keys() and cls.__module__.startswith("rlx.ops"):
                yield ["op", name]


def work() -> None:
    """A worker: items as lines of JSON in, results out. It ends after a fatal error of the GPU."""
    runs = {
        "family": run_family,
        "op": run_op,
        "driver": run_driver,
        "product": run_product,
        "codes": run_codes,
        "wide": run_wide_product,
        "attention": run_attention,
        "gradients": run_gradients,
        "model": run_model,
        "one_kernel": run_one_kernel,
        "rest": run_rest,
        "training": run_training,
    }
    sys.stdout = sys.stderr
    for line in sys.stdin:
        kind, *arguments = json.loads(line)
        start, fatal = time.time(), False
        try:
            found: dict[str, Any] = {"error": runs[kind](*arguments)}
        except BaseException as error:
            fatal = bool(getattr(error, "is_fatal", False))
            shown = "".join(traceback.format_exception_only(error)).strip()
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = {"failed": f"{shown[:600]} ({Path(where.filename).name}:{where.lineno})"}
        found |= {"seconds": round(time.time() - start, 2), "fatal": fatal}
        sys.__stdout__.write(json.dumps(found) + "\n")
        sys.__stdout__.flush()
        if fatal:
            return


class Worker:
    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, item: list[str]) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, __file__, "--worker"]
            self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(item) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {"failed": "the process ended", "fatal": True, "seconds": 0}
        if found["fatal"]:
            self.process.wait()
            self.process = None
        return {"item": " ".join(item), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    groups = ["driver", "products", "attention", "gradients", "training", "rest", "one_kernel", "models", "families"]
    groups.append("ops")
    parser.add_argument("--only", nargs="+", default=groups)
    parser.add_argument("--match", default="")
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        work()
        return 0
    from rlx.backends.cuda.driver import Missing, probe

    found = probe()
    if isinstance(found, Missing):
        print(found.reason)
        return 2
    import queue

    todo: queue.Queue[list[str]] = queue.Queue()
    count = 0
    for item in items(args.only):
        if args.match in " ".join(item):
            todo.put(item)
            count += 1
    results: list[dict[str, Any]] = []
    start = time.time()

    def drain(_: int) -> None:
        worker = Worker()
        while time.time() - start < args.seconds:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                break
            result = worker(item)
            results.append(result)
            if "failed" in result:
                print(f"FAILED {result['item']}: {result['failed']}", flush=True)
        if worker.process is not None:
            worker.process.kill()

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(drain, range(args.workers)))
    failed = [r for r in results if "failed" in r]
    slow = sorted(results, key=lambda r: -r["seconds"])[:5]
    print(f"{len(results)} of {count} run, {len(failed)} failed, {time.time() - start:.0f} s")
    print("slowest:", ", ".join(f"{r['item']} {r['seconds']} s" for r in slow))
    worst = sorted((r for r in results if "error" in r), key=lambda r: -r["error"])[:8]
    print("furthest:", ", ".join(f"{r['item']} {r['error']:.1e}" for r in worst))
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=0))
    return 1 if failed or len(results) < count else 0


if __name__ == "__main__":
    sys.exit(main())
