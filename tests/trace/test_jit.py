"""`jit`: one program per kind of argument, trees in and out, nesting, donation, threads, errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import BindingError, TraceError
from rlx.trace import jit as jit_module
from rlx.trace.jit import jit, set_compiler
from rlx.trace.tracing import Spec


def counting(fn):
    """A jitted function that counts how often its Python code runs."""
    calls = []

    def run(*args, **kwargs):
        calls.append(args)
        return fn(*args, **kwargs)

    return jit(run), calls


def test_trees_in_trees_out():
    f = jit(lambda p, x: {"y": p["w"] * x + p["b"], "aux": (x, None)})
    out = f({"w": np.float32(2), "b": np.ones(3, "f4")}, np.arange(3, dtype="f4"))
    np.testing.assert_array_equal(out["y"], [1, 3, 5])
    np.testing.assert_array_equal(out["aux"][0], [0, 1, 2])
    assert out["aux"][1] is None


def test_traced_once_per_kind_of_argument():
    f, calls = counting(lambda x: x + 1)
    x = np.zeros(3, "f4")
    for argument in (x, x + 5, np.zeros(4, "f4"), x.astype("f8"), x, [x], 2, 3, 2.0):
        f(argument) if not isinstance(argument, list) else None
    assert len(calls) == 5
    assert f.cache_info() == (3, 5, 5)
    f.clear_cache()
    f(x)
    assert len(calls) == 6


def test_python_numbers_are_arguments_not_constants():
    f, calls = counting(lambda x, s: x * s)
    assert f(np.float16(3), 2.0).dtype == np.float16
    assert f(np.float16(3), 5.0) == 15
    assert len(calls) == 1
    assert f(np.int8(3), 2**40) == 3 * 2**40
    assert f(1, 2**40) == 2**40


def test_static_arguments():
    f = jit(lambda x, n, sign=1: x * n * sign, static_argnums=1, static_argnames="sign")
    assert f(np.float32(2), 3) == 6
    assert f(np.float32(2), 3, sign=-1) == -6
    assert f(np.float32(2), 4) == 8
    # 1, 1.0 and True are equal, but not the same program.
    assert {f(np.int32(2), one).dtype for one in (1, 1.0)} == {np.dtype("i4"), np.dtype("f4")}
    by_name = jit(lambda x, mode: x if mode == "keep" else -x, static_argnames=("mode",))
    assert by_name(np.float32(1), "keep") == 1
    assert by_name(np.float32(1), mode="flip") == -1
    last = jit(lambda x, y, k: x if k else y, static_argnums=(-1,))
    assert last(np.float32(1), np.float32(2), 0) == 2


def test_static_argument_errors():
    with pytest.raises(TraceError, match="static argument 'axes' is a list, which has no hash"):
        jit(lambda x, axes: x, static_argnums=1)(np.zeros(2, "f4"), [0])
    with pytest.raises(TraceError, match="static argument 5 does not exist; there are 1"):
        jit(lambda x: x, static_argnums=5)
    with pytest.raises(TraceError, match="static argument 'mod' does not exist; there are mode, x"):
        jit(lambda x, mode: x, static_argnames="mod")
    with pytest.raises(TraceError, match="donate argument 'y' does not exist; there are x"):
        jit(lambda x: x, donate_argnames="y")
    with pytest.raises(TraceError, match="donate argument 1 does not exist; there are 1"):
        jit(lambda x: x, donate_argnums=1)
    assert jit(lambda x, **options: x * options["k"], static_argnames="k")(np.float32(2), k=3) == 6


@pytest.mark.parametrize("donated", [{"donate_argnums": 1}, {"donate_argnames": "state"}])
def test_arguments_are_donated_by_number_and_by_name(donated):
    f = jit(lambda x, state: state + x, **donated)
    x, state = np.float32(1), np.zeros(3, "f4")
    graphs = [f.lower(x, state).graph, f.lower(x=x, state=state).graph]
    assert [list(graph.aliases.values()) for graph in graphs] == [["state"], ["state"]]


@pytest.mark.parametrize("wrap", [rnp.asarray, rlx.device_put, lambda x: rnp.asarray(memoryview(x))])
def test_donating_an_array_leaves_the_numpy_array_it_was_made_of(wrap):
    """`asarray` does not copy, and whoever made the NumPy array may still read it."""
    step = jit(lambda x: x + 1, donate_argnums=0)
    mine = np.arange(8, dtype="f4")
    result = step(wrap(mine))
    np.testing.assert_array_equal(mine, np.arange(8))
    again = step(result)
    assert np.shares_memory(again, result)
    np.testing.assert_array_equal(again, np.arange(8) + 2)


@pytest.mark.parametrize(
    "wrong",
    [
        rnp.zeros,
        lambda n: rnp.zeros((n, 3)),
        lambda n: rnp.ones(6).reshape(n, -1),
        lambda n: rnp.eye(n),
        lambda n: rnp.tile(rnp.ones(2), n),
        lambda n: rlx.random.normal(rlx.random.key(0), (n,)),
        lambda n: rnp.sum(rnp.ones((2, 2)), axis=n),
        range,
    ],
)
def test_sizes_that_are_computed_say_what_to_do(wrong):
    with pytest.raises(rlx.RlxError, match=r"x\.shape.*static_argnums"):
        jit(wrong)(np.int32(3))


@pytest.mark.parametrize("shape", [2.5, None])
def test_shapes_that_are_none(shape):
    with pytest.raises(rlx.RlxError, match=r"a shape is a size .* or a sequence of sizes"):
        rnp.zeros(shape)


def test_decorator_forms_and_methods():
    @rlx.jit
    def plain(x):
        """Adds one."""
        return x + 1

    @jit(static_argnames="k")
    def options(x, k):
        return x + k

    class Model:
        @jit(static_argnums=0)
        def forward(self, x):
            return x * 3

    assert plain(np.float32(1)) == 2
    assert (plain.__name__, plain.__doc__, repr(plain)) == ("plain", "Adds one.", "jit(plain)")
    assert options(np.float32(1), k=4) == 5
    assert Model().forward(np.float32(2)) == 6


def test_nested_jit_is_inlined_and_traced_once():
    inner, calls = counting(lambda x, s: {"r": x * s})
    outer = jit(lambda x: inner(x, 2.0)["r"] + inner(x + 1, 3.0)["r"])
    assert outer(np.float32(5)) == 28
    assert len(calls) == 1
    kinds = {n.op.mnemonic for n in outer.trace(np.float32(5)).graph.nodes}
    assert kinds == {"input", "constant", "mul", "add"}


def test_nested_jit_may_close_over_outer_values():
    def outer(x, y):
        return jit(lambda z: z * y)(x) + jit(lambda z: z - y)(x)

    assert jit(outer)(np.float32(3), np.float32(2)) == 7


def test_nested_jit_on_tensors_of_a_graph():
    g = rlx.Graph("g")
    x = g.input("x", (2,), "f32")
    y = jit(lambda a, b: a * b + a)(x, 2.0)
    g.set_outputs([y])
    assert [n.op.mnemonic for n in g.nodes] == ["input", "constant", "mul", "add"]


def test_results_do_not_share_memory_with_arguments():
    x = np.zeros(3, "f4")
    y = jit(lambda x: x)(x)
    x[0] = 7
    assert y[0] == 0


def test_lower_compile_with_symbolic_sizes():
    f = jit(lambda p, x: p["w"] * x)
    lowered = f.lower({"w": Spec(("B", 3))}, Spec((3,)))
    assert "%p.w: f32[B,3]" in lowered.as_text()
    compiled = lowered.compile()
    for rows in (1, 4):
        out = compiled({"w": np.ones((rows, 3), "f4")}, np.arange(3, dtype="f4"))
        np.testing.assert_array_equal(out, np.tile([0, 1, 2], (rows, 1)))
    with pytest.raises(BindingError, match=r"'p.w': axis 1 must be 3, got 4"):
        compiled({"w": np.ones((2, 4), "f4")}, np.ones(3, "f4"))
    with pytest.raises(BindingError, match=r"'x' is f32\[3\], got f64\[3\]"):
        compiled({"w": np.ones((2, 3), "f4")}, np.ones(3))
    with pytest.raises(BindingError, match=r"'n' is i32\[\], got f32\[\]"):
        jit(lambda n: n + 1).lower(Spec((), "i32")).compile()(2.5)
    with pytest.raises(BindingError, match=r"compiled for other arguments; the trees differ at '0.0'"):
        compiled({"v": np.ones((2, 3), "f4")}, np.ones(3, "f4"))


def test_a_compiled_function_tells_what_it_became():
    compiled = (
        rlx.jit(lambda p, x: rlx.nn.relu(x @ p["w"])).lower({"w": np.ones((8, 4), "f4")}, Spec(("B", 8))).compile()
    )
    assert "matmul + relu" in compiled.report.replace(" + transpose", "")
    assert compiled.compiled_graph.input_types.keys() == {"p.w", "x"}
    times = compiled.profile({"w": np.ones((8, 4), "f4")}, np.ones((3, 8), "f4"), runs=1)
    assert [kernel.kind for kernel in times.kernels][-1] == "matmul"
    with pytest.raises(BindingError, match=r"'x' is f32\[B,8\], got f64\[3,8\]"):
        compiled.profile({"w": np.ones((8, 4), "f4")}, np.ones((3, 8)))


def test_argument_errors_name_the_argument():
    f = jit(lambda p, x: x)
    with pytest.raises(TraceError, match=r"jit\(lambda\): 'p.mode' is a str \('fast'\).*static_argnames"):
        f({"mode": "fast"}, np.float32(1))
    with pytest.raises(TraceError, match="'x' is an array of object"):
        f({}, np.array([None]))


def test_donated_arguments_alias_results_of_their_type():
    f = jit(lambda state, x: ({k: v + x for k, v in state.items()}, x), donate_argnums=0)
    state = {"a": np.zeros(2, "f4"), "b": np.zeros(3, "f4")}
    new, _ = f(state, np.float32(1))
    np.testing.assert_array_equal(new["b"], [1, 1, 1])
    graph = f.trace(state, np.float32(1)).graph
    assert graph.aliases == {0: "state.a", 1: "state.b"}
    unchanged = jit(lambda x: x.astype("f2"), donate_argnums=(0,)).trace(np.float32(1))
    assert unchanged.graph.aliases == {}


def test_compiler_hook(monkeypatch):
    seen = []

    def compiler(graph, device, donated):
        seen.append((graph.name, device, tuple(donated)))
        return lambda arrays: [np.asarray(a) * 10 for a in arrays]

    monkeypatch.setattr(jit_module, "_compiler", jit_module._compiler)
    set_compiler(compiler)
    f = jit(lambda x: x, donate_argnums=0, device="gpu")
    assert f(np.float32(2)) == 20
    assert f(np.float32(3)) == 30
    assert seen == [("lambda", "gpu", ("x",))]


def test_threads_share_one_trace():
    barrier = threading.Barrier(4)
    f, calls = counting(lambda x: x + 1)
    results = []

    def work(i):
        barrier.wait()
        results.append((i, float(f(np.float32(i)))))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [(i, i + 1) for i in range(4)]
    assert len(calls) == 1
    assert sum(f.cache_info()[:2]) == 4


def test_a_failing_function_leaves_no_trace():
    f = jit(lambda x: x.no_such_method())
    for _ in range(2):
        with pytest.raises(AttributeError):
            f(np.float32(1))
    assert f.cache_info().entries == 0
    assert rlx.add(np.float32(1), np.float32(2)) == 3


def test_leaked_value_is_refused():
    kept = []
    jit(lambda x: kept.append(x) or x)(np.float32(1))
    with pytest.raises(TraceError, match="return it from the function"):
        jit(lambda x: x + kept[0])(np.float32(1))


def test_only_functions():
    with pytest.raises(BindingError, match="a function is needed, got 3"):
        jit(3)
