"""ONNX models against ONNX Runtime and torch, and each op against the node tests of the onnx package."""

import re
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from onnx import numpy_helper  # noqa: E402

import rlx.onnx  # noqa: E402
from onnx_models.one_op import model, value  # noqa: E402
from peers.onnx_networks import networks  # noqa: E402
from rlx.errors import UnsupportedOnnx  # noqa: E402
from rlx.formats.onnx import make_node  # noqa: E402

pytestmark = pytest.mark.peers
NETWORKS = networks()


def agree(found, expected, tolerance=1e-4):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(found, expected, tolerance, tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


def exported(name, path, way):
    module, inputs, is_open = NETWORKS[name]
    module.eval()
    given = tuple(inputs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "new":
            pytest.importorskip("onnxscript")
            sizes = tuple(dict.fromkeys(is_open.get(n, {}), torch.export.Dim.AUTO) for n in inputs)
            more = {"dynamo": True, "dynamic_shapes": sizes if is_open else None, "verbose": False}
        else:
            more = {"dynamo": False, "dynamic_axes": is_open or None, "opset_version": 17}
        torch.onnx.export(module, given, path, input_names=[*inputs], **more)
    return module, inputs, is_open


# The newer exporter takes more than a minute for recurrent layers, and fixes their sizes.
WAYS = [(name, way) for name in NETWORKS for way in ("new", "old") if (name, way) != ("recurrent", "new")]


@pytest.mark.parametrize("name, way", WAYS)
def test_networks_of_torch(name, way, tmp_path):
    path = str(tmp_path / "m.onnx")
    module, inputs, is_open = exported(name, path, way)
    loaded = rlx.onnx.load(path)
    session = onnxruntime.InferenceSession(path)
    # As exported, then with other sizes: the same program serves both.
    larger = {n: torch.cat([x, x]) if 0 in is_open.get(n, {}) else x for n, x in inputs.items()}
    for given in (inputs, larger):
        arrays = {n: x.numpy() for n, x in given.items()}
        found = loaded.run({n: arrays[n] for n in loaded.inputs})
        with torch.no_grad():
            results = module(*given.values())
        for own, theirs in zip(found, results if isinstance(results, tuple) else (results,), strict=True):
            agree(own, theirs.numpy())
        for own, theirs in zip(found, session.run(None, {n: arrays[n] for n in loaded.inputs}), strict=True):
            agree(own, theirs)


def test_quantised_layers_are_those_of_onnx_runtime():
    rng = np.random.default_rng(0)
    w, x = rng.integers(-128, 128, (4, 3, 3, 3)).astype("i1"), rng.integers(0, 256, (2, 3, 9, 8)).astype("u1")
    constants = {
        "w": w,
        "sx": np.float32(0.02),
        "zx": np.uint8(120),
        "sw": rng.uniform(0.001, 0.01, 4).astype("f4"),
        "zw": np.zeros(4, "i1"),
        "sy": np.float32(0.05),
        "zy": np.uint8(130),
        "b": rng.integers(-999, 999, 4).astype("i4"),
    }
    node = make_node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], pads=[1, 1, 1, 1])
    content = onnx.load_from_string(model([node], [value("x", "u8", *x.shape)], ["y"], 17, **constants))
    content.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    del content.graph.output[0].type.tensor_type.shape.dim[:]
    content.graph.output[0].type.tensor_type.ClearField("shape")
    content = content.SerializeToString()
    [expected] = onnxruntime.InferenceSession(content).run(None, {"x": x})
    [found] = rlx.onnx.load(content).run(x=x)
    assert np.abs(np.asarray(found).astype(int) - expected).max() == 0


# What the rules refuse, by what they say; anything else that is refused is a fault.
REFUSED = (
    r"elements of (text|u?int2|float8e[45]m[23]fnuz|float8e8m0)",
    r"is a (sequence|optional); only tensors",
    r"the sequence 'seq' as an output",
    r"no rule for: (ai\.onnx\.(ml|preview)|String|Regex|TfIdf|ImageDecoder|SequenceMap|DeformConv|MelWeightMatrix)",
    r"no rule for: (LinearAttention|CausalConvWithState|MaxRoiPool|Multinomial)",
    r"node (Dropout|BatchNormalization) .*training mode",
    r"node Attention .*(an output with the scores|a window of neighbours)",
    r"node Resize .*(antialias|tf_crop_and_resize)",
    r"node RoiAlign .*the mode max",
    r"node MaxPool .*the storage order of columns",
    r"Scan of opset 8",
)
# Random numbers are others, and a bool has no bits of its own here.
OTHERWISE = re.compile("test_bernoulli|test_bitcast_bool_to_uint8")


def as_arrays(values):
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def same(found, expected, relative):
    if isinstance(expected, list):
        for own, theirs in zip(found, expected, strict=True):
            same(own, theirs, relative)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.dtype.kind in "fcV":
        tolerance = relative if expected.dtype.itemsize > 2 else 2e-2
        wide = (a if a.dtype.kind == "c" else a.astype("f8") for a in (found, expected))
        np.testing.assert_allclose(*wide, tolerance, 1e-5 if expected.dtype.itemsize > 2 else 1e-2)
    else:
        np.testing.assert_array_equal(found, expected)


def test_the_node_tests_of_the_onnx_package():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases("") if case.model is not None]
    passed, faults = 0, {}
    for case in cases:
        names = [value.name for value in case.model.graph.input]
        if OTHERWISE.match(case.name):
            continue
        for inputs, outputs in case.data_sets:
            try:
                loaded = rlx.onnx.load(case.model.SerializeToString(), "reference")
                found = loaded.run(dict(zip(names, as_arrays(inputs), strict=True)))
                for own, theirs in zip(found, as_arrays(outputs), strict=True):
                    same(own, theirs, case.rtol)
                passed += 1
            except UnsupportedOnnx as error:
                if not any(re.search(reason, str(error)) for reason in REFUSED):
                    faults[case.name] = str(error)
            except Exception as error:
                faults[case.name] = f"{type(error).__name__}: {error}"
    assert not faults, "\n".join(f"{name}: {fault[:300]}" for name, fault in faults.items())
    assert passed > 0.85 * len(cases)
