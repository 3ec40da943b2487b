"""What the pages point at exists: links, headings, files, make targets, names of the package."""

import importlib
import re

import pytest
from doc_pages import ROOT, blocks, documentation

import rlx

PAGES = documentation()
per_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


def prose(page):
    """The text of a page without its code blocks."""
    lines = page.read_text().split("\n")
    for block in reversed(blocks(page.read_text())):
        del lines[block.first - 1 : block.end + 1]
    return "\n".join(lines)


def anchors(page):
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@per_page
def test_links_lead_somewhere(page):
    # `branches[index](x)` is code.
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for target in re.findall(r"(?<!\\)\[[^\[\]]*\]\(([^)\s]+)\)", text):
        assert not target.startswith("http"), f"{target}: pages must be readable without a network"
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@per_page
def test_files_exist(page):
    for path in re.findall(r"`((?:src|tests|tools|docs|examples)/[\w./-]*)`", prose(page)):
        assert (ROOT / path).exists(), path


@per_page
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"`make ([\w-]+)`", prose(page))
    for block in blocks(page.read_text()):
        commands += re.findall(r"^make ([\w-]+)", block.code, re.MULTILINE)
    assert set(commands) <= targets


def resolve(dotted):
    first, *rest = dotted.split(".")
    value, path = importlib.import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(value, part):
            value = importlib.import_module(path)
        else:
            value = getattr(value, part)
    return value


@per_page
def test_names_of_the_package_exist(page):
    """`rlx.x.y` and `rnp.x` in backquotes, as they are or with a call behind them."""
    text = prose(page).replace("`rnp.", "`rlx.numpy.")
    for dotted in re.findall(r"`(rlx(?:\.[A-Za-z_]\w*)+)(?=[`(\[,\s])", text):
        assert resolve(dotted) is not None, dotted


def test_readme_names_every_folder_and_no_other():
    table = (ROOT / "README.md").read_text().partition("## Where things are")[2].partition("\n\n[")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    named = {folder for row in rows for folder in re.findall(r"`(\w+)/`", row)}
    assert named == {p.parent.name for p in (ROOT / "src" / "rlx").glob("*/*.py")}


def test_every_error_has_a_section_with_an_example():
    text = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    classes = {n: c for n, c in vars(rlx.errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    assert sections.keys() == classes.keys()
    for name, section in sections.items():
        raised = re.findall(r"```python raises (\w+)", section)
        if name == "InternalError":
            continue
        assert raised, f"{name} has no example"
        for error in raised:
            home = classes.get(error) or getattr(importlib.import_module("rlx.ir.module"), error)
            assert issubclass(home, classes[name]), f"the example of {name} raises {error}"
        assert "\nFix: " in section, f"{name} has no way out"


def test_glossary_is_sorted():
    words = re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    words = [w for w in words if not w.startswith("-")]
    assert words == sorted(words, key=str.lower)
