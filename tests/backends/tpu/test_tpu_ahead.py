"""TPUs: what is missing here is said, and programs are compiled for them where libtpu is (`make tools-full`)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlx
from rlx.backends.tpu import compile_ahead, plugin
from rlx.backends.tpu.policy import tpu_options
from rlx.backends.xla.adapter import Installed, Unusable
from rlx.cli import main
from rlx.compile.target import Absence, Absent, Found, select
from rlx.errors import BindingError, NotInstalled, RlxError

MISSING = plugin.missing()
with_libtpu = [
    pytest.mark.targets_full,
    pytest.mark.skipif(MISSING is not None, reason=f"{getattr(MISSING, 'reason', '')}; make tools-full installs it"),
]


def dense():
    g = rlx.Graph("dense")
    x = g.input("x", ("B", 256), "f32")
    g.set_outputs([rlx.nn.softmax(rlx.gelu(x @ g.param("w", (256, 128), "f32")))])
    return g


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of which tests say what it has: a function of PCI devices and of whether libtpu is there."""
    monkeypatch.setattr(plugin, "installed", lambda: Installed("0.10.2"))

    def make(devices, has_library):
        for number, (vendor, device) in enumerate(devices):
            folder = tmp_path / "pci" / str(number)
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "device").write_text(f"{device}\n")
        library = tmp_path / "libtpu.so"
        if has_library:
            library.touch()
        monkeypatch.setenv("LIBTPU_PATH", str(library))
        real = plugin.chips
        monkeypatch.setattr(plugin, "chips", lambda: real(tmp_path / "pci"))
        return select("tpu").target.probe()

    return make


def test_a_machine_with_tpus(machine):
    found = machine([("0x1ae0", "0x0063"), ("0x1ae0", "0x0042"), ("0x8086", "0x0063"), ("0x1ae0", "0x0063")], True)
    assert isinstance(found, Found) and [(d.index, d.name) for d in found.devices] == [(0, "TPU v5e"), (1, "TPU v5e")]


def test_a_machine_with_the_compiler_alone(machine):
    found = machine([("0x1ae0", "0x0042")], True)
    assert isinstance(found, Absent) and found.why is Absence.NoDevice and "rlx export tpu" in found.remedy


def test_a_machine_without_the_compiler(machine):
    found = machine([("0x1ae0", "0x0063")], False)
    assert isinstance(found, Absent) and found.why is Absence.NotInstalled
    assert found.reason.endswith("libtpu.so, which is no file") and "pip install libtpu" in found.remedy
    with pytest.raises(NotInstalled, match="pip install libtpu"):
        compile_ahead(dense(), sizes={"B": 8})


def test_without_jaxlib_that_is_missing_first(monkeypatch):
    monkeypatch.setattr(plugin, "installed", lambda: Unusable("no jaxlib", "get it"))
    assert plugin.missing() == Unusable("no jaxlib", "get it")


def test_products_are_bf16_unless_somebody_says_otherwise():
    assert tpu_options(None).precision_policy.name == "AutoMixedBf16"
    for options in (rlx.CompileOptions(policy="AlwaysF32"), rlx.CompileOptions(precision="f16")):
        assert tpu_options(options) is options


def test_a_topology_that_does_not_exist():
    with pytest.raises(RlxError, match="there is no topology 'v99:1'; write chips and their arrangement"):
        compile_ahead(dense(), "v99:1")


@pytest.fixture(scope="module")
def made():
    return compile_ahead(dense(), "v5e:2x4", sizes={"B": 64})


class TestWithLibtpu:
    pytestmark = with_libtpu

    def test_memory_and_layouts_are_reported(self, made):
        memory = made.program.memory
        assert memory["arguments"] >= 64 * 256 * 4 + 256 * 128 * 4 and memory["results"] >= 64 * 128 * 4
        assert made.fits and made.chip_bytes == 16 << 30
        assert [(name, kind) for name, kind, _ in made.arguments] == [("x", "f32[64,256]"), ("w", "f32[256,128]")]
        assert all("T(8,128)" in layout for _, _, layout in made.arguments)
        assert "@dense for one chip of v5e:2x4 (TPU v5 lite)" in str(made) and "TPU" in made.program.device_kind

    def test_products_are_bf16(self, made):
        assert "bf16[64,256]" in made.program.optimized_text()
        exact = compile_ahead(dense(), options=rlx.CompileOptions(policy="AlwaysF32"), sizes={"B": 64})
        assert "xbf16>" not in exact.stablehlo and "xbf16>" in made.stablehlo

    @pytest.mark.parametrize("topology", ["v6e:2x4"])
    def test_other_chips(self, topology):
        assert compile_ahead(dense(), topology, sizes={"B": 8}).fits

    def test_a_training_step_with_loops(self):
        def step(w, x):
            def loss(w):
                state, _ = rlx.scan(lambda c, row: (rlx.tanh(c @ w + row), None), x[0], x)
                return (state * state).mean()

            return w - 0.1 * rlx.grad(loss)(w)

        g = rlx.trace(step, np.ones((128, 128), "f4"), np.ones((6, 8, 128), "f4"))
        assert compile_ahead(g.graph).fits

    def test_sizes_that_are_not_known(self):
        with pytest.raises(BindingError, match=r"tpu: @dense is compiled for sizes; give B"):
            compile_ahead(dense())

    def test_programs_are_shown(self, tmp_path):
        with rlx.knobs(tpu_hlo_dump=str(tmp_path / "dump")):
            compile_ahead(dense(), sizes={"B": 8})
        assert sorted(f.name for f in (tmp_path / "dump").iterdir()) == ["dense.0.hlo", "dense.0.mlir"]

    def test_files(self, tmp_path, capsys):
        g = rlx.Graph("small")
        g.set_outputs([rlx.relu(g.input("x", ("B", 128), "f32"))])
        (tmp_path / "small.rlx").write_text(rlx.show(g))
        out = tmp_path / "out"
        command = ["export", "tpu", str(tmp_path / "small.rlx"), str(out), "--topology", "v5e:2x4"]
        assert main([*command, "--option", "sizes=B=16"]) == 0
        names = ["program.hlo", "program.pjrt", "program.stablehlo.mlir", "report.json"]
        assert sorted(f.name for f in out.iterdir()) == names and "TPU v5 lite" in capsys.readouterr().out
        assert json.loads((out / "report.json").read_text())["topology"] == "v5e:2x4"
        assert main([*command, "--option", "sizes=B=16"]) == 1
