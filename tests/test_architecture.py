"""Imports point one way. What would point back goes through a registry that the later folder fills."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "rlx"
# Each folder may import itself and those before it; errors, env, knobs and the like (BASE) stand below all.
ORDER = [
    "ir",
    "sharding",
    "quant",
    "formats",
    "ops",
    "hir",
    "trace",
    "autodiff",
    "compile",
    "quantized",
    "kernels",
    "backends",
    "runtime",
    "compat",
]
ORDER += ["models", "finetune", "planning", "splat", "bench", "cli"]
BASE = {
    "collector",
    "errors",
    "env",
    "foreign_names",
    "knobs",
    "locks",
    "perfetto",
    "stamps",
    "cache_directory",
    "systems",
}
# The surface that users type; nothing below it may use it.
SURFACE = {"numpy": "runtime", "nn": "runtime", "random": "runtime", "debug": "trace", "tree": "trace"}
SURFACE |= {
    "distributed": "runtime",
    "optim": "runtime",
    "train": "runtime",
    "audio": "runtime",
    "rf": "runtime",
    "sparse": "runtime",
    "onnx": "runtime",
}
SURFACE |= {"fusion": "compile", "opt": "compile", "linalg": "runtime", "gguf": "runtime", "prelude": "splat"}
SURFACE |= dict.fromkeys(("driver", "macros", "cortexm", "fpga"), "runtime")
SURFACE |= {"tree_util": "trace", "flatten_util": "trace", "jax_names": "runtime"}
SURFACE |= {"scipy": "runtime", "image": "runtime", "lax": "runtime", "random_distributions": "runtime"}
# The same inside folders: what stands in a folder itself comes after all its subfolders.
INSIDE = {
    "kernels": ["machines", "tuning", "ir", "math", "specs", "schedules", "cpu", "gpu", "legalize", "words", "emit"],
    "backends": [
        "compile_options",
        "donation",
        "memory",
        "memory_space",
        "api",
        "kernel_times",
        "own_kernels",
        "export",
        "engine",
        "forms",
        "op_lowering",
        "by_sizes",
        "native",
        "options_to_pipeline",
        "program",
        "reference",
        "cpu",
        "text_gpu",
        "cuda",
    ],
}
# `ir` reads nothing of later folders; these are the only places where a function reaches forward, each with its reason.
FORWARD = {
    ("ir/graph.py", "ops"): "type checkers see the builders that rlx.ops installs",
    ("ir/tensor.py", "ops"): "type checkers see the methods that rlx.ops installs",
    ("ir/module.py", "hir"): "type checkers see the builders that rlx.hir installs",
    ("compile/target.py", "kernels"): "type checkers see what a target's functions give",
    ("compile/target.py", "backends"): "type checkers see what a target's functions give",
}


def layer_of(folder):
    return ORDER.index(SURFACE.get(folder, folder))


def module_name(path):
    parts = ("rlx", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(p): p for p in FILES}


def statements(node):
    """Every statement inside of a node, without the expressions, which are most of a tree."""
    for blocks in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, blocks, ()):
            yield inner
            yield from statements(inner)


@cache
def imports(path):
    """(module, line, only for type checking, at the top level) of every rlx import in a file."""
    tree = ast.parse(path.read_text())
    checking = {
        id(inner)
        for node in statements(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in statements(node)
    }
    top = {id(node) for node in tree.body}
    found = []
    for node in statements(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rlx":
            inside = [f"{node.module}.{a.name}" for a in node.names]
            names = [name if name in MODULES else node.module for name in inside]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("rlx.")]
        found += [(name, node.lineno, id(node) in checking, id(node) in top) for name in names]
    return found


ordered = pytest.mark.parametrize(
    "path", [p for p in FILES if p.parent != ROOT or p.stem in SURFACE], ids=lambda p: str(p.relative_to(ROOT))
)


@ordered
def test_imports_point_one_way(path):
    relative = path.relative_to(ROOT)
    own = relative.parts[0].removesuffix(".py")
    for module, line, only_types, _ in imports(path):
        folder = module.split(".")[1] if "." in module else own
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


@pytest.mark.parametrize("folder", INSIDE)
def test_imports_point_one_way_inside_a_folder(folder):
    order = INSIDE[folder]
    for path in (ROOT / folder).rglob("*.py"):
        own = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        for module, line, only_types, _ in imports(path):
            parts = module.split(".")
            if len(parts) < 3 or parts[1] != folder or parts[2] == own or own not in order or only_types:
                continue
            place = order.index(parts[2]) if parts[2] in order else len(order)
            assert place < order.index(own), f"{path.relative_to(ROOT)}:{line} imports forward into {module}"


def test_no_module_needs_itself():
    """No cycle of imports at the top level: any module can be the first to be imported."""
    needs = {m: {n for n, _, checking, top in imports(p) if top and not checking} for m, p in MODULES.items()}
    done, path = set(), []

    def visit(module):
        if module in path:
            pytest.fail(" -> ".join([*path[path.index(module) :], module]))
        if module in done or module not in needs:
            return
        path.append(module)
        for other in sorted(needs[module]):
            # A package that imports its own modules, and they names of its, is one unit; Python resolves that.
            if not (module + ".").startswith(other + ".") and not (other + ".").startswith(module + "."):
                visit(other)
        path.pop()
        done.add(module)

    for module in sorted(needs):
        visit(module)


def test_nothing_is_unpickled_or_evaluated():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        # Most files have no such words, but methods of these names, and need not be parsed for it.
        if not re.search(r"(?<![.\w])(?<!def )(?:eval|exec)\s*\(|\bpickle\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Import):
                assert all(a.name != "pickle" for a in node.names), path


def test_no_file_grows_without_end():
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 700}
    assert long == {}, "split them by subject"
