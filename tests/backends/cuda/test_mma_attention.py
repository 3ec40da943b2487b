"""The text of attention by `mma` (sm_80 and later), run without a GPU: copies that land at random times, blocks whose
warps go in any order, beside f64; and its code, which chips take it, and its launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from counted_code import CountedCode
from group_text import run_groups
from test_group_attention import Case, Place, drawn, exact
from test_hopper_attention import graph_of, kernel_of
from warp_text import GLOBAL

from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.attention_form import AttentionForm, DecodeForm
from rlx.backends.cuda.hopper.mma_attention import Mask, MmaAttentionShape, mma_attention_text
from rlx.backends.cuda.hopper.mma_attention_form import MmaAttentionForm
from rlx.kernels.machines import machine_named

SM_80 = machine_named("sm_80")
MASK_TYPES: dict[str, Any] = {"bool": np.bool_, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


class Form(NamedTuple):
    case: Case
    warps: int = 2
    tall: int = 1
    keys: int = 32
    mask: Mask | None = None
    has_sinks: bool = False
    element: str = "bf16"

    @property
    def shape(self) -> MmaAttentionShape:
        attention = self.case.shape._replace(depth=self.case.width, width=self.case.width, element=self.element)
        return MmaAttentionShape(attention, self.warps, self.tall, self.keys, self.mask, self.has_sinks)


def attended(form: Form, seed: int) -> tuple[Any, Any, Any, Any]:
    """What the kernel finds, and what there is in f64: results, logarithms."""
    case, shape = form.case, form.shape
    batch = len(case.lengths) or 1
    rng = np.random.default_rng(seed)
    q, k, v = (x.astype(np.float16 if form.element == "f16" else x.dtype) for x in drawn(case, batch))
    place = Place()
    out, logs = np.full(q.shape, 777, q.dtype), np.full(q.shape[:3], 777, np.float32)
    starts = [place.put(x) for x in (q, k, v, out, logs)]
    arguments = [n for at, x in zip(starts, (q, k, v, out)) for n in (at, *x.strides[:3])]
    tiles = -(-case.queries // shape.rows)
    arguments += [tiles, case.queries, case.keys]
    if case.lengths:
        arguments += [place.put(np.array(case.lengths, np.int32)), 1]
    if case.start is not None:
        arguments += [place.put(case.start + np.arange(case.queries, dtype=np.int64)), 0, 1]
    added: Any = 0.0
    if form.mask is not None:
        kind = MASK_TYPES[form.mask.type]
        given = rng.standard_normal((batch, case.heads, case.queries, case.keys))
        stored = (given if form.mask.is_bias else given > -1.0).astype(kind)
        added = stored.astype("f8") if form.mask.is_bias else np.where(stored.astype("f8") >= 0.5, 0.0, -np.inf)
        if form.mask.step is None:
            stored = np.repeat(stored, 2, -1)
        step = np.dtype(kind).itemsize * (form.mask.step or 2)
        arguments += [place.put(stored), *stored.strides[:3], step]
    sinks: Any = -np.inf
    if form.has_sinks:
        sinks = rng.standard_normal(case.heads).astype(np.float32)
        arguments += [place.put(sinks), 4]
    if case.has_logs:
        arguments.append(starts[4])
    memory = place.memory()
    text = mma_attention_text("attention", shape, SM_80.triple)
    run_groups(text, arguments, memory, batch * case.heads * tiles, shape.threads, (), shape.shared_bytes, seed)

    def found(start: int, like: Any) -> Any:
        return memory[start - GLOBAL :][: like.nbytes].view(like.dtype).reshape(like.shape)

    return found(starts[3], out), found(starts[4], logs), *exact(case, q, k, v, added, sinks)


FORMS = {
    "plain": Form(Case(False, queries=40, keys=70, has_logs=True)),
    "causal": Form(
        Case(False, queries=70, keys=100, is_causal=True, lengths=(100, 77), has_logs=True), tall=2, keys=16
    ),
    "window": Form(Case(False, queries=50, keys=90, is_causal=True, window=37, softcap=4.0, has_logs=True)),
    "cache": Form(Case(False, queries=20, keys=90, is_causal=True, lengths=(80, 0, 3), start=60, heads=4, group=4)),
    "40": Form(Case(False, narrow=40, queries=33, keys=40, heads=1, group=1, softcap=3.0), element="f16"),
    "96": Form(Case(False, depth=128, narrow=96, queries=20, keys=40, heads=1, group=1, is_causal=True)),
    "256": Form(Case(False, depth=256, queries=20, keys=40, heads=1, group=1), keys=16),
    "mask": Form(Case(False, queries=20, keys=50, has_logs=True), mask=Mask(False, "bool", 1)),
    "bias": Form(Case(False, queries=20, keys=50, lengths=(50, 9), softcap=4.0), mask=Mask(True, "bf16", 1)),
    "turned bias": Form(Case(False, queries=20, keys=50), mask=Mask(True, "f32", None), has_sinks=True),
    "half mask": Form(Case(False, queries=20, keys=50), mask=Mask(False, "f16", 1), element="f16"),
    "sinks": Form(Case(False, queries=20, keys=50, is_causal=True, lengths=(50, 0)), has_sinks=True),
}


@pytest.mark.parametrize("name", FORMS)
def test_against_f64(name: str) -> None:
    form = FORMS[name]
    got, logs, want, exact_logs = attended(form, seed=len(name))
    error = np.abs(got.astype("f8") - want).max() / np.abs(want).max()
    assert error < (1.5e-3 if form.element == "f16" else 8e-3), error
    if form.case.has_logs:
        np.testing.assert_allclose(logs, exact_logs, rtol=1e-5, atol=1e-5)


def form_of(arch: str = "sm_80", **options: Any) -> Any:
    machine = machine_named(arch)
    made = kernel_of(graph_of(**options), machine)
    forms, refusal = tensor_forms(made.kernel, machine)
    return {type(form): form for form in forms}, refusal, made


def slow(*given: Any) -> Any:
    return pytest.param(*given, marks=pytest.mark.targets)


@pytest.mark.parametrize(
    ("arch", "width", "kind"),
    [
        slow("sm_80", 128, "bf16"),
        slow("sm_86", 256, "bf16"),
        slow("sm_89", 64, "f16"),
        slow("sm_100", 80, "bf16"),
        ("sm_120", 64, "f16"),
    ],
)
def test_code(arch: str, width: int, kind: str) -> None:
    forms, refusal, _ = form_of(arch, width=width, dtype=kind, mask_kind="causal", cache=True)
    assert not refusal and MmaAttentionForm in forms
    shape = forms[MmaAttentionForm].made_shape(1000, 100)
    ptx = forms[MmaAttentionForm].ptx(shape)
    assert f".target {arch}" in ptx and ".local" not in ptx and "wgmma" not in ptx and "tensor.2d" not in ptx
    # Scores and sums of values, in loops of keys that some rows do not see, and of those that all do.
    products = shape.tall * (shape.keys // 8 * width // 16 + width // 8 * shape.keys // 16)
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32") == 2 * products
    assert ("griddepcontrol.wait" in ptx) == (int(arch[3:]) >= 90)
    room = {"sm_80": 163, "sm_100": 227}.get(arch, 99) << 10
    assert shape.shared_bytes <= room
    if DecodeForm in forms:
        assert f".target {arch}" in forms[DecodeForm].ptx(1)
        assert forms[DecodeForm].decode_shape(2).shared_bytes <= room


def test_who_takes_it() -> None:
    assert form_of("sm_75", dtype="f16")[:2] == ({}, "sm_75 has no mma of bf16")
    assert list(form_of("sm_90a")[0]) == [DecodeForm, AttentionForm]
    # Hopper's own kernel reads no masks.
    for arch in ("sm_80", "sm_90a"):
        for kind in ("custom", "bias"):
            forms, refusal, _ = form_of(arch, mask_kind=kind, mask=True)
            assert not refusal and list(forms) == [MmaAttentionForm]
        forms, refusal, made = form_of(arch, sinks=True, mask_kind="causal", cache=True)
        assert not refusal and list(forms) == [MmaAttentionForm] and made.kernel.origin.sinks is not None
    assert list(form_of(width=40)[0]) == [MmaAttentionForm] and list(form_of(rows="f32")[0]) == [DecodeForm]
    assert form_of(width=264)[1] == "heads of 264 and 264"
    assert form_of(score_scale=-1.0)[1].startswith("a scale of -1.0")


def launched_with(form: Any, made: Any) -> Any:
    """The form with code that nobody makes, and its arguments for sizes."""
    names = [p.name for p in made.kernel.params]
    pointers = len(names) - len(made.extents)

    def words(b: int, s: int, t: int) -> list[int]:
        sizes = [e if isinstance(e, int) else int(e.bind({"B": b, "S": s, "T": t})) for e in made.extents]
        return [(i + 1) << 24 for i in range(pointers)] + sizes

    return type(form)(made.kernel.origin, names, form.machine, CountedCode()), words


def test_launches(fake: Any, gpu: Any, launched: Any) -> None:
    """Tall tiles where there are enough of them for all 132 multiprocessors."""
    forms, _, made = form_of(mask_kind="causal", cache=True)
    form, words = launched_with(forms[MmaAttentionForm], made)
    for b, s, tiles in ((1, 300, 5), (4, 300, 3)):
        assert form.launch(words(b, s, 500), gpu.stream)
        assert launched[-1].blocks == b * 16 * tiles and launched[-1].threads == 128
    crooked = words(1, 300, 500)
    crooked[0] += 8
    assert not form.launch(crooked, gpu.stream) and not form.launch(words(1, 300, 0), gpu.stream)
