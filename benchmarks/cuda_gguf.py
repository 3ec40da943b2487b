"""Products of some and of many rows with GGUF weights on an NVIDIA GPU, by both of their forms, beside weights of bf16.

    python3 benchmarks/cuda_gguf.py [--types Q4_K Q8_0] [--rows 16 64 512] [--dtypes f32 bf16] [--parts] [--seconds 80]

`codes` multiplies codes as they are stored, `written` writes weights out first (`hopper.expanded_form`), `bf16` are
rows and weights of bf16. Each launch is a graph in which several weights take turns, so that none is found in the
cache. Errors are those of some columns against f64. With `--parts` what a product that writes weights out
consists of is measured by itself, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from random_panels import random_panels

from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.backend import CudaBackend
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.hopper import expanded_form
from rlx.backends.cuda.modules import launch
from rlx.backends.cuda.timing import Case, measure, measure_limits
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.tensor import building
from rlx.ops.lowered.quantized_panels import PanelMatMul
from rlx.quant.panels import unpack_rows
from rlx.quant.schemes import QuantScheme

COPIES = 4
LEAST = dict(expanded_form.LEAST_ROWS)


def executable_of(build: Callable[[Any, Any], Any], dtype: str, k: int, w: tuple[tuple[int, ...], str]) -> Any:
    """A program of rows x[M, k] and a weight."""
    graph = Graph("bench")
    leaves = graph.input("x", ("M", k), dtype), graph.input("w", *w)
    with building(graph):
        graph.set_outputs([build(*leaves)])
    return CudaBackend().compile(graph, None)


def in_turns(executable: Any, x: Any, weights: list[Any]) -> Callable[[int], Any]:
    """One graph of a product with each of the weights."""
    given = [{"x": x, "w": w} for w in weights]
    params = executable.prepare({})
    for each in (*given, *given):
        executable.run(each, params)
    STREAM.synchronize()
    with STREAM.capture() as recorded:
        for each in given:
            executable.run(each, params)
    ready = recorded.instantiate()
    return lambda i: ready.launch(STREAM)


def force(least: int | None) -> None:
    """From which number of rows on weights are written out; None: as it is."""
    expanded_form.LEAST_ROWS.update(LEAST if least is None else dict.fromkeys(LEAST, least))


def parts_of(executable: Any) -> dict[str, Callable[[int], Any]]:
    """The launches of the product that ran last, each by itself."""
    (code,) = (step.code for step in executable.programs.main.steps if hasattr(step, "code"))
    form = code.forms[0]
    ready = list(form._ready.values())[-1]
    names = ["split", "expand", "product"] if len(ready.before) == 2 else ["expand", "product"]
    found = {}
    for name, one in zip(names, (*ready.before, ready._replace(before=()))):

        def again(i: int, one: Any = one) -> None:
            launch(one.function, one.shape, one.block.address, STREAM)

        found[name] = again
    return found


class Stored:
    """A decoder whose matrices are GGUF blocks, as `cuda_models.OwnModel` is one of bf16."""

    def __init__(self, c: Any, name: str, activations: str) -> None:
        from cuda_models import OwnModel, weight_dims

        from rlx.bench.synthetic_models import block_pool
        from rlx.formats.gguf.tensor_types import TYPES
        from rlx.models.decoder import build_decoder
        from rlx.models.kv_cache import DecoderRunner
        from rlx.models.language_model import compile_options
        from rlx.models.weight_names import HF_DECODERS
        from rlx.models.weights import Weight, WeightFile, read_weights
        from rlx.runtime.session import Session

        scheme, rng = QuantScheme.of_ggml(name), np.random.default_rng(2)

        def packed(d: tuple[int, ...]) -> Any:
            pool = block_pool(TYPES[name], d[-1] ** -0.5)
            return pool[rng.integers(0, len(pool), d[0] * d[1] // (scheme.gguf_block_size or 1))].reshape(d[0], -1)

        # One of a size for all layers: what they say does not matter, and they lie at places of their own on the GPU.
        dims = weight_dims(c)
        made = {d: packed(d) if len(d) == 2 else np.ones(d, np.float32) for d in set(dims.values())}
        weights = {
            n: Weight(d, DType.U8, scheme, lambda d=d: made[d])
            if len(d) == 2
            else Weight(d, DType.F32, None, lambda d=d: made[d])
            for n, d in dims.items()
        }
        built = build_decoder(c, WeightFile("seeded", HF_DECODERS["llama"], weights), DType.BF16)
        self.config, self.program = c, Session("cuda", compile_options(None, activations)).compile(built.graph)
        read_weights(built.weights, self.program)
        self.runner, self.caches = DecoderRunner(c, self.program, built.caches), list[Any]()
        self.start, self.run, self.inputs = (getattr(OwnModel, n).__get__(self) for n in ("start", "run", "inputs"))


def prefill(layers: int, tokens: int = 2048) -> None:
    """A prompt through layers of an 8B-shaped model: bf16, and stored blocks with rows of bf16 and of f32."""
    from dataclasses import replace

    from cuda_models import OwnModel, config_of, prefill_flops, weight_dims

    c = replace(config_of("8B", layers), vocab=32768)
    rng = np.random.default_rng(3)
    dims, cases, prompt = weight_dims(c), [], rng.integers(0, c.vocab, tokens)

    def draw(d: tuple[int, ...]) -> Any:
        return (rng.standard_normal(d, np.float32) * d[-1] ** -0.5).astype(ml_dtypes.bfloat16)

    drawn = {d: draw(d) for d in set(dims.values())}
    models: dict[str, Any] = {"bf16": OwnModel(c, lambda n: drawn[dims[n]])}
    for name in ARGS.types:
        models |= {f"{name} {a}": Stored(c, name, a) for a in ("bf16", "f32")}
    for label, model in models.items():
        model.start(tokens)
        given = model.inputs(prompt, 0)
        for _ in range(3):
            model.run(given)
        STREAM.synchronize()
        total: dict[tuple[str, str], list[float]] = {}
        for kernel in model.program.profile_while(lambda m=model, given=given: m.run(given), 2).kernels:
            total.setdefault((kernel.kind, kernel.what), []).append(kernel.seconds)
        for (kind, ops), seconds in sorted(total.items(), key=lambda item: -sum(item[1]))[:6]:
            print(f"  {label}: {sum(seconds) * 1e6:8.1f} us in {len(seconds):3} {kind}: {ops[:90]}", flush=True)
        cases.append(Case(label, lambda i, m=model, given=given: m.run(given)))
    for label, reading in measure(GPU, cases, stream=STREAM, rounds=5, launches=3).items():
        rate = prefill_flops(c, tokens) / reading.median / 1e12
        print(
            f"prefill of {tokens}, {layers} layers, {label}: {reading.median * 1e3:.2f} ms, {rate:.0f} TF", flush=True
        )


def main() -> None:
    started = time.time()
    n, k = ARGS.n, ARGS.k
    print(GPU.info, f"copy {measure_limits(GPU, STREAM).copy / 1e12:.2f} TB/s, {n} columns, K {k}", flush=True)
    rng = np.random.default_rng(1)
    plain = [
        DeviceArray.of((rng.standard_normal((n, k), np.float32) / 64).astype(ml_dtypes.bfloat16), STREAM)
        for _ in range(COPIES)
    ]
    with_bf16 = executable_of(lambda x, w: x @ w.T, "bf16", k, ((n, k), "bf16"))
    for name in ARGS.types:
        layout = QuantScheme.of_ggml(name).panel_format
        assert layout is not None
        given = [random_panels(layout, n, k, seed) for seed in range(COPIES)]
        panels = [DeviceArray.of(p, STREAM) for p in given]
        wide = unpack_rows(layout, given[0][:8], 128, k).astype("f8")
        for dtype in ARGS.dtypes:
            op = PanelMatMul(QuantScheme.of_ggml(name), n)
            w = (given[0].shape, "u8")
            for m in ARGS.rows:
                if time.time() - started > ARGS.seconds:
                    print("out of time", flush=True)
                    return
                a = rng.standard_normal((m, k), np.float32).astype(DType.of(dtype).numpy)
                x, cases, errors, parts = DeviceArray.of(a, STREAM), [], [], {}
                want = a.astype("f8") @ wide.T
                for label, least in (("codes", 1 << 30), ("written", 1)):
                    force(least)
                    executable = executable_of(op, dtype, k, w)
                    cases.append(Case(label, in_turns(executable, x, panels)))
                    got = np.asarray(executable.run({"x": x, "w": panels[0]}, executable.prepare({}))[0])[:, :128]
                    error = np.linalg.norm(got.astype("f8") - want) / np.linalg.norm(want)
                    errors.append(f"{label} off by {error:.1e}")
                    if label == "written" and ARGS.parts:
                        parts = parts_of(executable)
                    KEPT.append(executable)
                force(None)
                narrow = DeviceArray.of(a.astype(ml_dtypes.bfloat16), STREAM)
                cases.append(Case("bf16", in_turns(with_bf16, narrow, plain)))
                found = measure(GPU, cases, stream=STREAM, rounds=5, launches=4, pause=0.01)
                flops = 2 * m * n * k
                shown = []
                for label, reading in found.items():
                    seconds = reading.median / COPIES
                    shown.append(f"{label} {seconds * 1e6:.1f} us {flops / seconds / 1e12:.0f} TF")
                print(f"{name} {dtype} {m} rows: {'; '.join(shown)}; {', '.join(errors)}", flush=True)
                if parts:
                    alone = measure(GPU, [Case(*p) for p in parts.items()], stream=STREAM, rounds=3, launches=20)
                    print("  " + "; ".join(f"{p} {r.median * 1e6:.1f} us" for p, r in alone.items()), flush=True)
                KEPT.clear()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="+", default=["Q4_K", "Q8_0", "Q4_0", "Q6_K", "Q5_K", "IQ4_NL", "NVFP4"])
    parser.add_argument("--rows", nargs="+", type=int, default=[16, 32, 64, 128, 512, 2048])
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--prefill", type=int, default=0, help="so many layers of a model instead")
    parser.add_argument("--n", type=int, default=14336)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=120)
    ARGS = parser.parse_args()
    GPU = open_gpu(0)
    STREAM = GPU.stream
    KEPT: list[Any] = []
    prefill(ARGS.prefill) if ARGS.prefill else main()
