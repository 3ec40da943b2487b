"""Programs on disk: found again by the next process, compiled anew whenever anything about them is in doubt."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import rlx
from rlx.backends import cpu
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.native.code_cache import loader
from rlx.backends.native.object_cache import DiskCache
from rlx.backends.program import program_cache, program_json
from rlx.errors import FormatError
from rlx.knobs import knobs

rng = np.random.default_rng(5)
LAYERS = 12


def network(name="network", scale=0.5, layers=LAYERS, prints=False):
    """Products, rows, prepared weights, symbolic sizes, a constant, and an output in the place of its input."""
    g = rlx.Graph(name)
    x, state = g.input("x", ("B", 8)), g.input("state", ("B", 8))
    for i in range(layers):
        w, b = g.param(f"w{i}", (8, 8)), g.param(f"b{i}", (8,))
        x = x + rlx.softmax(rlx.tanh(x @ rlx.transpose(w, (1, 0)) + b) * scale)
    offset = g.constant(np.linspace(0, 1, 8, dtype="f4"))
    new = state + x
    g.set_outputs([new, rlx.debug_print("{}", x) if prints else x + offset])
    g.alias(new, "state")
    return g


def inputs():
    return {"x": rng.normal(size=(3, 8)).astype("f4"), "state": np.zeros((3, 8), "f4")}


PARAMS = {f"w{i}": rng.normal(size=(8, 8)).astype("f4") for i in range(LAYERS)}
PARAMS |= {f"b{i}": rng.normal(size=8).astype("f4") for i in range(LAYERS)}


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """A cache of programs of this test alone."""
    kept = DiskCache(tmp_path, "programs")
    monkeypatch.setattr(program_cache, "_entries", lambda: kept)
    return kept


@pytest.fixture
def compiles(monkeypatch):
    """The graphs that were compiled."""
    seen = []
    compile = cpu.compile_with_options
    monkeypatch.setattr(cpu, "compile_with_options", lambda g, *rest: seen.append(g) or compile(g, *rest))
    return seen


def outputs(executable, x):
    return [np.array(y) for y in executable.run({k: v.copy() for k, v in x.items()}, executable.prepare(PARAMS))]


def test_the_second_compile_is_none(entries, compiles):
    x = inputs()
    wanted = outputs(CpuBackend().compile(network()), x)
    found = CpuBackend().compile(network())
    assert len(compiles) == 1
    for a, b in zip(wanted, outputs(found, x), strict=True):
        np.testing.assert_array_equal(a, b)
    # Other sizes, and the array of the aliased input, as with the program that was compiled.
    y = {"x": np.ones((7, 8), "f4"), "state": np.ones((7, 8), "f4")}
    state, _ = found.run(y, found.prepare(PARAMS))
    assert np.shares_memory(state, y["state"])


def test_what_was_written_is_what_is_read(entries):
    programs = CpuBackend().compile(network()).programs
    text = program_json.programs_to_json(programs)
    again = program_json.programs_from_json(text, loader())
    assert program_json.programs_to_json(again) == text
    assert [s.label for s in again.main.steps] == [s.label for s in programs.main.steps]
    assert again.main.params == programs.main.params and again.main.visible == programs.main.visible


def test_the_report_is_that_of_a_compile(entries, compiles):
    wanted = CpuBackend().compile(network()).report
    graph = network()
    found = CpuBackend().compile(graph)
    graph.input("later", (1,))
    assert found.report == wanted and found.arena_bytes == found.lir.arena_size
    assert len(compiles) == 2


def test_keys_tell_programs_apart(monkeypatch):
    plain = CompileOptions()
    keys = [
        program_cache.program_key(network(), plain),
        program_cache.program_key(network("other"), plain),
        program_cache.program_key(network(scale=0.25), plain),
        program_cache.program_key(network(), plain.with_precision("bf16")),
        program_cache.program_key(network(), plain.with_cache_param_invariant(False)),
    ]
    with knobs(arena_align=128):
        keys.append(program_cache.program_key(network(), plain))
    monkeypatch.setattr(program_cache, "compiler_stamp", lambda: "a later compiler")
    keys.append(program_cache.program_key(network(), plain))
    assert None not in keys and len(set(keys)) == len(keys)


def test_keys_do_not_depend_on_threads():
    assert program_cache.program_key(network(), CompileOptions(threads=1)) == program_cache.program_key(
        network(), CompileOptions(threads=2)
    )


@pytest.mark.parametrize("setting", [{"debug": 1}, {"dump": "x"}, {"fusion_report": True}, {"verify": 2}])
def test_who_watches_a_compile_gets_one(setting):
    with knobs(**setting):
        assert program_cache.program_key(network(), CompileOptions()) is None


def test_programs_with_effects_are_compiled():
    assert program_cache.program_key(network(prints=True), CompileOptions()) is None


def test_the_first_small_programs_are_kept_and_no_more(monkeypatch):
    monkeypatch.setattr(program_cache, "KEPT_SMALL", 2)
    monkeypatch.setattr(program_cache, "_small_programs", itertools.count())
    small = network(layers=2)
    assert len(small.nodes) < program_cache.SMALL
    with knobs(trace_perfetto="x"):
        assert program_cache.program_key(small, CompileOptions()) is None, "a trace shows the compile"
    keys = [program_cache.program_key(small, CompileOptions()) for _ in range(4)]
    assert None not in keys[:2] and keys[2:] == [None, None]
    assert program_cache.program_key(network(), CompileOptions()) is not None


def rewritten(content):
    """The entry with something else in it, and a checksum that holds."""

    def damage(entries, key):
        document = json.loads(entries.get(key))
        entries.put(key, content(document))

    return damage


def without(name):
    return rewritten(lambda d: json.dumps({k: v for k, v in d.items() if k != name}).encode())


@pytest.mark.parametrize(
    "damage",
    [
        lambda e, key: e._path(key).write_bytes(b""),
        lambda e, key: e._path(key).write_bytes(e._path(key).read_bytes()[:-5]),
        lambda e, key: e._path(key).unlink(),
        rewritten(lambda d: b"not json"),
        rewritten(lambda d: json.dumps({**d, "version": 99}).encode()),
        rewritten(lambda d: json.dumps({**d, "format": "rlx.lir"}).encode()),
        rewritten(lambda d: json.dumps({**d, "codes": [["map", "0" * 64, [[], [], None]]]}).encode()),
        rewritten(lambda d: json.dumps({**d, "sizes": []}).encode()),
        rewritten(lambda d: json.dumps({**d, "main": {**d["main"], "steps": [[0]]}}).encode()),
        without("main"),
        without("prepare"),
    ],
    ids=[
        "empty",
        "truncated",
        "deleted",
        "noise",
        "other version",
        "other format",
        "code that is gone",
        "no sizes",
        "half a step",
        "no program",
        "no preparation",
    ],
)
def test_damaged_entries_are_compiled_anew(damage, entries, compiles):
    x = inputs()
    wanted = outputs(CpuBackend().compile(network()), x)
    [path] = entries.directory.iterdir()
    damage(entries, path.stem)
    again = outputs(CpuBackend().compile(network()), x)
    assert len(compiles) == 2
    for a, b in zip(wanted, again, strict=True):
        np.testing.assert_array_equal(a, b)
    CpuBackend().compile(network())
    assert len(compiles) == 2, "the entry is whole again"


def test_what_is_no_document_is_refused():
    for text in ("[]", "{}", "3", '{"format": "rlx.cpu_programs", "version": 1}'):
        with pytest.raises(FormatError, match="these are no programs"):
            program_json.programs_from_json(text, loader())


PROCESS = """
import sys, numpy as np, rlx
g = rlx.Graph("processes")
x = g.input("x", ("B", 8))
params = {}
for i in range(12):
    w, b = g.param(f"w{i}", (8, 8)), g.param(f"b{i}", (8,))
    params |= {f"w{i}": np.eye(8) * i, f"b{i}": np.arange(8.0)}
    x = x + rlx.softmax(rlx.tanh(x @ rlx.transpose(w, (1, 0)) + b) * 0.5)
g.set_outputs([x])
c = rlx.Session("cpu").compile(g)
c.set_params(params)
x = np.linspace(-1, 1, 40, dtype="f4").reshape(5, 8)
print(np.asarray(c.run(x=x)[0]).tobytes().hex(), "rlx.compile.fuse.group" in sys.modules)
"""


def test_the_next_process_does_not_load_the_compiler(tmp_path):
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env={**os.environ, "RLX_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert runs[0][0] == runs[1][0]
    assert [loaded for _, loaded in runs] == ["True", "False"]
