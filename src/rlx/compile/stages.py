"""Every stage of a compile as a file: written to `RLX_DUMP`, and read back from `RLX_OVERRIDE` when it was edited.

A program called `mlp` gives `mlp-3fa4c2d1.hir`, `.mir`, `.optimized.mir`, `.prepare.lir` and `.lir`; the number belongs
to the program that was handed in, so that other programs of the same name do not collide. An edited file replaces what
the compiler has computed at that point, and everything after it follows from the file. The first line of a dump holds a
digest of the rest, by which files that are still as they were written are known and left alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.lir import LirModule
from rlx.ir.text.graph_text import large_constants, parse
from rlx.ir.text.lir_text import parse_lir
from rlx.ir.verify import check
from rlx.knobs import knobs

P = TypeVar("P", Graph, LirModule)


class StageRecord(NamedTuple):
    """How long one stage of a compile took."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:32} {1e3 * self.seconds:8.2f} ms"


class Stages:
    """The stages of one compile, timed; `program` is what was handed in, `target` what it is compiled for."""

    def __init__(self, program: Graph | LirModule, target: str = "") -> None:
        self.records: list[StageRecord] = []
        self.dump, self.override = knobs.dump, knobs.override
        self.stem = _stem(program) if self.dump or self.override else ""
        self.target = f".{target}" if target else ""

    def run(self, name: str, compute: Callable[..., P], *args: Any) -> P:
        """The result of `compute(*args)`, or what a file in the override directory has in its place."""
        start = time.perf_counter()
        result = self.passed(name, compute(*args))
        self.records.append(StageRecord(name, time.perf_counter() - start))
        return result

    def passed(self, name: str, program: P) -> P:
        """Write a stage out, or replace it."""
        file = f"{self.stem}{self.target}.{name}"
        if self.override and (Path(self.override) / file).exists():
            return _replaced(program, Path(self.override) / file)
        if self.dump:
            text = str(program)
            Path(self.dump).mkdir(parents=True, exist_ok=True)
            (Path(self.dump) / file).write_text(f"{_MARK}{_digest(text)}\n{text}", encoding="utf-8")
        return program


_MARK = "# as compiled: "


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _stem(program: Graph | LirModule) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', program.name)}-{str(program.fingerprint())[:8]}"


def _replaced(program: P, file: Path) -> P:
    """The program in `file`; constants that the text names only by digest are those of the computed program."""
    text = file.read_text(encoding="utf-8")
    mark, _, rest = text.partition("\n")
    if mark == f"{_MARK}{_digest(rest)}":
        return program
    is_lir = isinstance(program, LirModule)
    constants = large_constants(_graph(program))
    try:
        edited: Any = parse_lir(text, constants) if is_lir else parse(text, constants, allow_lowered=True)
        if type(edited) is not type(program):
            raise RlxError(f"it holds a {type(edited).__name__}, a {type(program).__name__} is needed")
        check(_graph(edited), file.name)
        _check_interface(_graph(program), _graph(edited))
    except RlxError as error:
        raise RlxError(f"{file} cannot replace a stage of @{program.name}: {error}") from error
    print(f"rlx: {file} replaces what was compiled", file=sys.stderr)
    result: P = edited
    return result


def _graph(program: Graph | LirModule) -> Graph:
    return program.as_graph() if isinstance(program, LirModule) else program


def _check_interface(program: Graph, edited: Graph) -> None:
    """What callers see must stay: leaves with their types, and the types of the outputs."""

    def interface(graph: Graph) -> tuple[object, ...]:
        leaves = sorted((n.op.mnemonic, str(n.name), str(n.shape)) for n in graph.nodes if n.is_leaf)
        return leaves, [str(graph.shape(o)) for o in graph.outputs]

    if interface(edited) != interface(program):
        raise RlxError(f"its inputs, params or outputs differ: {interface(edited)} instead of {interface(program)}")
