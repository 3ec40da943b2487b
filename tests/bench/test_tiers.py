"""Patterns of both tiers are right on every device, and what is told of their times follows from the samples."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import special

import rlx
from rlx.bench import patterns_of, run_benchmark, tiers
from rlx.bench.limits import Limits
from rlx.bench.patterns import (
    Tier,
    attention,
    fft,
    layer_norm,
    matmul,
    matmul_bias_gelu,
    matmul_bias_relu,
    residual_norm,
    softmax,
    swiglu,
)
from rlx.bench.tiers import BenchmarkResult
from rlx.cli import main
from rlx.errors import NotInstalled, RlxError, UnknownDevice

SMALL = [
    matmul(3, 5, 7),
    layer_norm(3, 16),
    softmax(3, 17),
    attention(1, 2, 5, 8),
    fft(2, 12),
    fft(2, 12, inverse=True),
    matmul_bias_relu(3, 5, 7),
    matmul_bias_gelu(3, 5, 7),
    swiglu(3, 5, 7),
    residual_norm(3, 16),
]
LIMITS = Limits(flops=2e9, bandwidth=1e9)


def result(samples, **changes):
    options = {"memory": 10, "peak_memory": None, "limits": LIMITS, **changes}
    return BenchmarkResult("p", Tier.L1, "cpu", tuple(samples), 0.5, 0.0, 4000.0, 1000.0, **options)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("pattern", SMALL, ids=lambda p: p.name)
def test_patterns_run_and_are_right(pattern, device):
    found = run_benchmark(pattern, device, warmup=1, runs=3)
    assert found.device == device and found.n_runs == 3 and found.error < 1e-4
    assert found.flops == pattern.flops > 0 and found.traffic == pattern.traffic > 0
    arrays = [*pattern.input_data().values(), *pattern.param_data().values(), pattern.expected()]
    outputs = arrays[-1].size * (8 if arrays[-1].dtype.kind == "c" else 4)
    assert found.memory >= sum(a.nbytes for a in arrays[:-1]) + outputs


def test_what_patterns_call_right_is():
    """Held to SciPy and to plain formulas on the data of the pattern."""
    x = softmax(3, 17).input_data()["x"].astype("f8")
    np.testing.assert_allclose(softmax(3, 17).expected(), special.softmax(x, axis=-1), rtol=1e-12)
    pattern = matmul_bias_relu(3, 5, 7)
    (x,), (w, b) = pattern.input_data().values(), pattern.param_data().values()
    np.testing.assert_allclose(pattern.expected(), np.clip(np.einsum("ik,kj->ij", x, w) + b, 0, None), atol=1e-6)
    for inverse in (False, True):
        pattern = fft(1, 6, inverse)
        [x] = pattern.input_data()["x"]
        turns = np.exp((2j if inverse else -2j) * np.pi * np.outer(range(6), range(6)) / 6) / np.sqrt(6)
        np.testing.assert_allclose(pattern.expected(), [turns @ x], atol=1e-6)


def test_work_is_what_the_sizes_say():
    assert (matmul(2, 3, 4).flops, matmul(2, 3, 4).traffic) == (48.0, 4 * (6 + 12 + 8))
    assert (fft(3, 8).flops, fft(3, 8).traffic) == (5 * 3 * 8 * 3, 16 * 3 * 8)
    assert matmul(2, 3, 4).build_graph().outputs and matmul(2, 3, 4).tier == "L1" and swiglu(2, 3, 4).tier == "L2"


@pytest.mark.parametrize("tier", ["L1", "L2"])
def test_a_tier_has_its_patterns(tier):
    names = [p.name for p in patterns_of(tier)]
    assert len(names) == len({*names}) >= 4 and all(p.tier == tier for p in patterns_of(tier))


def test_numbers_follow_from_the_samples():
    found = result([*range(1, 100), 1000])
    assert (found.min, found.max, found.median, found.p95, found.p99) == (1, 1000, 50.5, 95, 99)
    assert found.mean == (99 * 100 / 2 + 1000) / 100
    assert found.gflops == pytest.approx(4000 / 50.5) and found.gbytes == pytest.approx(1000 / 50.5)
    # 2 us for the operations and 1 us for the bytes: the larger counts.
    assert found.share_of_limit == pytest.approx(2000 / 50.5)
    assert result([1], limits=None).share_of_limit is None


def test_a_wrong_result_is_not_timed():
    right = matmul(3, 5, 7)
    wrong = right._replace(expected=lambda: right.expected() + 1.0)
    with pytest.raises(RlxError, match=r"matmul 3x5x7 on cpu is wrong by .* it is not timed"):
        run_benchmark(wrong)
    with pytest.raises(RlxError, match="wrong by inf"):
        run_benchmark(right._replace(expected=lambda: np.ones((2, 2))))
    with pytest.raises(RlxError, match="wrong by nan"):
        run_benchmark(right._replace(input_data=lambda: {"x": np.full((3, 5), np.nan, "f4")}))


def test_bad_requests_are_refused_before_anything_runs():
    with pytest.raises(RlxError, match="warmup from 0 and runs from 1 on, got warmup=1, runs=0"):
        run_benchmark(matmul(1, 1, 1), "cpu", 1, 0)
    with pytest.raises(UnknownDevice):
        run_benchmark(matmul(1, 1, 1), "abacus")
    with pytest.raises(NotInstalled):
        run_benchmark(matmul(1, 1, 1), "metal")
    with pytest.raises(RlxError, match="sizes from 1 on, got k=0"):
        matmul(1, 0, 1)
    with pytest.raises(RlxError, match="there is no tier 'L3'"):
        patterns_of("L3")


def test_time_ends_runs_but_leaves_three():
    assert run_benchmark(matmul(1, 1, 1), warmup=50, runs=50, seconds=0.0).n_runs == 3
    assert run_benchmark(matmul(1, 1, 1), warmup=0, runs=2, seconds=0.0).n_runs == 2


def test_every_device_that_is_here_is_measured():
    assert {"cpu", "reference"} <= {*tiers.benchmark_devices()}
    assert all(rlx.is_available(d) for d in tiers.benchmark_devices())


@pytest.fixture
def small_tier(monkeypatch):
    monkeypatch.setattr(tiers, "measure_limits", lambda threads: LIMITS)
    tiers._host_limits.cache_clear()
    monkeypatch.setattr("rlx.bench.patterns.patterns_of", lambda tier: [p for p in SMALL if p.tier == tier])
    yield
    tiers._host_limits.cache_clear()


def test_the_command_writes_json(small_tier, capsys):
    assert main(["bench", "--tier", "L1", "--device", "cpu", "--runs", "3", "--only", "fft", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [r["pattern"] for r in told["results"]] == ["fft 2x12", "inverse fft 2x12"] and told["missing"] == {}
    for row in told["results"]:
        assert row["tier"] == "L1" and row["device"] == "cpu" and len(row["samples_ns"]) == row["n_runs"] == 3
        assert row["median"] > 0 and row["gflops"] > 0 and row["limits"]["flops"] == 2e9 and row["memory"] > 0


def test_the_command_measures_all_devices_and_says_what_it_could_not(small_tier, monkeypatch, capsys, tmp_path):
    from rlx.bench.tiers import run_benchmark as measure

    def picky(pattern, device, *args, **options):
        if device == "reference" and pattern.name.startswith("swiglu"):
            raise RlxError("too warm")
        return measure(pattern, device, *args, **options)

    monkeypatch.setattr("rlx.bench.tiers.run_benchmark", picky)
    monkeypatch.setattr("rlx.bench.tiers.benchmark_devices", lambda: ["cpu", "reference"])
    file = tmp_path / "tier.json"
    assert main(["bench", "--tier", "L2", "--runs", "1", "--warmup", "0", "--json", str(file)]) == 0
    told = capsys.readouterr().out
    assert "not measured: swiglu 3x5x7 on reference (too warm)" in told and "limits: 2 GFLOP/s and 1.0 GB/s" in told
    assert [(r["pattern"], r["device"]) for r in json.loads(file.read_text())["results"]].count(("swiglu 3x5x7", "cpu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a suite"),
        (["ops", "--tier", "L1"], "suite cannot be used here; a tier measures one device"),
        (["ops", "--device", "cpu"], "--device cannot be used here; these belong to --tier"),
        (["--tier", "L1", "--peer-python", "x"], "--peer-python cannot be used here"),
        (["--tier", "L1", "--only", "abacus"], "no pattern of L1 has 'abacus' in its name; there are: matmul"),
        (["--tier", "L1", "--device", "metall"], "there is no device 'metall' (did you mean 'metal'?)"),
    ],
)
def test_wrong_commands(small_tier, arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err
