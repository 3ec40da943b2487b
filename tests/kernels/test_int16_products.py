"""Products of 16-bit codes against f64, at the limits of 32 bits, and `dot2` of whole numbers on every machine."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, interpreted, ran_natively

from rlx.backends.native.elf import undefined_symbols
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.int16 import has_word_dots, int16_matmul_kernel
from rlx.kernels.cpu.matmul.matmul import Matrix, Product, panel_width
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Let, walk
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX2, AVX512, AVX512_VNNI, CORTEX_M4, NEON, RISCV, SSE2, SSE4, Machine, host, runs_here
from rlx.ops.lowered.int8_products import BLOCK
from rlx.ops.lowered.int16_products import ROW_BLOCK, Int16Panels, Int16Rows

F32, I16, I32 = DType.F32, DType.I16, DType.I32
MACHINES = [t for t in (host(), AVX2, SSE2) if runs_here(t)]
rng = np.random.default_rng(17)


def product(target: Machine, n: int, k: int) -> Kernel:
    a, b, c = Matrix("a", I16, k // BLOCK * ROW_BLOCK), Matrix("b", I16, 0), Matrix("c", F32, n)
    return int16_matmul_kernel("words", target, Product("m", n, k, a, b, c))


def found(target: Machine, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    (m, k), n = x.shape, w.shape[1]
    panels = Int16Panels(panel_width(target, F32, n)).eval(w)
    args = {"a": Int16Rows().eval(x), "b": panels, "c": np.full((m, n), np.nan, np.float32), "m": m}
    return np.asarray(ran_natively(product(target, n, k), args, target)["c"])


def lengths(x: np.ndarray, axis: int) -> np.ndarray:
    return np.sqrt((x.astype(np.float64) ** 2).sum(axis))


@pytest.mark.parametrize("target", MACHINES, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (17, 64), (64, 128), (130, 416), (83, 2080)])
def test_products_are_close_to_exact_ones(target: Machine, n: int, k: int):
    """Longer than a step along K, and not a multiple of lanes, tiles or panels. Each block's codes are off by half a
    step, of which a block of activations is 32,000 long or more, and one of weights 16,000."""
    w = (rng.normal(size=(k, n)) * rng.lognormal(0, 1, (k, n))).astype(np.float32)
    for m in (0, 1, 2, 5, 7, 49):
        x = (rng.normal(size=(m, k)) * rng.lognormal(0, 2, (m, 1))).astype(np.float32)
        exact = x.astype(np.float64) @ w.astype(np.float64)
        blocks = lengths(x.reshape(m, k // BLOCK, BLOCK), 2) @ lengths(w.reshape(-1, BLOCK, n), 1)
        # Both roundings of a block together, were all of them the same way.
        bound = 0.5 * BLOCK**0.5 * (1 / 32000 + 1 / 16000) * blocks
        assert (np.abs(found(target, x, w) - exact) <= bound).all()


@pytest.mark.parametrize("target", MACHINES, ids=lambda t: t.name)
def test_the_largest_sums_fit_into_32_bits(target: Machine):
    """Blocks that are multiples of each other give the largest sums that there are: one wrap would turn a sign."""
    numbers = np.concatenate([np.linspace(-1, 1, BLOCK), [1.0] * BLOCK, rng.choice([-1.0, 1.0], BLOCK)])
    spikes = np.eye(BLOCK)[:3].reshape(-1)
    falling = 2.0 ** -np.arange(BLOCK)
    for block in (*np.split(numbers, 3), *np.split(spikes, 3), falling):
        for sign in (1, -1):
            x = np.tile(block, (8, 2)).astype(np.float32) * np.linspace(0.3, 3, 8, dtype=np.float32)[:, None]
            w = sign * np.tile(block, (24, 2)).T.astype(np.float32) * np.linspace(0.2, 7, 24, dtype=np.float32)
            np.testing.assert_allclose(found(target, x, w), x.astype(np.float64) @ w, rtol=5e-4)


@pytest.mark.parametrize("target", [NEON, CORTEX_M4, *MACHINES[:1]], ids=lambda t: t.name)
def test_interpreter_and_native_code_agree(target: Machine):
    m, n, k = 3, 19, 64
    x, w = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    panels = Int16Panels(panel_width(target, F32, n)).eval(w)
    args = {"a": Int16Rows().eval(x), "b": panels, "c": np.zeros((m, n), np.float32), "m": m}
    # Machines without fused multiply-add round once more for each block.
    after = check_everywhere(product(target, n, k), args, rtol=1e-6)["c"]
    np.testing.assert_allclose(after, x @ w, rtol=0, atol=1e-2)


def test_a_row_is_the_same_beside_any_number_of_others():
    x, w = rng.normal(size=(21, 1536)).astype(np.float32), rng.normal(size=(1536, 40)).astype(np.float32)
    whole = found(MACHINES[0], x, w)
    for m in (1, 2, 4, 7, 8, 13):
        np.testing.assert_array_equal(found(MACHINES[0], x[:m], w), whole[:m])


@pytest.mark.parametrize(("target", "word"), [(AVX512_VNNI, "vpdpwssd"), (AVX512, "vpmaddwd"), (AVX2, "vpmaddwd")])
def test_instructions_of_machines(target: Machine, word: str):
    assert has_word_dots(target) and not has_word_dots(NEON)
    assert word in compile_assembly(product(target, 16, 64), target)
    assert not undefined_symbols(compile_object(product(target, 16, 64), target))


# The instruction.


def dot_kernel(lanes: int) -> Kernel:
    k = KernelBuilder("dots")
    total, a, b = k.pointer("total", I32), k.pointer("a", I16), k.pointer("b", I16)
    y = k.pointer("y", I32, write=True)
    sums = k.load(total, 0, lanes=lanes)
    k.store(y, 0, k.dot2(sums, k.load(a, 0, lanes=2 * lanes), k.load(b, 0, lanes=2 * lanes)))
    return k.build()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_sums_of_two_products_wrap(lanes: int):
    ends = np.array([-(2**15), 2**15 - 1, -1, 0, 1, 2], np.int16)
    for _ in range(20):
        a, b = (np.where(rng.random(2 * lanes) < 0.5, rng.choice(ends, 2 * lanes), 0).astype(np.int16) for _ in "ab")
        a += rng.integers(-3, 4, 2 * lanes).astype(np.int16)
        total = rng.integers(-(2**31), 2**31, lanes).astype(np.int32)
        products = (a.astype(np.int64) * b).reshape(-1, 2).sum(1)
        wanted = (total + products).astype(np.uint64).astype(np.uint32).view(np.int32)
        args = {"total": total, "a": a, "b": b, "y": np.zeros(lanes, np.int32)}
        with np.errstate(over="ignore"):
            every = [interpreted(dot_kernel(lanes), args)]
            every += [interpreted(legalize(dot_kernel(lanes), machine), args) for machine in NATIVE_TARGETS]
        every += [ran_natively(dot_kernel(lanes), args, machine) for machine in NATIVE_TARGETS]
        for after in every:
            np.testing.assert_array_equal(after["y"], wanted)


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE4, SSE2, NEON, RISCV, CORTEX_M4], ids=lambda t: t.name)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_every_target_has_it(machine: Machine, lanes: int):
    legal = legalize(dot_kernel(lanes), machine)
    left = [s for s in walk(legal.body) if isinstance(s, Let) and s.op == "dot2"]
    assert len(left) == (lanes in machine.pair_lanes)
    assert compile_assembly(dot_kernel(lanes), machine)


@pytest.mark.parametrize(("dtype", "least"), [(ml_dtypes.bfloat16, 2**8), (np.float16, 2**11)])
def test_codes_of_narrow_weights_are_exact_down_to_their_last_bit(dtype: type, least: int):
    """A code of as many bits as the type has, or more, is the weight itself."""
    w = rng.normal(size=(256, 40)).astype(dtype)
    panels = Int16Panels(8).eval(w)
    scales = (panels[..., :8].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    codes = panels[..., 8:].reshape(5, 8, 16, 8, 2).swapaxes(3, 4).reshape(5, 8, BLOCK, 8)
    meant = (codes * scales[:, :, None]).transpose(1, 2, 0, 3).reshape(256, 40)
    is_large = (np.abs(codes) >= least).transpose(1, 2, 0, 3).reshape(256, 40)
    assert is_large.mean() > 0.5 and (meant[is_large] == w.astype(np.float32)[is_large]).all()
