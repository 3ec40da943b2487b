"""Reports and pictures: what they say is true, they are well formed, and need nothing from elsewhere."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import gpt_loss, llama, two_layers

import rlx
from random_graphs import graphs
from rlx.compile.compiler import CompilePipeline
from rlx.compile.fuse.barriers import FusionBarrier
from rlx.compile.memory.lir_liveness import lives_of, steps_of, viewed_values
from rlx.compile.memory.node_plan import plan_memory
from rlx.compile.report.drawing import render, render_graph, render_timeline
from rlx.compile.report.folding import Run, fold, stand_ins
from rlx.compile.report.graph_layout import GAP_X, Size, lay_out
from rlx.compile.report.report import CompileReport
from rlx.errors import BindingError
from rlx.ir.graph import Graph
from rlx.ir.lir import LirBufferPlan, LirBufferSlot
from rlx.ir.text.pretty import human_bytes

relaxed = settings(max_examples=30)


def compiled(program, target="cpu"):
    return CompilePipeline.new(target).compile(program)


# Text and JSON


def test_a_report_is_text():
    report = compiled(two_layers()).report("cpu")
    assert isinstance(report, str)
    assert report == str(report)
    first, *lines = report.splitlines()
    assert re.fullmatch(r"cpu: @two_layers, 2 matmul; arena .* bytes", first)
    assert lines == [
        "  matmul  native                   matmul + add + gelu",
        "  matmul  native                   matmul + add",
    ]


def test_the_size_of_the_arena_is_a_formula_or_a_number():
    """Sizes of many symbols would be a page of arithmetic: those are told for some numbers."""
    short = rlx.Graph("short")
    x = short.input("x", ("B", 64), "f32")
    short.set_outputs([(x @ np.ones((64, 8), "f4")) @ np.ones((8, 8), "f4")])
    assert rlx.Session("cpu").compile(short).report.splitlines()[0].endswith("; arena 64*ceildiv(32*B, 64) bytes")
    report = rlx.load("tiny").report
    sizes = report.drawn_sizes()
    bound = human_bytes(report.lir.buffers.bind(sizes).arena_size)
    named = ", ".join(f"{name}={n}" for name, n in sizes.items())
    assert report.splitlines()[0].endswith(f"; arena {bound} for {named}")


def test_sessions_give_reports():
    g = Graph("sum")
    g.set_outputs([g.input("x", (3,)) + 1.0])
    for device in ("cpu", "reference"):
        report = rlx.Session(device).compile(g).report
        assert isinstance(report, CompileReport)
        assert report.startswith(f"{device}: @sum")
        assert json.loads(report.json())["device"] == device
        assert "<svg" in report.html()


def test_json_says_all():
    result = compiled(llama(), "mlx")
    document = json.loads(result.report("mlx").json())
    assert document["program"] == "llama"
    assert document["fingerprint"] == str(result.lir.fingerprint())
    assert [k["kind"] for k in document["kernels"]] == [k.kind for k in result.lir.kernels]
    assert document["kernels"][0]["sources"][0]["file"].endswith("programs.py")
    assert document["memory"] == result.lir.buffers.to_json()
    assert {s["name"] for s in document["passes"]} >= {"lower_blocks", "fuse_patterns", "plan_buffers"}


def test_kernels_say_what_they_move():
    g = Graph("moved")
    x, w = g.input("x", ("B", 8)), g.param("w", (8, 4))
    g.set_outputs([rlx.relu(x @ w)])
    (row,) = compiled(g).report("cpu").kernels
    assert str(row.bytes_read) == "32*B + 128"
    assert str(row.bytes_written) == "16*B"
    assert row.sources[0].file == __file__


# What did not fuse


def test_every_value_between_kernels_has_a_reason():
    result = compiled(gpt_loss())
    report = result.report("cpu")
    views = viewed_values(result.lir)
    stored = {n for k in result.lir.kernels if k.kind != "view" for n in k.outputs}
    wanted = set()
    for number, kernel in enumerate(result.lir.kernels):
        if kernel.kind != "view":
            wanted |= {(views.get(i, i), number) for i in kernel.inputs if views.get(i, i) in stored}
    assert {(c.value, c.reader) for c in report.crossings} >= wanted
    for crossing in report.crossings:
        assert crossing.value in result.lir.kernels[crossing.producer].outputs
        assert crossing.source.file.endswith("programs.py")


def test_reasons_are_a_closed_list_with_words():
    assert len({barrier.meaning for barrier in FusionBarrier}) == len(FusionBarrier)
    report = compiled(gpt_loss()).report("cpu")
    assert {FusionBarrier(c["reason"]) for c in json.loads(report.json())["barriers"]} <= set(FusionBarrier)


# Pictures

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture):
    root = ET.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    return root


def boxes(root):
    found = {}
    for group in root.iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        found[title.text] = [float(rect.get(k)) for k in ("x", "y", "width", "height")]
    return found


@relaxed
@given(
    st.lists(st.tuples(st.floats(20, 200), st.floats(15, 60)), min_size=1, max_size=25).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes),
            st.lists(
                st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(sizes) - 1))
                .filter(lambda e: e[0] != e[1])
                .map(lambda e: (min(e), max(e))),
                max_size=40,
            ),
        )
    )
)
def test_boxes_never_overlap_and_edges_point_down(drawing):
    sizes, edges = [Size(*s) for s in drawing[0]], drawing[1]
    layout = lay_out(sizes, edges)
    assert layout == lay_out(sizes, edges)
    corners = [(x - s.width / 2, y - s.height / 2, s) for (x, y), s in zip(layout.centres, sizes, strict=True)]
    for i, (ax, ay, a) in enumerate(corners):
        assert ax >= -1e-6
        assert ax + a.width <= layout.size.width + 1e-6
        for bx, by, b in corners[:i]:
            apart = ax + a.width + GAP_X <= bx + 1e-6 or bx + b.width + GAP_X <= ax + 1e-6
            assert apart or ay + a.height <= by or by + b.height <= ay
    for a, b in edges:
        assert layout.centres[a][1] + sizes[a].height / 2 < layout.centres[b][1] - sizes[b].height / 2
        ys = [y for _, y in layout.routes[a, b]]
        assert ys == sorted(ys)


def test_the_graph_is_drawn_with_its_kernels():
    lir = compiled(llama()).lir
    root = parsed(render_graph(lir.as_graph(), lir.kernels))
    computed = [title for title in boxes(root) if "kernel" in title]
    assert len(computed) == len({n for k in lir.kernels for n in k.nodes})
    for number, kernel in enumerate(lir.kernels):
        drawn = [g for g in root.iter(f"{SVG}g") if f"k{number}" in g.get("class").split()]
        assert len(drawn) == len(kernel.nodes)
        assert all(f"kernel {number} ({kernel.kind})" in g.find(f"{SVG}title").text for g in drawn)
    parsed(render_graph(Graph("empty")))


@relaxed
@given(graphs())
def test_any_graph_can_be_drawn(graph):
    lir = compiled(graph).lir
    parsed(render_graph(lir.as_graph(), lir.kernels))
    parsed(render_timeline(lir))
    parsed(render(lir.buffers))


def test_the_timeline_shows_buffers_where_and_when_they_live():
    lir = compiled(gpt_loss()).lir.bind({"B": 2})
    lives, slots = lives_of(lir), lir.buffers.assignments
    drawn = {}
    for title, (x, y, width, height) in boxes(parsed(render_timeline(lir))).items():
        drawn[int(re.match(r"%(\d+)", title)[1])] = (x, y, width, height)
    assert set(drawn) == {int(n) for n in slots}
    for a in slots:
        for b in slots:
            if lives[a].birth < lives[b].birth:
                assert drawn[a][0] < drawn[b][0]
            if slots[a].offset < slots[b].offset:
                assert drawn[a][1] + drawn[a][3] > drawn[b][1] + drawn[b][3]


def test_a_plan_is_drawn_with_a_bar_for_every_buffer():
    g = gpt_loss()
    plan = plan_memory(g)
    root = parsed(render(plan, {"B": 2}))
    assert len(boxes(root)) == len(plan.assignments)
    assert float(root.get("width")) == 800
    assert "drawn for B = 2" in "".join(root.itertext())
    with pytest.raises(BindingError, match="the program has no symbol 'S'; it has: B"):
        render(plan, {"S": 2})
    offsets = [y for _, y, _, _ in boxes(root).values()]
    assert np.allclose(np.diff(offsets), 24)


def test_a_program_without_memory_says_so():
    g = Graph("one")
    g.set_outputs([rlx.exp(g.input("x", (3,)))])
    assert "Nothing lives in the arena" in render_timeline(compiled(g).lir)
    assert parsed(render(LirBufferPlan(64, {0: LirBufferSlot(0, 64)}))) is not None


# The page


class Page(HTMLParser):
    """Checks that tags are closed and collects what a page refers to."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.links, self.rows = [], [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "data")]
        self.rows += tag == "tr"

    def handle_startendtag(self, tag, attrs):
        self.links += [v for k, v in attrs if k in ("src", "href", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.mark.parametrize("target", ["cpu", "mlx"])
def test_the_page_is_whole(tmp_path, target):
    result = compiled(llama(), target)
    report = result.report(target)
    text = report.html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    page = Page(text)
    assert page.open == []
    assert page.links == []
    # The only addresses are names of XML namespaces.
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert {"Kernels", "Graph", "Memory over time", "Time"} <= set(page.headings)
    assert ("What did not fuse" in page.headings) == (target == "cpu")
    assert page.rows > len(steps_of(result.lir))
    for number, kernel in enumerate(result.lir.kernels):
        assert (f"<tr class='k{number}" in text) == (kernel.kind != "view")


def deep(layers=6):
    """A model of equal layers, in scopes, with what kernels are called by."""
    g = Graph("deep")
    x = g.input("x", ("B", 16))
    with rlx.named_scope("embedding"):
        x = x @ g.param("table", (16, 16))
    for layer in range(layers):
        with rlx.named_scope(f"layer {layer}"), rlx.named_scope("feed forward"):
            y = rlx.rms_norm(x, g.param(f"gain.{layer}", (16,)), g.param(f"shift.{layer}", (16,)))
            gate, up = (y @ g.param(f"{name}.{layer}", (16, 32)) for name in ("gate", "up"))
            x = x + (rlx.silu(gate) * up) @ g.param(f"down.{layer}", (32, 16))
    with rlx.named_scope("head"):
        g.set_outputs([rlx.softmax(rlx.relu(x @ g.param("out", (16, 8)) + g.param("bias", (8,))))])
    return g


def test_kernels_are_called_by_what_was_written():
    rows = [row for row in compiled(deep()).report("cpu").kernels if row.kind != "view"]
    assert [(row.title, row.scope) for row in rows[:4]] == [
        ("matmul", "embedding"),
        ("rms_norm", "layer 0 / feed forward"),
        ("matmul + swiglu", "layer 0 / feed forward"),
        ("matmul + add", "layer 0 / feed forward"),
    ]
    assert [(row.title, row.scope) for row in rows[-2:]] == [("matmul + add + relu", "head"), ("softmax", "head")]
    assert "reduce_sum" in rows[1].ops and "rms_norm" not in rows[1].ops


def test_scopes_and_names_survive_hir_and_end_with_their_block():
    with rlx.named_scope("outside"):
        module = two_layers()
    rows = compiled(module).report("cpu").kernels
    assert [(row.title, row.scope) for row in rows] == [
        ("matmul + add + gelu", "outside / linear"),
        ("matmul + add", "outside / linear"),
    ]
    g = Graph("after")
    assert g.input("x", (3,)).node.origin.scope is None


def test_equal_layers_are_told_once():
    report = compiled(deep()).report("cpu")
    (run,) = [run for run in report.runs if run.times > 1]
    assert run.times == 6
    assert sum(run.length * run.times for run in report.runs) == len(report.kernels)
    text = report.html()
    assert f"layer 0 to layer 5: 6 times the same {len(told(report, run))} kernels" in text
    shown = {n for r in report.runs for n in range(r.start, r.start + r.length) if report.kernels[n].kind != "view"}
    assert {int(n) for n in re.findall(r"<tr class='k(\d+)", text)} == shown
    # Twice the layers make the page a little longer only: values by number, and memory over time.
    assert len(compiled(deep(12)).report("cpu").html()) < 1.4 * len(text)


def told(report, run):
    return [r for r in report.kernels[run.start : run.start + run.length] if r.kind != "view"]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", []),
        ("abcd", [Run(0, 4)]),
        ("xabcabcabcy", [Run(0, 1), Run(1, 3, 3), Run(10, 1)]),
        ("aaaaaaab", [Run(0, 1, 7), Run(7, 1)]),
        ("abab", [Run(0, 4)]),
        ("pqabcabcabcrdefdefdef", [Run(0, 2), Run(2, 3, 3), Run(11, 1), Run(12, 3, 3)]),
    ],
)
def test_folding(text, runs):
    assert fold(text) == runs


@relaxed
@given(st.text("abc", max_size=40))
def test_a_fold_says_all(text):
    runs = fold(text)
    assert "".join(text[r.start : r.start + r.length] * r.times for r in runs) == text
    assert [text[i] for i in stand_ins(runs)] == list(text)


def test_named_fusions_are_counted_where_kernels_join_them():
    result = compiled(deep())
    assert (result.fusion.fused_swiglu, result.fusion.fused_matmul_bias_act) == (6, 1)
    assert json.loads(result.report("cpu").json())["fusion"]["fused_swiglu"] == 6
    page = Page(result.report("cpu").html())
    assert "Named fusions" in page.headings
    # A sum that is formed in front of a norm, by one kernel.
    g = Graph("residual")
    a, b = g.input("a", ("B", 16)), g.input("b", ("B", 16))
    g.set_outputs([rlx.layer_norm(a + b, g.param("gain", (16,)), g.param("shift", (16,)))])
    assert compiled(g).fusion.fused_residual_ln == 1
    assert compiled(gpt_loss()).fusion.fused_residual_ln == 0


def test_a_profile_becomes_bars():
    g = deep(4)
    ready = rlx.Session("cpu").compile(g)
    ready.set_params({name: np.ones(shape.dims, "f4") for name, shape in ready.param_types.items()})
    profile = ready.profile({"x": np.ones((2, 16), "f4")}, runs=2)
    times = ready.report.times(profile)
    assert sum(times) == pytest.approx(profile.seconds)
    assert [t > 0 for t in times] == [row.kind != "view" for row in ready.report.kernels]
    text = ready.report.html(profile=profile)
    bars = text.count("<div class='bar'>")
    assert bars == sum(len(told(ready.report, run)) for run in ready.report.runs)
    assert "class='bar'" not in ready.report.html()
    assert Page(text).open == []


def test_times_inside_of_loops_belong_to_the_loop():
    f = rlx.jit(lambda x: rlx.scan(lambda c, row: (rlx.numpy.tanh(c + row), c), x[0], x)[0] * 2.0)
    # Wide enough that its rounds are kernels.
    x = np.ones((5, 30), "f4")
    graph = rlx.trace(f, x).graph
    ready = rlx.Session("cpu").compile(graph)
    profile = ready.profile(dict.fromkeys(ready.input_types, x), runs=1)
    times = ready.report.times(profile)
    kinds = [row.kind for row in ready.report.kernels]
    assert times[kinds.index("loop")] > 0
    assert sum(times) == pytest.approx(profile.seconds)


def test_the_page_names_missed_patterns_with_their_line():
    g = Graph("shared")
    x, w, b = g.input("x", (4, 8)), g.param("w", (8, 8)), g.param("b", (8,))
    product = x @ w
    g.set_outputs([rlx.gelu(product + b), product])
    text = compiled(g, "mlx").report("mlx").html()
    assert "Patterns that did not fuse" in text
    assert "is_output" in text
    assert re.search(r"test_report\.py:\d+", text)


def test_names_cannot_break_the_page():
    g = Graph("<script>alert(1)</script>")
    g.set_outputs([rlx.exp(g.input('"><b>', (3,)))])
    text = compiled(g).report("cpu").html()
    assert "<script>alert" not in text
    assert Page(text).open == []
