"""Runs the LLVM text of a kernel whose blocks talk to each other (`rlx.backends.cuda.persistent`) without a GPU.

    run_grid(text, arguments, memory, blocks=4, threads=288, shared=1 << 18, seed=0)

All blocks are there at once. Warps take turns in a random order that the seed decides, a random number of instructions
at a time; copies of the copy engine land at random times, in any order. Lanes of a warp go in step; where they part,
those at the earliest line go first. Shared memory begins as noise. A grid in which nobody can go on is an error that
says where its warps stand. Instructions are those of `warp_text`, and those of exchanges; another one is an error.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from warp_text import GLOBAL, LANES, TYPES, Memory, _mma, _permuted

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "udiv": lambda a, b: a // np.where(b == 0, b.dtype.type(1), b),
    "urem": lambda a, b: a % np.where(b == 0, b.dtype.type(1), b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": np.left_shift,
    "lshr": np.right_shift,
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
}
_COMPARED = {
    "slt": np.less,
    "sgt": np.greater,
    "eq": np.equal,
    "ne": np.not_equal,
    "oeq": np.equal,
    "oge": np.greater_equal,
    "ogt": np.greater,
    "one": np.not_equal,
}
_CALLED: dict[str, Callable[..., Any]] = {
    "llvm.smin.i32": lambda a, b: np.minimum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "llvm.smax.i32": lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "llvm.maxnum.f32": np.fmax,
    "llvm.maximum.f32": np.maximum,
    "llvm.fabs.f32": np.abs,
    "llvm.nvvm.prmt": _permuted,
    "llvm.nvvm.ex2.approx.ftz.f": np.exp2,
    "llvm.nvvm.rcp.approx.ftz.f": lambda x: np.float32(1) / x,
    "llvm.nvvm.rsqrt.approx.f": lambda x: np.float32(1) / np.sqrt(x),
    "llvm.nvvm.ff2bf16x2.rn": lambda high, low: np.stack([low, high], 1).astype(ml_dtypes.bfloat16),
    "llvm.nvvm.ff2f16x2.rn": lambda high, low: np.stack([low, high], 1).astype(np.float16),
}
_HALVES = {"bfloat": ml_dtypes.bfloat16, "half": np.float16}

# What a line does to a warp; True if lanes have to come back to it.
Act = Callable[["GridWarp"], Any]


_ALL = np.ones(LANES, bool)


class Barrier:
    """An mbarrier: arrivals and bytes that its phase waits for."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.pending, self.bytes, self.phase = arrivals, arrivals, 0, 0

    def settle(self) -> None:
        assert self.pending >= 0, "more arrivals than a barrier expects"
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.arrivals


class GridBlock:
    """Memory and barriers of a block."""

    def __init__(self, number: int, threads: int, shared: int, memory: Memory, rng: random.Random) -> None:
        self.number, self.threads, self.memory, self.rng = number, threads, memory, rng
        self.shared = Memory(np.random.default_rng(number).integers(0, 256, shared, np.uint8), 0)
        self.barriers: dict[int, Barrier] = {}
        self.copies: list[tuple[int, int, int, int] | Callable[[], None]] = []
        self.groups: dict[int, Any] = {}  # of warps that multiply together
        self.meetings: dict[int, list[int]] = {}  # by number: warps that are there, and how often all have met

    def land(self) -> None:
        """One copy arrives."""
        copy = self.copies.pop(self.rng.randrange(len(self.copies)))
        if callable(copy):
            copy()
            return
        to, source, size, barrier = copy
        assert to % 16 == 0 and source % 16 == 0 and size % 16 == 0 and size > 0, "a copy of other than whole 16 bytes"
        data = self.memory.load(np.array([source], np.uint64), size)
        self.shared.data[to : to + size] = data[0]
        self.barriers[barrier].bytes -= size
        self.barriers[barrier].settle()


class GridWarp:
    """One warp; `run` stops where it must wait, or has done enough for once."""

    def __init__(self, program: Program, block: GridBlock, warp: int, given: dict[str, int]) -> None:
        self.program, self.block, self.warp = program, block, warp
        self.values: dict[str, Any] = {name: np.full(LANES, v, np.uint64) for name, v in given.items()}
        self.slots: dict[str, Any] = {}
        # The line of all lanes, or where they have parted, -1, and the line of each.
        self.line, self.at = 0, np.zeros(LANES, np.int64)
        self.active = _ALL
        self.met: dict[int, int] = {}
        self.count = 0
        # Products of matrices that nobody has waited for: what each has read, and where.
        self.products: list[list[tuple[Any, Any]]] = []
        # Groups of copies that lanes wait for, the last one still open.
        self.groups: list[list[Callable[[], None]]] = [[]]

    @property
    def here(self) -> int:
        return self.line if self.line >= 0 else int(self.at.min())

    def jump(self, to: Any) -> None:
        """The lanes that are active go to a line, or to one each."""
        if self.line >= 0 and isinstance(to, int):
            self.line = to
            return
        if self.line >= 0:
            self.at = np.full(LANES, self.line)
        self.at = np.where(self.active, to, self.at)
        self.line = int(self.at[0]) if (self.at == self.at[0]).all() else -1

    def run(self) -> Iterator[bool]:
        """Yields whether it has moved since."""
        acts, end, left, moved = self.program.acts, len(self.program.acts), 0, False
        while True:
            here = self.here
            if here >= end:
                return
            if left <= 0:
                left = self.block.rng.randrange(1, 400)
                yield moved
                moved = False
            self.active = _ALL if self.line >= 0 else self.at == here
            waiting = acts[here](self)
            self.count += 1
            left -= 1
            if waiting is None:
                self.jump(here + 1)
                moved = True
            elif waiting is False:  # a branch: it has set the lines
                moved = True
            else:
                go = self.active & ~waiting
                if go.any():
                    self.active, moved = go, True
                    self.jump(np.full(LANES, here + 1))
                left = 0

    def value(self, name: str, kind: str) -> Any:
        found = self.values.get(name)
        if found is not None:
            return found.astype(np.uint32) if kind == "i32" and found.dtype == np.uint64 else found
        assert not name.startswith("%"), f"{name} is not there"
        return _constant(name, kind)

    def keep(self, name: str, value: Any) -> None:
        old = self.values.get(name)
        if old is None or self.active is _ALL:
            self.values[name] = value
            return
        mask = self.active if value.ndim == 1 else self.active[:, None] if value.shape[0] == LANES else self.active
        self.values[name] = np.where(mask, value, old)


_constants: dict[tuple[str, str], Any] = {}


def _constant(name: str, kind: str) -> Any:
    found = _constants.get((name, kind))
    if found is None:
        if kind == "float":
            found = np.full(LANES, np.array(int(name, 16), np.uint64).view(np.float64).astype(np.float32))
        elif kind == "i1":
            found = np.full(LANES, name == "true" or name == "1")
        else:
            found = np.full(LANES, int(name) % (1 << int(kind[1:])), TYPES[kind])
        _constants[name, kind] = found
    return found


class Program:
    """Lines of a kernel as functions of warps, made once; derived ones know more instructions."""

    def __init__(self, text: str) -> None:
        body = text.split("define ptx_kernel void @", 1)[1]
        signature, rest = body.split("{\n", 1)
        self.params = re.findall(r"%(\w+)", signature)
        self.lines = [line for line in rest.split("\n}\n", 1)[0].splitlines() if line != "ret void"]
        self.labels = {line[:-1]: i for i, line in enumerate(self.lines) if re.fullmatch(r"L\d+:", line)}
        self.acts = [self.act(line) for line in self.lines]

    def act(self, line: str) -> Act:
        if line.endswith(":"):
            return lambda warp: None
        if line.startswith("br "):
            return self.branch(line)
        stored = re.fullmatch(r"store (\S+) (\S+), ptr (\S+)", line)
        if stored:
            kind, name, slot = stored.groups()

            def store(warp: GridWarp) -> None:
                old, new = warp.slots[slot], warp.value(name, kind)
                warp.slots[slot] = new if warp.active is _ALL else np.where(warp.active, new, old)

            return store
        result, text = re.fullmatch(r"(?:(\S+) = )?(.*)", line).groups()  # type: ignore[union-attr]
        if "asm sideeffect" in text:
            return self.inline(result, text)
        return self.computed(result, text)

    def branch(self, line: str) -> Act:
        plain = re.fullmatch(r"br label %(L\d+)", line)
        if plain:
            to = self.labels[plain[1]]

            def jump(warp: GridWarp) -> bool:
                warp.jump(to)
                return False

            return jump
        condition, *names = re.fullmatch(r"br i1 (\S+), label %(L\d+), label %(L\d+)", line).groups()  # type: ignore[union-attr]
        yes, no = (self.labels[n] for n in names)

        def choose(warp: GridWarp) -> bool:
            is_true = warp.value(condition, "i1")
            if warp.line >= 0 and (is_true.all() or not is_true.any()):
                warp.line = yes if is_true[0] else no
            else:
                warp.jump(np.where(is_true, yes, no))
            return False

        return choose

    def computed(self, result: str, text: str) -> Act:
        find = self.finding(result, text)

        def compute(warp: GridWarp) -> None:
            warp.keep(result, find(warp))

        return compute

    def finding(self, result: str, text: str) -> Act:
        word, _, rest = text.partition(" ")
        if word in _ARITHMETIC:
            do = _ARITHMETIC[word]
            kind, a, b = re.fullmatch(r"(?:contract )?(\S+) (\S+), (\S+)", rest).groups()  # type: ignore[union-attr]
            return lambda warp: do(warp.value(a, kind), warp.value(b, kind))
        if word in ("icmp", "fcmp"):
            how, kind, a, b = re.fullmatch(r"(\S+) (\S+) (\S+), (\S+)", rest).groups()  # type: ignore[union-attr]
            seen = {"i32": np.int32, "i64": np.int64, "float": np.float32}[kind]
            do = _COMPARED[how]
            return lambda warp: do(warp.value(a, kind).view(seen), warp.value(b, kind).view(seen))
        if word == "select":
            c, kind, a, _, b = re.fullmatch(r"i1 (\S+), (\S+) (\S+), (\S+) (\S+)", rest).groups()  # type: ignore[union-attr]
            return lambda warp: np.where(warp.value(c, "i1"), warp.value(a, kind), warp.value(b, kind))
        if word in ("zext", "trunc"):
            source, name, _, target = rest.split()
            return lambda warp: warp.value(name, source).astype(TYPES[target])
        if word == "alloca":

            def allocate(warp: GridWarp) -> Any:
                warp.slots[result] = np.zeros(LANES, TYPES[rest])
                return warp.slots[result]

            return allocate
        if word == "load":
            slot = rest.split("ptr ")[1]
            return lambda warp: warp.slots[slot]
        if word == "ptrtoint":
            return lambda warp: np.zeros(LANES, np.uint32)
        if word == "bitcast":
            source, name, target = re.fullmatch(r"(\S+|<.*>) (\S+) to (.*)", rest).groups()  # type: ignore[union-attr]
            pair = re.fullmatch(r"<2 x (\w+)>", target)
            if pair:
                return lambda warp: warp.value(name, source).view(_HALVES[pair[1]]).reshape(LANES, 2)
            to = TYPES[target]
            return lambda warp: np.ascontiguousarray(warp.value(name, source)).view(to).reshape(LANES)
        if word == "extractelement":
            name, i = re.fullmatch(r"<2 x \w+> (\S+), i32 (\d)", rest).groups()  # type: ignore[union-attr]
            return lambda warp: warp.values[name][:, int(i)]
        if word == "extractvalue":
            kinds, name, i = re.fullmatch(r"\{(.*)\} (\S+), (\d+)", rest).groups()  # type: ignore[union-attr]
            kind = TYPES[kinds.split(", ")[int(i)]]
            return lambda warp: warp.values[name][int(i)].view(kind)
        if word == "sitofp":
            name = rest.split()[1]
            return lambda warp: warp.value(name, "i32").view(np.int32).astype(np.float32)
        if word == "fpext":
            name = rest.split()[1]
            return lambda warp: warp.values[name].astype(np.float32)
        if word == "call":
            return self.call(rest)
        raise AssertionError(f"unknown instruction: {text}")

    def call(self, text: str) -> Act:
        name, given = re.fullmatch(r"(?:\S+|<.*?>) @(\S+?)\((.*)\)", text).groups()  # type: ignore[union-attr]
        arguments = [tuple(a.split()) for a in given.split(", ") if a]
        if name.endswith("sreg.tid.x"):
            return lambda warp: np.arange(LANES, dtype=np.uint32) + np.uint32(warp.warp * LANES)
        if name.endswith("sreg.ctaid.x"):
            return lambda warp: np.full(LANES, warp.block.number, np.uint32)
        if name == "llvm.nvvm.shfl.sync.bfly.f32":

            def shuffled(warp: GridWarp) -> Any:
                assert warp.active.all(), "lanes pass by an exchange"
                value, distance = (warp.value(n, k) for k, n in arguments[1:3])
                return value[np.arange(LANES) ^ distance]

            return shuffled
        do = _CALLED[name]
        return lambda warp: do(*(warp.value(n, k) for k, n in arguments))

    # Inline PTX.

    def instruction(self, code: str, outputs: int) -> Callable[[GridWarp, Sequence[Any]], Any]:
        return instruction(code, outputs)

    def inline(self, result: str | None, text: str) -> Act:
        code, constraints, given = re.fullmatch(r'call .* asm sideeffect "(.*?)", "(.*?)"\((.*)\) #1', text).groups()  # type: ignore[union-attr]
        outputs = sum(c.startswith("=") for c in constraints.split(","))
        names = [tuple(a.split()) for a in given.split(", ") if a]
        kinds = re.match(r"call \{?(.*?)\}? asm", text)[1].split(", ")  # type: ignore[index]
        do = self.instruction(code, outputs)
        if result is None:
            return lambda warp: do(warp, [warp.value(n, k) for k, n in names])

        def act(warp: GridWarp) -> Any:
            found = do(warp, [warp.value(n, k) for k, n in names])
            waiting = None
            if isinstance(found, tuple):
                found, waiting = found
            words = [f.view(TYPES[k]) for f, k in zip(found, kinds, strict=True)]
            whole = words[0] if outputs == 1 else np.stack([f.view(np.uint32) for f in words])
            if waiting is None:
                warp.keep(result, whole)
                return None
            before, warp.active = warp.active, warp.active & ~waiting
            if warp.active.any():
                warp.keep(result, whole)
            warp.active = before
            return waiting if waiting.any() else None

        return act


def _loads(memory: Memory, at: Any, mask: Any, words: int) -> list[Any]:
    data = np.zeros((LANES, 4 * words), np.uint8)
    if mask.any():
        data[mask] = memory.load(at[mask], 4 * words)
    found = data.view(np.uint32)
    return [np.ascontiguousarray(found[:, i]) for i in range(words)]


def instruction(code: str, outputs: int) -> Callable[[GridWarp, Sequence[Any]], Any]:
    """What an instruction does with its inputs, which are numbered behind its outputs."""
    places = [int(n) - outputs for n in re.findall(r"\$(\d+)", code) if int(n) >= outputs]
    at = lambda given, i=0: given[places[i]]  # noqa: E731
    if code.startswith(("fence.", "createpolicy")):
        return lambda warp, given: [np.zeros(LANES, np.uint64)] if outputs else None
    if code.startswith("bar.sync"):
        return _meet
    if code.startswith("bar.warp.sync"):
        lanes = LANES if code == "bar.warp.sync -1;" else int(code.split()[1].rstrip(";")).bit_length()

        def together(warp: GridWarp, given: Sequence[Any]) -> None:
            assert warp.active[:lanes].all(), "lanes pass by where a warp meets"

        return together
    if "mbarrier.try_wait" in code:

        def wait(warp: GridWarp, given: Sequence[Any]) -> Any:
            address, parity = (int(at(given, i)[warp.active][0]) for i in range(2))
            assert (at(given)[warp.active] == address).all()
            is_over = warp.block.barriers[address].phase % 2 != parity
            return None if is_over else warp.active.copy()

        return wait
    if code.startswith("mbarrier."):
        return lambda warp, given: _barrier(code, warp, [at(given, i) for i in range(len(places))])
    if code.startswith("cp.async.bulk"):

        def copy(warp: GridWarp, given: Sequence[Any]) -> None:
            for lane in np.flatnonzero(warp.active):
                warp.block.copies.append(tuple(int(at(given, i)[lane]) for i in range(4)))  # type: ignore[arg-type]

        return copy
    if "mov.u64 t, %globaltimer; st.global.b64" in code:

        def note(warp: GridWarp, given: Sequence[Any]) -> None:
            # Time is how much this warp has done.
            now = np.full((int(warp.active.sum()), 1), warp.count + 1, np.uint64)
            warp.block.memory.store(at(given)[warp.active], now.view(np.uint8))

        return note
    if "st.relaxed.gpu.global.b64" in code:

        def post(warp: GridWarp, given: Sequence[Any]) -> None:
            words = np.stack([at(given, i).view(np.uint32) for i in range(2)], 1)[warp.active]
            warp.block.memory.store(at(given, 2)[warp.active], np.ascontiguousarray(words).view(np.uint8))

        return post
    if "ld.acquire.cta.shared" in code:

        def shared_hint(warp: GridWarp, given: Sequence[Any]) -> Any:
            (count,) = _loads(warp.block.shared, at(given), warp.active, 1)
            return warp.active & ((count - at(given, 1)).view(np.int32) < 0)

        return shared_hint
    if "ld.relaxed.gpu.global" in code:
        return _poll(code, outputs) if outputs else _hint(code)
    if code.startswith("red.relaxed"):

        def add(warp: GridWarp, given: Sequence[Any]) -> None:
            for lane in np.flatnonzero(warp.active):
                where = at(given)[lane : lane + 1]
                now = warp.block.memory.load(where, 4).view(np.uint32) + np.uint32(1)
                warp.block.memory.store(where, now.view(np.uint8))

        return add
    if code.startswith("mma.sync"):

        def multiply(warp: GridWarp, given: Sequence[Any]) -> Any:
            assert warp.active.all()
            return _mma(code, [given[p] for p in places] if ".s8" in code else given, outputs)

        return multiply
    if code.startswith("redux.sync.max.s32"):

        def largest(warp: GridWarp, given: Sequence[Any]) -> Any:
            assert warp.active.all(), "lanes pass by an exchange"
            return [np.full(LANES, at(given).view(np.int32).max(), np.int32).view(np.uint32)]

        return largest
    if code.startswith("cvt.rni.s32.f32"):

        def rounded(warp: GridWarp, given: Sequence[Any]) -> Any:
            wide = np.nan_to_num(np.rint(at(given).astype(np.float64)), nan=0.0)
            return [np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32).view(np.uint32)]

        return rounded
    return _memory(code, outputs, places)


def _memory(code: str, outputs: int, places: Sequence[int]) -> Callable[[GridWarp, Sequence[Any]], Any]:
    """Plain loads and stores."""
    if "ld.global.b16" in code:

        def half(warp: GridWarp, given: Sequence[Any]) -> Any:
            data = np.zeros((LANES, 4), np.uint8)
            data[warp.active, :2] = warp.block.memory.load(given[places[0]][warp.active], 2)
            return [data.view(np.uint32)[:, 0].copy()]

        return half
    if "st.global.b16" in code:

        def store_half(warp: GridWarp, given: Sequence[Any]) -> None:
            words = np.ascontiguousarray(given[places[0]][warp.active])[:, None].view(np.uint8)[:, :2]
            warp.block.memory.store(given[places[1]][warp.active], words)

        return store_half
    short = re.fullmatch(r"ld\.shared\.u16 \$0, \[\$1\+(\d+)\];", code)
    if short:

        def load_short(warp: GridWarp, given: Sequence[Any]) -> Any:
            data = np.zeros((LANES, 4), np.uint8)
            at = given[places[0]][warp.active] + np.uint32(int(short[1]))
            data[warp.active, :2] = warp.block.shared.load(at, 2)
            return [data.view(np.uint32)[:, 0].copy()]

        return load_short
    found = re.fullmatch(r"(ld|st)(?:\.release\.cta)?\.(shared|global)(?:\.v(\d))?\.b(32|64) .*", code)
    if found:
        is_load, is_shared, words = found[1] == "ld", found[2] == "shared", int(found[3] or 1) * int(found[4]) // 32
        behind = re.search(r"\[\$\d+\+(\d+)\]", code)
        offset = int(behind[1]) if behind else 0

        def move(warp: GridWarp, given: Sequence[Any]) -> Any:
            memory, mask = warp.block.shared if is_shared else warp.block.memory, warp.active
            address = given[places[0]]
            if offset:
                address = address + address.dtype.type(offset)
            if is_load:
                loaded = _loads(memory, address, mask, words)
                if found[4] == "64":
                    return [np.ascontiguousarray(np.stack(loaded, 1)).view(np.uint64)[:, 0]]
                return loaded
            whole = np.stack([given[p].view(np.uint32) for p in places[1:]], 1)[mask]
            memory.store(address[mask], np.ascontiguousarray(whole).view(np.uint8))
            return None

        return move
    limit = re.search(r"setp\.lt\.s32 p, \$(\d+), (\d+);.*@p ld\.shared\.v4\.b32 .*\[\$(\d+)\]", code)
    assert limit, f"unknown PTX: {code}"
    row, bound, address = int(limit[1]) - outputs, int(limit[2]), int(limit[3]) - outputs

    def predicated(warp: GridWarp, given: Sequence[Any]) -> Any:
        mask = warp.active & (given[row].view(np.int32) < bound)
        return _loads(warp.block.shared, given[address], mask, 4)

    return predicated


def _meet(warp: GridWarp, given: Sequence[Any]) -> Any:
    """bar.sync number, threads: its warps wait for each other."""
    assert warp.active.all(), "a barrier that lanes pass by"
    number, threads = (int(g[0]) for g in given)
    meeting = warp.block.meetings.setdefault(number, [0, 0])
    if number in warp.met:
        if meeting[1] > warp.met[number]:
            del warp.met[number]
            return None
        return warp.active.copy()
    meeting[0] += 1
    if meeting[0] * LANES == threads:
        meeting[0], meeting[1] = 0, meeting[1] + 1
        return None
    warp.met[number] = meeting[1]
    return warp.active.copy()


def _barrier(code: str, warp: GridWarp, given: Sequence[Any]) -> None:
    for lane in np.flatnonzero(warp.active):
        address = int(given[0][lane])
        if code.startswith("mbarrier.init"):
            warp.block.barriers[address] = Barrier(int(given[1][lane]))
            continue
        barrier = warp.block.barriers[address]
        if "expect_tx" in code:
            barrier.bytes += int(given[1][lane])
        barrier.pending -= 1
        barrier.settle()


def _poll(code: str, outputs: int) -> Callable[[GridWarp, Sequence[Any]], Any]:
    places = [(int(n) - outputs, int(offset)) for n, offset in re.findall(r"\[\$(\d+)\+(\d+)\]", code)]
    per = 2 if ".v2.b64" in code else 1
    tag = int(re.search(r"setp\.eq\.u32 p, h, \$(\d+)", code)[1]) - outputs  # type: ignore[index]
    assert len(places) * per == outputs

    def poll(warp: GridWarp, given: Sequence[Any]) -> Any:
        words = []
        for address, offset in places:
            words += _loads(warp.block.memory, given[address] + np.uint64(offset), warp.active, 2 * per)
        wanted = given[tag]
        has_all = np.ones(LANES, bool)
        for found in words[1::2]:
            newer = (found - wanted).view(np.int32)
            assert (newer[warp.active] <= 0).all(), "a version was written over before it was read"
            has_all &= found == wanted
        return words[0::2], warp.active & ~has_all

    return poll


def _hint(code: str) -> Callable[[GridWarp, Sequence[Any]], Any]:
    def hint(warp: GridWarp, given: Sequence[Any]) -> Any:
        (count,) = _loads(warp.block.memory, given[0], warp.active, 1)
        late = (count - given[1]).view(np.int32) < 0
        return warp.active & late

    return hint


def run_grid(
    text: str | Program, arguments: Sequence[int], memory: Any, blocks: int, threads: int, shared: int, seed: int = 0
) -> int:
    """Run all blocks to their end; how many instructions warps went through."""
    program = Program(text) if isinstance(text, str) else text
    with np.errstate(all="ignore"):
        return _run_grid(program, arguments, memory, blocks, threads, shared, seed)


def _run_grid(
    program: Program, arguments: Sequence[int], memory: Any, blocks: int, threads: int, shared: int, seed: int
) -> int:
    rng = random.Random(seed)
    outside = memory if isinstance(memory, Memory) else Memory(memory, GLOBAL)
    given = {f"%{name}": value for name, value in zip(program.params, arguments, strict=True)}
    grid = [GridBlock(number, threads, shared, outside, rng) for number in range(blocks)]
    warps = [GridWarp(program, block, w, given) for block in grid for w in range(threads // LANES)]
    running = [(warp, warp.run()) for warp in warps]
    idle = 0
    while running:
        for block in grid:
            if block.copies and rng.random() < 0.5:
                block.land()
                idle = 0
        number = rng.randrange(len(running))
        steps = running[number][1]
        try:
            idle = 0 if next(steps) else idle + 1
        except StopIteration:
            running.pop(number)
            idle = 0
        if idle > 60 * len(running) + 200 and not any(block.copies for block in grid):
            where = {f"block {w.block.number} warp {w.warp}: {program.lines[w.here][:150]}" for w, _ in running}
            raise AssertionError("nobody can go on:\n" + "\n".join(sorted(where)))
    assert not any(block.copies for block in grid), "copies that nobody awaits"
    assert all(warp.groups == [[]] for warp in warps), "copies that a warp does not await"
    return sum(warp.count for warp in warps)
