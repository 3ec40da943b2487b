"""Rows of `cuda_peers.py`: what decoders do for one token or a prompt, piece by piece and as whole models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from cuda_columns import BF16, F32, RUN, Work, distance, own, own_graph, randn, torch_graph

import rlx
from rlx.errors import BackendError


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
            with RUN.stream.capture() as recorded:
                for i in range(copies):
                    mine(i)
            ready = recorded.instantiate()
            columns["rlx"] = lambda i, ready=ready: ready.launch(RUN.stream)
        moved = copies * 4 * batch * kv_heads * keys * d
        yield Work(f"{copies} decode attentions {batch}x{heads}/{kv_heads}x{keys} d{d} bf16", moved, 0, columns, 5)


def decode_attention_ways() -> Iterator[Work]:
    """The same at short contexts as rlx launches it, and as it might."""
    from unittest import mock

    from rlx import ops
    from rlx.backends.cuda.hopper.attention_form import DecodeForm

    heads, kv_heads, d = 32, 8, 128
    usual = DecodeForm.least_keys
    for batch, keys in ((1, 1024), (1, 4096), (1, 16384), (8, 4096)):
        q = randn(batch, heads, 1, d)
        copies = min(24, max(2, math.ceil(3e8 / (4 * batch * kv_heads * keys * d))))
        caches = [(randn(batch, kv_heads, keys, d), randn(batch, kv_heads, keys, d)) for _ in range(copies)]
        turn = iter(range(1 << 30))

        def run(q: Any = q, caches: Any = caches, turn: Any = turn) -> Any:
            k, v = caches[next(turn) % len(caches)]
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        columns: dict[str, Callable[[int], Any]] = {"torch": torch_graph(run, copies)}
        turns = [{"x1": k, "x2": v} for k, v in caches[1:]]
        want = F.scaled_dot_product_attention(q, *caches[0], enable_gqa=True)
        for ahead in (False, True):
            for least in (usual, 2 * usual, 4 * usual):
                name = f"rlx{' ahead' if ahead else ''}{'' if least == usual else f' {least} keys'}"
                with mock.patch.multiple(DecodeForm, reads_ahead=ahead, least_keys=least):
                    mine = own(
                        lambda q, k, v: ops.attention(q, k, v, mask_kind="none", layout="bhsd"),
                        q,
                        *caches[0],
                        turns=turns,
                    )
                    if mine is not None:
                        print(f"  {name}: {distance(want, mine(0)[0], 2e-2)}", flush=True)
                        columns[name] = own_graph(mine, copies)
        name = f"decode attention {batch}x{heads}/{kv_heads}x{keys} d{d} bf16"
        yield Work(name, 4 * batch * kv_heads * keys * d, 0, columns, 4, copies)


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
                with RUN.stream.capture() as recorded:
                    for i in range(16):
                        mine(i)
                ready = recorded.instantiate()
                columns["rlx"] = lambda i, ready=ready: ready.launch(RUN.stream)
            except BackendError as error:
                print(f"  rlx: not in a graph: {str(error)[:200]}", flush=True)
                columns["rlx"] = lambda i, mine=mine: [mine(j) for j in range(16)]
        yield Work(f"16 products {m}x{n}x{k} bf16", 16 * 2 * n * k, 16 * 2 * m * n * k, columns, 4)


def batch_products() -> Iterator[Work]:
    """Products of 32 and 64 rows with weights of an 8B layer, of which some take turns, in one graph: as rlx tiles
    them, and as it might (columns of a tile x blocks that share one; "few": tiles of 64 rows)."""
    from unittest import mock

    from rlx.backends.cuda.hopper.form import HopperForm

    repeats = 16
    for m, n, k in ((64, 4096, 4096), (64, 6144, 4096), (64, 4096, 14336), (64, 14336, 4096), (32, 14336, 4096)):
        a, weights = randn(m, k), [randn(n, k) for _ in range(max(2, int(2e8 / (2 * n * k))))]
        turn = iter(range(1 << 30))
        theirs = torch_graph(lambda a=a, weights=weights, turn=turn: a @ weights[next(turn) % len(weights)].T, repeats)
        columns: dict[str, Callable[[int], Any]] = {"cublas": theirs}
        usual = HopperForm.tiling_for
        tilings = [
            (t, False) for t in (None, (64, 1), (64, 2), (64, 4), (128, 1), (128, 2), (128, 4), (256, 2), (256, 4))
        ]
        for tiling, few in (*tilings, (None, True), ((128, 1), True), ((256, 1), True)):
            chosen = usual if tiling is None else lambda *_, tiling=tiling: tiling
            with (
                mock.patch.object(HopperForm, "tiling_for", chosen),
                mock.patch.object(HopperForm, "has_few_row_tiles", few),
            ):
                mine = own(lambda a, w: a @ w.T, a, weights[0], turns=[{"x1": w} for w in weights[1:]])
                if mine is not None:
                    name = "rlx" if tiling is None else f"{tiling[0]}x{tiling[1]}"
                    columns[f"{name} few" if few else name] = own_graph(mine, repeats)
        yield Work(f"product {m}x{n}x{k} bf16", 2 * n * k, 2 * m * n * k, columns, 4, repeats)


def embeddings() -> Iterator[Work]:
    """Rows of a table of Q4_K, of a prompt and of one token, beside those of a bf16 table: 470 us for 2048 rows when a
    thread decoded each of them."""
    from random_panels import random_panels

    from rlx.ops.lowered.quantized_panels import PanelGather
    from rlx.quant.schemes import QuantScheme

    n, k, repeats = 32768, 4096, 20
    layout = QuantScheme.GgufQ4K.panel_format
    assert layout is not None
    panels, table = torch.from_numpy(random_panels(layout, n, k, 1)).cuda(), randn(n, k)
    for count in (1, 64, 2048):
        ids = torch.randint(0, n, (count,), device="cuda", dtype=torch.int32)
        columns = {"torch bf16": torch_graph(lambda ids=ids: F.embedding(ids, table), repeats)}
        mine = own(lambda panels, ids: PanelGather(QuantScheme.GgufQ4K, k, n)(panels, ids), panels, ids)
        if mine is not None:
            columns["rlx Q4_K"] = own_graph(mine, repeats)
        yield Work(f"{count} rows of {k}", 4 * count * k, 0, columns, 4, repeats)


def quantised() -> Iterator[Work]:
    """Products with stored GGUF blocks, f32 in and out, beside those with bf16 weights: bytes are those stored. Eight
    weights take turns, in one graph; the first is checked against f64 on some of its rows."""
    from random_panels import random_panels

    from rlx.ops.lowered.quantized_panels import PanelMatMul
    from rlx.quant.panels import unpack_rows
    from rlx.quant.schemes import QuantScheme

    n, k, copies = 14336, 4096, 8

    def graph_of(mine: Callable[[int], Any]) -> Callable[[int], Any]:
        with RUN.stream.capture() as recorded:
            for i in range(2 * copies):
                mine(i)
        ready = recorded.instantiate()
        return lambda i: ready.launch(RUN.stream)

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
        if name not in RUN.models:
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
            if context == 512 and not RUN.no_eager:
                show_profile(own_model, given)
                exact = own_model.with_activations("f32")
                exact.start(context + 2 * TOKENS_AHEAD)
                columns["rlx f32"] = lambda i, m=exact, given=given: m.run(given)
            if not RUN.no_peers:
                theirs.start(context)
                for key in ("compile",) if RUN.no_eager else ("eager", "compile"):
                    began = time.time()
                    columns[key] = theirs.as_graph([11], context - 1, key == "compile")
                    print(f"  torch {key}: ready after {time.time() - began:.1f} s", flush=True)
            # As many tokens as several launches of those that go ahead have.
            yield Work(f"decode {name} at {context}", step_bytes(c, context), 0, columns, 2 * TOKENS_AHEAD)


def decode_batch() -> Iterator[Work]:
    """One token of each of 64 sequences at a context of 512."""
    from cuda_models import step_bytes

    batch, context = 64, 512
    for name, c, own_model, theirs in models():
        own_model.start(context + 1, batch)
        tokens = np.arange(11, 11 + batch)[:, None]
        given = own_model.inputs(tokens, context - 1)
        columns: dict[str, Callable[[int], Any]] = {"rlx": lambda i, m=own_model, given=given: m.run(given)}
        show_profile(own_model, given)
        if not RUN.no_peers:
            theirs.start(context, batch)
            for key in ("compile",) if RUN.no_eager else ("eager", "compile"):
                columns[key] = theirs.as_graph(tokens, context - 1, key == "compile")
        moved = step_bytes(c, context, batch=batch)
        yield Work(f"decode {name}, {batch} sequences at {context}", moved, 0, columns, 20)


def decode_stored() -> Iterator[Work]:
    """One token of the whole 8B shape with GGUF weights, as one kernel where it has that form and as kernels."""
    from cuda_models import config_of, step_bytes, stored_as, stored_model

    context, c = 512, config_of("8B", 32)
    for kind in RUN.stored:
        model = stored_model(c, kind)
        model.start(context + 1)
        given = model.inputs([11], context - 1)
        print("  " + next((x for x in str(model.program.report).splitlines() if x.startswith("decode:")), ""))
        columns: dict[str, Callable[[int], Any]] = {
            "rlx": lambda i, m=model, given=given: m.run(given),
            "rlx kernels": lambda i, m=model, given=given: run_as_kernels(m, given),
        }
        yield Work(f"decode 8B {kind} at {context}", step_bytes(c, context, stored_as(c, kind)), 0, columns, 20)


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
        if not RUN.no_peers:
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
    "decode_batch": decode_batch,
    "decode_stored": decode_stored,
    "batch_products": batch_products,
    "prefill_model": prefill_model,
    "few_rows": few_rows,
    "embeddings": embeddings,
    "quantised": quantised,
    "decode_attention": decode_attention,
    "decode_attention_ways": decode_attention_ways,
}
