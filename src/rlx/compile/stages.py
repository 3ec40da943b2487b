"""Every step of a compile as a file: written to `RLX_DUMP`, and read back from `RLX_OVERRIDE` when it was edited.

A program called `mlp` gives `mlp-3fa4c2d1.cpu.00-program.mir`, then one file for each step that changed something
(`.04-simplify.mir`, `.prepare.12-kernel_forms.mir` for what is made of weights, up to `.plan_buffers.lir`), numbered as
in `rlx.compile.pipeline`. The other number belongs to the program that was handed in, so that other programs of the
same name do not collide. An edited file replaces what the compiler has computed at that point, and everything after it
follows from the file; a file for a step that changed nothing can be put there, too. The first line of a dump holds
a digest of the rest, by which files that are still as they were written are known and left alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.lir import LirModule
from rlx.ir.text.graph_text import large_constants, parse
from rlx.ir.text.lir_text import parse_lir
from rlx.ir.verify import check
from rlx.knobs import knobs

Program = Graph | LirModule


class Stages:
    """The texts of one compile; `program` is what was handed in, `target` what it is compiled for."""

    def __init__(self, program: Graph | LirModule, target: str = "") -> None:
        self.dump, self.override = knobs.dump, knobs.override
        self.is_watched = bool(self.dump or self.override)
        self.stem = _stem(program) if self.is_watched else ""
        self.target = f".{target}" if target else ""

    def passed(self, name: str, program: Program, is_new: bool) -> Program | None:
        """Write out what a step has made, if it is new; what a file has in its place, if there is one."""
        file = f"{self.stem}{self.target}.{name}.{_level(program)}"
        if self.override and (Path(self.override) / file).exists():
            return _replaced(program, Path(self.override) / file)
        if self.dump and is_new:
            text = str(program)
            Path(self.dump).mkdir(parents=True, exist_ok=True)
            (Path(self.dump) / file).write_text(f"{_MARK}{_digest(text)}\n{text}", encoding="utf-8")
        return None


def _level(program: Program) -> str:
    return "lir" if isinstance(program, LirModule) else program.level


_MARK = "# as compiled: "


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _stem(program: Graph | LirModule) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', program.name)}-{str(program.fingerprint())[:8]}"


def _replaced(program: Program, file: Path) -> Program | None:
    """The program in `file`, None if it is as it was written; constants that the text names only by digest are those of
    the computed program."""
    text = file.read_text(encoding="utf-8")
    mark, _, rest = text.partition("\n")
    if mark == f"{_MARK}{_digest(rest)}":
        return None
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
    result: Program = edited
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
