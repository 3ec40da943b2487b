"""Whole models: open sizes, branches and loops, functions, shapes that depend on values, and what is refused."""

import contextlib

import numpy as np
import pytest

import rlx
import rlx.onnx
from onnx_models.one_op import graph, model, value
from rlx.errors import BindingError, FormatError, RlxError, ShapeError, UnsupportedOnnx
from rlx.formats.onnx import FLOAT, OnnxGraph, OnnxValue, make_node, make_tensor, open_onnx, write_onnx

rng = np.random.default_rng(5)


def node(op, inputs, outputs, **attributes):
    return make_node(op, inputs.split(), outputs.split(), **attributes)


def heads():
    """What exporters write for x.view(B, T, 2, -1): a shape that goes through Gather, Unsqueeze and Concat."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch"),
        node("Gather", "shape one", "time"),
        node("Unsqueeze", "batch axis", "b"),
        node("Unsqueeze", "time axis", "t"),
        node("Concat", "b t two rest", "new", axis=0),
        node("MatMul", "x w", "y"),
        node("Reshape", "y new", "out"),
    ]
    numbers = {
        "zero": np.array(0),
        "one": np.array(1),
        "axis": np.array([0]),
        "two": np.array([2]),
        "rest": np.array([-1]),
    }
    w = rng.standard_normal((8, 10)).astype("f4")
    return model(nodes, [value("x", "f4", "batch", "seq-len", 8)], ["out"], w=w, **numbers), w


def test_one_compile_serves_all_sizes():
    content, w = heads()
    loaded = rlx.onnx.load(content)
    assert str(loaded.inputs["x"]) == "f32[batch,seq_len,8]" and loaded.is_one_program
    for batch, time in ((1, 3), (4, 2)):
        x = rng.standard_normal((batch, time, 8)).astype("f4")
        [found] = loaded.run(x=x)
        np.testing.assert_allclose(found, (x @ w).reshape(batch, time, 2, 5), rtol=1e-4, atol=1e-5)
    # Nothing about the shape is left in the program.
    assert [node.op.mnemonic for node in map(loaded.graph.node, loaded.graph.topo_order()) if not node.is_leaf] == [
        "matmul",
        "reshape",
    ]
    assert [*loaded.params] == ["w"]


def test_an_entry_at_a_known_place_is_not_looked_up():
    content = model([node("Gather", "x last", "y", axis=1)], [value("x", "f4", "n", "m", 2)], ["y"], last=np.array(-1))
    loaded = rlx.onnx.load(content)
    x = rng.standard_normal((3, 4, 2)).astype("f4")
    np.testing.assert_array_equal(loaded(x), x[:, -1])
    assert "gather" not in {node.op.mnemonic for node in map(loaded.graph.node, loaded.graph.topo_order())}


def test_nodes_may_come_in_any_order():
    """Converters append what they add, inside of branches too."""
    then = graph([node("Neg", "n", "out"), node("Add", "x one", "n")], [], ["out"], one=np.float32(1))
    otherwise = graph([node("Identity", "x", "out")], [], ["out"])
    nodes = [
        node("Mul", "b c", "y"),
        node("If", "flag", "b", then_branch=then, else_branch=otherwise),
        node("Relu", "a", "c"),
        node("Neg", "x", "a"),
    ]
    loaded = rlx.onnx.load(model(nodes, [value("x", "f4", 3)], ["y"], flag=np.array(True)))
    x = np.array([-1, 2, -3], "f4")
    np.testing.assert_array_equal(loaded(x), -(x + 1) * np.maximum(-x, 0))


def test_nodes_that_read_in_a_circle_are_named():
    nodes = [node("Add", "x b", "a"), node("Neg", "a", "b")]
    with pytest.raises(FormatError, match=r"node Add.* reads 'b', which nothing before it computes"):
        rlx.onnx.load(model(nodes, [value("x", "f4", 3)], ["b"]))


def test_sizes_that_a_file_calls_open_but_is_not_made_for():
    nodes = [node("Reshape", "x five", "steps"), node("RNN", "steps w r   start", "y last", hidden_size=2)]
    nodes[1].inputs[3:] = ["", "", "start"]
    weights = {"w": np.ones((1, 2, 3), "f4"), "r": np.ones((1, 2, 2), "f4"), "five": np.array([5, -1, 3])}
    inputs = [value("x", "f4", "time", "batch", 3), value("start", "f4", 1, "batch", 2)]
    content = model(nodes, inputs, ["last"], **weights)
    with pytest.raises(FormatError, match=r"node RNN.*sizes=\{'batch': \.\.\., 'time': \.\.\.\}"):
        rlx.onnx.load(content)
    loaded = rlx.onnx.load(content, sizes={"time": 5})
    assert loaded(np.ones((5, 4, 3), "f4"), np.ones((1, 4, 2), "f4")).shape == (1, 4, 2)


def test_a_size_is_added_to_a_product():
    """The positions behind a cache start at its length."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Shape", "x", "rows", end=1),
        node("Cast", "rows", "count", to=1),
        node("Add", "h count", "y"),
    ]
    w = rng.standard_normal((4, 3)).astype("f4")
    loaded = rlx.onnx.load(model(nodes, [value("x", "f4", "rows", 4)], ["y"], w=w))
    x = rng.standard_normal((5, 4)).astype("f4")
    np.testing.assert_allclose(loaded(x), x @ w + 5, rtol=1e-4, atol=1e-5)


def test_a_model_runs_as_a_session_of_onnx_runtime_does():
    nodes = [node("Neg", "x", "minus"), node("Abs", "x", "size")]
    loaded = rlx.onnx.load(model(nodes, [value("x", "f4", 3)], ["minus", "size"]))
    x = np.array([1, -2, 3], "f4")
    for found, expected in (
        (loaded.run(None, {"x": x}), [-x, abs(x)]),
        (loaded.run(["size"], {"x": x}), [abs(x)]),
        (loaded.run(["size", "minus"], {"x": x}), [abs(x), -x]),
    ):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(BindingError, match="there is no output 'z'; it has minus, size"):
        loaded.run(["z"], {"x": x})
    with pytest.raises(BindingError, match="inputs are given by name"):
        loaded.run(None, x)


def test_sizes_can_be_fixed():
    content, _ = heads()
    assert str(rlx.onnx.load(content, sizes={"batch": 2}).inputs["x"]) == "f32[2,seq_len,8]"
    with pytest.raises(ShapeError, match="there is no size 'rows'; it has batch, seq_len"):
        rlx.onnx.load(content, sizes={"rows": 2})


def test_a_model_is_a_graph_with_weights(tmp_path):
    content, _w = heads()
    loaded = rlx.onnx.load(content)
    compiled = rlx.Session("cpu").compile(loaded.graph)
    compiled.set_params(loaded.params)
    x = rng.standard_normal((2, 3, 8)).astype("f4")
    np.testing.assert_array_equal(compiled.run(x=x)[0], loaded(x))
    loaded.compile().save(tmp_path / "m.rlxc")
    np.testing.assert_array_equal(rlx.load_compiled(tmp_path / "m.rlxc").run(x=x)[0], loaded(x))


def test_wrong_inputs_are_named():
    loaded = rlx.onnx.load(heads()[0])
    with pytest.raises(BindingError, match="its inputs are x; missing: x; unknown: ids"):
        loaded.run(ids=1)
    with pytest.raises(BindingError, match="takes 1 inputs, got 2"):
        loaded(1, 2)


def test_rows_that_are_chosen_by_value():
    nodes = [
        node("Greater", "x zero", "keep"),
        node("NonZero", "keep", "places"),
        node("Transpose", "places", "points", perm=[1, 0]),
        node("GatherND", "x points", "chosen"),
        node("Mul", "chosen two", "y"),
        node("Shape", "chosen", "count"),
    ]
    constants = {"zero": np.float32(0), "two": np.float32(2)}
    loaded = rlx.onnx.load(model(nodes, [value("x", "f4", "n")], ["y", "count"], **constants))
    assert not loaded.is_one_program
    with pytest.raises(RlxError, match=r"its graph: sizes after node NonZero .* depend on values"):
        _ = loaded.graph
    before = rlx.compile_count()
    for size in (5, 9, 9):
        x = rng.standard_normal(size).astype("f4")
        y, count = loaded.run(x=x)
        np.testing.assert_array_equal(y, 2 * x[x > 0])
        assert count.tolist() == [(x > 0).sum()]
    # However many are chosen, there is one program before and one after.
    assert rlx.compile_count() - before <= 2


def test_a_shape_that_is_an_input():
    loaded = rlx.onnx.load(
        model([node("Reshape", "x shape", "y")], [value("x", "f4", 6), value("shape", "i64", 2)], ["y"])
    )
    for shape in ((2, 3), (3, 2), (2, 3)):
        assert loaded.run(x=np.zeros(6, "f4"), shape=np.array(shape))[0].shape == shape


def branches():
    then = graph([node("Add", "x x", "doubled")], [], ["doubled"])
    other = graph([node("Neg", "x", "turned")], [], ["turned"])
    return [node("If", "flag", "y", then_branch=then, else_branch=other)]


def test_the_branch_that_is_taken():
    known = rlx.onnx.load(model(branches(), [value("x", "f4", 2)], ["y"], flag=np.array(True)))
    assert known.is_one_program and known(np.ones(2, "f4")).tolist() == [2, 2]
    open_flag = rlx.onnx.load(model(branches(), [value("x", "f4", 2), value("flag", "bool")], ["y"]))
    for flag, expected in ((True, 2), (False, -1), (True, 2)):
        assert open_flag(np.ones(2, "f4"), np.array(flag)).tolist() == [expected] * 2


def loop(inputs):
    body = graph(
        [node("Add", "sum step", "next"), node("Less", "next limit", "go"), node("Mul", "next two", "row")],
        [value("i", "i64"), value("cond", "bool"), value("sum", "f4", 1)],
        ["go", "next", "row"],
        two=np.float32(2),
    )
    return make_node("Loop", inputs, ["last", "rows"], body=body)


@pytest.mark.parametrize("limit, rounds", [(100, 3), (1.5, 2)])
def test_a_loop_ends_by_its_count_or_its_condition(limit, rounds):
    # `go` is a value of the run: each round asks for it, and the one that passes the limit is the last.
    nodes = [loop(["count", "", "x"])]
    inputs = [value("x", "f4", 1), value("step", "f4", 1), value("limit", "f4", 1)]
    content = model(nodes, inputs, ["last", "rows"], count=np.array(3))
    last, rows = rlx.onnx.load(content)(np.zeros(1, "f4"), np.ones(1, "f4"), np.array([limit], "f4"))
    assert last.tolist() == [rounds] and rows.tolist() == [[2], [4], [6]][:rounds]


def test_a_scan():
    body = graph(
        [node("Add", "total row", "next"), node("Identity", "next", "out")],
        [value("total", "f4", 2), value("row", "f4", 2)],
        ["next", "out"],
    )
    scan = make_node("Scan", ["start", "x"], ["last", "rows"], body=body, num_scan_inputs=1)
    loaded = rlx.onnx.load(model([scan], [value("x", "f4", "n", 2)], ["last", "rows"], start=np.zeros(2, "f4")))
    x = rng.standard_normal((5, 2)).astype("f4")
    last, rows = loaded(x)
    np.testing.assert_allclose(rows, x.cumsum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, rows[-1])


def test_a_small_file_does_not_ask_for_a_large_memory():
    large = np.array([2**24, 2**24])
    nodes = [
        node("ConstantOfShape", "large", "filled"),
        node("Expand", "one large", "spread"),
        node("Range", "zero many one", "counted"),
        node("Tile", "counted twice", "again"),
        *(node("Shape", name, f"{name}_shape") for name in ("filled", "spread", "again")),
    ]
    constants = {"large": large, "zero": np.array(0), "one": np.array(1), "many": np.array(2**40)}
    outputs = ["filled_shape", "spread_shape", "again_shape"]
    loaded = rlx.onnx.load(model(nodes, [], outputs, twice=np.array([2]), **constants))
    assert [found.tolist() for found in loaded.run()] == [[2**24, 2**24], [2**24, 2**24], [2**41]]


def test_ops_without_a_rule_are_all_named_before_anything_runs():
    nodes = [
        node("Add", "x x", "a"),
        make_node("Blur", ["a"], ["b"], "com.acme", "smooth"),
        node("Frobnicate", "b", "y"),
    ]
    with pytest.raises(UnsupportedOnnx, match=r"no rule for: com.acme.Blur \(1 node, such as 'smooth'\), Frobnicate"):
        rlx.onnx.load(model(nodes, [value("x", "f4", 2)], ["y"]))


def test_a_name_that_nothing_computes():
    with pytest.raises(FormatError, match=r"node Add .* reads 'ghost', which nothing before it computes"):
        rlx.onnx.load(model([node("Add", "x ghost", "y")], [value("x", "f4", 2)], ["y"]))


def test_shapes_that_cannot_fit_name_the_node():
    content = model(
        [make_node("Add", ["x", "y"], ["z"], name="joins")], [value("x", "f4", 2), value("y", "f4", 3)], ["z"]
    )
    with pytest.raises(FormatError, match="node Add 'joins'"):
        rlx.onnx.load(content)


def test_weights_in_a_file_beside_it(tmp_path):
    w = rng.standard_normal((70, 3)).astype("f4")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64 + w.tobytes())
    path = tmp_path / "m.onnx"
    write_onnx(path, graph([node("MatMul", "x w", "y")], [value("x", "f4", "n", 70)], ["y"], w=w))
    outside = external(path.read_bytes(), w, "weights.bin", 64)
    path.write_bytes(outside)
    x = rng.standard_normal((2, 70)).astype("f4")
    np.testing.assert_allclose(rlx.onnx.load(path)(x), x @ w, rtol=1e-4, atol=1e-4)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FormatError, match=r"weights.bin, which is missing; it belongs beside"):
        rlx.onnx.load(path)
    path.write_bytes(external(outside, w, "../weights.bin", 64, b"weights.bin"))
    with pytest.raises(FormatError, match="must lie beside the model's file or below it"):
        open_onnx(path)


def external(content, w, location, offset, old=None):
    """The file with the bytes of `w` replaced by a place in another file (or another place by this)."""
    from rlx.formats.onnx import read_onnx
    from rlx.formats.onnx.writer import _graph, _inner, _number, _text

    file = read_onnx(content)
    tensor = file.graph.constants.pop("w")
    pairs = {"location": location, "offset": str(offset), "length": str(w.nbytes)}
    parts = [b"".join(_number(1, n) for n in tensor.shape), _number(2, tensor.type), _text(8, "w")]
    parts += [_inner(13, _text(1, key) + _text(2, text)) for key, text in pairs.items()]
    outer = _graph(file.graph) + _inner(5, b"".join(parts) + _number(14, 1))
    return _number(1, 10) + _inner(8, _number(2, 21)) + _inner(7, outer)


def test_files_are_written_as_they_are_read(tmp_path):
    import ml_dtypes

    arrays = {
        "half": np.array([1.5, -2], "f2"),
        "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
        "few": np.array([-8, 7, 3], ml_dtypes.int4),
        "flag": np.array([True, False]),
        "large": np.array([2**63], "u8"),
        "pair": np.array([1 + 2j], "c8"),
    }
    constants = {name: make_tensor(name, array) for name, array in arrays.items()}
    made = graph(
        [node("Identity", "half", "y", a=1.5, b=[1, 2], c="text", d=[1.0, 2.5], e=["a", "b"], f=-3)], [], ["y"]
    )
    made.constants.update(constants)
    write_onnx(tmp_path / "m.onnx", made)
    file = open_onnx(tmp_path / "m.onnx")
    for name, array in arrays.items():
        found = file.graph.constants[name].array()
        assert found.dtype == array.dtype and (found == array).all()
    given = file.graph.nodes[0].attributes
    assert given == {"a": 1.5, "b": [1, 2], "c": b"text", "d": [1.0, 2.5], "e": [b"a", b"b"], "f": -3}
    assert file.opsets == {"": 21}


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_cut_files_are_refused(cut):
    content, _ = heads()
    with pytest.raises(RlxError):
        rlx.onnx.load(content[:-cut])


def test_damaged_files_are_read_or_refused():
    content, _ = heads()
    change = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(change.integers(1, 4)):
            damaged[change.integers(len(damaged))] = change.integers(256)
        with contextlib.suppress(RlxError):
            rlx.onnx.load(bytes(damaged))


def test_what_is_no_onnx_file(tmp_path):
    for content in (b"", b"GGUF" + b"\0" * 40, b"hello, world", b"\0" * 100):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"m\.onnx"):
            rlx.onnx.load(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="found none"):
        rlx.onnx.load(tmp_path / "empty")


def test_language_models_are_told_where_onnx_files_go(tmp_path):
    (tmp_path / "m.onnx").write_bytes(heads()[0])
    with pytest.raises(FormatError, match=r"this is an ONNX model; rlx\.onnx\.load reads it"):
        rlx.load(tmp_path / "m.onnx")


def test_inputs_in_the_wrong_way(tmp_path):
    x, y = OnnxValue("x", FLOAT, (2,)), OnnxValue("y", FLOAT, (2,))
    write_onnx(tmp_path / "m.onnx", OnnxGraph("m", [make_node("Relu", ["x"], ["y"])], {}, [x], [y]))
    relu, array = rlx.onnx.load(tmp_path / "m.onnx"), np.ones(2, "f4")
    with pytest.raises(BindingError, match=r"inputs are given by name, as run\(\{'x': \.\.\.\}\), got ndarray"):
        relu.run(array)
    with pytest.raises(BindingError, match=r"a call takes arrays, in the order of the inputs; run\(\) has names"):
        relu({"x": array})
