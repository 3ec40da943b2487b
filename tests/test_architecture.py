"""Imports point one way. What would point back goes through a registry that the later folder fills."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "rlx"
# Each folder may import itself and those before it; env, knobs, errors and perfetto stand below all.
ORDER = ["ir", "ops", "hir", "trace", "autodiff", "fusion", "compile", "kernels", "backends", "runtime"]
ORDER += ["driver", "sparse", "formats", "models", "bench", "cli"]
BASE = {"errors", "env", "knobs", "perfetto"}
# The surface that users type; nothing below it may use it.
SURFACE = {"numpy": "runtime", "nn": "runtime", "random": "trace", "debug": "trace", "tree": "trace"}
SURFACE |= {"macros": "runtime", "prelude": "runtime"}
# `ir` reads nothing of later folders; these are the only places where a function reaches forward, each with its reason.
FORWARD = {
    ("ir/graph.py", "ops"): "type checkers see the builders that rlx.ops installs",
    ("ir/tensor.py", "ops"): "type checkers see the methods that rlx.ops installs",
    ("ir/module.py", "hir"): "type checkers see the builders that rlx.hir installs",
}


def layer_of(folder):
    return ORDER.index(SURFACE.get(folder, folder))


def imports(path):
    """(folder, line, only for type checking) of every rlx import in a file."""
    tree = ast.parse(path.read_text())
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rlx":
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1] for a in node.names if a.name.startswith("rlx.")]
        for name in names:
            yield name, node.lineno, id(node) in checking


FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem in SURFACE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    relative = path.relative_to(ROOT)
    own = relative.parts[0].removesuffix(".py")
    for folder, line, only_types in imports(path):
        if folder in BASE or folder == own:
            continue
        assert folder in ORDER or folder in SURFACE, (
            f"{relative}:{line} imports rlx.{folder}, which has no place in the order"
        )
        if layer_of(folder) <= layer_of(own):
            continue
        assert only_types and (relative.as_posix(), folder) in FORWARD, (
            f"{relative}:{line} imports forward into rlx.{folder}"
        )


def test_nothing_is_unpickled_or_evaluated():
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Import):
                assert all(a.name != "pickle" for a in node.names), path


def test_no_file_grows_without_end():
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 700}
    assert long == {}, "split them by subject"
