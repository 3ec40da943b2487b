"""Products by `mma`, `cp.async` and `ldmatrix` (sm_80 and later): what the kernel computes, run warp by warp without a
GPU, its code, and which chips take it. On a GPU: `gpu_suite.py --only products --match sm_80`."""

import ml_dtypes
import numpy as np
import pytest

from backends.cuda.test_hopper_products import kernel_of, layer
from backends.cuda.warp_text import GLOBAL, run_block
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.epilogue import finish_of
from rlx.backends.cuda.hopper.mma_form import MmaForm
from rlx.backends.cuda.hopper.mma_product import MmaShape, mma_product_text
from rlx.errors import InternalError
from rlx.kernels.machines import machine_named

SM_80 = machine_named("sm_80")


def form_of(function, *types, machine=SM_80):
    forms, refusal = tensor_forms(kernel_of(function, *types, machine=machine), machine)
    found = [form for form in forms if isinstance(form, MmaForm)]
    assert bool(forms) == (not refusal)
    return found[0] if found else None


@pytest.mark.parametrize("turned", [True, False], ids=["n k", "k n"])
@pytest.mark.parametrize(
    ("rows", "columns", "m", "n", "k", "block"), [(64, 64, 70, 72, 136, 3), (128, 128, 40, 200, 72, 1)]
)
def test_sums(rows, columns, m, n, k, block, turned):
    """Tiles that hang over all edges, and as many steps as stages or more."""
    function = (lambda a, w: a @ w.T) if turned else (lambda a, w: a @ w)
    form = form_of(function, (("B", k), "bf16"), ((n, k) if turned else (k, n), "bf16"))
    shape = MmaShape(rows, columns, 1, 3, turned, "bf16")
    text = mma_product_text("product", shape, finish_of(form.product, form._finish, SM_80), SM_80.triple)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k) if turned else (k, n)))
    memory = np.concatenate([x.reshape(-1).view(np.uint8) for x in (a, b)])
    arguments = [GLOBAL, 2 * k, GLOBAL + a.nbytes, 2 * b.shape[1], m, n, k]
    found = run_block(text, arguments, memory, block, 256, shape.shared_bytes)
    row_tiles = -(-m // rows)
    top, left = block % row_tiles * rows, block // row_tiles * columns
    want = a.astype("f8") @ (b.astype("f8").T if turned else b.astype("f8"))
    assert len(found) == rows * columns // 2
    inside = {at: values for at, values in found.items() if at[0] < m and at[1] < n}
    assert len(inside) == (min(m, top + rows) - top) * (min(n, left + columns) - left) // 2
    for (row, column), values in inside.items():
        np.testing.assert_allclose(values, want[row, column : column + 2], atol=1e-4)


@pytest.mark.parametrize("along_k", [False, True])
def test_rows_that_lie_side_by_side(along_k):
    """As gradients of weights are: A is read across, and turned on its way to registers."""
    m, n, k = 72, 80, 136
    function = (lambda a, w: a.T @ w.T) if along_k else (lambda a, w: a.T @ w)
    form = form_of(function, ((k, m), "bf16"), ((n, k) if along_k else (k, n), "bf16"))
    shape = form.shape(m, n, 1)._replace(rows=64, columns=64, stages=2)
    assert shape.is_turned and shape.along_k == along_k
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((k, m), (n, k) if along_k else (k, n)))
    text = mma_product_text("product", shape, finish_of(form.product, form._finish, SM_80), SM_80.triple)
    memory = np.concatenate([x.reshape(-1).view(np.uint8) for x in (a, b)])
    arguments = [GLOBAL, 2 * m, GLOBAL + a.nbytes, 2 * b.shape[1], m, n, k]
    want = a.astype("f8").T @ (b.astype("f8").T if along_k else b.astype("f8"))
    for block in (0, 3):
        found = run_block(text, arguments, memory, block, 256, shape.shared_bytes)
        inside = {at: values for at, values in found.items() if at[0] < m and at[1] < n}
        assert inside
        for (row, column), values in inside.items():
            np.testing.assert_allclose(values, want[row, column : column + 2], atol=1e-3)


def test_several_matrices():
    """Tiles of one matrix follow those of another; B may be one for all."""
    m, n, k = 70, 64, 72
    form = form_of(lambda a, w: a @ w, ((3, m, k), "bf16"), ((3, k, n), "bf16"))
    shape = form.shape(m, n, 1, 3)._replace(rows=64, columns=64, stages=2)
    assert shape.has_matrices
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((3, m, k), (3, k, n)))
    text = mma_product_text("product", shape, finish_of(form.product, form._finish, SM_80), SM_80.triple)
    memory = np.concatenate([x.reshape(-1).view(np.uint8) for x in (a, b)])
    arguments = [GLOBAL, 2 * k, GLOBAL + a.nbytes, 2 * n, 2 * m * k, 2 * k * n, m, n, k]
    for block in (0, 5):
        found = run_block(text, arguments, memory, block, 256, shape.shared_bytes)
        inside = {at: values for at, values in found.items() if at[0] < m}
        want = a[block // 2].astype("f8") @ b[block // 2].astype("f8")
        assert {row // 64 for row, _ in inside} == {block % 2}
        for (row, column), values in inside.items():
            np.testing.assert_allclose(values, want[row, column : column + 2], atol=1e-3)


@pytest.mark.parametrize("split", [1, 2])
def test_numbers_that_are_sums_of_parts(split):
    """Lines of A are [rests | rounded], those of B [rounded] or [rounded | rests]."""
    m, n, k = 20, 24, 128
    form = form_of(lambda a, w: a @ w.T, (("B", k), "bf16"), ((n, k), "bf16"))
    shape = MmaShape(64, 64, 1, 2, True, "bf16", split)
    text = mma_product_text("product", shape, finish_of(form.product, form._finish, SM_80), SM_80.triple)
    rng = np.random.default_rng(split)
    a, b = (rng.standard_normal((rows, 2, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    b = b[:, :split]
    memory = np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b)])
    arguments = [GLOBAL, 4 * k, GLOBAL + a.nbytes, 2 * split * k, m, n, k]
    found = run_block(text, arguments, memory, 0, 256, shape.shared_bytes)
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    want = wide_a.sum(1) @ wide_b[:, 0].T
    if split == 2:
        want += wide_a[:, 1] @ wide_b[:, 1].T
    for (row, column), values in found.items():
        if row < m and column < n:
            np.testing.assert_allclose(values, want[row, column : column + 2], atol=1e-3)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100", "sm_120"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_code(arch, dtype):
    form = form_of(layer, (("B", 512), dtype), ((1024, 512), dtype), ((1024,), dtype), machine=machine_named(arch))
    shape = form.shape(4096, 4096, 132)
    ptx = form.ptx(shape)
    assert f".target {arch}" in ptx and ".local" not in ptx and "ex2.approx" in ptx
    # Four steps of 16 for 4 x 8 (or 4 x 4) fragments of a warp.
    fragments = shape.height // 16 * shape.width // 8
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32") == 4 * fragments
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in ptx and "cp.async.cg.shared.global" in ptx
    assert "wgmma" not in ptx and "tensor.2d" not in ptx
    small = arch in ("sm_89", "sm_120")
    assert shape.stages >= 2 and shape.shared_bytes <= (99 if small else 163 if arch == "sm_80" else 227) << 10


def test_who_takes_it():
    types = [((64, 64), "bf16"), ((64, 64), "bf16")]
    names = {arch: form_of(lambda a, w: a @ w, *types, machine=machine_named(arch)) for arch in ("sm_75", "sm_90a")}
    assert names == {"sm_75": None, "sm_90a": None}
    for arch in ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120"):
        assert form_of(lambda a, w: a @ w, *types, machine=machine_named(arch)) is not None
    assert form_of(lambda a, w: a[:1] @ w, *types) is None
    with pytest.raises(InternalError, match="tiles of 32 x 64"):
        mma_product_text("product", MmaShape(32, 64, 1, 2, True, "bf16"), None, "")
