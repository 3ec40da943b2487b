"""Hopper's own instructions as inline PTX: barriers in shared memory, the copy engine, views for the tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.hopper.writer import Val, Var, Writer

# A wait that takes so many nanoseconds is a fault: the kernel stops instead of hanging the GPU.
PATIENCE = 2_000_000_000


def barrier_init(w: Writer, barrier: Val, arrivals: int) -> None:
    w.asm("mbarrier.init.shared::cta.b64 [<b>], <n>;", b=barrier, n=arrivals)


def barriers_made(w: Writer) -> None:
    """Behind `barrier_init`, by the thread that did it: the copy engine sees the barriers from here on, and other
    threads do once all have met."""
    w.asm("fence.mbarrier_init.release.cluster;")


def barrier_arrive(w: Writer, barrier: Val) -> None:
    w.asm("mbarrier.arrive.shared::cta.b64 _, [<b>];", b=barrier)


def barrier_expect(w: Writer, barrier: Val, size: int) -> None:
    """Arrive, and let the phase wait for so many bytes besides."""
    w.asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [<b>], <n>;", b=barrier, n=size)


def barrier_wait(w: Writer, barrier: Val, parity: Val) -> None:
    """Wait for the end of the phase with that parity."""
    w.asm(
        f"""{{ .reg .pred p; .reg .b64 t0, t1;
        mbarrier.try_wait.parity.shared::cta.b64 p, [<b>], <p>; @p bra DONE;
        mov.u64 t0, %globaltimer;
        SPIN: mbarrier.try_wait.parity.shared::cta.b64 p, [<b>], <p>; @p bra DONE;
        mov.u64 t1, %globaltimer; sub.u64 t1, t1, t0; setp.lt.u64 p, t1, {PATIENCE}; @p bra SPIN; trap;
        DONE: }}""",
        b=barrier,
        p=parity,
    )


def sync_warp(w: Writer) -> None:
    """Wait for the other threads of the warp."""
    w.asm("bar.warp.sync -1;")


def sync_block(w: Writer) -> None:
    """Wait for all other threads of the block."""
    w.asm("bar.sync 0;")


def sync_threads(w: Writer, barrier: Val | int, count: int) -> None:
    """Wait until so many threads have come to one of the block's 16 barriers."""
    w.asm("bar.sync <i>, <n>;", i=barrier, n=count)


def show_stores(w: Writer) -> None:
    """Let the copy engine and the tensor cores see what this thread has stored in shared memory."""
    w.asm("fence.proxy.async.shared::cta;")


def cluster_wait(w: Writer) -> None:
    """Wait until all threads of the cluster have come here, and see what they have stored."""
    w.asm("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")


def copy_box(w: Writer, to: Val, tensor_map: Val, at: Sequence[Val | int], barrier: Val) -> None:
    """Let the copy engine bring the box that begins at a place, innermost axis first; its bytes count at the
    barrier."""
    places = ", ".join(f"<x{i}>" for i in range(len(at)))
    w.asm(
        f"cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f" [<to>], [<map>, {{{places}}}], [<b>];",
        to=to,
        map=tensor_map,
        b=barrier,
        named={f"x{i}": x for i, x in enumerate(at)},
    )


def copy_line(w: Writer, to: Val, source: Val, size: Val, barrier: Val) -> None:
    """Let the copy engine bring bytes that lie side by side, a multiple of 16; they count at the barrier."""
    w.asm(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [<to>], [<from>], <n>, [<b>];",
        named={"to": to, "from": source, "n": size, "b": barrier},
    )


def store_box(w: Writer, tensor_map: Val, at: Sequence[Val | int], source: Val) -> None:
    """Let the copy engine write a box of shared memory; it belongs to the group of copies that is open."""
    places = ", ".join(f"<x{i}>" for i in range(len(at)))
    w.asm(
        f"cp.async.bulk.tensor.{len(at)}d.global.shared::cta.bulk_group [<map>, {{{places}}}], [<source>];",
        map=tensor_map,
        source=source,
        named={f"x{i}": x for i, x in enumerate(at)},
    )


def add_box(w: Writer, tensor_map: Val, at: Sequence[Val | int], source: Val) -> None:
    """The same, added to what lies there."""
    places = ", ".join(f"<x{i}>" for i in range(len(at)))
    w.asm(
        f"cp.reduce.async.bulk.tensor.{len(at)}d.global.shared::cta.add.tile.bulk_group"
        f" [<map>, {{{places}}}], [<source>];",
        map=tensor_map,
        source=source,
        named={f"x{i}": x for i, x in enumerate(at)},
    )


def counter_wait(w: Writer, address: Val, value: Val) -> None:
    """Wait until a counter in the memory of the GPU has a value, and see what was stored before it got it."""
    w.asm(
        f"""{{ .reg .pred p; .reg .b32 c; .reg .b64 t0, t1; mov.u64 t0, %globaltimer;
        SPIN: ld.acquire.gpu.global.b32 c, [<a>]; setp.eq.s32 p, c, <v>; @p bra DONE;
        mov.u64 t1, %globaltimer; sub.u64 t1, t1, t0; setp.lt.u64 p, t1, {PATIENCE}; @p bra SPIN; trap;
        DONE: }}""",
        a=address,
        v=value,
    )


def mma(w: Writer, element: str, total: Sequence[Var], a: Sequence[Val], b: Sequence[Val]) -> None:
    """Sixteen rows of A, 16 deep, times eight columns of B, added to the four sums that a lane has."""
    named: dict[str, Val | int] = {f"a{i}": v for i, v in enumerate(a)}
    named |= {f"b{i}": v for i, v in enumerate(b)}
    new = w.asm(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{element}.{element}.f32 {{$0, $1, $2, $3}},"
        " {<a0>, <a1>, <a2>, <a3>}, {<b0>, <b1>}, {$0, $1, $2, $3};",
        [v.get() for v in total],
        named=named,
    )
    for variable, value in zip(total, new):
        variable.set(value)


def descriptor(w: Writer, address: Val, leading: int, stride: int) -> Val:
    """How wgmma sees a tile in shared memory with 128-byte swizzle. Where K lies side by side, `stride` is the bytes
    between groups of 8 rows; else it is the bytes between groups of 8 along K, and `leading` those between slabs of 64
    columns."""
    low = w.wide((address & 0x3FFFF) >> 4)
    return low | (leading >> 4 << 16 | stride >> 4 << 32 | 1 << 62)


class Ring:
    """A position in a ring of stages: the number of the stage, and the parity of the current turn."""

    def __init__(self, w: Writer, stages: Val | int) -> None:
        self._w, self._stages = w, stages
        self.stage, self.parity = Var(w, 0), Var(w, 0)

    def advance(self) -> None:
        following = self.stage.get() + 1
        wraps = following.equals(self._stages)
        self.stage.set(self._w.select(wraps, 0, following))
        self.parity.set(self.parity.get() ^ self._w.select(wraps, 1, 0))
