"""How many threads: options and what the system lends."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.backends.cpu import threads as thread_settings
from rlx.backends.cpu.threads import cgroup_quota, thread_count, usable_cpus
from rlx.backends.program.command_table import LONG_ITERATION, Address, Range, TableBuilder
from rlx.backends.program.grid import Grid
from rlx.errors import RlxError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import Access, map_kernel
from rlx.kernels.cpu.matmul.matmul import Matrix, Product, matmul_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.machines import host
from rlx.kernels.specs.expr import apply, operand


def test_the_innermost_block_counts():
    with rlx.threads(3):
        assert thread_count(None) == thread_count(8) == 3
        with rlx.threads(1):
            assert thread_count(8) == 1
        assert thread_count(8) == 3
    assert thread_count(8) == 8


def test_the_environment_counts_after_options(monkeypatch):
    monkeypatch.setenv("RLX_THREADS", "7")
    assert thread_count(None) == 7 and thread_count(2) == 2
    monkeypatch.delenv("RLX_THREADS")
    monkeypatch.delenv("RLX_WORKERS", raising=False)
    assert thread_count(None) == usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("wrong", [0, -1, 1025, 2.0, True, "2", None])
def test_wrong_numbers(wrong):
    with (
        pytest.raises(RlxError, match=r"rlx.threads: the number of threads is from 1 to 1024, got"),
        rlx.threads(wrong),
    ):
        pass


def control_groups(tmp_path, membership, files):
    (tmp_path / "self").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cgroup_quota(tmp_path / "self", tmp_path / "fs")


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/not/visible/here\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/a\n", {"a/cpu.max": "nonsense\n"}, None),
        ("", {}, None),
    ],
)
def test_quotas_of_control_groups(tmp_path, membership, files, quota):
    assert control_groups(tmp_path, membership, files) == quota


def test_no_control_groups(tmp_path):
    assert cgroup_quota(tmp_path / "absent", tmp_path) is None


@pytest.mark.parametrize(
    "allowed, quota, usable",
    [
        ({0, 1, 2, 3}, None, 4),
        ({5}, None, 1),
        ({0, 1, 2, 3}, 2.0, 2),
        ({0, 1, 2, 3}, 1.9, 1),
        ({0, 1}, 0.3, 1),
        ({0, 1}, 64.0, 2),
    ],
)
def test_affinity_and_quota_limit_the_threads(monkeypatch, allowed, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed, raising=False)
    monkeypatch.setattr(thread_settings, "cgroup_quota", lambda: quota)
    assert thread_settings.usable_cpus.__wrapped__() == usable


def test_systems_without_affinity_count_all_cpus(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(thread_settings, "cgroup_quota", lambda: None)
    assert thread_settings.usable_cpus.__wrapped__() == 6


sizes = st.integers(0, 20_000)


@given(sizes, sizes, sizes)
def test_iterations_are_those_of_the_kernel(m, n, k):
    f32 = DType.F32
    rows = Access("x", f32, ("n", 1))
    product = Product("m", "n", "k", Matrix("a", f32, "k"), Matrix("b", f32, "n"), Matrix("c", f32, "n"))
    made = [
        matmul_kernel("p", host(), product),
        map_kernel("q", host(), ("m", "n"), [rows], [Access("y", f32, (1, "m"))], [apply("neg", operand(0, f32))]),
        map_kernel(
            "r", host(), ("m",), [Access("x", f32, (1,))], [Access("y", f32, (1,))], [apply("neg", operand(0, f32))]
        ),
    ]
    for kernel in made:
        grid = Grid.of(kernel)
        assert grid.asked is None, "no interpreter is needed"
        known = {"m": m, "n": n, "k": k}
        named = {p.name: known[p.name] for p in kernel.params if p.name in known}
        assert grid(list(named.values())) == grid_size(kernel, named)


def test_iterations_of_other_kernels():
    k = KernelBuilder("serial")
    k.store(k.pointer("x", DType.F32, write=True), 0, k.const(1.0, DType.F32))
    assert Grid.of(k.build())([]) == 1
    k = KernelBuilder("unusual")
    x, n = k.pointer("x", DType.I64, write=True), k.index("n")
    with k.parallel("i", n & 7) as i:
        k.store(x, i, i)
    assert [Grid.of(k.build())([n]) for n in (3, 8, 13)] == [3, 0, 5]


def test_results_of_a_program_under_each_number():
    f = rlx.jit(lambda x: rlx.tanh(x) * 2.0)
    x = np.linspace(-3, 3, 100_000, dtype="f4")
    results = []
    for count in (1, 2, 4):
        with rlx.threads(count):
            results.append(f(x))
    assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize(("size", "width"), [(1000, 1), (4 * LONG_ITERATION, 2)])
def test_a_few_long_iterations_are_shared(size, width):
    """Each takes longer than it takes to wake a thread."""
    table = TableBuilder([])
    table.call(1, [Range(Address(0, 0), 0, 0, size, writes=True)], 2, ("matmul", "an op"))
    assert table.build().width == width
