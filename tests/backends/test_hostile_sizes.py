"""Sizes that a program does not allow: refused when they are bound, on every device, and never run.

Every op declares samples. Their sizes are replaced by symbols, and these bound to what does not fit: what `infer` says
of the sizes themselves is what the recorded constraints must say (`test_constraints_say_what_infer_says`), and the
compiled program must do what the reference does (`test_backends_do_what_the_reference_does`).
"""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.hir  # fills the registry
import rlx.ops as ops
import rlx.sparse  # registers ops
from conformance.backends_here import BY_OTHERS, each_backend, skip_other_samples
from op_samples import LEAVES, applied, samples_of
from rlx.compile.claims.legalize import LegalizeError
from rlx.errors import BindingError, InternalError, RlxError, ShapeError
from rlx.ir.binding import bind_graph
from rlx.ir.dims import DimConstraint, as_dim, require_at_most
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES
from rlx.ir.serialize import from_bytes, to_bytes
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.text.graph_text import parse, show

BACKENDS = each_backend(pytest.mark.targets)
DEVICES = ("reference", *BACKENDS)


# What the constraints say against what `infer` says


def symbolic_forms(sample):
    """The op and its operand types with symbols for sizes, and the sizes that the sample gives them."""
    shapes = sample.shapes(sample.dtypes[0])
    if sample.binding:
        yield sample.op, shapes, sample.binding
    op, fixed = sample.op.bind(sample.binding), [s.bind(sample.binding) for s in shapes]
    places = [(i, axis) for i, s in enumerate(fixed) for axis in range(s.rank)]
    each = {place: f"D{place[0]}_{place[1]}" for place in places}
    by_size = {(i, axis): f"N{fixed[i].dims[axis]}" for i, axis in places}
    # Every size its own symbol; equal sizes one symbol; one size alone; one group of equal sizes alone.
    chosen = [each, by_size, *({place: each[place]} for place in places[:4])]
    chosen += [{p: n for p, n in by_size.items() if n == name} for name in sorted({*by_size.values()})]
    seen = set()
    for names in chosen:
        # Where all sizes differ, several of these are the same form under other names.
        form = frozenset(frozenset(p for p in names if names[p] == name) for name in names.values())
        if form in seen:
            continue
        seen.add(form)
        dims = [[names.get((i, axis), d) for axis, d in enumerate(s.dims)] for i, s in enumerate(fixed)]
        sizes = {name: fixed[i].dims[axis] for (i, axis), name in names.items()}
        if sizes:
            yield op, [Shape(d, s.dtype) for d, s in zip(dims, fixed)], sizes


def hostile(sizes):
    """Bindings near `sizes` and far from them: one symbol at a time, and all at once."""
    others = {name: {0, 1, max(size - 1, 0), size + 1, 3 * size + 1} - {size} for name, size in sizes.items()}
    found = [{**sizes, name: other} for name in sizes for other in sorted(others[name])]
    found += [dict.fromkeys(sizes, size) for size in (0, 1, 2)]
    return [binding for i, binding in enumerate(found) if binding not in found[:i]]


def attempt(function, *arguments):
    """The result and no error, or no result and the error of rlx."""
    try:
        return function(*arguments), None
    except RlxError as error:
        return None, error


# Ops that have other rules for a fixed size of 0, which a symbol is never: a window over nothing, an absent scale.
SPECIAL_AT_ZERO = {"ReduceWindow", "DequantMatMul", "DequantGroupedMatMul"}


def may_be_stricter(name, constraint, binding):
    """Whether a symbolic program may refuse what a fixed one accepts; a symbol never counts as 1 in broadcasting."""
    bound = constraint.bind(binding)
    is_broadcast = bound.relation == "==" and 1 in (bound.left, bound.right)
    return is_broadcast or (name in SPECIAL_AT_ZERO and 0 in binding.values())


@pytest.mark.parametrize("name", [n for n in OP_CLASSES if n not in LEAVES])
def test_constraints_say_what_infer_says(name):
    for sample in samples_of(name):
        for op, shapes, sizes in symbolic_forms(sample):
            graph, _ = attempt(applied, op, shapes)
            # An op that needs fixed sizes says so while the program is built.
            for binding in hostile(sizes) if graph is not None else ():
                operands, impossible = attempt(lambda b, given: [s.bind(b) for s in given], binding, shapes)
                if impossible:
                    continue  # No array has the size that an operand would have.
                bound, refused = attempt(op.bind, binding)
                if bound is not None:
                    _, refused = attempt(applied, bound, operands)
                broken = [c for c in graph.constraints if attempt(c.check, binding)[1]]
                message = f"{op!r} of {shapes} with {binding}: infer says {refused}, the constraints {broken}"
                if refused is None:
                    assert all(may_be_stricter(name, c, binding) for c in broken), message
                else:
                    assert broken, message


# What devices do

# A loop over no rows need not end, by its definition.
ENDLESS = {"While"}
# Vectors are unique up to their signs, so only whether a size is refused is compared.
UP_TO_SIGNS = {"Eig", "Eigh", "OrthogonalRows", "Svd"}


def symbolic_samples():
    for name in OP_CLASSES:
        if name in LEAVES | ENDLESS:
            continue
        for number, sample in enumerate(samples_of(name)):
            if sample.binding:
                marks = [pytest.mark.long] if name.startswith("GaussianSplat") else []
                yield pytest.param(name, sample, id=f"{name}-{number}", marks=marks)


def near(sizes):
    """Fewer bindings than `hostile`, since these are run."""
    found = [{**sizes, name: other} for name, size in sizes.items() for other in (0, size + 1)]
    found += [dict.fromkeys(sizes, size) for size in (0, 1)]
    return [binding for i, binding in enumerate(found) if binding not in found[:i]]


@pytest.mark.parametrize("name, sample", list(symbolic_samples()))
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_do_what_the_reference_does(backend, name, sample):
    dtype = "f32" if "f32" in sample.dtypes else sample.dtypes[0]
    skip_other_samples(backend, name)
    reference = rlx.Session("reference").compile(applied(sample.op, sample.shapes(dtype)))
    try:
        own = rlx.Session(backend).compile(applied(sample.op, sample.shapes(dtype)))
    except LegalizeError as refusal:
        if backend not in BY_OTHERS:
            raise
        pytest.skip(str(refusal))
    for binding in near(sample.binding):
        try:
            arrays = sample._replace(binding=binding).arrays(dtype)
        except (ValueError, RlxError):
            continue  # The sample's values are given for its own sizes only, or an operand's size would be negative.
        inputs = {f"x{i}": array for i, array in enumerate(arrays)}
        (wanted, refused), (got, error) = (attempt(compiled.run, inputs) for compiled in (reference, own))
        # What is lowered for known sizes meets the rules of other ops, some of which are stricter about nothing at all.
        if refused is None and isinstance(error, ShapeError) and backend in BY_OTHERS and 0 in binding.values():
            continue
        assert not isinstance(refused, InternalError) and not isinstance(error, InternalError), (binding, error)
        assert (refused is None) == (error is None), (binding, refused, error)
        if wanted is not None and name not in UP_TO_SIGNS:
            for a, b in zip(wanted, got, strict=True):
                assert_close(np.asarray(a), np.asarray(b))


def assert_close(wanted, got):
    """Equal up to a few roundings, as far as the reference is finite: only sizes are in question here."""
    assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype)
    tolerance = 2e-2 if wanted.dtype.itemsize == 2 else 1e-4
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    wanted, got = wanted.astype(wide), got.astype(wide)
    finite = np.isfinite(wanted)
    scale = np.abs(wanted[finite]).max(initial=1.0)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=tolerance, atol=tolerance * scale)


# Ops that have their sizes in a body or an attribute, and operands whose sizes are symbols

FIXED_INSIDE = ("AttentionBackward", "Checkpoint", "CustomFn", "Dequantize", "If", "KeepPrecision", "Quantize", "Scan")


@pytest.mark.parametrize("name", [*FIXED_INSIDE, "ScanBackward", "Switch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_fixed_sizes_inside_meet_symbols_outside(backend, name):
    found = 0
    for sample in samples_of(name):
        dtype = "f32" if "f32" in sample.dtypes else sample.dtypes[0]
        op, fixed = sample.op.bind(sample.binding), [s.bind(sample.binding) for s in sample.shapes(dtype)]
        shapes = [Shape([f"N{d}" for d in s.dims], s.dtype) for s in fixed]
        graph, _ = attempt(applied, op, shapes)
        if graph is None or not graph.constraints or found == 2:
            continue
        found += 1
        reference, own = (rlx.Session(d).compile(applied(op, shapes)) for d in ("reference", backend))
        right = {f"x{i}": array for i, array in enumerate(sample.arrays(dtype))}
        for a, b in zip(reference.run(right), own.run(right), strict=True):
            assert_close(np.asarray(a), np.asarray(b))
        wrong = {f"x{i}": np.zeros([d + 1 for d in s.dims], s.dtype.numpy) for i, s in enumerate(fixed)}
        for compiled in (reference, own):
            with pytest.raises(BindingError):
                compiled.run(wrong)
    assert found


# What used to read memory outside of an operand, end the process or answer in silence

THREE = np.ones(3, np.float32)
NONE = np.ones(0, np.float32)
SMALL = np.ones((1, 2, 2, 2), np.float32)


def rope_beyond_tables(x, cos, sin):
    return ops.rope(x, cos, sin, head_dim=4)


CASES = {
    "a number": (lambda x: x[5] + 0.0, [("S",)], [THREE], "6 <= S"),
    "a far number": (lambda x: x[49999999] + 0.0, [("S",)], [THREE], "50000000 <= S"),
    "a number from the end": (lambda x: x[-5] + 0.0, [("S",)], [THREE], "0 <= S - 5"),
    "known ids": (lambda x: x[np.array([0, 5])] + 0.0, [("S",)], [THREE], "6 <= S"),
    "known negative ids": (lambda x: ops.take(x, [-4]) + 0.0, [("S",)], [THREE], "4 <= S"),
    "a known mask": (lambda x: x[np.array([True] * 5)] + 0.0, [("S",)], [THREE], "5 == S"),
    "narrow": (lambda x: ops.narrow(x, 0, 2, 4) + 0.0, [("S",)], [THREE], "6 <= S"),
    "slice": (lambda x: ops.slice_(x, [1], [4]) + 0.0, [("S",)], [THREE], "4 <= S"),
    "dynamic_slice": (lambda x: ops.dynamic_slice(x, [0], [4]) + 0.0, [("S",)], [THREE], "4 <= S"),
    "dynamic_update_slice": (
        lambda x, y: ops.dynamic_update_slice(x, y, [0]),
        [("S",), (4,)],
        [THREE, np.ones(4, np.float32)],
        "4 <= S",
    ),
    "a table of positions": (
        lambda x, table: x + ops.narrow(table, 0, 0, x.shape[0]),
        [("S",), (2,)],
        [THREE, THREE[:2]],
        "S <= 2",
    ),
    "rope": (
        rope_beyond_tables,
        [(1, "S", 8), (4, 2), (4, 2)],
        [np.ones((1, 6, 8), np.float32), np.ones((4, 2), np.float32), np.ones((4, 2), np.float32)],
        "S <= 4",
    ),
    "top_k": (lambda x: ops.top_k(x, 5)[0], [("S",)], [THREE], "5 <= S"),
    "argmax": (lambda x: ops.argmax(x, 0), [("S",)], [NONE], "1 <= S"),
    "argmin": (lambda x: ops.argmin(x, 0), [("S",)], [NONE], "1 <= S"),
    "conv": (
        lambda x, w: ops.conv(x, w),
        [(1, 2, "H", 2), (2, 2, 3, 1)],
        [SMALL, np.ones((2, 2, 3, 1), np.float32)],
        "3 <= H",
    ),
    "reduce_window": (lambda x: ops.reduce_window(x, "sum", (3,)), [("S",)], [THREE[:2]], "3 <= S"),
    "pad": (lambda x: ops.pad(x, 0.0, [-4], [0]) + 0.0, [("S",)], [THREE], "0 <= S - 4"),
    "a loop's body": (
        lambda x: rlx.scan(lambda c, _: (c + x[5], None), np.float32(0), None, length=2)[0],
        [("S",)],
        [THREE],
        "6 <= S",
    ),
    "choice": (lambda x: rlx.random.choice(rlx.random.key(0), x, (5,), replace=False), [("S",)], [THREE], "5 <= S"),
}


def program(function, dims):
    graph = Graph("hostile")
    with building(graph):
        graph.set_outputs([function(*(graph.input(f"x{i}", d) for i, d in enumerate(dims)))])
    return graph


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_sizes_outside_of_operands_are_refused(case, device):
    function, dims, arrays, wanted = CASES[case]
    compiled = rlx.Session(device).compile(program(function, dims))
    with pytest.raises(BindingError) as caught:
        compiled.run({f"x{i}": array for i, array in enumerate(arrays)})
    assert f"needs {wanted}, but with" in str(caught.value)


# Sizes that no memory holds, and sizes beyond 64 bits; nothing of them is stored in the operands.

ROW = np.ones(1 << 20, np.float32)
NO_ROWS = np.empty((0, 1 << 40), np.float32)
ONE_NUMBER = np.broadcast_to(np.float32(1), (1 << 50,))


def to_the_fourth(x):
    size = x.shape[0]
    return ops.reduce_sum(ops.broadcast_to(x, (size * size * size * size, size)))


HUGE = {
    "a result": (lambda x: ops.expand_dims(x, 1) * x, [("S",)], [np.ones(1 << 24, np.float32)]),
    "values in between": (
        lambda x: ops.sort(ops.expand_dims(x, 1) * x)[0, 0],
        [("S",)],
        [np.ones(1 << 24, np.float32)],
    ),
    "an operand that is one number": (lambda x: x + 1.0, [("S",)], [ONE_NUMBER]),
    "padding": (lambda x: ops.pad(x, 0.0, [1 << 50], [0]), [("S",)], [THREE]),
    "more bytes than 2**63": (lambda x: ops.transpose(x) @ x, [("B", "S")], [NO_ROWS]),
    "more elements than 2**63": (lambda x: ops.broadcast_to(x, (1 << 62, x.shape[0])) + 0.0, [("S",)], [THREE]),
    "a size beyond 2**63": (to_the_fourth, [("S",)], [ROW]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", HUGE)
def test_sizes_that_no_memory_holds_are_refused(case, device):
    function, dims, arrays = HUGE[case]
    compiled = rlx.Session(device).compile(program(function, dims))
    with pytest.raises(RlxError) as caught:
        compiled.run({f"x{i}": array for i, array in enumerate(arrays)})
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_much_is_nothing(device):
    [got] = rlx.Session(device).compile(program(lambda x: x + 1.0, [("B", "S")])).run(x0=NO_ROWS)
    assert got.shape == NO_ROWS.shape


def test_binding_a_graph_checks_it():
    graph = program(*CASES["narrow"][:2])
    with pytest.raises(RlxError):
        bind_graph(graph, {"S": 3})
    assert bind_graph(graph, {"S": 6}).constraints == []
    assert [str(c.right) for c in bind_graph(graph, {"S": as_dim("2*T")}).constraints] == ["2*T"]


def test_a_program_still_runs_at_other_sizes_after_a_refusal():
    compiled = rlx.Session("cpu").compile(program(*CASES["a number"][:2]))
    for size in (3, 6, 5, 7):
        if size > 5:
            assert compiled.run({"x0": np.arange(size, dtype=np.float32)})[0] == 5
        else:
            with pytest.raises(BindingError):
                compiled.run({"x0": np.arange(size, dtype=np.float32)})


@pytest.mark.parametrize("again", [lambda g: parse(show(g)), lambda g: from_bytes(to_bytes(g))], ids=["text", "binary"])
@pytest.mark.parametrize("case", ["narrow", "rope", "a loop's body"])
def test_files_keep_what_must_hold(case, again):
    graph = program(*CASES[case][:2])
    assert set(again(graph).constraints) == set(graph.constraints)


def test_sizes_that_may_be_negative_are_recorded_once():
    graph = Graph("negative")
    x = graph.input("x", ("S",))
    graph.set_outputs([ops.exp(ops.narrow(x, 0, 2, x.shape[0] - 2))])
    assert [str(c.right) for c in graph.constraints] == ["S - 2"]


def test_what_holds_for_all_sizes_is_not_recorded():
    graph = Graph("fine")
    x = graph.input("x", ("S",))
    graph.set_outputs([x[:5], x[-3:], x[1:], x[::-1], x[1:-1]])
    for size in range(12):
        (first, *_), wanted = rlx.Session("reference").compile(graph).run({"x": np.arange(size, dtype=np.float32)}), 5
        assert first.shape == (min(size, wanted),)
    assert require_at_most(as_dim("min(S, 5)"), as_dim("S"), "x") and require_at_most(5, as_dim("S + 5"), "x")
    assert not require_at_most(as_dim("S + 1"), as_dim("S"), "x")


def test_relations_are_a_closed_set():
    with pytest.raises(RlxError, match="does not relate"):
        DimConstraint(1, as_dim("S"), "x", "<")
