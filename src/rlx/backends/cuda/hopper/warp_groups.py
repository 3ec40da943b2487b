"""What the four warps of a group do together: multiply tiles in shared memory, and store the sums they have in their
registers."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter
from rlx.backends.cuda.hopper.instructions import descriptor
from rlx.backends.cuda.hopper.product_shape import DEPTH_BYTES, SLAB_BYTES, STEP_BYTES, ProductShape
from rlx.backends.cuda.hopper.writer import Val, Var, Writer

# Pairs of elements whose operands of the epilogue are read before the first of them is stored.
READ_AHEAD = 16


def view_of_a(w: Writer, shape: ProductShape, address: Val) -> Val:
    """How the tensor cores see 64 rows of A in a stage."""
    return descriptor(w, address, SLAB_BYTES if shape.is_turned else 16, 1024)


def view_of_b(w: Writer, shape: ProductShape, address: Val) -> Val:
    """How they see the columns of B."""
    return descriptor(w, address, 16 if shape.along_k else SLAB_BYTES, 1024)


def start_products(
    w: Writer, shape: ProductShape, sums: Sequence[Var], a: Val, bs: Sequence[Val], running: int | None
) -> None:
    """Add A times every B, which are given as views of a stage, to sums. One piece of PTX, so that nothing comes
    between its instructions; waiting for all but `running` such pieces, if that is asked for, says that the stages of
    others have been read."""
    count = shape.columns // 2
    text = "{ .reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0; wgmma.fence.sync.aligned;"
    # One step further along K: 32 bytes inside a swizzled row where K lies side by side, else 16 rows of 128 bytes.
    ahead = 32 if shape.along_k else 2048
    a_ahead = 2048 if shape.is_turned else 32
    # Which operands are turned; bytes never are, and their instruction does not ask.
    turned = "" if shape.is_bytes else f", {int(shape.is_turned)}, {0 if shape.along_k else 1}"
    kinds = f"k{STEP_BYTES // (DEPTH_BYTES // shape.depth)}.f32.{shape.element}.{shape.b_element or shape.element}"
    for s in range(DEPTH_BYTES // STEP_BYTES):
        for part in range(shape.parts):
            registers = ", ".join(f"${part * count + i}" for i in range(count))
            text += f"""add.s64 a, <a>, {s * a_ahead >> 4}; add.s64 b, <b{part}>, {s * ahead >> 4};
                wgmma.mma_async.sync.aligned.m64n{shape.columns}{kinds}
                {{{registers}}}, a, b, p, 1, 1{turned};"""
    wait = "" if running is None else f" wgmma.wait_group.sync.aligned {running};"
    text += f"wgmma.commit_group.sync.aligned;{wait} }}"
    views: dict[str, Val | int] = {f"b{part}": b for part, b in enumerate(bs)}
    new = w.asm(text, [s.get() for s in sums], a=a, named=views)
    for variable, value in zip(sums, new):
        variable.set(value)


def rows_of_thread(inside: Val) -> list[Val]:
    """Those of its group's rows that a thread stores: four of eight, and of the next eight."""
    first = (inside >> 5) * 16 + ((inside >> 2) & 1)
    return [first + (8 * half + 2 * i) for half in range(2) for i in range(4)]


def store_pairs(
    epilogue: EpilogueWriter, shape: ProductShape, inside: Val, sums: Sequence[Val], rows: Sequence[Val], column: Val
) -> None:
    """Each thread has two neighbouring columns of every eight, in two rows that are eight apart: a warp has eight
    short pieces of rows. Lanes exchange sums until it has two pieces of 32 columns, which are whole sectors of
    memory; `rows` of C are then those of `rows_of_thread`. What the epilogue reads is read for many of them before
    the first is stored: one wait instead of many."""
    w, lane = epilogue.w, inside & 31
    column = column + ((lane & 3) * 2 + (lane >> 3) * 8)
    count = shape.columns // 2
    # By the number of 32 columns, the upper or lower eight rows, and which two of these.
    places = [(j, half, i) for j in range(shape.columns // 32) for half in range(2) for i in range(4)]
    for start in range(0, len(places), READ_AHEAD):
        some = places[start : start + READ_AHEAD]
        at = [(rows[4 * half + i], w.wide(column + 32 * j)) for j, half, i in some]
        read = [epilogue.read(*place) for place in at]
        pairs: dict[tuple[int, int, int], list[Val]] = {}
        for j, half in dict.fromkeys((j, half) for j, half, _ in some):
            firsts = [part * count + 2 * half + e for part in range(shape.parts) for e in range(2)]
            turned = [_in_whole_rows(w, [sums[f + 16 * j + 4 * i] for i in range(4)], lane) for f in firsts]
            for i in range(4):
                pairs[j, half, i] = [values[i] for values in turned]
        for place, key, values in zip(at, some, read):
            epilogue.finish(*place, pairs[key], values)


def _in_whole_rows(w: Writer, values: list[Val], lane: Val) -> list[Val]:
    """Of four groups of eight columns that a lane has in its row, those of one group in four rows: two apart, from
    the first or second of eight on. Lanes whose numbers differ in a bit exchange two of four."""
    for bit, step in ((16, 2), (8, 1)):
        is_upper = (lane & bit).equals(bit)
        for i in (i for i in range(4) if not i & step):
            low, high = values[i], values[i + step]
            given = w.select(is_upper, low, high, "float")
            found = w.call("llvm.nvvm.shfl.sync.bfly.f32", "float", w.value(-1), given, w.value(bit), w.value(31))
            values[i] = w.select(is_upper, found, low, "float")
            values[i + step] = w.select(is_upper, high, found, "float")
    return values
