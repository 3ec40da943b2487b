"""WebAssembly: programs for browsers, and in this process where wasmtime is installed."""

from __future__ import annotations

import importlib.util

from rlx.backends.api import Backend
from rlx.backends.export import Exporter
from rlx.backends.own_kernels import named_machine, own_generator
from rlx.compile.target import GENERATED, Absence, Absent, DeviceInfo, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.wasm.backend import WasmBackend

    return WasmBackend()


def _exporter() -> Exporter:
    from rlx.backends.wasm.exporter import WebExporter

    return WebExporter()


def _probe() -> Found | Absent:
    if importlib.util.find_spec("wasmtime") is None:
        reason = "running WebAssembly in this process needs wasmtime; exporting pages needs nothing"
        return Absent(Absence.NotInstalled, reason, "pip install 'rlx[web]'")
    return Found((DeviceInfo(0, "wasm32", "simd128 through wasmtime, one thread"),))


TARGET = Target(
    name="wasm",
    about="WebAssembly, for browsers",
    aliases=("webassembly", "web"),
    probe=_probe,
    machine=named_machine("wasm32"),
    generator=own_generator,
    backend=_backend,
    exporter=_exporter,
    claims=GENERATED,
    region_limits=None,
    extra="web",
)
