"""Functions that are models, schedules of stages, and the names of the prelude."""

# ruff: noqa: F821  (types of arguments are text, not names)

import threading

import numpy as np
import pytest

import rlx
from rlx.macros import Param, pipeline_schedule, rlx_model


@rlx_model(device="cpu")
def hello(x: "f32[B, 4]", w: "f32[4, 2]"):
    return x @ w


def test_hello_graph():
    x, w = np.float32([[1, 2, 3, 4]]), np.float32([1, 0, 0, 1, 1, 0, 0, 1]).reshape(4, 2)
    assert hello(x, w).tolist() == [[4.0, 6.0]]
    assert hello(w=w, x=x).tolist() == [[4.0, 6.0]]
    graph = hello.build_graph()
    assert [str(n.shape) for n in graph.inputs] == ["f32[B,4]", "f32[4,2]"] and graph.name == "hello"
    assert hello.__name__ == "hello"


def test_one_program_for_all_threads_and_sizes(monkeypatch):
    made = []
    real = rlx.macros.Session
    monkeypatch.setattr(rlx.macros, "Session", lambda *args, **options: made.append(1) or real(*args, **options))

    @rlx_model
    def double(x: "f32[N]"):
        return {"twice": x + x, "same": x}

    found = []
    threads = [threading.Thread(target=lambda: found.append(double.compiled())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(f) for f in found}) == 1 and len(made) == 1
    for size in (1, 5):
        assert double(np.ones(size, "f4"))["twice"].tolist() == [2.0] * size


def test_weights_are_set_once():
    @rlx_model(precision="f32")
    def linear(x: "f32[B, 2]", w: Param("f32[2, 3]")):
        return x @ w

    linear.compiled().set_param("w", np.ones((2, 3), "f4"))
    assert linear(np.ones((1, 2), "f4")).tolist() == [[2.0, 2.0, 2.0]]


def test_types_as_source_text():
    namespace = {"rlx_model": rlx_model, "Param": Param}
    text = 'def f(x: "f32[2]", w: Param("f32[2]")):\n    return x * w\n'
    code = compile("from __future__ import annotations\n" + text, "<model>", "exec")
    import types

    types.FunctionType(code, namespace)()
    model = rlx_model(namespace["f"])
    assert [str(n.shape) for n in model.build_graph().inputs] == ["f32[2]"]


def test_a_function_of_the_graph():
    @rlx_model
    def built(g):
        return [g.relu(g.input("x", ("N",)))]

    assert built(np.float32([-1, 2]))[0].tolist() == [0.0, 2.0]


BAD_CALLS = [
    (lambda: hello(np.ones((1, 4)), np.ones((4, 2), "f4")), "'x' is f32\\[B,4\\], got f64"),
    (lambda: hello(np.ones((1, 3), "f4"), np.ones((4, 2), "f4")), "hello: .*'x'"),
    (lambda: hello(np.ones(4, "f4"), np.ones((4, 2), "f4")), "rank 2"),
    (lambda: hello(np.ones((1, 4), "f4")), "'w' is missing"),
    (lambda: hello(1, 2, 3), "takes 2 inputs"),
    (lambda: hello(np.ones((1, 4), "f4"), x=1), "'x' is given twice"),
    (lambda: hello(np.ones((1, 4), "f4"), v=1), "'v' is not an input"),
]


@pytest.mark.parametrize("call, message", BAD_CALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_are_checked(call, message):
    with pytest.raises(rlx.RlxError, match=message):
        call()


def test_functions_that_are_no_models():
    with pytest.raises(rlx.errors.TraceError, match="needs a type"):
        rlx_model(lambda x, y: x)
    with pytest.raises(rlx.errors.TraceError, match="is not a type"):

        @rlx_model
        def wrong(x: "f99[2]", y: "f32"):
            return x

    with pytest.raises(rlx.errors.TraceError, match="must return a tensor"):

        @rlx_model
        def nothing(x: "f32[2]", y: "f32[2]"):
            return None

        nothing.build_graph()


def test_schedules():
    stages = {"save": ["train"], "load": [], "train": ["load", "tokenize"], "tokenize": ["load"]}
    plan = pipeline_schedule("run", stages=stages)
    assert plan.ORDER == ("load", "tokenize", "train", "save")
    assert plan.DEPS["train"] == ("load", "tokenize") and plan.name == "run"
    with pytest.raises(TypeError):
        plan.DEPS["train"] = ()
    assert pipeline_schedule("none", stages={}).ORDER == ()


@pytest.mark.parametrize(
    "stages, message",
    [
        ({"a": ["b"]}, "'a' depends on 'b', which is not a stage; stages are a"),
        ({"a": ["a"]}, "a -> a"),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"], "d": []}, "in a circle: a -> b -> c -> a"),
        ({"a": "b", "b": []}, "must be a list"),
    ],
)
def test_schedules_that_cannot_be(stages, message):
    with pytest.raises(rlx.errors.OpError, match=message):
        pipeline_schedule("p", stages=stages)


def test_prelude():
    import builtins

    import rlx.prelude

    namespace = {name: getattr(rlx.prelude, name) for name in rlx.prelude.__all__}
    assert not set(namespace) & set(dir(builtins))
    for name in ("Graph", "Session", "Device", "DType", "Error", "vmap", "jvp", "hvp", "Activation", "Precision"):
        assert name in namespace
    assert rlx.prelude.set is rlx.env.set and rlx.prelude.Error is rlx.RlxError


def test_names_at_the_top():
    for name in ("rlx_model", "FusionTarget", "Precision", "PrecisionPolicy", "fusion_passes", "Pass", "Error"):
        assert getattr(rlx, name) is not None
