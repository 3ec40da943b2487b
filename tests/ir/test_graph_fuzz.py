"""Programs from outside, mutated and run on guarded memory (see `graph_fuzz`), and what the guards see."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from graph_fuzz import fuzz
from guarded_memory import Guarded, guarded, on_guard_page
from rlx.errors import RlxError
from rlx.ir.text.graph_text import parse

TESTS = Path(__file__).parent.parent
# Published, so that a finding can be looked at again: `python tests/graph_fuzz.py SEED NUMBER`.
SMOKE, LONG = 1, (101, 102, 103, 104)


def none_found(report):
    assert not report.findings, "\n\n".join(map(str, report.findings[:20]))


def test_some_mutants_do_no_harm():
    report = fuzz(SMOKE, 200)
    none_found(report)
    assert report.counts.total() == 200
    # Mutants that are all refused would test the readers alone.
    assert report.counts["ran"] > 20 and report.counts["refused: read"] > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_mutants_do_no_harm(seed):
    """100,000 programs in all; RLX_FUZZ_PROGRAMS says another number for each seed."""
    count = int(os.environ.get("RLX_FUZZ_PROGRAMS", "25000"))
    report = fuzz(seed, count)
    print(seed, dict(report.counts))
    none_found(report)


# What was found, of programs that are merged, made smaller, or no longer made by a seed.
NAMED_TWICE = """mir @found(%x0: f32[B,2], %x1: bool[2]) {
  %0: (f32[B,2], bool[2]) = barrier(%x0, %x1)
  %1: bool[2] = project(%0) {index=1}
  %2: f32[B,2] = project(%0) {index=0}
  %3: bool[2] = project(%0) {index=1}
  return %1, %2, %3
}
"""
FAR_ZERO = """mir @found(%x0: i8[2,S]) {
  %0: f16[2,S] = dequantize(%x0) {axis=-2, scales=(0.1, 0.02), zero_points=(-4294967296,), dtype=f16}
  return %0
}
"""


LARGE_TILE = """mir @found(%x0: f32[0], %x1: f32[0], %x2: f32[0], %x3: f32[0], %x4: f32[0], %x5: f32[0], %x6: f32[23]) {
  %0: f32[256] = gaussian_splat_render(%x0, %x1, %x2, %x3, %x4, %x5, %x6) {width=8, height=8, tile_size=SIZE}
  return %0
}
"""


OTHER_AXIS = """mir @found(%x0: f64[B,4]) {
  %0: f64[2*B,2] = shard_map(%x0) {body=@number(%a: f64[B,2]) {
      %0: i32[] = axis_index() {axis_name="x", axis_size=17}
      %1: f64[] = cast(%0) {to=f64}
      %2: f64[B,2] = add(%a, %1)
      return %2
    }, in_shardings=("[x=2](None, x)",), out_shardings=("[x=2](x)",)}
  return %0
}
"""


def test_an_axis_of_a_mesh_has_one_size():
    with pytest.raises(RlxError, match="axis 'x' of the mesh is 2, and 17 in axis_index"):
        parse(OTHER_AXIS)


@pytest.mark.parametrize("filling", [0xFF, 0x3C])
def test_a_result_with_two_names_is_stored(filling):
    inputs = {"x0": np.ones((3, 2), "f4"), "x1": np.array([True, False])}
    with guarded(filling):
        mask, x, again = rlx.Session("cpu").compile(parse(NAMED_TWICE)).run(inputs)
    assert np.array_equal(x, inputs["x0"])
    assert np.array_equal(mask, inputs["x1"]) and np.array_equal(again, inputs["x1"])
    assert not np.shares_memory(mask, again)


def test_a_tile_that_no_stack_holds_is_rendered_on_the_host():
    """It ended the process: kernels keep the pixels of a tile on the stack."""
    small, large = (
        LARGE_TILE.replace("SIZE", size)
        for size in ("8", "1000")  # one tile for all pixels, both of them
    )
    inputs = {f"x{i}": np.zeros(0, "f4") for i in range(6)} | {"x6": np.linspace(0.1, 1, 23, dtype="f4")}
    [wanted], [got] = (rlx.Session("cpu").compile(parse(text)).run(inputs) for text in (small, large))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_zero_point_that_is_no_code_is_refused():
    with pytest.raises(RlxError, match=r"zero points must lie in \[-2147483648, 2147483647\]"):
        parse(FAR_ZERO)


@pytest.mark.parametrize("number", ["0..02", ".", "1.2.3", "..e5", "-."])
def test_a_number_with_too_many_points_is_refused(number):
    with pytest.raises(RlxError, match=r"is not a value|unexpected character"):
        parse(f"mir @found(%x: f16[3]) {{\n  %0: i8[3] = quantize(%x) {{axis=None, scales=({number},)}}\n}}")


def test_programs_are_the_same_in_every_process():
    # Two new processes, with another order of hashes: this one may have registered ops of its own for other tests.
    script = "from graph_fuzz import Fuzzer; f = Fuzzer(3); print([str(f.program(i)[0]) for i in range(20)])"
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=TESTS,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second


@pytest.mark.parametrize("offset", [-1, 0])
def test_an_operand_ends_at_a_page_that_ends_the_process(offset):
    script = f"""
import ctypes, numpy as np
from guarded_memory import on_guard_page
x = on_guard_page(np.arange(5, dtype="f4"))
ctypes.c_byte.from_address(x.ctypes.data + x.nbytes + {offset}).value
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=TESTS)
    assert done.returncode == (0 if offset < 0 else -11)


def test_redzones_see_a_write():
    memory = Guarded(0xFF)
    array, address = memory.empty((3,), np.dtype("f4"))
    assert address % 64 == 0 and np.isnan(array).all()
    array[...] = 1.0
    assert memory.broken_redzones() == 0
    ctypes.c_byte.from_address(address + array.nbytes).value = 1
    assert memory.broken_redzones() == 1


def test_the_device_takes_guarded_memory():
    g = rlx.Graph("f")
    x = g.input("x", ("S", 3))
    g.set_outputs([rlx.exp(x) @ rlx.transpose(x)])
    compiled = rlx.Session("cpu").compile(g)
    x = np.ones((4, 3), "f4")
    with guarded(0x3C) as memory:
        [y] = compiled.run(x=on_guard_page(x))
        assert any(np.shares_memory(room, y) for room, _, _ in memory.blocks)
        assert memory.broken_redzones() == 0
    np.testing.assert_allclose(y, np.exp(x) @ x.T, rtol=1e-6)
