"""The text of the gradients of attention by `mma` (sm_80 and later), run without a GPU beside f64; its code, which
chips take it, and its launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from group_text import run_groups
from test_group_attention import Case, Place
from test_hopper_gradients import graph_of, kernels_of
from test_mma_attention import launched_with, slow
from warp_text import GLOBAL

from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.gradient_form import GradientForm
from rlx.backends.cuda.hopper.gradient_shape import GradientShape
from rlx.backends.cuda.hopper.mma_gradient_form import MmaGradientForm
from rlx.backends.cuda.hopper.mma_gradients import THREADS, MmaGradientShape, mma_gradients_text
from rlx.backends.cuda.hopper.row_products import THREADS as SUM_THREADS
from rlx.backends.cuda.hopper.row_products import row_products_text, rows_per_block
from rlx.ir.shape import Shape
from rlx.kernels.gpu.attention import gradient_refusal
from rlx.kernels.machines import machine_named
from rlx.ops.attn.gradients import AttentionBackward

SM_80 = machine_named("sm_80")
BF16 = ml_dtypes.bfloat16


def exact(case: Case, q: Any, k: Any, v: Any, dy: Any) -> dict[str, Any]:
    """Logarithms of base 2, sums of dy*y, and gradients in f64."""
    q, k, v, dy = (x.astype("f8") for x in (q, k, v, dy))
    k, v = (x.repeat(case.group, 1) for x in (k, v))
    scale = case.width**-0.5
    scores, slope = q @ k.swapaxes(-1, -2) * scale, 1.0
    if case.softcap is not None:
        ratio = np.tanh(scores / case.softcap)
        scores, slope = ratio * case.softcap, 1 - ratio**2
    position = (max(case.keys - case.queries, 0) + np.arange(case.queries))[:, None]
    key = np.arange(case.keys)
    if case.is_causal:
        seen = key <= position
        if case.window is not None:
            seen = seen & (key >= position - case.window)
        scores = np.where(seen, scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    powers = np.exp(scores - peak)
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logs = np.where(total > 0, np.log2(total) + peak * np.log2(np.e), np.inf)
    weights = powers / np.where(total > 0, total, 1.0)
    means = (dy * (weights @ v)).sum(-1, keepdims=True)
    changes = weights * (dy @ v.swapaxes(-1, -2) - means) * slope

    def grouped(x: Any) -> Any:
        return x.reshape(x.shape[0], -1, case.group, *x.shape[2:]).sum(2)

    return {
        "logs": logs[..., 0],
        "means": means[..., 0],
        "q": changes @ k * scale,
        "k": grouped(changes.swapaxes(-1, -2) @ q) * scale,
        "v": grouped(weights.swapaxes(-1, -2) @ dy),
    }


CASES = {
    "causal": (Case(False, queries=70, keys=90, heads=1, group=1, is_causal=True), ("q", "kv")),
    "full": (Case(False, queries=40, keys=37), ("q", "kv")),
    "window": (Case(False, queries=80, keys=70, heads=1, group=1, is_causal=True, window=21, softcap=3.0), ("q", "kv")),
    "40": (Case(False, narrow=40, queries=33, keys=70, heads=1, group=1, is_causal=True), ("q", "kv")),
    "wide": (Case(False, depth=192, queries=20, keys=30, heads=1, group=1), ("q", "k", "v")),
}


@pytest.mark.parametrize(("name", "sums"), [(name, part) for name, (_, parts) in CASES.items() for part in parts])
def test_against_f64(name: str, sums: str) -> None:
    case = CASES[name][0]
    rng = np.random.default_rng(len(name))
    q, dy = (rng.standard_normal((1, case.heads, case.queries, case.width)).astype(BF16) for _ in range(2))
    k, v = (rng.standard_normal((1, case.heads // case.group, case.keys, case.width)).astype(BF16) for _ in range(2))
    want = exact(case, q, k, v, dy)
    place = Place()
    results = {x: np.full(want[x].shape, 777, np.float32 if x == "q" else BF16) for x in sums}
    statistics = [want[x].astype(np.float32) for x in ("logs", "means")]
    arrays = [q, k, v, dy, *results.values(), *statistics]
    starts = [place.put(x) for x in arrays]
    arguments = [n for at, x in zip(starts, arrays) for n in (at, *x.strides[:3])]
    attention = case.shape._replace(depth=case.width, width=case.width)
    shape = MmaGradientShape(attention, sums, 2 if name == "full" else 1, 16 if case.width > 128 else 32)
    rows, heads = (case.queries, case.heads) if sums == "q" else (case.keys, case.heads // case.group)
    tiles = -(-rows // shape.rows)
    memory = place.memory()
    text = mma_gradients_text("gradients", shape, SM_80.triple)
    arguments += [tiles, case.queries, case.keys]
    run_groups(text, arguments, memory, heads * tiles, THREADS, (), shape.shared_bytes, seed=len(name))
    for start, (x, result) in zip(starts[4:], results.items()):
        got = memory[start - GLOBAL :][: result.nbytes].view(result.dtype).reshape(result.shape)
        error = np.abs(got.astype("f8") - want[x]).max() / np.abs(want[x]).max()
        assert error < 1e-2, (x, error)


@pytest.mark.parametrize("width", [40, 64, 192])
def test_sums_of_products(width: int) -> None:
    shape = GradientShape(Case(False, queries=11, narrow=width).shape._replace(depth=width))
    rng = np.random.default_rng(width)
    dy, y = (rng.standard_normal((2, 2, 11, width)).astype(BF16) for _ in range(2))
    place, sums = Place(), np.full((2, 2, 11), 777, np.float32)
    starts = [place.put(x) for x in (dy, y, sums)]
    steps = [n // 2 for x in (dy, y) for n in x.strides[:3]]
    memory = place.memory()
    blocks = -(-sums.size // rows_per_block(shape))
    text = row_products_text("sums", shape, SM_80.triple)
    run_groups(text, [*starts, *steps, 11, sums.size], memory, blocks, SUM_THREADS)
    got = memory[starts[2] - GLOBAL :][: sums.nbytes].view(np.float32).reshape(sums.shape)
    np.testing.assert_allclose(got, (dy.astype("f8") * y.astype("f8")).sum(-1), rtol=1e-4, atol=1e-4)


def form_of(arch: str = "sm_80", **options: Any) -> Any:
    machine = machine_named(arch)
    made = kernels_of(graph_of(**options), machine)["attention_gradients"]
    forms, refusal = tensor_forms(made.kernel, machine)
    return (forms[0] if forms else None), refusal, made


@pytest.mark.parametrize(
    ("arch", "width"), [("sm_80", 64), slow("sm_80", 128), slow("sm_86", 256), slow("sm_100", 80), slow("sm_120", 96)]
)
def test_code(arch: str, width: int) -> None:
    form, refusal, _ = form_of(arch, width=width, mask_kind="causal")
    assert not refusal and isinstance(form, MmaGradientForm)
    assert [shape.sums for shape in form.shapes()] == (["q", "kv"] if width <= 128 else ["q", "k", "v"])
    for shape in form.shapes():
        ptx = form.ptx(shape)
        # Scores, their changes, and a sum for each operand.
        products = 2 * (shape.others // 8) * -(-width // 16) + len(shape.sums) * (width // 8) * (shape.others // 16)
        if shape.sums == "v":
            products -= shape.others // 8 * -(-width // 16)
        found = ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
        assert found >= shape.tall * products and ".local" not in ptx and "griddepcontrol" not in ptx
        assert shape.shared_bytes <= (99 if arch in ("sm_86", "sm_120") else 163) << 10
    assert "griddepcontrol" not in form.sums.ptx()


def test_who_takes_it() -> None:
    assert form_of("sm_75")[0] is None and isinstance(form_of("sm_90a")[0], GradientForm)
    assert isinstance(form_of(width=40)[0], MmaGradientForm)
    assert gradient_refusal(SM_80, AttentionBackward(4, 264, wrt="all"), [Shape((2, 4, 9, 264), "bf16")] * 3)


def test_a_launch(fake: Any, gpu: Any, launched: Any) -> None:
    form, _, made = form_of(mask_kind="causal")
    form, words = launched_with(form, made)
    assert form.launch(words(2, 300, 500), gpu.stream)
    # Sums, dq by tiles of 64 queries of 8 heads, and dk and dv by tiles of 64 keys of 4.
    assert [shape.blocks for shape in launched] == [2 * 8 * 300 // 16, 2 * 8 * 5, 2 * 4 * 8]
    crooked = words(2, 300, 500)
    crooked[3] += 8
    assert not form.launch(crooked, gpu.stream) and not form.launch(words(2, 0, 500), gpu.stream)
