"""`trace`: names, types, trees, and what a function may not do while it is traced."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import rlx
from rlx.errors import TraceError
from rlx.ir.interpret import interpret
from rlx.trace.tracing import Spec, spec_of, trace


def names(traced):
    return [n.name for n in traced.graph.inputs]


def types(traced):
    return [str(n.shape) for n in traced.graph.inputs]


def test_names_come_from_parameters_and_paths():
    def f(p, x, *rest, scale, **options):
        return p["w"] * x + p["layers"][1]["b"] + rest[0] + scale + options["shift"]

    params = {"w": Spec((2,)), "layers": [{"b": Spec((2,))}, {"b": Spec((2,))}]}
    traced = trace(f, params, Spec((2,)), Spec((2,)), scale=Spec(()), shift=Spec(()))
    assert names(traced) == ["p.layers.0.b", "p.layers.1.b", "p.w", "x", "rest.0", "scale", "shift"]
    assert traced.graph.name == "f"


def test_names_are_unique_and_plain():
    traced = trace(lambda p: p["a.b"] + p["a"]["b"] + p["c d"], {"a.b": 1.0, "a": {"b": 1.0}, "c d": 1.0})
    assert names(traced) == ["p.a.b", "p.a.b_1", "p.c_d"]


def test_names_of_partial_method_and_builtin():
    class Model:
        def forward(self, x):
            return x + 1

        def __call__(self, x):
            return x * 2

    assert trace(Model().forward, Spec((3,))).graph.name == "forward"
    assert trace(Model(), Spec((3,))).graph.name == "Model"
    traced = trace(functools.partial(lambda a, b: a - b, 3.0), Spec((3,)))
    assert (traced.graph.name, names(traced)) == ("lambda", ["b"])


def test_specs_of_all_kinds():
    def f(a, b, c, d, e):
        return a, b, c, d, e

    traced = trace(f, Spec(("B", 4), "f16"), rlx.Shape((2,), "i32"), "f64[S]", np.zeros((3, 0), "u1"), 2)
    assert types(traced) == ["f16[B,4]", "i32[2]", "f64[S]", "u8[3,0]", "i32[]"]
    assert [s.weak for s in traced.in_specs] == [False, False, False, False, True]
    assert str(traced.out_specs[0].type) == "f16[B,4]"


def test_python_numbers_are_weak():
    def f(x, s):
        return x * s

    assert trace(f, Spec((2,), "f16"), 2.0).out_specs.dtype is rlx.DType.F16
    assert trace(f, Spec((2,), "f16"), np.float32(2)).out_specs.dtype is rlx.DType.F32
    # An integer that needs 64 bits must not be squeezed into a smaller type.
    assert spec_of(2**40) == Spec((), "i64")
    assert spec_of(True) == Spec((), "bool", weak=True)


def test_result_trees_constants_and_repeated_outputs():
    def f(x):
        y = x + 1
        return {"y": y, "again": (y, x), "number": 3, "array": np.arange(2, dtype=np.int8), "nothing": None}

    traced = trace(f, Spec((2,)))
    values = interpret(traced.graph, [np.array([1, 2], "f4")])
    result = traced.out_tree.unflatten(values)
    assert result["nothing"] is None
    np.testing.assert_array_equal(result["y"], [2, 3])
    np.testing.assert_array_equal(result["again"][0], [2, 3])
    np.testing.assert_array_equal(result["again"][1], [1, 2])
    assert (result["number"], result["number"].dtype) == (3, np.int32)
    assert result["array"].dtype == np.int8


def test_static_arguments_are_passed_as_they_are():
    def f(x, mode, times=1):
        assert isinstance(mode, str)
        for _ in range(times):
            x = x + 1 if mode == "up" else x - 1
        return x

    traced = trace(f, Spec(()), "up", times=3, static_argnums=1, static_argnames="times")
    assert names(traced) == ["x"]
    assert interpret(traced.graph, [np.float32(0)])[0] == 3


def test_symbolic_sizes_survive():
    traced = trace(lambda x, y: x + y, Spec(("B", "S")), Spec(("S",)))
    assert str(traced.out_specs.type) == "f32[B,S]"
    (out,) = interpret(traced.graph, [np.ones((2, 3), "f4"), np.arange(3, dtype="f4")])
    np.testing.assert_array_equal(out, [[1, 2, 3]] * 2)


def test_python_conditions_on_tensors():
    with pytest.raises(TraceError, match=r"Python condition.*rlx.cond"):
        trace(lambda x: x if x > 0 else -x, Spec(()))
    with pytest.raises(TraceError, match="converted to a Python float"):
        trace(lambda x: float(x), Spec(()))
    with pytest.raises(TraceError, match="converted to a NumPy array"):
        trace(lambda x: np.sin(np.asarray(x)), Spec(()))


def test_python_conditions_on_symbolic_sizes():
    with pytest.raises(TraceError, match=r"whether 3 < S|whether S <= 3|whether S > 3"):
        trace(lambda x: x + 1 if x.shape[0] > 3 else x, Spec(("S",)))


def test_leaked_tensor_is_refused():
    kept = []

    def leak(x):
        kept.append(x + 1)
        return x

    trace(leak, Spec((2,)))
    with pytest.raises(TraceError, match="return it from the function instead of storing it"):
        trace(lambda x: x + kept[0], Spec((2,)))


def test_results_that_would_be_lost():
    kept = []

    def forgot(x):
        kept.append(x * 2)

    with pytest.raises(TraceError, match="forgot computes something but returns nothing"):
        trace(forgot, Spec((2,)))
    assert trace(lambda x: None, Spec((2,))).graph.outputs == []


def test_non_arrays():
    with pytest.raises(TraceError, match=r"f returns a str at 'name.0'"):

        def f(x):
            return {"name": ["x"], "value": x}

        trace(f, Spec(()))
    with pytest.raises(TraceError, match=r"'x' is a set .*static_argnames"):
        trace(lambda x: x, {1})
    with pytest.raises(TraceError, match="'x' is an array of object"):
        trace(lambda x: x, np.array([None]))
