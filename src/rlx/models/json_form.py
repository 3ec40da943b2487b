"""JSON as a grammar: the texts that a JSON schema allows, as far as a grammar can say it.

    grammar = schema_grammar({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})

Every text of the grammar follows the schema. There may be others that follow it: properties come in the order in which
they are declared and no others beside them, and between the parts of a text there is one space, or a new line and its
indentation, or nothing. Keywords that the grammar cannot promise (`pattern`, `minimum`, `oneOf` and so on) are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.errors import RlxError
from rlx.models.grammar import DEAD, Bytes, Grammar, Item

# What says nothing about which values are allowed.
_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_NOTES |= {"$schema", "$id", "$comment", "$defs", "definitions"}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# What is promised beside the type, by type.
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
}
# More repetitions than this are rules without use for an answer.
_MOST_COUNTED = 4096
_MOST_RULES = 100_000
_MOST_INDENTED = 20


def _of(*parts: int | tuple[int, int]) -> Bytes:
    """A set of bytes and of ranges of them, both ends included."""
    return frozenset(b for part in parts for b in (range(part[0], part[1] + 1) if isinstance(part, tuple) else [part]))


def _text(text: str) -> list[Item]:
    return [frozenset([byte]) for byte in text.encode()]


def _spelled(value: Any) -> list[Item]:
    """The text of one value, without spaces."""
    try:
        return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    except UnicodeEncodeError:  # halves of characters can be written as escapes only
        return _text(json.dumps(value, separators=(",", ":"), allow_nan=False))
    except ValueError:
        raise RlxError(f"schema: {value!r:.80} is no value of JSON") from None


_DIGIT = _of((0x30, 0x39))
_HEX = _DIGIT | _of((0x41, 0x46), (0x61, 0x66))
_MORE = _of((0x80, 0xBF))
# The characters of a string: well-formed UTF-8 without quotation mark, backslash and control characters, or an escape.
_CHARACTER: list[list[Item]] = [
    [_of((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))],
    [_of((0xC2, 0xDF)), _MORE],
    [_of(0xE0), _of((0xA0, 0xBF)), _MORE],
    [_of((0xE1, 0xEC), 0xEE, 0xEF), _MORE, _MORE],
    [_of(0xED), _of((0x80, 0x9F)), _MORE],
    [_of(0xF0), _of((0x90, 0xBF)), _MORE, _MORE],
    [_of((0xF1, 0xF3)), _MORE, _MORE, _MORE],
    [_of(0xF4), _of((0x80, 0x8F)), _MORE, _MORE],
    [*_text("\\"), frozenset(b'"\\/bfnrt')],
    [*_text("\\u"), _HEX - _of(0x44, 0x64), _HEX, _HEX, _HEX],
    # The second half of the range of d are halves of characters.
    [*_text("\\u"), _of(0x44, 0x64), _of((0x30, 0x37)), _HEX, _HEX],
]
_RULES: dict[str, list[list[Item]]] = {
    "space": [[], _text(" "), [*_text("\n"), f"indent {_MOST_INDENTED}"]],
    **{f"indent {n}": [[], [_of(0x20, 0x09), f"indent {n - 1}"]] for n in range(1, _MOST_INDENTED + 1)},
    "indent 0": [[]],
    "character": _CHARACTER,
    "characters": [[], ["character", "characters"]],
    "string": [[*_text('"'), "characters", *_text('"')]],
    "digits": [[], [_DIGIT, "digits"]],
    "magnitude": [_text("0"), [_of((0x31, 0x39)), "digits"]],
    "integer": [["magnitude"], [*_text("-"), "magnitude"]],
    "fraction": [[], [*_text("."), _DIGIT, "digits"]],
    "sign": [[], [_of(0x2B, 0x2D)]],
    "exponent": [[], [_of(0x45, 0x65), "sign", _DIGIT, "digits"]],
    "number": [["integer", "fraction", "exponent"]],
    "boolean": [_text("true"), _text("false")],
    "null": [_text("null")],
    "value": [["object"], ["array"], ["string"], ["number"], ["boolean"], ["null"]],
}


def schema_grammar(schema: Any) -> Grammar:
    """The grammar of the JSON texts that follow a schema."""
    rules: dict[str, list[list[Item]]] = {}
    rules["text"] = [["space", add_schema(rules, schema)]]
    grammar = Grammar(rules, "text")
    if grammar.start == DEAD:
        raise _refused("#", "refers to itself without an end, so that no text follows it")
    return grammar


def add_schema(rules: dict[str, list[list[Item]]], schema: Any, is_strict: bool = True) -> str:
    """Put the rules of a schema beside those that there are: the name of the one that begins its texts.

    What is not strict passes over keywords that the grammar cannot promise."""
    try:
        return _Rules(rules, schema, is_strict).start()
    except RecursionError:
        raise RlxError("schema: it is nested too deeply") from None


class _Rules:
    """The rules of one schema; each schema inside it has a rule of its own."""

    def __init__(self, rules: dict[str, list[list[Item]]], schema: Any, is_strict: bool) -> None:
        self._rules, self._schema, self._is_strict = rules, schema, is_strict
        if "value" not in rules:
            rules |= {name: list(alternatives) for name, alternatives in _RULES.items()}
            rules["object"] = [self._map("value")]
            rules["array"] = [self._list("value", 0, None)]
        self._places: dict[str, str] = {}

    def start(self) -> str:
        return self._rule(self._schema, "#")

    def _add(self, alternatives: Sequence[Sequence[Item]]) -> str:
        if len(self._rules) >= _MOST_RULES:
            raise RlxError(f"schema: it needs more than {_MOST_RULES} rules; ask for less, or count less")
        name = f"rule {len(self._rules)}"
        self._rules[name] = [list(alternative) for alternative in alternatives]
        return name

    def _rule(self, schema: Any, place: str) -> str:
        """The name of the rule of the schema at a place of the document."""
        if place not in self._places:
            # Known before it is read, since a schema may refer to itself.
            self._places[place] = name = self._add([])
            self._rules[name] = self._alternatives(schema, place)
        return self._places[place]

    def _alternatives(self, schema: Any, place: str) -> list[list[Item]]:
        if schema is True:
            return [["value"]]
        if not isinstance(schema, Mapping):
            raise _refused(place, f"must be an object, got {schema!r:.80}")
        given = {key: value for key, value in schema.items() if key not in _NOTES}
        if not self._is_strict:
            given = _promised(given)
        if "$ref" in given:
            return [[self._referred(_only(given, "$ref", place), place)]]
        if "anyOf" in given:
            several = _only(given, "anyOf", place)
            _require(isinstance(several, list) and bool(several), f"{place}/anyOf", "must be a list of schemas")
            return [[self._rule(one, f"{place}/anyOf/{number}")] for number, one in enumerate(several)]
        if "allOf" in given:
            several = _only(given, "allOf", place)
            _require(isinstance(several, list) and len(several) == 1, f"{place}/allOf", "may have one schema only")
            return [[self._rule(several[0], f"{place}/allOf/0")]]
        types = _types(given, place)
        for key in ("const", "enum"):
            if key in given:
                listed = given.pop(key)
                given.pop("type", None)
                _only(given | {key: listed}, key, place)
                _require(key == "const" or isinstance(listed, list), f"{place}/enum", "must be a list of values")
                return _listed([listed] if key == "const" else listed, types, place)
        _require_known(given, types, place)
        return [self._of_type(kind, given, place) for kind in types]

    def _referred(self, reference: Any, place: str) -> str:
        parts = reference.split("/") if isinstance(reference, str) else [""]
        _require(parts[0] == "#", place, f"may refer to places of this document only, got {reference!r:.80}")
        found = self._schema
        for part in parts[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
                continue
            _require(
                isinstance(found, Mapping) and part in found, place, f"refers to {reference!r:.80}, which is not there"
            )
            found = found[part]
        return self._rule(found, reference)

    def _of_type(self, kind: str, given: Mapping[str, Any], place: str) -> list[Item]:
        if kind == "object":
            return self._object(given, place)
        if kind == "array":
            least, most = _counts(given, "minItems", "maxItems", place)
            return self._list(self._rule(given.get("items", True), f"{place}/items"), least, most)
        if kind == "string" and ("minLength" in given or "maxLength" in given):
            least, most = _counts(given, "minLength", "maxLength", place)
            return [*_text('"'), self._repeated(["character"], least, most), *_text('"')]
        return [kind]

    def _object(self, given: Mapping[str, Any], place: str) -> list[Item]:
        properties, required = given.get("properties", {}), given.get("required", [])
        _require(isinstance(properties, Mapping), f"{place}/properties", "must be an object")
        _require(
            isinstance(required, list) and all(isinstance(n, str) for n in required),
            f"{place}/required",
            "must be names",
        )
        more = given.get("additionalProperties", True)
        missing = [name for name in required if name not in properties]
        _require(not missing or more is not False, place, f"requires {missing[:1]}, which it does not allow")
        if not properties and not missing and more is not False:
            return self._map("value" if more is True else self._rule(more, f"{place}/additionalProperties"))
        named = {name: self._rule(one, f"{place}/properties/{_escaped(name)}") for name, one in properties.items()}
        named |= {name: self._rule(more, f"{place}/additionalProperties") for name in missing}
        # From the last one on: what follows when something stands before, and when nothing does.
        behind, first = self._add([[]]), self._add([[]])
        for name, rule in reversed(named.items()):
            member: list[Item] = [*_spelled(name), *_text(":"), "space", rule, behind]
            is_open = name not in required
            first = self._add([["space", *member], *([[first]] if is_open else [])])
            behind = self._add([["space", *_text(","), "space", *member], *([[behind]] if is_open else [])])
        return [*_text("{"), first, "space", *_text("}")]

    def _map(self, value: str) -> list[Item]:
        """Any names with values of one rule."""
        member: list[Item] = ["string", *_text(":"), "space", value]
        return [*_text("{"), "space", self._separated(member, 0, None), "space", *_text("}")]

    def _list(self, value: str, least: int, most: int | None) -> list[Item]:
        return [*_text("["), "space", self._separated([value], least, most), "space", *_text("]")]

    def _separated(self, items: list[Item], least: int, most: int | None) -> str:
        """So many of `items`, with commas between."""
        if most == 0:
            return self._add([[]])
        others = self._repeated(
            ["space", *_text(","), "space", *items], max(least - 1, 0), None if most is None else most - 1
        )
        return self._add([[*items, others], *([] if least else [[]])])

    def _repeated(self, items: list[Item], least: int, most: int | None) -> str:
        """So many of `items`."""
        if most is None:
            rule = self._add([[]])
            self._rules[rule].append([*items, rule])
        else:
            rule = self._add([[]])
            for _ in range(most - least):
                rule = self._add([[], [*items, rule]])
        for _ in range(least):
            rule = self._add([[*items, rule]])
        return rule


def _refused(place: str, what: str) -> RlxError:
    return RlxError(f"schema: {place} {what}")


def _require(holds: bool, place: str, what: str) -> None:
    if not holds:
        raise _refused(place, what)


def _escaped(name: str) -> str:
    """A name as a part of a place."""
    return name.replace("~", "~0").replace("/", "~1")


def _only(given: Mapping[str, Any], key: str, place: str) -> Any:
    """The value of a keyword that stands alone."""
    others = [name for name in given if name != key]
    _require(not others, place, f"has {key} and {', '.join(others[:3])} side by side, which is not supported")
    return given[key]


def _promised(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the grammar can promise of a schema; nothing of one that is made of several at once."""
    given = dict(given)
    if "oneOf" in given and "anyOf" not in given:
        given["anyOf"] = given["oneOf"]
    if len(given.get("allOf") or [0]) > 1:
        return {}
    alone = next((key for key in ("$ref", "anyOf", "allOf", "const", "enum") if key in given), None)
    if alone is not None:
        return {alone: given[alone]}
    said = given.get("type", [])
    types = said if isinstance(said, list) else [said]
    known = {name for kind, names in _KEYWORDS.items() if not types or kind in types for name in names}
    return {key: value for key, value in given.items() if key == "type" or key in known}


def _types(given: Mapping[str, Any], place: str) -> list[str]:
    said = given.get("type")
    if said is None:
        # Keywords say nothing about values of other types; who writes `properties` means an object.
        meant = [kind for kind, names in _KEYWORDS.items() if any(name in given for name in names)]
        return meant or ["object", "array", "string", "number", "boolean", "null"]
    types = said if isinstance(said, list) else [said]
    known = bool(types) and all(isinstance(kind, str) and kind in _TYPES for kind in types)
    _require(known, f"{place}/type", f"must be among {', '.join(_TYPES)}, got {said!r:.80}")
    return types


def _require_known(given: Mapping[str, Any], types: Sequence[str], place: str) -> None:
    known = {"type", *(name for kind in types for name in _KEYWORDS.get(kind, ()))}
    for name in given:
        _require(
            name in known, place, f"has the keyword {name!r:.80}, which is not supported for {' and '.join(types)}"
        )


def _counts(given: Mapping[str, Any], low: str, high: str, place: str) -> tuple[int, int | None]:
    least, most = given.get(low, 0), given.get(high)
    for name, value in ((low, least), (high, most)):
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNTED
        _require(value is None or is_count, f"{place}/{name}", f"must be a whole number up to {_MOST_COUNTED}")
    _require(most is None or least <= most, place, f"has a {low} above its {high}")
    return least, most


def _listed(values: Sequence[Any], types: Sequence[str], place: str) -> list[list[Item]]:
    fitting = [value for value in values if any(_is_of_type(value, kind) for kind in types)]
    _require(bool(fitting), place, "lists no value of its type")
    return [_spelled(value) for value in fitting]


def _is_of_type(value: Any, kind: str) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case None:
            return kind == "null"
        case str():
            return kind == "string"
        case int():
            return kind in ("integer", "number")
        case float():
            return kind == "number" or (kind == "integer" and value.is_integer())
        case list():
            return kind == "array"
        case _:
            return kind == "object"
