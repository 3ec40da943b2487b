"""`Session`: compiles programs for one device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx.backends.api import CompileOptions
from rlx.backends.options_to_pipeline import specialized
from rlx.compile.target import require, select
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.runtime.compile_cache import compiled_program
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device import Device

if TYPE_CHECKING:
    from rlx.compile.precision.policy import Precision, PrecisionPolicy

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
        """`precision` ("f32", "f16", "bf16") is short for the usual policy of that precision; `policy` says in what
        each class of ops computes (its name, such as "AutoMixed", or `PrecisionPolicy.Custom`) and wins. Sums are
        accumulated in f32 under all of them. Every device applies them, the reference too."""
        if not isinstance(options, CompileOptions | None):
            raise BackendError(
                f"Session: the second argument is a CompileOptions, got {options!r}; a precision is given by name: "
                f"Session({str(device)!r}, precision={options!r})"
            )
        self._chosen = select(str(device))
        require(self._chosen)
        options = options or _PLAIN
        if precision is not None:
            options = options.with_precision(precision)
        self._options = options if policy is None else options.with_policy(policy)
        # Refused here, not at the first compile.
        _ = self.policy

    def __repr__(self) -> str:
        return f"Session({str(self.device)!r}, policy={str(self.policy)!r})"

    @property
    def device(self) -> Device | str:
        """The device by its name in the enum, or as text where the enum has none for it."""
        name = self._chosen.variant or self._chosen.name
        return Device(name) if name in list(Device) else name

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
        return Session(self._chosen.name, self._options.with_policy(policy))

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
        device = self._chosen.variant or self._chosen.name
        return CompiledGraph(graph, compiled_program(graph, device, chosen), device)

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
