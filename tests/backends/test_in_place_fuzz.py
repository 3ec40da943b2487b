"""Random programs full of updates, views and readers of old values, some outputs stored over inputs.

The results are those of the reference, inputs that were not given away stay as they were, and the plan passes the
interpreter that checks it.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.compile.memory.interpret import interpret_lir
from rlx.ir.interpret import interpret
from rlx.ops.shape.indexing import scatter_nd

DIMS = (4, 6)
relaxed = settings(max_examples=60)


@st.composite
def programs(draw):
    g = rlx.Graph("fuzz")
    inputs = [g.input(name, DIMS) for name in "abc"]
    ids = g.input("ids", (2, 1), "i32")
    values = list(inputs)

    def pick():
        return values[draw(st.integers(0, len(values) - 1))]

    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["window", "rows", "add", "turn", "exp", "view", "sum", "sort"]))
        x, y = pick(), pick()
        row = draw(st.integers(0, 3))
        if kind == "window":
            made = ops.dynamic_update_slice(x, ops.narrow(y, 0, row, 1), [draw(st.integers(-2, 4)), 0])
        elif kind == "rows":
            made = scatter_nd(x, ids, ops.narrow(y, 0, min(row, 2), 2), draw(st.sampled_from(["set", "add", "max"])))
        elif kind == "add":
            made = x + y * 0.5
        elif kind == "turn":
            made = ops.reverse(x, (draw(st.integers(0, 1)),))
        elif kind == "exp":
            made = rlx.tanh(x)
        elif kind == "view":
            made = ops.reshape(ops.reshape(x, (24,)) if row % 2 else ops.reshape(x, (2, 12)), DIMS)
        elif kind == "sum":
            made = x - ops.expand(ops.reduce_sum(y, (0,), keepdims=True), DIMS) * 0.1
        else:
            made = ops.sort(x, axis=1)
        values.append(made)
    outputs = draw(st.lists(st.integers(3, len(values) - 1), min_size=1, max_size=4, unique=True))
    g.set_outputs([values[i] for i in outputs])
    names = draw(st.permutations("abc"))
    chosen = draw(st.integers(0, min(3, len(set(g.outputs)))))
    for number, name in zip(range(chosen), names):
        if g.outputs.index(g.outputs[number]) == number and not g.node(g.outputs[number]).is_leaf:
            g.alias(g.outputs[number], name)
    return g


def arrays(seed):
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=DIMS).astype("f4") for name in "abc"}
    return values | {"ids": rng.permutation(4)[:2].reshape(2, 1).astype("i4")}


@relaxed
@given(programs(), st.integers(0, 99))
def test_programs_in_place_equal_the_reference(graph, seed):
    before = arrays(seed)
    wanted = interpret(graph, {k: v.copy() for k, v in before.items()})
    executable = CpuBackend().compile(graph.copy(), CompileOptions())
    values = {k: v.copy() for k, v in before.items()}
    results = executable.run(values, {})
    for a, b in zip(results, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for name, array in values.items():
        holder = [number for number, key in graph.aliases.items() if key == name]
        if not holder:
            np.testing.assert_array_equal(array, before[name])
        else:
            assert results[holder[0]] is array
    for number, result in enumerate(results):
        assert not any(np.shares_memory(result, other) for other in results[:number])
    for a, b in zip(interpret_lir(executable.lir, before), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
