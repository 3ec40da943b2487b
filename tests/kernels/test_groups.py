"""The statements of groups: printed, copied, verified, refused by emitters that do not spell them, and run."""

from __future__ import annotations

import numpy as np
import pytest
from group_kernels import attention_arguments, attention_kernel, product_kernel

from rlx.backends.native import kernels as native
from rlx.errors import BackendError, DTypeError, OpError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_emit import c_source
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.interpret import KernelFault, interpret
from rlx.kernels.ir.rewrite import copy_into
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX512, CORTEX_M4, SM_90A, machine_named

F16, F32, I32, I64 = DType.F16, DType.F32, DType.I32, DType.I64


def test_text_shows_every_statement():
    text = product_kernel().text
    for line in (
        "  phases full: u64[3] align 8 = [1]",
        "  phases empty: u64[3] align 8 = [2]",
        "  fragment total: f32[4x4] align 4",
        "  token done: u64[1] align 8",
        "      producer %producer = 0 to 1 threads 128 registers 40 {",
        "      consumer %consumer = 0 to 2 threads 128 registers 232 {",
        "          arrive full[%10] bytes 192",
        "          await done",
    ):
        assert line in text, text
    assert "start copy b_tiles[" in text and "4x4 stride 4, b[" in text and "stride 8 signal full[%10]" in text
    assert "start mma total keep" in text and "walk for %tile = 0 to 6 carry" in text
    attention = attention_kernel().text
    assert "elements for %e = 0 to 8 {" in attention and "rows max found, scores" in attention
    assert "k_tiles[" in attention and "stride 4 transposed signal scored[0]" in attention


@pytest.mark.parametrize("kernel", [product_kernel(), attention_kernel()], ids=lambda k: k.name)
def test_kernels_can_be_copied_and_legalised(kernel):
    assert copy_into(kernel, KernelBuilder(kernel.name)).text == kernel.text
    legal = legalize(kernel, SM_90A)
    verify(legal)
    assert " = exp " not in legal.text


def test_a_legalised_kernel_still_computes_attention():
    args, wanted = attention_arguments()
    interpret(legalize(attention_kernel(), SM_90A), args, seed=2)
    np.testing.assert_allclose(args["o"], wanted, rtol=1e-5, atol=1e-6)


def test_threads_of_a_launch_are_those_of_all_roles():
    assert product_kernel().thread_count == 3 * 128


@pytest.mark.parametrize(
    "emit", [lambda k: emit_llvm(k, SM_90A), lambda k: c_source([k], CORTEX_M4)], ids=["llvm", "c"]
)
def test_emitters_that_do_not_spell_groups_say_so(emit):
    with pytest.raises(BackendError, match="kernel product has roles, fragments, or asynchronous or exchanging"):
        emit(product_kernel())


def subgroup_sum(width: int = 8):
    """Each thread gets the sum of its subgroup, its neighbour's value, and that of the subgroup's thread 3."""
    k = GroupBuilder("subgroups")
    x = k.pointer("x", F32)
    total, other, third = (k.pointer(name, F32, write=True) for name in ("total", "other", "third"))
    with k.parallel("block", 2) as block, k.threads("t", 16) as t:
        i = block * 16 + t
        value = k.load(x, i)
        k.store(total, i, k.exchange("add", value, width=width))
        k.store(other, i, k.exchange("xor", value, 1, width=width))
        k.store(third, i, k.exchange("lane", value, 3, width=width))
    return k.build()


@pytest.mark.parametrize("seed", range(5))
def test_threads_of_a_subgroup_exchange(seed):
    kernel = subgroup_sum()
    verify(kernel)
    assert "= exchange add %2 {8}" in kernel.text and "= exchange xor %2, 1 {8}" in kernel.text
    args = {name: np.zeros(32, np.float32) for name in ("x", "total", "other", "third")}
    args["x"] = np.arange(32, dtype=np.float32) ** 2
    interpret(kernel, args, seed=seed)
    rows = args["x"].reshape(4, 8)
    np.testing.assert_array_equal(args["total"].reshape(4, 8), rows.sum(1, keepdims=True).repeat(8, 1))
    np.testing.assert_array_equal(args["other"], args["x"].reshape(-1, 2)[:, ::-1].reshape(-1))
    np.testing.assert_array_equal(args["third"].reshape(4, 8), rows[:, 3:4].repeat(8, 1))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("sm_80", ["shfl.sync.bfly.b32", "shfl.sync.idx.b32"]),
        ("sm_90a", ["shfl.sync.bfly"]),
        ("gfx942", ["ds_bpermute_b32"]),
    ],
)
def test_gpus_have_instructions_for_exchange(machine, words):
    text = compile_assembly(subgroup_sum(), machine_named(machine))
    assert all(word in text for word in words), text
    # Three steps for the sum of 8, one each for the others.
    assert text.count("shfl.sync" if machine.startswith("sm") else "ds_bpermute_b32") == 5


def test_cpus_and_c_refuse_exchange():
    for emit in (lambda k: emit_llvm(k, AVX512), lambda k: c_source([k], AVX512)):
        with pytest.raises(BackendError, match="exchanging threads, which"):
            emit(subgroup_sum())
    with pytest.raises(BackendError, match="exchange between 64 threads; sm_90a has subgroups of 32"):
        emit_llvm(subgroup_sum(64), SM_90A)


def test_a_walk_becomes_a_plain_loop():
    k = GroupBuilder("tiles")
    y, n = k.pointer("y", I64, write=True), k.index("n")
    with k.parallel("block", 3) as block, k.walk("tile", n, 4) as (row, col, _):
        k.store(y, row * 4 + col, block)
    kernel = k.build()
    legal = legalize(kernel, AVX512)
    assert "for %tile = %block to" in legal.text and "step 3 {" in legal.text
    found = []
    for run in (interpret, lambda kernel, args: native.load(kernel)(*args.values())):
        args = {"y": np.full(20, -1), "n": 5}
        run(kernel, args)
        found.append(args["y"].tolist())
    assert found[0] == found[1] == [i % 3 for i in range(20)]


def test_an_exchange_that_only_some_threads_reach_is_a_fault():
    k = GroupBuilder("divergent")
    y = k.pointer("y", I64, write=True)
    with k.threads("t", 8) as t, k.when(t < 3):
        k.store(y, t, k.exchange("max", t, width=4))
    with pytest.raises(KernelFault, match="3 of 8 threads wait at a barrier or exchange, the rest do not"):
        interpret(k.build(), {"y": np.zeros(8, np.int64)})
    k = GroupBuilder("outside")
    y = k.pointer("y", I64, write=True)
    with k.threads("t", 8) as t:
        k.store(y, t, k.exchange("lane", t, t + 1, width=4))
    with pytest.raises(KernelFault, match=r"thread . asks for thread . of a subgroup of 4"):
        interpret(k.build(), {"y": np.zeros(8, np.int64)})


def neighbours(dtype: DType, with_barrier: bool = True, clash: bool = False):
    """Thread t writes element t (or all write element 0), then reads its neighbour's."""
    k = GroupBuilder("neighbours")
    y, shared = k.pointer("y", dtype, write=True), k.shared("shared", dtype, 8)
    with k.parallel("block", 1), k.threads("t", 8) as t:
        k.store(shared, t * 0 if clash else t, k.cast(k.cast(t, F32), dtype) if dtype is F16 else k.cast(t, dtype))
        if with_barrier:
            k.barrier()
        k.store(y, t, k.load(shared, t * 0 if clash else (t + 1) % 8))
    return k.build()


@pytest.mark.parametrize("seed", range(5))
def test_races_between_threads(seed):
    def run(kernel, dtype, **options):
        y = np.zeros(8, dtype)
        interpret(kernel, {"y": y}, seed=seed, **options)
        return y.tolist()

    assert run(neighbours(I32), np.int32) == [1, 2, 3, 4, 5, 6, 7, 0]
    with pytest.raises(
        KernelFault, match=r"a race: thread . of block 0 (reads|writes) shared|read before it is written"
    ):
        run(neighbours(I32, with_barrier=False), np.int32)
    with pytest.raises(
        KernelFault, match=r"a race: thread . of block 0 writes shared\[0\], thread . of block 0 writes"
    ):
        run(neighbours(I32, clash=True), np.int32)
    # Halves of one word are elements of their own, unless the machine stores nothing smaller.
    assert run(neighbours(F16), np.float16) == [1, 2, 3, 4, 5, 6, 7, 0]
    with pytest.raises(KernelFault, match=r"a race: thread . of block 0 writes shared\[[0246]\], thread . of block 0"):
        run(neighbours(F16), np.float16, word_bytes=4)


def test_blocks_that_stay_walk_every_tile_once():
    k = GroupBuilder("tiles")
    y = k.pointer("y", I64, write=True)
    with k.parallel("block", 3) as block, k.walk("tile", 5, 4, band=2) as (row, col, walk):
        k.store(y, row * 4 + col, walk.index * 10 + block)
    kernel = k.build()
    verify(kernel)
    y_array = np.full(20, -1)
    interpret(kernel, {"y": y_array})
    order = y_array // 10
    assert sorted(order.tolist()) == list(range(20)) and (y_array % 10 == order % 3).all()
    # Two rows at a time, down each column; the last band has one row.
    assert order.reshape(5, 4).tolist() == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        [8, 10, 12, 14],
        [9, 11, 13, 15],
        [16, 17, 18, 19],
    ]


def test_a_copy_nobody_awaits_and_a_phase_nobody_completes_are_faults():
    def kernel(await_it, arrivals=1):
        k = GroupBuilder("copies")
        x, tile, full = k.pointer("x", F32), k.shared("tile", F32, 4), k.phases("full", 1, arrivals)
        with k.parallel("block", 1):
            k.arrive(full, 0, bytes=16)
            k.start_copy(k.region(tile, 0, 1, 4), k.region(x, 0, 1, 4), full, 0)
            if await_it:
                k.await_phases(full, 0, 1)
        return k.build()

    x = np.zeros(4, np.float32)
    interpret(kernel(True), {"x": x}, seed=1)
    with pytest.raises(KernelFault, match="block 0 ends and never awaited the copy to tile"):
        interpret(kernel(False), {"x": x}, seed=1)
    with pytest.raises(KernelFault, match=r"deadlock: block 0 waits for 1 phases of full\[0\] .0 complete, 1 of 2"):
        interpret(kernel(True, arrivals=2), {"x": x}, seed=1)
    with pytest.raises(KernelFault, match=r"x\[3\] is outside its 3 elements"):
        interpret(kernel(True), {"x": np.zeros(3, np.float32)}, seed=1)


def refused(body):
    k = GroupBuilder("wrong")
    body(k)
    with pytest.raises(VerificationError) as error:
        verify(k.build())
    return str(error.value)


def element_outside_a_loop(k):
    tile, y = k.fragment("tile", F32, 2, 4), k.pointer("y", F32, write=True)
    k.store(y, 0, k.load(tile, 0))


def element_of_another(k):
    tile = k.fragment("tile", F32, 2, 4)
    with k.elements(tile) as (e, _):
        k.store(tile, e ^ 1, 0.0)


def product_of_wrong_shapes(k):
    total, a, b = k.fragment("total", F32, 2, 4), k.shared("a", F32, 8), k.shared("b", F32, 8)
    k.mma(total, k.region(a, 0, 2, 4), k.region(b, 0, 2, 4))


def copy_of_another_type(k):
    x, tile = k.pointer("x", F16), k.shared("tile", F32, 8)
    k.copy(k.region(tile, 0, 2, 4), k.region(x, 0, 2, 4))


def signal_at_no_barrier(k):
    x, tile = k.pointer("x", F32), k.shared("tile", F32, 8)
    k.start_copy(k.region(tile, 0, 2, 4), k.region(x, 0, 2, 4), tile)


def copy_by_threads(k):
    x, tile, token = k.pointer("x", F32), k.shared("tile", F32, 8), k.token("token")
    with k.threads("t", 4):
        k.start_copy(k.region(tile, 0, 2, 4), k.region(x, 0, 2, 4), token)


def exchange_of_groups(k):
    k.exchange("add", k.index("n"))


def roles_in_a_loop(k):
    with k.parallel("block", 2), k.loop("i", 0, 4), k.roles() as roles, roles.role("one", threads=32):
        pass


def threads_of_another_role(k):
    with k.parallel("block", 2), k.roles() as roles, roles.role("one", threads=32), k.threads("t", 64):
        pass


def part_of_a_fragment(k):
    tile, x = k.fragment("tile", F32, 2, 4), k.pointer("x", F32)
    k.copy(k.region(tile, 0, 1, 4), k.region(x, 0, 1, 4))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (element_outside_a_loop, "tile is a fragment: its elements are known only in a loop over elements"),
        (element_of_another, "only the element of the loop, or its row of a column, is at hand"),
        (product_of_wrong_shapes, "a product of 2x4 from 2x4 and 2x4"),
        (copy_of_another_type, "a copy has two regions of one type; cast elements"),
        (signal_at_no_barrier, "tile is no barrier or token"),
        (copy_by_threads, "threads exchange; groups copy, multiply and wait"),
        (exchange_of_groups, "threads exchange; groups copy, multiply and wait"),
        (roles_in_a_loop, "roles stand once, at the top of a block's work"),
        (threads_of_another_role, "the role has 32 threads, the loop 64"),
        (part_of_a_fragment, "tile is a fragment, which is used as a whole"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_verifier_refuses(body, message):
    assert message in refused(body)


def test_the_builder_refuses():
    k = GroupBuilder("wrong")
    with pytest.raises(DTypeError, match="exchange is one of lane xor add min max, of a scalar; got 'down', i64"):
        k.exchange("down", k.index("n"))
    with pytest.raises(OpError, match="a subgroup has a power of two of threads, got 12"):
        k.exchange("add", k.index("m"), width=12)
    with pytest.raises(OpError, match="rows are combined by add, min or max, got 'mul'"):
        k.row_reduce("mul", k.fragment("a", F32, 2, 1), k.fragment("b", F32, 2, 2))


def test_ordinary_kernels_run_in_random_order_with_a_seed():
    k = KernelBuilder("map")
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.load(x, i) * 2.0)
    x_array, y_array = np.arange(9, dtype=np.float32), np.zeros(9, np.float32)
    interpret(k.build(), {"x": x_array, "y": y_array, "n": 9}, seed=3)
    np.testing.assert_array_equal(y_array, 2 * x_array)
