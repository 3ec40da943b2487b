"""Runs the LLVM text of kernels for groups of warps (`wgmma`, boxes of the copy engine) without a GPU, block by block.

    run_groups(text, arguments, memory, blocks=2, threads=384, maps=[Box(...)], shared=1 << 18, seed=0)

What `grid_text` does, and the instructions of attention besides: an argument that is a tensor map is the number of one
of `maps`. Products are computed where they begin, of what their views show at that time; where a warp waits for them,
what they have read must still be there. Boxes land at random times, swizzled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from grid_text import _CALLED, GridWarp, Program, _loads, run_grid
from warp_text import LANES, TYPES, turned_out

_CALLED |= {
    "llvm.smin.i64": lambda a, b: np.minimum(a.view(np.int64), b.view(np.int64)).view(np.uint64),
    "llvm.smax.i64": lambda a, b: np.maximum(a.view(np.int64), b.view(np.int64)).view(np.uint64),
    "llvm.nvvm.lg2.approx.ftz.f": np.log2,
}
_ELEMENTS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
# What has no effect here.
_SILENT = (
    "setmaxnreg",
    "griddepcontrol",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.bulk.pre",
)


class Group:
    """Four warps that multiply together: a product is begun when all have come to it, and ends for all."""

    def __init__(self, begun: list[int]) -> None:
        self.begun, self.ended = begun, 0


Act = Callable[[GridWarp, Sequence[Any]], Any]


class Box(NamedTuple):
    """A tensor map: where a tensor begins, its sizes and bytes from one to the next, innermost axis first; the box."""

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # of all but the innermost axis
    box: tuple[int, ...]


def swizzled(at: Any) -> Any:
    """Where a byte lies in shared memory with 128-byte swizzle."""
    return at ^ ((at >> 3) & 0x70)


class GroupProgram(Program):
    """Lines of a kernel; its blocks are those of a grid of so many."""

    def __init__(self, text: str, blocks: int, maps: Sequence[Box]) -> None:
        self.blocks, self.maps = blocks, maps
        super().__init__(text)

    def call(self, text: str) -> Any:
        if "sreg.nctaid.x" in text:
            return lambda warp: np.full(LANES, self.blocks, np.uint32)
        if "shfl.sync.idx" in text:
            value, place = re.search(r"float (\S+), i32 (\S+), i32 31", text).groups()  # type: ignore[union-attr]

            def shuffled(warp: GridWarp) -> Any:
                assert warp.active.all(), "lanes pass by an exchange"
                return warp.value(value, "float")[warp.value(place, "i32").astype(np.int64) & 31]

            return shuffled
        return super().call(text)

    def finding(self, result: str, text: str) -> Any:
        if text.startswith("inttoptr"):
            name = text.split()[2]
            return lambda warp: warp.value(name, "i64")
        loaded = re.fullmatch(r"load (i32|i64), ptr addrspace\(1\) (\S+), align \d", text)
        if loaded:
            kind, name = loaded.groups()

            def load(warp: GridWarp) -> Any:
                words = _loads(warp.block.memory, warp.value(name, "i64"), warp.active, 1 if kind == "i32" else 2)
                return np.ascontiguousarray(np.stack(words, 1)).view(TYPES[kind])[:, 0]

            return load
        return super().finding(result, text)

    def instruction(self, code: str, outputs: int) -> Act:
        if code.startswith(_SILENT):
            return lambda warp, given: None
        if code.startswith(("bar.sync", "bar.arrive")):
            return _named_barrier(code)
        if code.startswith("cp.async.bulk.tensor"):
            return self.box(code)
        if code == "mov.u32 $0, %tid.x;":
            return lambda warp, given: [np.arange(LANES, dtype=np.uint32) + np.uint32(warp.warp * LANES)]
        if code.startswith(("cp.async.cg", "cp.async.commit", "cp.async.wait")):
            return _copied(code)
        if code.startswith("ldmatrix"):
            return _matrices(code)
        if "@p ld.global.nc" in code:
            return _guarded_load(code)
        if "wgmma.mma_async" in code:
            return _product(code, outputs)
        if code.startswith("wgmma.wait_group"):
            return _awaited(code, outputs)
        if code.startswith("stmatrix"):
            return _store_matrices
        if code.startswith("redux.sync.min"):
            return lambda warp, given: [np.full(LANES, given[0].view(np.int32).min(), np.int32).view(np.uint32)]
        if "vote.sync.any" in code:
            return lambda warp, given: [np.full(LANES, int(given[0].any()), np.uint32)]
        if code.startswith("atom.add.acq_rel.gpu"):
            return _counted
        # Plain loads and stores, whatever they say of caches.
        if code.startswith(("ld.", "st.")):
            code = re.sub(r"\.nc|\.relaxed\.gpu|\.L1::no_allocate|\.L2::256B", "", code).replace(".f32", ".b32")
        return super().instruction(code, outputs)

    def box(self, code: str) -> Act:
        axes = int(code.split("tensor.")[1][0])
        is_load = ".shared::cluster.global." in code

        def load(warp: GridWarp, given: Sequence[Any]) -> None:
            for lane in np.flatnonzero(warp.active):
                to, number, barrier, *at = (int(g.astype(np.int64)[lane]) for g in _signed(given, 3))

                def land(
                    to: int = to, map: Box = self.maps[number], at: Any = tuple(at), barrier: int = barrier
                ) -> None:
                    assert to % 1024 == 0, "a box that begins at no multiple of the swizzle"
                    for offset, data, size in _lines(map, at):
                        found = np.zeros(128, np.uint8)
                        if size:
                            found[:size] = warp.block.memory.load(np.array([data], np.uint64), size)[0]
                        warp.block.shared.data[swizzled(np.arange(to + offset, to + offset + 128))] = found
                        warp.block.barriers[barrier].bytes -= 128
                    warp.block.barriers[barrier].settle()

                warp.block.copies.append(land)

        def store(warp: GridWarp, given: Sequence[Any]) -> None:
            for lane in np.flatnonzero(warp.active):
                number, source, *at = (int(g.astype(np.int64)[lane]) for g in _signed(given, 2))
                for offset, data, size in _lines(self.maps[number], tuple(at)):
                    if size:
                        line = warp.block.shared.data[swizzled(np.arange(source + offset, source + offset + size))]
                        warp.block.memory.store(np.array([data], np.uint64), line[None])

        assert axes == 4
        return load if is_load else store


def _signed(given: Sequence[Any], count: int) -> list[Any]:
    """Places may lie in front of a tensor."""
    return [*given[:count], *(g.view(np.int32) for g in given[count:])]


def _lines(map: Box, at: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Lines of 128 bytes of a box: where they lie in it, their address, and how many of their bytes are in the tensor,
    in all of which strides are multiples of what the copy engine asks for."""
    assert map.box[0] == 64 and map.box[2:] == (1, 1) and at[0] % 64 == 0
    assert map.start % 16 == 0 and all(stride % 16 == 0 for stride in map.strides)
    found: list[tuple[int, int, int]] = []
    for row in range(map.box[1]):
        place = (at[0], at[1] + row, *at[2:])
        is_inside = all(0 <= p < s for p, s in zip(place, map.sizes, strict=True))
        address = map.start + 2 * place[0] + sum(p * s for p, s in zip(place[1:], map.strides, strict=True))
        found.append((row * 128, address, 2 * min(64, map.sizes[0] - at[0]) if is_inside else 0))
    return found


def _named_barrier(code: str) -> Act:
    word, places = code.rstrip(";").split(" ", 1)
    numbers = [p.strip() for p in places.split(",")]

    def number(which: int, warp: GridWarp, given: Sequence[Any]) -> int:
        if which >= len(numbers):
            return warp.block.threads
        text = numbers[which]
        return int(given[int(text[1:])][0]) if text.startswith("$") else int(text)

    def meet(warp: GridWarp, given: Sequence[Any]) -> Any:
        assert warp.active.all(), "a barrier that lanes pass by"
        name, threads = number(0, warp, given), number(1, warp, given)
        meeting = warp.block.meetings.setdefault(name, [0, 0])
        if name in warp.met:
            if meeting[1] > warp.met[name]:
                del warp.met[name]
                return None
            return warp.active.copy()
        meeting[0] += 1
        assert meeting[0] * LANES <= threads
        if meeting[0] * LANES == threads:
            meeting[0], meeting[1] = 0, meeting[1] + 1
            return None
        if word == "bar.arrive":
            return None
        warp.met[name] = meeting[1]
        return warp.active.copy()

    return meet


class _View(NamedTuple):
    """A view of the tensor cores: where elements begin in bytes, from slab to slab, from eight to eight."""

    start: int
    leading: int
    stride: int

    @classmethod
    def of(cls, word: int) -> _View:
        assert word >> 62 == 1, "a view without 128-byte swizzle"
        return cls((word & 0x3FFF) << 4, (word >> 16 & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4)

    def places(self, rows: Any, depth: Any, is_turned: bool) -> Any:
        """Addresses of elements [row, depth]."""
        rows, depth = rows[:, None], depth[None, :]
        if is_turned:
            inside = depth // 8 * self.stride + depth % 8 * 128 + rows // 64 * self.leading + rows % 64 * 2
        else:
            inside = rows // 8 * self.stride + rows % 8 * 128 + depth * 2
        return swizzled(self.start + inside)


_PRODUCT = re.compile(r"wgmma\.mma_async\S*\.m64n(\d+)k16\.f32\.(\w+)\.\w+ \{(.*?)\}, (\{.*?\}|a), b, (p|q), 1, 1(.*)")


def _product(code: str, outputs: int) -> Act:
    steps = []
    moved = {"a": (0, 0), "b": (0, 0)}
    for statement in code.split(";"):
        added = re.search(r"add\.s64 (a|b), \$(\d+), (\d+)", statement)
        if added:
            moved[added[1]] = int(added[2]), int(added[3])
        found = _PRODUCT.search(statement)
        if found:
            columns, element, results, a, sign, rest = found.groups()
            assert results == ", ".join(f"${i}" for i in range(int(columns) // 2))
            words = [int(n) for n in re.findall(r"\$(\d+)", a)]
            steps.append((int(columns), element, words, dict(moved), sign == "q", rest.replace(" ", "")))
    assert steps and code.rstrip(" }").endswith("wgmma.commit_group.sync.aligned;") and "wgmma.fence" in code

    def multiply(warp: GridWarp, given: Sequence[Any]) -> Any:
        assert warp.active.all()
        tied = len(steps[0][2]) > 0
        total = np.zeros((16, steps[0][0]), np.float32)
        row, column = np.divmod(np.arange(LANES), 4)
        if tied:
            for i in range(outputs):
                total[row + i % 4 // 2 * 8, i // 4 * 8 + 2 * column + i % 2] = given[i].view(np.float32)
        read = []
        shared = warp.block.shared.data

        def elements(view: _View, rows: Any, is_turned: bool, element: str) -> Any:
            places = view.places(rows, np.arange(16), is_turned)
            bytes_read = shared[np.stack([places, places + 1], -1)]
            read.append((places, bytes_read))
            return bytes_read.view(_ELEMENTS[element])[..., 0].astype(np.float64)

        for columns, element, words, views, is_added, rest in steps:
            view_of = {n: _View.of(int(given[i - outputs][0]) + offset) for n, (i, offset) in views.items() if i}
            if words:
                a = np.zeros((16, 16))
                for i, word in enumerate(words):
                    pair = np.ascontiguousarray(given[word - outputs]).view(_ELEMENTS[element]).reshape(LANES, 2)
                    for e in range(2):
                        a[row + i % 2 * 8, i // 2 * 8 + 2 * column + e] = pair[:, e].astype(np.float64)
                assert rest == ",1"
            else:
                a = elements(view_of["a"], np.arange(16) + warp.warp % 4 * 16, False, element)
                assert rest == ",0,0"
            b = elements(view_of["b"], np.arange(columns), bool(words), element)
            product = (a @ b.T).astype(np.float32)
            total = total + product if is_added else product
        group = warp.block.groups.setdefault(warp.warp // 4, Group([0] * 4))
        group.begun[warp.warp % 4] += 1
        warp.products.append(read)
        return [
            np.ascontiguousarray(total[row + i % 4 // 2 * 8, i // 4 * 8 + 2 * column + i % 2]) for i in range(outputs)
        ]

    return multiply


def _awaited(code: str, outputs: int) -> Act:
    left = int(re.search(r"aligned (\d+)", code)[1])  # type: ignore[index]

    def wait(warp: GridWarp, given: Sequence[Any]) -> Any:
        group = warp.block.groups[warp.warp // 4]
        own = group.begun[warp.warp % 4]
        if len(warp.products) > left and min(group.begun) < own - left:
            late = warp.active.copy()
            return ([g.view(np.uint32) for g in given], late) if outputs else late
        while len(warp.products) > left:
            number, read = own - len(warp.products), warp.products.pop(0)
            if number < group.ended:
                continue
            # The first warp to know that a product has ended may let others write over what it read.
            group.ended = number + 1
            for places, found in read:
                now = warp.block.shared.data[np.stack([places, places + 1], -1)]
                assert (now == found).all(), "an operand was written over while the tensor cores read it"
        return [g.view(np.uint32) for g in given] if outputs else None

    return wait


def _copied(code: str) -> Act:
    """Copies of a warp's lanes: they land at any time from where they begin to where they are awaited."""
    if "commit_group" in code:
        return lambda warp, given: warp.groups.append([])
    if "wait_group" in code:
        left = int(code.split("wait_group ")[1].rstrip(";"))

        def wait(warp: GridWarp, given: Sequence[Any]) -> None:
            # The last list has what is not committed.
            while len(warp.groups) - 1 > left:
                for land in warp.groups.pop(0):
                    land()

        return wait
    assert "cg.shared.global" in code and ", 16, " in code

    def copy(warp: GridWarp, given: Sequence[Any]) -> None:
        to, source, sizes = (given[int(n)] for n in re.findall(r"\$(\d+)", code))
        mask, whole = warp.active & (sizes > 0), np.zeros((LANES, 16), np.uint8)
        assert np.isin(sizes, (0, 16)).all()
        if mask.any():
            whole[mask] = warp.block.memory.load(source[mask], 16)
        places, data = to[warp.active], whole[warp.active]
        done: list[bool] = []

        def land() -> None:
            if not done:
                warp.block.shared.store(places, data)
                done.append(True)

        if warp.block.rng.random() < 0.5:
            land()
        warp.groups[-1].append(land)

    return copy


def _matrices(code: str) -> Act:
    offset = np.uint32(int(re.search(r"\[\$\d+\+(\d+)\]", code)[1]))  # type: ignore[index]

    def read(warp: GridWarp, given: Sequence[Any]) -> Any:
        assert warp.active.all()
        return turned_out(warp.block.shared.load(given[0] + offset, 16), ".trans" in code)

    return read


def _guarded_load(code: str) -> Act:
    """An element where a number is above another one, else what is given."""
    above, bound, missing, kind, at, offset = re.search(  # type: ignore[union-attr]
        r"setp\.gt\.s32 p, \$(\d+), (\d+); mov\.b32 \$0, (\d+); @p ld\.global\.nc\.(\w+) \$0, \[\$(\d+)\+(\d+)\];", code
    ).groups()
    size = {"u8": 1, "u16": 2, "b32": 4}[kind]

    def load(warp: GridWarp, given: Sequence[Any]) -> Any:
        mask = warp.active & (given[int(above) - 1].view(np.int32) > int(bound))
        data = np.full((LANES, 1), int(missing), np.uint32).view(np.uint8)
        data[mask] = 0
        if mask.any():
            data[mask, :size] = warp.block.memory.load(given[int(at) - 1][mask] + np.uint64(int(offset)), size)
        return [data.view(np.uint32)[:, 0].copy()]

    return load


def _store_matrices(warp: GridWarp, given: Sequence[Any]) -> None:
    at, *words = given
    assert warp.active.all()
    for number, word in enumerate(words):
        for row in range(8):
            line = np.ascontiguousarray(word.view(np.uint32)[4 * row : 4 * row + 4])
            warp.block.shared.store(at[8 * number + row : 8 * number + row + 1], line[None].view(np.uint8))


def _counted(warp: GridWarp, given: Sequence[Any]) -> Any:
    found = np.zeros(LANES, np.uint32)
    for lane in np.flatnonzero(warp.active):
        where = given[0][lane : lane + 1]
        found[lane] = warp.block.memory.load(where, 4).view(np.uint32)[0, 0]
        warp.block.memory.store(where, (found[lane : lane + 1] + np.uint32(1))[:, None].view(np.uint8))
    return [found]


def run_groups(
    text: str,
    arguments: Sequence[int],
    memory: Any,
    blocks: int,
    threads: int,
    maps: Sequence[Box] = (),
    shared: int = 1 << 18,
    seed: int = 0,
) -> int:
    """Run all blocks to their end; how many instructions warps went through."""
    return run_grid(GroupProgram(text, blocks, maps), arguments, memory, blocks, threads, shared, seed)
