"""The backends that tests run on: our own in `make test`, those that need tools in `make test-targets`."""

from __future__ import annotations

import pytest

from conformance.suite import available
from rlx.backends.xla.adapter import device_count
from rlx.compile.target import Absent, select
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import panel_width
from rlx.kernels.machines import host

# Ops of the compiler whose samples have weights as another machine reads them; programs get them as theirs does.
OTHER_LAYOUTS = {name: {"Int8MatMul", "Int16MatMul"} for name in ("wasm", "wgpu", "opencl", "metal")}
if panel_width(host(), DType.I32, 1) != 16:
    OTHER_LAYOUTS["cpu"] = {"Int8MatMul", "Int16MatMul"}
# Ops whose samples lie on so many devices of XLA; tests/many_devices runs them in a process that has them.
ON_DEVICES = {"ShardMap": 4, "ShardingConstraint": 4}
# They need tools that users need not have, and compile in seconds, not milliseconds.
BY_OTHERS = ("xla", "mlx", "wasm", "wgpu", "opencl")
OWN = [backend for backend in available() if backend not in BY_OTHERS]


def each_backend(with_tools):
    """All backends that are here, those that need tools under a marker; without its tools a backend says what it
    needs."""
    marked = []
    for name in BY_OTHERS:
        found = select(name).target.probe()
        skips = [pytest.mark.skip(reason=f"{found.reason}; {found.remedy}")] if isinstance(found, Absent) else []
        marked.append(pytest.param(name, marks=[with_tools, *skips]))
    return [*OWN, *marked]


def skip_other_samples(backend, name):
    """Skip ops whose samples mean nothing to a backend as it is here."""
    if name in OTHER_LAYOUTS.get(backend, ()):
        pytest.skip("its samples have weights as kernels with vectors of 16 read them")
    if backend == "xla" and device_count() < ON_DEVICES.get(name, 1):
        pytest.skip(f"its samples lie on {ON_DEVICES[name]} devices; tests/many_devices runs them there")
