"""What the compiler makes of the ten families, as texts that are kept: `golden/<family>.txt`.

A text has the grouping (one line per value that goes through memory, with the reason), the LIR of what runs and of what
is prepared, and the bodies of loops. All are for one named machine, so that they are the same everywhere.
`tools/refresh_golden_texts.py` writes them again.
"""

from __future__ import annotations

from pathlib import Path

from family_programs import FAMILIES, forward, training

from rlx.compile.compiler import CompilePipeline
from rlx.compile.generators import generator_for
from rlx.compile.lower.bodies import LOOP, native_bodies
from rlx.ir.text.graph_text import value_names

FOLDER = Path(__file__).parent / "golden"
MACHINE = "avx2"
# Gradients that take a second or less: what training adds to grouping and plans is in these.
TRAINED = ("gpt_loss", "scan_rnn", "mixture_of_experts")
NAMES = [*FAMILIES, *(f"{name}_training" for name in TRAINED)]


def golden_text(name: str) -> str:
    """The text of one program, as the compiler makes it now."""
    member = FAMILIES[name.removesuffix("_training")]
    program = training(member, "f32") if name.endswith("_training") else forward(member, "f32")
    result = CompilePipeline("cpu", machine=MACHINE).compile(program)
    graph = result.lir.as_graph()
    names = value_names(graph)
    edges = [f"{names[e.producer]} -> {names[e.reader]}: {e.reason}" for e in result.barriers]
    parts = ["\n".join(["grouping:", *edges, ""]), str(result.lir)]
    parts += [] if result.prepare is None else [str(result.prepare)]
    for kernel in result.lir.kernels:
        if kernel.kind == LOOP:
            parts += map(str, native_bodies(graph, graph.nodes[kernel.nodes[0]], generator_for("cpu", MACHINE)))
    return "\n".join(parts)
