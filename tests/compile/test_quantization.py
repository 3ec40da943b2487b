"""Post-training quantisation from calibration to integer products, and the removal of fake quantisation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import mnemonics, run_and_check

from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.ptq import propagate as quant_propagate
from rlx.compile.ptq.calibrate import Calibrator, calibrate, product_taps
from rlx.compile.ptq.collapse import RULES, CollapseQuantizedProducts
from rlx.compile.ptq.insert import CalibrationEntry, CalibrationRecord, insert_q_dq
from rlx.compile.ptq.observers import METHODS, Entropy, MaxAbs, MeanSquareError, Percentile
from rlx.compile.ptq.propagate import QuantPropagate
from rlx.errors import OpError, RlxError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rules import apply_rules
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all

COLLAPSE = CollapseQuantizedProducts()


def rounded(x, scale, axis=None):
    """NumPy's own: the nearest multiple of the scale within 127 steps, or 128 below."""
    if axis is not None:
        scale = np.reshape(scale, [-1 if i == axis else 1 for i in range(x.ndim)])
    return np.clip(np.rint(x / scale), -128, 127) * scale


def test_entries():
    assert CalibrationEntry.per_tensor(0.5) == (None, (0.5,), (0,))
    assert CalibrationEntry.per_channel(1, [0.5, 1.0]) == (1, (0.5, 1.0), (0, 0))
    assert CalibrationRecord() == {}


def test_readers_and_outputs_see_rounded_values():
    graph = Graph("taps")
    x = graph.input("x", (2, 3), "f32")
    y = ops.sin(x).named("y")
    graph.set_outputs([y, ops.neg(y), y + x])
    tapped = insert_q_dq(graph, {y: CalibrationEntry.per_tensor(0.03)})
    assert verify_all(tapped) == []
    assert mnemonics(tapped) == ["sin", "quantize", "dequantize", "neg", "add"]
    value = np.linspace(-2, 2, 6).astype("f4").reshape(2, 3)
    want = rounded(np.sin(value), 0.03)
    for got, expected in zip(interpret(tapped, [value]), [want, -want, want + value], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_inputs_params_projections_and_channels_can_be_tapped():
    graph = Graph("taps")
    x, w = graph.input("x", (2, 3), "f32"), graph.param("w", (3, 2), "f32")
    largest, _ = ops.TopKWithValues(2)(x)
    graph.set_outputs([x @ w, largest])
    record = {
        x.id: CalibrationEntry.per_tensor(0.1),
        w.id: CalibrationEntry.per_channel(1, [0.1, 0.02]),
        largest.id: CalibrationEntry.per_tensor(0.25),
    }
    tapped = insert_q_dq(graph, record)
    assert verify_all(tapped) == []
    leaves = {"x": np.arange(6, dtype="f4").reshape(2, 3) / 7, "w": np.linspace(-1, 1, 6).astype("f4").reshape(3, 2)}
    product, top = interpret(tapped, leaves)
    q = rounded(leaves["x"], 0.1)
    np.testing.assert_allclose(product, q @ rounded(leaves["w"], [0.1, 0.02], 1), atol=1e-5)
    np.testing.assert_allclose(top, rounded(np.sort(q)[:, :0:-1], 0.25), atol=1e-6)


def test_an_empty_record_changes_nothing():
    graph = Graph("plain")
    graph.set_outputs([graph.input("x", (2,), "f32")])
    assert insert_q_dq(graph, {}) is graph


def test_only_floats_can_be_tapped():
    graph = Graph("ints")
    x = graph.input("x", (2,), "i32")
    graph.set_outputs([x])
    with pytest.raises(OpError) as error:
        insert_q_dq(graph, {x: CalibrationEntry.per_tensor(1.0)})
    assert str(error.value) == "insert_q_dq: only a float value can be quantised; %0 (input) is i32[2]"


def test_channels_must_fit():
    graph = Graph("channels")
    x = graph.input("x", (2, 3), "f32")
    graph.set_outputs([x])
    with pytest.raises(OpError, match="2 scales do not fit axis 1"):
        insert_q_dq(graph, {x: CalibrationEntry.per_channel(1, [0.5, 1.0])})


@settings(max_examples=25)
@given(graphs(), st.data())
def test_taps_in_random_graphs(graph, data):
    tappable = [n.id for n in graph.nodes if len(n.shapes) == 1 and n.shape.dtype.is_float]
    chosen = data.draw(st.lists(st.sampled_from(tappable), unique=True)) if tappable else []
    tapped = insert_q_dq(graph, {i: CalibrationEntry.per_tensor(0.1) for i in chosen})
    assert verify_all(tapped) == []
    before, after = (interpret(g, inputs_for(graph), BINDING) for g in (graph, tapped))
    assert [(a.dtype, a.shape) for a in before] == [(b.dtype, b.shape) for b in after]


# Calibration


def test_max_abs_over_batches():
    graph = Graph("calibrated")
    x, w = graph.input("x", (2, 3), "f32"), graph.param("w", (3, 4), "f32")
    y = ops.tanh(x @ w)
    graph.set_outputs([y])
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 4)).astype("f4")
    batches = [rng.normal(size=(2, 3)).astype("f4") for _ in range(3)]
    calibrator = Calibrator(graph, [x, y, w], {"w": weights}, axes={w: -1})
    for batch in batches:
        calibrator.step({"x": batch})
    scales = calibrator.scales()
    np.testing.assert_allclose(scales[x.id], [np.abs(batches).max() / 127], rtol=1e-6)
    np.testing.assert_allclose(scales[y.id], [np.abs(np.tanh(batches @ weights)).max() / 127], rtol=1e-6)
    np.testing.assert_allclose(scales[w.id], np.abs(weights).max(axis=0) / 127, rtol=1e-6)
    record = calibrator.record()
    assert record[x.id].axis is None
    assert record[w.id].axis == -1
    assert verify_all(insert_q_dq(graph, record)) == []
    assert calibrate(graph, [{"x": b} for b in batches], [x, y, w], {"w": weights}, axes={w: -1}) == record


def test_a_value_of_zeros_has_the_smallest_scale():
    graph = Graph("zeros")
    x = graph.input("x", (2,), "f32")
    graph.set_outputs([x])
    for method in METHODS:
        record = calibrate(graph, [{"x": np.zeros(2, "f4")}] * 2, [x], method=method)
        assert record[x.id].scales == (1e-6,)


@pytest.mark.parametrize(("observer", "share"), [(Percentile(99.0), 0.05), (MeanSquareError(), 0.9), (Entropy(), 0.5)])
def test_outliers_are_clipped(observer, share):
    """A normal distribution with one value in a thousand a hundred times too large."""
    values = np.abs(np.random.default_rng(1).normal(size=100_000))
    outliers = values.copy()
    outliers[::1000] *= 100
    observer.observe(outliers)
    assert 0.001 * outliers.max() < observer.threshold() < share * outliers.max()


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.9, 100.0])
def test_percentile_against_numpy(percent):
    rng = np.random.default_rng(2)
    batches = [np.abs(rng.normal(size=5000)) * scale for scale in (1, 3, 0.5, 7)]
    observer = Percentile(percent)
    for batch in batches:
        observer.observe(batch)
    want = np.percentile(np.concatenate(batches), percent)
    assert abs(observer.threshold() - want) <= 2 * observer.width


def test_mse_beats_the_other_thresholds():
    values = np.abs(np.random.default_rng(3).standard_t(3, size=50_000))
    observer = MeanSquareError()
    observer.observe(values)
    largest = MaxAbs()
    largest.observe(values)

    def error(threshold):
        return np.mean((values - rounded(np.minimum(values, threshold), threshold / 127)) ** 2)

    best = error(observer.threshold())
    assert best < error(largest.threshold())
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert best <= error(observer.threshold() * factor) * 1.02


def test_entropy_keeps_a_uniform_distribution_whole():
    observer = Entropy()
    observer.observe(np.linspace(0, 1, 100_000))
    assert observer.threshold() > 0.95


def test_calibration_says_what_is_wrong():
    graph = Graph("wrong")
    x = graph.input("x", (2,), "f32")
    graph.set_outputs([ops.log(x)])
    calibrator = Calibrator(graph, [1])
    with pytest.raises(RlxError, match="nothing was observed yet"):
        calibrator.scales()
    with pytest.raises(RlxError, match=r"%1 \(log\) has NaN or infinite values"):
        calibrator.step({"x": np.zeros(2, "f4")})
    with pytest.raises(RlxError, match="there is no method 'guess'; use one of max_abs, percentile, mse, entropy"):
        Calibrator(graph, [1], method="guess")
    with pytest.raises(RlxError, match="above 0 and up to 100, got 0"):
        Percentile(0)


# Integer products


def linear(activation=None, bias=True, bias_dims=(4,)):
    graph = Graph("linear")
    with building(graph):
        x, w = graph.input("x", (2, 5, 3), "f32"), graph.param("w", (3, 4), "f32")
        y = x @ w
        if bias:
            y = graph.param("b", bias_dims, "f32") + y
        graph.set_outputs([activation(y) if activation else y])
    return graph


def conv(bias_dims=(4, 1, 1)):
    graph = Graph("conv")
    with building(graph):
        x, w = graph.input("x", (2, 3, 6, 5), "f32"), graph.param("w", (4, 3, 3, 3), "f32")
        y = ops.conv(x, w, stride=(1, 2), padding=(1, 0)) + graph.param("b", bias_dims, "f32")
        graph.set_outputs([ops.relu(y)])
    return graph


def values_for(graph):
    rng = np.random.default_rng(7)
    return {n.op.key: rng.normal(size=n.shape.dims).astype("f4") for n in graph.nodes if n.is_leaf}


def quantised(graph, **options):
    leaves = values_for(graph)
    params = {n.op.key: leaves[n.op.key] for n in graph.params}
    inputs = {n.op.key: leaves[n.op.key] for n in graph.inputs}
    return insert_q_dq(graph, calibrate(graph, [inputs], params=params, **options)), leaves


@pytest.mark.parametrize(
    ("build", "product"),
    [
        (lambda: linear(), "q_matmul"),
        (lambda: linear(bias=False), "q_matmul"),
        (lambda: linear(ops.relu), "q_matmul"),
        (lambda: linear(ops.relu, bias_dims=(1, 4)), "q_matmul"),
        (conv, "q_conv2d"),
        (lambda: conv((1, 4, 1, 1)), "q_conv2d"),
    ],
)
def test_quantised_programs_become_integer_products(build, product):
    graph = build()
    tapped, leaves = quantised(graph)
    collapsed = run_and_check(tapped, COLLAPSE)
    assert product in mnemonics(collapsed)
    assert not {"matmul", "conv"} & set(mnemonics(collapsed))
    (float_value,), (fake,), (integer,) = (interpret(g, leaves) for g in (graph, tapped, collapsed))
    step = next(n.op.scales[0] for n in reversed(tapped.nodes) if n.op.mnemonic == "dequantize")
    # One step apart at most, and seldom.
    assert np.max(np.abs(fake - integer)) <= step * 1.001
    assert np.mean(np.abs(fake - integer) > 0.5 * step) < 0.1
    error = np.linalg.norm(integer - float_value) / np.linalg.norm(float_value)
    assert 0 < error < 0.03


def test_the_factor_is_that_of_the_scales():
    graph = Graph("scaled")
    x, w = graph.input("x", (2, 3), "i8"), graph.param("w", (3, 4), "u8")
    floats = ops.Dequantize(None, (0.5,), (3,))(x) @ ops.Dequantize(None, (0.25,), (128,))(w)
    graph.set_outputs([ops.Quantize(None, (2.0,), (-1,))(floats)])
    collapsed = run_and_check(graph, COLLAPSE)
    assert collapsed.node(collapsed.outputs[0]).op == ops.QMatMul(3, 128, -1, 0.5 * 0.25 / 2.0)
    leaves = {"x": np.array([[1, -2, 3], [4, 5, -6]], "i1"), "w": np.arange(12, dtype="u1").reshape(3, 4) + 120}
    total = (leaves["x"].astype(int) - 3) @ (leaves["w"].astype(int) - 128)
    want = np.clip(np.floor(np.abs(total / 16) + 0.5) * np.sign(total) - 1, -128, 127)
    np.testing.assert_array_equal(interpret(collapsed, leaves)[0], want)


def misses(graph):
    result = apply_rules(graph, RULES)
    assert not result.fired
    assert result.graph is graph
    return [m.reason for m in result.misses]


def test_what_cannot_collapse_says_why():
    graph = linear()
    x, w, product, _bias, total = (n.id for n in graph.nodes)
    scale = CalibrationEntry.per_tensor(0.1)
    channels = CalibrationEntry.per_channel(1, [0.1] * 4)
    assert misses(insert_q_dq(graph, {x: scale, total: scale})) == ["not_quantized"]
    assert misses(insert_q_dq(graph, {x: scale, w: channels, total: scale})) == ["per_channel"]
    graph.set_outputs([total, product])
    assert misses(insert_q_dq(graph, {x: scale, w: scale, total: scale})) == ["multi_consumer"]
    residual = linear(bias_dims=(5, 4))
    assert misses(insert_q_dq(residual, {x: scale, w: scale, total: scale})) == ["bias_shape"]
    wide = Graph("wide")
    codes = [wide.input(k, (2, 2), "i16") for k in "ab"]
    product = ops.matmul(*(ops.Dequantize(None, (0.1,))(c) for c in codes))
    wide.set_outputs([ops.Quantize(None, (0.1,))(product)])
    assert misses(wide) == ["code_type"]


def test_taps_of_products_leave_out_residual_sums():
    graph = Graph("residual")
    x, w = graph.input("x", (4, 4), "f32"), graph.param("w", (4, 4), "f32")
    product = x @ w
    graph.set_outputs([ops.relu(product + x)])
    assert product_taps(graph) == [x.id, w.id, product.id]
    assert product_taps(linear(ops.relu)) == [0, 1, 5]


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16"])
@settings(max_examples=40)
@given(st.floats(1e-20, 1e20), st.integers(-100, 100))
def test_requantisation_is_the_identity_on_every_code(dtype, scale, zero):
    zero = abs(zero) if dtype == "u8" else zero
    graph = Graph("again")
    q = graph.input("q", ("N",), dtype)
    graph.set_outputs([ops.Quantize(None, (scale,), (zero,), dtype)(ops.Dequantize(None, (scale,), (zero,))(q))])
    info = np.iinfo({"i8": "i1", "u8": "u1", "i16": "i2"}[dtype])
    codes = np.arange(info.min, info.max + 1).astype(info.dtype)
    collapsed = run_and_check(graph, COLLAPSE, [codes])
    assert mnemonics(collapsed) == []


def test_other_scales_are_not_cancelled():
    graph = Graph("other")
    q = graph.input("q", (4,), "i8")
    x = ops.Dequantize(None, (0.5,))(q)
    graph.set_outputs([ops.Quantize(None, (0.25,))(x), ops.Quantize(None, (0.5,), (0,), "i16")(x)])
    assert COLLAPSE.run(graph) is graph


# Fake quantisation


def fake(x, **options):
    return ops.fake_quantize(x, **options)


def image_graph(build):
    graph = Graph("images")
    with building(graph):
        graph.set_outputs([build(graph.input("x", (2, 4, 4, 4), "f32"))])
    return graph


POOL = ops.Pool("max", (2, 2), (2, 2), (0, 0))
KEEPERS = [
    lambda y: ops.reshape(y, (8, 16)),
    lambda y: ops.transpose(y, (1, 0, 3, 2)),
    lambda y: ops.narrow(y, 1, 1, 2),
    lambda y: ops.concat([y, y], 0),
    ops.relu,
    POOL,
]


@pytest.mark.parametrize("through", KEEPERS)
def test_redundant_quantisers_are_redirected_to_their_own_operand(through):
    graph = image_graph(lambda x: ops.neg(fake(through(fake(x)))))
    moved = graph.copy()
    assert quant_propagate.run(moved) == 1
    assert verify_all(moved) == []
    x = np.random.default_rng(4).normal(size=(2, 4, 4, 4)).astype("f4")
    # The moving op itself is kept: values are those of one quantiser, moved.
    once = image_graph(lambda v: ops.neg(through(fake(v))))
    np.testing.assert_array_equal(interpret(moved, [x])[0], interpret(once, [x])[0])
    cleaned = run_and_check(graph, QuantPropagate())
    assert mnemonics(cleaned).count("fake_quantize") == 1


def test_a_fixed_step_makes_the_second_quantiser_the_identity():
    graph = Graph("fixed")
    x, step = graph.input("x", (3, 4), "f32"), graph.param("step", (1,), "f32")
    graph.set_outputs([fake(ops.relu(fake(x, scale_mode="fixed", state=step)), scale_mode="fixed", state=step)])
    leaves = {"x": np.linspace(-3, 3, 12).astype("f4").reshape(3, 4), "step": np.array([0.02], "f4")}
    after = run_and_check(graph, QuantPropagate(), leaves, exact=False)
    assert mnemonics(after) == ["fake_quantize", "relu"]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: fake(fake(x), bits=4),
        lambda x: fake(fake(x), ste="tanh"),
        lambda x: fake(fake(x), axis=1),
        lambda x: fake(ops.tanh(fake(x))),
        lambda x: fake(fake(x) + fake(x)),
        lambda x: fake(ops.concat([fake(x), fake(ops.neg(x))], 0)),
        lambda x: fake(ops.concat([fake(x), x], 0)),
        lambda x: fake(ops.transpose(fake(x, axis=1), (1, 0, 2, 3)), axis=1),
        lambda x: fake(POOL(fake(x, axis=2)), axis=2),
        lambda x: fake(ops.Pool("mean", (2, 2), (2, 2), (0, 0))(fake(x))),
        lambda x: fake(x, scale_mode="fixed", state=fake(x, scale_mode="fixed", state=np.ones(1, "f4"))[0, 0, 0, :1]),
    ],
)
def test_other_quantisers_stay(build):
    graph = image_graph(build)
    before = str(graph)
    assert quant_propagate.run(graph) == 0
    assert str(graph) == before
    assert QuantPropagate().run(graph) is graph


def test_running_averages_stay():
    graph = Graph("ema")
    x, state = graph.input("x", (4,), "f32"), graph.input("state", (1,), "f32")
    y, state_1 = fake(x, scale_mode="ema", state=state)
    z, state_2 = fake(y, scale_mode="ema", state=state)
    graph.set_outputs([z, state_1, state_2])
    assert QuantPropagate().run(graph) is graph


def test_channels_survive_pooling_and_relu():
    graph = image_graph(lambda x: fake(ops.relu(POOL(fake(x, axis=1))), axis=1))
    assert mnemonics(QuantPropagate().run(graph)) == ["fake_quantize", "pool", "relu"]


def test_chains_of_redundant_quantisers():
    graph = image_graph(lambda x: fake(ops.relu(fake(ops.relu(fake(x))))))
    assert quant_propagate.run(graph.copy()) == 2
    assert mnemonics(QuantPropagate().run(graph)) == ["fake_quantize", "relu", "relu"]


def test_a_frozen_graph_is_not_changed_in_place():
    with pytest.raises(OpError, match="is frozen; run it on a copy"):
        quant_propagate.run(image_graph(fake).freeze())
