"""Runs the LLVM text of kernels for tensor cores (`rlx.backends.cuda.hopper.writer`) without a GPU, warp by warp.

    found = run_block(text, arguments, memory, block=0, threads=256)

All lanes of a warp go in step; where they part, those at the earliest block of code go first. Asynchronous copies
arrive when they are awaited and not before; shared memory begins as noise, and there is nothing outside of the given
global memory. Calls of `@finish` are noted with their arguments: `found[row, column]` are the sums of a place. Inline
PTX is known by its text: another instruction is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

LANES = 32
GLOBAL = 1 << 20  # where the given memory begins
TYPES = {"i1": np.bool_, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64, "float": np.float32, "half": np.float16}
_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "udiv": np.floor_divide,
    "urem": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "lshr": np.right_shift,
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
}


class Memory:
    """Bytes from an address on; reading or writing outside is an error."""

    def __init__(self, data: Any, start: int) -> None:
        self.data, self.start = data, start

    def places(self, at: Any, size: int) -> Any:
        offset = at.astype(np.int64) - self.start
        assert (offset >= 0).all() and (offset + size <= len(self.data)).all(), f"outside of memory: {offset}"
        assert (offset % min(size, 16) == 0).all(), "an address that is no multiple of its size"
        return offset[:, None] + np.arange(size)

    def load(self, at: Any, size: int) -> Any:
        return self.data[self.places(at, size)]

    def store(self, at: Any, values: Any) -> None:
        self.data[self.places(at, values.shape[1])] = values


def run_block(
    text: str, arguments: Sequence[int], memory: Any, block: int = 0, threads: int = 256, shared: int = 1 << 18
) -> dict[tuple[int, int], list[float]]:
    """The sums that a block gives to its epilogue, by row and column."""
    body = text.split("define ptx_kernel void @", 1)[1]
    signature, rest = body.split("{\n", 1)
    names = re.findall(r"%(\w+)", signature)
    lines = rest.split("\n}\n", 1)[0].splitlines()
    noise = np.random.default_rng(0).integers(0, 256, shared, np.uint8)
    found: dict[tuple[int, int], list[float]] = {}
    at_shared, at_global = Memory(noise, 0), Memory(memory, GLOBAL)
    given = {f"%{name}": value for name, value in zip(names, arguments)}
    warps = [_Warp(lines, given, at_shared, at_global, (w, block), found).run() for w in range(threads // LANES)]
    while warps:
        # Every warp up to the next barrier of the block.
        states = [next(warp, None) for warp in warps]
        assert len(set(states)) == 1, "not all warps reach a barrier"
        if states[0] is None:
            break
    return found


class _Warp:
    def __init__(
        self,
        lines: Sequence[str],
        given: Mapping[str, int],
        shared: Memory,
        memory: Memory,
        place: tuple[int, int],
        found: dict[tuple[int, int], list[float]],
    ) -> None:
        self.lines, self.shared, self.memory, self.found = lines, shared, memory, found
        self.labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"L\d+:", line)}
        self.values: dict[str, Any] = {name: np.full(LANES, value, np.uint64) for name, value in given.items()}
        self.slots: dict[str, Any] = {}
        self.warp, self.block = place
        self.groups: list[list[tuple[Any, Any]]] = []
        self.open: list[tuple[Any, Any]] = []

    def run(self) -> Iterator[str]:
        at = np.zeros(LANES, np.int64)
        while True:
            line_number = int(at.min())
            if line_number >= len(self.lines) or self.lines[line_number] == "ret void":
                assert not self.groups and not self.open, "copies that nobody awaits"
                return
            self.active = at == line_number
            line = self.lines[line_number]
            at[self.active] += 1
            if line.startswith("br "):
                at[self.active] = self.branch(line)[self.active]
            elif '"bar.sync' in line:
                assert self.active.all(), "a barrier that lanes pass by"
                yield "barrier"
            elif not line.endswith(":"):
                self.step(line)

    def branch(self, line: str) -> Any:
        plain = re.fullmatch(r"br label %(L\d+)", line)
        if plain:
            return np.full(LANES, self.labels[plain[1]])
        condition, yes, no = re.fullmatch(r"br i1 (\S+), label %(L\d+), label %(L\d+)", line).groups()  # type: ignore[union-attr]
        return np.where(self.value(condition, "i1"), self.labels[yes], self.labels[no])

    def value(self, name: str, kind: str) -> Any:
        if name.startswith("%"):
            found = self.values[name]
            return found.astype(TYPES[kind]) if found.dtype == np.uint64 and kind == "i32" else found
        if kind == "float":
            return np.full(LANES, np.array(int(name, 16), np.uint64).view(np.float64).astype(np.float32))
        return np.full(LANES, int(name) % (1 << 64 if kind == "i64" else 1 << 32), TYPES[kind])

    def keep(self, name: str, value: Any) -> None:
        old = self.values.get(name)
        self.values[name] = value if old is None else np.where(_like(self.active, value), value, old)

    def step(self, line: str) -> None:
        stored = re.fullmatch(r"store (\S+) (\S+), ptr (\S+)", line)
        if stored:
            kind, name, slot = stored.groups()
            self.slots[slot] = np.where(self.active, self.value(name, kind), self.slots[slot])
            return
        if line.startswith("call void @finish("):
            self.finish(line)
            return
        if line.startswith("call void @llvm.assume"):
            return
        result, text = re.fullmatch(r"(?:(\S+) = )?(.*)", line).groups()  # type: ignore[union-attr]
        if "asm sideeffect" in text:
            self.inline(result, text)
        else:
            with np.errstate(all="ignore"):
                self.keep(result, self.computed(result, text))

    def computed(self, result: str, text: str) -> Any:
        word, _, rest = text.partition(" ")
        if word in _BINARY:
            kind, a, b = re.fullmatch(r"(?:contract )?(\S+) (\S+), (\S+)", rest).groups()  # type: ignore[union-attr]
            return _BINARY[word](self.value(a, kind), self.value(b, kind))
        if word == "icmp":
            how, kind, a, b = re.fullmatch(r"(\S+) (\S+) (\S+), (\S+)", rest).groups()  # type: ignore[union-attr]
            left, right = (self.value(x, kind).view(np.int32 if kind == "i32" else np.int64) for x in (a, b))
            return {"slt": left < right, "sgt": left > right, "eq": left == right}[how]
        if word == "select":
            c, kind, a, _, b = re.fullmatch(r"i1 (\S+), (\S+) (\S+), (\S+) (\S+)", rest).groups()  # type: ignore[union-attr]
            return np.where(self.value(c, "i1"), self.value(a, kind), self.value(b, kind))
        if word == "zext":
            return self.value(rest.split()[1], "i32").astype(np.uint64)
        if word == "alloca":
            self.slots[result] = np.zeros(LANES, TYPES[rest])
            return self.slots[result]
        if word == "load":
            return self.slots[rest.split("ptr ")[1]].copy()
        if word == "ptrtoint":
            return np.zeros(LANES, np.uint32)
        if word == "bitcast":
            source, name, target = re.fullmatch(r"(\S+|<.*>) (\S+) to (.*)", rest).groups()  # type: ignore[union-attr]
            found = self.value(name, source)
            return found.view(np.float16).reshape(LANES, 2) if target == "<2 x half>" else found.view(TYPES[target])
        if word == "extractelement":
            name, i = re.fullmatch(r"<2 x half> (\S+), i32 (\d)", rest).groups()  # type: ignore[union-attr]
            return self.values[name][:, int(i)]
        if word == "extractvalue":
            kinds, name, i = re.fullmatch(r"\{(.*)\} (\S+), (\d+)", rest).groups()  # type: ignore[union-attr]
            return self.values[name][int(i)].view(TYPES[kinds.split(", ")[int(i)]])
        if word == "fpext":
            return self.value(rest.split()[1], "half").astype(np.float32)
        if word == "call":
            return self.called(rest)
        raise AssertionError(f"unknown instruction: {text}")

    def called(self, text: str) -> Any:
        name, given = re.fullmatch(r"\S+ @(\S+?)\((.*)\)", text).groups()  # type: ignore[union-attr]
        arguments = [self.value(a.split()[1], a.split()[0]) for a in given.split(", ") if a]
        if name.endswith("tid.x") and "ctaid" not in name:
            return np.arange(LANES, dtype=np.uint32) + np.uint32(self.warp * LANES)
        if name.endswith("ctaid.x"):
            return np.full(LANES, self.block, np.uint32)
        if name in ("llvm.smin.i32", "llvm.smax.i32"):
            pick = np.minimum if "smin" in name else np.maximum
            return pick(*(a.view(np.int32) for a in arguments)).view(np.uint32)
        if name == "llvm.fabs.f32":
            return np.abs(arguments[0])
        if name == "llvm.maximum.f32":
            return np.maximum(*arguments)
        if name.startswith("llvm.nvvm.shfl.sync"):
            assert self.active.all(), "lanes pass by an exchange"
            lane = np.arange(LANES)
            return arguments[1][lane ^ arguments[2] if "bfly" in name else arguments[2]]
        if name == "llvm.nvvm.prmt":
            return _permuted(*arguments)
        raise AssertionError(f"unknown function: {name}")

    def finish(self, line: str) -> None:
        given = re.fullmatch(r"call void @finish\((.*)\)", line)[1].split(", ")  # type: ignore[index]
        row, column, *sums = [a.split()[-1] for a in given if not a.startswith("ptr")][-4:]
        if not sums[-1].startswith("%"):
            raise AssertionError(line)
        for lane in np.flatnonzero(self.active):
            place = int(self.values[row][lane]), int(self.values[column][lane])
            assert place not in self.found, "a place is finished twice"
            self.found[place] = [float(self.values[s][lane]) for s in sums]

    # Inline PTX.

    def inline(self, result: str | None, text: str) -> None:
        code, constraints, given = re.fullmatch(r'call .* asm sideeffect "(.*?)", "(.*?)"\((.*)\) #1', text).groups()  # type: ignore[union-attr]
        outputs = sum(c.startswith("=") for c in constraints.split(","))
        arguments = [self.value(a.split()[1], a.split()[0]) for a in given.split(", ") if a]
        operand: Callable[[int], Any] = lambda number: arguments[number - outputs]  # noqa: E731
        found = self.instruction(code, operand, outputs, arguments)
        if result is not None:
            assert found is not None, code
            kinds = re.match(r"call \{?(.*?)\}? asm", text)[1].split(", ")  # type: ignore[index]
            # Several results are kept as words, and looked at as what they are when they are taken out.
            typed = [f.view(TYPES[k]) for f, k in zip(found, kinds)]
            self.keep(result, typed[0] if outputs == 1 else np.stack([f.view(np.uint32) for f in typed]))

    def instruction(
        self, code: str, operand: Callable[[int], Any], outputs: int, arguments: Sequence[Any]
    ) -> Sequence[Any] | None:
        numbers = [int(n) for n in re.findall(r"\$(\d+)", code)]
        inputs = [operand(n) for n in numbers if n >= outputs]
        if code.startswith(("griddepcontrol", "prefetch")):
            return None
        if code == "bar.warp.sync -1;":
            assert self.active.all(), "lanes pass by where a warp meets"
            return None
        if code.startswith("cp.async"):
            self.copies(code, inputs)
            return None
        # Numbers behind addresses.
        offset = np.uint64(next(iter(re.findall(r"\[\$\d+\+(\d+)\]", code)), 0))
        if "ld.shared" in code:
            return self.loaded(self.shared, inputs[0] + offset, code, outputs, self.active)
        if code.startswith("ldmatrix"):
            assert self.active.all()
            return self.matrices(inputs[0] + offset, ".trans" in code)
        if "ld.global" in code:
            mask = self.active
            limit = re.search(r"setp\.lt\.s32 p, \$\d+, (\d+|\$\d+);", code)
            if limit:
                bound = operand(int(limit[1][1:])) if limit[1][0] == "$" else np.uint32(limit[1])
                mask = mask & (operand(int(re.search(r"p, \$(\d+)", code)[1])) < bound)  # type: ignore[index]
                address = operand(int(re.search(r"\[\$(\d+)", code)[1]))  # type: ignore[index]
                return self.loaded(self.memory, address + offset, code, outputs, mask)
            return self.loaded(self.memory, inputs[0] + offset, code, outputs, mask)
        if code.startswith("{ .reg .b16 x, y; mov.b32 {x, y}"):
            at, word = operand(int(re.search(r"\[\$(\d+)", code)[1])), inputs[0]  # type: ignore[index]
            for number, place in enumerate(re.findall(r"\+(\d+)\]", code)):
                half = word[self.active, None].view(np.uint8)[:, 2 * number : 2 * number + 2]
                self.shared.store(at[self.active] + np.uint32(place), half)
            return None
        if code.startswith("st.shared"):
            at, *values = inputs
            whole = np.stack([v.view(np.uint32) for v in values], axis=1)
            self.shared.store(at[self.active] + offset, np.ascontiguousarray(whole[self.active]).view(np.uint8))
            return None
        if code.startswith("redux.sync.max.s32"):
            assert self.active.all()
            return [np.full(LANES, inputs[0].view(np.int32).max()).astype(np.int32).view(np.uint32)]
        if code.startswith("cvt.rni.s32.f32"):
            wide = np.nan_to_num(np.rint(inputs[0].astype(np.float64)), nan=0.0)
            return [np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32).view(np.uint32)]
        if code.startswith("mma.sync.aligned.m16n8k"):
            assert self.active.all()
            return _mma(code, inputs if ".s8" in code else arguments, outputs)
        raise AssertionError(f"unknown PTX: {code}")

    def loaded(self, memory: Memory, at: Any, code: str, outputs: int, mask: Any) -> list[Any]:
        data = np.zeros((LANES, 4 * outputs), np.uint8)
        data[mask] = memory.load(at[mask], 4 * outputs)
        words = data.view(np.uint32)
        return [np.ascontiguousarray(words[:, i]) for i in range(outputs)]

    def matrices(self, at: Any, is_turned: bool) -> list[Any]:
        return turned_out(self.shared.load(at, 16), is_turned)

    def copies(self, code: str, inputs: Sequence[Any]) -> None:
        if "commit_group" in code:
            self.groups.append(self.open)
            self.open = []
        elif "wait_group" in code:
            kept = int(code.split("wait_group ")[1].rstrip(";"))
            while len(self.groups) > kept:
                self.arrive(self.groups.pop(0))
        elif "wait_all" in code:
            for group in (*self.groups, self.open):
                self.arrive(group)
            self.groups, self.open = [], []
        else:
            offset = np.uint64(next(iter(re.findall(r"\[\$\d+\+(\d+)\]", code)), 0))
            to, source, *count = inputs
            to, source = to + offset, source + offset
            assert "16" in code
            sizes = count[0] if count else np.full(LANES, 16)
            whole = np.zeros((LANES, 16), np.uint8)
            for lane in np.flatnonzero(self.active & (sizes > 0)):
                size = int(sizes[lane])
                whole[lane, :size] = self.memory.load(source[lane : lane + 1], 16)[0, :size]
            self.open.append((to[self.active], whole[self.active]))

    def arrive(self, group: Sequence[tuple[Any, Any]]) -> None:
        for to, data in group:
            self.shared.store(to, data)


def turned_out(lines: Any, is_turned: bool) -> list[Any]:
    """Four of 8 x 8 halves: lanes 8i .. 8i + 7 have read rows of matrix i; lane 4g + t gets two of row g."""
    rows = lines.view(np.uint16).reshape(4, 8, 8)
    if is_turned:
        rows = rows.transpose(0, 2, 1)
    return [np.ascontiguousarray(matrix).view(np.uint32).reshape(LANES) for matrix in rows]


def _like(mask: Any, value: Any) -> Any:
    """A mask of lanes for values with other axes: lanes are the last, or the first of two halves."""
    if value.ndim == 1:
        return mask
    return mask[None, :] if value.shape[-1] == LANES else mask[:, None]


def _permuted(a: Any, b: Any, selector: Any) -> Any:
    both = np.concatenate([a[:, None].view(np.uint8), b[:, None].view(np.uint8)], axis=1)
    picks = np.stack([(selector >> np.uint32(4 * i)) & np.uint32(15) for i in range(4)], axis=1)
    assert (picks < 8).all(), "prmt that copies signs"
    return np.take_along_axis(both, picks.astype(np.int64), axis=1).view(np.uint32)[:, 0]


def _mma(code: str, inputs: Sequence[Any], outputs: int) -> list[Any]:
    """m16n8k16 and m16n8k32: lane 4g + t has rows g and g + 8 of A and columns 2t and 2t + 1 of the sums."""
    depth = int(re.match(r"mma\.sync\.aligned\.m16n8k(\d+)", code)[1])  # type: ignore[index]
    is_bytes = ".s8" in code
    per_word = 4 if is_bytes else 2
    count = depth // (4 * per_word)
    if is_bytes:
        a, b, totals = inputs[: 2 * count], inputs[2 * count : 3 * count], inputs[3 * count :]
        kind: Callable[[Any], Any] = lambda word: word[:, None].view(np.int8).astype(np.int64)  # noqa: E731
    else:
        totals, a, b = inputs[:4], inputs[4 : 4 + 2 * count], inputs[4 + 2 * count :]
        is_half = ".f16" in code.replace(".f32", "")

        def kind(word: Any) -> Any:
            halves = word[:, None].view(np.uint16)
            if is_half:
                return halves.view(np.float16).astype(np.float64)
            return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)

    lane = np.arange(LANES)
    g, t = lane >> 2, lane & 3
    left, right = np.zeros((16, depth)), np.zeros((depth, 8))
    for half in range(count):
        k = (half * 4 + t)[:, None] * per_word + np.arange(per_word)
        for high in range(2):
            left[(g + 8 * high)[:, None], k] = kind(a[2 * half + high])
        right[k, g[:, None]] = kind(b[half])
    product = left @ right
    found = []
    for i in range(outputs):
        added = product[g + 8 * (i // 2), 2 * t + i % 2]
        if is_bytes:
            found.append((totals[i].view(np.int32).astype(np.int64) + added.astype(np.int64)).astype(np.uint32))
        else:
            found.append((totals[i].astype(np.float64) + added).astype(np.float32))
    return found
