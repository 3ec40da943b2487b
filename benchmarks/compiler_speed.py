"""How long the compiler itself takes: build, verify, print, parse, store, differentiate and batch graphs, compile
Llama models to LIR, pass by pass, and what one more layer costs, for inference and for training.

Run `python benchmarks/compiler_speed.py`. Times should grow linearly with the size of the graph: the last column is the
time per node (or layer) of the largest program over that of the smallest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rlx
from rlx.autodiff.graphs import grad_with_loss, jvp, vmap
from rlx.backends.program.program import build_program
from rlx.compile.compiler import CompilePipeline, CompileResult
from rlx.ir.graph import Graph
from rlx.ir.module import GraphModule, HirModule
from rlx.ir.serialize import from_bytes, to_bytes
from rlx.ir.tensor import Tensor
from rlx.ir.verify import verify_all

SIZES = (1_000, 3_000, 10_000)
LAYERS = (6, 12, 24)


def build(nodes: int) -> Graph:
    """Layers of mul, add, tanh over a vector and two weights, about `nodes` nodes in all."""
    g = Graph("deep")
    x, w, b = g.input("x", ("B", 8)), g.param("w", (8,)), g.param("b", (8,))
    y = x
    while len(g) < nodes:
        y = rlx.tanh(y * w + b)
    g.set_outputs([rlx.reduce_sum(y)])
    return g


def llama(layers: int) -> GraphModule:
    """The shapes of a model with a billion weights; batch and length are symbolic."""
    hidden, heads, kv_heads, head, inner, vocabulary = 2048, 32, 8, 64, 8192, 128_256

    def build_blocks(h: HirModule) -> Tensor:
        ids = h.input("ids", ("B", "S"), "i32")
        cos, sin = h.input("cos", ("S", head // 2)), h.input("sin", ("S", head // 2))
        x = rlx.gather(h.param("embed", (vocabulary, hidden)), ids, 0)
        for i in range(layers):
            dims = {"g1": (hidden,), "b1": (hidden,), "q": (hidden, hidden), "k": (hidden, kv_heads * head)}
            dims |= {"v": (hidden, kv_heads * head), "o": (hidden, hidden), "g2": (hidden,), "b2": (hidden,)}
            dims |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
            weights = [h.param(f"layers.{i}.{name}", d) for name, d in dims.items()]
            options: dict[str, Any] = {"num_heads": heads, "head_dim": head, "num_kv_heads": kv_heads, "eps": 1e-5}
            x = h.llama_decoder_block(x, *weights, cos, sin, **options, mask_kind="causal")
        x = h.rms_norm(x, h.param("norm", (hidden,)), h.param("norm_bias", (hidden,)), eps=1e-5)
        return h.linear(x, h.param("head", (hidden, vocabulary)))

    return Graph.define("llama", build_blocks)


def training_step(layers: int) -> Graph:
    """Loss and all gradients of a small GPT, with symbolic batch and length: about 140 nodes per layer."""
    width, heads = 64, 4
    g = Graph("gpt")
    x, target = g.input("x", ("B", "S", width)), g.input("target", ("B", "S", width))
    for i in range(layers):
        dims = {"g0": (width,), "c0": (width,), "qkv": (width, 3 * width), "bqkv": (3 * width,), "o": (width, width)}
        dims |= {"bo": (width,), "g1": (width,), "c1": (width,), "up": (width, 4 * width), "bup": (4 * width,)}
        dims |= {"down": (4 * width, width), "bdown": (width,)}
        w = {name: g.param(f"{i}.{name}", d) for name, d in dims.items()}
        qkv = rlx.layer_norm(x, w["g0"], w["c0"]) @ w["qkv"] + w["bqkv"]
        q, k, v = (rlx.narrow(qkv, 2, width * n, width).reshape(("B", "S", heads, width // heads)) for n in range(3))
        mixed = rlx.attention(q, k, v, num_heads=heads, head_dim=width // heads, mask_kind="causal")
        x = x + mixed.reshape(("B", "S", width)) @ w["o"] + w["bo"]
        inner = rlx.gelu(rlx.layer_norm(x, w["g1"], w["c1"]) @ w["up"] + w["bup"])
        x = x + inner @ w["down"] + w["bdown"]
    g.set_outputs([rlx.reduce_mean((x - target) * (x - target))])
    return grad_with_loss(g, [n.id for n in g.params], None)


def layer_costs() -> None:
    """Milliseconds of processor time for one layer, and for each further one: kernels of a form are made once."""
    print(f"\n{'processor time of compiles':34}{'one layer':>12}{'each further':>15}{'nodes':>8}{'kernels':>9}")
    programs: dict[str, Callable[[int], Any]] = {"llama": llama, "training step": training_step}
    for name, program in programs.items():
        few, many = program(1), program(LAYERS[-1])
        planned = [CompilePipeline.new("cpu").compile(p).lir for p in (few, many)]
        sizes = f"{len(planned[1].as_graph()):8}{len(planned[1].kernels):9}"
        jobs: dict[str, list[Callable[[], object]]] = {
            "to LIR": [partial(CompilePipeline.new("cpu").compile, p) for p in (few, many)],
            "LIR to code": [partial(build_program, lir) for lir in planned],
        }
        for step, runs in jobs.items():
            one, all_layers = (measure(run, clock=time.process_time) for run in runs)
            further = (all_layers - one) / (LAYERS[-1] - 1)
            print(f"{name + ', ' + step:34}{1e3 * one:9.1f} ms{1e3 * further:12.1f} ms{sizes}")


def compile_passes(target: str) -> None:
    """Milliseconds per pass, for models of growing depth."""
    results = {}
    for layers in LAYERS:
        module = llama(layers)
        results[layers] = min(
            (CompilePipeline.new(target).compile(module) for _ in range(3)),
            key=lambda result: sum(_steps(result).values()),
        )
    sizes = ", ".join(f"{n} layers: {len(r.lir.as_graph())} nodes" for n, r in results.items())
    print(f"\ncompile for {target} ({sizes})")
    by_layers = [_steps(result) for result in results.values()]
    passes = {name: [steps[name] for steps in by_layers] for name in by_layers[-1]}
    passes["all"] = [sum(steps.values()) for steps in by_layers]
    for name, times in passes.items():
        growth = (times[-1] / LAYERS[-1]) / (times[0] / LAYERS[0]) if times[0] else 1.0
        print(f"{name:32}" + "".join(f"{1e3 * t:10.2f} ms" for t in times) + f"   {growth:.2f}x")


def _steps(result: CompileResult) -> dict[str, float]:
    """Seconds of each pass that is no part of another one."""
    found: dict[str, float] = {}
    for record in result.passes:
        if not record.within:
            found[record.name] = found.get(record.name, 0.0) + record.seconds
    return found


def measure(run: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times)


def import_cost(statement: str) -> float:
    return measure(lambda: subprocess.run([sys.executable, "-c", statement], check=True), 7)


def main() -> None:
    graphs = {n: build(n) for n in SIZES}
    texts = {n: str(g) for n, g in graphs.items()}
    stored = {n: to_bytes(g) for n, g in graphs.items()}
    jobs: dict[str, Callable[[int], object]] = {
        "build": build,
        "verify": lambda n: verify_all(graphs[n]),
        "print": lambda n: str(graphs[n]),
        "parse": lambda n: rlx.parse(texts[n]),
        "compare": lambda n: graphs[n] == graphs[n].copy(),
        "write file": lambda n: to_bytes(graphs[n]),
        "read file": lambda n: from_bytes(stored[n]),
        "gradient": lambda n: grad_with_loss(graphs[n], ["w", "b"]),
        "forward mode": lambda n: jvp(graphs[n], ["w"]),
        "batching": lambda n: vmap(graphs[n], ["x"], 4),
        "compile": lambda n: CompilePipeline.new().compile(graphs[n]),
    }
    print(f"{'':14}" + "".join(f"{n:>12,}" for n in SIZES) + "   growth per node")
    for name, job in jobs.items():
        times = [measure(lambda n=n, job=job: job(n)) for n in SIZES]  # type: ignore[misc]
        growth = (times[-1] / SIZES[-1]) / (times[0] / SIZES[0])
        print(f"{name:14}" + "".join(f"{t:10.3f} s" for t in times) + f"   {growth:.2f}x")
    for target in ("cpu", "metal"):
        compile_passes(target)
    layer_costs()
    base = import_cost("import numpy, ml_dtypes")
    print(f"import rlx over numpy and ml_dtypes: {import_cost('import numpy, ml_dtypes, rlx') - base:+.3f} s,")
    used = import_cost("import numpy, ml_dtypes, rlx; rlx.Graph; rlx.jit")
    print(f"and with everything that building and jit need loaded: {used - base:+.3f} s")


if __name__ == "__main__":
    main()
