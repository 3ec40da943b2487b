"""Products of one value by several weights become one: which are joined, and that nothing but the count changes."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.weights.join_products import join_products
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all
from rlx.quant.schemes import quantize_blocks

rng = np.random.default_rng(11)
HIDDEN = 64


def normal(*dims):
    return rng.normal(size=dims).astype("f4")


class Built:
    """A graph under construction, with values for its leaves. Weights are declared where they are used."""

    def __init__(self):
        self.graph = rlx.Graph("g")
        self.values = {"x": normal(3, HIDDEN)}
        self.x = self.graph.input("x", ("B", HIDDEN))

    def weight(self, name, *dims):
        self.values[name] = normal(*dims)
        return self.graph.param(name, dims)

    def quantised(self, name, scheme, n):
        self.values[name] = quantize_blocks(scheme, normal(n, HIDDEN)).reshape(-1)
        packed = self.graph.param(name, self.values[name].shape, "u8")
        return ops.dequant_matmul(self.x, packed, scheme=scheme, n=n)

    def check(self, results, products):
        """Join, compare with the definitions, and count the products that are left."""
        self.graph.set_outputs(results)
        joined = join_products(self.graph)
        verify_all(joined)
        found = [n for n in joined.nodes if n.op.mnemonic in ("matmul", "dequant_matmul")]
        assert len(found) == products, joined
        bound = {"B": 3}
        for a, b in zip(
            interpret(self.graph.bind(bound), self.values), interpret(joined.bind(bound), self.values), strict=True
        ):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        assert join_products(joined) is joined
        return joined


def test_products_of_one_value():
    b = Built()
    with building(b.graph):
        parts = [b.x @ b.weight(f"w{n}", HIDDEN, n) for n in (16, 8, 24)]
        joined = b.check([ops.exp(p) for p in parts], 1)
    (product,) = (n for n in joined.nodes if n.op.mnemonic == "matmul")
    assert product.shape.dims[-1] == 48


def test_weights_that_are_turned():
    b = Built()
    with building(b.graph):
        parts = [b.x @ ops.transpose(b.weight(f"w{n}", n, HIDDEN), (1, 0)) for n in (16, 8)]
        b.check([ops.softmax(p, -1) for p in parts], 1)


def test_biases_are_joined_where_all_have_one():
    b = Built()
    with building(b.graph):
        parts = [b.x @ b.weight(f"w{n}", HIDDEN, n) + b.weight(f"b{n}", n) for n in (16, 8)]
        parts += [b.weight(f"b{n}", n) + b.x @ b.weight(f"w{n}", HIDDEN, n) for n in (5, 7)]
        plain = [b.x @ b.weight(f"w{n}", HIDDEN, n) for n in (3, 4)]
        joined = b.check([ops.exp(p) for p in (*parts, *plain)], 2)
    assert sum(n.op.mnemonic == "add" for n in joined.nodes) == 1


def test_a_row_that_is_added_is_no_bias():
    """It has an element for every row, too."""
    b = Built()
    with building(b.graph):
        extra = b.graph.input("extra", ("B", 16))
        b.values["extra"] = normal(3, 16)
        parts = [b.x @ b.weight("w0", HIDDEN, 16) + extra, b.x @ b.weight("w1", HIDDEN, 16) + b.weight("b1", 1, 16)]
        joined = b.check([ops.exp(p) for p in parts], 1)
    assert sum(n.op.mnemonic == "add" for n in joined.nodes) == 2


@pytest.mark.parametrize("scheme", ["gguf_q4_0", "gguf_q8_0", "gguf_q4_1"])
def test_quantised_weights(scheme):
    b = Built()
    with building(b.graph):
        parts = [b.quantised(f"w{n}", scheme, n) for n in (16, 8, 4)]
        other = b.quantised("other", "gguf_q5_0", 8)
        parts[0] = parts[0] + b.weight("b", 16)
        b.check([ops.exp(p) for p in (*parts, other)], 3)


def test_what_is_returned_stays_as_it_is():
    b = Built()
    with building(b.graph):
        first, second = (b.x @ b.weight(f"w{n}", HIDDEN, n) for n in (16, 8))
        b.graph.set_outputs([first, ops.exp(second)])
    assert join_products(b.graph) is b.graph


def test_weights_of_the_run_are_not_joined():
    b = Built()
    with building(b.graph):
        parts = [b.x @ b.graph.input(f"w{n}", (HIDDEN, n)) for n in (16, 8)]
        b.graph.set_outputs([ops.exp(p) for p in parts])
    assert join_products(b.graph) is b.graph


def test_other_values_and_precisions_stay_apart():
    b = Built()
    with building(b.graph):
        parts = [b.x @ b.weight("w0", HIDDEN, 8), ops.exp(b.x) @ b.weight("w1", HIDDEN, 8)]
        parts.append(ops.matmul(b.x, b.weight("w2", HIDDEN, 8), out_dtype="f64"))
        b.graph.set_outputs([ops.tanh(p) for p in parts])
    assert join_products(b.graph) is b.graph


def test_a_session_joins_them():
    b = Built()
    with building(b.graph):
        parts = [b.x @ b.weight(f"w{i}", HIDDEN, 16) + b.weight(f"b{i}", 16) for i in range(2)]
        b.graph.set_outputs([parts[0] * ops.sigmoid(parts[1])])
    compiled = rlx.Session("cpu").compile(b.graph)
    for name, value in b.values.items():
        if name != "x":
            compiled.set_param(name, value)
    (found,) = compiled.run({"x": b.values["x"]})
    (wanted,) = interpret(b.graph.bind({"B": 3}), b.values)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5)


def test_products_of_weights_alone_stay_where_they_are():
    """The second of them has a weight that is made after the first, as in the norms of DoRA."""
    graph = rlx.Graph("norms")
    with building(graph):
        x, a, w = graph.input("x", (2, 4)), graph.param("a", (3, 4)), graph.param("w", (4, 5))
        seen = ops.matmul(a, w)
        gram = ops.matmul(a, ops.transpose(a, (1, 0)))
        changes = [ops.matmul(x, w), ops.matmul(x, ops.transpose(a, (1, 0)))]
        graph.set_outputs([ops.reduce_sum(v, (0, 1)) for v in (seen, gram, *changes)])
    joined = join_products(graph)
    verify_all(joined)
    assert sum(node.op.mnemonic == "matmul" for node in joined.nodes) == 3
    given = {"x": normal(2, 4), "a": normal(3, 4), "w": normal(4, 5)}
    np.testing.assert_allclose(interpret(joined, given), interpret(graph, given), rtol=1e-5)
