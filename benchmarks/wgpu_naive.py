"""Products and a layer of MiniLM on WebGPU, beside shaders that compute one output per invocation from storage.

    python benchmarks/wgpu_naive.py [--rounds 5] [--tokens 128]

The plain shaders are what a first version would be: a product reads a row and a column of storage for each output,
softmax and layer norm are a row for each invocation. Both are checked against f64, and take turns in every round; a
time is that of commands that are recorded once more, sent, and waited for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import wgpu

import rlx
from rlx.backends.wgpu.device import Gpu, open_gpu

HIDDEN, INNER, HEADS = 384, 1536, 12
Array = np.ndarray[Any, np.dtype[np.float32]]
Run = Callable[[], None]

# Every shader has its sizes in `s` and one invocation for each of `s.x` outputs (or rows).
_HEAD = """
struct Sizes { x: u32, n: u32, k: u32, heads: u32 }
@group(0) @binding(0) var<uniform> s: Sizes;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> c: array<f32>;
"""
_MAIN = """
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
let i = id.x; if (i >= s.x) { return; }
"""
SHADERS = {
    "matmul": "let row = i / s.n; let column = i % s.n; var t = 0.0; for (var p = 0u; p < s.k; p++)"
    " { t += a[row * s.k + p] * b[p * s.n + column]; } y[i] = t; }",
    "linear": "let row = i / s.n; let column = i % s.n; var t = c[column]; for (var p = 0u; p < s.k; p++)"
    " { t += a[row * s.k + p] * b[p * s.n + column]; } y[i] = t; }",
    # tanh form of GELU.
    "gelu": "let x = a[i]; let z = 0.7978845608 * (x + 0.044715 * x * x * x);"
    " y[i] = 0.5 * x * (1.0 + tanh(clamp(z, -10.0, 10.0))); }",
    # One score of one head: rows of a and b have all heads side by side.
    "scores": "let h = i / (s.n * s.n); let q = i / s.n % s.n; let r = i % s.n; let d = s.k / s.heads; var t = 0.0;"
    " for (var p = 0u; p < d; p++) { t += a[q * s.k + h * d + p] * b[r * s.k + h * d + p]; }"
    " y[i] = t / sqrt(f32(d)); }",
    "softmax": "var m = a[i * s.n]; for (var p = 1u; p < s.n; p++) { m = max(m, a[i * s.n + p]); } var t = 0.0;"
    " for (var p = 0u; p < s.n; p++) { t += exp(a[i * s.n + p] - m); }"
    " for (var p = 0u; p < s.n; p++) { y[i * s.n + p] = exp(a[i * s.n + p] - m) / t; } }",
    "mix": "let q = i / s.k; let at = i % s.k; let h = at / (s.k / s.heads); var t = 0.0;"
    " for (var p = 0u; p < s.n; p++) { t += a[(h * s.n + q) * s.n + p] * b[p * s.k + at]; } y[i] = t; }",
    "add": "y[i] = a[i] + b[i]; }",
    "norm": "var m = 0.0; for (var p = 0u; p < s.n; p++) { m += a[i * s.n + p]; } m /= f32(s.n); var v = 0.0;"
    " for (var p = 0u; p < s.n; p++) { let d = a[i * s.n + p] - m; v += d * d; }"
    " let r = inverseSqrt(v / f32(s.n) + 1e-5);"
    " for (var p = 0u; p < s.n; p++) { y[i * s.n + p] = (a[i * s.n + p] - m) * r * b[p] + c[p]; } }",
}


class Plain:
    """Plain shaders on the device that rlx uses."""

    def __init__(self, gpu: Gpu) -> None:
        self.device: Any = gpu.handle
        self.pipelines: dict[str, Any] = {}
        self.commands: list[tuple[Any, Any, int]] = []
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self.make = lambda size: self.device.create_buffer(size=size, usage=usage)
        self.none = self.make(16)

    def array(self, values: Array) -> Any:
        buffer = self.make(values.nbytes)
        self.device.queue.write_buffer(buffer, 0, np.ascontiguousarray(values))
        return buffer

    def call(self, name: str, count: int, sizes: Sequence[int], *operands: Any, outputs: int = 0) -> Any:
        """Append a command; its result, of `outputs` elements (by default one for each invocation)."""
        y = self.make(4 * (outputs or count))
        if name not in self.pipelines:
            module = self.device.create_shader_module(code=_HEAD + _MAIN + SHADERS[name])
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(("uniform", "storage", *["read-only-storage"] * 3))
            ]
            group = self.device.create_bind_group_layout(entries=entries)
            layout = self.device.create_pipeline_layout(bind_group_layouts=[group])
            made = self.device.create_compute_pipeline(layout=layout, compute={"module": module, "entry_point": "main"})
            self.pipelines[name] = made, group
        pipeline, group = self.pipelines[name]
        uniform = self.device.create_buffer_with_data(
            data=np.array([count, *sizes], np.uint32), usage=wgpu.BufferUsage.UNIFORM
        )
        buffers = [uniform, y, *operands, *[self.none] * (3 - len(operands))]
        bound = [{"binding": i, "resource": {"buffer": x, "offset": 0, "size": x.size}} for i, x in enumerate(buffers)]
        self.commands.append((pipeline, self.device.create_bind_group(layout=group, entries=bound), -(-count // 64)))
        return y

    def run(self) -> None:
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        for pipeline, group, blocks in self.commands:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, group)
            work.dispatch_workgroups(blocks)
        work.end()
        self.device.queue.submit([encoder.finish()])
        self.device.queue.read_buffer(self.none)

    def read(self, buffer: Any, *shape: int) -> Array:
        return np.frombuffer(self.device.queue.read_buffer(buffer), np.float32).reshape(shape)


def product(size: int, gpu: Gpu) -> tuple[Run, Run]:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(size, size)).astype(np.float32) for _ in range(2))
    plain = Plain(gpu)
    y = plain.call("matmul", size * size, (size, size, 1), plain.array(a), plain.array(b))
    f = rlx.jit(lambda a, b: a @ b, device="wgpu")
    exact = a.astype(np.float64) @ b
    # Sums of so many rounded products, added in any order.
    bound = size * 2.0**-24 * float((abs(a).astype(np.float64) @ abs(b)).max())
    return checked(gpu, f, (a, b), plain, y, exact, bound)


def layer(tokens: int, gpu: Gpu) -> tuple[Run, Run]:
    """A layer of an encoder: attention with 12 heads, then a feed-forward part of 1536, both with sum and norm."""
    rng = np.random.default_rng(1)
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN)}
    shapes |= {"up": (HIDDEN, INNER), "down": (INNER, HIDDEN)}
    w: dict[str, Array] = {"one": np.ones(HIDDEN, np.float32), "zero": np.zeros(HIDDEN, np.float32)}
    for name, (rows, columns) in shapes.items():
        w[f"{name}.w"] = (rng.normal(size=(rows, columns)) * rows**-0.5).astype(np.float32)
        w[f"{name}.b"] = (rng.normal(size=columns) * 0.1).astype(np.float32)
    x = rng.normal(size=(tokens, HIDDEN)).astype(np.float32)

    def forward(x: Any, w: Any) -> Any:
        def linear(x: Any, name: str) -> Any:
            return x @ w[f"{name}.w"] + w[f"{name}.b"]

        def heads(x: Any) -> Any:
            return rlx.transpose(rlx.reshape(x, (1, tokens, HEADS, HIDDEN // HEADS)), (0, 2, 1, 3))

        mixed = rlx.attention(*(heads(linear(x, part)) for part in "qkv"), layout="bhsd")
        joined = rlx.reshape(rlx.transpose(mixed, (0, 2, 1, 3)), (tokens, HIDDEN))
        x = rlx.nn.layer_norm(x + linear(joined, "o"), w["one"], w["zero"], eps=1e-5)
        inner = linear(rlx.nn.gelu(linear(x, "up"), approximate=True), "down")
        return rlx.nn.layer_norm(x + inner, w["one"], w["zero"], eps=1e-5)

    plain = Plain(gpu)
    at = {name: plain.array(array) for name, array in w.items()}
    start = plain.array(x)

    def linear(x: Any, name: str) -> Any:
        k, n = shapes[name]
        return plain.call("linear", tokens * n, (n, k, 1), x, at[f"{name}.w"], at[f"{name}.b"])

    q, k, v = (linear(start, part) for part in "qkv")
    scores = plain.call("scores", HEADS * tokens * tokens, (tokens, HIDDEN, HEADS), q, k)
    shares = plain.call("softmax", HEADS * tokens, (tokens, 0, 0), scores, outputs=HEADS * tokens * tokens)
    mixed = plain.call("mix", tokens * HIDDEN, (tokens, HIDDEN, HEADS), shares, v)
    sums = plain.call("add", tokens * HIDDEN, (0, 0, 0), start, linear(mixed, "o"))
    middle = plain.call("norm", tokens, (HIDDEN, 0, 0), sums, at["one"], at["zero"], outputs=tokens * HIDDEN)
    inner = plain.call("gelu", tokens * INNER, (0, 0, 0), linear(middle, "up"))
    sums = plain.call("add", tokens * HIDDEN, (0, 0, 0), middle, linear(inner, "down"))
    y = plain.call("norm", tokens, (HIDDEN, 0, 0), sums, at["one"], at["zero"], outputs=tokens * HIDDEN)
    exact = np.asarray(rlx.jit(forward)(x.astype(np.float64), {name: a.astype(np.float64) for name, a in w.items()}))
    return checked(gpu, rlx.jit(forward, device="wgpu"), (x, w), plain, y, exact, 2e-4)


def checked(
    gpu: Gpu, f: Any, given: tuple[Any, ...], plain: Plain, y: Any, exact: Any, bound: float
) -> tuple[Run, Run]:
    """The runs of both on what lies on the device, after their results were compared with f64."""
    placed = rlx.tree.map(lambda a: rlx.device_put(a, "wgpu"), given)
    found = np.asarray(f(*placed))
    plain.run()
    for what, result in (("rlx", found), ("the plain shaders", plain.read(y, *exact.shape))):
        apart = float(abs(result - exact).max())
        if not apart < bound:
            raise SystemExit(f"{what}: {apart} apart from f64, more than {bound}")

    def ours() -> None:
        f(*placed)
        gpu.wait()

    return ours, plain.run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    gpu = open_gpu()
    print(gpu.about)
    cases = (
        ("product 512^3", lambda: product(512, gpu)),
        (f"MiniLM layer, {args.tokens}", lambda: layer(args.tokens, gpu)),
    )
    for name, make in cases:
        runs = make()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.rounds):
            for run, into in zip(runs, times):
                start = time.perf_counter()
                run()
                into.append(time.perf_counter() - start)
        ours, plain = map(statistics.median, times)
        ratio = statistics.median(b / a for a, b in zip(*times))
        print(f"{name:28} rlx {1e3 * ours:8.1f} ms   plain {1e3 * plain:8.1f} ms   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
