"""`CompiledGraph`: a compiled program with its weights, ready to run."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.backends.api import Executable, Prepared, ShortCall
from rlx.backends.memory import aligned_copy, drop_pages, is_fixed
from rlx.backends.program.signature import Signature
from rlx.errors import BindingError
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.dtype import DType
from rlx.ir.foreign_arrays import host_array
from rlx.ir.graph import Graph
from rlx.ir.index_checks import QuickChecks, check_ids
from rlx.ir.shape import Dims, Shape
from rlx.locks import fork_safe_lock
from rlx.runtime.arrays import Array, as_array, given_away
from rlx.runtime.device_arrays import DeviceArray, results_of, value_in
from rlx.runtime.donation import Back, Lending, Shapes
from rlx.runtime.handles import Handles, output_number
from rlx.runtime.inspection import MemoryInfo, Profile, memory_info, profile
from rlx.runtime.typed_io import Buffer, from_bytes, to_bytes

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport


# Combinations of input shapes whose sizes are remembered as checked.
_REMEMBERED = 1024


class _Sizes(NamedTuple):
    """Input shapes that have been checked: the sizes of the axes that each kind of ids selects from."""

    of_ids: list[Dims]


class _Ready(NamedTuple):
    """What follows from one set of weights: the form in which the program reads them, and the input shapes that have
    been checked against them. The shapes are their key, or what stands for those of arrays that came back."""

    values: Mapping[str, np.ndarray[Any, Any]]
    prepared: Prepared
    sizes: dict[Hashable, _Sizes]


class _Short(NamedTuple):
    """A short call, and the weights that it is for."""

    ready: _Ready
    call: ShortCall


def load_compiled(path: str | os.PathLike[str], threads: int | None = None) -> CompiledGraph:
    """The program of a file that `CompiledGraph.save` has written, ready to run. Nothing is compiled.

    A file for another kind of CPU or another version of rlx, and a damaged one, are refused. Load files from whom you
    trust: they are native code.
    """
    from rlx.backends.cpu.saved_programs import load_program

    found = load_program(os.fspath(path), threads)
    compiled = CompiledGraph(found.signature, found.executable, "cpu")
    if found.prepared is not None:
        compiled.use_prepared(found.prepared)
    return compiled


class CompiledGraph:
    """Set the params once, run as often as you like.

    Everything that comes from outside is checked first: a wrong name, shape or dtype raises and changes nothing.
    """

    def __init__(self, program: Graph | Signature, executable: Executable, device: str) -> None:
        self._signature = signature = program if isinstance(program, Signature) else Signature.of(program)
        self._executable = executable
        self._device = device
        self._name = signature.name
        self._inputs, self._params = signature.inputs, signature.params
        self._outputs = list(signature.outputs)
        self._overwritten = frozenset(signature.aliases.values())
        self._constraints, self._id_checks = signature.constraints, signature.id_checks
        # A plain run is one of arrays that need no second look.
        self._quick = None if self._overwritten else QuickChecks.of(self._id_checks, [*self._inputs])
        self._dtypes = {name: shape.dtype.numpy for name, shape in self._inputs.items()}
        self._other_dtypes = {name: dtype for name, dtype in self._dtypes.items() if name not in self._overwritten}
        self._lending = Lending(signature, executable, [check.key for check in self._id_checks])
        # Replaced as wholes, so that a run sees one set of weights whatever other threads set meanwhile.
        self._values: Mapping[str, np.ndarray[Any, Any]] = {}
        self._ready: _Ready | None = None
        self._short: _Short | None = None
        self._is_frozen = False
        self._handles: Handles | None = None
        self._slots: list[Array] = []
        self._active_extent: tuple[int, int] | None = None
        self._setting = fork_safe_lock()

    def __repr__(self) -> str:
        params = f"; {len(self._params)} params" if self._params else ""
        given = ", ".join(f"{name}: {shape}" for name, shape in self._inputs.items())
        results = ", ".join(map(str, self._outputs))
        return f"CompiledGraph(@{self._name} on {self._device}: {given}{params} -> {results})"

    @property
    def device(self) -> str:
        return self._device

    @property
    def name(self) -> str:
        return self._name

    @property
    def executable(self) -> Executable:
        """What the backend has made."""
        return self._executable

    @property
    def report(self) -> CompileReport:
        """What runs where: `print` it, or see more of it with `.json()` and `.html(path)`."""
        return self._executable.report

    @property
    def input_types(self) -> dict[str, Shape]:
        return dict(self._inputs)

    @property
    def param_types(self) -> dict[str, Shape]:
        return dict(self._params)

    @property
    def output_types(self) -> list[Shape]:
        return list(self._outputs)

    def save(self, path: str | os.PathLike[str], weights: str = "inside") -> None:
        """Write the program as a file that `rlx.load_compiled` reads, with its weights `inside`, in a file `beside` it,
        or with `none`. It runs on the same kind of CPU with the same version of rlx, and needs nothing else."""
        ready = None
        if weights != "none":
            ready = self._ready if self._ready is not None and self._ready.values is self._values else None
            ready = ready or self._prepare(self._values)
        self._executable.save(os.fspath(path), self._signature, ready and ready.prepared, weights)

    def use_prepared(self, prepared: Prepared) -> None:
        """Run on weights that are in the program's own form already; no others can be set."""
        with self._setting:
            self._values = prepared.values
            self._ready = _Ready(prepared.values, prepared, {})
            self._is_frozen = True

    def memory_info(self) -> MemoryInfo:
        """How much memory the program needs; see `MemoryInfo`."""
        ready = self._ready
        held = ready.prepared.byte_size if self._is_frozen and ready is not None else _bytes_of(self._values)
        return memory_info(self._executable, held, self._outputs)

    def clone(self) -> CompiledGraph:
        """Another compiled graph with the same code and, for now, the same weights and handles. What is set on one
        is not seen by the other."""
        twin = copy.copy(self)
        twin._slots = []
        twin._setting = fork_safe_lock()
        return twin

    def set_param(self, name: str, value: Any) -> None:
        """Give a weight its value; floats are converted to the declared float type."""
        self.set_params({name: value})

    def set_params(self, values: Mapping[str, Any]) -> None:
        """Set several weights at once: if one is refused, none is set, and no run sees only some of them.

        Arrays that nobody can change (of `bytes`, or of a file mapped for reading) are used where they are; all others
        are copied.
        """
        if self._is_frozen:
            raise BindingError(f"@{self._name}: its weights are frozen; compile the program again to set others")
        accepted = {name: self._accepted(name, value) for name, value in values.items()}
        with self._setting:
            self._values = {**self._values, **accepted}

    def freeze_params(self, source: str = "") -> None:
        """Prepare the weights now and let go of what only the preparation reads: afterwards they cannot be changed.

        Where `source` says which weights these are, the same text for the same values at any time, what was prepared
        with much work is kept on disk, and other processes find it.
        """
        with self._setting:
            values = self._values
            prepared = self._prepare(values, source).prepared.without_originals()
            # Sizes of the program may depend on the shapes of these.
            symbolic = {name: values[name] for name, shape in self._params.items() if not shape.is_static}
            kept = {**prepared.values, **symbolic}
            # In this order: a run of another thread finds the weights of before or of after, and never too few.
            self._ready = _Ready(kept, prepared, {})
            self._is_frozen = True
            self._values = kept
        drop_pages(values.values())

    def set_param_typed(self, name: str, data: Buffer, dtype: DType | str) -> None:
        """Give a weight its value as bytes in row-major order."""
        if name not in self._params:
            raise BindingError(self._unknown("param", name, self._params))
        self.set_param(name, from_bytes(f"@{self._name}: param {name!r}", data, dtype, self._params[name]))

    def _accepted(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        if name not in self._params:
            raise BindingError(self._unknown("param", name, self._params))
        declared = self._params[name]
        array = host_array(value)
        if array.dtype != declared.dtype.numpy and not (declared.dtype.is_float and array.dtype.kind == "f"):
            raise BindingError(self._wrong_type("param", name, declared, array))
        infer_binding([(f"param {name}", declared, array.shape)])
        if array.dtype == declared.dtype.numpy and array.flags.c_contiguous and is_fixed(array):
            return array
        kept = aligned_copy(array, declared.dtype.numpy)
        kept.flags.writeable = False
        return kept

    def run(self, inputs: Mapping[str, Any] | None = None, **more: Any) -> list[Array]:
        """The outputs, in order, for inputs given by name.

        An output that the graph aliases to an input is stored over that input's array and returned in its memory, so
        that appending to a cache costs no copy of it. An array that cannot be written (it is not contiguous, not
        aligned, read only, or shares memory with another input) is copied first and stays as it was.
        """
        handles = self._handles
        given = inputs if type(inputs) is dict else self._by_name(inputs)
        if handles is not None:
            given = {**handles.inputs, **given}
        if more:
            given = {**given, **more} if given else more
        values, ready, short = self._values, self._ready, self._short
        if short is not None and short.ready.values is values and handles is None and len(given) == len(self._inputs):
            outputs = short.call(*map(given.get, self._inputs))
            if outputs is not None:
                return outputs
        if ready is None or ready.values is not values:
            ready = self._prepare(values)
        quick = self._quick
        if quick is not None and handles is None and len(given) == len(self._inputs):
            arrays = [*map(given.get, self._inputs)]
            results = self._executable.run_plain(arrays, ready.prepared) if quick.pass_(arrays) else None
            if results is not None:
                if self._executable.has_short_calls:
                    call = self._executable.short_call(ready.prepared, Array)
                    self._short = None if call is None else _Short(ready, quick.before(call))
                return [as_array(result) for result in results]
        back = self._lending.known(given) if self._overwritten and len(given) == len(self._inputs) else None
        outputs = None if back is None else self._run_again(back, given, ready)
        if outputs is None:
            outputs = self._run_anew(given, ready)
        if handles is not None:
            self._keep(outputs)
        return outputs

    def _by_name(self, inputs: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Inputs as they were given, if they have names."""
        if inputs is not None and not isinstance(inputs, Mapping):
            name = next(iter(self._inputs), "x")
            raise BindingError(
                f"@{self._name}: inputs are given by name, as run({{{name!r}: ...}}) or run({name}=...), "
                f"got {type(inputs).__name__}"
            )
        return inputs or {}

    def _run_anew(self, given: Mapping[str, Any], ready: _Ready) -> list[Array]:
        if given.keys() != self._inputs.keys():
            raise BindingError(self._wrong_names(given))
        arrays = {name: self._checked(name, given[name], dtype) for name, dtype in self._dtypes.items()}
        shapes = tuple([array.shape for array in arrays.values()])
        sizes = ready.sizes.get(shapes) or self._sizes(shapes, shapes, ready)
        if self._id_checks:
            self._check_ids(arrays, sizes)
        results = self._executable.run(arrays, ready.prepared)
        if self._executable.space is not None:
            for name in self._overwritten:
                if isinstance(given[name], DeviceArray):
                    given[name].given_away()
            return results_of(self._executable, results)
        return self._lending.outputs(results) if self._overwritten else [as_array(result) for result in results]

    def _run_again(self, back: Back, given: Mapping[str, Any], ready: _Ready) -> list[Array] | None:
        """Run on arrays that the last run returned, and others; None if it must not write into them."""
        if any(name not in given for name in self._other_dtypes):
            return None
        others = {name: self._checked(name, given[name], dtype) for name, dtype in self._other_dtypes.items()}
        key = (back.loan.held.serial, *[array.shape for array in others.values()])
        sizes = ready.sizes.get(key) or self._sizes(self._lending.shapes(back, others), key, ready)
        if self._id_checks:
            self._check_ids(others, sizes)
        elsewhere = self._executable.run_held(back.loan.held, others, ready.prepared)
        return None if elsewhere is None else self._lending.outputs_again(back, elsewhere)

    @property
    def runs_ahead(self) -> bool:
        """Whether `run_ahead` has a way for some programs of this device."""
        return self._executable.runs_ahead

    @property
    def chooses_tokens(self) -> bool:
        """Whether programs of this device choose tokens from logits sooner than the host."""
        return self._executable.chooses_tokens

    def run_ahead(self, inputs: Mapping[str, Any], moves: Any, steps: int) -> list[Array] | None:
        """So many steps of a decoder in one go, each with the token of the highest logit of the step before: the tokens
        chosen i32[steps, sequences], then the outputs behind the logits. Positions and lengths move on by `moves`
        i32[sequences] from step to step. None, and nothing is done, where there is no such way; then call `run`."""
        executable = self._executable
        if executable.space is None or inputs.keys() != self._inputs.keys():
            return None
        values, ready = self._values, self._ready
        if ready is None or ready.values is not values:
            ready = self._prepare(values)
        arrays = {name: self._checked(name, inputs[name], dtype) for name, dtype in self._dtypes.items()}
        shapes = tuple([array.shape for array in arrays.values()])
        sizes = ready.sizes.get(shapes) or self._sizes(shapes, shapes, ready)
        if self._id_checks:
            self._check_ids(arrays, sizes)
        results = executable.run_ahead(arrays, ready.prepared, moves, steps)
        if results is None:
            return None
        for name in self._overwritten:
            if isinstance(inputs[name], DeviceArray):
                inputs[name].given_away()
        return results_of(executable, results)

    def _check_ids(self, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: _Sizes) -> None:
        """Native code trusts ids, so those that come from outside are looked at here, whatever the backend."""
        for check, bound in zip(self._id_checks, sizes.of_ids):
            # Ids that live on a device stay there; its kernels clamp them.
            if isinstance(arrays[check.key], np.ndarray):
                check_ids(check.op, arrays[check.key], bound, check.key)

    # Other ways to run.

    def run_raw(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """`run`: outputs are memory of their own already, so there is nothing to save by keeping them for one run."""
        return self.run(inputs)

    def run_slots(self, inputs: Sequence[Any]) -> list[tuple[int, int]]:
        """Run with inputs in the order of their declaration. Each output is where its slot says: (offset, size) in
        bytes from `arena_ptr()`, until the next `run_slots`."""
        if len(inputs) != len(self._inputs):
            raise BindingError(f"@{self._name} takes {len(self._inputs)} inputs, got {len(inputs)}")
        self._slots = self.run(dict(zip(self._inputs, inputs)))
        start = self.arena_ptr()
        return [(array.ctypes.data - start, array.nbytes) for array in self._slots]

    def arena_ptr(self) -> int:
        """The address that the slots of the last `run_slots` count from; 0 before the first."""
        return min((array.ctypes.data for array in self._slots), default=0)

    def run_typed(self, inputs: Iterable[tuple[str, Buffer, DType | str]]) -> list[tuple[bytes, str]]:
        """Run with inputs as bytes; the outputs as bytes with their dtypes."""
        arrays = {}
        for name, data, dtype in inputs:
            if name not in self._inputs:
                raise BindingError(self._unknown("input", name, self._inputs))
            arrays[name] = from_bytes(f"@{self._name}: input {name!r}", data, dtype, self._inputs[name])
        return [to_bytes(np.asarray(output)) for output in self.run(arrays)]

    def run_pipelined(self, runs: Iterable[Mapping[str, Any]]) -> list[list[Array]]:
        """The outputs of several runs. One run uses all threads, so they are done one after the other."""
        return [self.run(inputs) for inputs in runs]

    def commit_no_wait(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Run for the sake of handles and feeds. The run is over when this returns."""
        self.run(inputs)

    def sync_pending(self) -> None:
        """Wait for runs that were only committed: there are none."""

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """Say that only the first `actual` of `upper` rows matter, until told otherwise. Programs here take the sizes
        of their inputs, and run faster with fewer rows: the hint changes nothing."""
        if extent is not None and not 0 <= extent[0] <= extent[1]:
            raise BindingError(f"@{self._name}: an active extent is (actual, upper) with actual <= upper, got {extent}")
        self._active_extent = extent

    def profile(self, inputs: Mapping[str, Any] | None = None, runs: int = 5) -> Profile:
        """How long each kernel takes by itself; see `Profile`."""
        return self.profile_while(lambda: self.run(inputs or {}), runs)

    def profile_while(self, run: Callable[[], object], runs: int = 5) -> Profile:
        """`profile` of whatever runs the program once when it is called."""
        return profile(self._name, self._executable, run, runs)

    # Values that stay between runs.

    def bind_handle(self, name: str, value: Any) -> bool:
        """Keep a value with the program: that of an input is used by runs that are not given another one, and `out{i}`
        is output i of the last run. False if the program has no such input or output."""
        number = output_number(name, len(self._outputs))
        if name not in self._inputs and number is None:
            return False
        declared = self._inputs[name] if name in self._inputs else self._outputs[number or 0]
        array = np.asarray(value)
        if array.dtype != declared.dtype.numpy:
            raise BindingError(self._wrong_type("handle", name, declared, array))
        infer_binding([(f"handle {name}", declared, array.shape)])
        # Not an rlx.Array, which a program may be allowed to write into.
        kept = aligned_copy(array)
        kept.flags.writeable = False
        with self._setting:
            handles = self._handles or Handles()
            bound = handles.with_input(name, kept) if name in self._inputs else None
            self._handles = bound or handles.with_output(number or 0, as_array(kept))
        return True

    def read_handle(self, name: str) -> Array | None:
        """What a handle holds now; None if it is not bound."""
        handles = self._handles or Handles()
        number = output_number(name, len(self._outputs))
        if name in handles.inputs:
            return as_array(np.asarray(handles.inputs[name]))
        return handles.kept.get(number) if number is not None else None

    def has_handle(self, name: str) -> bool:
        return self.read_handle(name) is not None

    def set_handle_feed(self, handle: str, output_index: int) -> bool:
        """After each run let a bound input take over an output: state that goes round. False if it cannot."""
        handles = self._handles or Handles()
        if handle not in handles.inputs or not 0 <= output_index < len(self._outputs):
            return False
        if self._inputs[handle] != self._outputs[output_index]:
            raise BindingError(
                f"@{self._name}: output {output_index} ({self._outputs[output_index]}) cannot become input "
                f"{handle!r} ({self._inputs[handle]})"
            )
        with self._setting:
            self._handles = (self._handles or Handles()).with_feed(handle, output_index)
        return True

    def run_feed_handle(self, inputs: Mapping[str, Any], handle: str, output_index: int) -> list[Array]:
        """Run, and let a bound input take over an output this once."""
        outputs = self.run(inputs)
        if not self.has_handle(handle) or not 0 <= output_index < len(outputs):
            raise BindingError(f"@{self._name}: there is no handle {handle!r}, or no output {output_index}")
        with self._setting:
            self._handles = (self._handles or Handles()).with_input(handle, outputs[output_index])
        return outputs

    # All memory of a CPU is device memory.
    bind_gpu_handle, read_gpu_handle, has_gpu_handle = bind_handle, read_handle, has_handle
    set_gpu_handle_feed, run_feed_gpu_handle = set_handle_feed, run_feed_handle

    def _keep(self, outputs: Sequence[Array]) -> None:
        with self._setting:
            if self._handles is not None:
                self._handles = self._handles.after(outputs)

    def _prepare(self, values: Mapping[str, np.ndarray[Any, Any]], source: str = "") -> _Ready:
        if self._is_frozen and self._ready is not None:
            return self._ready
        unset = [name for name in self._params if name not in values]
        if unset:
            raise BindingError(
                f"@{self._name}: param {', '.join(map(repr, unset))} has no value yet; call set_param first"
            )
        before = self._ready.prepared if self._ready is not None else None
        known = before.values if before is not None else {}
        changed = {name: value for name, value in values.items() if known.get(name) is not value}
        self._ready = ready = _Ready(values, self._executable.prepare(changed, before, source), {})
        return ready

    def _checked(self, name: str, value: Any, dtype: np.dtype[Any]) -> Any:
        if isinstance(value, DeviceArray):
            array: Any = value_in(self._executable.space, value, name, f"@{self._name}")
        else:
            array = given_away(value) if name in self._overwritten else host_array(value)
        if array.dtype == dtype:
            return array
        if isinstance(value, bool | int | float | complex):
            return array.astype(dtype)
        raise BindingError(self._wrong_type("input", name, self._inputs[name], array))

    def _sizes(self, shapes: Shapes, key: Hashable, ready: _Ready) -> _Sizes:
        """What the sizes of inputs say, with everything checked that the program says of them; remembered by `key`."""
        leaves = [(name, shape, actual) for (name, shape), actual in zip(self._inputs.items(), shapes)]
        # Fixed shapes have been checked when the weights were set.
        symbolic = ((name, shape) for name, shape in self._params.items() if not shape.is_static)
        leaves += [(name, shape, ready.values[name].shape) for name, shape in symbolic]
        binding = infer_binding(leaves)
        for constraint in self._constraints:
            if constraint.symbols <= binding.keys():
                constraint.check(binding)
        if len(ready.sizes) >= _REMEMBERED:
            ready.sizes.clear()
        sizes = _Sizes([tuple(bind_dim(s, binding) for s in check.sizes) for check in self._id_checks])
        ready.sizes[key] = sizes
        return sizes

    def _wrong_names(self, given: Mapping[str, Any]) -> str:
        unknown = [name for name in given if name not in self._inputs]
        if unknown:
            return self._unknown("input", unknown[0], self._inputs)
        needed = ", ".join(f"{name!r} ({shape})" for name, shape in self._inputs.items() if name not in given)
        return f"@{self._name}: no value for input {needed}"

    def _unknown(self, kind: str, name: str, known: Mapping[str, Shape]) -> str:
        listed = ", ".join(f"{n!r} ({s})" for n, s in known.items()) or "none"
        return f"@{self._name} has no {kind} {name!r}; it has: {listed}"

    def _wrong_type(self, kind: str, name: str, declared: Shape, array: np.ndarray[Any, Any]) -> str:
        return (
            f"@{self._name}: {kind} {name!r} is declared {declared}, got {array.dtype}{list(array.shape)}; "
            f"convert it with .astype({declared.dtype.numpy.name!r})"
        )


def _bytes_of(values: Mapping[str, np.ndarray[Any, Any]]) -> int:
    return sum(array.nbytes for array in values.values())
