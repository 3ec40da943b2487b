"""The programs of the benchmark: the same operands everywhere, and rlx computes what SciPy and NumPy say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf, log_softmax, softmax

from rlx.backends.native.kernels import load
from rlx.bench.engines.rlx_engine import RlxEngine, program_graph
from rlx.bench.limits import _fma_kernel, _read_kernel, measure_limits
from rlx.bench.programs import PROGRAMS, exact, operands_of
from rlx.bench.suites import SUITES
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.machines import SSE2, host

PRODUCT = {"m": 5, "n": 7, "k": 11}
ROWS = {"rows": 3, "width": 17}
HEADS = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 5, "keys": 5, "depth": 8}
SMALL = {
    "matmul": PRODUCT,
    "matmul+bias+gelu": PRODUCT,
    "swiglu": PRODUCT,
    "softmax": ROWS,
    "layer_norm": ROWS,
    "rms_norm": ROWS,
    "residual+norm": ROWS,
    "cross_entropy": ROWS,
    "attention": HEADS,
    "causal attention": HEADS,
    "three nodes": ROWS,
}


@pytest.mark.parametrize("program", SMALL)
def test_rlx_is_right(program):
    engine = RlxEngine(threads=1)
    found = engine.as_numpy(engine.prepare(program, SMALL[program])())
    np.testing.assert_allclose(found, exact(program, SMALL[program]).values, rtol=1e-5, atol=1e-5)


def test_one_compile_of_the_encoder_serves_all_sizes():
    engine = RlxEngine(threads=1)
    first = engine.as_numpy(engine.prepare("encoder", {"batch": 1, "seq": 3})())
    assert first.shape == (1, 3, 384)
    compiled = engine._known["encoder"]
    assert engine.as_numpy(engine.prepare("encoder", {"batch": 2, "seq": 5})()).shape == (2, 5, 384)
    assert engine._known["encoder"] is compiled
    graph, _, weights = program_graph("encoder", {"batch": 1, "seq": 3})
    assert set(graph.dynamic_symbols()) == {"B", "S"}
    assert sum(w.size for n, w in weights.items() if n[0].isdigit()) > 10_000_000
    np.testing.assert_allclose(first, exact("encoder", {"batch": 1, "seq": 3}).values, rtol=1e-3, atol=1e-3)


def test_what_is_right():
    """The f64 values against SciPy."""
    wide = {n: x.astype("f8") for n, x in operands_of("matmul+bias+gelu", PRODUCT)[1].items()}
    x = operands_of("matmul+bias+gelu", PRODUCT)[0]["x"].astype("f8")
    y = x @ wide["w"] + wide["b"]
    np.testing.assert_allclose(
        exact("matmul+bias+gelu", PRODUCT).values, 0.5 * y * (1 + erf(y / np.sqrt(2))), rtol=1e-12
    )
    rows = operands_of("softmax", ROWS)[0]["x"].astype("f8")
    np.testing.assert_allclose(exact("softmax", ROWS).values, softmax(rows, axis=-1), rtol=1e-12)
    inputs, _ = operands_of("cross_entropy", ROWS)
    losses = -np.take_along_axis(log_softmax(inputs["x"].astype("f8"), axis=-1), inputs["labels"][:, None], -1)[:, 0]
    np.testing.assert_allclose(exact("cross_entropy", ROWS).values, losses, rtol=1e-12)


@pytest.mark.parametrize("program", SMALL)
def test_large_cases_are_checked_on_some_examples(program):
    flops, _ = PROGRAMS[program].work(SMALL[program])
    whole, some = exact(program, SMALL[program]), exact(program, SMALL[program], flops / 2)
    assert len(some.examples) < len(whole.examples) == len(whole.values)
    # The last one is always among them: it is where tiles end.
    assert some.examples[-1] == whole.examples[-1]
    np.testing.assert_allclose(some.values, whole.values[some.examples], rtol=1e-12, atol=1e-13)


def test_operands_are_those_that_a_program_reads():
    inputs, weights = operands_of("rms_norm", ROWS)
    assert (set(inputs), set(weights)) == ({"x"}, {"gamma"})
    again = PROGRAMS["rms_norm"].operands(ROWS, np.random.default_rng(7))[0]["x"]
    np.testing.assert_array_equal(inputs["x"], again)


def test_every_case_has_a_program_and_work():
    for suite in SUITES.values():
        assert len({c.name for c in suite.cases}) == len(suite.cases)
        for case in suite.cases:
            if suite.family == "programs":
                flops, nbytes = case.work
                assert flops > 0 and nbytes > 0


def test_kernels_of_the_limits():
    """The reading kernel adds up all that it reads; the other one converges to its fixed point, 1."""
    for target in (host(), SSE2):
        lanes = target.vector_bytes // 4
        count = 24 * lanes
        x, y = np.arange(count, dtype="f4"), np.zeros(lanes, "f4")
        interpret(_read_kernel(target), {"x": x, "y": y, "count": count})
        assert y.sum() == x.sum()
    y = np.zeros(host().vector_bytes // 4, "f4")
    load(_fma_kernel(host()))(y, 20_000)
    np.testing.assert_allclose(y, 12.0, rtol=1e-3)


def test_limits_are_numbers_of_a_machine(monkeypatch):
    from rlx.bench import limits

    monkeypatch.setattr(limits, "READ_BYTES", 8 << 20)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    found = measure_limits(1)
    assert found.flops > 1e7 and found.bandwidth > 1e7
    assert found.seconds(found.flops, 0.0) == pytest.approx(1.0)
