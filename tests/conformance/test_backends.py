"""Every backend that has a device here, and a device whose memory the host cannot read, against the reference.

`make test` runs a seeded tenth of the samples of each op, at least one; `make test-long` runs all of them. Backends
that another package compiles for run in `make test-targets` (a tenth) and `make test-targets-full` (all): what they
refuse is skipped with its reason, and tests of their own hold the list of it closed.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import rlx
from compile.family_programs import FAMILIES, forward, training, values_for
from conformance import suite
from conformance.backends_here import OWN, each_backend, skip_other_samples
from conformance.differences import DIFFERENCES
from conformance.suite import OPS, available, cases, check, check_program, loaded_together, tenth, value_sets
from random_graphs import BINDING, STEPS, graphs, inputs_for
from rlx.backends import api
from rlx.compile import target as targets
from rlx.compile.claims.legalize import LegalizeError
from rlx.ir.interpret import interpret
from runtime.fake_device import FakeSpace, fake_target

# They print, or call into Python, which is the point of them: tests/ops/test_effects.py looks at what they do.
EFFECTS = {"DebugPrint", "HostCallback"}
NAMES = [name for name in OPS if name not in EFFECTS]
# Steps after which a rounding stays a rounding.
CONTINUOUS = tuple(step for step in STEPS if step[0].__name__ not in ("compare", "select", "cast"))
WAYS = {"forward": forward, "training": training}


@pytest.fixture
def space(monkeypatch):
    """The memory of a fake device that is registered like one of another package."""
    made = FakeSpace("fake")
    monkeypatch.setitem(targets._registered, "fake", fake_target("fake", [made]))
    monkeypatch.setattr(api, "_backends", {})
    rlx.clear_compile_cache()
    yield made
    rlx.clear_compile_cache()


def assert_conforms(chosen, backend):
    failures, refusals = [], []
    with loaded_together(chosen, backend):
        for case in chosen:
            try:
                failures += check(case, backend)
            except LegalizeError as refusal:
                if backend in OWN:
                    raise
                refusals.append(str(refusal))
    assert not failures, "\n".join(map(str, failures[:10]))
    if len(refusals) == len(chosen):
        pytest.skip(refusals[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", each_backend(pytest.mark.targets))
def test_a_tenth(backend, name):
    skip_other_samples(backend, name)
    assert_conforms(tenth(name), backend)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", OWN)
def test_all(backend, name):
    assert_conforms(cases(name), backend)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", each_backend(pytest.mark.targets_full)[len(OWN) :])
def test_all_with_tools(backend, name):
    skip_other_samples(backend, name)
    assert_conforms(cases(name), backend)


def test_values_of_a_device_stay_there(space, monkeypatch):
    assert "fake" in available()
    asked_for = []

    def on_backend(*given, really=suite.on_backend):
        results, error = really(*given)
        asked_for.extend(results or ())
        return results, error

    monkeypatch.setattr(suite, "on_backend", on_backend)
    chosen = [tenth(name)[0] for name in NAMES[::10]]
    assert_conforms(chosen, "fake")
    runs = [(case, len(list(value_sets(case)))) for case in chosen]
    assert space.runs == sum(count for _, count in runs) > 50
    # Operands go there one by one, and results come back because the suite asks for them: nothing else does.
    assert space.uploads == sum(count * len(case.sample.operands) for case, count in runs)
    assert space.downloads == len(asked_for)


def test_a_backend_that_loses_a_nan_is_found(space, monkeypatch):
    """The suite itself can fail, and says where."""
    monkeypatch.setattr(
        FakeSpace, "content", lambda self, value, honest=FakeSpace.content: without_nan(honest(self, value))
    )
    (case,) = [case for case in cases("Reverse") if case.number == 0 and case.dtype == "f32"]
    failures = [str(failure) for failure in check(case, "fake")]
    assert len(failures) == 2 and "fake: Reverse sample 0 in f32: Reverse(" in failures[0]
    assert "values nan in operand 0: result 0: NaN elsewhere: wanted nan at (" in failures[0]


def without_nan(array):
    return np.nan_to_num(array, posinf=np.inf, neginf=-np.inf) if array.dtype.kind == "f" else array


def test_differences_are_about_ops_that_exist():
    assert {name for difference in DIFFERENCES.values() for name in difference.ops} <= {*OPS}


OVERFLOWING = {name for reason in ("overflow", "overflow on the way") for name in DIFFERENCES[reason].ops}


@pytest.mark.parametrize("name", sorted(n for n in OVERFLOWING if any(c.dtype == "f64" for c in cases(n))))
def test_what_overflows_in_f32_is_right_in_f64(name):
    """The reason that these entries give is the only one: the numbers which are too large for kernels in f32 are right
    in f64, which has room for their squares, and nothing is forgiven."""
    case = next(c for c in cases(name) if c.dtype == "f64")
    compiled = rlx.Session("cpu").compile(case.graph())
    plain = case.sample.arrays("f64")
    for i, array in enumerate(plain):
        if array.dtype != np.float64 or not array.size:
            continue
        values = [a.copy() for a in plain]
        values[i].flat[array.size // 2] = np.finfo(np.float32).max
        with np.errstate(all="ignore"):
            wanted = interpret(case.graph(), values, case.sample.binding)
            got = [np.asarray(r) for r in compiled.run({f"x{k}": a for k, a in enumerate(values)})]
        for number, (w, g) in enumerate(zip(wanted, got, strict=True)):
            assert not suite.compare(w, g, "f64", name), f"operand {i}, result {number}"


@pytest.mark.long
def test_no_difference_is_out_of_date(monkeypatch):
    """Each op of each entry still needs it, on one of the backends that are here."""
    idle = []
    for reason, difference in DIFFERENCES.items():
        for name in difference.ops:
            others = tuple(n for n in difference.ops if n != name)
            monkeypatch.setitem(DIFFERENCES, reason, difference._replace(ops=others))
            backends = [b for b in difference.backends or OWN if b in available()]
            found = (failure for backend in backends for case in cases(name) for failure in check(case, backend))
            if backends and not any(found):
                idle.append((reason, name))
        monkeypatch.setitem(DIFFERENCES, reason, difference)
    assert idle == []


# On the CPU tests/compile/test_families.py has them all in `make test`, in three precisions against f64.
WITH_FAMILIES = [
    pytest.param(b, marks=pytest.mark.long) if b == "cpu" else b for b in each_backend(pytest.mark.targets)
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("backend", WITH_FAMILIES)
def test_families(backend, name, way):
    graph = WAYS[way](FAMILIES[name], "f32")
    assert check_program(graph, values_for(FAMILIES[name], graph), {"B": 2}, backend) == []


@settings(max_examples=15, derandomize=True)
@given(graph=graphs(steps=CONTINUOUS))
def test_random_graphs(graph):
    for backend in OWN:
        assert check_program(graph, inputs_for(graph), BINDING, backend) == []


@pytest.mark.parametrize("backend", each_backend(pytest.mark.targets)[len(OWN) :])
@settings(max_examples=10, derandomize=True)
@given(graph=graphs(steps=CONTINUOUS))
def test_random_graphs_with_tools(backend, graph):
    try:
        assert check_program(graph, inputs_for(graph), BINDING, backend) == []
    except LegalizeError as refusal:
        assert backend == "wgpu" and "WGSL has no f64" in str(refusal)


@pytest.mark.long
@settings(max_examples=500, derandomize=True)
@given(graph=graphs(steps=CONTINUOUS))
def test_many_random_graphs(graph):
    for backend in OWN:
        assert check_program(graph, inputs_for(graph), BINDING, backend) == []
