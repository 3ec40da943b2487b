"""The public namespace: what `dir(rlx)` shows, and the module map of the Rust RLX."""

import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import rlx
from rlx import ops
from rlx.errors import RlxError
from rlx.foreign_names import INSTEAD
from rlx.models.language_model import LanguageModel
from rlx.models.text_encoder import TextEncoder
from rlx.onnx import OnnxModel

MODULE_MAP = [
    *("ir", "opt", "driver", "runtime", "macros", "gguf", "bench", "sparse"),
    *("splat", "linalg", "cortexm", "fpga", "quant", "ops", "autodiff", "prelude"),
]
NOT_YET = ["fpga"]


MODELS = {"LanguageModel": LanguageModel, "TextEncoder": TextEncoder, "OnnxModel": OnnxModel}


def test_what_is_shown():
    shown = dir(rlx)
    assert len(shown) < 300
    for name in shown:
        value = getattr(rlx, name)
        if isinstance(value, types.ModuleType):
            assert value.__name__.startswith("rlx."), name
    for name in ("jit", "grad", "Graph", "Session", "load", "relu", "softmax", "numpy", "nn", "device_put"):
        assert name in shown
    assert not {"Any", "importlib", "annotations", "TYPE_CHECKING", "operands", "arithmetic"} & {*shown}


def test_type_checkers_see_the_ops_that_are_loaded_later():
    text = Path(ops.__file__).read_text()
    seen = re.findall(r"^    from (rlx\.ops\.\S+) import \*", text, re.MULTILINE)
    assert sorted(ops._LATER) == sorted(seen)


@pytest.mark.parametrize("name", MODULE_MAP)
def test_the_module_map_holds_by_import_and_by_attribute(name):
    code = f"import rlx; a = rlx.{name}; import rlx.{name} as b; assert a is b, (a, b)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert getattr(rlx, name) is importlib.import_module(f"rlx.{name}")


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_there_yet_says_so_on_first_use(name):
    with pytest.raises(RlxError, match=rf"rlx\.{name}\.anything: .* yet"):
        getattr(rlx, name).anything  # noqa: B018


def test_names_that_are_not_shown_still_work():
    for name in ("PanelMatMul", "AttentionJoin", "MatMul", "add", "softmax_cross_entropy_backward", "q_matmul"):
        assert name not in dir(rlx) and getattr(rlx, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        rlx.no_such_name  # noqa: B018


@pytest.mark.parametrize("owner", INSTEAD)
def test_names_of_other_libraries_say_what_to_write(owner):
    root = Path(__file__).parent.parent
    if owner == "Array":
        holders = [rlx.numpy.ones(2), rlx.Graph("g").input("x", (2,))]
    elif owner in MODELS:
        holders = [MODELS[owner].__new__(MODELS[owner])]
    else:
        holders = [importlib.import_module(owner)]
    for name, (instead, page) in INSTEAD[owner].items():
        assert (root / page).is_file()
        for holder in holders:
            with pytest.raises(AttributeError, match=re.escape(f"; write {instead} ({page})")):
                getattr(holder, name)
        for dotted in re.findall(r"rlx(?:\.\w+)+", instead):
            value = rlx
            for part in dotted.split(".")[1:]:
                value = getattr(value, part)
    for holder in holders:
        assert not hasattr(holder, "no_such_name") and not hasattr(holder, "_nor_this")


def test_functions_are_not_shadowed_by_modules():
    assert callable(rlx.nn.attention) and callable(rlx.attention) and callable(rlx.fft)


def test_thin_modules_have_what_they_stand_for():
    from rlx.prelude import Graph, Session

    assert Graph is rlx.Graph and Session is rlx.Session
    assert rlx.gguf.open_gguf is rlx.formats.gguf.open_gguf
    assert rlx.linalg.solve is rlx.numpy.linalg.solve
    assert rlx.quant.QuantScheme is rlx.QuantScheme


@pytest.mark.parametrize(
    "name", ["formats.gguf.open_gguf", "formats.safetensors.write_safetensors", "formats.onnx.write_onnx"]
)
def test_formats_are_there_after_import_rlx(name):
    """In a process of its own, where nobody else has loaded them."""
    code = f"import rlx; assert callable(rlx.{name}); assert {name.split('.')[1]!r} in dir(rlx.formats)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="formats are gguf, onnx, safetensors"):
        rlx.formats.gguff  # noqa: B018


@pytest.mark.parametrize(
    "name, said",
    [
        ("jitt", "Did you mean: 'jit'?"),
        ("nn.soft_max", "Did you mean: 'softmax'?"),
        ("numpy.concatenat", "Did you mean: 'concatenate'?"),
        ("nn.Linear", "; write rlx.nn.dense(features) (docs/coming_from_torch.md)"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(name, said):
    """By Python itself, where it shows the error; a name of another library has its answer alone."""
    run = subprocess.run([sys.executable, "-c", f"import rlx; rlx.{name}"], capture_output=True, text=True)
    assert run.stderr.rstrip().endswith(said)
