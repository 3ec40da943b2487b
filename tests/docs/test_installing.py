"""The page on extras names every one of them, and what it says they bring is what they bring."""

import re
import tomllib

import pytest
from doc_pages import ROOT

from rlx.compile.target import targets

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGE = (ROOT / "docs" / "installing.md").read_text()
ROWS = {row[0]: row[1:] for row in re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)}
ASKED_FOR = "wgpu metal mlx xla tpu cuda rocm web cortexm fpga linalg sparse llm apple-silicon nvidia edge all-cpu full"
FOR_DEVELOPERS = {"dev", "peers"}


def test_every_extra_is_on_the_page_and_no_other():
    assert {*ASKED_FOR.split()} <= {*EXTRAS}
    assert {*ROWS} == {*EXTRAS} - FOR_DEVELOPERS
    for name in FOR_DEVELOPERS:
        assert f"`{name}`" in PAGE
    assert all(good_for.strip() for _, good_for in ROWS.values())


def test_every_extra_of_a_target_exists():
    named = {target.extra for target in targets() if target.extra}
    assert named and named <= {*EXTRAS}


def parts_of(requirement):
    """The extras of rlx that a requirement names; none if it is another package."""
    found = re.fullmatch(r"rlx\[([\w,-]+)\]", requirement)
    return found[1].split(",") if found else []


@pytest.mark.parametrize("name", sorted({*EXTRAS} - FOR_DEVELOPERS))
def test_the_page_says_what_an_extra_brings(name):
    brings = ROWS[name][0].lower()
    for requirement in EXTRAS[name]:
        parts = parts_of(requirement)
        assert {*parts} <= {*EXTRAS}
        words = [f"`{part}`" for part in parts] or [re.match(r"[\w-]+", requirement)[0].lower()]
        assert name == "full" or all(word in brings for word in words), (name, words)
    if not EXTRAS[name]:
        assert brings == "nothing"


def all_parts(name):
    return {name}.union(*(all_parts(part) for requirement in EXTRAS[name] for part in parts_of(requirement)))


def test_full_is_all_of_them():
    assert all_parts("full") == {*EXTRAS} - FOR_DEVELOPERS


def test_extras_bring_nothing_that_is_not_imported():
    packages = {
        re.match(r"[\w-]+", requirement)[0]
        for name in {*EXTRAS} - FOR_DEVELOPERS
        for requirement in EXTRAS[name]
        if not parts_of(requirement)
    }
    sources = "\n".join(file.read_text() for file in (ROOT / "src" / "rlx").rglob("*.py"))
    # Packages whose module has another name.
    modules = {"pyobjc-framework-Metal": "Metal"}
    for package in packages:
        assert re.search(rf"^\s*(import|from) {modules.get(package, package)}\b", sources, re.MULTILINE), package
