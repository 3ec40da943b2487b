"""The recipes of CONTRIBUTING.md work as written: their code, their commands, their checks."""

import os
import re
import subprocess
import sys

import doc_pages
import pytest
from doc_pages import ROOT, blocks

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def code():
    [block] = [b for b in blocks(PAGE) if "class Double" in b.code]
    return block.code


def command():
    """The command of step 3, as arguments for this interpreter."""
    found = re.search(r"`\.venv/bin/python (-m pytest [^`]*-k Double)`", PAGE)
    assert found, "the recipe names no command"
    return [sys.executable, *found[1].split()]


def follow_the_recipe(tmp_path, source, files=None):
    """What the command of the recipe says, or the same command for some of its files."""
    named = [a for a in command() if files is None or not a.startswith("tests/") or a in files]
    (tmp_path / "double_op.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    # The file would be listed in ops/__init__.py; here a plugin makes it known before tests are collected.
    done = subprocess.run(
        [*named, "-p", "double_op", "-p", "no:cacheprovider", "-p", "no:xdist", "-rsf"],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_op_passes_its_generated_tests(tmp_path):
    status, output = follow_the_recipe(tmp_path, code())
    assert status == 0, output
    passed = re.search(r"(\d+) passed", output)
    # Types, text, decomposition, symbolic dims, jvp, vjp, second order, batch.
    assert passed and int(passed[1]) >= 8, output
    assert "skipped" not in output, output


@pytest.mark.parametrize(
    ("right", "wrong", "test"),
    [
        ("return x + x\n\n    def decompose", "return x + x + x\n\n    def decompose", "test_decomposition_agrees"),
        ("require_float(self, x)\n        return x", "return Shape((7,), x.dtype)", "test_infer_agrees_with_eval"),
    ],
)
def test_a_wrong_op_does_not_pass(tmp_path, right, wrong, test):
    assert right in code()
    status, output = follow_the_recipe(tmp_path, code().replace(right, wrong), ["tests/ops/test_conformance.py"])
    assert status == 1
    assert re.search(f"FAILED.*{test}", output), output


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("f.next(here)", "f.next(f.values[0])", "Not equal to tolerance"),
        ("is DType.F32)", "is DType.F64)", "AssertionError: cpu: @one_op, 1 call"),
        ('"div": np.divide', '"div": np.multiply', "Not equal to tolerance"),
        ("ops.Reduce: lambda", "ops.Sort: lambda", "calculator cannot run"),
        ('machine_named("sm_80")', 'machine_named("gfx942")', "AssertionError"),
        ("pre_norms=False, post_norms=True, qk", "pre_norms=False, qk", "AssertionError"),
        ('"blockIdx.x"', '"threadIdx.x"', "AssertionError"),
    ],
)
def test_the_checks_of_the_recipes_find_what_is_wrong(tmp_path, right, wrong, message):
    """The page as it is passes (test_pages); a kernel or a backend that is wrong or not used fails its checks."""
    assert PAGE.count(right) == 1
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(right, wrong))
    with pytest.raises(doc_pages.PageError, match=message):
        doc_pages.run_page(page)
