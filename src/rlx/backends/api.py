"""What a backend is, and the registry through which the runtime finds one. The core names no vendor.

A backend turns a graph into an `Executable`. An executable is immutable and shared: it holds code and plans, no weights
and no state of a run, so that any number of threads may run it at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from rlx.backends.compile_options import CompileOptions as CompileOptions
from rlx.backends.donation import Held
from rlx.backends.memory_space import MemorySpace
from rlx.compile.target import Absence, Absent, DeviceInfo, Found, Target, register_target, require, select
from rlx.compile.target import targets as targets
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.shape import Size
from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.backends.program.signature import Signature
    from rlx.compile.report.report import CompileReport

Array = np.ndarray[Any, np.dtype[Any]]
# A function of arrays that returns results, or None where it does not do such a call.
ShortCall: TypeAlias = Callable[..., "list[Any] | None"]
# Context variables, and the value that each must have.
Guards: TypeAlias = tuple[tuple[ContextVar[Any], object], ...]


class Prepared:
    """The params of a program in the form in which an executable reads them; `values` are the params by name."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values = values

    @property
    def byte_size(self) -> int:
        """The memory that runs read."""
        return sum(a.nbytes for a in self.values.values())

    def without_originals(self) -> Prepared:
        """The same for runs; `values` are only those that runs read as they were given."""
        return self


class KernelTime(NamedTuple):
    """How long a kernel took: its kind, the ops in it, seconds."""

    kind: str
    what: str
    seconds: float


class Executable(ABC):
    """A compiled program. Where it has a `space`, values that it is given may be `DeviceValue`s of that space, and its
    results are; arrays of the host are copied there."""

    space: MemorySpace | None = None

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> Prepared:
        """What `run` takes as params: those of `before`, with the changed ones in their place. Work that depends on
        params alone is done here, once for each change of weights; where `source` says which weights these are, the
        same text for the same values at any time, it may be kept for other processes."""
        return Prepared({**(before.values if before is not None else {}), **changed})

    @abstractmethod
    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        """The outputs for inputs and params. The arrays returned belong to the caller."""

    def run_plain(self, arrays: Sequence[Any], params: Prepared) -> list[Array] | None:
        """`run` in a hurry, with the inputs in order: None, and nothing is done, unless all of them are arrays of the
        host of just the right types, and the program takes them as they are. Their sizes are checked. Also None where
        a check at the end of the program has failed: `run` then raises its error."""
        return None

    @property
    def has_short_calls(self) -> bool:
        """Whether `short_call` may have one, for some sizes."""
        return False

    def short_call(self, params: Prepared, result_class: type, guards: Guards = ()) -> ShortCall | None:
        """`run_plain` as one function of arrays, if the program is short for arrays such as the last ones that it ran
        on. It returns None, and nothing is done, for arrays of other types, shapes or layouts, where `run_plain` does,
        and where a context variable of the guards, or that of measured runs, has another value than the one named.
        Results are arrays of `result_class`, read only; on devices with memory of their own arguments are of that class
        too, whose `value` is what the device has. The caller holds the params for as long as it has the call."""
        return None

    # Whether `run_ahead` has a way for some programs; whether programs of the device choose tokens from logits sooner
    # than the host, to which logits must come first.
    runs_ahead: ClassVar[bool] = False
    chooses_tokens: ClassVar[bool] = False

    def run_ahead(
        self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared, moves: Array, steps: int
    ) -> list[Any] | None:
        """So many steps of a decoder in one go: each gives every sequence the token of the highest logit of the step
        before, and moves its position and length on by `moves` i32[sequences]. The tokens chosen i32[steps, sequences],
        then the other outputs. None, and nothing is done, where a program or a backend has no such way."""
        return None

    def hold(self, results: Sequence[Array], homes: Mapping[str, int]) -> Held | None:
        """Look at the results of a run that lie where inputs were, so that `run_held` need not look again: `homes` has
        their numbers by the names of the inputs. None if there is nothing to gain, or if they would be copied."""
        return None

    def run_held(
        self, held: Held, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared
    ) -> list[Array] | None:
        """`run` on the arrays that were given to `hold`, which the caller knows to come back, and all other inputs: the
        outputs that do not lie in them, in order. None, and nothing is done, if another input shares their memory."""
        return None

    @property
    def arena_bytes(self) -> Size:
        """The memory for values between kernels, of one run."""
        return 0

    def timed(self) -> AbstractContextManager[list[KernelTime]]:
        """Inside the block, runs of this thread measure their kernels and add them to the list, in order."""
        raise BackendError(f"{type(self).__name__} does not measure single kernels; compile for the device 'cpu'")

    def save(self, path: str, signature: Signature, prepared: Prepared | None, weights: str) -> None:
        """Write the program as a file that `rlx.load_compiled` reads; see `CompiledGraph.save`."""
        raise BackendError(f"save: programs of the device 'cpu' can be saved, not those of {type(self).__name__}")

    @property
    @abstractmethod
    def report(self) -> CompileReport:
        """What runs where, and why: text that can also be written as JSON and as a page."""


class Backend(ABC):
    """Compiles graphs for one kind of device."""

    name: str

    def is_available(self) -> bool:
        """Whether this machine can run what the backend compiles."""
        return True

    @abstractmethod
    def supported_ops(self) -> frozenset[str]:
        """Names of the op classes that programs may have; what is not among them is decomposed first."""

    @abstractmethod
    def compile(self, graph: Graph, options: CompileOptions) -> Executable: ...


_backends: dict[tuple[str, str], Backend] = {}
_lock = fork_safe_lock()


def register_backend(name: str, factory: Callable[[], Backend]) -> None:
    """Make a backend known under a new name in this process. Packages declare a `Target` as an entry point instead."""
    about = "registered by this process"
    register_target(Target(name=name, about=about, probe=lambda: _present(name), backend=lambda chosen: factory()))
    with _lock:
        _backends.clear()


def _present(name: str) -> Found | Absent:
    if backend_for(name).is_available():
        return Found((DeviceInfo(0, name),))
    return Absent(Absence.NoDevice, "its backend finds no device", "see what the backend needs")


def registered_devices() -> list[str]:
    """The names of all targets that can run programs, here or elsewhere."""
    return sorted(target.name for target in targets() if target.backend is not None)


def backend_for(name: str) -> Backend:
    """The backend of a device, created on first use."""
    chosen = select(name)
    key = (chosen.name, chosen.variant)
    with _lock:
        if key not in _backends:
            if chosen.target.backend is None:
                require(chosen)
                raise BackendError(f"{chosen.name} compiles programs but does not run them")
            _backends[key] = chosen.target.backend(chosen)
        return _backends[key]
