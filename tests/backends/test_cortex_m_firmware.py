"""Networks as firmware: raw bytes through the UART of QEMU's boards, the memory of nRF52840, images by ziglang."""

import importlib.util
import shutil
import subprocess

import numpy as np
import pytest

from integer_programs.float_networks import CONVNET_DIMS, RESIDUAL_DIMS, convnet, images, residual, traced
from rlx.backends.cortex_m import checking
from rlx.backends.cortex_m.project import CORES
from rlx.cortexm import export
from rlx.errors import NotInstalled, RlxError
from rlx.quantized import quantize

qemu = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"),
    reason="needs arm-none-eabi-gcc and qemu-system-arm (make tools)",
)


def network(function=residual, dims=RESIDUAL_DIMS):
    return quantize(traced(function, dims), {}, [{"x": images(40, dims)}])


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m4", "cortex-m7"])
@pytest.mark.parametrize("function, dims", [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS)])
def test_bytes_in_and_results_out(core, function, dims, tmp_path):
    """A label is one byte; other results are all their codes."""
    program, out = network(function, dims), tmp_path / "out"
    export(program, out, cpu=core, serial="yes")
    subprocess.run(["make", "-s", "IMAGE=firmware", "MAIN=serial_main.c"], cwd=out, check=True)
    codes = program.encode(images(5, dims, seed=8))
    wanted = program.run(codes)
    expected = wanted.astype(np.uint8).tobytes() if function is residual else wanted.tobytes()
    quiet = ["-display", "none", "-monitor", "none", "-serial", "stdio"]
    command = ["qemu-system-arm", "-M", CORES[core].machine, *quiet, "-kernel", "firmware.elf"]
    with subprocess.Popen(command, cwd=out, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            got, size = b"", len(expected) // len(codes)
            for frame in codes:
                process.stdin.write(frame.tobytes())
                process.stdin.flush()
                got += process.stdout.read(size)
        finally:
            process.kill()
    assert got == expected


def test_the_memory_of_a_board(tmp_path):
    program = network()
    for board, origin, length in (("nrf52840", "0x00001000", "972K"), ("nrf52840-swd", "0x00000000", "1024K")):
        export(program, tmp_path / board, board=board)
        link = (tmp_path / board / "link.ld").read_text()
        assert f"FLASH (rx) : ORIGIN = {origin}, LENGTH = {length}" in link
        assert "RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 256K" in link
        assert "16c0:27dd" in (tmp_path / board / "usb_strings.h").read_text()
        export(program, tmp_path / f"{board}-uart", board=board, serial="uart")
        assert "0x40002000u" in (tmp_path / f"{board}-uart" / "serial.h").read_text()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"board": "uno"}, "there is no board 'uno'; known: nrf52840, nrf52840-swd"),
        ({"board": "nrf52840", "cpu": "cortex-m7"}, "nrf52840 has a cortex-m4, got cpu=cortex-m7"),
        ({"board": "nrf52840", "check": "qemu"}, "QEMU has no nrf52840"),
        ({"serial": "yes", "cpu": "cortex-m55"}, r"the UART of mps3-an547 \(cortex-m55\) is not known"),
        ({"serial": "usb"}, "serial=usb needs a board with USB: board=nrf52840 or board=nrf52840-swd"),
        ({"serial": "can"}, "serial=uart, serial=usb or serial=no is known, got 'can'"),
    ],
)
def test_refusals_leave_nothing_behind(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(network(), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.targets
@pytest.mark.skipif(
    not importlib.util.find_spec("ziglang") or not shutil.which("qemu-system-arm"),
    reason="needs the Python package ziglang and qemu-system-arm (make tools)",
)
@pytest.mark.parametrize("core", CORES)
def test_without_arm_gcc_ziglang_builds(core, tmp_path, monkeypatch):
    found = shutil.which
    monkeypatch.setattr(checking.shutil, "which", lambda name: None if "arm-none" in name else found(name))
    done = export(network(convnet, CONVNET_DIMS), tmp_path / "out", cpu=core, check="qemu")
    assert "give the same 200 outputs on QEMU" in done.figures["checked"]


def test_tools_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checking.importlib.util, "find_spec", lambda name: None)
    for there, missing in (
        ("qemu", "arm-none-eabi-gcc is missing, and so is the Python package ziglang"),
        ("arm", "qemu"),
    ):
        monkeypatch.setattr(checking.shutil, "which", lambda name, there=there: name if there in name[:4] else None)
        with pytest.raises(NotInstalled, match=missing):
            export(network(), tmp_path / "out", check="qemu")
    assert list(tmp_path.iterdir()) == []
