"""Generators are found by whoever compiles, whatever has been imported before."""

import subprocess
import sys

import pytest

from rlx.compile.generators import generator_for

COMPILE_ALONE = """
from rlx.compile.generators import generator_for
print([generator_for(t) is not None for t in ("cpu", "cuda", "mlx")])
"""
PIPELINE_ALONE = """
import rlx.ops
from rlx.compile.compiler import CompilePipeline
from rlx.ir.graph import Graph
g = Graph("g")
x, w = g.input("x", ("B", 4)), g.param("w", (4, 4))
g.set_outputs([x @ w + x])
print([k.kind for k in CompilePipeline("cpu").compile(g).lir.kernels])
"""


@pytest.mark.parametrize(
    ("program", "answer"), [(COMPILE_ALONE, "[True, True, False]"), (PIPELINE_ALONE, "['matmul']")]
)
def test_a_process_that_imports_the_compiler_alone_has_them(program, answer):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer


def test_targets_without_one():
    assert generator_for("mlx") is None
