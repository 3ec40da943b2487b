"""`rlx cache show|clear`."""

import json

import pytest

from rlx.cli import main


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    for kind, size in (("objects", 100), ("programs", 20), ("prepared", 3000), ("models", 50_000)):
        folder = tmp_path / "cache" / kind
        (folder / "sub").mkdir(parents=True)
        (folder / "one").write_bytes(bytes(size))
        (folder / "sub" / "two").write_bytes(bytes(size))
    return tmp_path / "cache"


def run(capsys, *words):
    code = main(["cache", *map(str, words)])
    found = capsys.readouterr()
    return code, found.out, found.err


def files(cache):
    return {p.parent.name if p.parent.name != "sub" else p.parent.parent.name for p in cache.rglob("*") if p.is_file()}


def test_what_there_is(cache, capsys):
    code, out, _ = run(capsys, "show")
    assert code == 0 and out.startswith(f"{cache}\n") and "  models         2 files        0.1 MB" in out
    assert run(capsys)[1] == out
    document = json.loads(run(capsys, "show", "--json")[1])
    assert document["directory"] == str(cache) and document["cleared"] is False
    sizes = {row["kind"]: (row["files"], row["bytes"]) for row in document["kinds"]}
    assert sizes == {"objects": (2, 200), "programs": (2, 40), "prepared": (2, 6000), "models": (2, 100_000)}
    assert files(cache) == {"objects", "programs", "prepared", "models"}


def test_models_stay_unless_they_are_named(cache, capsys):
    code, out, _ = run(capsys, "clear")
    assert code == 0 and out.count("deleted") == 3 and files(cache) == {"models"}
    assert run(capsys, "clear", "models")[0] == 0 and files(cache) == set()
    assert run(capsys, "clear")[0] == 0


def test_one_kind(cache, capsys):
    document = json.loads(run(capsys, "clear", "prepared", "--json")[1])
    assert document["cleared"] is True and [row["kind"] for row in document["kinds"]] == ["prepared"]
    assert files(cache) == {"objects", "programs", "models"}
    code, out, err = run(capsys, "clear", "everything")
    assert (code, out) == (1, "") and "kinds are objects, programs, prepared, models" in err
    assert files(cache) == {"objects", "programs", "models"}


def test_links_are_not_followed(cache, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (cache / "objects" / "link").symlink_to(tmp_path / "mine")
    (cache / "models" / ".smollm2.lock").touch()
    run(capsys, "clear", "objects", "models")
    assert (tmp_path / "mine" / "file").exists() and not (cache / "objects" / "link").is_symlink()
    assert (cache / "models" / ".smollm2.lock").exists()


def test_a_cache_that_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "none"))
    assert run(capsys, "show")[0] == 0 and run(capsys, "clear")[0] == 0
