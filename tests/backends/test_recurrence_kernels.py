"""State-space recurrences as native kernels, against plain NumPy in double precision."""

import numpy as np
import pytest

import rlx
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.kernels.cpu.ops import ssm
from rlx.ops.nn.linear_attention import LinearAttention
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


def scanned(x, delta, a, b, c, start=None):
    state = np.zeros((x.shape[0], x.shape[2], a.shape[1])) if start is None else start.swapaxes(1, 2)
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        state = np.exp(delta[:, t, :, None] * a) * state + (delta * x)[:, t, :, None] * b[:, t, None]
        y[:, t] = (state * c[:, t, None]).sum(-1)
    return y if start is None else (y, state.swapaxes(1, 2))


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


@pytest.mark.parametrize("dims", [(2, 13, 37, 5), (3, 1, 16, 16), (2, 0, 4, 3)])
def test_a_selective_scan_that_goes_on(dims):
    b, _, h, n = dims
    operands = [*scan_operands(*dims), normal(b, n, h, seed=6)]
    for got, wanted in zip(run(SelectiveScan(n, True, True), operands, "f32"), scanned(*operands), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def attention_operands(b, s, groups, h, n, p):
    q, k = (normal(b, s, groups, n, seed=i) for i in range(2))
    return q, k, normal(b, s, h, p, seed=2), -abs(normal(b, s, h, seed=3)), normal(b, h, n, p, seed=4)


def attended(q, k, v, g, state):
    """Written out: o_t = Σ_j e^{Σ_{i=j+1..t} g_i}·(q_t·k_j)·v_j, and what the state is to each."""
    share = v.shape[2] // q.shape[2]
    q, k = np.repeat(q, share, 2), np.repeat(k, share, 2)
    total = np.cumsum(g, 1)
    back = np.tril(np.exp(np.minimum(total[:, :, None] - total[:, None], 0)).transpose(0, 3, 1, 2))
    out = np.einsum("bthn,bjhn,bhtj,bjhp->bthp", q, k, back, v)
    out += np.einsum("bthn,bth,bhnp->bthp", q, np.exp(total), state)
    end = total[:, -1:] if v.shape[1] else np.zeros((v.shape[0], 1, v.shape[2]))
    kept = np.einsum("bjhn,bjh,bjhp->bhnp", k, np.exp(end - total), v)
    return out, kept + np.exp(end[:, 0, :, None, None]) * state


@pytest.mark.parametrize("dims", [(2, 13, 2, 4, 8, 21), (1, 150, 1, 3, 5, 16), (3, 1, 2, 2, 6, 7), (2, 0, 1, 2, 4, 3)])
@pytest.mark.parametrize("carried", [False, True])
def test_linear_attention(dims, carried):
    operands = [*attention_operands(*dims)]
    operands[-1] = operands[-1] * carried
    expected = attended(*operands)
    got = run(LinearAttention(carried, True), operands if carried else operands[:4], "f32")
    for found, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max(initial=1))


def test_linear_attention_of_any_length_in_chunks():
    """The form that other targets get: products within chunks, which are whole or not."""
    from rlx.ir.interpret import interpret

    graph = Graph("chunks")
    shapes = [("B", "S", 2, 5), ("B", "S", 2, 5), ("B", "S", 4, 3), ("B", "S", 4), ("B", 4, 5, 3)]
    tensors = [graph.input(f"x{i}", dims, "f64") for i, dims in enumerate(shapes)]
    graph.set_outputs(LinearAttention(True, True).decompose(*tensors))
    for seq in (1, 63, 64, 65, 200):
        operands = attention_operands(2, seq, 2, 4, 5, 3)
        found = interpret(graph, {f"x{i}": x for i, x in enumerate(operands)})
        for got, wanted in zip(found, attended(*operands), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


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
