"""Text cases: programs with the passes to run on them and what must come out.

    # RUN: fuse_matmul_bias_act, dead_code_elimination
    mir @linear(%x: f32[2,3], ...) {
      ...
    }
    # CHECK
    mir @linear(...) {
      ...
    }
    # MISS matmul_bias_act at %1: multi_consumer: ...

A file holds any number of cases. A pass is called by its name, with options as Python literals where it has some:
`fuse_attention_block(threshold=6)`. MISS lines are what fusion passes say about the program that came out. After a
change, `python tools/refresh_text_cases.py` writes what comes out now; look at the difference before keeping it.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from typing import NamedTuple

import rlx.compile
from rlx.compile.claims.fusion.rule_pass import FusionPass
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass, run_passes
from rlx.ir.text.graph_text import parse, show, value_names

FOLDER = Path(__file__).parent / "text"


class Case(NamedTuple):
    """One program, the passes as they are written, and the expected text."""

    passes: str
    program: str
    expected: str

    def text(self, expected: str) -> str:
        """The case as it stands in a file."""
        return f"# RUN: {self.passes}\n{self.program}# CHECK\n{expected}"


def read_cases(path: Path) -> tuple[str, list[Case]]:
    """What stands before the first case, and the cases."""
    head, *rest = re.split(r"^# RUN: ", path.read_text(), flags=re.MULTILINE)
    cases = []
    for text in rest:
        passes, _, body = text.partition("\n")
        program, found, expected = body.partition("# CHECK\n")
        assert found, f"{path.name}: the case '# RUN: {passes}' has no '# CHECK' line"
        cases.append(Case(passes, program, expected))
    return head, cases


def refreshed(path: Path) -> str:
    """The text of a file with what comes out now."""
    head, cases = read_cases(path)
    return head + "\n".join(case.text(run_case(case)) for case in cases)


def run_case(case: Case) -> str:
    """What comes out: the program, and what the fusion passes among its passes miss in it."""
    passes = parse_passes(case.passes)
    after = run_passes(parse(case.program), passes)
    return show(after) + "".join(f"# MISS {line}\n" for p in passes for line in missed_lines(p, after))


def missed_lines(step: Pass, graph: Graph) -> list[str]:
    if not isinstance(step, FusionPass):
        return []
    names = value_names(graph)
    found = [(names[miss.node], miss) for miss in step.missed(graph)]
    return [f"{step.pattern} at {name}: {m.reason}{': ' + m.detail if m.detail else ''}" for name, m in found]


def parse_passes(text: str) -> list[Pass]:
    """Passes from their names, with options in parentheses."""
    known = all_passes()
    passes = []
    for item in ast.parse(f"[{text}]", mode="eval").body.elts:
        call = item if isinstance(item, ast.Call) else ast.Call(item, [], [])
        name = call.func.id
        assert name in known, f"there is no pass {name!r}; known: {', '.join(sorted(known))}"
        passes.append(known[name](**{k.arg: ast.literal_eval(k.value) for k in call.keywords}))
    return passes


def all_passes() -> dict[str, type[Pass]]:
    """Every pass of the compiler, by name."""
    for module in pkgutil.walk_packages(rlx.compile.__path__, "rlx.compile."):
        importlib.import_module(module.name)
    found: dict[str, type[Pass]] = {}
    pending = [Pass]
    while pending:
        for cls in pending.pop().__subclasses__():
            pending.append(cls)
            if isinstance(getattr(cls, "name", None), str):
                found[cls.name] = cls
    return found
