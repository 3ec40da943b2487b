"""The modules that circuits are made of, in Verilog-2005 or with the words of SystemVerilog."""

from __future__ import annotations

import re
from importlib.resources import files

from rlx.errors import RlxError

# Language -> how its files end.
ENDINGS = {"verilog": ".v", "systemverilog": ".sv"}


def module_text(name: str) -> str:
    """A module of the library, in Verilog-2005."""
    return files("rlx.backends.fpga").joinpath("rtl", f"{name}.v").read_text(encoding="ascii")


def modules_for(*texts: str) -> list[str]:
    """The modules of the library that texts use, and those that these use."""
    found: set[str] = set()
    waiting = [name for text in texts for name in _used(text)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _used(module_text(name))
    return sorted(found)


def _used(text: str) -> list[str]:
    return re.findall(r"^\s*(rlx_\w+) #\(", text, re.MULTILINE)


def spelled(text: str, language: str) -> str:
    """Verilog-2005 in a language: registers are logic, and blocks say what they are."""
    if language not in ENDINGS:
        raise RlxError(f"fpga: there is no language {language!r}; known: {', '.join(ENDINGS)}")
    if language == "verilog":
        return text
    text = re.sub(r"\breg\b", "logic", text)
    text = re.sub(r"\balways @\(posedge (a?clk)\)", r"always_ff @(posedge \1)", text)
    return re.sub(r"\balways @\*", "always_comb", text)
