"""Products of a matrix in compressed rows with a dense one, a row for each warp of a GPU, in the interpreter."""

import numpy as np
import pytest
import scipy.sparse

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.sparse import kernels_products
from rlx.sparse.ops_products import CsrMatMul

SM_90A = machine_named("sm_90a")


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(5, 70, "f32"), (3, 3, "f64"), (2, 33, "c64")])
def test_rows(rows, columns, dtype, monkeypatch):
    monkeypatch.setattr(kernels_products, "WARPS", 2)
    rng = np.random.default_rng(rows)
    kind = rlx.DType.of(dtype).numpy
    # A row without entries, and one with more than are read at once.
    a = scipy.sparse.random(rows, 11, 0.4, "lil", rng=rng)
    a[0] = 0
    a[1] = 1 + np.arange(11)
    a = a.tocsr().astype(kind)
    x = rng.standard_normal((11, columns)).astype(kind)
    graph = rlx.Graph("product")
    given = {"v": a.data, "i": a.indices.astype(np.int32), "p": a.indptr.astype(np.int32), "x": x}
    inputs = [graph.input(n, v.shape, str(rlx.DType.of(v.dtype))) for n, v in given.items()]
    graph.set_outputs([graph.append_node(CsrMatMul(), inputs)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    kernel = make_kernel("product", lir.as_graph(), lir.kernels[0], SM_90A).kernel
    assert kernel.thread_count == 64
    verify(kernel)
    y = np.full((rows, columns), np.nan, kind)
    flat = [v.reshape(-1) for v in (*given.values(), y)]
    real = [v.view(v.real.dtype) if v.dtype.kind == "c" else v for v in flat]
    interpret(kernel, dict(zip((p.name for p in kernel.params), real, strict=True)))
    np.testing.assert_allclose(y, a @ x, rtol=1e-5, atol=1e-5)
