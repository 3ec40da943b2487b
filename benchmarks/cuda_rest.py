"""Rows of `cuda_peers.py` beyond products and attention: convolutions, transforms, sorts, scans, experts, sparse
products, factorisations and fp8 products, each as torch has it and as rlx does.

    python3 benchmarks/cuda_peers.py --groups conv transforms ordering scans experts linear_algebra fp8 --seconds 80
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

BF16, F32 = torch.bfloat16, torch.float32


class Row(NamedTuple):
    """What is measured: torch's ways by name, rlx's function, and the arrays that it takes. `check` are how far apart
    the first results may lie, relative to the largest; None where they are not comparable one by one."""

    name: str
    bytes: float
    flops: float
    theirs: dict[str, Callable[[], Any]]
    ours: Callable[..., Any] | None
    arrays: tuple[torch.Tensor, ...]
    check: float | None = 1e-3
    repeats: int = 10  # in one graph; 1 where a library waits for the GPU


def uniform(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=F32).to(dtype)


# Layers of ResNet-50: channels in and out, size of the picture, kernel, stride; batches of 32.
LAYERS = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 1, 1),
    (64, 64, 56, 3, 1),
    (64, 256, 56, 1, 1),
    (128, 128, 28, 3, 1),
    (256, 512, 56, 1, 2),
    (256, 256, 14, 3, 1),
    (1024, 256, 14, 1, 1),
    (512, 512, 7, 3, 1),
)
BATCH = 32


def conv() -> Iterator[Row]:
    """Forward, the gradient of x and the gradient of w; torch in both orders of axes (cuDNN)."""
    from rlx import ops

    torch.backends.cudnn.benchmark = True
    for channels, filters, size, kernel, stride in LAYERS:
        side = kernel // 2
        x, w = uniform(BATCH, channels, size, size, dtype=BF16), uniform(filters, channels, kernel, kernel, dtype=BF16)
        w *= 0.1
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, w)]
        result = F.conv2d(x, w, stride=stride, padding=side)
        dy = uniform(*result.shape, dtype=BF16)
        dy_last = dy.contiguous(memory_format=torch.channels_last)
        flops = 2 * result.numel() * channels * kernel * kernel
        name = f"{channels}->{filters} {size}x{size} kernel {kernel} stride {stride}"

        def forward(x: Any, w: Any, stride: int = stride, side: int = side) -> Any:
            return F.conv2d(x, w, stride=stride, padding=side)

        def backward(dy: Any, x: Any, w: Any, which: int, stride: int = stride, side: int = side) -> Any:
            mask = [which == 0, which == 1, False]
            args = ([stride] * 2, [side] * 2, [1, 1], False, [0, 0], 1, mask)
            return torch.ops.aten.convolution_backward(dy, x, w, None, *args)[which]

        yield Row(
            f"conv {name}",
            0,
            flops,
            {
                "cudnn": lambda x=x, w=w, f=forward: f(x, w),
                "cudnn channels last": lambda last=last, f=forward: f(*last),
            },
            lambda x, w, stride=stride, side=side: ops.conv(x, w, stride, side),
            (x, w),
            2e-2,
        )
        for which, of in enumerate("xw"):

            def ours(
                dy: Any, other: Any, which: int = which, s: int = stride, p: int = side, of: Any = (x.shape, w.shape)
            ) -> Any:
                if which == 0:
                    return ops.conv2d_backward_input(dy, other, tuple(of[0]), s, p)
                return ops.conv2d_backward_weight(other, dy, tuple(of[1][2:]), s, p)

            yield Row(
                f"conv d{of} {name}",
                0,
                flops,
                {
                    "cudnn": lambda which=which, dy=dy, x=x, w=w, f=backward: f(dy, x, w, which),
                    "cudnn channels last": lambda which=which, dy=dy_last, last=last, f=backward: f(dy, *last, which),
                },
                ours,
                (dy, (w, x)[which]),
                2e-2,
            )


def transforms() -> Iterator[Row]:
    import rlx.numpy as rnp

    for lines, length in ((16384, 256), (4096, 1024), (1024, 4096), (64, 65536), (4096, 1000)):
        x = torch.view_as_complex(uniform(lines, length, 2))
        yield Row(
            f"fft {lines}x{length} c64",
            16 * x.numel(),
            0,
            {"cufft": lambda x=x: torch.fft.fft(x)},
            lambda x: rnp.fft.fft(x),
            (x,),
        )
    x = uniform(4096, 1024)
    yield Row(
        "rfft 4096x1024 f32",
        8 * x.numel(),
        0,
        {"cufft": lambda: torch.fft.rfft(x)},
        lambda x: rnp.fft.rfft(x),
        (x,),
    )
    x = torch.view_as_complex(uniform(16, 512, 512, 2))
    moved = 32 * x.numel()
    yield Row("fft2 16x512x512 c64", moved, 0, {"cufft": lambda: torch.fft.fft2(x)}, lambda x: rnp.fft.fft2(x), (x,))


def ordering() -> Iterator[Row]:
    import rlx.numpy as rnp
    from rlx import ops

    for shape in ((4096, 1024), (64, 32768), (1 << 17,)):
        x = uniform(*shape)
        name = "x".join(map(str, shape))
        yield Row(
            f"sort {name} f32",
            8 * x.numel(),
            0,
            {"torch": lambda x=x: torch.sort(x, dim=-1).values},
            lambda x: rnp.sort(x, axis=-1),
            (x,),
            0.0,
        )
    for rows, width, k in ((1, 128256, 50), (64, 128256, 50), (4096, 64, 2), (1024, 8192, 8)):
        x = uniform(rows, width)
        yield Row(
            f"top {k} of {rows}x{width} f32",
            4 * x.numel(),
            0,
            {"torch": lambda x=x, k=k: torch.topk(x, k, dim=-1)},
            lambda x, k=k: ops.top_k(x, k),
            (x,),
            0.0,
        )


def scans() -> Iterator[Row]:
    import rlx.numpy as rnp
    from rlx import ops

    for shape, axis in (((4096, 8192), -1), ((8192, 4096), 0), ((1 << 25,), -1)):
        x = uniform(*shape)
        yield Row(
            f"cumsum of axis {axis} of {'x'.join(map(str, shape))} f32",
            8 * x.numel(),
            0,
            {"torch": lambda x=x, axis=axis: torch.cumsum(x, axis)},
            lambda x, axis=axis: rnp.cumsum(x, axis=axis),
            (x,),
        )
    batch, length, channels, states = 4, 2048, 1536, 16
    x, delta = uniform(batch, length, channels), F.softplus(uniform(batch, length, channels) - 3)
    a, b, c = -torch.exp(uniform(channels, states)), uniform(batch, length, states), uniform(batch, length, states)

    def torch_scan() -> torch.Tensor:
        state = torch.zeros(batch, channels, states, device="cuda")
        found = []
        for t in range(length):
            d = delta[:, t, :, None]
            state = torch.exp(d * a) * state + d * x[:, t, :, None] * b[:, t, None, :]
            found.append(torch.einsum("bcn,bn->bc", state, c[:, t]))
        return torch.stack(found, 1)

    yield Row(
        f"selective scan {batch}x{length}x{channels} of {states} states f32",
        12 * x.numel(),
        0,
        {"torch loop in a graph": _graph_of(torch_scan)},
        lambda x, d, a, b, c: ops.selective_scan(x, d, a, b, c, states),
        (x, delta, a, b, c),
        repeats=1,
    )


def _graph_of(function: Callable[[], torch.Tensor]) -> Callable[[], Any]:
    """The function as one CUDA graph, whose result is the same tensor each time."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def run() -> torch.Tensor:
        graph.replay()
        return result

    return run


def experts() -> Iterator[Row]:
    """The tokens of a batch by the matrices of the two experts of each; torch with its rows sorted beforehand, and as
    a layer has to do it: sort, gather, multiply, put back."""
    from rlx import ops

    count, tokens, chosen = 64, 4096, 2
    for k, n in ((2048, 1408), (4096, 1536)):
        x, w = uniform(tokens * chosen, k, dtype=BF16), uniform(count, k, n, dtype=BF16)
        ids = torch.rand(tokens, count, device="cuda").topk(chosen).indices.reshape(-1).int()
        turned = w.transpose(1, 2).contiguous().transpose(1, 2)

        def whole(x: Any = x, w: Any = turned, ids: Any = ids) -> torch.Tensor:
            order = torch.argsort(ids)
            ones = torch.ones_like(ids, dtype=torch.int32)
            found = torch.zeros(count, device="cuda", dtype=torch.int32).scatter_add_(0, ids.long(), ones)
            ends = torch.cumsum(found, 0).int()
            y = torch._grouped_mm(x[order], w, ends)
            return torch.empty_like(y).index_copy_(0, order, y)

        order = torch.argsort(ids)
        rows, ends = x[order], torch.cumsum(torch.bincount(ids, minlength=count), 0).int()
        yield Row(
            f"{count} experts, {tokens} tokens with {chosen} each, {k}x{n} bf16",
            0,
            2 * len(x) * k * n,
            {
                "torch": whole,
                "torch, rows sorted before": lambda rows=rows, w=turned, ends=ends: torch._grouped_mm(rows, w, ends),
            },
            lambda x, w, ids: ops.grouped_matmul(x, w, ids),
            (x, w, ids),
            2e-2,
        )


def linear_algebra() -> Iterator[Row]:
    import rlx.numpy as rnp
    from rlx.sparse.ops_products import CsrMatMul

    size, per_row = 1 << 18, 16
    columns = torch.sort(torch.randint(0, size, (size, per_row), device="cuda"), dim=1).values
    starts = torch.arange(0, size * per_row + 1, per_row, device="cuda", dtype=torch.int32)
    indices, values = columns.reshape(-1).int(), uniform(size * per_row)
    matrix = torch.sparse_csr_tensor(starts, indices, values, (size, size))
    for width in (1, 64):
        x = uniform(size) if width == 1 else uniform(size, width)
        moved = 8 * values.numel() + 8 * x.numel()
        yield Row(
            f"{'spmv' if width == 1 else f'spmm of {width} columns'}, {size} rows of {per_row} f32",
            moved,
            2 * values.numel() * width,
            {"torch": lambda x=x: matrix @ x},
            lambda v, i, p, x: CsrMatMul()(v, i, p, x),
            (values, indices, starts, x),
        )
    for n in (8, 32, 64, 128):
        a = uniform(65536 // n, n, n)
        a = a @ a.mT + n * torch.eye(n, device="cuda")
        b = uniform(65536 // n, n, 1)
        yield Row(
            f"cholesky {len(a)}x{n}x{n} f32",
            0,
            len(a) * n**3 / 3,
            {"torch": lambda a=a: torch.linalg.cholesky_ex(a).L},
            lambda a: rnp.linalg.cholesky(a),
            (a,),
            repeats=1,
        )
        yield Row(
            f"solve {len(a)}x{n}x{n} f32",
            0,
            len(a) * 2 * n**3 / 3,
            {"torch": lambda a=a, b=b: torch.linalg.solve_ex(a, b).result},
            lambda a, b: rnp.linalg.solve(a, b),
            (a, b),
            repeats=1,
        )
        yield Row(
            f"inverse {len(a)}x{n}x{n} f32",
            0,
            len(a) * 2 * n**3,
            {"torch": lambda a=a: torch.linalg.inv_ex(a).inverse},
            lambda a: rnp.linalg.inv(a),
            (a,),
            repeats=1,
        )


def fp8() -> Iterator[Row]:
    """Products of e4m3 with a scale for each operand, bf16 out: cuBLASLt behind torch._scaled_mm."""
    from rlx import ops

    one = torch.ones((), device="cuda")
    sizes = [(n, n, n) for n in (1024, 2048, 4096, 8192)] + [(4096, 14336, 4096), (512, 14336, 4096)]
    for m, n, k in sizes:
        a, b = (uniform(s, k).to(torch.float8_e4m3fn) for s in (m, n))
        options = {"out_dtype": BF16, "use_fast_accum": True}
        slow = {"out_dtype": BF16, "use_fast_accum": False}
        yield Row(
            f"product {m}x{n}x{k} e4m3",
            0,
            2 * m * n * k,
            {
                "cublas": lambda a=a, b=b, o=options: torch._scaled_mm(a, b.T, one, one, **o),
                "cublas, exact sums": lambda a=a, b=b, o=slow: torch._scaled_mm(a, b.T, one, one, **o),
            },
            lambda a, b, s, t: ((ops.matmul(a.astype("bf16"), b.astype("bf16").T, out_dtype="f32")) * (s * t)).astype(
                "bf16"
            ),
            (a, b, one, one),
            2e-2,
        )
    m, n, k = 512, 14336, 4096
    x, w = uniform(m, k, dtype=BF16), uniform(n, k, dtype=BF16)
    codes, scales = (torch.randint(0, 128, s, device="cuda", dtype=torch.uint8) for s in ((k * n // 2,), (k // 16, n)))
    yield Row(
        f"product {m}x{n}x{k}, weights decoded from NVFP4, beside bf16",
        0,
        2 * m * n * k,
        {"cublas bf16": lambda: x @ w.T},
        lambda x, w, s, g: ops.dequant_matmul(x, w, s, g, scheme="nvfp4", n=n),
        (x, codes, scales, one.reshape(1)),
        None,
    )
    bytes_of_w = torch.randint(0, 112, (k * n,), device="cuda", dtype=torch.uint8)
    yield Row(
        f"product {m}x{n}x{k}, weights of e4m3 with a scale per column, beside bf16",
        0,
        2 * m * n * k,
        {"cublas bf16": lambda: x @ w.T},
        lambda x, w, s: ops.dequant_matmul(x, w, s, scheme="fp8e4m3", n=n),
        (x, bytes_of_w, torch.ones(n, device="cuda")),
        None,
    )


def exact_attention() -> Iterator[Row]:
    """Attention in f32 without TF32, and its gradients with the forward pass, as `backward` of a step has them."""
    from rlx import ops

    for batch, seq, d in ((8, 2048, 64), (2, 8192, 64), (8, 2048, 128)):
        for kind in ("none", "causal"):
            q, k, v, dy = (uniform(batch, 16, seq, d) for _ in range(4))
            flops = 4 * batch * 16 * seq * seq * d / (2 if kind == "causal" else 1)
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]

            def forward(q: Any, k: Any, v: Any, kind: str = kind) -> Any:
                return F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal")

            def both(leaves: Any = leaves, dy: Any = dy, forward: Any = forward) -> Any:
                return torch.autograd.grad(forward(*leaves), leaves, dy)[0]

            name = f"{batch}x16x{seq} d{d} {kind} f32"
            options = {"mask_kind": kind, "layout": "bhsd"}
            yield Row(
                f"attention {name}",
                0,
                flops,
                {"torch": lambda q=q, k=k, v=v, forward=forward: forward(q, k, v)},
                lambda q, k, v, o=options: ops.attention(q, k, v, **o),
                (q, k, v),
                1e-5,
                1,
            )
            yield Row(
                f"attention and gradients {name}",
                0,
                3.5 * flops,
                {"torch": both},
                lambda q, k, v, dy, o=options: ops.attention_backward("all", q, k, v, dy, **o),
                (q, k, v, dy),
                1e-4,
                1,
            )


GROUPS = {
    "exact_attention": exact_attention,
    "conv": conv,
    "transforms": transforms,
    "ordering": ordering,
    "scans": scans,
    "experts": experts,
    "linear_algebra": linear_algebra,
    "fp8": fp8,
}
