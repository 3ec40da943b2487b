"""The gradients of attention on the CPU: native at every size, against f64, for any thread count."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.program import command_table
from rlx.compile.compiler import CompilePipeline
from rlx.ir.shape import Shape
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret as run_in_interpreter
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import AVX2, AVX512, SSE2
from rlx.ops.attn.gradients import AttentionBackward

rng = np.random.default_rng(23)
LIMIT = {"f32": 1e-5, "f64": 1e-13, "bf16": 2e-2, "f16": 3e-3}


def compiled(op, shapes):
    graph = rlx.Graph("gradients")
    result = op(*(graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return CpuBackend().compile(graph, CompileOptions())


def run(executable, arrays):
    return [np.asarray(r) for r in executable.run({f"x{i}": a for i, a in enumerate(arrays)}, {})]


def normal(*dims):
    return rng.normal(size=dims).astype("f4")


def shapes_of(arrays):
    return [Shape(a.shape, rlx.DType.of(a.dtype)) for a in arrays]


def assert_all_close(found, exact, dtype):
    exact = exact if isinstance(exact, tuple) else (exact,)
    for a, b in zip(found, exact, strict=True):
        a, b = a.astype("f8"), b.astype("f8")
        np.testing.assert_allclose(a, b, rtol=0, atol=LIMIT[dtype] * np.abs(b).max(initial=1e-30))


@pytest.mark.parametrize("sample", list(AttentionBackward.samples()), ids=str)
def test_samples(sample):
    """One kernel for all gradients; single ones and that of a bias are decomposed, and native too."""
    executable = compiled(sample.op, sample.shapes("f32"))
    kinds = [k.kind for k in executable.lir.kernels]
    is_own = sample.op.wrt == "all" and sample.op.mask_kind != "bias"
    assert kinds == ["attention_backward"] if is_own else "call" not in kinds
    arrays = sample.arrays("f32")
    assert_all_close(run(executable, arrays), sample.op.eval(*arrays), "f32")


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_other_types(dtype):
    sample = next(iter(AttentionBackward.samples()))
    executable = compiled(sample.op, sample.shapes(dtype))
    assert "call" not in [k.kind for k in executable.lir.kernels]
    arrays = sample.arrays(dtype)
    assert_all_close(run(executable, arrays), sample.op.eval(*arrays), dtype)


CASES = [
    ((2, 4, 70, 64), (2, 2, 130, 64), 64, {"num_kv_heads": 2, "mask_kind": "causal"}),
    ((1, 2, 100, 32), (1, 2, 90, 32), 48, {"softcap": 5.0, "mask_kind": "causal"}),
    ((1, 3, 33, 80), (1, 1, 50, 80), 24, {"num_kv_heads": 1, "mask_kind": "sliding_window", "window": 7}),
    ((1, 2, 64, 128), (1, 2, 49, 128), 128, {"score_scale": 0.2}),
    # More keys than scores are kept of, and a window that begins behind the first key.
    ((1, 1, 300, 64), (1, 1, 300, 64), 64, {"mask_kind": "causal"}),
    ((1, 1, 130, 64), (1, 1, 600, 64), 64, {}),
    ((1, 1, 200, 64), (1, 1, 200, 64), 64, {"mask_kind": "sliding_window", "window": 60}),
]


@pytest.mark.parametrize(("q_dims", "k_dims", "width", "attributes"), CASES)
def test_larger_sizes(q_dims, k_dims, width, attributes):
    op = AttentionBackward(q_dims[1], q_dims[3], **attributes, wrt="all")
    arrays = [normal(*q_dims), normal(*k_dims), normal(*k_dims[:3], width), normal(*q_dims[:3], width)]
    assert_all_close(run(compiled(op, shapes_of(arrays)), arrays), op.eval(*arrays), "f32")


def test_what_lies_behind_a_cache_has_no_gradient():
    op = AttentionBackward(2, 16, has_kv_len=True, wrt="all")
    q, k, v, dy = (normal(2, 2, n, 16) for n in (20, 60, 60, 20))
    lengths = np.array([13, 0], "i4")
    executable = compiled(op, shapes_of([q, k, v, dy, lengths]))
    clean = run(executable, [q, k, v, dy, lengths])
    for batch, length in enumerate(lengths):
        k[batch, :, length:], v[batch, :, length:] = np.nan, np.inf
    for a, b in zip(run(executable, [q, k, v, dy, lengths]), clean, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(clean[1][0, :, 13:], 0.0)
    np.testing.assert_array_equal(clean[0][1], 0.0)


def test_one_compile_and_the_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)
    op = AttentionBackward(4, 16, num_kv_heads=2, mask_kind="causal", wrt="all")
    executable = compiled(op, [Shape(("B", h, s, 16), "f32") for h, s in ((4, "S"), (2, "T"), (2, "T"), (4, "S"))])
    for batch, seq_q, seq_k in ((2, 70, 100), (1, 1, 1), (3, 5, 60), (0, 3, 3), (1, 0, 4)):
        arrays = [normal(batch, h, s, 16) for h, s in ((4, seq_q), (2, seq_k), (2, seq_k), (4, seq_q))]
        with rlx.threads(1):
            alone = run(executable, arrays)
        assert_all_close(alone, op.eval(*arrays), "f32")
        for count in (2, 3):
            with rlx.threads(count):
                for a, b in zip(run(executable, arrays), alone, strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE2], ids=lambda t: t.name)
def test_in_the_interpreter(target):
    """Every access of the kernel is inside its arrays, for machines that this one may not be."""
    op = AttentionBackward(2, 6, num_kv_heads=1, mask_kind="causal", wrt="all")
    arrays = [normal(1, 2, 3, 6), normal(1, 1, 7, 6), normal(1, 1, 7, 5), normal(1, 2, 3, 5)]
    lir = compiled(op, shapes_of(arrays)).lir
    made = make_kernel("attention_backward", lir.as_graph(), lir.kernels[0], target)
    names = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
    results = [np.zeros_like(a) for a in arrays[:3]]
    args = [a.reshape(-1) for a in (*arrays, *results)]
    run_in_interpreter(made.kernel, dict(zip(names, args, strict=True)))
    assert_all_close(results, op.eval(*arrays), "f32")


@pytest.mark.parametrize("target", ["wgpu", "opencl", "metal"])
def test_gpus_that_compile_text_multiply_all_heads(target):
    """There a kernel by heads would have one thread for each of them."""
    sample = next(AttentionBackward.samples())
    graph = rlx.Graph("gradients")
    graph.set_outputs(sample.op(*(graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes("f32")))))
    kinds = [k.kind for k in CompilePipeline.new(target).compile(graph).lir.kernels]
    assert kinds.count("matmul") == 5 and not {"attention_backward", "call"} & {*kinds}
