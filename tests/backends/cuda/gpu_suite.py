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
from typing import Any

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
    "Int16MatMul": "its operand is a weight in panels of the CPU's width, which only the CPU's compiler makes",
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


def check_assembled(executable: Any) -> None:
    """No tensor-core code was serialized, spilled or denied its registers; what the driver has kept says nothing."""
    codes = [step.code for step in executable.programs.main.steps if hasattr(step, "code")]
    for form in (form for code in codes for form in code.forms):
        for function in form._functions.values():
            assert "(C75" not in function.module.log, f"{form.name}: {function.module.log[:400]}"
            assert function.resources.local_bytes == 0, f"{form.name} uses the stack"


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


def run_product(*arguments: str) -> float:
    import gpu_product_checks

    return gpu_product_checks.run_product(*arguments)


def run_codes(*arguments: str) -> float:
    import gpu_product_checks

    return gpu_product_checks.run_codes(*arguments)


def run_wide_product(*arguments: str) -> float:
    import gpu_product_checks

    return gpu_product_checks.run_wide_product(*arguments)


def run_attention(name: str) -> float:
    import gpu_attention_checks

    return gpu_attention_checks.run_attention(name)


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
        import gpu_product_checks

        for product in gpu_product_checks.PRODUCTS:
            yield ["product", *map(str, product)]
        for product in gpu_product_checks.code_products():
            yield ["codes", *map(str, product)]
        for size in gpu_product_checks.WIDE_PRODUCTS:
            yield ["wide", *map(str, size)]
    if "attention" in only:
        import gpu_attention_checks

        for program in gpu_attention_checks.attention_programs():
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
        import rlx.ops  # noqa: F401  (registers the ops)
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
    parser.add_argument("--match", nargs="+", default=[""], help="items that have one of these in their name")
    parser.add_argument("--list", action="store_true", help="say which items there are, without a GPU")
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        work()
        return 0
    wanted = [i for i in items(args.only) if any(part in " ".join(i) for part in args.match)]
    if args.list:
        print("\n".join(map(" ".join, wanted)))
        return 0 if wanted else 1
    from rlx.backends.cuda.driver import Missing, probe

    found = probe()
    if isinstance(found, Missing):
        print(found.reason)
        return 2
    import queue

    todo: queue.Queue[list[str]] = queue.Queue()
    count = len(wanted)
    for item in wanted:
        todo.put(item)
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
