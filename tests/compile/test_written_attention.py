"""Attention that is written out becomes the op, whatever its masks are, and gives what was written."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.lower.written_attention import join_attention
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all
from rlx.kernels.from_lir import generator
from rlx.kernels.machines import host

rng = np.random.default_rng(3)
GENERATOR = generator(host())
LOWEST = np.finfo("f4").min
DIMS = {"q": ("B", 4, "S", 8), "k": ("B", 4, "T", 8), "v": ("B", 4, "T", 6)}
SIZES = {"B": 2, "S": 5, "T": 7}


def swap(x):
    return ops.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def program(build, dims):
    graph = rlx.Graph("written")
    values = [graph.input(n, d, "bool" if n == "seen" else "f32") for n, d in dims.items()]
    with building(graph):
        graph.set_outputs([build(*values)])
    return graph


def arrays(dims, **given):
    shapes = {n: [SIZES.get(d, d) for d in dim] for n, dim in dims.items()}
    made = {n: rng.standard_normal(s).astype("f4") if n != "seen" else rng.random(s) < 0.5 for n, s in shapes.items()}
    return {**made, **given}


def mnemonics(graph):
    return [node.op.mnemonic for node in graph.nodes]


def joined(graph):
    return join_attention(graph, GENERATOR)


def softmax(scores):
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def attention(q, k, v, bias=0.0, scale=8**-0.5):
    q, k, v = (x.astype("f8") for x in (q, k, v))
    # In f32 a sum with the lowest number is that number.
    scores = (q @ k.swapaxes(-1, -2) * scale).astype("f4") + np.asarray(bias, "f4")
    return softmax(scores.astype("f8")) @ v


def check(build, dims, expected, given):
    graph = program(build, dims)
    after = joined(graph)
    assert mnemonics(after).count("attention") == 1 and "softmax" not in mnemonics(after), after
    assert verify_all(after) == []
    compiled = rlx.Session("cpu").compile(graph)
    assert "attention" in {row.kind for row in compiled.report.kernels}
    [found] = compiled.run(given)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: ops.matmul(q, swap(k)) * np.float32(8**-0.5),
        lambda q, k: ops.matmul(q, swap(k)) / np.float32(8**0.5),
        lambda q, k: ops.matmul(q * np.float32(8**-0.25), swap(k) * np.float32(8**-0.25)),
        lambda q, k: ops.matmul(q / np.float32(8**0.5), ops.transpose(k, (0, 1, 3, 2))),
    ],
)
def test_scaled_scores(scores):
    given = arrays(DIMS)
    check(lambda q, k, v: ops.matmul(rlx.softmax(scores(q, k), -1), v), DIMS, attention(**given), given)


def plain(q, k):
    return ops.matmul(q, swap(k)) * np.float32(8**-0.5)


def test_biases_are_added_in_any_form():
    dims = {**DIMS, "a": (4, "S", "T"), "b": ("B", 1, 1, "T")}
    given = arrays(dims)
    bias = given["a"] - given["b"]
    q, k, v = (given[n] for n in "qkv")

    def build(q, k, v, a, b):
        return ops.matmul(rlx.softmax(a + plain(q, k) - b, -1), v)

    check(build, dims, attention(q, k, v, bias), given)


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9])
def test_rows_that_a_bias_hides_are_what_was_written(low):
    """NaN for -inf, and the mean of all values for a number so low that nothing of a score is left beside it."""
    dims = {**DIMS, "bias": ("B", 1, "S", "T")}
    given = arrays(dims)
    seen = rng.random((2, 1, 5, 7)) < 0.5
    seen[0, 0, 2], seen[1, 0, 0] = False, True
    given["bias"] = np.where(seen, 0, low).astype("f4")
    expected = attention(*(given[n] for n in "qkv"), given["bias"])
    assert np.isnan(expected).any() == (low == -np.inf)

    def build(q, k, v, bias):
        return ops.matmul(rlx.softmax(plain(q, k) + bias, -1), v)

    check(build, dims, expected, given)


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9, -1e4])
@pytest.mark.parametrize("kept", [1, 2])
def test_scores_that_are_hidden_by_a_condition(low, kept):
    dims = {**DIMS, "seen": ("B", 1, "S", "T")}
    given = arrays(dims)
    given["seen"][0, 0, 2] = False
    q, k, v = (given[n].astype("f8") for n in "qkv")
    scores = np.where(given["seen"], q @ k.swapaxes(-1, -2) * 8**-0.5, low)

    def build(q, k, v, seen):
        if kept == 1:
            hidden = ops.where(seen, plain(q, k), np.float32(low))
        else:
            hidden = ops.where(ops.not_(seen), np.float32(low), plain(q, k))
        return ops.matmul(rlx.softmax(hidden, -1), v)

    check(build, dims, softmax(scores) @ v, given)


@pytest.mark.parametrize("guard", ["nan", "seen"])
def test_rows_that_see_nothing_may_be_made_0(guard):
    dims = {**DIMS, "seen": (1, 1, "S", "T")}
    given = arrays(dims)
    given["seen"][..., 2, :] = False
    q, k, v = (given[n].astype("f8") for n in "qkv")
    shares = softmax(np.where(given["seen"], q @ k.swapaxes(-1, -2) * 8**-0.5, -np.inf))

    def build(q, k, v, seen):
        shares = rlx.softmax(ops.where(seen, plain(q, k), -np.inf), -1)
        if guard == "nan":
            shares = ops.where(ops.isnan(shares), 0.0, shares)
        else:
            shares = ops.where(seen, shares, 0.0)
        return ops.matmul(shares, v)

    check(build, dims, np.nan_to_num(shares) @ v, given)


def test_heads_that_share_keys_and_values_have_them_once():
    dims = {"q": ("B", 4, "S", 8), "k": ("B", 2, "T", 8), "v": ("B", 2, "T", 8)}
    given = arrays(dims)

    def repeated(x, time):
        wide = ops.expand(ops.expand_dims(x, 2), (x.shape[0], 2, 2, *x.shape[2:]))
        # As exporters turn keys: with batch and heads joined.
        return ops.reshape(wide, (x.shape[0], 4, time, 8))

    def build(q, k, v):
        batch, _, time, _ = k.shape
        rows = ops.reshape(repeated(k, time), (batch * 4, time, 8))
        turned = ops.reshape(ops.transpose(rows, (0, 2, 1)), (batch, 4, 8, time))
        return ops.matmul(rlx.softmax(ops.matmul(q, turned) * np.float32(8**-0.5), -1), repeated(v, time))

    q, k, v = given["q"], given["k"].repeat(2, 1), given["v"].repeat(2, 1)
    check(build, dims, attention(q, k, v), given)
    [node] = [n for n in joined(program(build, dims)).nodes if n.op.mnemonic == "attention"]
    assert node.op.kv_heads == 2


def test_one_head_without_an_axis_of_heads():
    dims = {"q": ("B", "S", 8), "k": ("B", "T", 8), "v": ("B", "T", 6), "bias": ("S", "T")}
    given = arrays(dims)

    def build(q, k, v, bias):
        return ops.matmul(rlx.softmax(plain(q, k) + bias, -1), v)

    check(build, dims, attention(*given.values()), given)


def test_halves_are_summed_in_f32():
    dims = {"q": (1, 2, 5, 8), "k": (1, 2, 7, 8), "v": (1, 2, 7, 8)}
    given = {n: x.astype("f2") for n, x in arrays(dims).items()}
    graph = rlx.Graph("halves")
    q, k, v = (graph.input(n, d, "f16") for n, d in dims.items())
    with building(graph):
        wide = ops.cast(ops.matmul(q, swap(k)) * np.float16(8**-0.5), "f32")
        graph.set_outputs([ops.matmul(ops.cast(rlx.softmax(wide, -1), "f16"), v)])
    assert "attention" in mnemonics(joined(graph))
    [found] = rlx.Session("cpu").compile(graph).run(given)
    np.testing.assert_allclose(found.astype("f8"), attention(**given), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "build",
    [
        # Others read the shares, or the scores.
        lambda q, k, v: (shares := rlx.softmax(plain(q, k), -1), ops.matmul(shares, v))[1] + ops.reduce_sum(shares),
        lambda q, k, v: (scores := plain(q, k), ops.matmul(rlx.softmax(scores, -1), v))[1] * ops.reduce_max(scores),
        # Shares of queries, not of keys.
        lambda q, k, v: ops.matmul(rlx.softmax(plain(q, k), -2), v),
        # A sum that is scaled, and a number that hides too little.
        lambda q, k, v: ops.matmul(rlx.softmax((ops.matmul(q, swap(k)) + 1.0) * 0.5, -1), v),
        lambda q, k, v: ops.matmul(rlx.softmax(ops.where(plain(q, k) > 0, plain(q, k), -3.0), -1), v),
        # Made 0 under a condition of its own.
        lambda q, k, v: ops.matmul(ops.where(plain(q, k) > 0, rlx.softmax(plain(q, k), -1), 0.0), v),
    ],
)
def test_what_attention_does_not_say_stays(build):
    graph = program(build, DIMS)
    assert "attention" not in mnemonics(joined(graph))


def test_wide_heads_stay_products_of_matrices():
    dims = dict.fromkeys("qkv", (1, 1, 16, 512))
    assert "attention" not in mnemonics(
        joined(program(lambda q, k, v: ops.matmul(rlx.softmax(plain(q, k), -1), v), dims))
    )


def test_two_layers_with_a_softmax_between_stay_layers():
    def build(x, first, second):
        return ops.matmul(rlx.softmax(ops.matmul(x, first), -1), second)

    for batch in ((), ("B",)):
        graph = program(build, {"x": (*batch, "S", 8), "first": (8, 16), "second": (16, 5)})
        assert "attention" not in mnemonics(joined(graph))


def test_attention_in_the_body_of_a_loop_is_joined():
    def step(x, _):
        return ops.matmul(rlx.softmax(plain(x, x), -1), x), None

    x = rng.standard_normal((1, 2, 6, 8)).astype("f4")
    found = rlx.jit(lambda x: rlx.scan(step, x, None, length=3)[0])(x)
    expected = x
    for _ in range(3):
        expected = attention(expected, expected, expected).astype("f4")
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_derivatives_are_those_of_what_was_written():
    q, k, v = (rng.standard_normal((1, 2, 6, 8)).astype("f4") for _ in range(3))

    def loss(q, k, v):
        return ops.reduce_sum(ops.matmul(rlx.softmax(plain(q, k), -1), v) ** 2.0)

    found = rlx.jit(rlx.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    step = 1e-3
    for number, x in enumerate((q, k, v)):
        change = rng.standard_normal(x.shape)
        ends = [[*(y.astype("f8") for y in (q, k, v))] for _ in range(2)]
        ends[0][number], ends[1][number] = x + step * change, x - step * change
        totals = [(softmax(a @ b.swapaxes(-1, -2) * 8**-0.5) @ c) ** 2 for a, b, c in ends]
        slope = (totals[0].sum() - totals[1].sum()) / (2 * step)
        np.testing.assert_allclose((found[number] * change).sum(), slope, rtol=1e-3)
