"""`Session`: compiles programs for one device."""

from __future__ import annotations

from typing import Any

from rlx.backends.api import CompileOptions, backend_for
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device import Device, available_devices, is_available


class Session:
    """`Session("cpu").compile(graph)` gives a `CompiledGraph`."""

    def __init__(self, device: str | Device = Device.Cpu, options: CompileOptions | None = None) -> None:
        self._device = Device.parse(device)
        if not is_available(self._device):
            usable = ", ".join(d.value for d in available_devices())
            raise BackendError(f"device {self._device.value!r} is not available here; usable: {usable}")
        self._options = options or CompileOptions()

    @property
    def device(self) -> Device:
        return self._device

    def compile(self, program: Any) -> CompiledGraph:
        """Compile a graph, an HIR module or a GraphModule."""
        graph = as_graph(program)
        executable = backend_for(self._device.value).compile(graph, self._options)
        return CompiledGraph(graph, executable, self._device.value)

    compile_graph = compile_hir = compile_module = compile


def as_graph(program: Any) -> Graph:
    """The MIR graph of a program at any stage; HIR is lowered."""
    if hasattr(program, "lower_to_mir"):
        program = program.lower_to_mir()
    if hasattr(program, "into_graph"):
        program = program.into_graph()
    if not isinstance(program, Graph):
        raise BackendError(f"a Graph or a module is needed, got {type(program).__name__}")
    return program
