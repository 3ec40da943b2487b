"""State-space recurrences as native kernels, against plain NumPy in double precision."""

import numpy as np
import pytest

import rlx
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.kernels.cpu.ops import ssm
from rlx.ops.nn.ssm import GatedDeltaNet, SelectiveScan


def normal(*dims, seed=0):
    return np.random.default_rng(seed).normal(size=dims)


def run(op, arrays, dtype, kind="recurrence", dims=None):
    numpy = DType(dtype).numpy
    graph = Graph("recurrence")
    shapes = dims or [a.shape for a in arrays]
    result = op(*(graph.input(f"x{i}", d, dtype) for i, d in enumerate(shapes)))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    program = rlx.Session("cpu").compile(graph)
    kinds = [k.kind for k in program._executable.lir.kernels]
    assert kind in kinds
    assert "call" not in kinds
    outputs = program.run({f"x{i}": a.astype(numpy) for i, a in enumerate(arrays)})
    with rlx.threads(3):
        for a, b in zip(outputs, program.run({f"x{i}": a.astype(numpy) for i, a in enumerate(arrays)}), strict=True):
            np.testing.assert_array_equal(a, b)
    return [np.asarray(o).astype("f8") for o in outputs]


def scan_operands(b, s, h, n):
    return (
        normal(b, s, h),
        abs(normal(b, s, h, seed=1)) / 5,
        -abs(normal(h, n, seed=2)),
        normal(b, s, n),
        normal(b, s, n),
    )


def scanned(x, delta, a, b, c):
    state, y = np.zeros((x.shape[0], x.shape[2], a.shape[1])), np.zeros(x.shape)
    for t in range(x.shape[1]):
        state = np.exp(delta[:, t, :, None] * a) * state + (delta * x)[:, t, :, None] * b[:, t, None]
        y[:, t] = (state * c[:, t, None]).sum(-1)
    return y


@pytest.mark.parametrize("dims", [(2, 13, 37, 5), (1, 40, 16, 16), (3, 1, 1, 1), (2, 0, 4, 3), (0, 3, 4, 3)])
@pytest.mark.parametrize("dtype, rtol", [("f32", 1e-5), ("f64", 1e-12), ("bf16", 3e-2)])
def test_selective_scan(dims, dtype, rtol):
    operands = [a.astype(DType(dtype).numpy).astype("f8") for a in scan_operands(*dims)]
    [got] = run(SelectiveScan(dims[3]), operands, dtype)
    wanted = scanned(*operands)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=1))


def test_a_selective_scan_of_any_length():
    symbolic = [("B", "S", 6), ("B", "S", 6), (6, 3), ("B", "S", 3), ("B", "S", 3)]
    for b, s in ((1, 4), (3, 9)):
        operands = [a.astype("f4").astype("f8") for a in scan_operands(b, s, 6, 3)]
        [got] = run(SelectiveScan(3), operands, "f32", dims=symbolic)
        np.testing.assert_allclose(got, scanned(*operands), rtol=1e-5, atol=1e-5)


def delta_operands(b, s, h, n):
    q, k, v = (normal(b, s, h, n, seed=i) / np.sqrt(n) for i in range(3))
    return q, k, v, -abs(normal(b, s, h, seed=3)), 1 / (1 + np.exp(normal(b, s, h, seed=4))), normal(b, h, n, n, seed=5)


def delta_rule(q, k, v, g, beta, state):
    out, state = np.zeros(q.shape), state.copy()
    for t in range(q.shape[1]):
        state = np.exp(g[:, t, :, None, None]) * state
        correction = beta[:, t, :, None] * (v[:, t] - np.einsum("bhij,bhi->bhj", state, k[:, t]))
        state = state + k[:, t, :, :, None] * correction[:, :, None, :]
        out[:, t] = np.einsum("bhij,bhi->bhj", state, q[:, t]) / np.sqrt(q.shape[-1])
    return out, state


@pytest.mark.parametrize("dims", [(2, 7, 3, 5), (1, 11, 2, 16), (1, 3, 1, 33), (2, 0, 1, 4)])
@pytest.mark.parametrize("carried", [False, True])
def test_gated_delta_net(dims, carried):
    operands = [a.astype("f4").astype("f8") for a in delta_operands(*dims)]
    wanted = delta_rule(*operands[:5], operands[5] if carried else np.zeros(operands[5].shape))
    got = run(GatedDeltaNet(dims[3], carried, True), operands if carried else operands[:5], "f32")
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_large_states_become_scans(monkeypatch):
    monkeypatch.setattr(ssm, "MAX_STATES", 3)
    operands = [a.astype("f4").astype("f8") for a in scan_operands(2, 5, 6, 4)]
    [got] = run(SelectiveScan(4), operands, "f32", kind="loop")
    np.testing.assert_allclose(got, scanned(*operands), rtol=1e-5, atol=1e-5)
