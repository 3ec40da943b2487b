"""Hostile files: one kind of error, with the place, and never a crash, a hang or a large allocation."""

import errno
import importlib.util
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf
from rlx.formats.mapped_file import replace_file
from rlx.formats.safetensors import open_safetensors

TOOL = Path(__file__).parents[2] / "tools" / "make_malformed_files.py"
_spec = importlib.util.spec_from_file_location("make_malformed_files", TOOL)
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)


def read_all(opener, path):
    """Look at everything a file has."""
    with opener(path) as file:
        for key in file.metadata:
            file.metadata[key]
        return {name: np.asarray(tensor.array()) for name, tensor in file.tensors.items()}


def outcome(opener, path):
    """What reading gives: the arrays, or the message. Anything but FormatError fails the test."""
    try:
        return read_all(opener, path)
    except FormatError as error:
        return str(error)


@pytest.mark.parametrize("case", corpus.malformed_gguf(), ids=lambda case: case.name)
def test_malformed_gguf(case, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(case.content)
    if case.lazy:
        open_gguf(path).close()
    with pytest.raises(FormatError) as info:
        read_all(open_gguf, path)
    assert case.message in str(info.value)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("case", corpus.malformed_safetensors(), ids=lambda case: case.name)
def test_malformed_safetensors(case, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(case.content)
    if case.lazy:
        open_safetensors(path).close()
    with pytest.raises(FormatError) as info:
        read_all(open_safetensors, path)
    assert case.message in str(info.value)
    assert str(path) in str(info.value)


def test_the_sound_files_are_sound(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(corpus.sound_gguf())
    found = read_all(open_gguf, path)
    assert list(found) == ["a", "b"] and found["a"].tobytes() == bytes(range(32)) and found["b"].shape == (2, 32)
    with open_gguf(path) as file:
        assert file.metadata["tokens"] == ["a", "ö"] and file.metadata["nested"][0].tolist() == [1, 2, 3]
    path = tmp_path / "model.safetensors"
    path.write_bytes(corpus.sound_safetensors())
    assert read_all(open_safetensors, path)["b"].tolist() == [[8, 9], [10, 11], [12, 13]]


@pytest.mark.parametrize(
    ("opener", "content"),
    [(open_gguf, corpus.sound_gguf()), (open_safetensors, corpus.sound_safetensors())],
    ids=["gguf", "safetensors"],
)
def test_cut_at_every_byte(opener, content, tmp_path):
    path = tmp_path / "model"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            opener(path)


@pytest.mark.parametrize(
    ("opener", "content"),
    [(open_gguf, corpus.sound_gguf()), (open_safetensors, corpus.sound_safetensors())],
    ids=["gguf", "safetensors"],
)
def test_every_byte_changed(opener, content, tmp_path):
    """Each byte set to values that matter; the file is read or refused."""
    path = tmp_path / "model"
    refused = 0
    for place in range(len(content) - 30):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            refused += isinstance(outcome(opener, path), str)
    assert refused > 100


def test_declared_sizes_allocate_nothing(tmp_path):
    """Counts of 2^40 and more must be refused before memory is asked for."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "model.gguf"
    for case in corpus.malformed_gguf():
        path.write_bytes(case.content)
        outcome(open_gguf, path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 * 1024


def index(folder, places):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def test_malformed_indexes(tmp_path):
    (tmp_path / "one.safetensors").write_bytes(corpus.sound_safetensors())
    assert list(open_safetensors(index(tmp_path, {"b": "one.safetensors"})).tensors) == ["b"]
    for places, message in [
        ({"a": "two.safetensors"}, "shard two.safetensors is missing"),
        ({"c": "one.safetensors"}, "'c' is not in one.safetensors"),
        ({"a": "../one.safetensors"}, "beside the index"),
        ({"a": "/etc/passwd"}, "beside the index"),
        ({"a": ".."}, "beside the index"),
        ({"a": 1}, "beside the index"),
        ({}, "'weight_map' must map"),
        ([], "'weight_map' must map"),
    ]:
        with pytest.raises(FormatError, match="weight_map" if not places else None) as info:
            open_safetensors(index(tmp_path, places))
        assert message in str(info.value)


def test_folders_without_weights(tmp_path):
    with pytest.raises(FormatError, match=r"model\.safetensors is needed.*found none"):
        open_safetensors(tmp_path)


def test_the_script_writes_the_corpus(tmp_path, capsys):
    corpus.main(tmp_path / "corpus")
    cases = len(corpus.malformed_gguf()) + len(corpus.malformed_safetensors())
    assert len(list((tmp_path / "corpus").iterdir())) == cases == len(capsys.readouterr().out.splitlines())


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*weights\.gguf'"),
        replace_file(tmp_path / "weights.gguf"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
