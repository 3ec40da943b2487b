"""The product of Hopper's tensor cores as loop IR, in the interpreter: right in any order and at all edges, and faults
that are planted in it are found. `test_group_code.py` shows that what runs on a GPU is printed from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tile_products import SMALL, product_of

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix
from rlx.kernels.gpu.matmul_groups import GroupTiles, product_kernel
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.groups import Arrive, AwaitPhases, AwaitToken, Copy, Fill
from rlx.kernels.ir.interpret import KernelFault, interpret
from rlx.kernels.ir.loop_ir import Const
from rlx.kernels.ir.pair_calls import PairCall
from rlx.kernels.ir.regions import Slabs
from rlx.kernels.ir.rewrite import Copier
from rlx.kernels.ir.verify import verify
from rlx.kernels.specs.expr import apply, operand

F32 = DType.F32


def arguments(product, tiles, blocks=2):
    """Small integers, of which all sums are exact; C is not a number anywhere."""
    rng = np.random.default_rng(product.m * product.n)

    def drawn(matrix, rows, columns):
        x = rng.integers(-3, 4, (rows, columns)).astype(matrix.dtype.numpy)
        lies = x if matrix.col_stride == 1 else np.ascontiguousarray(x.T)
        return x.astype("f4"), lies

    m, n, k = product.m, product.n, product.k
    a, given = drawn(product.a, m, k)
    factors, args = [], {"a": given}
    for b in product.bs:
        values, args[b.name] = drawn(b, k, n)
        factors.append(values)
    for extra in product.epilogue.operands if product.epilogue else ():
        rows = 1 if extra.row_stride == 0 else m
        args[extra.name] = rng.integers(-3, 4, (rows, n)).astype(extra.dtype.numpy)
    args["c"] = np.full((m, n), np.nan, np.float32)
    steps = -(-k // tiles.depth)
    args |= {"blocks": blocks, "row_tiles": -(-m // (tiles.groups * tiles.rows))}
    args |= {"column_tiles": -(-n // tiles.columns), "steps": steps}
    return args, [a @ b for b in factors]


@pytest.mark.parametrize("size", [(1, 1, 1), (8, 8, 4), (9, 10, 13), (17, 6, 27)], ids=str)
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize("a_turned", [False, True])
def test_products_are_right_in_any_order(a_turned, b_turned, size):
    product = product_of(*size, a_turned=a_turned, b_turned=b_turned)
    kernel = product_kernel(product, SMALL)
    verify(kernel)
    for seed in range(2):
        args, (wanted,) = arguments(product, SMALL)
        interpret(kernel, args, seed=seed)
        np.testing.assert_array_equal(args["c"], wanted)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F8E4M3, DType.F8E5M2], ids=str)
def test_types(dtype):
    product = product_of(11, 9, 7, dtype, b_turned=True)
    args, (wanted,) = arguments(product, SMALL)
    interpret(product_kernel(product, SMALL), args, seed=3)
    np.testing.assert_array_equal(args["c"], wanted)


@pytest.mark.parametrize("columns", [9, 10], ids=["odd", "in pairs"])
@pytest.mark.parametrize("what", ["residual", "bias", "gated"])
def test_epilogues(what, columns):
    two = [operand(i, F32) for i in range(2)]
    extra = Matrix("r", F32, columns if what == "residual" else 0)
    epilogue = Epilogue((apply("mul", *two),)) if what == "gated" else Epilogue((apply("add", *two),), (extra,))
    product = product_of(11, columns, 7, b_turned=True, epilogue=epilogue, products=1 + (what == "gated"))
    kernel = product_kernel(product, SMALL)
    verify(kernel)
    args, sums = arguments(product, SMALL)
    interpret(kernel, args, seed=4)
    np.testing.assert_array_equal(args["c"], sums[0] * sums[1] if what == "gated" else sums[0] + args["r"])


def test_tiles_as_they_are_on_the_gpu():
    tiles = GroupTiles(64)
    product = product_of(130, 20, 100, b_turned=True)
    kernel = product_kernel(product, tiles)
    assert kernel.thread_count == 384
    args, (wanted,) = arguments(product, tiles, blocks=1)
    interpret(kernel, args, seed=5)
    np.testing.assert_array_equal(args["c"], wanted)


@pytest.mark.parametrize("size", [(1, 1, 1), (4, 8, 4), (3, 20, 27)], ids=str)
def test_one_group_has_all_rows(size):
    product, tiles = product_of(*size, b_turned=True), SMALL._replace(groups=1)
    kernel = product_kernel(product, tiles)
    verify(kernel)
    assert kernel.thread_count == 256
    for seed in range(2):
        args, (wanted,) = arguments(product, tiles)
        interpret(kernel, args, seed=seed)
        np.testing.assert_array_equal(args["c"], wanted)


def test_slabs_and_copies_into_them_agree():
    """What one statement reads as slabs, others have written as rows."""
    k = GroupBuilder("slabs")
    memory = k.shared("memory", F32, 48)
    slabs = k.slabs(memory, 0, 4, 12, 4)
    assert isinstance(slabs, Slabs)
    number = lambda value: int(value.literal)  # noqa: E731
    parts = [k.region(memory, 16 * i, 4, 4).places(number) for i in range(3)]
    np.testing.assert_array_equal(slabs.places(number), np.concatenate(parts, axis=1))


# Faults.


class Planted(Copier):
    """Copies a kernel with one statement missing or another one in its place; `change` gives the new ones."""

    def __init__(self, builder, values, change):
        super().__init__(builder, values)
        self.change, self.changed = change, 0

    def statement(self, statement):
        new = self.change(statement)
        if new is None:
            super().statement(statement)
            return
        self.changed += 1
        for other in new:
            super().statement(other)


def planted(kernel, change):
    builder = GroupBuilder(kernel.name)
    made = Planted(builder, builder.adopt(kernel), change)
    made.block(kernel.body)
    assert made.changed
    return builder.build()


def dropped(kind, **fields):
    """Without statements of a kind whose fields, or the buffers of their barriers, are these."""

    def change(s):
        is_it = isinstance(s, kind) and all(getattr(s, n) == v for n, v in fields.items() if n != "barrier")
        is_it = is_it and ("barrier" not in fields or s.barrier.buffer.name == fields["barrier"])
        return [] if is_it else None

    return change


def other_bytes(change_by):
    def change(s):
        return [Arrive(s.barrier, s.bytes + change_by)] if isinstance(s, Arrive) and s.bytes else None

    return change


def twice(s):
    return [s, s] if isinstance(s, Arrive) and not s.bytes else None


def one_more_running(s):
    return [AwaitToken(s.token, 2)] if isinstance(s, AwaitToken) and s.running else None


def first_rows_for_all(s):
    zero = Const(s.row.builder, s.row.type, 0) if isinstance(s, PairCall) else None
    return [replace(s, row=zero)] if zero is not None else None


def always_the_first_stage(s):
    if not isinstance(s, Copy):
        return None
    zero = Const(s.target.offset.builder, s.target.offset.type, 0)
    return [replace(s, target=replace(s.target, offset=zero))]


def never_waits_for_a_second_round(s):
    if not isinstance(s, AwaitPhases) or s.barrier.buffer.name != "full":
        return None
    return [AwaitPhases(s.barrier, Const(s.count.builder, s.count.type, 1))]


READ_EARLY = r"(the product total0 reads|without awaiting the product total0|read before it is written)"
OVERWRITTEN = r"the copy to stages writes stages\[\d+\] without awaiting the (product total0|copy to stages)"

FAULTS = {
    "tiles are not awaited": (dropped(AwaitPhases, barrier="full"), f"{READ_EARLY}|{OVERWRITTEN}"),
    "room is not awaited": (dropped(AwaitPhases, barrier="empty"), OVERWRITTEN),
    "products are not awaited": (dropped(AwaitToken, running=1), OVERWRITTEN),
    "a product too many goes on": (one_more_running, OVERWRITTEN),
    "sums are stored early": (dropped(AwaitToken, running=0), r"reads total0\[\d+\] without awaiting|" + OVERWRITTEN),
    "sums begin as anything": (dropped(Fill), "total0 is read before it is written"),
    "too few bytes": (other_bytes(-16), f"{READ_EARLY}|{OVERWRITTEN}|deadlock"),
    "too many bytes": (other_bytes(16), r"deadlock: .*16 bytes to come"),
    "stages are given back twice": (twice, f"{OVERWRITTEN}|wrong phase|once too often"),
    "stages are never given back": (dropped(Arrive, bytes=0), r"deadlock: producer waits for 1 phases of empty"),
    "phases are not counted": (never_waits_for_a_second_round, f"wrong phase|{READ_EARLY}|{OVERWRITTEN}"),
    "all copies go to one stage": (always_the_first_stage, f"{READ_EARLY}|{OVERWRITTEN}"),
    "groups store the same rows": (first_rows_for_all, "a race: consumer . of block . writes c"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    change, message = FAULTS[fault]
    product = product_of(21, 10, 24, b_turned=True)
    kernel = planted(product_kernel(product, SMALL), change)
    verify(kernel)  # the rules of the IR do not see it
    for seed in range(3):
        with pytest.raises(KernelFault, match=message):
            interpret(kernel, arguments(product, SMALL)[0], seed=seed)


def test_a_copy_without_a_fault_is_right():
    product = product_of(21, 10, 24, b_turned=True)
    builder = GroupBuilder("product")
    kernel = product_kernel(product, SMALL)
    copier = Planted(builder, builder.adopt(kernel), lambda statement: None)
    copier.block(kernel.body)
    made = builder.build()
    assert made.text == kernel.text
    args, (wanted,) = arguments(product, SMALL)
    interpret(made, args, seed=6)
    np.testing.assert_array_equal(args["c"], wanted)


def test_what_is_assumed_is_checked():
    product = product_of(8, 8, 4)
    args, _ = arguments(product, SMALL)
    with pytest.raises(KernelFault, match="what is assumed does not hold"):
        interpret(product_kernel(product, SMALL), args | {"steps": 0})
