"""Grouping and LIR of the ten families are as they were last looked at; see golden_texts for what the files hold."""

import pytest
from golden_texts import FOLDER, NAMES, golden_text


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_unchanged(name):
    kept = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert golden_text(name) == kept, "if that is meant: python tools/refresh_golden_texts.py, and look at the diff"


def test_every_file_belongs_to_a_program():
    assert sorted(p.stem for p in FOLDER.glob("*.txt")) == sorted(NAMES)
