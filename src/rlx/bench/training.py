"""The suite `train`: training steps beside PyTorch and JAX, with their memory; the optimiser alone beside a stream of
as many bytes; how long a step takes to compile; what checkpoints of a loop save and cost.

Every engine of every case has a process of its own, so that the memory of one case is not that of another. A case of
LoRA needs a model file; PyTorch gets the same model with all weights as f32, made beside it.

On a GPU other cases are measured, all arrays lie there, and memory is that of the GPU.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlx.bench.driver import BenchResult, CaseResult, Progress, Timing, chosen_engines, prepare, report_step, run_case
from rlx.bench.engine_process import EngineProblem, Worker
from rlx.bench.engines import ADAPTER_VARIABLE, DEVICE_VARIABLE, MODEL_VARIABLE, OURS, is_ours
from rlx.bench.limits import Limits, measure_limits, measure_update_stream
from rlx.bench.report import aligned, duration, notes, share_of_limit, times
from rlx.bench.startup import CACHES, first_and_later_call
from rlx.bench.suites import Case
from rlx.bench.training_programs import convnet_flops, gpt_flops, lora_flops, scan_flops
from rlx.errors import RlxError
from rlx.models import weight_names
from rlx.models.adapter_files import row_orders, write_peft
from rlx.models.model_files import DecoderFiles

FAMILY = "training"
GPT = {"layers": 6, "width": 384, "heads": 6, "batch": 8, "length": 128, "vocabulary": 256}
SCAN = {"length": 1024, "rows": 128, "width": 256}
# AdamW reads a parameter, its gradient and two moments, and writes all but the gradient.
BYTES_OF_AN_UPDATE = 7 * 4


class TrainingCase(NamedTuple):
    """A case and the peers that have it."""

    case: Case
    peers: tuple[str, ...]


def _scan_case(checkpoints: int) -> TrainingCase:
    kept = f"keeps {checkpoints} states" if checkpoints else "keeps all states"
    name = f"gradient of a scan of {SCAN['length']}, {kept}"
    return TrainingCase(Case(name, "scan", "scan gradient", {**SCAN, "checkpoints": checkpoints}), ())


CASES = (
    TrainingCase(Case("GPT step, 6x384, 8x128 tokens", "gpt", "gpt", GPT), ("torch", "torch.compile", "jax")),
    TrainingCase(Case("LoRA step, 1x256 tokens", "lora", "lora", {"rank": 8, "length": 256}), ("torch+peft",)),
    TrainingCase(
        Case("convnet, quarter of an epoch, 25x100", "convnet", "convnet", {"steps": 25, "batch": 100}),
        ("torch", "jax"),
    ),
    TrainingCase(
        Case("AdamW alone, 25 M parameters", "update", "adamw", {"parameters": 25_000_000}),
        ("torch", "torch foreach", "jax"),
    ),
    *(_scan_case(checkpoints) for checkpoints in (0, 32, 45, 64, 100, 128, 256)),
)
GPT2 = {"layers": 12, "width": 768, "heads": 12, "batch": 8, "length": 1024, "vocabulary": 50304, "bf16": 1}
GPU_CASES = (
    TrainingCase(Case("GPT-2 124M step, bf16, 8x1024 tokens", "gpt", "gpt", GPT2), ("torch", "torch.compile")),
    CASES[0]._replace(peers=("torch", "torch.compile")),
    CASES[1],
    TrainingCase(
        Case("AdamW alone, 124 M parameters", "update", "adamw", {"parameters": 124_000_000}),
        ("torch", "torch foreach"),
    ),
)
# In new processes.
COLD, WARM = "GPT step: compile", "GPT step: compile again, from disk"
COMPILE_PEERS = ("jax",)


def case_names(device: str = "cpu") -> list[str]:
    return [*(c.case.name for c in CASES), COLD, WARM] if device == "cpu" else [c.case.name for c in GPU_CASES]


def run_training(
    *,
    peers: Iterable[str] | None = None,
    peer_python: str | None = None,
    model: Path | None = None,
    only: str | None = None,
    rounds: int = 7,
    threads: int = 2,
    device: str = "cpu",
    progress: Progress = lambda text: None,
) -> BenchResult:
    """Measure every case whose name has `only` in it; `model` is the GGUF file of the LoRA step, which without one is
    left out."""
    is_host = device == "cpu"
    wanted = [c for c in (CASES if is_host else GPU_CASES) if only is None or only in c.case.name]
    compiles = [name for name in (COLD, WARM) if is_host and (only is None or only in name)]
    if not wanted and not compiles:
        raise RlxError(f"no case of train has {only!r} in its name; there are: {', '.join(case_names(device))}")
    chosen = chosen_engines(FAMILY, peers)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    progress("measuring what the machine can do")
    limits = measure_limits(threads)
    results: list[CaseResult] = []
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}

    def python(name: str) -> str:
        return sys.executable if is_ours(name) else peer_python or sys.executable

    with tempfile.TemporaryDirectory() as scratch:
        for place, beside in (c for c in wanted if c.case.program != "scan gradient"):
            if place.program == "lora" and model is None:
                missing[place.name] = "no model; pull one with `rlx pull smollm2`, or name a GGUF file with --model"
                continue
            tell = partial(report_step, progress, place.name)
            files = _lora_files(Path(scratch), model, place, progress) if place.program == "lora" and model else {}
            workers: dict[str, Worker] = {}
            try:
                for name in (n for n in chosen if is_ours(n) or n in beside):
                    tell(f"starting {name}")
                    try:
                        more = {**files.get(name, {}), DEVICE_VARIABLE: device}
                        workers[name] = Worker(FAMILY, name, python(name), threads, more)
                        versions[name] = workers[name].version
                    except (RlxError, OSError) as problem:
                        missing[name] = str(problem)
                timings = run_case(FAMILY, place, workers, rounds, 0.1, tell)
            finally:
                for worker in workers.values():
                    worker.close()
            tell("measuring what the machine can do")
            limits = limits.best(measure_limits(threads))
            # What a GPU can do is measured by benchmarks of its own.
            least = _least_seconds(place, limits, threads, model, tell) if is_host else 0.0
            results.append(CaseResult(place, {n: t._replace(limit=least) for n, t in timings.items()}))
        scans = [c.case for c in wanted if c.case.program == "scan gradient"]
        if scans:
            measured = _scan_times(scans, lambda: Worker(FAMILY, OURS, python(OURS), threads), rounds, progress)
            for case, timing in zip(scans, measured, strict=True):
                least = _least_seconds(case, limits, threads, model, progress)
                results.append(CaseResult(case, {OURS: timing._replace(limit=least)}))
        if compiles:
            names = [n for n in chosen if is_ours(n) or n in COMPILE_PEERS]
            found = _compile_times(names, python, threads, min(rounds, 3), progress)
            results += [CaseResult(Case(name, "compile", "", {}), found[name]) for name in compiles]
    return BenchResult("train", threads, limits, versions, missing, tuple(results), load)


def _least_seconds(case: Case, limits: Limits, threads: int, model: Path | None, tell: Progress) -> float:
    """The time of the multiply-adds of a step; of an update, that of a stream of its bytes, measured now."""
    if case.program == "adamw":
        tell("a stream of 4 reads and 3 writes")
        return case.sizes["parameters"] * BYTES_OF_AN_UPDATE / measure_update_stream(threads)
    if case.program == "lora":
        return lora_flops(case.sizes, *_lora_elements(model, case.sizes["rank"])) / limits.flops
    flops = {"gpt": gpt_flops, "convnet": convnet_flops, "scan gradient": scan_flops}[case.program]
    return flops(case.sizes) / limits.flops


def _scan_times(cases: list[Case], start: Callable[[], Worker], rounds: int, tell: Progress) -> list[Timing]:
    """Loops that keep more and fewer states, each in a process of its own, in rounds by turns: they are compared with
    one another. Their code is on disk before, so that the memory of none is that of the compiler."""
    for case in cases:
        worker = start()
        try:
            tell(f"{case.name}: compiling")
            prepare(case, worker)
        finally:
            worker.close()
    workers: list[Worker] = []
    try:
        held = []
        for case in cases:
            workers.append(start())
            held.append(prepare(case, workers[-1])[1])
        times: list[list[float]] = [[] for _ in cases]
        peaks = [0 for _ in cases]
        for number in range(rounds):
            tell(f"gradients of scans, round {number + 1}/{rounds}")
            for i, worker in enumerate(workers):
                answer = worker.ask({"do": "round", "seconds": 0.1})
                times[i].append(answer["seconds"])
                peaks[i] = max(peaks[i], (answer.get("peak") or 0) - (held[i] or 0))
    finally:
        for worker in workers:
            worker.close()
    return [Timing(statistics.median(t), tuple(t), memory=peak or None) for t, peak in zip(times, peaks)]


def _lora_elements(model: Path | None, rank: int) -> tuple[float, float, float]:
    from rlx.finetune import AdapterConfig, trainable_decoder
    from rlx.models.model_files import open_decoder

    assert model is not None
    files = open_decoder(model)
    c = files.config
    made = trainable_decoder(files, AdapterConfig(rank=rank))
    # Embeddings are looked up; tied ones are the last matrix too.
    matrices = sum(float(np.prod(w.dims)) for _, w in files.weights.items() if len(w.dims) == 2)
    if not c.tied:
        matrices -= c.vocab * c.hidden
    return matrices, float(sum(p.size for p in made.params.values())), float(c.layers * c.heads * c.head_dim)


def _lora_files(scratch: Path, model: Path, case: Case, progress: Progress) -> dict[str, dict[str, str]]:
    """What each engine is told: the model, for PEFT as a directory of f32 weights, and the adapter to begin with."""
    from rlx.finetune import AdapterConfig, trainable_decoder
    from rlx.models.model_files import open_decoder

    progress("writing the model as f32 for PEFT")
    files = open_decoder(model)
    made = trainable_decoder(files, AdapterConfig(rank=case.sizes["rank"]))
    assert made.adapter is not None
    write_peft(scratch / "adapter", made.adapter, files.config, files.weights)
    write_floats(scratch / "model", files)
    return {
        OURS: {MODEL_VARIABLE: str(model)},
        "torch+peft": {MODEL_VARIABLE: str(scratch / "model"), ADAPTER_VARIABLE: str(scratch / "adapter")},
    }


def write_floats(folder: Path, files: DecoderFiles) -> None:
    """A Llama-like GGUF model as a Hugging Face directory with f32 weights."""
    from rlx.formats.safetensors.writer import write_safetensors
    from rlx.models.config import RopeConfig
    from rlx.quant.schemes import dequantize_blocks

    c = files.config
    if c.family != "llama" or not isinstance(c.rope, RopeConfig) or c.rope.scaling != "default":
        raise RlxError(f"bench train: the LoRA step is measured on models of the family llama, this is {c.family}")
    names, orders, arrays = weight_names.HF_DECODERS["llama"], row_orders(c, in_gguf=True), {}
    for role, layer, part, weight in files.weights.by_role(c.layers):
        if role not in names:  # one tensor may have the name of two roles, of which a family has one
            continue
        values = weight.read() if weight.scheme is None else dequantize_blocks(weight.scheme, weight.read())
        values = np.ascontiguousarray(values, np.float32).reshape(weight.dims)
        order = orders(role, len(values))
        values = values if isinstance(order, slice) else values[np.argsort(order)]
        arrays[f"{names[role].replace('{i}', str(layer))}.{part}"] = values
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", arrays)
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": c.hidden,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope.base,
        "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")


def _compile_times(
    names: Iterable[str], python: Callable[[str], str], threads: int, rounds: int, tell: Progress
) -> dict[str, dict[str, Timing]]:
    """Seconds that the first call of a step takes longer than later ones, in a new process that finds no compiled code
    on disk and in a second one."""
    measured: dict[str, dict[str, list[float]]] = {COLD: {}, WARM: {}}
    problems: dict[str, str] = {}
    for number in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                caches = dict.fromkeys(CACHES, folder)
                for what, times_of in measured.items():
                    tell(f"{what}, {name}, round {number + 1}/{rounds}")
                    try:
                        call = (FAMILY, name, python(name), threads, caches, "gpt", GPT)
                        first, later = first_and_later_call(*call)
                        times_of.setdefault(name, []).append(max(first - later, 0.0))
                    except EngineProblem as problem:
                        problems[name] = str(problem)
    return {
        what: {
            **{n: Timing(statistics.median(t), tuple(t)) for n, t in times_of.items()},
            **{n: Timing(None, problem=p) for n, p in problems.items()},
        }
        for what, times_of in measured.items()
    }


def training_table(result: BenchResult) -> str:
    """For every case: our time and memory, how many times as long the peers take, and what share of theirs it is."""
    peers = [n for n in result.versions if not is_ours(n)]
    rows = [["case", OURS, *peers, "of limit", "memory", *(f"of {p}'s" for p in peers)]]
    for found in result.cases:
        timing = found.timings.get(OURS, Timing(None))
        row = [found.case.name, duration(timing.seconds) if timing.seconds else timing.problem or "-"]
        row += [times(found.ratio(p)) for p in peers]
        row += [share_of_limit(timing), _megabytes(timing.memory)]
        row += [_share(timing.memory, found.timings.get(p, Timing(None)).memory) for p in peers]
        rows.append(row)
    return "\n".join([*aligned(rows), "", *notes(result)])


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f} MB"


def _share(ours: int | None, theirs: int | None) -> str:
    return "-" if not ours or not theirs else f"{ours / theirs:.2f}x"
