"""Programs that were compiled before, by this process or another: found by what they were compiled from.

An entry is what `program_json` writes, kept beside the object code that it names, and as private, as checked and as
disposable as that (`rlx.backends.native.object_cache`). Its key is a hash of the program's text, of everything that
decides how it is compiled, and of the compiler's own sources, so that no other compiler's result is ever found.
"""

from __future__ import annotations

import hashlib
import itertools
from functools import cache

from rlx.backends.compile_options import CompileOptions
from rlx.backends.native.code_cache import loader
from rlx.backends.native.kept_stamps import kept_stamp
from rlx.backends.native.kernels import codegen_stamp
from rlx.backends.native.object_cache import DiskCache
from rlx.backends.program.program import Programs
from rlx.backends.program.program_json import MAX_CONSTANTS, programs_from_json, programs_to_json
from rlx.errors import BackendError, FormatError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant
from rlx.ir.text.printed import text_of
from rlx.kernels.machines import host
from rlx.kernels.tuning import is_trying, tuned_stamp
from rlx.knobs import knobs
from rlx.ops.control.custom import Custom

# Smaller programs compile fast, and there are many of them: entries would fill the disk and save little. The first
# few of a process are kept all the same: with them on disk the next process starts without loading the compiler.
SMALL = 100
KEPT_SMALL = 32
_small_programs = itertools.count()
# Knobs that do not change programs.
_IRRELEVANT = ("threads", "cache_dir", "trace_perfetto")


def program_key(graph: Graph, options: CompileOptions) -> str | None:
    """What the programs of a graph are kept under; None if they are to be compiled at any rate."""
    if options.verbose or _is_watched() or not _is_known(graph) or not _is_worth_keeping(graph):
        return None
    settings = {name: value for name, value in knobs.values().items() if name not in _IRRELEVANT}
    made_by = (str(settings), repr(host()), tuned_stamp(), compiler_stamp())
    parts = (text_of(graph), *map(str, graph.constraints), options.key(), *made_by)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find_programs(key: str) -> Programs | None:
    """The programs under a key, if they and all their code are there."""
    entries = _entries()
    text = entries.get(key) if entries is not None else None
    if text is None:
        return None
    try:
        return programs_from_json(text, loader())
    except FormatError:
        # Whole, as its checksum says, and yet not ours: it is compiled anew and written over.
        return None


def keep_programs(key: str, programs: Programs) -> None:
    """Write programs for the next process, if they can be written."""
    entries = _entries()
    text = programs_to_json(programs) if entries is not None else None
    if entries is not None and text is not None:
        entries.put(key, text.encode())


@cache
def compiler_stamp() -> str:
    """A hash of all of rlx's sources and of LLVM's version."""
    return hashlib.sha256(f"{kept_stamp('.')} {codegen_stamp()}".encode()).hexdigest()


@cache
def _entries() -> DiskCache | None:
    try:
        return DiskCache(folder="programs")
    except (OSError, BackendError):
        return None


def _is_worth_keeping(graph: Graph) -> bool:
    # A trace of a small program shows how it was compiled.
    return len(graph.nodes) >= SMALL or (not knobs.trace_perfetto and next(_small_programs) < KEPT_SMALL)


def _is_watched() -> bool:
    """Whether somebody wants to see the compile happen, or to change it."""
    if is_trying():
        return True
    shown = knobs.debug or knobs.verbose or knobs.dispatch_report or knobs.fusion_report
    return bool(shown or knobs.dump or knobs.override or knobs.ir_dump or knobs.verify > 1)


def _is_known(graph: Graph) -> bool:
    """Whether the text of a graph says all about it: no op has a meaning that users have given it, or a body."""
    for node in graph.nodes:
        op = node.op
        if op.effect or op.bodies or isinstance(op, Custom) or not type(op).__module__.startswith("rlx."):
            return False
    return sum(n.op.value.array.nbytes for n in graph.nodes if isinstance(n.op, Constant)) <= MAX_CONSTANTS
