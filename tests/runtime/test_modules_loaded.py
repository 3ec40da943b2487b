"""What a first jit loads: neither passes of other targets, nor kernels, gradients and reports that nobody asked for."""

import importlib
import json
import os
import subprocess
import sys

from rlx.kernels.cpu import ops as op_kernels
from rlx.kernels.cpu.ops import FAMILIES

PROGRAM = """
import json, sys
import numpy as np
import rlx
before = set(sys.modules)
f = rlx.jit(lambda x, w: x @ w * 0.3)
f(np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))
print(json.dumps(sorted(set(sys.modules) - before)))
"""
TEXT = """mir @f(%x: f32[2,2]) {
  %0: f32[2,2] = pinv(%x)
  return %0
}
"""
# With the program on disk. Most of what is left are the ops that programs are usually made of, and the runtime.
MOST = 250
UNUSED = ("rlx.autodiff.", "rlx.compile.pipeline", "rlx.kernels.cpu", "rlx.kernels.gpu", "rlx.models", "rlx.hir")
UNUSED += (
    "rlx.ops.splat",
    "rlx.ops.lowered",
    "rlx.backends.export",
    "llvmlite",
    "ml_dtypes",
    "numpy.ma",
    "statistics",
    "shutil",
    "difflib",
)


def loaded(cache):
    env = {**os.environ, "RLX_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout)


def test_a_first_jit_loads_what_it_needs(tmp_path):
    loaded(tmp_path)
    modules = loaded(tmp_path)
    assert [m for m in modules if m.startswith(UNUSED)] == []
    assert len(modules) <= MOST, modules


def test_ops_that_were_not_loaded_are_found():
    """By attribute, in text, in the list of all, and as what another op may not be called."""
    looks = {
        "rlx.gaussian_splat_render": "rlx.ops.splat.render",
        "rlx.ops.Svd": "rlx.ops.linalg.factorizations",
        f"rlx.parse({TEXT!r})": "rlx.ops.linalg.matrix_functions",
        "dir(rlx.ops)": "rlx.ops.nn.ssm",
        "rlx.HirModule('m').linear": "rlx.hir.blocks",
        "len(rlx.ir.op.OP_CLASSES)": "rlx.ops.lowered.sort_order",
    }
    for look, module in looks.items():
        code = f"assert {module!r} not in sys.modules; {look}; print({module!r} in sys.modules)"
        code = f"import sys, rlx; rlx.Graph; {code}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
        assert (done.returncode, done.stdout.strip()) == (0, "True"), (look, done.stderr)


def test_an_op_of_a_user_cannot_take_the_name_of_one_that_was_not_loaded():
    code = """
from __future__ import annotations
import rlx
from rlx.ir.op import Op, op
rlx.Graph
try:
    @op("svd")
    class Mine(Op):
        "Another."
        primitive = True
        infer = eval = samples = jvp = vjp = batch = lambda self: None
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert "two ops are called 'svd'" in done.stdout


def test_families_name_all_ops_that_they_have_kernels_for():
    for family in FAMILIES:
        importlib.import_module(f"rlx.kernels.cpu.ops.{family}")
    found = {}
    for op, kernel in op_kernels._kernels.items():
        package, _, family = kernel.build.__module__.rpartition(".")
        if package == "rlx.kernels.cpu.ops":
            found.setdefault(family, set()).add(op.__name__)
    assert found == {family: set(names) for family, names in FAMILIES.items()}
