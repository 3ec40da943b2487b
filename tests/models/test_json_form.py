"""Answers that are JSON: which texts a schema allows, and which tokens they may go on with."""

import json
import math

import numpy as np
import pytest

import rlx
from rlx.cli import main
from rlx.errors import OpError, RlxError
from rlx.models.grammar import DEAD, Guide
from rlx.models.json_form import schema_grammar
from rlx.models.sampling import Sampler, SamplingOptions, candidates
from rlx.models.token_bytes import TokenBytes, token_bytes

ANY = {"type": "object"}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", 2, None]}, "minItems": 1, "maxItems": 2},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "next"],
}


def follows(schema, text):
    grammar = schema_grammar(schema)
    return grammar.may_end(grammar.walk(grammar.start, text if isinstance(text, bytes) else text.encode()))


@pytest.mark.parametrize(
    "schema, text",
    [
        (ANY, "{}"),
        (ANY, ' {"a": [1, -2.5e-3, 0, "x\\u00e9\\n", null, true], "b": {}}'),
        (ANY, '\n{\n  "é€😀": [\n    []\n  ]\n}'),
        (PERSON, '{"name":"bob","next":null}'),
        (PERSON, '{"name": "é€😀", "age": -3, "tags": ["a", null], "next": {"name": "x", "next": null}}'),
        ({"type": ["string", "null"]}, "null"),
        ({"const": {"a": [1]}}, '{"a":[1]}'),
        ({"type": "integer", "enum": ["a", 3]}, "3"),
        ({"items": {"type": "number"}}, "[1, 2.5]"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, '{"x": true, "y": false}'),
        ({"type": "object", "required": ["a/b"]}, '{"a/b": 1}'),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"allOf": [{"type": "null"}]}}}, "null"),
        ({"properties": {"a": {}, "b": {}}}, "{}"),
        ({"properties": {"a": {}, "b": {}}}, '{"b": 1}'),
        ({"type": "array", "maxItems": 0}, "[]"),
    ],
)
def test_texts_that_follow_a_schema(schema, text):
    json.loads(text)
    assert follows(schema, text)


@pytest.mark.parametrize(
    "schema, text",
    [
        (ANY, "[]"),
        (ANY, "{"),
        (ANY, '{"a":}'),
        (ANY, '{"a":01}'),
        (ANY, '{"a":1,}'),
        (ANY, '{"a":.5}'),
        (ANY, '{"a":"\n"}'),
        (ANY, '{"a":"\\x"}'),
        (ANY, "{} "),
        (ANY, b'{"\xff":1}'),
        (ANY, b'{"\xed\xa0\x80":1}'),
        (ANY, b'{"\xc0\x80":1}'),
        (PERSON, "{}"),
        (PERSON, '{"name":"","next":null}'),
        (PERSON, '{"name":"four","next":null}'),
        (PERSON, '{"age":3,"name":"b","next":null}'),
        (PERSON, '{"name":"b","tags":[],"next":null}'),
        (PERSON, '{"name":"b","tags":["a","a","a"],"next":null}'),
        (PERSON, '{"name":"b","next":null,"more":1}'),
        ({"properties": {"a": {}, "b": {}}}, '{,"b": 1}'),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer", "enum": ["a", 3]}, '"a"'),
    ],
)
def test_texts_that_do_not(schema, text):
    assert not follows(schema, text)


@pytest.mark.parametrize(
    "schema, message",
    [
        ({"type": "string", "pattern": "a"}, "# has the keyword 'pattern', which is not supported for string"),
        ({"properties": {"a": {"type": "number", "minimum": 1}}}, "#/properties/a has the keyword 'minimum'"),
        ({"oneOf": [ANY, ANY]}, "'oneOf'"),
        ({"type": "date"}, "#/type must be among object, array, string, .*, got 'date'"),
        ({"type": []}, "#/type must be among"),
        ({"anyOf": []}, "#/anyOf must be a list of schemas"),
        ({"anyOf": [ANY], "type": "object"}, "anyOf and type side by side"),
        ({"$ref": "#/$defs/a"}, "refers to '#/\\$defs/a', which is not there"),
        ({"$ref": "other.json"}, "places of this document only"),
        ({"$ref": "#"}, "refers to itself without an end"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "refers to itself without an end"),
        ({"anyOf": [{"$ref": "#"}]}, "refers to itself without an end"),
        ({"type": "string", "maxLength": -1}, "#/maxLength must be a whole number up to 4096"),
        ({"type": "string", "maxLength": 1, "minLength": 2}, "a minLength above its maxLength"),
        ({"properties": []}, "#/properties must be an object"),
        ({"required": "a", "type": "object"}, "#/required must be names"),
        ({"required": ["a"], "additionalProperties": False}, "requires \\['a'\\], which it does not allow"),
        ({"enum": 3}, "#/enum must be a list"),
        ({"enum": [1], "type": "string"}, "lists no value of its type"),
        ({"const": math.nan}, "no value of JSON"),
        ({"properties": {"a": 3}}, "#/properties/a must be an object, got 3"),
        ({"items": {"type": "string", "maxLength": 4096}, "maxItems": 4096, "anyOf": 1}, "side by side"),
        ({"properties": {str(i): {"type": "string", "maxLength": 4096} for i in range(30)}}, "more than 100000 rules"),
    ],
)
def test_schemas_that_cannot_be_promised(schema, message):
    with pytest.raises(RlxError, match=message):
        schema_grammar(schema)


def test_deep_schemas_and_deep_texts():
    deep = ANY
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(RlxError, match="nested too deeply"):
        schema_grammar(deep)
    assert follows({"type": "array"}, "[" * 20000 + "]" * 20000)


VOCABULARY = [
    b"{",
    b"}",
    b'{"',
    b'"',
    b'": ',
    b"a",
    b"b}",
    b"1",
    b"true",
    b"tr",
    b"ue",
    b'"}',
    b"\xc3",
    b"\xa9",
    b" ",
    None,
    b"</s>",
    b":",
    b",",
]


def test_what_is_permitted_of_all_tokens_is_what_is_permitted_of_each():
    guide = Guide(schema_grammar(ANY), TokenBytes(VOCABULARY), [16])
    chance, met = np.random.default_rng(0), set()
    for _ in range(200):
        allowed = guide.permitted(len(VOCABULARY))
        np.testing.assert_array_equal(allowed, [guide.permits(t) for t in range(len(VOCABULARY))])
        met |= set(np.flatnonzero(allowed))
        if guide.is_over:
            assert np.flatnonzero(allowed).tolist() == [16]
            guide = Guide(schema_grammar(ANY), TokenBytes(VOCABULARY), [16])
        else:
            guide.advance(int(chance.choice(np.flatnonzero(allowed))))
    # A token without text never, each of the others at some time.
    assert met == set(range(len(VOCABULARY))) - {15}
    with pytest.raises(OpError, match="token 1 does not belong"):
        Guide(schema_grammar(ANY), TokenBytes(VOCABULARY), [16]).advance(1)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.05}], ids=str)
def test_guided_tokens_are_drawn_from_the_permitted_ones(options):
    """How often each token comes, beside the law: forbidden logits are minus infinity before every step."""
    chance, draws = np.random.default_rng(7), 20000
    guide = Guide(schema_grammar(ANY), TokenBytes(VOCABULARY), [16])
    guide.advance(2)
    logits = chance.normal(size=len(VOCABULARY)).astype("f4")
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=5, **options))
    counts = np.bincount([sampler.choose(logits, guide=guide) for _ in range(draws)], minlength=len(VOCABULARY))
    masked = np.where(guide.permitted(len(VOCABULARY)), logits.astype("f8"), -np.inf)
    ids, weights = candidates(masked, sampler.options)
    expected = np.zeros(len(VOCABULARY))
    expected[ids] = weights / weights.sum()
    np.testing.assert_array_equal(counts[expected == 0], 0)
    spread = np.sqrt(np.maximum(expected * (1 - expected) * draws, 1))
    assert (np.abs(counts - expected * draws) < 5 * spread).all()


def test_a_vocabulary_that_has_no_way_on():
    guide = Guide(schema_grammar(ANY), TokenBytes([b"a", b"b"]), [])
    with pytest.raises(OpError, match="no token of this model goes on"):
        Sampler(SamplingOptions()).choose(np.zeros(2, "f4"), guide=guide)


@pytest.fixture(scope="module")
def lm():
    return rlx.load("tiny")


@pytest.mark.parametrize("text", ["Hello, wörld 😀", ' {"a": [1, 2]}\n', "ROMEO:\tyes"])
def test_the_bytes_of_tokens_join_to_the_text(lm, text):
    known = lm.tokenizer.token_bytes
    assert b"".join(map(known.of, lm.tokenizer.encode(text, add_special=False))).decode() == text


def test_the_bytes_of_pieces():
    tokens = {"<unk>": 0, "<0x0A>": 1, "\u2581a": 2, "b": 3, "<0xC3>": 4}
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    added = [{"id": 0, "content": "<unk>", "special": True}, {"id": 5, "content": "<x>", "special": False}]
    document = {"model": {"vocab": tokens, "byte_fallback": True}, "added_tokens": added, "decoder": decoder}
    assert token_bytes(json.dumps(document)).tokens == [None, b"\n", b" a", b"b", b"\xc3", b"<x>"]
    document["model"] = {"vocab": [["<unk>", 0.0], ["\u2581a", -1.0]]}
    assert token_bytes(json.dumps(document)).tokens[1] == b" a"
    document["decoder"] = {"type": "WordPiece"}
    with pytest.raises(RlxError, match="not one with WordPiece"):
        token_bytes(json.dumps(document))


def test_several_answers_each_follow_the_schema(lm):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2]}}, "required": ["a", "b"]}
    answers = lm.complete(["ROMEO:", "The"], 200, n=2, schema=schema, temperature=1.2, seed=4)
    assert len(answers) == 4 and all(set(json.loads(a.text)) == {"a", "b"} for a in answers)
    assert {a.finish_reason for a in answers} == {"stop"}


def test_an_answer_that_may_go_on_ends_where_the_model_says(lm):
    assert schema_grammar({"type": "integer"}).start != DEAD
    text = lm.generate("KING:", 5, schema={"type": "integer"})
    assert text.strip().lstrip("-").isdigit()


def test_wrong_schemas_are_told_at_once(lm, tmp_path, capsys):
    with pytest.raises(OpError, match="generate: schema must be a JSON schema \\(a dict\\), got 'json'"):
        lm.generate("a", schema="json")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"enum": ["Romeo", "Juliet"]}))
    assert main(["generate", "tiny", "ROMEO:", "--schema", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) in ("Romeo", "Juliet")
    file.write_text("{")
    assert main(["generate", "tiny", "ROMEO:", "--schema", str(file)]) == 1
    assert "a JSON schema is needed" in capsys.readouterr().err
