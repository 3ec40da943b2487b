"""rlx on an NVIDIA GPU beside torch eager, torch.compile, cuBLAS and torch's attentions, in one run.

    python3 benchmarks/cuda_peers.py --out results.json [--groups maps products] [--seconds 200] [--no-rlx]

Every group measures all its columns in shuffled order with pauses, on one stream and with one pair of events, and the
limits of the chip (a copy, a large product) in the same run. Needs torch with CUDA; results name device and versions.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cuda_rest
import numpy as np
import torch
import torch.nn.functional as F
from cuda_rest import Row

import rlx
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.streams import Stream
from rlx.backends.cuda.timing import Case, Measured, measure, measure_limits
from rlx.errors import BackendError

BF16, F32 = torch.bfloat16, torch.float32
DTYPES = {
    BF16: "bf16",
    F32: "f32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.complex64: "c64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}
# Seconds from which on a launch is measured few times.
SLOW = 0.03


class Work(NamedTuple):
    """One row of the table: callables by column, and what they move and compute."""

    name: str
    bytes: float
    flops: float
    columns: dict[str, Callable[[int], Any]]
    launches: int = 20
    repeats: int = 1  # of the work in one launch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def own(
    function: Callable[..., Any],
    *arrays: torch.Tensor,
    turns: Sequence[dict[str, torch.Tensor]] = (),
    arch: str | None = None,
) -> Callable[[int], Any] | None:
    """The same function of rlx as a launch on arrays of the GPU; None, with a note, if it does not compile. In `turns`
    are other arrays for its arguments x0, x1, .., which take turns with them; `arch` is an older chip to compile
    for."""
    if ARGS.no_rlx:
        return None
    from rlx.backends.compile_options import CompileOptions
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    graph = Graph("bench")
    names = [f"x{i}" for i in range(len(arrays))]
    leaves = [graph.input(n, tuple(a.shape), DTYPES[a.dtype]) for n, a in zip(names, arrays)]
    try:
        with building(graph):
            result = function(*leaves)
        graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
        if arch is None:
            executable = CudaBackend().compile(graph, CompileOptions())
        else:
            executable = CudaExecutable.of(CompilePipeline.new("cuda").compile(graph), GPU, arch)
        given = [{n: on_device(a) for n, a in zip(names, arrays)}]
        given += [{**given[0], **{n: on_device(a) for n, a in others.items()}} for others in turns]
        params = executable.prepare({})
        for _ in range(3):
            began = time.time()
            for each in given:
                executable.run(each, params)
            STREAM.synchronize()
            if time.time() - began > SLOW:
                break
    except Exception as error:  # a column that is missing must not take the others with it
        print(f"  rlx: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None
    return lambda i: executable.run(given[i % len(given)], params)


def on_device(tensor: torch.Tensor) -> DeviceArray:
    import ml_dtypes

    host = tensor.cpu()
    foreign = {
        BF16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
        torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    }
    if host.dtype in foreign:
        bits, element = foreign[host.dtype]
        return DeviceArray.of(host.view(bits).numpy().view(element), STREAM)
    return DeviceArray.of(host.numpy(), STREAM)


def rows_of(group: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Work]]:
    """A group of `cuda_rest` with rlx's column, whose first result is checked against torch's."""

    def works() -> Iterator[Work]:
        for row in group():
            columns = {name: torch_graph(f, row.repeats) for name, f in row.theirs.items()}
            mine = None if row.ours is None else own(row.ours, *row.arrays)
            if mine is not None:
                if row.check is not None:
                    print(f"  {distance(next(iter(row.theirs.values()))(), mine(0)[0], row.check)}", flush=True)
                columns["rlx"] = own_graph(mine, row.repeats)
            yield Work(row.name, row.bytes, row.flops, columns, 2, row.repeats)

    return works


def torch_graph(function: Callable[[], Any], repeats: int) -> Callable[[int], Any]:
    """So many calls as one graph: what is measured is the GPU, not the way to it."""
    function()
    torch.cuda.synchronize()
    if repeats == 1:
        return lambda i: function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    return lambda i: graph.replay()


def own_graph(mine: Callable[[int], Any], repeats: int) -> Callable[[int], Any]:
    """The same of rlx; call by call where a program is no graph."""
    if repeats == 1:
        return mine
    try:
        with STREAM.capture() as recorded:
            for i in range(repeats):
                mine(i)
        ready = recorded.instantiate()
    except BackendError as error:
        print(f"  rlx: not in a graph: {str(error)[:200]}", flush=True)
        return lambda i: [mine(j) for j in range(repeats)]
    return lambda i: ready.launch(STREAM)


def distance(theirs: Any, ours: Any, most: float) -> str:
    """How far a result lies from torch's, relative to the largest of its numbers."""
    theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
    wide = theirs.to(torch.complex128 if theirs.is_complex() else torch.float64).cpu().numpy()
    got = np.asarray(ours).astype(wide.dtype)
    apart = float(np.abs(got - wide).max() / np.abs(wide).max())
    return f"off by {apart:.1e}" if apart <= most else f"WRONG: off by {apart:.1e}, {most:.1e} allowed"


def maps() -> Iterator[Work]:
    """What reads and writes large arrays once."""
    import rlx.numpy as rnp
    from rlx import nn

    n, width = 16384, 8192
    for dtype, label in ((BF16, "bf16"), (F32, "f32")):
        size = 2 if dtype is BF16 else 4
        x, y = randn(n, width, dtype=dtype), randn(n, width, dtype=dtype)
        w, b = randn(width, dtype=dtype), randn(width, dtype=dtype)
        one = n * width * size

        def row(
            name: str,
            moved: float,
            theirs: Callable[..., Any],
            ours: Callable[..., Any],
            *arrays: Any,
            label: str = label,
        ) -> Work:
            fast = compiled(theirs)
            columns: dict[str, Callable[[int], Any]] = {
                "torch": lambda i: theirs(*arrays),
                "compile": lambda i: fast(*arrays),
            }
            mine = own(ours, *arrays)
            return Work(f"{name} {label}", moved, 0, columns | ({"rlx": mine} if mine else {}), 10)

        yield row("silu*mul", 3 * one, lambda x, y: F.silu(x) * y, lambda x, y: nn.silu(x) * y, x, y)
        yield row(
            "gelu+bias",
            2 * one,
            lambda x, b: F.gelu(x + b, approximate="tanh"),
            lambda x, b: nn.gelu(x + b, approximate=True),
            x,
            b,
        )
        yield row(
            "rms_norm",
            2 * one,
            lambda x, w: F.rms_norm(x, (width,), w, 1e-6),
            lambda x, w: nn.rms_norm(x, w),
            x,
            w,
        )
        yield row(
            "layer_norm",
            2 * one,
            lambda x, w, b: F.layer_norm(x, (width,), w, b),
            lambda x, w, b: nn.layer_norm(x, w, b),
            x,
            w,
            b,
        )
        yield row("softmax", 2 * one, lambda x: F.softmax(x, -1), lambda x: nn.softmax(x, axis=-1), x)

        def residual(x: Any, y: Any, w: Any) -> Any:
            s = x + y
            return s, F.rms_norm(s, (width,), w, 1e-6)

        def own_residual(x: Any, y: Any, w: Any) -> Any:
            s = x + y
            return s, nn.rms_norm(s, w)

        yield row("residual+rms_norm", 4 * one, residual, own_residual, x, y, w)
        logits, labels = randn(4096, 32768, dtype=dtype), torch.randint(0, 32768, (4096,), device="cuda")
        yield row(
            "cross_entropy",
            4096 * 32768 * size,
            lambda x, t: F.cross_entropy(x.float(), t),
            lambda x, t: rnp.mean(nn.softmax_cross_entropy_with_integer_labels(x.astype("f32"), t)),
            logits,
            labels,
        )


def products() -> Iterator[Work]:
    shapes = [(n, n, n) for n in (1024, 2048, 4096, 8192)]
    shapes += [(4096, 14336, 4096), (4096, 4096, 14336), (8192, 14336, 4096), (2048, 6144, 4096)]
    shapes += [(m, 14336, 4096) for m in (16, 64, 128, 256, 512)]
    for m, n, k in shapes:
        copies = max(1, min(8, math.ceil(2e8 / (2 * n * k))))
        a, bs = randn(m, k), [randn(n, k) for _ in range(copies)]
        columns = {"cublas": lambda i, a=a, bs=bs: a @ bs[i % len(bs)].T}
        mine = own(lambda a, w: a @ w.T, a, bs[0], turns=[{"x1": b} for b in bs[1:]])
        columns |= {"rlx": mine} if mine else {}
        # What chips without wgmma run, here as well.
        older = own(lambda a, w: a @ w.T, a, bs[0], turns=[{"x1": b} for b in bs[1:]], arch="sm_80")
        columns |= {"rlx sm_80": older} if older else {}
        yield Work(f"product {m}x{n}x{k} bf16", 2 * (m * k + n * k + m * n), 2 * m * n * k, columns, 5)


def epilogues() -> Iterator[Work]:
    from rlx import nn

    for m, n, k in ((4096, 4096, 4096), (8192, 14336, 4096), (512, 14336, 4096)):
        a, w, b, r = randn(m, k), randn(n, k), randn(n), randn(m, n)

        def gelu(a: Any, w: Any, b: Any) -> Any:
            return F.gelu(F.linear(a, w, b), approximate="tanh")

        def added(a: Any, w: Any, r: Any) -> Any:
            return r + a @ w.T

        ours = {
            "bias+gelu": lambda a, w, b: nn.gelu(a @ w.T + b, approximate=True),
            "residual": lambda a, w, r: r + a @ w.T,
        }
        for name, function, third in (("bias+gelu", gelu, b), ("residual", added, r)):
            fast = compiled(function)
            columns = {
                "torch": lambda i, f=function, t=third, a=a, w=w: f(a, w, t),
                "compile": lambda i, f=fast, t=third, a=a, w=w: f(a, w, t),
            }
            mine = own(ours[name], a, w, third)
            columns |= {"rlx": mine} if mine else {}
            yield Work(f"product+{name} {m}x{n}x{k} bf16", 0, 2 * m * n * k, columns, 10)


# Sequences and batches: as much work in each.
ATTENTION_SIZES = ((2048, 8), (4096, 4), (8192, 2), (16384, 1))


def attention() -> Iterator[Work]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from rlx import ops

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for d in (128, 64):
        for seq, batch in ATTENTION_SIZES:
            for causal in (False, True):
                heads = 16
                q, k, v = (randn(batch, heads, seq, d) for _ in range(3))

                def run(backend: Any, q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                flops = 4 * batch * heads * seq * seq * d / (2 if causal else 1)
                columns = {name: lambda i, b=b, run=run: run(b) for name, b in backends.items()}
                kind = "causal" if causal else "none"
                mine = own(lambda q, k, v, kind=kind: ops.attention(q, k, v, mask_kind=kind, layout="bhsd"), q, k, v)
                columns |= {"rlx": mine} if mine else {}
                name = f"attention {batch}x{heads}x{seq} d{d} {'causal' if causal else 'full'} bf16"
                yield Work(name, 0, flops, columns, 10)


def attention_backward() -> Iterator[Work]:
    """Gradients of q, k and v from what the forward pass has kept: torch's saved values, and y with logarithms."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from rlx import ops
    from rlx.ops.lowered.attention_gradients import AttentionGradients

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    heads = 16
    for d in (128, 64):
        for seq, batch in ATTENTION_SIZES:
            for causal in (False, True):
                q, k, v, dy = (randn(batch, heads, seq, d) for _ in range(4))
                leaves = [x.requires_grad_() for x in (q, k, v)]
                columns: dict[str, Callable[[int], Any]] = {}
                for name, backend in backends.items():
                    with sdpa_kernel(backend):
                        y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
                    columns[name] = lambda i, y=y, leaves=leaves, dy=dy: torch.autograd.grad(
                        y, leaves, dy, retain_graph=True
                    )
                with torch.no_grad():
                    y, logs = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
                    kept = [x.detach() for x in (q, k, v, dy, y, logs * math.log2(math.e))]
                op = AttentionGradients(heads, d, mask_kind="causal" if causal else "none")

                def gradients(*operands: Any, op: Any = op) -> Any:
                    dq, dk, dv = op(*operands)
                    return ops.cast(dq, "bf16"), dk, dv

                mine = own(gradients, *kept)
                columns |= {"rlx": mine} if mine else {}
                flops = 10 * batch * heads * seq * seq * d / (2 if causal else 1)
                name = f"attention backward {batch}x{heads}x{seq} d{d} {'causal' if causal else 'full'} bf16"
                yield Work(name, 0, flops, columns, 5)


def training() -> Iterator[Work]:
    """A step of GPT-2 124M, 8x1024 tokens: forward, backward and AdamW."""
    from gpt2_training import Gpt2, rlx_step, torch_step

    model = Gpt2()
    theirs = torch_step(model)
    columns: dict[str, Callable[[int], Any]] = {"compile": lambda i: theirs()}
    if not ARGS.no_rlx:
        step, state, batch = rlx_step(model, "cuda")
        held = [state]

        def ours(i: int) -> None:
            held[0], _ = step(held[0], batch)

        columns["rlx"] = ours
    # Six for each weight and token, and the two products of attention, of which half is seen.
    weights = model.layers * 12 * model.width**2 + model.vocabulary * model.width
    scores = model.layers * model.length * model.width
    flops = 6 * model.batch * model.length * (weights + scores)
    yield Work("GPT-2 124M step 8x1024 bf16", 0, flops, columns, 5)
    theirs_bytes, ours_bytes = torch.cuda.max_memory_allocated(), GPU.pool.most_used_bytes
    print(f"  at most: torch {theirs_bytes / 1e9:.2f} GB, rlx {ours_bytes / 1e9:.2f} GB", flush=True)


def decode_attention() -> Iterator[Work]:
    """One query of a sequence to a cache, 32 heads of which 8 share keys: bound by keys and values, whose layers take
    turns."""
    from rlx import ops

    heads, kv_heads, d = 32, 8, 128
    for batch, keys in ((1, 4096), (1, 16384), (8, 4096)):
        q = randn(batch, heads, 1, d)
        copies = max(2, math.ceil(3e8 / (4 * batch * kv_heads * keys * d)))
        caches = [(randn(batch, kv_heads, keys, d), randn(batch, kv_heads, keys, d)) for _ in range(copies)]

        def run(i: int, q: Any = q, caches: Any = caches) -> Any:
            k, v = caches[i % len(caches)]
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        run(0)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for i in range(copies):
                run(i)
        columns = {"torch": lambda i, graph=graph: graph.replay()}
        turns = [{"x1": k, "x2": v} for k, v in caches[1:]]
        mine = own(lambda q, k, v: ops.attention(q, k, v, mask_kind="none", layout="bhsd"), q, *caches[0], turns=turns)
        if mine is not None:
            with STREAM.capture() as recorded:
                for i in range(copies):
                    mine(i)
            ready = recorded.instantiate()
            columns["rlx"] = lambda i, ready=ready: ready.launch(STREAM)
        moved = copies * 4 * batch * kv_heads * keys * d
        yield Work(f"{copies} decode attentions {batch}x{heads}/{kv_heads}x{keys} d{d} bf16", moved, 0, columns, 5)


def few_rows() -> Iterator[Work]:
    """One-row and few-row products: bound by the weights, of which four copies take turns, in one graph."""
    n, k = 14336, 4096
    weights = [randn(n, k) for _ in range(4)]
    for m in (1, 2, 4, 8):
        a = randn(m, k)
        graph = torch.cuda.CUDAGraph()
        for w in weights:
            a @ w.T
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(4):
                for w in weights:
                    a @ w.T
        columns = {"cublas": lambda i, graph=graph: graph.replay()}
        mine = own(lambda a, w: a @ w.T, a, weights[0], turns=[{"x1": w} for w in weights[1:]])
        if mine is not None:
            try:
                with STREAM.capture() as recorded:
                    for i in range(16):
                        mine(i)
                ready = recorded.instantiate()
                columns["rlx"] = lambda i, ready=ready: ready.launch(STREAM)
            except BackendError as error:
                print(f"  rlx: not in a graph: {str(error)[:200]}", flush=True)
                columns["rlx"] = lambda i, mine=mine: [mine(j) for j in range(16)]
        yield Work(f"16 products {m}x{n}x{k} bf16", 16 * 2 * n * k, 16 * 2 * m * n * k, columns, 4)


def quantised() -> Iterator[Work]:
    """Products with stored GGUF blocks, f32 in and out, beside those with bf16 weights: bytes are those stored. Eight
    weights take turns, in one graph; the first is checked against f64 on some of its rows."""
    from random_panels import random_panels

    from rlx.ops.lowered.quantized_panels import PanelMatMul
    from rlx.quant.panels import unpack_rows
    from rlx.quant.schemes import QuantScheme

    n, k, copies = 14336, 4096, 8

    def graph_of(mine: Callable[[int], Any]) -> Callable[[int], Any]:
        with STREAM.capture() as recorded:
            for i in range(2 * copies):
                mine(i)
        ready = recorded.instantiate()
        return lambda i: ready.launch(STREAM)

    for m in (1, 4, 8, 512):
        a, weights = randn(m, k), [randn(n, k) for _ in range(copies)]
        mine = own(lambda a, w: a @ w.T, a, weights[0], turns=[{"x1": w} for w in weights[1:]])
        if mine is not None:
            columns = {"rlx": graph_of(mine)}
            yield Work(f"16 products {m}x{n}x{k} bf16", 16 * 2 * n * k, 16 * 2 * m * n * k, columns, 4)
    for name in ("Q4_K", "Q8_0", "Q4_0", "Q6_K"):
        layout = QuantScheme.of_ggml(name).panel_format
        assert layout is not None
        given = [random_panels(layout, n, k, seed) for seed in range(copies)]
        panels = [torch.from_numpy(p).cuda() for p in given]
        op = PanelMatMul(QuantScheme.of_ggml(name), n)
        wide = unpack_rows(layout, given[0][:4], 64, k).astype("f8")
        for m in (1, 4, 8, 512):
            for dtype in (F32, BF16) if m in (1, 512) else (F32,):
                a = randn(m, k, dtype=dtype)
                mine = own(op, a, panels[0], turns=[{"x1": p} for p in panels[1:]])
                if mine is None:
                    continue
                got = np.asarray(mine(0)[0]).astype("f8")[:, :64]
                want = a.double().cpu().numpy() @ wide.T
                error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                label = f"{name} {'f32' if dtype is F32 else 'bf16'}"
                print(f"  {label} {m} rows: off by {error:.2g}", flush=True)
                moved = 2 * copies * given[0].nbytes
                yield Work(f"16 products {m}x{n}x{k} {label}", moved, 32 * m * n * k, {"rlx": graph_of(mine)}, 4)


def reductions() -> Iterator[Work]:
    """Sums along rows, along columns, and of everything; and attention of a short sequence by the generic schedule."""
    import rlx.numpy as rnp
    from rlx import nn

    x = randn(16384, 8192, dtype=F32)
    for name, axis in (("rows", -1), ("columns", 0), ("everything", None)):
        theirs = (lambda x: x.sum()) if axis is None else (lambda x, axis=axis: x.sum(axis))
        fast, mine = compiled(theirs), own(lambda x, axis=axis: rnp.sum(x, axis=axis), x)
        columns = {"torch": lambda i, f=theirs: f(x), "compile": lambda i, f=fast: f(x)}
        yield Work(f"sum of {name} f32", x.numel() * 4, 0, columns | ({"rlx": mine} if mine else {}), 5)
    q, k, v = (randn(1, 512, 16, 64) for _ in range(3))

    def attention(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)

    mine = own(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), q, k, v)
    columns = {"torch": lambda i: attention(q, k, v)} | ({"rlx": mine} if mine else {})
    yield Work("attention 1x16x512 d64 causal bf16", 0, 4 * 16 * 512 * 512 * 64 / 2, columns, 3)


def small() -> Iterator[Work]:
    """What a call costs: three ops on small arrays, from Python to done."""
    x = randn(128, 128, dtype=F32)

    def three(x: Any) -> Any:
        return torch.tanh(x * 2.0 + 1.0)

    import rlx.numpy as rnp

    fast, mine = compiled(three), own(lambda x: rnp.tanh(x * 2.0 + 1.0), x)
    columns = {"torch": lambda i: three(x), "compile": lambda i: fast(x)}
    yield Work("3 nodes f32 128x128", 0, 0, columns | ({"rlx": mine} if mine else {}), 200)


# Shapes and how many of their layers are there.
MODELS = (("1B", 16), ("8B", 8))


# Tokens of one launch.
TOKENS_AHEAD = 32


def models() -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, configuration, rlx's model and torch's, checked against each other: logits after a prompt and after one
    more token, both against torch in f32."""
    from cuda_models import OwnModel, config_of
    from cuda_torch_models import TorchModel, divergence, on_host, seeded_weights

    for name, layers in MODELS:
        if name not in ARGS.models:
            continue
        c = config_of(name, layers)
        weights = seeded_weights(c)
        own_model = OwnModel(c, lambda n, weights=weights: on_host(weights[n]))
        theirs = TorchModel(c, weights)
        prompt = np.random.default_rng(7).integers(0, c.vocab, 65)
        exact, found = TorchModel(c, weights, F32), {}
        for model in (own_model, theirs, exact):
            model.start(127)
        found["rlx"] = [np.asarray(own_model.run(own_model.inputs(p, s)))[0, 0] for p, s in split(prompt)]
        for key, model in (("torch", theirs), ("f32", exact)):
            found[key] = [model.logits(p, s) for p, s in split(prompt)]
        del exact
        torch.cuda.empty_cache()
        for key in ("rlx", "torch"):
            apart = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found[key], found["f32"])]
            kl = [divergence(a, b) for a, b in zip(found[key], found["f32"])]
            shown = f"off by {apart[0]:.1e} and {apart[1]:.1e}, KL {kl[0]:.1e} and {kl[1]:.1e}"
            print(f"  {name} {key} against torch in f32: {shown}", flush=True)
        yield f"{name} of {layers} layers", c, own_model, theirs


def split(prompt: Any) -> list[tuple[Any, int]]:
    """A prompt, and the last token by itself, with the place where each begins."""
    return [(prompt[:-1], 0), (prompt[-1:], len(prompt) - 1)]


def decode_model() -> Iterator[Work]:
    """One token of a decoder at a context: everything it reads, as a share of the bandwidth of a copy."""
    from cuda_models import step_bytes

    for name, c, own_model, theirs in models():
        for context in (512, 4096):
            own_model.start(context + 2 * TOKENS_AHEAD)
            prompt = np.random.default_rng(1).integers(0, c.vocab, context - 1)
            for start in range(0, len(prompt), 2048):
                own_model.run(own_model.inputs(prompt[start : start + 2048], start))
            given = own_model.inputs([11], context - 1)
            columns: dict[str, Callable[[int], Any]] = {
                "rlx": lambda i, m=own_model, given=given: m.run(given),
                "rlx kernels": lambda i, m=own_model, given=given: run_as_kernels(m, given),
                "rlx ahead": lambda i, m=own_model, given=given: run_ahead(m, given, i),
            }
            print("  " + next((x for x in str(own_model.program.report).splitlines() if x.startswith("decode:")), ""))
            if context == 512:
                show_profile(own_model, given)
                exact = own_model.with_activations("f32")
                exact.start(context + 2 * TOKENS_AHEAD)
                columns["rlx f32"] = lambda i, m=exact, given=given: m.run(given)
            if not ARGS.no_peers:
                theirs.start(context)
                for key in ("eager", "compile"):
                    began = time.time()
                    columns[key] = theirs.as_graph([11], context - 1, key == "compile")
                    print(f"  torch {key}: ready after {time.time() - began:.1f} s", flush=True)
            # As many tokens as several launches of those that go ahead have.
            yield Work(f"decode {name} at {context}", step_bytes(c, context), 0, columns, 2 * TOKENS_AHEAD)


def run_as_kernels(model: Any, given: dict[str, Any]) -> Any:
    """A step by the graph of kernels."""
    with rlx.knobs(cuda_one_kernel=False):
        return model.run(given)


def run_ahead(model: Any, given: dict[str, Any], number: int) -> None:
    """Many tokens by one launch; those that follow the first cost nothing more."""
    if number % TOKENS_AHEAD == 0:
        inputs = given | model._tables | dict(zip(model.runner.cache_names, model.caches))
        found = model.program.run_ahead(inputs, np.ones(1, np.int32), TOKENS_AHEAD)
        assert found is not None, "no such way"
        model.caches = found[1:]


def prefill_model() -> Iterator[Work]:
    """A prompt of 2048 tokens."""
    from cuda_models import prefill_flops

    tokens = 2048
    for name, c, own_model, theirs in models():
        prompt = np.random.default_rng(1).integers(0, c.vocab, tokens)
        own_model.start(tokens)
        given = own_model.inputs(prompt, 0)
        columns: dict[str, Callable[[int], Any]] = {"rlx": lambda i, m=own_model, given=given: m.run(given)}
        show_profile(own_model, given)
        if not ARGS.no_peers:
            theirs.start(tokens)
            for key in ("eager", "compile"):
                began = time.time()
                columns[key] = theirs.as_graph(prompt, 0, key == "compile")
                print(f"  torch {key}: ready after {time.time() - began:.1f} s", flush=True)
        yield Work(f"prefill {name}, {tokens} tokens", 0, prefill_flops(c, tokens), columns, 3)


def show_profile(model: Any, given: dict[str, Any]) -> None:
    """Where the time of a step goes, kernel by kernel with a pause after each."""
    for _ in range(3):
        model.run(given)
    total: dict[tuple[str, str], list[float]] = {}
    for kernel in model.program.profile_while(lambda: model.run(given), 3).kernels:
        total.setdefault((kernel.kind, kernel.what), []).append(kernel.seconds)
    for (kind, ops), seconds in sorted(total.items(), key=lambda item: -sum(item[1])):
        print(f"  {sum(seconds) * 1e6:8.1f} us in {len(seconds):3} {kind}: {ops[:90]}", flush=True)


GROUPS = {
    "decode_model": decode_model,
    "prefill_model": prefill_model,
    "maps": maps,
    "products": products,
    "few_rows": few_rows,
    "quantised": quantised,
    "epilogues": epilogues,
    "attention": attention,
    "attention_backward": attention_backward,
    "decode_attention": decode_attention,
    "reductions": reductions,
    "small": small,
    "training": training,
    **{name: rows_of(group) for name, group in cuda_rest.GROUPS.items()},
}


def peak() -> float:
    """The rate of a large product, in this run."""
    a, b = randn(8192, 8192), randn(8192, 8192)
    found = measure(GPU, [Case("peak", lambda i: a @ b.T)], stream=STREAM, launches=10)["peak"]
    return 2 * 8192**3 / found.median


def versions() -> dict[str, str]:
    return {
        "device": str(GPU.info),
        "driver": f"{GPU.info.driver_version}",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "rlx": rlx.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main() -> None:
    started = time.time()
    results: dict[str, Any] = {"versions": versions(), "rows": []}
    with torch.cuda.stream(torch.cuda.ExternalStream(STREAM.handle.value or 0)):
        results["limits"] = {"copy": measure_limits(GPU, STREAM).copy, "product": peak()}
        print(json.dumps(results["versions"]), json.dumps(results["limits"]), flush=True)
        for group in ARGS.groups:
            for work in GROUPS[group]():
                if time.time() - started > ARGS.seconds:
                    print("out of time", flush=True)
                    break
                results["rows"].append(measured(work, results["limits"]))
                torch.cuda.empty_cache()
    Path(ARGS.out).write_text(json.dumps(results, indent=1))


def seconds_of(case: Case) -> float:
    """One launch, with the way there and back."""
    STREAM.synchronize()
    began = time.time()
    case.enqueue(0)
    STREAM.synchronize()
    return time.time() - began


def measured(work: Work, limits: dict[str, float]) -> dict[str, Any]:
    cases = [Case(name, run) for name, run in work.columns.items()]
    row: dict[str, Any] = {"name": work.name}
    text = []
    slow = [case for case in cases if seconds_of(case) > SLOW]
    quick = [case for case in cases if case not in slow]
    readings = measure(GPU, quick, stream=STREAM, rounds=5, launches=work.launches, pause=0.02)
    # Nothing that takes so long depends on what lies in the caches.
    readings |= {case.name: Measured((seconds_of(case),)) for case in slow}
    for name, found in readings.items():
        seconds = found.median / work.repeats
        row[name] = {"us": seconds * 1e6, "spread": found.spread}
        shown = f"{name} {seconds * 1e6:.1f} us"
        if work.bytes:
            row[name]["of_copy"] = work.bytes / seconds / limits["copy"]
            shown += f" {row[name]['of_copy']:.1%}"
        if work.flops:
            row[name]["tflops"] = work.flops / seconds / 1e12
            shown += f" {row[name]['tflops']:.0f} TF"
        text.append(shown)
    print(f"{work.name}: {'; '.join(text)}", flush=True)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="cuda_peers.json")
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--no-rlx", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="whole models: without torch's own times")
    parser.add_argument("--models", nargs="+", default=[name for name, _ in MODELS])
    ARGS = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("cuda_peers: torch finds no GPU here")
    GPU = open_gpu(0)
    STREAM = Stream(GPU) if ARGS.no_rlx else GPU.stream
    main()
