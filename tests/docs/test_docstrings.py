"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import rlx
import rlx.ops

# Packages that some modules need and the development environment does not have.
OPTIONAL = {"tokenizers", "jinja2", "torch", "jax", "onnx", "onnxruntime", "openvino", "tinygrad", "llama_cpp"}


def modules():
    return sorted(info.name for info in pkgutil.walk_packages(rlx.__path__, "rlx.") if "__main__" not in info.name)


def examples(name):
    """The doctests of a module; a skip where it needs an optional package."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL:
            pytest.skip(f"{name} needs {error.name}")
        raise
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module, name) if test.examples]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    for test in examples(name):
        report = []
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert result.failed == 0, "".join(report)


def test_there_are_examples():
    assert sum(len(examples(name)) for name in ("rlx.ir.dims", "rlx.ir.dtype", "rlx.trace.tracing")) >= 3
