"""Backends of another package: found by their entry points, given models to run, with a custom op of their own.

The package lies in `toy_backend`, with the metadata that an installer would write beside it; programs that use it run
in processes that have this folder on their path and nothing else of it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOYS = Path(__file__).parent / "toy_backend"
TESTS = Path(__file__).parent.parent

PROGRAMS = """
import contextlib, io, json, sys
import numpy as np
import rlx
import rlx.numpy as rnp
from compile.family_programs import FAMILIES, forward, values_for
from rlx.cli import main
from rlx.ir.interpret import interpret

told = {}
for device, name in (("abacus", "llama_block"), ("slate", "quantized_mlp")):
    family = FAMILIES[name]
    graph = forward(family, "f32")
    values = values_for(family, graph)
    compiled = rlx.Session(device).compile(graph.copy())
    compiled.set_params({k: v for k, v in values.items() if k in family.weights})
    found = compiled.run({k: v for k, v in values.items() if k not in family.weights})
    wanted = interpret(graph, values)
    errors = [float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True)]
    told[device] = [max(errors), sorted({row.where for row in compiled.report.kernels})]
told["modules"] = [m for m in sys.modules if m.startswith("toys")]

x = np.float32([[3, 1, 2]])
told["softmax"] = np.asarray(rlx.jit(lambda x: rlx.nn.softmax(x), device="abacus")(x)).tolist()
try:
    rlx.jit(lambda x: rnp.sort(x), device="abacus")(x)
except rlx.RlxError as problem:
    told["sort"] = str(problem)

with contextlib.redirect_stdout(io.StringIO()) as listed:
    main(["devices", "--json"])
told["devices"] = json.loads(listed.getvalue())
print(json.dumps(told))
"""

CUSTOM_OP = """
import json
import numpy as np
import rlx
import toys.leaky_sum
from rlx.backends.cuda import compile_to_ptx
from scipy.signal import lfilter

def program(dtype):
    graph = rlx.Graph("leaky")
    x = graph.input("x", ("B", 7), dtype)
    graph.set_outputs([graph.custom_op("toys.leaky_sum", np.float32(0.75).tobytes(), [x])])
    return graph

told = {}
for dtype, like in (("f32", np.float32), ("f64", np.float64)):
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(like)
    wanted = lfilter([1.0], [1.0, -0.75], x, axis=1)
    for device in ("reference", "cpu", "abacus", "slate"):
        try:
            compiled = rlx.Session(device).compile(program(dtype))
            error = float(np.abs(np.asarray(compiled.run(x=x)[0]) - wanted).max())
            told[f"{device} {dtype}"] = [error, [row.kind for row in compiled.report.kernels]]
        except rlx.RlxError as problem:
            told[f"{device} {dtype}"] = str(problem)

from toys.slate import SlateBackend
steps = SlateBackend().compile(program("f32"), rlx.CompileOptions()).programs.main.steps
told["threads"] = [step.code.kernel.thread_count for step in steps]
told["ptx"] = compile_to_ptx(program("f32"))

class Forgetful(toys.leaky_sum.LeakySum):
    def eval(self, arrays, attrs):
        return arrays[0]

import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it replaces the other, and says so
    rlx.register_op(Forgetful())
compiled = rlx.Session("cpu").compile(program("f32"))
x = np.ones((5, 7), "f4")
told["replaced"] = [np.array_equal(compiled.run(x=x)[0], x), [row.kind for row in compiled.report.kernels]]
print(json.dumps(told))
"""


def python(code):
    path = os.pathsep.join([str(TOYS), str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(*names):
    return sum(len((TOYS / "toys" / name).read_text().splitlines()) for name in names)


def test_a_backend_takes_a_hundred_lines():
    assert lines("abacus.py", "leaky_sum.py") <= 100  # with a custom op and its kernel
    assert lines("slate.py") <= 100


@pytest.fixture(scope="module")
def programs():
    return json.loads(python(PROGRAMS))


@pytest.mark.parametrize("device", ["abacus", "slate"])
def test_it_runs_a_model_family(programs, device):
    """Nobody imports the package: its entry point does."""
    error, places = programs[device]
    assert error < 1e-5
    assert places == [device]
    assert f"toys.{device}" in programs["modules"] and "toys.leaky_sum" not in programs["modules"]


def test_it_is_listed_with_the_devices(programs):
    rows = {row["device"]: row for row in programs["devices"]}
    assert rows["abacus"]["state"] == "ready" and rows["slate"]["state"] == "ready"


def test_what_it_does_not_claim_is_decomposed_or_refused_by_name(programs):
    powers = np.exp([[3.0, 1.0, 2.0]])
    np.testing.assert_allclose(programs["softmax"], powers / powers.sum(), rtol=1e-6)
    assert programs["sort"].startswith("abacus cannot run") and "Sort" in programs["sort"]


@pytest.fixture(scope="module")
def custom_op():
    return json.loads(python(CUSTOM_OP))


@pytest.mark.parametrize("device", ["reference", "cpu", "abacus", "slate"])
def test_its_custom_op_runs_everywhere(custom_op, device):
    """Held to SciPy's recursive filter."""
    error, kinds = custom_op[f"{device} f32"]
    assert error < 1e-5
    assert device not in ("cpu", "slate") or kinds == ["leaky_sum"]


def test_a_type_that_its_kernel_turns_down_runs_on_the_host_or_is_refused(custom_op):
    for device in ("reference", "cpu", "abacus"):
        assert custom_op[f"{device} f64"][0] < 1e-6
    assert custom_op["cpu f64"][1] == ["call"]
    assert custom_op["slate f64"] == "slate has no kernel for custom; use the device cpu"


def test_schedules_of_the_target_are_taken(custom_op):
    assert custom_op["threads"] == [4]


def test_a_replaced_op_does_not_keep_the_kernel_of_the_old_one(custom_op):
    assert custom_op["replaced"] == [True, ["call"]]


def test_its_custom_op_prints_as_ptx(custom_op):
    ptx = custom_op["ptx"]
    assert ".visible .entry leaky_sum0" in ptx
    # 0.75 as the bits of an f32, in a multiply-add or a product.
    assert "0f3F400000" in ptx


def test_its_custom_op_prints_as_c():
    if importlib.util.find_spec("rlx.kernels.emit.c_emit") is None:
        pytest.skip("there is no C emitter in this tree")
    code = (
        "import numpy as np, rlx, toys.leaky_sum\n"
        "from rlx.compile.pipeline import lower_to_lir\n"
        "from rlx.kernels.emit.c_emit import c_source\n"
        "from rlx.kernels.from_lir import generator, make_kernel\n"
        "from rlx.kernels.machines import host\n"
        "graph = rlx.Graph('leaky')\n"
        "x = graph.input('x', ('B', 7))\n"
        "graph.set_outputs([graph.custom_op('toys.leaky_sum', np.float32(0.75).tobytes(), [x])])\n"
        "lir = lower_to_lir(graph, generator(host()))\n"
        "kernel = make_kernel('leaky_sum', lir.as_graph(), lir.kernels[0], host()).kernel\n"
        "print(c_source([kernel], host()))"
    )
    assert "void rlx_leaky_sum(" in python(code)
