"""How long the decode step of a whole model takes as one kernel on a GPU, and where its time goes, phase by phase.

    python3 tests/backends/cuda/gpu_step_times.py --models 1B 8B --contexts 512 --variants as_is plain_launch --marks

Variants of the kernel are measured side by side in one run, as shares of the bandwidth of a copy. With `--marks` blocks
note the time inside of a launch: for each phase how long a block waits for its vector, how long it takes to read that,
and how long it multiplies, as medians over layers, of all blocks and of the slowest one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks")]

from cuda_models import OwnModel, config_of, step_bytes, stored_model, weight_dims  # noqa: E402

from rlx.backends.api import Executable  # noqa: E402
from rlx.backends.cuda.device import open_gpu  # noqa: E402
from rlx.backends.cuda.modules import Launch  # noqa: E402
from rlx.backends.cuda.persistent import attend, panel_products, plan, products, ring, runner  # noqa: E402
from rlx.backends.cuda.timing import Case, measure, measure_limits  # noqa: E402
from rlx.errors import RlxError  # noqa: E402
from rlx.knobs import knobs  # noqa: E402
from rlx.models.kv_cache import SequenceBatch  # noqa: E402
from rlx.models.sampling import Sampler, SamplingOptions  # noqa: E402

LAYERS = {"1B": 16, "8B": 32}
# Tokens that are measured by the clock, and how they are chosen.
CLOCKED = 8
CLOCKED_OPTIONS = {
    "greedy": SamplingOptions(),
    "temperature": SamplingOptions(temperature=0.8, seed=1),
    "top_k": SamplingOptions(temperature=0.8, top_k=50, seed=1),
    "top_p": SamplingOptions(temperature=0.8, top_p=0.9, seed=1),
}


def plain_launch(*given: Any, cooperative: bool = False, **more: Any) -> Launch:
    return Launch(*given, **more)


# What is changed in modules of the kernel.
VARIANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "as_is": [],
    "plain_launch": [(runner, "Launch", plain_launch)],
    "flight_2": [(ring, "FLIGHT", 2)],
    "flight_4": [(ring, "FLIGHT", 4)],
    "flight_5": [(ring, "FLIGHT", 5)],
    "one_chain": [(products, "CHAINS", 1)],
    "two_chains": [(products, "CHAINS", 2)],
    "stages_10": [(plan, "MOST_STAGES", 10)],
    "one_chunk": [(plan, "MOST_CHUNKS", 1)],
    "splits_8": [(plan, "MOST_SPLITS", 8)],
    "two_stages": [(panel_products, "STAGES_AT_ONCE", 2)],
    "few_at_a_time": [(products, "POLLED", 4), (attend, "MOST_POLLED", 2)],
}


def model_of(name: str, stored: str) -> OwnModel:
    """Weights of one size are the same array: what they are does not matter here."""
    c = config_of(name, LAYERS[name])
    if stored:
        return stored_model(c, stored)
    dims, rng = weight_dims(c), np.random.default_rng(3)
    some = rng.standard_normal(1 << 22).astype("f4")
    arrays = {d: np.resize((some * (d[-1] ** -0.5 if len(d) > 1 else 0.1)).astype(ml_dtypes.bfloat16), d)
              for d in set(dims.values())}  # fmt: skip
    for array in arrays.values():
        # Nobody needs a copy of what does not change.
        array.flags.writeable = False
    return OwnModel(c, lambda n: arrays[dims[n]])


@contextmanager
def variant(model: OwnModel, changes: list[tuple[Any, str, Any]]) -> Iterator[runner.Decoding]:
    """The model's steps by a kernel that was made with changes."""
    program: Any = model.program.executable
    before = program._main._decoding
    with ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(mock.patch.object(module, name, value))
        decoding = runner.Decoding(before.step, program.programs.main, before.gpu)
        assert not decoding.refusal(1), decoding.refusal(1)
    program._main._decoding = decoding
    try:
        yield decoding
    finally:
        program._main._decoding = before


def times(model: OwnModel, context: int, names: list[str], gpu: Any, copy: float) -> dict[str, float]:
    model.start(context + 64)
    given, cases, kept = model.inputs([11], context - 1), [], []
    moved = step_bytes(model.config, context, model.schemes)

    def run_with(decoding: Any) -> Callable[[int], Any]:
        def run(number: int) -> None:
            model.program.executable._main._decoding = decoding  # type: ignore[attr-defined]
            model.run(given)

        return run

    def as_kernels(number: int) -> None:
        with knobs(cuda_one_kernel=False):
            model.run(given)

    for name in names:
        if name == "graph":
            cases.append(Case(name, as_kernels))
            continue
        try:
            with variant(model, VARIANTS[name]) as decoding:
                model.run(given)
                kept.append(decoding)
        except (RlxError, AssertionError) as error:
            print(f"  {name}: {str(error)[:300]}", flush=True)
            continue
        cases.append(Case(name, run_with(decoding)))
    params: Any = model.program._ready.prepared  # type: ignore[union-attr]
    # Weights that lay in the same place would be found in the cache of the GPU.
    assert len(set(params.addresses.tolist())) == len(params.addresses)
    print(f"  {params.byte_size / 1e9:.2f} GB of weights, {moved / 1e9:.3f} GB a step", flush=True)
    main: Any = model.program.executable
    before = main._main._decoding
    found = {}
    for name, seconds in measure(gpu, cases, rounds=5, launches=60, pause=0.02).items():
        found[name] = seconds.median
        share = moved / seconds.median / copy
        print(f"  {name:16} {seconds.median * 1e6:8.1f} us {share:6.1%} (spread {seconds.spread:.1%})", flush=True)
    main._main._decoding = before
    return found


def ahead(model: OwnModel, context: int, gpu: Any, copy: float) -> dict[str, float]:
    """Microseconds of a token where several follow each other: in one launch, in launches whose tokens stay on the GPU,
    and with the host between them. Times of the GPU for the first, of the clock for the others."""
    runner_of, moved = model.runner, step_bytes(model.config, context, model.schemes)
    found: dict[str, float] = {}
    model.start(context + 80)
    given, one = model.inputs([11], context - 1), np.ones(1, np.int32)
    names = runner_of.cache_names

    def launch(steps: int) -> Callable[[int], Any]:
        def run(number: int) -> None:
            inputs = given | model._tables | dict(zip(names, model.caches))
            done = model.program.run_ahead(inputs, one, steps)
            assert done is not None
            model.caches = done[1:]

        return run

    cases = [Case(f"{steps} a launch", launch(steps)) for steps in (1, 8, 32)]
    for (name, seconds), steps in zip(measure(gpu, cases, rounds=5, launches=8, pause=0.02).items(), (1, 8, 32)):
        found[name] = seconds.median / steps * 1e6
        print(f"  {name:16} {found[name]:8.1f} us {moved / found[name] * 1e6 / copy:6.1%} a token", flush=True)
    sequences = SequenceBatch(runner_of)
    sequences.tokens = [[11] * context]
    sequences.reserve(context + 70)

    def clocked(label: str, run: Callable[[], Any]) -> None:
        """Microseconds of one of so many tokens: the best of two, after a first."""
        times = []
        for _ in range(3):
            sequences.truncate(0, context)
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        found[label] = min(times[1:]) / CLOCKED * 1e6
        print(f"  {label:26} {found[label]:8.1f} us a token by the clock, first {times[0]:.2f} s", flush=True)

    def by_host(options: SamplingOptions) -> None:
        sampler = Sampler(options)
        for _ in range(CLOCKED):
            sampler.choose(sequences.extend([[11]])[0])

    for label, options in CLOCKED_OPTIONS.items():
        chosen = partial(sequences.write_ahead, [11], options, np.full((CLOCKED, 1), 0.3))
        if label == "greedy":
            clocked("greedy, one launch", chosen)
        clocked(f"{label}, on the host", partial(by_host, options))
        with (
            mock.patch.object(type(runner_of), "run_ahead", lambda *_: None),
            mock.patch.object(Executable, "chooses_tokens", True),
        ):
            clocked(f"{label}, chained", chosen)
    return found


def marks(model: OwnModel, context: int, changes: list[tuple[Any, str, Any]], gpu: Any) -> dict[str, Any]:
    """Microseconds of the parts of a layer."""
    model.start(context + 64)
    given = model.inputs([11], context - 1)
    with variant(model, [*changes, (runner, "Plan", partial(plan.Plan, is_marked=True))]) as decoding:
        for _ in range(5):
            model.run(given)
        memory: Any = decoding._by_batch(1, False)
        words = np.asarray(memory._exchange).view(np.uint64)[memory.plan.marks_at :]
    return show_marks(memory.plan, words)


def show_marks(done: plan.Plan, words: Any) -> dict[str, Any]:
    layers, names = len(done.step.layers), done.marks
    at = words.reshape(done.blocks, layers + 1, len(names)).astype(np.float64) / 1e3
    column = {name: at[:, :layers, number] for number, name in enumerate(names)}
    found: dict[str, Any] = {}
    print(f"    {'us, of all blocks':24} median    least     most   (medians over layers)")
    for phase in done.layer_phases:
        own = [name for name in names if name.split()[0] == phase.name]
        for first, then in pairwise(own):
            # Blocks without rows or heads in a phase have noted nothing.
            some = (column[first] > 0).all(1) & (column[then] > 0).all(1)
            took = (column[then] - column[first])[some]
            shown = [float(np.median(f(took, 0))) for f in (np.median, np.min, np.max)]
            found[then] = shown
            print(f"    {then:24} {shown[0]:6.2f} {shown[1]:8.2f} {shown[2]:8.2f}", flush=True)
    start = column["qkv begins"].min(0)
    layer = np.diff(start)
    logits = at[:, layers, names.index("logits done")].max() - column["down done"].max(0)[-1]
    whole = at[:, layers, names.index("logits done")].max() - start[0]
    found |= {"layer": float(np.median(layer)), "logits": float(logits), "whole": float(whole)}
    print(
        f"    a layer {found['layer']:.2f} us, logits {logits:.1f} us, from the first phase to the end {whole:.1f} us"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 4096])
    parser.add_argument("--variants", nargs="+", default=["as_is"], choices=[*VARIANTS, "graph"])
    parser.add_argument("--stored", default="", help="a GGUF type of the weights, or Q4_K_M")
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--ahead", action="store_true", help="several tokens without the host between them")
    parser.add_argument("--out")
    args = parser.parse_args()
    gpu = open_gpu(0)
    copy = measure_limits(gpu).copy
    print(f"{gpu.info}: a copy moves {copy / 1e12:.2f} TB/s", flush=True)
    results: dict[str, Any] = {"device": str(gpu.info), "copy": copy}
    for name in args.models:
        model = model_of(name, args.stored)
        for context in args.contexts:
            print(f"{name} at {context}", flush=True)
            found: dict[str, Any] = {
                "us": {k: v * 1e6 for k, v in times(model, context, args.variants, gpu, copy).items()}
            }
            if args.ahead:
                found["ahead"] = ahead(model, context, gpu, copy)
            if args.marks:
                found["marks"] = marks(model, context, [], gpu)
            results[f"{name} {context}"] = found
        del model
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
