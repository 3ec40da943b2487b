"""The text of stage dumps."""

import pytest

from rlx.compat.reflect import BlockSpecialization, HirReflection, probe_block_specialization
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.lir import LirBufferPlan, LirBufferSlot, LirIoManifest, LirModule, LirViewAlias
from rlx.ir.module import HirModule, hir_to_graph
from rlx.ir.phase import derive_phases
from rlx.ir.provenance import NodeOrigin
from rlx.ir.text.inspect import (
    inspect_buffer_plan,
    inspect_graph,
    inspect_graph_diff,
    inspect_hir,
    inspect_hir_stats,
    inspect_lir,
    inspect_mir,
    inspect_mir_diff,
    inspect_mir_stats,
    inspect_mir_with_diff,
)
from rlx.ir.text.pretty import human_bytes, pretty_print, pretty_stats


def graph() -> Graph:
    g = Graph("g")
    with g.originating(NodeOrigin()):
        x = g.input("x", (4, 8), "f32")
        w = g.param("w", (8, 16), "f32")
        y = g.matmul(x, w).named("up")
        z = g.reduce(g.add(g.relu(y), 1.0), "sum", [1])
        g.set_outputs([z])
    return g


def test_inspect_graph():
    assert inspect_graph(graph()) == (
        "graph @g (7 nodes, 1 outputs, 1.4 KB arena)\n"
        "  op kinds: Activation=1, Binary=1, Constant=1, Input=1, MatMul=1, Param=1, Reduce=1\n"
        '  %0 [input "x"] = input : f32[4,8]\n'
        '  %1 [param "w"] = param : f32[8,16]\n'
        '  %2 ["up"]      = matmul(%0, %1) : f32[4,16]\n'
        "  %3             = relu(%2) : f32[4,16]\n"
        "  %4             = constant {value=1.0} : f32[]\n"
        "  %5             = add(%3, %4) : f32[4,16]\n"
        "  %6             = reduce_sum(%5) {axes=(1,)} : f32[4]  ← output\n"
        "  return %6\n"
    )
    assert inspect_graph(graph()) == pretty_print(graph()) and graph().inspect() == inspect_graph(graph())
    assert inspect_graph(graph()).startswith(pretty_stats(graph()))


def test_origins_and_source_lines_are_shown():
    g = Graph("g")
    x = g.input("x", (2,))
    g.relu(x).node.origin = NodeOrigin(3, "ffn", "fuse")
    text = inspect_graph(g)
    assert 'relu(%0) : f32[2]  // hir=h3, "ffn", pass=fuse\n' in text
    assert "input : f32[2]  // at test_inspect.py:" in text


def test_bodies_and_large_constants_are_summed_up():
    body = Graph("step")
    body.set_outputs([body.add(body.input("c", (2,)), 1.0)])
    g = Graph("g")
    g.scan(g.input("x", (2,)), body, 3)
    assert "body=@step(3 nodes)" in inspect_graph(g)
    g.constant([1.0, 2.0])
    assert 'constant {data="' in inspect_graph(g)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (3 << 20, "3.0 MB"), (5 << 40, "5120.0 GB")],
)
def test_human_bytes(size, text):
    assert human_bytes(size) == text


def test_human_bytes_of_symbolic_sizes():
    b, s = Dim.symbol("B"), Dim.symbol("S")
    assert human_bytes(4 * b * s + 8 * b) == "4*B*S + 8*B B"
    assert human_bytes(4 * b + 2048) == "2.0 KB + 4*B B"


def test_diffs_count_nodes_and_kinds():
    before, after = graph(), graph()
    after.relu(after.relu(after.outputs[0]))
    after.transpose_(after.nodes[2].id, (1, 0))
    assert inspect_graph_diff(before, after) == "diff: 7 → 10 nodes (+3)\nop delta: Transpose+1, Activation+2\n"
    assert inspect_graph_diff(before, before) == "diff: 7 → 7 nodes (+0)\nop delta: none\n"
    assert inspect_mir_diff(after.to_mir(), before.to_mir()).endswith("op delta: Activation-2, Transpose-1\n")


def test_inspect_mir_wraps_the_graph():
    text = inspect_mir(graph().to_mir())
    assert text == f"mir @g {{\n{inspect_graph(graph())}}}\n" == graph().to_mir().inspect()
    assert inspect_mir_stats(graph()) == pretty_stats(graph())
    assert inspect_mir_with_diff(graph(), graph()) == inspect_graph_diff(graph(), graph()) + text


def hir() -> HirModule:
    m = HirModule("m")
    with m.originating(NodeOrigin()):
        x, w, b = m.input("x", ("B", 4)), m.param("w", (4, 4)), m.param("b", (4,))
        y = m.linear(x, w, b, "gelu").named("up")
        m.set_outputs([m.add(m.swiglu_ffn(y, w, w, w), 1.0)])
    return m


def test_inspect_hir():
    assert inspect_hir(hir()) == (
        "hir @m (7 nodes, 1 outputs, fusion=Direct)\n"
        "  block ops: Linear=1, Mir=1, SwiGLU=1\n"
        '  h0 [input "x"] = input : f32[B,4]\n'
        '  h1 [param "w"] = param : f32[4,4]\n'
        '  h2 [param "b"] = param : f32[4]\n'
        '  h3 ["up"]      = linear+bias+Gelu(h0, h1, h2) : f32[B,4]\n'
        "  h4             = swiglu_ffn(h3, h1, h1, h1) : f32[B,4]\n"
        "  h5             = constant {value=1.0} : f32[]\n"
        "  h6             = add(h4, h5) : f32[B,4]  ← output\n"
        "  return h6\n"
    )
    assert inspect_hir(hir()).startswith(inspect_hir_stats(hir())) and hir().inspect() == inspect_hir(hir())
    assert Graph.inspect_module(hir().module()) == inspect_hir(hir())


def test_hir_reflection_lists_the_parts_of_a_model():
    reflection = HirReflection.from_hir(hir())
    assert reflection.inputs == ("x",) and reflection.params == ("w", "b") and reflection.node_count == 7
    assert reflection.block_labels == ("swiglu_ffn",) and str(reflection.outputs[0]) == "h6"
    [record] = probe_block_specialization(hir(), BlockSpecialization.UnfusedPrimitives)
    assert (str(record.node), record.label, record.choice) == ("h4", "swiglu_ffn", "unfused_primitives")


def test_inspect_lir():
    g = graph()
    slots = {2: LirBufferSlot(0, 256), 3: LirBufferSlot(0, 256), 6: LirBufferSlot(256, 16)}
    plan = LirBufferPlan(
        arena_size=272,
        assignments=slots,
        schedule=list(g.topo_order()),
        view_aliases={5: LirViewAlias(3, 8)},
        phases=derive_phases(g),
        io=LirIoManifest.collect(g),
        dynamic_symbols=("B",),
    )
    lir = LirModule(g, plan)
    assert inspect_buffer_plan(plan, g) == (
        "arena: 272 bytes (saved 256 B vs 528 B naive, align=64)\n"
        "schedule: 7 nodes, 1 views\n"
        "dynamic: B\n"
        "  offset  size  node   sched  phase\n"
        "  0       256   %2 up  2      SteadyState\n"
        "  0       256   %3     3      Epilogue\n"
        "  8       -     %5     5      Epilogue     view→%3+8\n"
        "  256     16    %6     6      Epilogue\n"
        "Prologue: %0, %1, %4\n"
        "SteadyState: %2\n"
        "Epilogue: %3, %5, %6\n"
        "inputs: x %0\n"
        "params: w %1\n"
        "outputs: %6\n"
    )
    text = inspect_lir(lir)
    assert text.startswith(f"lir @g {{\nfingerprint: {lir.fingerprint()}\narena: 272 bytes")
    assert text.endswith(f"--- mir ---\n{inspect_graph(g)}}}\n") and lir.inspect() == text


def test_lowered_graph_shows_its_blocks():
    text = inspect_graph(hir_to_graph(hir().with_fusion_policy("fusable")))
    assert '["up"]' in text and 'hir=h3, "up"' in text
    assert '// hir=h4, "swiglu_ffn"' in text
