"""Two toy kernels with roles, as the fast ones for GPUs are built, and the faults that can be planted in them.

`product_kernel` streams tiles of two matrices through stages of shared memory to two groups that multiply;
`attention_kernel` streams keys and values, and starts the next scores while the last weighted sum is under way.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Kernel, Value

F32 = DType.F32
# Tiles of a product: rows, columns and depth; each of two groups has half the rows.
TM, TN, TK, STAGES, GROUPS = 8, 4, 4, 3, 2
M, N, K = 24, 8, 20


def product_kernel(fault: str = "") -> Kernel:
    """c[M, N] = a[M, K] @ b[K, N] by two blocks that stay for all tiles."""
    k = GroupBuilder("product")
    a, b, c = k.pointer("a", F32), k.pointer("b", F32), k.pointer("c", F32, write=True)
    a_tiles, b_tiles = k.shared("a_tiles", F32, STAGES * TM * TK), k.shared("b_tiles", F32, STAGES * TK * TN)
    full = k.phases("full", STAGES, 2 if fault == "full never completes" else 1)
    empty = k.phases("empty", STAGES, GROUPS)
    total, done = k.fragment("total", F32, TM // GROUPS, TN), k.token("done")
    steps = K // TK
    size = 4 * (TM * TK + TK * TN)
    announced = {"too few bytes": size - 64, "too many bytes": size + 64, "no bytes": 0}.get(fault, size)

    def a_tile(stage: Value, row: Value | int, rows: int):
        return k.region(a_tiles, stage * (TM * TK) + row * TK, rows, TK)

    def b_tile(stage: Value):
        return k.region(b_tiles, stage * (TK * TN), TK, TN)

    with k.parallel("block", 2), k.roles() as roles:
        with (
            roles.role("producer", threads=128, registers=40),
            k.walk("tile", M // TM, N // TN, band=2, init=[k.as_index(0)]) as (row, col, tiles),
        ):
            with k.loop("kk", 0, steps) as kk:
                turn = tiles.values[0] + kk
                stage, round = turn % STAGES, turn // STAGES
                if fault != "producer does not wait":
                    k.await_phases(empty, stage, round + (1 if fault == "producer waits a phase too far" else 0))
                k.arrive(full, stage, bytes=announced)
                to = (stage + 1) % STAGES if fault == "copy to another stage" else stage
                signal = (stage + 1) % STAGES if fault == "copy signals another stage" else stage
                k.start_copy(a_tile(to, 0, TM), k.region(a, row * (TM * K) + kk * TK, TM, TK, K), full, signal)
                k.start_copy(b_tile(stage), k.region(b, kk * (TK * N) + col * TN, TK, TN, N), full, stage)
            tiles.next(tiles.values[0] + steps)
        with (
            roles.role("consumer", threads=128, copies=GROUPS, registers=232) as group,
            k.walk("tile", M // TM, N // TN, band=2, init=[k.as_index(0)]) as (row, col, tiles),
        ):
            top = k.as_index(0) if fault == "groups share rows" else group * (TM // GROUPS)
            with k.loop("kk", 0, steps) as kk:
                turn = tiles.values[0] + kk
                stage, round = turn % STAGES, turn // STAGES
                late = {"consumer waits a phase too few": 0, "consumer waits two phases on": 3}.get(fault, 1)
                if fault != "consumer does not wait":
                    k.await_phases(full, stage, round + late)
                k.mma(total, a_tile(stage, top, TM // GROUPS), b_tile(stage), done, keeps=kk > 0)
                if fault == "stage given back before the product is done":
                    k.arrive(empty, stage)
                if fault != "product is not awaited":
                    k.await_token(done)
                if fault == "one group does not give back":
                    with k.when(k.eq(group, 0)):
                        k.arrive(empty, stage)
                elif fault != "stage given back before the product is done":
                    k.arrive(empty, stage)
                if fault == "stage given back twice":
                    k.arrive(empty, stage)
            target = row * (TM * N) + top * N + col * TN
            if fault == "blocks share tiles":
                target = top * N + col * TN
            k.copy(k.region(c, target, TM // GROUPS, TN, N), total)
            tiles.next(tiles.values[0] + steps)
    return k.build()


# What the interpreter says of a read of data nobody waited for: they are not there yet, or came by chance. The two
# accesses are in no order, so either may be the one that it sees second.
EARLY = (
    r"({0} reads {1}\[\d+\] without awaiting the copy to {1}, which writes it|{1} is read before it is written|"
    r"the copy to {1} writes {1}\[\d+\] without awaiting {0}, which reads it)"
)
A_EARLY = EARLY.format("the product total", "a_tiles")
B_EARLY = EARLY.format("the product total", "b_tiles")
A_REUSED = r"the copy to a_tiles writes a_tiles\[\d+\] without awaiting the product total, which reads it"

# Fault -> what the interpreter says of it, whatever the seed; which of two consequences it meets first may differ.
PRODUCT_FAULTS = {
    "consumer does not wait": A_EARLY,
    "product is not awaited": A_REUSED,
    "stage given back before the product is done": A_REUSED,
    "producer does not wait": r"the copy to a_tiles writes a_tiles\[0\] without awaiting the (copy|product)",
    "producer waits a phase too far": r"deadlock: producer waits for 1 phases of empty\[0\] \(0 complete",
    "consumer waits a phase too few": f"{A_EARLY}|{A_REUSED}|wrong phase",
    "consumer waits two phases on": r"wrong phase: consumer . of block . awaits 3 phases while [01] are complete",
    "stage given back twice": f"{A_REUSED}|wrong phase: producer of block . awaits 1 phases while 2 are complete",
    "one group does not give back": r"deadlock: producer waits for 1 phases of empty\[0\] \(0 complete, 1 of 2",
    "too few bytes": rf"{A_EARLY}|{B_EARLY}|deadlock: .*-64 bytes to come",
    "too many bytes": r"deadlock: .*consumer 0 waits for 1 phases of full.*64 bytes to come",
    "no bytes": f"{A_EARLY}|{A_REUSED}",
    "copy to another stage": A_EARLY,
    "copy signals another stage": A_EARLY,
    "full never completes": r"deadlock: .*consumer 0 waits for 1 phases of full\[0\] \(0 complete, 1 of 2 arrivals",
    "groups share rows": r"a race: consumer . of block . writes c\[\d+\], consumer . of block . writes it, in no order",
    "blocks share tiles": r"a race: .* of block . writes c\[\d+\], .* of block . writes it, in no order",
}

# Queries, keys, and numbers of each.
TQ, TKEYS, D, KEYS = 2, 4, 4, 16
BUFFERS = 2


def attention_kernel(fault: str = "") -> Kernel:
    """o = softmax(q kᵀ) v for 2 x TQ queries, one group for each TQ, over keys in tiles."""
    k = GroupBuilder("attention")
    q, keys, values = k.pointer("q", F32), k.pointer("keys", F32), k.pointer("values", F32)
    o = k.pointer("o", F32, write=True)
    q_tile = k.shared("q_tile", F32, 2 * TQ * D)
    k_tiles, v_tiles = (k.shared(name, F32, BUFFERS * TKEYS * D) for name in ("k_tiles", "v_tiles"))
    q_full = k.phases("q_full", 1)
    k_full, v_full = k.phases("k_full", BUFFERS), k.phases("v_full", BUFFERS)
    k_empty, v_empty = k.phases("k_empty", BUFFERS, 2), k.phases("v_empty", BUFFERS, 2)
    scores, weights, sums = (k.fragment(name, F32, TQ, TKEYS) for name in ("scores", "weights", "sums"))
    largest, found, total, shrink = (k.fragment(n, F32, TQ, 1) for n in ("largest", "found", "total", "shrink"))
    scored, summed = k.token("scored"), k.token("summed")
    tiles, size = KEYS // TKEYS, 4 * TKEYS * D

    with k.parallel("block", 1), k.roles() as roles:
        with roles.role("producer", threads=32):
            k.arrive(q_full, 0, bytes=4 * 2 * TQ * D)
            k.start_copy(k.region(q_tile, 0, 2 * TQ, D), k.region(q, 0, 2 * TQ, D), q_full, 0)
            with k.loop("j", 0, tiles) as j:
                stage, round = j % BUFFERS, j // BUFFERS
                for tile, source, full, empty in (
                    (k_tiles, keys, k_full, k_empty),
                    (v_tiles, values, v_full, v_empty),
                ):
                    k.await_phases(empty, stage, round)
                    k.arrive(full, stage, bytes=size)
                    there, here = stage * (TKEYS * D), j * (TKEYS * D)
                    k.start_copy(k.region(tile, there, TKEYS, D), k.region(source, here, TKEYS, D), full, stage)
        with roles.role("consumer", threads=128, copies=2) as group:
            with k.elements(sums) as (e, _):
                k.store(sums, e, 0.0)
            with k.elements(largest) as (e, _):
                k.store(largest, e, -np.inf)
                k.store(total, e, 0.0)
            if fault != "queries are not awaited":
                k.await_phases(q_full, 0, 1)
            with k.loop("j", 0, tiles) as j:
                stage, round = j % BUFFERS, j // BUFFERS
                k.await_phases(v_full if fault == "values awaited for keys" else k_full, stage, round + 1)
                rows = k.region(q_tile, group * (TQ * D), TQ, D)
                is_false = k.const(0, DType.BOOL)
                k_tile = k.region(k_tiles, stage * (TKEYS * D), TKEYS, D)
                k.mma(scores, rows, k_tile, scored, keeps=is_false, b_transposed=True)
                with k.when(j > 0):
                    if fault == "values given back too early":
                        k.arrive(v_empty, (j - 1) % BUFFERS)
                    if fault != "last sum is not awaited":
                        k.await_token(summed)
                    if fault != "values given back too early":
                        k.arrive(v_empty, (j - 1) % BUFFERS)
                if fault != "scores are not awaited":
                    k.await_token(scored)
                k.arrive(k_empty, stage)
                k.row_reduce("max", found, scores)
                with k.elements(largest) as (e, _):
                    now = k.max(k.load(largest, e), k.load(found, e))
                    k.store(shrink, e, k.op("exp", k.load(largest, e) - now))
                    k.store(largest, e, now)
                with k.elements(scores) as (e, row):
                    k.store(weights, e, k.op("exp", k.load(scores, e) - k.load(largest, row)))
                k.row_reduce("add", found, weights)
                with k.elements(total) as (e, _):
                    k.store(total, e, k.load(total, e) * k.load(shrink, e) + k.load(found, e))
                with k.elements(sums) as (e, row):
                    k.store(sums, e, k.load(sums, e) * k.load(shrink, row))
                if fault != "values are not awaited":
                    k.await_phases(v_full, stage, round + (2 if fault == "values a phase on" else 1))
                k.mma(sums, weights, k.region(v_tiles, stage * (TKEYS * D), TKEYS, D), summed)
                if fault == "weights overwritten under way":
                    with k.elements(weights) as (e, _):
                        k.store(weights, e, 0.0)
            if fault != "end is not awaited":
                k.await_token(summed)
            k.arrive(v_empty, (tiles - 1) % BUFFERS)
            with k.elements(sums) as (e, row):
                k.store(sums, e, k.load(sums, e) / k.load(total, row))
            k.copy(k.region(o, group * (TQ * D), TQ, D), sums)
    return k.build()


V_REUSED = r"the copy to v_tiles writes v_tiles\[\d+\] without awaiting the product sums, which reads it"
WEIGHTS_REUSED = r"writes weights\[\d+\] without awaiting the product sums, which reads it"

ATTENTION_FAULTS = {
    "queries are not awaited": EARLY.format("the product scores", "q_tile"),
    "values awaited for keys": EARLY.format("the product scores", "k_tiles"),
    "scores are not awaited": r"consumer . of block 0 reads scores\[\d+\] without awaiting the product scores",
    "last sum is not awaited": f"{V_REUSED}|{WEIGHTS_REUSED}",
    "weights overwritten under way": WEIGHTS_REUSED,
    "values given back too early": V_REUSED,
    "values are not awaited": EARLY.format("the product sums", "v_tiles"),
    "values a phase on": r"wrong phase: consumer . of block 0 awaits 2 phases while 0|deadlock: .*2 phases of v_full",
    "end is not awaited": r"consumer . of block 0 reads sums\[\d+\] without awaiting the product sums",
}


def product_arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, dims).astype(np.float32) for dims in ((M, K), (K, N)))
    return {"a": a, "b": b, "c": np.full((M, N), np.nan, np.float32)}, a @ b


def attention_arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(6)
    q, keys, values = (rng.normal(size=dims).astype(np.float32) for dims in ((2 * TQ, D), (KEYS, D), (KEYS, D)))
    scores = np.exp(q.astype(np.float64) @ keys.T)
    wanted = scores / scores.sum(axis=1, keepdims=True) @ values
    return {"q": q, "keys": keys, "values": values, "o": np.full((2 * TQ, D), np.nan, np.float32)}, wanted
