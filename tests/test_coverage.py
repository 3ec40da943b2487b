"""docs/coverage.csv is true: it has every item of the mission, and what it calls done can be imported."""

import csv
import importlib
import re
import tomllib
from pathlib import Path

import pytest

import rlx

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TABLE = (ROOT / "docs" / "coverage.csv").read_text()
ROWS = list(csv.DictReader(TABLE.splitlines()))
STATES = {"done", "planned", "not applicable"}


def resolve(dotted):
    """The object a dotted name means: a module, an attribute, or an annotated field of a class."""
    first, *rest = dotted.split(".")
    value = importlib.import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        if hasattr(value, part):
            value = getattr(value, part)
        elif part in getattr(value, "__annotations__", {}):
            value = value.__annotations__[part]
        else:
            value = importlib.import_module(path)
    return value


def test_every_item_of_the_mission_has_a_row():
    assert [int(r["number"]) for r in ROWS] == list(range(1, 781))
    assert {r["state"] for r in ROWS} <= STATES


@pytest.mark.parametrize("row", [r for r in ROWS if r["state"] == "done"], ids=lambda r: f"{r['number']}-{r['python']}")
def test_what_is_called_done_exists(row):
    assert row["python"].startswith("rlx"), row
    if extra := re.fullmatch(r"rlx\[([\w-]+)\]", row["python"]):
        assert extra[1] in EXTRAS
    else:
        assert resolve(row["python"]) is not None


@pytest.mark.parametrize("row", [r for r in ROWS if r["state"] != "done"], ids=lambda r: f"{r['number']}-{r['item']}")
def test_what_is_not_done_says_where_it_goes_or_why(row):
    assert row["note"].strip(), row


def test_public_names_of_the_package_exist():
    for name in rlx._HOME:
        assert getattr(rlx, name) is not None, name
    for name in dir(rlx):
        if not name.startswith("_") and name not in ("opt",):
            getattr(rlx, name)
