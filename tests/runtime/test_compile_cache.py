"""One compile for a program, however often it is built; a count and a reason for every compile there is."""

import threading

import numpy as np
import pytest

import rlx
from rlx.errors import RlxError
from rlx.runtime.compile_cache import ProgramCache


def scaled(name="scaled", dims=(4,), factor=2.0):
    g = rlx.Graph(name)
    g.set_outputs([g.input("x", dims, "f32") * factor])
    return g


def reasons(start):
    return [event.reason for event in rlx.compile_log() if event.number > start]


@pytest.fixture(autouse=True)
def nothing_kept():
    rlx.clear_compile_cache()


def test_the_same_program_is_compiled_once():
    start = rlx.compile_count()
    one, other = (rlx.Session("cpu").compile(scaled("once")) for _ in range(2))
    assert rlx.compile_count() == start + 1
    assert one._executable is other._executable
    np.testing.assert_array_equal(one.run(x=np.ones(4, "f4"))[0], other.run(x=np.ones(4, "f4"))[0])


def test_weights_are_not_shared():
    def weighted():
        g = rlx.Graph("weighted")
        g.set_outputs([g.input("x", (2,)) * g.param("w", (2,))])
        return rlx.Session("cpu").compile(g)

    one, other = weighted(), weighted()
    assert one._executable is other._executable
    one.set_param("w", np.ones(2))
    other.set_param("w", np.full(2, 3.0))
    x = np.ones(2, "f4")
    assert [c.run(x=x)[0][0] for c in (one, other)] == [1.0, 3.0]


def test_every_compile_has_a_reason():
    start = rlx.compile_count()
    session = rlx.Session("cpu")
    session.compile(scaled("reasons"))
    session.compile(scaled("reasons", (8,)))
    session.compile(scaled("reasons", (8,), 3.0))
    session.compile_with(scaled("reasons", (8,), 3.0), rlx.CompileOptions(policy="AutoMixedBf16"))
    rlx.clear_compile_cache()
    session.compile(scaled("reasons"))
    first, sizes, content, options, evicted = reasons(start)
    assert first == "the first program of this name for cpu"
    assert sizes.startswith("x was f32[4] and is f32[8]; sizes that change may be symbolic")
    assert content.startswith("another program of this name")
    assert options == "other options: policy='AutoMixedBf16'"
    assert evicted.startswith("it had been compiled, but only the last")


def test_one_compile_serves_all_symbolic_sizes():
    c = rlx.Session("cpu").compile(scaled("symbolic", ("N",)))
    start = rlx.compile_count()
    for n in (1, 5, 0, 1000):
        assert c.run(x=np.ones(n, "f4"))[0].shape == (n,)
    assert rlx.compile_count() == start


def test_functions_count_too():
    start = rlx.compile_count()
    f = rlx.jit(lambda x: x + 1.0)
    for _ in range(3):
        f(np.ones(3, "f4"))
    f(np.ones(5, "f4"))
    assert rlx.compile_count() == start + 2
    assert "f32[3] and is f32[5]" in reasons(start)[1]


def test_knobs_are_part_of_the_key():
    session, start = rlx.Session("cpu"), rlx.compile_count()
    session.compile(scaled("knobs"))
    from rlx.knobs import knobs

    with knobs(arena_align=256):
        session.compile(scaled("knobs"))
    assert rlx.compile_count() == start + 2


def test_constants_are_part_of_the_key():
    def plus(value):
        g = rlx.Graph("constants")
        g.set_outputs([g.input("x", (300,)) + np.full(300, value, "f4")])
        return rlx.Session("cpu").compile(g).run(x=np.zeros(300, "f4"))[0][0]

    assert [plus(1.0), plus(2.0), plus(1.0)] == [1.0, 2.0, 1.0]


def test_large_constants_are_not_looked_at(monkeypatch):
    monkeypatch.setattr("rlx.runtime.compile_cache.MAX_CONSTANTS", 100)
    start = rlx.compile_count()
    for _ in range(2):
        g = rlx.Graph("large")
        g.set_outputs([g.input("x", (300,)) + np.ones(300, "f4")])
        rlx.Session("cpu").compile(g)
    assert rlx.compile_count() == start + 2


def test_the_least_recently_used_program_leaves():
    cache = ProgramCache(capacity=2)
    options = rlx.CompileOptions()
    a, b, c = (scaled(f"lru{i}") for i in range(3))
    first = cache.get(a, "reference", options)
    cache.get(b, "reference", options)
    assert cache.get(a, "reference", options) is first
    cache.get(c, "reference", options)
    assert len(cache) == 2
    assert cache.get(a, "reference", options) is first
    cache.get(b, "reference", options)
    assert cache.count == 4


def test_many_threads_get_one_program():
    found = []

    def compile_it():
        found.append(rlx.Session("cpu").compile(scaled("threads"))._executable)

    threads = [threading.Thread(target=compile_it) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_debug_prints_compiles(capsys):
    from rlx.knobs import knobs

    with knobs(debug=1):
        rlx.Session("reference").compile(scaled("printed"))
    assert "@printed for reference" in capsys.readouterr().err


# Options.


def test_sizes_and_weights_can_be_fixed():
    g = rlx.Graph("fixed")
    g.set_outputs([g.input("x", ("B", 3)) @ g.param("w", (3, 2))])
    options = rlx.CompileOptions(dim_binding={"B": 2}, param_bindings={"w": np.ones((3, 2), "f4")})
    c = rlx.Session("cpu").compile_with(g, options)
    assert str(c.input_types["x"]) == "f32[2,3]"
    assert not c.param_types
    np.testing.assert_array_equal(c.run(x=np.ones((2, 3), "f4"))[0], np.full((2, 2), 3.0))


def test_a_session_hands_its_precision_on():
    g = rlx.Graph("precise")
    g.set_outputs([g.input("x", (2, 4)) @ g.param("w", (4, 2))])
    session = rlx.Session("cpu", precision="bf16")
    assert str(session.policy) == "AutoMixedBf16"
    text = str(session.compile_with(g, rlx.CompileOptions(threads=1))._executable.lir.as_graph())
    assert "bf16" in text
    other = session.with_policy("AlwaysF32")
    assert "bf16" not in str(other.compile(g)._executable.lir.as_graph())
    assert "bf16" not in str(session.compile_with(g, rlx.CompileOptions(policy="AlwaysF32"))._executable.lir.as_graph())


def test_passes_can_be_left_out():
    def folded(**options):
        g = rlx.Graph("folding")
        g.set_outputs([g.input("x", (3,)) * rlx.exp(g.constant(np.arange(3, dtype="f4")))])
        return str(rlx.Session("cpu").compile_with(g, rlx.CompileOptions(**options))._executable.lir.as_graph())

    assert "exp" not in folded()
    assert "exp" in folded(constant_folding=False, cache_param_invariant=False)


def test_options_are_checked():
    with pytest.raises(RlxError, match="power of two"):
        rlx.CompileOptions(arena_alignment=48)
    with pytest.raises(RlxError, match="B is a size"):
        rlx.CompileOptions(dim_binding={"B": -1})
    with pytest.raises(RlxError, match="there is no precision policy 'f8'"):
        rlx.Session("cpu", precision="f8")


def test_builders_change_one_field():
    options = rlx.CompileOptions()
    changed = options.with_threads(2).with_dce(False).with_arena_alignment(128).with_supported_ops(["MatMul"])
    assert (changed.threads, changed.dce, changed.arena_alignment) == (2, False, 128)
    assert options == rlx.CompileOptions()
    assert changed.with_policy("AutoMixed").no_policy().policy is None


def test_the_number_of_threads_makes_no_other_program():
    assert rlx.CompileOptions(threads=1).key() == rlx.CompileOptions(threads=2).key()


def test_supported_ops_are_what_is_left():
    g = rlx.Graph("claimed")
    g.set_outputs([rlx.softmax(g.input("x", (2, 3)))])
    kinds = [
        "Input",
        "Param",
        "Constant",
        "Activation",
        "Binary",
        "Compare",
        "Where",
        "Reduce",
        "Expand",
        "Reshape",
        "Cast",
    ]
    c = rlx.Session("cpu").compile_with(g, rlx.CompileOptions(supported_ops=kinds))
    x = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_allclose(np.asarray(c.run(x=x)[0]).sum(-1), 1.0, rtol=1e-6)


def test_jit_runs_on_the_cpu():
    assert rlx.runtime.device.default_device() == "cpu"
    from rlx.knobs import knobs

    with knobs(backend="reference"):
        assert rlx.runtime.device.default_device() == "reference"
