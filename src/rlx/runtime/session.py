"""`Session`: compiles programs for one device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx.backends.api import CompileOptions
from rlx.backends.compiling import specialized
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.runtime.compile_cache import compiled_program
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device import Device, available_devices, is_available

if TYPE_CHECKING:
    from rlx.compile.precision import Precision, PrecisionPolicy

_PLAIN = CompileOptions()


class Session:
    """`Session("cpu").compile(graph)` gives a `CompiledGraph`. Programs are compiled once: a session that meets one
    again, or another session, finds it in the cache of the process."""

    def __init__(
        self,
        device: str | Device = Device.Cpu,
        options: CompileOptions | None = None,
        *,
        precision: Precision | str | None = None,
        policy: PrecisionPolicy | str | None = None,
    ) -> None:
        self._device = Device.parse(device)
        if not is_available(self._device):
            usable = ", ".join(d.value for d in available_devices())
            raise BackendError(f"device {self._device.value!r} is not available here; usable: {usable}")
        options = options or _PLAIN
        if precision is not None:
            options = options.with_precision(precision)
        self._options = options if policy is None else options.with_policy(policy)
        # Refused here, not at the first compile.
        _ = self.policy

    @property
    def device(self) -> Device:
        return self._device

    @property
    def options(self) -> CompileOptions:
        return self._options

    @property
    def precision(self) -> Precision | str:
        return self._options.precision

    @property
    def policy(self) -> PrecisionPolicy:
        """Which precision each class of ops computes in."""
        return self._options.precision_policy

    def with_policy(self, policy: PrecisionPolicy | str) -> Session:
        """A session like this one with another policy."""
        return Session(self._device, self._options.with_policy(policy))

    def compile(self, program: Any) -> CompiledGraph:
        """Compile a graph, an HIR module or a GraphModule."""
        return self.compile_with(program, self._options)

    def compile_with(self, program: Any, options: CompileOptions) -> CompiledGraph:
        """Compile with options of this time; precision, policy and threads that they leave open are the session's."""
        own, chosen = self._options, options
        if chosen.policy is None and chosen.precision == _PLAIN.precision:
            chosen = replace(chosen, precision=own.precision, policy=own.policy)
        if chosen.threads is None:
            chosen = replace(chosen, threads=own.threads)
        graph = specialized(as_graph(program), chosen)
        return CompiledGraph(graph, compiled_program(graph, self._device.value, chosen), self._device.value)

    compile_graph = compile_hir = compile_module = compile
    compile_hir_with = compile_module_with = compile_with


def as_graph(program: Any) -> Graph:
    """The MIR graph of a program at any stage; HIR is lowered."""
    if hasattr(program, "lower_to_mir"):
        program = program.lower_to_mir()
    if hasattr(program, "into_graph"):
        program = program.into_graph()
    if not isinstance(program, Graph):
        raise BackendError(f"a Graph or a module is needed, got {type(program).__name__}")
    return program
