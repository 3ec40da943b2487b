"""Programs as WebAssembly in this process: what they compute, and everything around a run."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.api import CompileOptions
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.params import CpuParams
from rlx.backends.program.program import build_program
from rlx.backends.wasm import sandbox
from rlx.backends.wasm.code import RELAXED, codes_of, link_codes, wasm_loading
from rlx.backends.wasm.runner import Runner
from rlx.compile.target import Absent, select
from rlx.errors import BackendError, BindingError, NotInstalled
from rlx.kernels.machines import WASM


def test_without_wasmtime_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    found = select("wasm").target.probe()
    assert isinstance(found, Absent) and "wasmtime" in found.reason and "rlx[web]" in found.remedy
    with pytest.raises(
        NotInstalled, match=r"wasm: running WebAssembly in this process needs wasmtime; .*; pip install"
    ):
        rlx.Session("wasm")


def mlp(x, w1, b1, w2):
    return rnp.tanh(x @ w1 + b1) @ w2


def mlp_values(rng, batch=3):
    shapes = {"x": (batch, 20), "w1": (20, 33), "b1": (33,), "w2": (33, 7)}
    return [rng.standard_normal(s).astype(np.float32) for s in shapes.values()]


@pytest.mark.targets
def test_a_function_runs_and_gives_gradients():
    rng = np.random.default_rng(0)
    values = mlp_values(rng)
    got = rlx.jit(mlp, device="wasm")(*values)
    wanted = np.tanh(values[0].astype(np.float64) @ values[1] + values[2]) @ values[3]
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-5)
    gradient = rlx.grad(lambda *v: rnp.sum(mlp(*v) ** 2), argnums=1)
    on_wasm, on_cpu = (np.asarray(rlx.jit(gradient, device=d)(*values)) for d in ("wasm", "cpu"))
    np.testing.assert_allclose(on_wasm, on_cpu, rtol=1e-4, atol=1e-4)


def symbolic_mlp():
    graph = rlx.Graph("mlp")
    x, w = graph.input("x", ("B", 4), "f32"), graph.param("w", (4, 2), "f32")
    graph.set_outputs([rlx.ops.relu(rlx.ops.matmul(x, w))])
    return graph


@pytest.mark.targets
def test_weights_and_sizes_may_change_between_runs():
    compiled, rng = rlx.Session("wasm").compile(symbolic_mlp()), np.random.default_rng(1)
    for batch in (1, 5, 0, 3):
        weight = rng.standard_normal((4, 2)).astype(np.float32)
        compiled.set_params({"w": weight})
        for _ in range(2):
            x = rng.standard_normal((batch, 4)).astype(np.float32)
            (got,) = compiled.run({"x": x})
            np.testing.assert_allclose(np.asarray(got), np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.targets
def test_the_module_with_fused_products_computes_the_same():
    """Both modules of a page, by the opcode that one of them has."""
    graph, rng = symbolic_mlp(), np.random.default_rng(5)
    compiled = compile_with_options(graph, "wasm", CompileOptions())
    weight, x = rng.standard_normal((4, 2)).astype(np.float32), rng.standard_normal((7, 4)).astype(np.float32)
    multiply_add = b"\xfd\x85\x02"
    for machine, is_there in ((WASM, False), (RELAXED, True)):
        program = build_program(compiled.lir, loading=wasm_loading(machine))
        assert (multiply_add in link_codes(codes_of(program)).module) is is_there
        values = {leaf.name: weight for leaf in program.params}
        (got,) = Runner(program).run({"x": x}, CpuParams(program, values))
        np.testing.assert_allclose(got, np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.targets
def test_threads_share_one_program():
    compiled, rng = rlx.Session("wasm").compile(symbolic_mlp()), np.random.default_rng(2)
    weight = rng.standard_normal((4, 2)).astype(np.float32)
    compiled.set_params({"w": weight})
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for _ in range(10):
            x = own.standard_normal((int(own.integers(1, 9)), 4)).astype(np.float32)
            if not np.allclose(np.asarray(compiled.run({"x": x})[0]), np.maximum(x @ weight, 0), atol=1e-5):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.targets
def test_what_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    compiled = rlx.Session("wasm").compile(symbolic_mlp())
    compiled.set_params({"w": np.zeros((4, 2), np.float32)})
    monkeypatch.setattr(sandbox, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(sandbox.Sandbox, "__init__", lambda *given: pytest.fail("something was run"))
    words = r"^@mlp: WebAssembly has 1048576 bytes of memory, and \d+ are needed \(64 of weights, 1600000 of inputs, "
    with pytest.raises(BackendError, match=words):
        compiled.run({"x": np.zeros((100_000, 4), np.float32)})


@pytest.mark.targets
def test_an_input_that_is_missing_or_of_another_type_is_named():
    compiled = rlx.Session("wasm").compile(symbolic_mlp())
    compiled.set_params({"w": np.zeros((4, 2), np.float32)})
    with pytest.raises(BindingError, match="x"):
        compiled.run({})
    with pytest.raises(BindingError, match="x"):
        compiled.run({"x": np.zeros((2, 5), np.float32)})


@pytest.mark.targets
def test_the_caller_keeps_what_is_stored_over():
    graph = rlx.Graph("counter")
    state = graph.input("state", (3,), "f32")
    after = rlx.ops.add(state, 1.0)
    graph.set_outputs([after])
    graph.alias(after, "state")
    given = np.zeros(3, np.float32)
    (got,) = rlx.Session("wasm").compile(graph).run({"state": given})
    assert np.asarray(got).tolist() == [1.0, 1.0, 1.0] and given.tolist() in ([0.0] * 3, [1.0] * 3)


@pytest.mark.targets
def test_the_report_says_what_runs_where_and_how_long():
    graph = rlx.Graph("mixed")
    x = graph.input("x", (4,), "f32")
    graph.set_outputs([rlx.ops.bitcast(rlx.ops.exp(x), "u8")])
    compiled = rlx.Session("wasm").compile(graph)
    text = str(compiled.report)
    assert "native wasm32" in text and "host (no native kernel)" in text
    times = compiled.profile({"x": np.zeros(4, np.float32)}, runs=1)
    assert "exp" in str(times)


@pytest.mark.targets
def test_a_language_model_writes_what_it_writes_on_the_cpu():
    from importlib import resources

    path = resources.files("rlx.models") / "data" / "tiny.gguf"
    answers = [rlx.load(str(path), device=d).complete(["O Romeo,"], 32)[0].token_ids for d in ("wasm", "cpu")]
    assert answers[0] == answers[1] and len(answers[0]) == 32
