"""Float graphs to integer programs: the right steps, near the floats, the same on every engine, clear refusals."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from integer_programs.float_networks import (
    BATCH_NORM_DIMS,
    CONVNET_DIMS,
    RESIDUAL_DIMS,
    SEQUENCE_DIMS,
    SEQUENCES,
    batch_norm_network,
    convnet,
    images,
    residual,
    traced,
    weights,
)
from rlx import nn, ops
from rlx.compile.ptq.calibrate import calibrate
from rlx.compile.ptq.insert import insert_q_dq
from rlx.ir.interpret import interpret
from rlx.quantized import Conv2d, Dense, QuantizedError, compare, from_bytes, quantize, to_bytes


def quantized(function, dims, **options):
    graph, x = traced(function, dims), images(64, dims)
    return graph, quantize(graph, {}, [{"x": x}], **options)


def relative_error(graph, program, dims):
    # Those of the calibration: what lies beyond their range is another question than rounding.
    x = images(64, dims)
    [wanted] = interpret(graph, [x])
    got = program.result.decode(program.run(x)).reshape(wanted.shape)
    return np.abs(got - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize(
    "options, most",
    [
        ({}, 0.05),
        ({"method": "mse"}, 0.12),
        ({"fraction_bits": 15}, 0.06),
        ({"activations": "i16"}, 0.02),
        ({"bits": 4}, 0.4),
        ({"bits": 4, "activations": "i16"}, 0.4),
    ],
    ids=str,
)
def test_a_convnet_is_near_its_floats(options, most):
    graph, program = quantized(convnet, CONVNET_DIMS, **options)
    assert [type(s).__name__ for s in program.steps] == ["Conv2d", "MaxPool", "Conv2d", "Dense"]
    assert program.input.dims == (8, 8, 3) and program.input_axes == (1, 2, 0)
    assert relative_error(graph, program, CONVNET_DIMS) < most


def test_finer_codes_are_nearer():
    errors = [
        relative_error(*quantized(convnet, CONVNET_DIMS, bits=bits, activations=dtype), CONVNET_DIMS)
        for bits, dtype in ((2, "i8"), (4, "i8"), (8, "i8"), (8, "i16"))
    ]
    assert errors == sorted(errors, reverse=True)


def test_a_residual_network_on_every_engine():
    graph, program = quantized(residual, RESIDUAL_DIMS)
    kinds = [type(s).__name__ for s in program.steps]
    assert kinds == ["Conv2d", "Conv2d", "Add", "MeanPool", "Dense", "Argmax"]
    assert program.steps[1].is_depthwise and program.steps[2].low == 0
    x = images(60, RESIDUAL_DIMS, seed=3)
    labels = program.run(x)
    for device in ("reference", "cpu"):
        assert program.run(x, device=device).tolist() == labels.tolist()
    every = interpret(program.simulation(every_value=True, exact=True), [program.encode(x)])
    assert all(np.array_equal(a, b) for a, b in zip(every, program.run_all(x)))
    assert np.mean(labels == interpret(graph, [x])[0]) > 0.9


def test_the_report_counts_labels_and_changed_codes():
    graph, program = quantized(residual, RESIDUAL_DIMS)
    x = images(200, RESIDUAL_DIMS, seed=3)
    report = compare(program, graph, {}, x, interpret(graph, [x])[0], device="reference", batch=64)
    assert report.right["float"] == 1.0 and 0.9 < report.right["integer"] <= 1.0
    assert report.lost_points == pytest.approx(100 * (1 - report.right["integer"]))
    assert [c.step for c in report.changed] == ["conv1", "conv2", "add1", "mean_pool1", "dense1"]
    first = report.changed[0]
    assert first.total == 200 * 6 * 5 * 5 and 0 < first.count < first.total / 100 and first.largest == 1
    assert "integer" in str(report) and "conv1" in str(report)
    with pytest.raises(QuantizedError, match="one label each"):
        compare(program, graph, {}, x, [1, 2])


def test_functions_and_softmax_are_tables():
    w1, w2 = weights((6, 5), (5, 4))

    def network(x):
        return nn.softmax(nn.gelu(nn.tanh(x @ w1)) @ w2)

    graph, program = quantized(network, (6,))
    assert [type(s).__name__ for s in program.steps] == ["Dense", "Lookup", "Lookup", "Dense", "Softmax"]
    x = images(64, (6,))
    [wanted] = interpret(graph, [x])
    shares = program.result.decode(program.run(x))
    assert np.abs(shares - wanted).max() < 0.02
    assert np.abs(shares.sum(axis=1) - 1).max() <= 4 / 256
    for device in ("reference", "cpu"):
        assert program.run(x, device=device).tolist() == program.run(x).tolist()


def test_factors_of_channels_go_into_the_products_before_them():
    graph, program = quantized(batch_norm_network, BATCH_NORM_DIMS)
    kinds = [type(s).__name__ for s in program.steps]
    # The norms of the input and of the difference are convolutions of one tap; those behind products are part of them.
    assert kinds == ["Conv2d", "Conv2d", "Conv2d", "Lookup", "Add", "Conv2d", "MaxPool", "Dense", "Lookup", "Dense"]
    assert [s.is_depthwise for s in program.steps if isinstance(s, Conv2d)] == [True, False, False, True]
    assert relative_error(graph, program, BATCH_NORM_DIMS) < 0.06
    x = images(40, BATCH_NORM_DIMS, seed=5)
    for device in ("reference", "cpu"):
        assert program.run(x, device=device).tolist() == program.run(x).tolist()


def test_weights_with_rounding_of_their_own_keep_it_before_a_norm():
    [w] = weights((6, 3, 3, 3))
    factor = np.linspace(0.5, 2, 6, dtype="f4")[:, None, None]
    _, program = quantized(lambda x: nn.conv(x, ops.fake_quantize(w, 4, axis=0)) * factor, (3, 8, 8))
    assert [type(s).__name__ for s in program.steps] == ["Conv2d", "Conv2d"]
    assert program.steps[0].weights.bits == 4 and program.steps[1].is_depthwise


FUNCTIONS = [nn.leaky_relu, nn.elu, nn.selu, nn.softplus, nn.mish, nn.hard_silu, nn.hard_tanh, nn.squareplus, rnp.abs]


@pytest.mark.parametrize("function", [*FUNCTIONS, lambda x: 1 / (2 + x * x)], ids=lambda f: f.__name__)
@pytest.mark.parametrize("activations", ["i8", "i16"])
def test_functions_of_several_nodes_are_one_table(function, activations):
    w1, w2 = weights((6, 5), (5, 4))
    graph, program = quantized(lambda x: function(x @ w1) @ w2, (6,), activations=activations)
    table = "Lookup" if activations == "i8" else "Interpolate"
    assert [type(s).__name__ for s in program.steps] == ["Dense", table, "Dense"]
    assert relative_error(graph, program, (6,)) < (0.05 if activations == "i8" else 0.01)


def test_softmax_of_16_bit_codes():
    w1, w2 = weights((6, 5), (5, 4))
    graph, program = quantized(lambda x: nn.softmax(nn.tanh(x @ w1) @ w2), (6,), activations="i16")
    assert [type(s).__name__ for s in program.steps] == ["Dense", "Interpolate", "Dense", "Rescale", "Softmax"]
    x = images(64, (6,))
    [wanted] = interpret(graph, [x])
    assert np.abs(program.result.decode(program.run(x)) - wanted).max() < 0.01


def fake_quantised(x, bits=4, lsq=True):
    w1, b1, w2, b2 = weights((6, 3, 3, 3), (6,), (6 * 4 * 4, 10), (10,))

    def rounded(x, step):
        if lsq:
            return ops.fake_quantize_lsq(x, np.float32([step]))
        return ops.fake_quantize(x, 8, scale_mode="fixed", state=np.float32([step]))

    x = rounded(x, 1 / 127)
    x = nn.relu(nn.conv(x, ops.fake_quantize(w1, bits, axis=0), b1, padding=1))
    x = nn.max_pool(rounded(x, 0.03), 2)
    return rounded(x.reshape(x.shape[0], 96) @ ops.fake_quantize(w2, bits, axis=1) + b2, 0.05)


@pytest.mark.parametrize("lsq", [True, False])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_a_graph_trained_with_fake_quantisation_needs_no_calibration(bits, lsq):
    graph = traced(lambda x: fake_quantised(x, bits, lsq), (3, 8, 8))
    program = quantize(graph, {})
    assert [type(s) for s in program.steps if s.macs] == [Conv2d, Dense]
    assert program.steps[0].weights.bits == {8: 8, 4: 4, 3: 4, 2: 2}[bits]
    assert program.steps[0].out.scale == np.float32(0.03) and program.input.scale == np.float32(1 / 127)
    x = images(50, (3, 8, 8))
    [wanted] = interpret(graph, [x])
    apart = np.abs(np.rint(wanted / np.float32(0.05)) - program.run(x))
    # Fewer bits mean sums of fewer steps and larger multipliers: the first of the two roundings is then a coarse one.
    most, share = (1, 0.1) if bits == 8 else (2, 0.6)
    assert apart.max() <= most and np.mean(apart > 0) < share


def test_a_graph_with_quantize_and_dequantize():
    w1, b1, w2 = weights((6, 3, 3, 3), (6,), (6 * 4 * 4, 10))

    def network(x):
        x = nn.max_pool(nn.relu(nn.conv(x, w1, b1, padding=1)), 2)
        return x.reshape(x.shape[0], 96) @ w2

    graph, x = traced(network, CONVNET_DIMS), images(64, CONVNET_DIMS)
    rounded = insert_q_dq(graph, calibrate(graph, [{"x": x}]))
    program = quantize(rounded, {})
    [wanted] = interpret(rounded, [x])
    step = program.result.scale
    assert np.abs(np.rint(wanted / step) - program.run(x)).max() <= 2
    assert len(set(program.steps[0].weights.scales.tolist())) == 1


def test_weights_may_be_given_by_name():
    graph = rlx.Graph("named")
    x, w = graph.input("x", ("N", 4), "f32"), graph.param("w", (4, 3), "f32")
    graph.set_outputs([rlx.relu(x @ w)])
    [value] = weights((4, 3))
    program = quantize(graph, {"w": value}, [{"x": images(9, (4,))}])
    assert program.steps[0].low == 0
    assert np.allclose(program.steps[0].weights.floats.T, value, atol=np.abs(value).max() / 127)


def refused(function, dims, match, **options):
    with pytest.raises(QuantizedError, match=match):
        quantized(function, dims, **options)


def test_refusals_name_the_op_and_what_to_do():
    w4, w3 = weights((4, 3), (3, 3, 1, 1))
    refused(lambda x: rnp.cumsum(x @ w4, axis=1), (4,), r"there is no integer step for it; known: matmul, conv")
    refused(
        lambda x: nn.conv(rnp.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=1.0), w3),
        (3, 4, 4),
        "only zeros",
    )
    refused(lambda x: x @ w4, (4,), "8, 4 or 2 bits, got 5", bits=5)
    refused(lambda x: x @ w4, (4,), "activations are i8 or i16, got u8", activations="u8")
    refused(lambda x: x @ w4, (4,), "31 or 15 bits, got 7", fraction_bits=7)
    refused(lambda x: (x @ w4).reshape(x.shape[0] * 3), (4,), "reshape")
    refused(lambda x: rnp.sum(x @ w4, axis=1), (4,), "there is no integer step for it")
    refused(lambda x: x @ ops.fake_quantize(w4, 8, axis=0), (4,), "per output channel, which is axis 1")
    refused(
        lambda x: ops.fake_quantize(x @ w4, 20, scale_mode="fixed", state=np.ones(1, "f4")), (4,), "at most 16 bits"
    )
    with pytest.raises(QuantizedError, match="give batches of typical inputs"):
        quantize(traced(lambda x: x @ w4, (4,)), {})
    graph = rlx.Graph("two")
    graph.set_outputs([graph.input("a", ("N", 3), "f32") + graph.input("b", ("N", 3), "f32")])
    with pytest.raises(QuantizedError, match=r"exactly one input.*got a, b"):
        quantize(graph, {})


def test_sums_that_may_leave_i32_are_refused_with_layer_and_number():
    w = np.full((1100, 2), 0.5, np.float32)
    refused(lambda x: x @ w, (1100,), r"dense1 \(Dense\): sums can reach 4577689600", activations="i16")
    assert quantized(lambda x: x @ w, (1100,))[1].steps[0].macs == 2200


def test_images_may_be_the_result_but_not_flattened_ones():
    [w] = weights((3, 2, 3, 3))
    graph, program = quantized(lambda x: nn.conv(x, w), (2, 5, 6))
    x = images(64, (2, 5, 6))
    [wanted] = interpret(graph, [x])
    got = np.moveaxis(program.result.decode(program.run(x)), -1, 1)
    assert np.abs(got - wanted).max() < 0.03 * np.abs(wanted).max()
    assert compare(program, graph, {}, x, device="reference").right["integer"] > 0.9
    refused(lambda x: nn.conv(x, w).reshape(x.shape[0], 36), (2, 5, 6), "a flattened image cannot be the result")


def test_values_of_channels_that_are_dead():
    [w] = weights((4, 3))
    w[:, 1] = 0
    _, program = quantized(lambda x: rlx.relu(x @ w), (4,))
    assert not program.run(images(20, (4,)))[:, 1].any()
    # Its bias is all that such a channel has.
    _, program = quantized(lambda x: x @ w + np.float32([0, 0.5, 0]), (4,))
    shown = program.result.decode(program.run(images(20, (4,))))
    assert np.abs(shown[:, 1] - 0.5).max() <= program.result.scale


def test_weights_that_are_no_numbers():
    w = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(Exception, match="NaN or infinite"):
        quantized(lambda x: x @ w, (4,))


@pytest.mark.parametrize(
    "options, most",
    [({}, 0.1), ({"activations": "i16"}, 0.03), ({"fraction_bits": 15}, 0.1), ({"bits": 4}, 0.5)],
    ids=str,
)
@pytest.mark.parametrize("network", SEQUENCES, ids=lambda f: f.__name__)
def test_sequences_are_near_their_floats(network, options, most):
    graph, program = quantized(network, SEQUENCE_DIMS, **options)
    assert program.input.dims == (10, 1, 6)
    assert relative_error(graph, program, SEQUENCE_DIMS) < most


@pytest.mark.parametrize("network", SEQUENCES, ids=lambda f: f.__name__)
def test_sequences_on_every_engine(network):
    _, program = quantized(network, SEQUENCE_DIMS)
    x = images(9, SEQUENCE_DIMS, seed=3)
    codes = program.run(x)
    for device in ("reference", "cpu"):
        assert program.run(x, device=device).tolist() == codes.tolist()
    every = interpret(program.simulation(every_value=True, exact=True), [program.encode(x)])
    assert all(np.array_equal(a, b) for a, b in zip(every, program.run_all(x)))
    assert from_bytes(to_bytes(program)).run(x).tolist() == codes.tolist()


def test_the_steps_of_a_transformer_and_of_a_gru():
    kinds = [type(s).__name__ for s in quantized(SEQUENCES[0], SEQUENCE_DIMS)[1].steps]
    block = [
        "LayerNorm",
        *["Conv2d"] * 3,
        "Attention",
        "Conv2d",
        "Add",
        "LayerNorm",
        "Conv2d",
        "Lookup",
        "Conv2d",
        "Add",
    ]
    assert kinds == ["Conv2d", "AddConstant", *block, *block, "MeanPool", "Dense"]
    program = quantized(SEQUENCES[2], SEQUENCE_DIMS)[1]
    assert [type(s).__name__ for s in program.steps] == [
        "Conv2d",
        "Gru",
        "Conv2d",
        "Gru",
        "Concat",
        "MeanPool",
        "Dense",
    ]
    assert [s.reverse for s in program.steps if hasattr(s, "reverse")] == [False, True]


def test_a_loop_with_other_arithmetic_is_no_gru():
    [w, wh] = weights((6, 12), (4, 12))

    def network(x, scale=1.0):
        def cell(h, row):
            r, z, n = rnp.split(row, 3, axis=-1)
            hr, hz, hn = rnp.split(h @ wh, 3, axis=-1)
            z = nn.sigmoid(z + hz)
            h = (1 - z) * nn.tanh(scale * n + nn.sigmoid(r + hr) * hn) + z * h
            return h, h

        rows = rnp.swapaxes(x @ w, 0, 1)
        return rlx.scan(cell, rnp.zeros((x.shape[0], 4), "f4"), rows)[0]

    graph, program = quantized(network, SEQUENCE_DIMS)
    assert [type(s).__name__ for s in program.steps] == ["Conv2d", "Gru"] and program.result.dims == (4,)
    assert relative_error(graph, program, SEQUENCE_DIMS) < 0.05
    refused(lambda x: network(x, 1.1), SEQUENCE_DIMS, "with the formula of rlx.nn.gru")


def test_relu6_is_a_limit():
    w1, w2 = weights((4, 6), (6, 3), scale=8.0)
    graph, program = quantized(lambda x: nn.relu6(x @ w1) @ w2, (4,))
    assert [type(s).__name__ for s in program.steps] == ["Dense", "Dense"]
    step = program.steps[0]
    assert step.low == 0 and step.high == round(6 / step.out.scale) == 127
    assert relative_error(graph, program, (4,)) < 0.05
