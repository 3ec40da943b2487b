"""Ops that only the compiler makes: no file may hold them, and their types are checked all the same."""

import json

import numpy as np
import pytest

import rlx
import rlx.ops
from rlx.errors import FormatError, ParseError, RlxError
from rlx.ir.op import OP_CLASSES
from rlx.ir.serialize import from_bytes, from_json, load_graph, save_graph, to_bytes, to_json
from rlx.ir.text.graph_text import large_constants, parse, show

LOWERED = {
    "Bidiagonalized",
    "BidiagonalRotations",
    "LuStep",
    "MergedPoles",
    "MergeVectors",
    "RotatedRows",
    "SecularRoots",
    "SecularWeights",
    "SmallCholesky",
    "SmallSolve",
    "TridiagonalRotations",
    "Tridiagonalized",
    "Hessenberg",
    "PairBasis",
    "PairBidiagonal",
    "PairLu",
    "PairReflectors",
    "SchurSteps",
    "SplitPairs",
    "TriangularVectors",
    "AsComplex",
    "AsReals",
    "AttentionGradients",
    "AttentionJoin",
    "AttentionParts",
    "AttentionWithLogs",
    "CholeskyFactor",
    "ByteMatMul",
    "ChannelWindows",
    "PixelMatMul",
    "WindowGradient",
    "WindowMatMul",
    "WindowProduct",
    "CodeWindows",
    "ExpertMatMul",
    "ExpertRoute",
    "FftHalves",
    "FftLines",
    "FftRealLines",
    "InverseOrder",
    "Int16MatMul",
    "Int16Panels",
    "Int16Rows",
    "Int8BlockMatMul",
    "Int8Blocks",
    "Int8ExpertMatMul",
    "Int8Lines",
    "Int8MatMul",
    "Int8Panels",
    "OrthogonalRows",
    "PanelGather",
    "PanelMatMul",
    "QuantPanels",
    "ReflectedBasis",
    "Reflectors",
    "RequireFactors",
    "RadixCounts",
    "RadixPlaces",
    "RoutedMatMul",
    "RunningFrom",
    "SortOrder",
    "SortedValues",
    "TopOfParts",
    # Their kernels trust boxes, counts and starts that are made from one another.
    "SplatBlend",
    "SplatBoxes",
    "SplatGather",
    "SplatPulls",
    "SplatTileCounts",
    "SplatTileLists",
}


def graph_of(name):
    first = next(iter(OP_CLASSES[name].samples()))
    g = rlx.Graph("sample")
    y = first.op(*(g.input(f"x{i}", s.dims, s.dtype) for i, s in enumerate(first.shapes(first.dtypes[0]))))
    g.set_outputs(list(y) if isinstance(y, tuple) else [y])
    return g


def test_these_are_all():
    assert {name for name, cls in OP_CLASSES.items() if cls.lowered} == LOWERED


@pytest.mark.parametrize("name", sorted(LOWERED))
def test_no_reader_takes_them_from_outside(name, tmp_path):
    g = graph_of(name)
    text, table = show(g), large_constants(g)
    save_graph(g, tmp_path / "g.rlx")
    readers = {
        "text": (ParseError, lambda **k: parse(text, table, **k)),
        "json": (FormatError, lambda **k: from_json(to_json(g), **k)),
        "binary": (FormatError, lambda **k: from_bytes(to_bytes(g), **k)),
        "file": (FormatError, lambda **k: load_graph(tmp_path / "g.rlx", **k)),
    }
    for error, read in readers.values():
        with pytest.raises(error, match="only the compiler makes this op"):
            read()
        assert read(allow_lowered=True) == g


def test_bodies_cannot_hide_them():
    inside = "@b(%x: i32[4]) { %0: i32[10] = expert_route(%x) {experts=3} return %0 }"
    bodies = f"then_body={inside}, else_body={inside}"
    program = f"mir @f(%p: bool[], %x: i32[4]) {{ %0: i32[10] = if(%p, %x) {{{bodies}}} return %0 }}"
    with pytest.raises(ParseError, match="expert_route: only the compiler"):
        parse(program)
    g = parse(program, allow_lowered=True)
    with pytest.raises(FormatError, match="expert_route: only the compiler"):
        from_json(to_json(g))
    # A body as the text of an attribute, where the writer puts a nested document.
    document = json.loads(to_json(g))
    for node in document["nodes"]:
        for key in node.get("attrs", {}):
            node["attrs"][key] = inside
    with pytest.raises(FormatError, match="expert_route: only the compiler"):
        from_json(json.dumps(document))


# An op by name with attributes, the types of its operands, and a part of the error.
WRONG = {
    "more key heads than there are": ("AttentionJoin", (4, 4, "bsm", 3), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "parts"),
    "heads that do not divide": ("AttentionJoin", (4, 3, "bsm", 3), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "multiple"),
    "no heads": ("AttentionJoin", (4, 0, "bsm", 3), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "multiple"),
    "more parts than items": ("AttentionJoin", (4, 2, "bsm", 4), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "4 parts"),
    "negative parts": ("AttentionJoin", (4, 2, "bsm", -1), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "negative"),
    "rows of another length": ("AttentionJoin", (4, 2, "bsm", 3), "f32[1,2,20] f32[6,5,5] f32[6,5,2]", "got"),
    "wider sums": ("AttentionJoin", (4, 2, "bsm", 3), "f32[1,2,20] f32[6,4,6] f32[6,4,2]", "got"),
    "one statistic": ("AttentionJoin", (4, 2, "bsm", 3), "f32[1,2,20] f32[6,4,5] f32[6,4,1]", "got"),
    "another layout": ("AttentionJoin", (4, 2, "bshd", 3), "f32[1,2,20] f32[6,4,5] f32[6,4,2]", "rank 4"),
    "heads elsewhere": ("AttentionJoin", (4, 2, "bshd", 3), "f32[1,4,2,5] f32[6,4,5] f32[6,4,2]", "4 heads"),
    "joined heads that do not fit": ("AttentionJoin", (4, 2, "bsm", 3), "f32[1,2,22] f32[6,4,5] f32[6,4,2]", "heads"),
    "half sums": ("AttentionJoin", (4, 2, "bsm", 3), "f32[1,2,20] f16[6,4,5] f16[6,4,2]", "f32, f64"),
    "a negative number of parts": ("AttentionParts", {"num_heads": 1, "head_dim": 2, "parts": -1}, "", "negative"),
    "panels without columns": ("Int8Panels", (0,), "f32[8,5]", "column"),
    "lines of floats": ("Int8Lines", (4,), "f32[8,5]", "i8"),
    "stored panels without columns": ("Int8MatMul", (5,), "u8[3,8] i8[1,3,0,4]", "column"),
    "a negative n": ("Int8MatMul", (-5,), "u8[3,8] i8[0,3,16,4]", "n >= 0"),
    "words without columns": ("Int16Panels", (0,), "f32[32,5]", "column"),
    "words of half a block": ("Int16Panels", (16,), "f32[48,5]", "multiple of 32"),
    "rows of half a block": ("Int16Rows", (), "f32[2,48]", "multiple of 32"),
    "words of other rows": ("Int16MatMul", (5,), "i16[3,68] i16[1,1,528]", "do not fit"),
    "words by no columns": ("Int16MatMul", (0,), "i16[3,34] i16[1,1,528]", "not positive"),
    "no digits": ("Int8BlockMatMul", ("gguf_q8_0", 3, 0), "u8[2,12] u8[1,1632]", "digits"),
    "no blocks": ("Int8BlockMatMul", ("gguf_q8_0", 3), "u8[2,0] u8[1,0]", "blocks"),
    "three digits": ("Int8Blocks", ("gguf_q8_0", 3), "f32[2,32]", "digits"),
    "no matrix": ("QuantPanels", ("gguf_q8_0", 32, 0, 0), "u8[0]", "at least one"),
    "no elements": ("QuantPanels", ("gguf_q8_0", 0, 3), "u8[0]", "k=0"),
    "fewer panels": ("PanelMatMul", ("gguf_q8_0", 17), "f32[2,32] u8[1,544]", "panels"),
    "an empty table": ("PanelGather", ("gguf_q8_0", 32, 0), "u8[0,544] i32[2]", "nothing"),
    "no experts": ("RoutedMatMul", (), "f32[5,2] f32[0,2,3] i32[5]", "E >= 1"),
    "a short route": ("RoutedMatMul", (), "f32[5,2] f32[3,2,3] i32[10]", "route"),
    "a route of floats": ("RoutedMatMul", (), "f32[5,2] f32[3,2,3] f32[11]", "route"),
    "other depths": ("RoutedMatMul", (), "f32[5,4] f32[3,2,3] i32[11]", "same type"),
    "no whole experts": ("Int8ExpertMatMul", ("gguf_q8_0", 2, 3), "u8[5,40] u8[3,544] i32[9]", "each as many"),
    "experts without number": ("ExpertMatMul", ("gguf_q8_0", 0, 3), "f32[5,32] u8[0,544] i32[5]", "at least one"),
    "no route": ("ExpertRoute", (0,), "i32[5]", "at least one"),
    "more columns than Q has": ("ReflectedBasis", (5,), "f64[4,3] f64[3]", "columns"),
    "scales of another length": ("ReflectedBasis", (3,), "f64[4,3] f64[2]", "scales"),
    "a single result of a solve": ("RequireFactors", ("dense_solve",), "bool[]", "each row"),
    "a matrix that is not square": ("CholeskyFactor", (), "f64[3,2]", "square"),
    "no axis": ("SortOrder", (), "f32[]", "axis"),
}


@pytest.mark.parametrize("case", WRONG)
def test_types_are_checked(case):
    name, attributes, types, words = WRONG[case]
    with pytest.raises(RlxError, match=words):
        make = OP_CLASSES[name]
        op = make(**attributes) if isinstance(attributes, dict) else make(*attributes)
        op.infer(*(rlx.parse(f"mir @t(%x: {t}) {{ return %x }}").inputs[0].shape for t in types.split()))


def test_symbolic_sizes_of_a_join_are_tied():
    g = rlx.Graph("join")
    out, sums, statistics = g.input("out", ("B", "S", 20)), g.input("a", ("I", "R", 5)), g.input("b", ("I", "R", 2))
    g.set_outputs([OP_CLASSES["AttentionJoin"](4, 2, "bsm", 3)(out, sums, statistics)])
    compiled = rlx.Session("cpu").compile(g)
    arrays = [np.zeros(s, "f4") for s in ((1, 2, 20), (12, 4, 5), (12, 4, 2))]
    with pytest.raises(rlx.errors.BindingError):
        compiled.run(out=arrays[0], a=arrays[1], b=arrays[2])
