"""Custom functions and registered custom ops."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.errors import BackendError, OpError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rebuild import decompose_all
from rlx.ir.shape import Shape
from rlx.ir.text.graph_text import parse, show
from rlx.ops.control.bodies import build_body
from rlx.ops.control.custom import Custom, OpExtension, OpRegistry, global_registry, lookup_op, register_op
from rlx.ops.control.custom_functions import CustomFn, custom_fn, custom_fn_multi

X = Shape((3,), "f32")
I = Shape((), "i32")


def body(f, **inputs):
    return build_body("body", f, **inputs)


PRODUCT = body(lambda a, b: a * b, a=X, b=X)


def test_custom_fn_evaluates_and_inlines_its_body():
    graph = Graph("g")
    a, b = graph.input("a", X), graph.input("b", X)
    graph.set_outputs([custom_fn([a, b], PRODUCT)])
    arrays = [np.array([1, 2, 3], "f4"), np.array([4, 5, 6], "f4")]
    flat = decompose_all(graph)
    assert [n.op.mnemonic for n in flat.nodes] == ["input", "input", "mul"]
    for g in (graph, flat):
        np.testing.assert_array_equal(interpret(g, arrays)[0], [4, 10, 18])


def test_custom_fn_multi_keeps_shapes_and_dtypes():
    several = body(lambda x, n: (x + x, n + 1, x < 1.0), x=X, n=I)
    graph = Graph("g")
    x, n = graph.input("x", X), graph.input("n", I)
    handle = custom_fn_multi([x, n], several)
    assert handle.n_outputs == 3
    assert [str(s) for s in handle.sub_shapes] == ["f32[3]", "i32[]", "bool[3]"]
    assert handle.offsets == (0, 3, 4, 7)
    graph.set_outputs([handle.output(graph, i) for i in range(3)])
    got = interpret(graph, [np.array([0, 1, 2], "f4"), np.int32(5)])
    for value, wanted in zip(got, ([0, 2, 4], 6, [True, False, False])):
        np.testing.assert_array_equal(value, wanted)
    with pytest.raises(IndexError, match="output 3 does not exist; the function has 3"):
        handle.output(graph, 3)


def test_derivative_bodies_are_accepted_in_any_input_order():
    vjp = body(lambda d, a, y, b: (d * b, d * a), d_output=X, a=X, primal_output=X, b=X)
    jvp = body(lambda a, b, y, s, t: s * b + a * t, a=X, b=X, primal_output=X, tangent_0=X, tangent_1=X)
    assert CustomFn(PRODUCT, vjp, jvp).num_inputs() == 2
    two = body(lambda x: (x + x, x * x), x=X)
    names = {"x": X, "primal_output_0": X, "primal_output_1": X, "d_output_0": X, "d_output_1": X}
    CustomFn(two, body(lambda x, p, q, d, e: d + d + e * x, **names))


@pytest.mark.parametrize(
    ("field", "derivative", "message"),
    [
        ("vjp_body", body(lambda a, b, y: (a, b), a=X, b=X, primal_output=X), "vjp_body needs the input 'd_output'"),
        (
            "vjp_body",
            body(lambda a, y, d: (a, d), a=X, primal_output=X, d_output=X),
            r"vjp_body needs one input per primal, 2, it has 1 \(a\)",
        ),
        (
            "vjp_body",
            body(lambda a, b, y, d: a, a=X, b=X, primal_output=X, d_output=X),
            "must return one gradient per input, 2, it returns 1",
        ),
        (
            "vjp_body",
            body(lambda a, b, y, d: (a, a < b), a=X, b=X, primal_output=X, d_output=X),
            r"returns bool\[3\] as the gradient of input 1, which is f32\[3\]",
        ),
        (
            "vjp_body",
            body(lambda a, b, y, d: (a, b), a=X, b=X, primal_output=X, d_output=I),
            r"the input 'd_output' of vjp_body is i32\[\], it must be f32\[3\]",
        ),
        ("jvp_body", body(lambda a, b, t: a, a=X, b=X, tangent_0=X), "jvp_body needs the input 'tangent_1'"),
        (
            "jvp_body",
            body(lambda a, b, s, t: (a, b), a=X, b=X, tangent_0=X, tangent_1=X),
            r"must return the tangents of the outputs, \(f32\[3\]\), it returns \(f32\[3\], f32\[3\]\)",
        ),
    ],
)
def test_derivative_bodies_are_checked(field, derivative, message):
    with pytest.raises(OpError, match=message):
        CustomFn(PRODUCT, **{field: derivative})


def test_custom_fn_operand_errors():
    graph = Graph("g")
    with pytest.raises(OpError, match=r"custom_fn: the body takes 2 inputs \(a, b\), got 1 operands"):
        custom_fn([graph.input("a", X)], PRODUCT)
    with pytest.raises(OpError, match="fwd_body has no outputs"):
        CustomFn(build_body("nothing", lambda a: (), a=X))


class Affine(OpExtension):
    """a * scale + b."""

    def name(self):
        return "test.affine"

    def num_inputs(self):
        return 2

    def infer_shape(self, inputs, attrs):
        return inputs[0]

    def eval(self, arrays, attrs):
        return arrays[0] * np.frombuffer(attrs, "f4")[0] + arrays[1]


class NoKernel(Affine):
    def name(self):
        return "test.no_kernel"

    def eval(self, arrays, attrs):
        return NotImplemented


if lookup_op("test.affine") is None:
    register_op(Affine())
    register_op(NoKernel())


def test_custom_op_runs_and_survives_text():
    graph = Graph("g")
    a, b = graph.input("a", X), graph.input("b", X)
    attrs = np.float32(2).tobytes()
    graph.set_outputs([ops.custom_op("test.affine", attrs, [a, b])])
    assert parse(show(graph)) == graph
    assert graph.nodes[-1].op.num_inputs() == 2
    arrays = [np.array([1, 2, 3], "f4"), np.array([10, 20, 30], "f4")]
    np.testing.assert_array_equal(interpret(graph, arrays)[0], [12, 24, 36])


def test_custom_op_packed_declares_its_type():
    graph = Graph("g")
    a, b = graph.input("a", X), graph.input("b", X)
    packed = ops.custom_op_packed("test.affine", b"", [a, b], Shape((6,), "f32"))
    assert str(packed.type) == "f32[6]"


def test_custom_op_errors():
    graph = Graph("g")
    a = graph.input("a", X)
    with pytest.raises(OpError, match=r"no op 'test.unknown' is registered .*call rlx.register_op first"):
        ops.custom_op("test.unknown", b"", [a])
    with pytest.raises(OpError, match=r"'test.affine' takes 2 inputs, got 1"):
        ops.custom_op("test.affine", b"", [a])
    with pytest.raises(BackendError, match=r"'test.no_kernel' has no kernel for the reference backend"):
        Custom("test.no_kernel")(np.zeros(2), np.zeros(2))


def test_missing_rules_are_not_zero():
    extension = lookup_op("test.affine")
    for rule in (extension.vjp, extension.jvp, extension.vmap):
        assert rule(None, None) is NotImplemented


def test_registry_replaces_with_a_warning():
    registry = OpRegistry()
    extension = Affine()
    registry.register(extension)
    registry.register(extension)
    with pytest.warns(UserWarning, match=r"'test.affine' was registered before"):
        registry.register(Affine())
    assert registry.list() == ["test.affine"]
    assert registry.lookup("nothing") is None
    assert "test.affine" in global_registry().list()
