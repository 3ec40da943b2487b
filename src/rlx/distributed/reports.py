"""What a divided program moves between devices and needs on each of them, before it runs.

    print(rlx.distributed.report(step, state, batch))

    mesh data=4,tensor=2; on each device 1.3 MB: arguments 0.9 MB, results 0.9 MB (of which 0.9 MB in place), ...
    all-reduce      26 x, results 1.1 MB, moved 1.9 MB

Read from the program that XLA has made. `moved` is what one device sends in a ring; an exchange in a loop is counted
once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlx import tree
from rlx.backends.api import CompileOptions, Executable
from rlx.backends.xla.adapter import ProgramMemory
from rlx.backends.xla.executable import XlaExecutable
from rlx.errors import ShardingError
from rlx.runtime.compile_cache import compiled_program
from rlx.sharding import NamedSharding

__all__ = ["CollectiveUse", "ProgramReport", "collectives_of", "report", "report_of"]

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_LINE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\((.*)")
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|c64|c128)\[([\d,]*)\]")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_BYTES = {"pred": 1, "bf16": 2, "c64": 8, "c128": 16}


class CollectiveUse(NamedTuple):
    """All exchanges of one kind: how many, the bytes of their results, and what one device sends."""

    kind: str
    times: int
    result_bytes: int
    moved_bytes: int


class ProgramReport(NamedTuple):
    """What a program needs; numbers are bytes on one device."""

    mesh: str
    memory: ProgramMemory
    collectives: tuple[CollectiveUse, ...]
    # Arithmetic of one device as XLA counts it.
    flops: float = 0.0

    @property
    def moved_bytes(self) -> int:
        return sum(use.moved_bytes for use in self.collectives)

    def __str__(self) -> str:
        m = self.memory
        lines = [
            f"mesh {self.mesh}; on each device {_size(m.total)}: arguments {_size(m.arguments)}, results "
            f"{_size(m.results)} (of which {_size(m.shared)} in place), values in between {_size(m.temporary)}"
        ]
        for use in self.collectives:
            lines.append(
                f"{use.kind:<19}{use.times:>4} x, results {_size(use.result_bytes)}, moved {_size(use.moved_bytes)}"
            )
        return "\n".join(lines if self.collectives else [*lines, "nothing moves between devices"])


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count} B"


def report(fn: Any, *args: Any) -> ProgramReport:
    """What a jitted function, or a step of `rlx.train.make_step`, does with such arguments; nothing runs."""
    lower = getattr(fn, "lower", None)
    if lower is None:
        raise ShardingError(f"report: a function of rlx.jit or rlx.train.make_step is needed, got {fn!r}")
    graph = lower(*args).graph
    executable = compiled_program(graph, "xla", CompileOptions(verify=False))
    return report_of(executable, [(tuple(x.shape), getattr(x, "sharding", None)) for x in tree.leaves(args)])


def report_of(
    executable: Executable, arguments: Sequence[tuple[tuple[int, ...], NamedSharding | None]]
) -> ProgramReport:
    """What a compiled program does with arguments of such sizes and shardings."""
    if not isinstance(executable, XlaExecutable):
        raise ShardingError("report: only programs of xla are divided over devices")
    made = executable.divided_program(arguments)
    if made is None:
        raise ShardingError("report: neither the arguments nor the program are divided over devices; see device_put")
    text = made.program.optimized_text()
    moved = collectives_of(text, made.placement.mesh.size)
    return ProgramReport(str(made.placement.mesh), made.program.memory, moved, made.program.flops)


def collectives_of(hlo: str, devices: int) -> tuple[CollectiveUse, ...]:
    """The exchanges in the text of an HLO program for so many devices."""
    found: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    for line in hlo.splitlines():
        match = _LINE.search(line)
        if match:
            results, kind, started, rest = match.groups()
            arrays = _ARRAY.findall(results)
            # Half of what a started exchange gives are its operands.
            size = sum(map(_array_bytes, arrays[len(arrays) // 2 :] if started and kind != "all-reduce" else arrays))
            found[kind].append((size, _moved(kind, size, _group_size(rest, devices))))
    uses = ((kind, list(zip(*each))) for kind, each in found.items() if each)
    return tuple(CollectiveUse(kind, len(sizes), sum(sizes), sum(moved)) for kind, (sizes, moved) in uses)


def _array_bytes(array: tuple[str, str]) -> int:
    kind, dims = array
    width = _BYTES.get(kind) or int(kind[1:]) // 8
    return width * math.prod(int(d) for d in dims.split(",") if d)


def _group_size(text: str, devices: int) -> int:
    iota, listed = _IOTA_GROUPS.search(text), _LISTED_GROUPS.search(text)
    if iota:
        return int(iota[2])
    return len(listed[1].split(",")) if listed and listed[1] else devices


def _moved(kind: str, result: int, n: int) -> int:
    """What one device of n sends, where each passes parts to the next in a ring."""
    match kind:
        case "all-reduce":
            return 2 * result * (n - 1) // n
        case "reduce-scatter":
            return result * (n - 1)
        case "collective-permute":
            return result
    return result * (n - 1) // n
