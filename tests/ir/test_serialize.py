"""Files: round trips, and refusal of everything that is not exactly right."""

import json

import numpy as np
import pytest

import rlx
from rlx.errors import FormatError
from rlx.ir.graph import Graph
from rlx.ir.serialize import from_bytes, from_json, load_graph, save_graph, to_bytes, to_json


def example():
    g = Graph("example")
    x, cache = g.input("x", ("B", 3)), g.input("cache", (40,))
    big = g.constant(np.arange(40, dtype="f4"))
    y = rlx.tanh(x * 2.0).named("hidden")
    z = cache + big
    g.set_outputs([y, z])
    g.alias(z, cache)
    return g


def test_round_trips_keep_names_and_origins():
    g = example()
    for again in (from_json(to_json(g)), from_bytes(to_bytes(g))):
        assert again == g
        assert again.aliases == {1: "cache"}
        assert [n.name for n in again.nodes] == [n.name for n in g.nodes]
        assert [n.origin for n in again.nodes] == [n.origin for n in g.nodes]


@pytest.mark.parametrize("name", ["g.json", "g.rlx"])
def test_save_and_load(tmp_path, name):
    save_graph(example(), tmp_path / name)
    assert load_graph(tmp_path / name) == example()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_failed_save_leaves_nothing(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(OSError, match="folder"):
        save_graph(example(), target)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "not an rlx graph"),
        (lambda d: d.update(version=99), "has version 99; this rlx reads version 1"),
        (lambda d: d.pop("nodes"), "lacks 'nodes' of type list"),
        (lambda d: d["nodes"][2].pop("op"), "lacks 'op' of type str"),
        (lambda d: d["nodes"][4].update(op="mulx"), "unknown op 'mulx'"),
        (lambda d: d["nodes"][4].update(inputs=[0, 77]), "operand %77 does not exist"),
        (lambda d: d["nodes"][4].update(inputs=[0, -1]), "operand %-1 does not exist"),
        (lambda d: d["nodes"][4].update(inputs=[0, "1"]), "'1' is not a node number"),
        (lambda d: d["nodes"][4].update(types=["f32[9]"]), "is written .*, but infers"),
        (lambda d: d["nodes"][0]["attrs"].update(type="f99[2]"), "invalid program"),
        (lambda d: d["nodes"][0].update(attrs=[1]), "malformed"),
        (lambda d: d.update(outputs=[99]), "has no node %99"),
        (lambda d: d.update(aliases={"7": "x"}), "malformed"),
        (lambda d: next(iter(d["constants"].values())).update(base64="!"), "not valid base64"),
        (lambda d: next(iter(d["constants"].values())).update(base64="AAAA"), "but has 3 bytes"),
        (lambda d: d["constants"].clear(), "lacks the data of constant"),
        (lambda d: d.update(level="nowhere"), "is not a program level"),
    ],
)
def test_broken_json_is_refused(change, message):
    document = json.loads(to_json(example()))
    change(document)
    with pytest.raises(FormatError, match=message):
        from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "rlx.graph"}', "[" * 100_000])
def test_other_text_is_refused(text):
    with pytest.raises(FormatError):
        from_json(text)


def test_damaged_constants_are_noticed():
    document = json.loads(to_json(example()))
    entry = document["constants"][max(document["constants"], key=lambda k: len(document["constants"][k]["base64"]))]
    entry["base64"] = "B" + entry["base64"][1:]
    with pytest.raises(FormatError, match="is damaged: its content hashes to"):
        from_json(json.dumps(document))


@pytest.mark.parametrize("position", [0, 5, 9, 40, 300, -1])
def test_every_damaged_byte_is_noticed(position):
    data = bytearray(to_bytes(example()))
    data[position] ^= 0x41
    with pytest.raises(FormatError):
        from_bytes(bytes(data))


@pytest.mark.parametrize("length", [0, 3, 16, 100, -1, -17])
def test_cut_files_are_refused(length):
    with pytest.raises(FormatError):
        from_bytes(to_bytes(example())[:length])
