"""Targets are found by name, and those that are not here say why, each in its own way."""

import json
import subprocess
import sys

import pytest

import rlx
from rlx.compile import target as targets_module
from rlx.compile.target import Absence, Absent, DeviceInfo, Found, Selection, Target, require, select, targets
from rlx.errors import BackendError, ExportOnly, NoDevice, NotInstalled, UnknownDevice

KNOWN = [
    "ane",
    "cortex-m",
    "cpu",
    "cuda",
    "fpga",
    "metal",
    "mlx",
    "opencl",
    "reference",
    "rocm",
    "tpu",
    "wasm",
    "wgpu",
    "xla",
]


def test_every_target_is_a_folder():
    assert [t.name for t in targets()] == KNOWN
    for target in targets():
        assert target.about and isinstance(target.probe(), Found | Absent)


def test_names_are_not_shared():
    words = [w for t in targets() for w in (t.name, *t.aliases, *t.variants)]
    assert len(words) == len({*words})


@pytest.mark.parametrize(
    ("name", "target", "variant"),
    [
        ("nvidia", "cuda", ""),
        ("hip", "rocm", ""),
        ("gpu", "wgpu", ""),
        ("Vulkan", "wgpu", "vulkan"),
        ("dx12", "wgpu", "directx"),
        ("gl", "wgpu", "opengl"),
        ("webgpu", "wgpu", "webgpu"),
        ("cortex_m", "cortex-m", ""),
        ("cortexm", "cortex-m", ""),
        ("ref", "reference", ""),
        ("web", "wasm", ""),
    ],
)
def test_other_names(name, target, variant):
    assert select(name) == Selection(select(target).target, 0, variant)


def test_devices_by_number():
    assert select("cuda:1").index == 1 and select("cuda:1").name == "cuda:1" and select("cuda:0").name == "cuda"
    for wrong in ("cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:99999", "cuda:²"):
        with pytest.raises(UnknownDevice, match=r"^there is no device"):
            select(wrong)
    with pytest.raises(NoDevice, match=r"^cpu:3: this machine has 1 of these; use cpu:0"):
        rlx.Session("cpu:3")


def test_a_name_that_nobody_has_comes_with_a_suggestion():
    with pytest.raises(
        UnknownDevice, match=r"^there is no device 'cudda' \(did you mean 'cuda'\?\); known devices: ane,"
    ):
        rlx.Session("cudda")
    with pytest.raises(UnknownDevice, match=r"^there is no device 'abacus'; known"):
        rlx.jit(lambda x: x, device="abacus")(1.0)


@pytest.mark.parametrize(
    ("why", "error"),
    [
        (Absence.NotInstalled, NotInstalled),
        (Absence.NoDevice, NoDevice),
        (Absence.ExportOnly, ExportOnly),
    ],
)
def test_reasons_of_absence_are_errors_of_their_own(why, error):
    absent = Target(name="toy", about="", probe=lambda: Absent(why, "its parts are missing", "get them"))
    with pytest.raises(error, match=r"^toy: its parts are missing; get them$"):
        require(Selection(absent))


HERE = ("cpu", "reference", "cuda", "xla", "mlx", "wasm", "wgpu", "opencl")


@pytest.mark.parametrize("name", [n for n in KNOWN if n not in HERE])
def test_what_is_not_here_says_so_without_the_words_of_the_unknown(name):
    with pytest.raises(BackendError) as caught:
        rlx.Session(name)
    assert "there is no device" not in str(caught.value)
    assert not rlx.is_available(name)


def test_targets_of_other_packages(monkeypatch):
    class Entry:
        def __init__(self, name, value, load):
            self.name, self.value, self.load = name, value, load

    def broken():
        raise ImportError("a part is missing")

    toy = Target(name="toy", about="a toy", aliases=("plaything",), probe=lambda: Found((DeviceInfo(0, "toy"),)))
    entries = [
        Entry("toy", "toys:TARGET", lambda: toy),
        Entry("bad", "bads:TARGET", broken),
        Entry("none", "nones:TARGET", lambda: 3),
        Entry("cpu", "cpus:TARGET", lambda: Target(name="cpu", about="", probe=toy.probe)),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group == "rlx.backends" else [])
    targets_module._from_other_packages.cache_clear()
    try:
        with pytest.warns(UserWarning) as told:
            assert select("plaything").target is toy
        said = sorted(str(w.message) for w in told)
        assert "bads:TARGET cannot be loaded: a part is missing" in said[2]
        assert said[0] == "cpus:TARGET: there is a target 'cpu' already"
        assert said[1] == "nones:TARGET is no rlx Target but int"
        with pytest.raises(BackendError, match=r"toy compiles programs but does not run them"):
            rlx.jit(lambda x: x + 1, device="toy")(1.0)
    finally:
        targets_module._from_other_packages.cache_clear()


def test_the_core_loads_no_backend_to_find_one():
    code = (
        "import sys; from rlx.compile.target import select; select('cpu');"
        "print([m for m in sys.modules if m.startswith('rlx.backends.') and m.endswith('.target')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rlx.backends.cpu.target']"


def test_the_command_lists_all_with_their_reasons(capsys):
    from rlx.cli import main

    assert main(["devices", "--json"]) == 0
    rows = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    assert {*KNOWN} <= {*rows} and rows["cpu"]["available"] and rows["cpu"]["state"] == "ready"
    assert rows["fpga"]["state"] == "export only" and rows["fpga"]["detail"] and rows["fpga"]["remedy"]
    assert main(["doctor", "metal"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("metal: ") and "to do" in told and 'pip install "rlx[metal]"' in told
    assert main(["doctor", "abacus"]) == 1
    assert "there is no device 'abacus'" in capsys.readouterr().err
