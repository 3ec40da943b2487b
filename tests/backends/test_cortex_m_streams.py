"""What stands around an exported network: streams of rows, and a last layer that learns on the device."""

import shutil

import numpy as np
import pytest

from integer_programs.float_networks import (
    CONVNET_DIMS,
    RESIDUAL_DIMS,
    SEQUENCE_DIMS,
    convnet,
    gru_network,
    images,
    keyword_transformer,
    residual,
    traced,
)
from rlx.backends.cortex_m.checking import run_learning, run_on_host, run_stream
from rlx.backends.cortex_m.learning import EPOCHS, RATE, last_layer
from rlx.backends.cortex_m.project import CORES
from rlx.cortexm import export
from rlx.errors import RlxError
from rlx.quantized import quantize

compiler = pytest.mark.skipif(not shutil.which("gcc") and not shutil.which("clang"), reason="needs a C compiler")
qemu = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"),
    reason="needs arm-none-eabi-gcc and qemu-system-arm (make tools)",
)
M4 = CORES["cortex-m4"]


def network(function, dims):
    return quantize(traced(function, dims), {}, [{"x": images(40, dims)}], name="net")


def check_stream(program, hop, folder, core=M4, in_qemu=False):
    export(program, folder, stream=str(hop), cpu=core.name)
    length = program.input.dims[0]
    rng = np.random.default_rng(hop)
    rows = rng.integers(-128, 128, (hop * 12 + 1, *program.input.dims[1:])).astype("i1")
    # A push counts when all of its rows are there; windows end with each, once there are enough rows.
    ends = [n for n in range(hop, len(rows) + 1, hop) if n >= length]
    windows = np.stack([rows[n - length : n] for n in ends])
    got = run_stream(program, folder, "net", core, rows, in_qemu)
    assert got.tolist() == program.run(windows).tolist() and len(got) == len(ends)


@compiler
@pytest.mark.parametrize("hop", [1, 3, 5, 10])
@pytest.mark.parametrize("function", [keyword_transformer, gru_network], ids=lambda f: f.__name__)
def test_a_stream_gives_what_each_window_gives(function, hop, tmp_path):
    check_stream(network(function, SEQUENCE_DIMS), hop, tmp_path / "out")


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m4"])
def test_a_stream_in_qemu(core, tmp_path):
    check_stream(network(gru_network, SEQUENCE_DIMS), 3, tmp_path / "out", CORES[core], in_qemu=True)


def examples(program, count=60):
    """Inputs, and labels that the features decide, shifted by one: the layer must change to be right."""
    dims = tuple(program.input.dims[program.input_axes.index(a)] for a in range(3))
    codes = program.encode(images(count, dims, seed=5))
    labels = (program.run(codes).reshape(count, -1).argmax(axis=1) if program.result.dims else program.run(codes)) + 1
    return codes, labels % last_layer(program)[1].channels


def losses_in_numpy(program, codes, labels):
    _, step, x = last_layer(program)
    features = x.decode(program.run_all(codes)[step.inputs[0]].reshape(len(codes), -1)).astype(np.float64)
    w, bias = step.weights.floats.copy(), step.bias * step.weights.scales.astype(np.float64) * x.scale
    found = []
    for _ in range(EPOCHS):
        total = 0.0
        for feature, label in zip(features, labels):
            scores = w @ feature + bias
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            total -= np.log(shares[label])
            gradient = shares - np.eye(len(bias))[label]
            w -= RATE * np.outer(gradient, feature)
            bias -= RATE * gradient
        found.append(total / len(labels))
    return np.array(found)


@compiler
@pytest.mark.parametrize("function, dims", [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS)])
def test_the_last_layer_learns(function, dims, tmp_path):
    program = network(function, dims)
    codes, labels = examples(program)
    export(program, tmp_path / "out", learn="yes")
    losses = run_learning(tmp_path / "out", "net", M4, codes, labels, in_qemu=False)
    assert np.allclose(losses, losses_in_numpy(program, codes, labels), rtol=1e-4)
    assert losses[-1] < 0.6 * losses[0]
    # The network itself is what it was.
    assert run_on_host(program, tmp_path / "out", "net", M4, codes).tolist() == program.run(codes).tolist()


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
def test_the_loss_falls_in_qemu(core, tmp_path):
    program = network(residual, RESIDUAL_DIMS)
    codes, labels = examples(program)
    export(program, tmp_path / "out", learn="yes", cpu=core)
    losses = run_learning(tmp_path / "out", "net", CORES[core], codes, labels, in_qemu=True)
    assert np.allclose(losses, losses_in_numpy(program, codes, labels), rtol=1e-4)
    assert np.all(np.diff(losses) < 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stream": "0"}, "stream is a number of rows from 1 to 10, got '0'"),
        ({"stream": "11"}, "from 1 to 10, got '11'"),
        ({"stream": "few"}, "got 'few'"),
        ({"learn": "maybe"}, "learn=yes or learn=no is known"),
        ({"learn": "yes", "form": "object"}, "in the form c alone"),
    ],
)
def test_refusals(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(network(gru_network, SEQUENCE_DIMS), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_networks_that_cannot(tmp_path):
    w = images(1, (6, 4))[0]
    with pytest.raises(RlxError, match="a stream needs an input of several rows"):
        export(network(lambda x: x @ w, (6,)), tmp_path / "out", stream="1")
    k = images(1, (2, 1, 3, 3))[0]
    from rlx import nn

    with pytest.raises(RlxError, match="must end with a dense layer"):
        export(network(lambda x: nn.conv(x, k), (1, 5, 5)), tmp_path / "out", learn="yes")
