"""Rows of tables in GGUF panels by threads of a GPU, in the interpreter, for all types that have panels."""

import sys
from pathlib import Path

import numpy as np
import pytest
from test_gpu_radix import made

from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.gpu import gather_codes
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.quantized_panels import PanelGather
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.schemes import QuantScheme

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from random_panels import random_panels


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_rows(name, monkeypatch):
    """Ids from outside and from the end, and a last block that is not full."""
    monkeypatch.setattr(gather_codes, "THREADS", 20)
    k, n = 256, 21
    op = PanelGather(QuantScheme.of_ggml(name), k, n)
    panels = random_panels(op.layout(k), n, k, 3)
    ids = np.array([[0, n - 1, 5], [-1, -400, 400]], np.int32)
    kernel = made(op, panels, ids, kinds=("lookup",))
    verify(kernel)
    want = op.eval(panels, ids)
    found = np.full(want.size, 777, np.float32)
    names = [p.name for p in kernel.params]
    interpret(kernel, dict(zip(names, (panels.reshape(-1), ids.reshape(-1), found), strict=True)), seed=1)
    np.testing.assert_array_equal(found.reshape(want.shape), want)


def test_threads_of_a_row_lie_side_by_side():
    op = PanelGather(QuantScheme.GgufQ4K, 512, 40)
    panels = random_panels(op.layout(512), 40, 512, 3)
    kernel = made(op, panels, np.zeros(7, np.int64), kinds=("lookup",))
    ptx = compile_assembly(kernel, machine_named("sm_90a"))
    assert ptx.count("st.global") == 8 and ".local" not in ptx and ".maxntid 128" in ptx
