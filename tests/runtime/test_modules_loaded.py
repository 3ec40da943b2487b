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
# With code on disk. Most of what is left are the ops, all of which are known before a program is built.
MOST = 372
UNUSED = ("rlx.autodiff.", "rlx.compile.claims.fusion.fuse_", "rlx.kernels.cpu.ops.", "rlx.kernels.gpu", "rlx.models")
UNUSED += ("rlx.compile.report.drawing", "rlx.kernels.cpu.matmul.quant", "llvmlite", "statistics", "shutil", "difflib")


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


def test_families_name_all_ops_that_they_have_kernels_for():
    for family in FAMILIES:
        importlib.import_module(f"rlx.kernels.cpu.ops.{family}")
    found = {}
    for op, kernel in op_kernels._kernels.items():
        package, _, family = kernel.build.__module__.rpartition(".")
        if package == "rlx.kernels.cpu.ops":
            found.setdefault(family, set()).add(op.__name__)
    assert found == {family: set(names) for family, names in FAMILIES.items()}
