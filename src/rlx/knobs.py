"""Every setting of the process, typed and documented in one place.

    from rlx.knobs import knobs

    knobs.debug                      # read
    knobs.set(debug=2)               # for the whole process
    with knobs(debug=3, verify=2):   # for this thread or task, inside the block
        ...

A value comes from the innermost `with`, else from `knobs.set`, else from the environment (`RLX_DEBUG=3`, see
`rlx.env`), else from the default. Read a knob where work starts, not in the middle of it. A new thread begins without
the values of a surrounding `with`; hand them on with `with knobs(**values):` and `values = knobs.values()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar, overload

from rlx import env
from rlx.errors import RlxError
from rlx.locks import fork_safe_lock

_T = TypeVar("_T")
_Values = Mapping[str, object]

# Both layers are replaced as a whole, never changed in place: readers need no lock.
_NO_VALUES: _Values = {}
_scoped: ContextVar[_Values] = ContextVar("rlx_knobs", default=_NO_VALUES)
_process: _Values = _NO_VALUES
_process_lock = fork_safe_lock()
# Called when the process has other values: by those who keep what they once asked for.
watchers: list[Callable[[], None]] = []


class Knob(Generic[_T]):
    """One setting: its default, what it does, and how its text is read (a ValueError says what is wrong with it)."""

    name: str
    variable: str

    def __init__(self, default: _T, read: Callable[[str], _T], doc: str, also: str = "") -> None:
        self.default, self.read, self.doc = default, read, doc
        # A second environment variable, looked at when the first says nothing.
        self.also = also

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.variable = name, env.normalize(name)

    @overload
    def __get__(self, instance: None, owner: type) -> Knob[_T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...
    def __get__(self, instance: object | None, owner: type) -> Knob[_T] | _T:
        return self if instance is None else self.current()

    def __set__(self, instance: object, value: _T) -> None:
        raise AttributeError(f"write knobs.set({self.name}=...) or `with knobs({self.name}=...):`")

    def current(self) -> _T:
        for layer in (_scoped.get(), _process):
            if self.name in layer:
                return layer[self.name]  # type: ignore[return-value]
        for variable in (self.variable, self.also):
            text = env.named(variable) if variable else None
            if text:
                return self.parse(text, variable)
        return self.default

    def parse(self, text: str, source: str) -> _T:
        try:
            return self.read(text)
        except ValueError as error:
            raise RlxError(f"{source}={text!r}: {error}; {self.name} means: {self.doc}") from None

    def accept(self, value: object) -> _T:
        """A value given in code, read as the environment's text would be; None stands for a default of None."""
        if value is None and self.default is None:
            return self.default
        return self.parse(str(int(value)) if isinstance(value, bool) else str(value), self.name)


def _int(low: int, high: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("a whole number is needed") from None
        if value < low or (high is not None and value > high):
            raise ValueError(f"a number from {low} to {high} is needed" if high is not None else f"at least {low}")
        return value

    return read


def _power_of_two(text: str) -> int:
    value = _int(1)(text)
    if value & (value - 1):
        raise ValueError("a power of two is needed")
    return value


def _choice(**spellings: str) -> Callable[[str], str]:
    """Keys are the values; each may also be written in the ways its text lists."""
    known = {spelling: value for value, ways in spellings.items() for spelling in (value, *ways.split())}

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)} is needed")
        return known[text]

    return read


def _some_of(*names: str) -> Callable[[str], str]:
    """Names with commas between, or the word none."""

    def read(text: str) -> str:
        chosen = [] if text == "none" else text.split(",")
        for name in chosen:
            if name not in names:
                raise ValueError(f"none or some of {', '.join(names)} are needed")
        return ",".join(chosen) or "none"

    return read


_TEXT: tuple[None, Callable[[str], str | None]] = (None, str)
_OFF: tuple[bool, Callable[[str], bool]] = (False, env.is_true)
_ON: tuple[bool, Callable[[str], bool]] = (True, env.is_true)


class Knobs:
    """The knobs in force where they are read."""

    debug = Knob(
        0,
        _int(0, 4),
        "how much to print: 1 compiles, cache hits, and at the end the times of kernels, which then run on one thread; "
        "2 every step of a compile with its time and node counts; 3 the program after each step that changed it; "
        "4 emitted code",
    )
    dump = Knob(*_TEXT, "directory that receives what every step of every compile has made as a file")
    override = Knob(*_TEXT, "directory whose edited files replace what the steps have made")
    skip_passes = Knob("", str, "optional steps and passes of a compile to leave out, by name, with commas between")
    verify = Knob(1, _int(0, 2), "checks: 0 none, 1 after each stage, 2 after each step and with text round trip")
    backend = Knob(*_TEXT, "backend used when none is named; `reference` runs ops one by one in NumPy")
    threads = Knob[int | None](
        None, _int(1), "CPU threads; unset: as many as affinity and cgroup allow", also="RLX_WORKERS"
    )
    cpu = Knob(
        *_TEXT,
        "most instructions that code for this CPU may use: avx512bf16, avx512vnni, avx512, avx2vnni, avx2, sse4, "
        "generic; neon-i8mm, neon; read once, when the first program is compiled; unset: all that it has",
    )
    cache_dir = Knob(*_TEXT, "directory of the compile cache; unset: the user's cache directory")
    kernel_dispatch = Knob(
        "prefer_native",
        _choice(
            prefer_native="PreferNative",
            force_common="common ForceCommon",
            force_native="native ForceNative",
        ),
        "native kernels or common bodies: prefer_native, force_common (or common), force_native (or native)",
    )
    trace_perfetto = Knob(
        *_TEXT, "file that receives a trace of compiles, runs and kernels for chrome://tracing and ui.perfetto.dev"
    )
    ir_dump = Knob(
        *_TEXT,
        "file, or directory when it ends with a separator, that receives the stages as one text; "
        "a file has those of all programs of the process",
    )
    verbose = Knob(0, _int(0, 2), "0 quiet, 1 steps of compiles and dispatch reports, 2 also the hardware, once")
    dispatch_report = Knob(*_OFF, "print which ops run native, common, rewritten or on the host")
    higher_order_no_fuse = Knob(*_OFF, "do not fuse element-wise ops between the layers of a higher derivative")
    fk_batch_single_kernel = Knob(*_OFF, "run the slices of a batched region in one launch")
    fusion_report = Knob(*_OFF, "print what fused, what did not, and why")
    fuse_attn_threshold = Knob(64, _int(0), "largest batch times sequence at which an attention block becomes one op")
    enable_fuse_transformer_layer = Knob(*_OFF, "fuse whole post-norm transformer layers where the target claims them")
    disable_matmul_bias_fusion = Knob(*_OFF, "leave matmul, bias and activation apart")
    disable_residual_ln_fusion = Knob(*_OFF, "leave residual sums and norms apart")
    no_weight_concat_fusion = Knob(*_OFF, "no fusion that joins weights: shared-input matmuls, SwiGLU of two matmuls")
    no_shared_input_matmul = Knob(*_OFF, "leave matmuls of one input apart")
    keep_elementwise_regions = Knob(*_OFF, "keep element-wise regions on targets that would take them apart")
    decompose_fusion_regions = Knob(*_OFF, "take transform and batched regions apart after fusion")
    no_fk_fusion = Knob(*_OFF, "form no transform, prologue or batched regions")
    fuse_region_prologue = Knob(*_ON, "let regions read an operand through a nearest resize")
    fuse_batch_preprocess = Knob(*_ON, "join equal regions over the slices of a batch")
    native_fk_regions = Knob[bool | None](None, env.is_true, "targets run such regions natively; unset: all but CPU")
    no_native_fk_regions = Knob(*_OFF, "no target runs such regions natively")
    cuda_one_kernel = Knob(*_ON, "run the decode step of a language model as one kernel on CUDA where it has the form")
    rocm_blas = Knob(*_ON, "compute plain products on AMD GPUs by hipBLASLt where that library is installed")
    metal_no_fusion = Knob(*_OFF, "no fusion on Metal")
    metal_unfuse_regions = Knob(*_OFF, "take element-wise regions apart on Metal")
    wgpu_features = Knob[str | None](
        None,
        _some_of("f16", "subgroups", "dot4"),
        "what kernels may use of an adapter of WebGPU beyond plain WGSL, with commas between: f16, subgroups, dot4; or "
        "none; unset: all that it has and that are faster there",
    )
    xla_devices = Knob[int | None](
        None, _int(1), "devices that XLA divides the host into; unset: what XLA_FLAGS says, else 1"
    )
    xla_buckets = Knob(
        *_OFF, "round sizes of XLA programs up to powers of two where rows are independent, so that fewer are compiled"
    )
    mlx_mode = Knob[str | None](
        None,
        _choice(lazy="", compiled="", eager=""),
        "how MLX runs programs: lazy, compiled or eager; unset: compiled on a GPU, lazy on a CPU",
    )
    tpu_hlo_dump = Knob(*_TEXT, "directory that receives programs for TPUs as StableHLO, and as HLO when XLA is done")
    arena_align = Knob(64, _power_of_two, "alignment of buffers in the arena, in bytes")

    def __call__(self, **values: object) -> AbstractContextManager[Knobs]:
        """`with knobs(debug=3):` holds in the calling thread or task until the block ends."""
        return self._scope(_accepted(values))

    @contextmanager
    def _scope(self, values: _Values) -> Iterator[Knobs]:
        token = _scoped.set({**_scoped.get(), **values})
        try:
            yield self
        finally:
            _scoped.reset(token)

    def set(self, **values: object) -> None:
        """Give knobs a value for the whole process."""
        global _process
        accepted = _accepted(values)
        with _process_lock:
            _process = {**_process, **accepted}
        _tell_watchers()

    def reset(self) -> None:
        """Forget what `set` was told."""
        global _process
        with _process_lock:
            _process = _NO_VALUES
        _tell_watchers()

    def values(self) -> dict[str, object]:
        """All values in force here."""
        return {knob.name: knob.current() for knob in all_knobs()}

    def markdown(self) -> str:
        """The table of the documentation."""
        rows = ["| knob | environment | default | meaning |", "|---|---|---|---|"]
        for knob in all_knobs():
            variables = ", ".join(f"`{v}`" for v in (knob.variable, knob.also) if v)
            default = "unset" if knob.default is None else f"`{knob.default}`"
            rows.append(f"| `{knob.name}` | {variables} | {default} | {knob.doc} |")
        return "\n".join(rows) + "\n"


def _tell_watchers() -> None:
    for watcher in watchers:
        watcher()


# What a knob has here says nothing but the process: no `with` around it.
NOT_SCOPED = (_scoped, _NO_VALUES)


def all_knobs() -> list[Knob[object]]:
    """Every knob, in order of definition."""
    return [knob for knob in vars(Knobs).values() if isinstance(knob, Knob)]


_is_reported = False


def report_unknown_variables() -> None:
    """Say once, on standard error, which `RLX_*` variables of the environment nothing reads, and what may be meant.

    Asked for when the first program is compiled, so that importing rlx need not look."""
    global _is_reported
    if _is_reported:
        return
    _is_reported = True
    known = [variable for knob in all_knobs() for variable in (knob.variable, knob.also) if variable]
    for name in env.unknown_variables(known):
        import difflib
        import sys

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/knobs.md lists all settings"
        print(f"rlx: nothing reads the environment variable {name}; {hint}", file=sys.stderr)


def _accepted(values: _Values) -> _Values:
    by_name = {knob.name: knob for knob in all_knobs()}
    for name in values:
        if name not in by_name:
            raise RlxError(f"there is no knob {name!r}; the knobs are: {', '.join(by_name)}")
    return {name: by_name[name].accept(value) for name, value in values.items()}


knobs = Knobs()
