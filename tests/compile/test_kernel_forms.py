"""Kernel forms: composite ops in parts that have kernels, with the same values, and only where all parts have one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.backends.program.program import build_program
from rlx.backends.wgpu.code import loader
from rlx.compile.compiler import CompilePipeline
from rlx.compile.fuse.group import group_kernels
from rlx.compile.fuse.node_roles import kernel_kind
from rlx.compile.lower.attention import split_attention
from rlx.compile.lower.lower import kernel_forms, name_results
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all
from rlx.kernels.from_lir import generator
from rlx.kernels.machines import WGSL, host
from rlx.ops.pointwise.complex_numbers import MakeComplex

GENERATOR = generator(host())

rng = np.random.default_rng(3)


def forms(graph):
    return name_results(split_attention(kernel_forms(graph, GENERATOR), GENERATOR), GENERATOR)


def names(graph):
    return [n.op.mnemonic for n in graph.nodes if n.inputs]


def build(function, *operands):
    graph = rlx.Graph("g")
    result = function(*(graph.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(operands)))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph


def check(graph, *operands, rtol=1e-5):
    """The form has the same values, is valid, and is its own form."""
    formed = forms(graph)
    verify_all(formed)
    assert forms(formed) == formed
    for a, b in zip(interpret(graph, operands), interpret(formed, operands), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b.astype("f8"), a.astype("f8"), rtol=rtol, atol=rtol)
    return formed


X = rng.normal(size=(5, 7)).astype("f4")


def without_f64(x):
    z = MakeComplex()(x, x + 0.5)
    square = ops.matmul(x, ops.transpose(x, (1, 0)))
    return (
        *(ops.real(f(z)) for f in (ops.exp, ops.log, ops.sqrt, ops.recip, ops.tanh)),
        *(ops.real(z / (z + 1.0)), x % 0.3, ops.cholesky(square + 9.0), ops.eigh(square)[0], ops.svd(x)[1]),
        ops.triangular_solve(ops.tril(square) + 9.0, x),
    )


def test_machines_without_f64_compute_in_f32_or_leave_it_to_the_host():
    """Every kernel has a text in WGSL; whatever factorises is one call of the host, by its own definition."""
    machine = generator(WGSL)
    formed = name_results(kernel_forms(build(without_f64, X), machine), machine)
    assert all(s.dtype not in (DType.F64, DType.C128) for n in formed.nodes for s in n.shapes)
    calls = {n.op.mnemonic for n in formed.nodes if n.inputs and kernel_kind(formed, n, machine) == "call"}
    assert calls - {"project"} == {"cholesky", "eigh", "svd", "triangular_solve"}
    compiled = CompilePipeline.new("wgpu").compile(build(without_f64, X))
    assert build_program(compiled.lir, loading=loader(WGSL).loading).steps


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        (lambda x: ops.softmax(x), "softmax"),
        (lambda x: ops.log_softmax(x, 0), "log_softmax"),
        (lambda x: ops.reduce_mean(x, 1), "reduce_mean"),
        (lambda x: ops.clamp(x, -0.5, 0.5), "clamp"),
        (lambda x: ops.activation_backward("gelu", x, x), "activation_backward"),
        (lambda x: ops.relu_backward(x, x), "relu_backward"),
        (lambda x: ops.logaddexp(x, x * 2.0), "logaddexp"),
        (lambda x: ops.sinh(x), "sinh"),
    ],
)
def test_composite_ops_are_taken_apart(function, gone):
    graph = build(function, X)
    assert gone in names(graph)
    assert gone not in names(check(graph, X))


def test_what_has_a_kernel_or_parts_without_one_stays():
    for function in (rlx.gelu, rlx.silu):
        graph = build(function, X)
        assert forms(graph) is graph
    q = rng.normal(size=(1, 4, 8)).astype("f4")
    attention = build(lambda q: ops.attention(q, q, q, num_heads=2, head_dim=4), q)
    assert forms(attention) is attention


@pytest.mark.parametrize("labels", [[0, 3, -1, 6, 2], [9, -9, 0, 1, 2], [0.9, 5.5, -1.5, 2.0, 0.0]])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_labels_are_compared_instead_of_looked_up(labels, dtype):
    logits = (X * 10).astype(dtype)
    ids = np.array(labels, "f4" if isinstance(labels[0], float) else "i8")
    limit = {"f4": 1e-5, "f8": 1e-12, "f2": 2e-3}[dtype]

    # Computed labels are clipped; those of the caller would be refused.
    def loss(logits, ids):
        return ops.softmax_cross_entropy_with_logits(logits, ops.neg(ops.neg(ids)))

    def gradient(logits, ids, dloss):
        return ops.softmax_cross_entropy_backward(logits, ops.neg(ops.neg(ids)), dloss)

    formed = check(build(loss, logits, ids), logits, ids, rtol=limit)
    assert "gather_nd" not in names(formed) and "reduce_sum" in names(formed)
    dloss = rng.normal(size=5).astype(dtype)
    formed = check(build(gradient, logits, ids, dloss), logits, ids, dloss, rtol=limit)
    assert "scatter_nd" not in names(formed)


def test_padding_joins_constants():
    graph = build(lambda x: ops.pad(x, 2.5, [1, 0], [0, 3]), X)
    assert "concat" in names(check(graph, X))
    for amounts in (([-1, 0], [0, 0], None), ([0, 0], [0, 0], [1, 0]), ([-1, 2], [3, -2], [2, 1])):
        graph = build(lambda x, amounts=amounts: ops.pad(x, 1.5, *amounts), X)
        assert "pad" not in names(check(graph, X))


@pytest.mark.parametrize(
    "dims",
    [((2, 3, 4, 5, 6), (2, 3, 1, 6, 7)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 2, 4, 5), (2, 5, 1)), ((1, 4, 5), (3, 5, 2))],
    ids=str,
)
def test_products_with_batches_that_broadcast_become_batches_of_one_axis(dims):
    a, b = (rng.normal(size=d).astype("f4") for d in dims)
    formed = check(build(lambda a, b: a @ b, a, b), a, b, rtol=1e-5)
    [product] = [n for n in formed.nodes if n.op.mnemonic == "matmul"]
    assert formed.shape(product.inputs[0]).rank == formed.shape(product.inputs[1]).rank == 3
    # Heads of queries that share a key become rows: nothing is copied.
    assert ("expand" in names(formed)) is (dims[1][-3] != 1 or len(dims[1]) < 4)


def test_everything_is_joined_row_by_row_first():
    large = rng.normal(size=(70, 1000)).astype("f4")
    for kind in ("sum", "max", "min", "prod"):
        formed = check(build(lambda x, kind=kind: ops.reduce(x, kind), large), large, rtol=1e-3)
        # Neighbouring rows are joined where single ones are short.
        assert [name for name in names(formed) if name != "reshape"] == [f"reduce_{kind}"] * 2
    kept = check(build(lambda x: ops.reduce_sum(x, keepdims=True), large), large, rtol=1e-3)
    assert kept.shape(kept.outputs[0]).dims == (1, 1)
    # One axis is cut into rows, if that can be done evenly.
    for x in (large.reshape(-1), large.reshape(1, -1, 1)):
        formed = check(build(lambda x: ops.reduce_sum(x, keepdims=True), x), x, rtol=1e-3)
        assert names(formed).count("reduce_sum") == 2 and formed.shape(formed.outputs[0]).dims == (1,) * x.ndim
    # Few elements, an uneven length, or something left over: as it is.
    for x, axes in ((X, None), (large, (0,)), (large.reshape(-1)[:69997], None), (large[None], (1,))):
        graph = build(lambda x, axes=axes: ops.reduce_sum(x, axes), x)
        assert names(forms(graph)) == ["reduce_sum"]


def test_halves_are_joined_in_f32_on_both_steps():
    ones = np.ones((3000, 30), "f2")
    formed = forms(build(lambda x: ops.reduce_sum(x) * 2.0**-6, ones))
    types = [str(n.shape.dtype) for n in formed.nodes if n.op.mnemonic == "reduce_sum"]
    assert types == ["f32", "f32"]


def test_equal_parts_of_different_ops_are_computed_once():
    """The gradients of a norm with respect to its operand and its gain share the statistics."""
    graph = rlx.Graph("g")
    x, gamma, dy = graph.input("x", (4, 8)), graph.input("gamma", (8,)), graph.input("dy", (4, 8))
    graph.set_outputs([ops.layer_norm_backward_input(x, gamma, dy), ops.layer_norm_backward_gamma(x, dy)])
    assert names(forms(graph)).count("rsqrt") == 1


def test_names_and_origins_survive():
    graph = build(lambda x: ops.softmax(x), X)
    graph.nodes[-1].name = "probabilities"
    formed = forms(graph)
    result = formed.nodes[formed.outputs[0]]
    assert result.name == "probabilities"
    assert result.origin.pass_name == "kernel_forms" and result.origin.source.file == __file__


# How far results may be off, as a part of the largest one, by the coarsest type that they are computed from.
ROUNDED = {"f16": 3e-2, "bf16": 0.3, "f32": 1e-4, "f64": 1e-9}


def limits(graph):
    """How far each result of a program may be off."""
    found = {}
    for i in graph.topo_order():
        node = graph.nodes[i]
        own = (ROUNDED.get(shape.dtype.value, 0.0) for shape in node.shapes)
        found[i] = max([*own, *(found[j] for j in node.inputs)], default=0.0)
    return [found[i] for i in graph.outputs]


@settings(max_examples=40)
@given(graphs())
def test_random_graphs_keep_their_values(graph):
    formed = forms(graph)
    verify_all(formed)
    assert forms(formed) == formed
    values = inputs_for(graph)
    results = (interpret(g.bind(BINDING), values) for g in (graph, formed))
    for a, b, limit in zip(*results, limits(graph), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.name in ("float32", "float64", "float16", "bfloat16"):
            wide = a.astype("f8")
            scale = max(1.0, float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0)))
            np.testing.assert_allclose(b.astype("f8"), wide, rtol=limit, atol=limit * scale)


def test_pointwise_ops_are_done_to_the_parts_of_a_joined_value():
    """A chain of them, with operands that are cut, broadcast, or numbers."""

    def chain(x, row, column):
        joined = ops.concat([x, ops.narrow(x, 1, 0, 2)], 1)
        return ops.where(ops.gt(ops.tanh(joined * row + column), 0.0), 1.0, 2.0) * 3.0

    row, column = (rng.normal(size=d).astype("f4") for d in ((X.shape[1] + 2,), (X.shape[0], 1)))
    formed = check(build(chain, X, row, column), X, row, column)
    assert formed.nodes[formed.outputs[0]].op.mnemonic == "concat"
    kinds = [k.kind for k in group_kernels(formed, GENERATOR)]
    assert kinds == ["map"]


def test_joined_views_of_a_joined_value_are_views_of_its_parts():
    """Along a second axis, not along a third one."""
    twice = build(lambda x: ops.pad_mode(x, (2, 1), "edge"), X)
    formed = check(twice, X)
    assert names(formed).count("concat") == 4
    assert [k.kind for k in group_kernels(formed, GENERATOR)] == ["map"]

    def three(x):
        rows = ops.concat([x, x * 2.0], 0)
        both = ops.concat([rows, ops.reverse(rows, 1)], 1)
        return ops.concat([both, ops.narrow(both, 2, 0, 1)], 2)

    cube = rng.normal(size=(3, 4, 5)).astype("f4")
    check(build(three, cube), cube)


def test_joined_values_that_others_read_stay():
    twice = build(lambda x: (lambda j: (ops.exp(j), ops.reduce_sum(j, 0)))(ops.concat([x, x], 1)), X)
    product = build(lambda x, w: ops.concat([x, x], 1) + x @ w, X, rng.normal(size=(7, 14)).astype("f4"))
    for graph, last in ((twice, "exp"), (product, "add")):
        formed = forms(graph)
        assert formed.nodes[formed.outputs[0]].op.mnemonic == last


def test_heads_are_stored_where_they_are_read():
    q = rng.normal(size=(2, 2, 5, 4)).astype("f4")
    turned = build(lambda q: ops.transpose(ops.attention(q, q, q, layout="bhsd"), (0, 2, 1, 3)), q)
    formed = check(turned, q, rtol=1e-5)
    assert names(formed)[-1] == "attention"


@pytest.mark.parametrize("target", ["wgpu", "metal", "opencl"])
@pytest.mark.parametrize(
    "function",
    [
        lambda *x: ops.concat(x, 1),
        lambda *x: ops.concat([a * b for a, b in pairwise(x)], 0),
        lambda *x: sum(x[1:], x[0]),
        lambda *x: tuple(a + x[0] for a in x),
        lambda *x: ops.reduce_sum(sum(x[1:], x[0]), (1,)),
    ],
    ids=["joined", "products joined", "summed up", "many results", "rows of sums"],
)
def test_kernels_of_text_targets_bind_few_values(function, target):
    """Metal has 31 buffers for a kernel, one of which may be needed for sizes, and adapters of WebGPU may have 32."""
    lir = CompilePipeline.new(target).compile(build(function, *[X] * 70)).lir
    assert all(len({*k.inputs}) + len(k.outputs) <= 30 for k in lir.kernels)


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2.0**-23), ("f64", 2.0**-52), ("f16", 2.0**-10)])
@pytest.mark.parametrize("exponent", [3, 4, 7, 16])
def test_powers_with_small_whole_exponents_are_products(dtype, bound, exponent):
    x = np.concatenate([rng.normal(size=500), [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(DType.of(dtype).numpy)
    graph = build(lambda x: x**exponent, x)
    made = names(forms(graph))
    assert ("pow" in made) == (dtype == "f64" and exponent > 3)
    found = np.asarray(rlx.Session("cpu").compile(graph).run({"x0": x})[0])
    wanted = x.astype(np.longdouble) ** exponent
    with np.errstate(over="ignore"):
        is_normal = np.abs(wanted) >= np.finfo(found.dtype).smallest_normal
        is_normal &= np.abs(wanted) <= np.finfo(found.dtype).max
        np.testing.assert_allclose(found[is_normal].astype(np.longdouble), wanted[is_normal], rtol=bound)
        np.testing.assert_array_equal(found[-5:], wanted[-5:].astype(found.dtype))
    assert np.signbit(found[-4]) == bool(exponent % 2)


def test_powers_with_other_exponents_stay():
    x = np.ones(4, "f4")
    for exponent in (2.5, -3, 17):
        assert names(forms(build(lambda x, e=exponent: x**e, x))) == ["pow"]


def _integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("depth", [16, 17, 131])
@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_products_of_bytes_add_four_at_a_time(kind, depth):
    """With and without what quantised models take from activations: exact, whatever the numbers are."""
    a, b = _integers(kind, 6, depth), _integers("i1", depth, 33)
    rows = _integers("i4", 6, 1)
    wide = [x.astype("i4") for x in (a, b)]
    cases = {
        "as they are": (lambda a, b: ops.matmul(a, b, out_dtype="i32"), wide[0] @ wide[1]) if kind == "i1" else None,
        "cast": (lambda a, b: ops.cast(a, "i32") @ ops.cast(b, "i32"), wide[0] @ wide[1]),
        "one zero": (lambda a, b: (ops.cast(a, "i32") - 113) @ ops.cast(b, "i32"), (wide[0] - 113) @ wide[1]),
        "a zero for each row": (
            lambda a, b, z: (ops.cast(a, "i32") - z) @ ops.cast(b, "i32"),
            (wide[0] - rows) @ wide[1],
        ),
    }
    for name, case in cases.items():
        if case is not None:
            function, wanted = case
            operands = (a, b, rows) if name == "a zero for each row" else (a, b)
            graph = build(function, *operands)
            has_dots = kernel_forms(graph, GENERATOR._replace(has_dot4=True))
            assert "int8_matmul" in names(has_dots) and "matmul" not in names(has_dots), name
            assert "int8_matmul" not in names(kernel_forms(graph, GENERATOR._replace(has_dot4=False)))
            given = {f"x{i}": x for i, x in enumerate(operands)}
            np.testing.assert_array_equal(interpret(has_dots, given)[0], wanted)
            np.testing.assert_array_equal(rlx.Session("cpu").compile(graph).run(given)[0], wanted)


def test_products_of_bytes_that_are_small_or_have_no_dots_stay():
    for a, b in (
        (_integers("i1", 2, 64), _integers("i1", 64, 64)),
        (_integers("i1", 8, 64), _integers("i1", 64, 8)),
        (_integers("i1", 8, 64), _integers("u1", 64, 64)),
    ):
        graph = build(lambda a, b: ops.cast(a, "i32") @ ops.cast(b, "i32"), a, b)
        assert "int8_matmul" not in names(kernel_forms(graph, GENERATOR._replace(has_dot4=True)))


@pytest.mark.parametrize("store", ["param", "constant"])
def test_stored_weights_of_products_of_bytes_stay_bytes(store):
    """They become panels when they are set, not numbers of 32 bits, and the product begins with their sums."""
    a, w, zero = _integers("u1", 7, 64), _integers("i1", 64, 40), np.array(121, "i4")
    graph = rlx.Graph("quantized")
    x, z = graph.input("x", ("B", 64), "u8"), graph.input("z", (), "i32")
    weight = graph.param("w", w.shape, "i8") if store == "param" else graph.constant(w)
    graph.set_outputs([(ops.cast(x, "i32") - z) @ ops.cast(weight, "i32")])
    compiled = rlx.Session("cpu").compile(graph)
    if store == "param":
        compiled.set_param("w", w)
    [found] = compiled.run({"x": a, "z": zero})
    np.testing.assert_array_equal(found, (a.astype("i4") - zero) @ w.astype("i4"))
    has_dots = bool(host().dot4_lanes)
    assert ([row.kind for row in compiled.report.kernels if "int8_matmul" in row.ops] == ["matmul"]) == has_dots
