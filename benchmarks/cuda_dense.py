"""Rows of `cuda_peers.py`: maps, products and what follows them, attention both ways, a training step, sums."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from cuda_columns import BF16, F32, RUN, Work, compiled, distance, own, own_graph, randn, torch_graph


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
    yield from _attentions((128, 64), ATTENTION_SIZES)


def narrow_attention() -> Iterator[Work]:
    """Heads that are not as wide as those of a kernel, which go through the next wider one."""
    yield from _attentions((96, 80, 40), ATTENTION_SIZES[:2])


def older_attention() -> Iterator[Work]:
    """What chips without wgmma run, here as well."""
    yield from _attentions((128, 64), ATTENTION_SIZES[:2], "sm_80")


def _attentions(widths: Sequence[int], sizes: Sequence[tuple[int, int]], older: str = "") -> Iterator[Work]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from rlx import ops

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for d in widths:
        for seq, batch in sizes:
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
                if older:
                    function = lambda q, k, v, kind=kind: ops.attention(q, k, v, mask_kind=kind, layout="bhsd")  # noqa: E731
                    other = own(function, q, k, v, arch=older)
                    columns |= {f"rlx {older}": other} if other else {}
                name = f"attention {batch}x{heads}x{seq} d{d} {'causal' if causal else 'full'} bf16"
                yield Work(name, 0, flops, columns, 10)


def attention_ways() -> Iterator[Work]:
    """Heads of 64, whose exponentials are the limit, with none and some of every eight powers by a polynomial."""
    from unittest import mock

    from torch.nn.attention import SDPBackend, sdpa_kernel

    from rlx import ops
    from rlx.backends.cuda.hopper.attention_form import AttentionForm

    heads, d, repeats = 16, 64, 4
    for seq, batch in ATTENTION_SIZES[:3]:
        for causal in (False, True):
            q, k, v = (randn(batch, heads, seq, d) for _ in range(3))

            def run(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            columns: dict[str, Callable[[int], Any]] = {"cudnn": torch_graph(run, repeats)}
            kind = "causal" if causal else "none"
            for count in (0, 1, 2, 3, 4):
                with mock.patch.object(AttentionForm, "polynomials", count):
                    mine = own(
                        lambda q, k, v, kind=kind: ops.attention(q, k, v, mask_kind=kind, layout="bhsd"), q, k, v
                    )
                    if mine is not None:
                        print(f"  {count} of 8: {distance(run(), mine(0)[0], 2e-2)}", flush=True)
                        columns[f"rlx {count} of 8"] = own_graph(mine, repeats)
            flops = 4 * batch * heads * seq * seq * d / (2 if causal else 1)
            yield Work(f"attention {batch}x{heads}x{seq} d{d} {kind} bf16", 0, flops, columns, 3, repeats)


def split_attention() -> Iterator[Work]:
    """Rows of f32 to keys of bf16, of prompts and of single tokens: on tensor cores, and by the loops of before."""
    from unittest import mock

    from rlx import ops
    from rlx.backends.cuda.hopper.attention_form import AttentionForm, DecodeForm
    from rlx.backends.cuda.hopper.launching import NOTHING

    repeats = 2
    for heads, kv_heads, d, queries, keys in (
        (32, 8, 128, 2048, 2048),
        (32, 8, 64, 2048, 2048),
        (8, 4, 256, 2048, 2048),
        (32, 8, 128, 1, 4096),
        (32, 8, 64, 1, 4096),
        (32, 8, 128, 1, 16384),
    ):
        q = randn(1, heads, queries, d, dtype=F32)
        k, v = (randn(1, kv_heads, keys, d) for _ in range(2))
        kind = "causal" if queries > 1 else "none"

        def run(q: Any = q, k: Any = k, v: Any = v, kind: str = kind) -> Any:
            k, v = (x.to(q.dtype) for x in (k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal", enable_gqa=True)

        want = run(q.double(), k.double(), v.double())
        columns: dict[str, Callable[[int], Any]] = {"torch f32": torch_graph(run, repeats)}
        for name in ("tensor cores", "loops"):
            with contextlib.ExitStack() as patched:
                if name == "loops":
                    for form in (AttentionForm, DecodeForm):
                        patched.enter_context(mock.patch.object(form, "prepared", lambda *_: NOTHING))
                mine = own(lambda q, k, v, kind=kind: ops.attention(q, k, v, mask_kind=kind, layout="bhsd"), q, k, v)
                if mine is not None:
                    print(f"  {name}: {distance(want, mine(0)[0], 1e-5)}", flush=True)
                    columns[f"rlx {name}"] = own_graph(mine, repeats)
        flops = 4 * heads * queries * keys * d / (2 if kind == "causal" else 1)
        name = f"attention {heads}/{kv_heads} heads, {queries} x {keys} d{d} {kind}, f32 to bf16"
        yield Work(name, 4 * kv_heads * keys * d, flops, columns, 2, repeats)


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
    if not RUN.no_rlx:
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
    theirs_bytes, ours_bytes = torch.cuda.max_memory_allocated(), RUN.gpu.pool.most_used_bytes
    print(f"  at most: torch {theirs_bytes / 1e9:.2f} GB, rlx {ours_bytes / 1e9:.2f} GB", flush=True)


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


GROUPS = {
    "maps": maps,
    "products": products,
    "epilogues": epilogues,
    "attention": attention,
    "narrow_attention": narrow_attention,
    "older_attention": older_attention,
    "attention_ways": attention_ways,
    "split_attention": split_attention,
    "attention_backward": attention_backward,
    "reductions": reductions,
    "small": small,
    "training": training,
}
