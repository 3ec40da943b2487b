"""Decode steps in one kernel on a GPU: against the CPU engine, the program's own kernels, and against themselves.

`CHECKS` are run by `gpu_suite.py --only one_kernel`, each in a process of its own if it has to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from decoder_cases import STEPS, TYPES, decoder_case, distance, inputs_of

import rlx
from rlx.ir.dtype import DType
from rlx.knobs import knobs
from rlx.models.choosing import Choice
from rlx.models.decoder import build_decoder
from rlx.models.kv_cache import DecoderRunner
from rlx.models.language_model import compile_options
from rlx.models.sampling import Sampler, SamplingOptions
from rlx.models.weight_names import HF_DECODERS
from rlx.models.weights import Weight, WeightFile, read_weights

# Operands are rounded to 8 bits, over one or two layers.
SMALL_BOUND = 1e-2
# Both ways round between layers, at different places.
LARGE_BOUND = 2e-2
LAUNCHES = 30

# Shape, layers, sequences, tokens before the step.
LARGE: dict[str, tuple[Any, ...]] = {
    "1B of 4 layers, 511 before": ("1B", 4, 1, 511),
    "1B of 4 layers, 4095 before": ("1B", 4, 1, 4095),
    "1B of 2 layers, none before": ("1B", 2, 1, 0),
    "1B of 2 layers, 2 sequences": ("1B", 2, 2, 700),
    "1B of 2 layers, 8 sequences": ("1B", 2, 8, 300),
    "8B of 2 layers, 511 before": ("8B", 2, 1, 511),
    "8B of 2 layers, 3 sequences": ("8B", 2, 3, 511),
    "8B of 2 layers, Q4_K": ("8B", 2, 1, 511, "Q4_K"),
    "8B of 8 layers, Q4_K_M": ("8B", 8, 1, 511, "Q4_K_M"),
    "8B of 2 layers, Q4_K, 3 sequences": ("8B", 2, 3, 511, "Q4_K"),
    "1B of 4 layers, Q6_K, 2 sequences": ("1B", 4, 2, 511, "Q6_K"),
    "1B of 4 layers, Q8_0": ("1B", 4, 1, 511, "Q8_0"),
    "1B of 4 layers, Q4_0, 8 sequences": ("1B", 4, 8, 300, "Q4_0"),
}
# Forms of which several steps are one launch: tokens as of single steps whose logits choose them.
AHEAD = ("two layers, twice", "three sequences", "windows", "heads of 128", "softcaps", "f16")
AHEAD += ("Q4_K and Q6_K, six sequences",)
AHEAD_STEPS = 40
CHECKS = (*STEPS, *LARGE, *(f"ahead, {name}" for name in AHEAD), "ahead, 1B of 4 layers", "ahead, choices")


def run(name: str) -> float:
    if name == "ahead, choices":
        return _choices("cuda")
    if name == "ahead, 1B of 4 layers":
        return _large("1B", 4, 1, 500, is_ahead=True)
    if name.startswith("ahead, "):
        return _small_ahead(name.removeprefix("ahead, "))
    return _large(*LARGE[name]) if name in LARGE else _small(name)


def _small(name: str) -> float:
    """Logits and caches of the CPU engine, on all multiprocessors; then the same bits again and again."""
    options = STEPS[name][0]
    case = decoder_case(**options)
    program = rlx.Session("cuda", compile_options(None, options.get("element", "bf16"))).compile(case.built.graph)
    read_weights(case.built.weights, program)
    assert "decode: one kernel" in str(program.report), str(program.report)[-300:]
    found = []
    for _ in range(LAUNCHES):
        logits, *caches = program.run(inputs_of(case))
        found.append(np.asarray(logits).tobytes())
    error = distance(np.asarray(logits)[:, 0], case.wanted)
    assert error < SMALL_BOUND, f"logits off by {error:.2g}"
    for cache, wanted in zip(caches, case.after.values(), strict=True):
        off = distance(np.asarray(cache).astype("f4"), wanted.astype("f4"))
        assert off < SMALL_BOUND, f"a cache is off by {off:.2g}"
    assert len(set(found)) == 1, f"{len(set(found))} different results of {LAUNCHES} launches"
    return error


def _small_ahead(name: str) -> float:
    options = STEPS[name][0]
    case = decoder_case(**options)
    program = rlx.Session("cuda", compile_options(None, options.get("element", "bf16"))).compile(case.built.graph)
    read_weights(case.built.weights, program)
    return _same_ahead(program, inputs_of(case), case.built.caches)


def _choices(device: str, words: int = 50000) -> float:
    """Tokens chosen on a device are those that samplers of the host choose; some logits are equal."""
    logits = np.random.default_rng(8).standard_normal((8, 1, words)).astype("f4") * 3
    logits[::2] = np.round(logits[::2] * 4) / 4
    zeros = np.zeros(8, np.int32)
    for more in ({}, {"temperature": 1.1}, {"temperature": 0.8, "top_k": 50}, {"temperature": 1.3, "top_p": 0.9},
                 {"temperature": 2.0, "top_k": 900, "top_p": 0.8, "min_p": 0.05}):  # fmt: skip
        options = SamplingOptions(seed=3, **more)
        samplers = [[Sampler(options, row) for row in range(8)] for _ in range(2)]
        choose = Choice(options, words, device)
        for _ in range(4):
            uniforms = np.array([sampler.draws(1)[0] for sampler in samplers[0]])
            tokens, positions, _ = choose(logits, uniforms, zeros[:, None], zeros, zeros + 1)
            wanted = [sampler.choose(row[0]) for sampler, row in zip(samplers[1], logits)]
            assert np.asarray(tokens)[:, 0].tolist() == wanted, f"{options}: other tokens than on the host"
            assert (np.asarray(positions) == 1).all()
    return 0.0


def _same_ahead(program: Any, given: dict[str, Any], names: Any) -> float:
    """Tokens and caches of one launch of many steps, again and again, against those of one step at a time."""
    caches, now = [np.array(given[name]) for name in names], dict(given)
    steps = min(AHEAD_STEPS, caches[0].shape[2] - 1 - int(given["kv_len"].max()))
    assert steps > 10, steps
    own, wanted = [rlx.device_put(cache, "cuda") for cache in caches], []
    for _ in range(steps):
        logits, *own = program.run(now | dict(zip(names, own)))
        wanted.append(np.asarray(logits)[:, 0].argmax(-1).astype(np.int32))
        now["tokens"] = wanted[-1][:, None]
        now["positions"], now["kv_len"] = now["positions"] + 1, now["kv_len"] + 1
    for number in range(10):
        mine = [rlx.device_put(cache, "cuda") for cache in caches]
        found = program.run_ahead(given | dict(zip(names, mine)), np.ones(len(given["tokens"]), np.int32), steps)
        assert found is not None, "no such way"
        chosen, *mine = found
        assert np.array_equal(np.asarray(chosen), np.stack(wanted)), f"launch {number} chooses other tokens"
        for one, other in zip(mine, own, strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), f"caches of launch {number} differ"
    return 0.0


def _large(shape: str, layers: int, batch: int, past: int, stored: str = "", is_ahead: bool = False) -> float:
    """One kernel beside the kernels of the program, on weights and caches from a seed."""
    from cuda_models import config_of, stored_model, weight_dims

    c, some = config_of(shape, layers), np.random.default_rng(9).standard_normal(1 << 20).astype("f4")

    def weight(name: str, dims: tuple[int, ...]) -> Any:
        shifted = np.roll(some, hash(dims) % 1000 + 7 * sum(map(ord, name)))
        scale = 1.0 if "embed" in name or len(dims) == 1 else dims[-1] ** -0.5
        values = shifted * (0.1 if len(dims) == 1 else scale) + (len(dims) == 1)
        return np.resize(values.astype(TYPES["bf16"]), dims)

    if stored:
        model = stored_model(c, stored)
        program, runner = model.program, model.runner
    else:
        weights = {n: Weight(d, DType.BF16, None, lambda n=n, d=d: weight(n, d)) for n, d in weight_dims(c).items()}
        built = build_decoder(c, WeightFile("seeded", HF_DECODERS["llama"], weights), DType.BF16)
        program = rlx.Session("cuda", compile_options(None, "bf16")).compile(built.graph)
        read_weights(built.weights, program)
        runner = DecoderRunner(c, program, built.caches)
    names = runner.cache_names
    places = np.array([past - 3 * i if past > 3 * i else 0 for i in range(batch)], np.int32)
    given: dict[str, Any] = {"tokens": np.arange(11, 11 + batch, dtype=np.int32)[:, None], "kv_len": places + 1}
    given |= {"positions": places[:, None], "rows": np.zeros((batch, 1), np.int32)}
    capacity = past + 40
    given |= runner._tables(capacity)
    caches = runner.new_caches(batch, capacity)
    for number, cache in enumerate(caches):
        cache[...] = np.resize(np.roll(some, 31 * number), cache.shape).astype(cache.dtype)
    if is_ahead:
        return _same_ahead(program, given | dict(zip(names, caches)), names)
    results = {}
    for is_one in (True, False):
        with knobs(cuda_one_kernel=is_one):
            found = []
            for _ in range(LAUNCHES if is_one else 2):
                own = [rlx.device_put(cache, "cuda") for cache in caches]
                logits, *after = program.run(given | dict(zip(names, own)))
                found.append(np.asarray(logits)[:, 0])
        assert len({f.tobytes() for f in found}) == 1, f"launches differ, one kernel: {is_one}"
        executable: Any = program.executable
        assert not executable._main._decoding.refusal(batch), executable._main._decoding.refusal(batch)
        results[is_one] = found[0], [np.asarray(a) for a in after]
    error = distance(results[True][0], results[False][0])
    assert error < LARGE_BOUND, f"logits off by {error:.2g}"
    for one, other in zip(results[True][1], results[False][1], strict=True):
        assert distance(one.astype("f4"), other.astype("f4")) < LARGE_BOUND, "caches differ"
    return error
