"""docs/numpy_coverage.md is up to date, and every public function of rlx.numpy is called by a test."""

import doctest
import importlib
import importlib.util
import pathlib
import pkgutil
import re

import pytest

import rlx
import rlx.nn
import rlx.numpy as rnp
from rlx.ir.dtype import DType

_HERE = pathlib.Path(__file__).parent
_TOOL = _HERE.parent.parent / "tools" / "numpy_coverage.py"


def _coverage():
    spec = importlib.util.spec_from_file_location("numpy_coverage", _TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(monkeypatch):
    monkeypatch.syspath_prepend(str(_TOOL.parent))
    tool = _coverage()
    assert tool.PAGE.read_text() == tool.page(), "run: python tools/numpy_coverage.py"


def test_the_whole_array_api_is_there(monkeypatch):
    monkeypatch.syspath_prepend(str(_TOOL.parent))
    tool = _coverage()
    assert [n for names in tool.ARRAY_API.values() for n in names.split() if not tool.present(n)] == []


def test_every_function_is_tested():
    tested = set()
    for path in _HERE.glob("test_*.py"):
        text = path.read_text()
        tested |= set(re.findall(r"[\"'](?:\w+\.)?(\w+)[\"']", text)) | set(re.findall(r"rnp(?:\.\w+)?\.(\w+)", text))
    public = {name: vars(m)[name] for m in _modules() for name in getattr(m, "__all__", ())}
    functions = {n for n, value in public.items() if getattr(value, "__module__", "").startswith("rlx.numpy")}
    assert sorted(n for n in functions - tested if not n.startswith("_")) == []


def _modules():
    return [m for m in vars(rnp).values() if getattr(m, "__name__", "").startswith("rlx.numpy")]


@pytest.mark.parametrize("package", [rlx.numpy, rlx.nn], ids=lambda p: p.__name__)
def test_examples_in_docstrings(package):
    names = [info.name for info in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
    for name in names:
        assert doctest.testmod(importlib.import_module(name)).failed == 0, name


def test_namespace_inspection():
    info = rnp.__array_namespace_info__()
    assert info.default_dtypes()["real floating"] is DType.F32
    assert list(info.dtypes(kind="real floating")) == ["float32", "float64"]
    assert info.devices() == [info.default_device()] == ["cpu"]
    assert info.capabilities()["data-dependent shapes"] is False
    assert rnp.isscalar(3.0) and rnp.s_[1:3] == slice(1, 3)
