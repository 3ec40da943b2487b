"""One conformance suite for every backend: all samples of all ops, in every dtype, on plain and on poisoned values.

    for case in cases("Attention"):               # one per sample and dtype
        for failure in check(case, "cpu"):        # compiled once, run on each set of values
            print(failure)                        # op, sample, dtype, values, and what is wrong

The definition of an op in NumPy is what is right. Numbers may differ by a few roundings; NaN, infinities and their
signs must stand where the definition has them, unless `differences` says why not. A backend needs nothing but a
registered `Target`: programs and values take the road of every user, and values of a device are handed to it first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

import rlx
import rlx.hir
import rlx.sparse
from conformance.differences import (
    COARSEST,
    FLUSHING,
    NOT_UNIQUE,
    SORTED,
    TRUSTING,
    UP_TO_SIGNS,
    Elements,
    forgiven,
)
from op_samples import LEAVES, sample_graph, samples_of
from rlx.backends.text_gpu.code import codes_of
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Found, select, targets
from rlx.errors import InternalError, RlxError
from rlx.ir.binding import bind_graph
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ops.define.samples import Sample

# Ops without samples of their own: leaves, and the projection that every op with several results uses.
OPS = [name for name, cls in OP_CLASSES.items() if name not in LEAVES and cls.__module__.startswith("rlx.")]

POISONS = ("nan", "inf", "-inf", "largest", "-largest", "subnormal", "-0")
# Put together, without those that overflow and thereby hide the others.
TOGETHER = ("nan", "inf", "-inf", "subnormal", "-0")

# Roundings that a kernel may add, in units of the epsilon of the coarsest type that takes part.
ROUNDINGS = {"f64": 64, "c128": 64, "f32": 64, "c64": 64, "f16": 4, "bf16": 4}
EPSILON = {"f64": 2.0**-52, "c128": 2.0**-52, "f32": 2.0**-23, "c64": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}

# Backends whose drivers compile a text of several kernels before it is known how memory is bound.
TEXT_BACKENDS = {"opencl", "metal"}
KERNELS_OF_A_TEXT = 100

# How far results of a whole program may be off, as a part of the largest one, by the coarsest type inside of it.
PROGRAM_BOUNDS = {"f64": 1e-9, "f32": 2e-4, "f16": 3e-2, "bf16": 0.2}


class Case(NamedTuple):
    """One sample of an op in one dtype."""

    name: str
    number: int
    sample: Sample
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} sample {self.number} in {self.dtype}: {self.sample}"

    def graph(self) -> Graph:
        """The op on one input per operand, with all of its results."""
        graph = sample_graph(self.sample, self.dtype)
        given = {symbol for shape in self.sample.shapes(self.dtype) for symbol in shape.dynamic_symbols()}
        # Sizes of results that no operand has are known to the sample alone.
        return graph if given >= {*self.sample.binding} else bind_graph(graph, self.sample.binding)


class Failure(NamedTuple):
    """What a backend did otherwise than the reference."""

    backend: str
    case: object
    values: str
    what: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.case}, values {self.values}: {self.what}"


def cases(name: str) -> list[Case]:
    return [Case(name, i, sample, d) for i, sample in enumerate(samples_of(name)) for d in sample.dtypes]


def tenth(name: str) -> list[Case]:
    """A seeded tenth of the cases of an op, and at least one."""
    found = cases(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    chosen = sorted(rng.choice(len(found), max(1, len(found) // 10), replace=False))
    return [found[i] for i in chosen]


def available() -> list[str]:
    """The backends that have a device here, without the reference, which is what they are compared with."""
    return [t.name for t in targets() if t.backend and t.name != "reference" and isinstance(t.probe(), Found)]


def value_sets(case: Case) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Plain values; then each poison in one entry of one operand; then several poisons in all operands."""
    plain = case.sample.arrays(case.dtype)
    yield "plain", plain
    places = [i for i, a in enumerate(plain) if a.size and _poisonable(a.dtype) and case.name not in TRUSTING]
    for poison in POISONS:
        for i in places:
            rng = np.random.default_rng(zlib.crc32(f"{case.name} {case.number} {poison} {i}".encode()))
            changed = [_poisoned(a, [poison], rng) if i == k else a for k, a in enumerate(plain)]
            yield f"{poison} in operand {i}", _in_order(case.name, changed)
    if places:
        rng = np.random.default_rng(case.number)
        changed = [_poisoned(a, TOGETHER, rng) if k in places else a for k, a in enumerate(plain)]
        yield "several poisons", _in_order(case.name, changed)


def _in_order(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Operands that must ascend, sorted; NaN comes last."""
    ascending = SORTED.get(name, ())
    return [_sorted(a) if i in ascending else a for i, a in enumerate(arrays)]


def _sorted(array: np.ndarray) -> np.ndarray:
    return np.take_along_axis(array, np.argsort(array.astype(np.float64), -1), -1)


def _poisonable(dtype: np.dtype) -> bool:
    found = DType.of(dtype)
    return found.is_inexact and not found.is_storage


def _poisoned(array: np.ndarray, poisons, rng: np.random.Generator) -> np.ndarray:
    """The array with each poison in one random entry, as far as there are entries; of complex ones in either part."""
    changed = array.copy()
    parts = changed.reshape(-1)
    if parts.dtype.kind == "c":
        parts = parts.view(parts.real.dtype)
    info = _limits(parts.dtype)
    values = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "-0": -0.0}
    values |= {"largest": info.max, "-largest": info.min, "subnormal": info.smallest_subnormal}
    for place, poison in zip(rng.permutation(parts.size), rng.permutation(list(poisons))):
        parts[place] = values[str(poison)]
    return changed


def _limits(dtype: np.dtype):
    import ml_dtypes

    return ml_dtypes.finfo(dtype) if dtype.kind == "V" or dtype.name == "bfloat16" else np.finfo(dtype)


@contextmanager
def loaded_together(chosen: Sequence[Case], backend: str) -> Iterator[None]:
    """Cases whose kernels a driver has compiled as one text: it takes as long for a text as for many kernels in it.
    Other backends compile each program by itself; what a backend refuses says so when it is checked."""
    kept, codes = [], []  # the programs keep their code
    for case in chosen if select(backend).target.name in TEXT_BACKENDS else ():
        with suppress(LegalizeError):
            found = rlx.Session(backend).compile(case.graph()).executable
            kept.append(found)
            made = [found.programs.main, *(p.program for p in found.programs.prepare)]
            codes += [code for program in made for code in codes_of(program).values()]
    for first in range(0, len(codes), KERNELS_OF_A_TEXT):
        kept[0]._gpu.load(codes[first : first + KERNELS_OF_A_TEXT])
    yield


def check(case: Case, backend: str, poisoned: bool = True) -> Iterator[Failure]:
    """Every way in which a backend does otherwise than the reference with one case."""
    graph = case.graph()
    compiled = rlx.Session(backend).compile(case.graph())
    plain = None
    for values, arrays in value_sets(case):
        if values != "plain" and not poisoned:
            return
        wanted, refused = _reference(graph, arrays, case.sample.binding)
        plain = wanted if values == "plain" else plain
        got, error = on_backend(compiled, backend, {f"x{i}": a for i, a in enumerate(arrays)})
        found = list(_mistakes(case, backend, values, (wanted, refused), (got, error), plain))
        if found and backend in FLUSHING:
            meant = _reference(graph, [_flushed(a) for a in arrays], case.sample.binding)
            found = list(_mistakes(case, backend, values, meant, (got, error), plain))
        for what in found:
            yield Failure(backend, case, values, what)


def _mistakes(case: Case, backend: str, values: str, reference, answer, plain) -> Iterator[str]:
    """What is wrong with the answer of a backend, or with its error; both come as pairs."""
    (wanted, refused), (got, error) = reference, answer
    if isinstance(error, InternalError) or (refused is None) != (error is None):
        yield f"the reference says {refused}, the backend {error}"
    elif wanted is not None and got is not None:
        inside = [shape.dtype.numpy for shape in case.sample.shapes(case.dtype)]
        found = (_coarsest([*inside, *(w.dtype for w in wanted)]), COARSEST.get(case.name, "f64"))
        coarsest = max(found, key=EPSILON.__getitem__)
        for i, (w, g) in enumerate(zip(wanted, got, strict=True)):
            what = compare(w, g, coarsest, case.name, values, None if plain is None else plain[i], backend)
            if what:
                yield f"result {i}: {what}"


def _flushed(array: np.ndarray) -> np.ndarray:
    """The array with zeros for numbers that are too small for a full exponent."""
    if not _poisonable(array.dtype):
        return array
    changed = array.copy()
    parts = changed.reshape(-1)
    if parts.dtype.kind == "c":
        parts = parts.view(parts.real.dtype)
    with np.errstate(invalid="ignore"):
        parts[np.abs(parts) < _limits(parts.dtype).smallest_normal] *= 0
    return changed


def check_program(graph: Graph, values: dict[str, np.ndarray], binding: dict[str, int], backend: str) -> list[Failure]:
    """The same for a whole program: its results may be off by what the coarsest type inside of it allows."""
    leaves = {n.op.key: n for n in graph.nodes if n.is_leaf}
    known = {symbol for node in leaves.values() for symbol in node.shape.dynamic_symbols()}
    program = graph if {*graph.dynamic_symbols()} <= known else bind_graph(graph, binding)
    compiled = rlx.Session(backend).compile(program.copy())
    compiled.set_params({n.op.key: values[n.op.key] for n in program.params})
    got, error = on_backend(compiled, backend, {n.op.key: values[n.op.key] for n in program.inputs})
    wanted, refused = _reference(bind_graph(graph, binding), values, None)
    if wanted is None or got is None:
        return [] if error and refused else [Failure(backend, graph.name, "plain", f"{refused} against {error}")]
    inside = [shape.dtype.value for node in graph.nodes for shape in node.shapes]
    bound = max((PROGRAM_BOUNDS[d] for d in inside if d in PROGRAM_BOUNDS), default=0.0)
    failures = []
    for i, (w, g) in enumerate(zip(wanted, got, strict=True)):
        what = _program_error(w, g, bound)
        if what:
            failures.append(Failure(backend, graph.name, "plain", f"result {i}: {what}"))
    return failures


def _program_error(wanted: np.ndarray, got: np.ndarray, bound: float) -> str:
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"wanted {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}"
    w, g = wanted.astype(np.float64), got.astype(np.float64)
    largest = np.abs(w[np.isfinite(w)]).max(initial=1.0)
    limit = bound * largest if _poisonable(wanted.dtype) else 0.0
    wrong = next((kind for kind, elements in _wrong(w, g, limit).items() if elements.any()), "")
    return wrong and f"{wrong}, by up to {np.nanmax(np.abs(w - g)):.2g} where {limit:.2g} is allowed"


def _reference(graph: Graph, arrays, binding):
    try:
        with np.errstate(all="ignore"):
            return interpret(graph, arrays, binding), None
    except RlxError as error:
        return None, error


def on_backend(compiled, backend: str, inputs: dict[str, np.ndarray]):
    """The results of a program as arrays of the host; a device with memory of its own gets its operands in it."""
    try:
        if select(backend).target.open is not None:
            # Ids come from the host, which looks at them; those of a device are clamped by its kernels.
            ids = {check.key for check in compiled._id_checks}
            inputs = {name: a if name in ids else rlx.device_put(a, backend) for name, a in inputs.items()}
        # Ops that run by their definition on the host may warn of what is not finite.
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in compiled.run(inputs)], None
    except RlxError as error:
        return None, error


def _coarsest(dtypes) -> str:
    found = [DType.of(d).value for d in dtypes if _poisonable(d)]
    return max(found, key=EPSILON.__getitem__, default="f64")


def compare(
    wanted: np.ndarray,
    got: np.ndarray,
    coarsest: str,
    name: str = "",
    values: str = "plain",
    plain: np.ndarray | None = None,
    backend: str = "",
) -> str:
    """What is wrong with a result of an op, in words; nothing if it is right.

    `coarsest` is the dtype that says how far numbers may be off; `plain` is the result without poison.
    """
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"wanted {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}"
    if name in NOT_UNIQUE:
        return ""
    bound = 0.0
    if not DType.of(wanted.dtype).is_inexact:
        kinds = {"another value": wanted != got}
    else:
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        wanted, got, plain = (None if a is None else a.astype(wide) for a in (wanted, got, plain))
        if name in UP_TO_SIGNS:
            wanted, got, plain = (None if a is None else np.abs(a) for a in (wanted, got, plain))
        bound = _bound(wanted, coarsest)
        kinds = _wrong(wanted, got, bound)
    if values != "plain" and plain is not None:
        excused = forgiven(name, values, Elements(wanted, got, plain), backend)
        kinds = {kind: wrong & ~excused for kind, wrong in kinds.items()}
    for kind, wrong in kinds.items():
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            where = f"wanted {wanted[place]} at {place}, got {got[place]}"
            return f"{kind}: {where} ({np.count_nonzero(wrong)} of {wrong.size}; {bound:.2g} is allowed)"
    return ""


def _bound(wanted: np.ndarray, coarsest: str) -> float:
    """How far numbers may be off."""
    with np.errstate(all="ignore"):
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    return ROUNDINGS[coarsest] * EPSILON[coarsest] * float(np.minimum(largest, np.finfo(np.float64).max))


def _wrong(wanted: np.ndarray, got: np.ndarray, bound: float) -> dict[str, np.ndarray]:
    """Elements that are wrong, by what is wrong with them.

    A complex number is finite or not as a whole: by C99 and NumPy alike inf + i·NaN is an infinity too, and which part
    of a product of infinities is NaN depends on how it is written down.
    """
    finite = np.isfinite(wanted)
    with np.errstate(all="ignore"):
        far = finite & np.isfinite(got) & (np.abs(wanted - got) > bound)
    if wanted.dtype.kind == "c":
        return {"finite elsewhere": finite != np.isfinite(got), "too far": far}
    places = {"NaN elsewhere": np.isnan, "+inf elsewhere": np.isposinf, "-inf elsewhere": np.isneginf}
    return {kind: place(wanted) != place(got) for kind, place in places.items()} | {"too far": far}
