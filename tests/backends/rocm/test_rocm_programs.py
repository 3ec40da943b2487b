"""Whole programs on an AMD GPU that is none: code objects are loaded as they are, and their kernels interpreted."""

from __future__ import annotations

import gc
import itertools

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from compile.family_programs import FAMILIES, forward, training, values_for
from conformance.suite import check_program
from rlx import nn, ops
from rlx.backends.rocm import compile_to_code_object
from rlx.backends.rocm.code_object import read_code_object
from rlx.backends.rocm.executable import RocmExecutable
from rlx.cli import main
from rlx.compile.compiler import CompilePipeline
from rlx.compile.target import Absent, select
from rlx.errors import BackendError, RlxError
from rlx.kernels.machines import AMD_CHIPS

rng = np.random.default_rng(0)
CHIPS = [chip.name for chip in AMD_CHIPS]


def normal(*dims):
    return rng.standard_normal(dims).astype("f4")


@pytest.mark.parametrize("hip", [pytest.param("gfx90a", marks=pytest.mark.targets), "gfx1100"], indirect=True)
def test_jit_runs_on_the_device(hip):
    f = rlx.jit(lambda x, w: nn.softmax(rnp.tanh(x @ w + 1.0)), device="rocm")
    x, w = normal(1, 5), normal(5, 4)
    y = np.tanh(x @ w + 1)
    np.testing.assert_allclose(f(x, w), np.exp(y) / np.exp(y).sum(-1, keepdims=True), rtol=1e-5)
    assert len(hip.launches) == 2 and hip.log.count("hipModuleLaunchKernel") == 2 and not hip.faults


def test_one_compile_serves_every_size_and_the_report_names_the_chip(hip):
    graph = rlx.Graph("layer")
    x, w = graph.input("x", ("B", 6), "f32"), graph.param("w", (6, 3), "f32")
    graph.set_outputs([rlx.relu(x @ w), ops.reduce_sum(x, (0,))])
    c = rlx.Session("rocm").compile(graph)
    assert "native gfx942" in str(c.report)
    weights = normal(6, 3)
    c.set_param("w", weights)
    for batch in (5, 0):
        x = normal(batch, 6)
        y, s = c.run(x=x)
        np.testing.assert_allclose(y, np.maximum(x @ weights, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(s, x.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hip", ["gfx1201"], indirect=True)
def test_products_of_halves_go_through_the_matrix_instructions(hip):
    f = rlx.jit(lambda x, w: rnp.maximum(x @ w, 0.0), device="rocm")
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((12, 16), (16, 8)))
    wanted = np.maximum(x.astype("f4") @ w.astype("f4"), 0)
    np.testing.assert_allclose(np.asarray(f(x, w), "f4"), wanted, rtol=1e-2, atol=1e-2)
    assert any("wave mma" in kernel.text for kernel in hip.kernels.values())


@pytest.mark.targets
def test_loops_and_branches_look_at_values(hip):
    def f(x):
        grown = rlx.while_loop(lambda v: rnp.sum(v) < 100.0, lambda v: v * 2.0, x)
        return rlx.cond(rnp.sum(x) > 0.0, lambda v: v + 1.0, lambda v: v - 1.0, grown)

    for x in (np.ones(3, "f4"), np.full(3, -50, "f4") * -1):
        np.testing.assert_allclose(rlx.jit(f, device="rocm")(x), rlx.jit(f, device="cpu")(x), rtol=1e-6)


def test_a_family_runs(hip):
    graph = forward(FAMILIES["quantized_mlp"], "f32")
    assert check_program(graph, values_for(FAMILIES["quantized_mlp"], graph), {"B": 2}, "rocm") == []
    assert len(hip.launches) >= 3 and not hip.faults


@pytest.mark.targets
@pytest.mark.parametrize(
    ("hip", "name"),
    [("gfx90a", "bert_block"), ("gfx1030", "scan_rnn"), ("gfx1201", "mixture_of_experts")],
    indirect=["hip"],
)
def test_more_families_run(hip, name):
    graph = forward(FAMILIES[name], "f32")
    assert check_program(graph, values_for(FAMILIES[name], graph), {"B": 2}, "rocm") == []
    assert hip.launches and not hip.faults


def test_runs_again_become_a_graph_and_leave_no_memory_behind(hip):
    def f(x):
        for _ in range(3):
            x = rnp.cumsum(x) * 0.5
        return x

    run, used = rlx.jit(f, device="rocm"), []
    for _ in range(5):
        x = normal(4)
        wanted = x
        for _ in range(3):
            wanted = np.cumsum(wanted) * np.float32(0.5)
        got = np.asarray(run(x))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        gc.collect()
        used.append(hip.used)
    assert len(set(used[2:])) == 1 and not hip.faults
    assert "hipGraphLaunch" in hip.log and hip.log.count("hipModuleLoadData") <= 3


def test_code_can_be_made_without_a_gpu():
    graph = rlx.Graph("plain")
    graph.set_outputs([rnp.tanh(graph.input("x", (64,)))])
    compiled = CompilePipeline.new("rocm").compile(graph)
    executable = RocmExecutable.of(compiled, arch="gfx1030")
    assert read_code_object(executable.code_object()).arch == "gfx1030"
    with pytest.raises(BackendError, match="rocm: this program was compiled for gfx1030 without a GPU"):
        executable.run({}, {})
    with pytest.raises(BackendError, match="no kernels are made for the architecture 'sm_90a'"):
        RocmExecutable.of(compiled, arch="sm_90a")
    with pytest.raises(BackendError, match="pass arch='gfx942'"):
        RocmExecutable.of(compiled)


def test_export_writes_a_code_object_for_each_chip(tmp_path):
    graph = rlx.Graph("plain")
    graph.set_outputs([rnp.tanh(graph.input("x", (64,)))])
    exporter = select("rocm").target.exporter()
    made = exporter.export(graph, {}, tmp_path / "out")
    assert [f.name for f in made.files] == ["kernels.md", *(f"{chip.name}.hsaco" for chip in AMD_CHIPS)]
    for file in made.files[1:]:
        assert read_code_object(file.read_bytes()).arch == file.stem
    assert "never executed" in made.files[0].read_text() and "## gfx1201" in made.files[0].read_text()
    with pytest.raises(BackendError, match="architecture 'z80'; use one of: gfx90a"):
        exporter.export(graph, {}, tmp_path / "other", {"arch": "z80"})
    with pytest.raises(RlxError, match="exists already"):
        exporter.export(graph, {}, tmp_path / "out", {"arch": "gfx942"})
    assert not (tmp_path / "other").exists()


def test_devices_and_doctor_say_what_was_never_done(hip, capsys, monkeypatch):
    for command in (["devices"], ["doctor", "rocm"]):
        assert main(command) == 0
        assert "never been executed on an AMD GPU" in capsys.readouterr().out
    monkeypatch.setattr("rlx.backends.rocm.blas.library", lambda: ("libhipblaslt.so", None))
    assert "plain products would be those of libhipblaslt.so" in select("rocm").target.probe().devices[0].detail


def test_without_a_device_they_say_it_too(monkeypatch):
    monkeypatch.setattr("rlx.backends.rocm.hip.PROCESS.started", None)
    monkeypatch.setattr("rlx.backends.rocm.hip._LIBRARIES", ("libnothing.so",))
    found = select("rocm").target.probe()
    assert isinstance(found, Absent) and "never been executed on an AMD GPU" in found.reason


# Each family on one of the chips; on all of them with more time.
EACH = list(zip(FAMILIES, itertools.cycle(CHIPS)))
ALL = [(name, chip) for name in FAMILIES for chip in CHIPS if (name, chip) not in EACH]


@pytest.mark.parametrize(
    ("name", "chip"),
    [pytest.param(*case, marks=pytest.mark.targets if case in EACH else pytest.mark.long) for case in [*EACH, *ALL]],
)
def test_families_assemble(name, chip):
    found = read_code_object(compile_to_code_object(forward(FAMILIES[name], "bf16"), chip))
    assert found.kernels and all(k.spilled == 0 for k in found.kernels.values())
    assert all(k.lds_bytes <= 64 << 10 and k.occupancy(chip) >= 1 for k in found.kernels.values())


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "name", [name if name == "scan_rnn" else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
@pytest.mark.targets
def test_training_assembles(name, chip):
    """Losses with their gradients."""
    found = read_code_object(compile_to_code_object(training(FAMILIES[name], "bf16"), chip))
    assert found.kernels and all(k.spilled == 0 for k in found.kernels.values())
    assert all(k.lds_bytes <= 64 << 10 and k.occupancy(chip) >= 1 for k in found.kernels.values())
