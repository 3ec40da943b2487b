"""Random templates, among them ones that double, nest and repeat without end: text or one error, in bounded time."""

import random

import pytest

pytest.importorskip("jinja2")

from rlx.errors import RlxError
from rlx.models.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{{ 1 }}"}]
ATOMS = [
    "1",
    "0",
    "-1",
    "9999999999",
    "1.5",
    "true",
    "none",
    "'a'",
    "''",
    "'\\n'",
    "'ü'",
    "[]",
    "[1]",
    "{}",
    "{'a':1}",
    "messages",
    "messages[0]",
    "bos_token",
    "x",
    "y",
    "n.v",
    "range(9)",
    "range(99999)",
    "namespace",
    "loop",
    "undefined",
    "messages[0].content",
    "dict(a=1)",
    "strftime_now('%Y')",
]
FILTERS = [
    "tojson",
    "string",
    "length",
    "list",
    "join",
    "sort",
    "unique",
    "sum",
    "first",
    "last",
    "upper",
    "title",
    "trim",
    "int",
    "float",
    "abs",
    "round",
    "reverse",
    "items",
    "dictsort",
    "default",
    "map",
    "select",
    "groupby",
    "min",
    "max",
    "count",
    "replace",
    "indent",
    "safe",
    "capitalize",
    "batch",
    "attr",
    "xmlattr",
    "pprint",
]
TESTS = ["defined", "none", "string", "number", "iterable", "mapping", "odd", "even", "sequence", "callable"]
METHODS = [
    "strip()",
    "split(',')",
    "replace('a','bb')",
    "join(x)",
    "ljust(9999999)",
    "format(1)",
    "items()",
    "get('a')",
    "__class__",
    "count('a')",
]

OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "and", "or", "in"]


def expression(rng, depth=0):
    if depth > 3 or rng.random() < 0.25:
        return rng.choice(ATOMS)
    a, b = (lambda: expression(rng, depth + 1)), (lambda: expression(rng, depth + 1))
    return rng.choice(
        [
            lambda: f"({a()} {rng.choice(OPERATORS)} {b()})",
            lambda: f"[{a()}, {b()}]",
            lambda: f"({a()}, {b()})",
            lambda: f"({a()} | {rng.choice(FILTERS)})",
            lambda: f"({a()} is {rng.choice(TESTS)})",
            lambda: f"({a()}).{rng.choice(METHODS)}",
            lambda: f"({a()})[{b()}]",
            lambda: f"({a()} if {b()} else {a()})",
        ]
    )()


def statement(rng, depth=0):
    e = lambda: expression(rng)  # noqa: E731
    inner = lambda: "".join(statement(rng, depth + 1) for _ in range(rng.randrange(1, 3))) if depth < 3 else "z"  # noqa: E731
    return rng.choice(
        [
            lambda: "{{ " + e() + " }}",
            lambda: "{% set x = " + e() + " %}",
            lambda: "{% set n.v = [n.v, n.v] %}",
            lambda: "{% set n.v = n.v ~ n.v %}",
            lambda: "{% for y in " + e() + " %}" + inner() + "{% endfor %}",
            lambda: "{% for y in range(" + str(rng.choice([2, 40, 99999])) + ") %}" + inner() + "{% endfor %}",
            lambda: "{% if " + e() + " %}" + inner() + "{% else %}" + inner() + "{% endif %}",
            lambda: "{% macro f(a) %}" + inner() + "{{ f(a) }}{% endmacro %}{{ f(1) }}",
            lambda: rng.choice(["text", "{%", "}}", "{# #}", "{% endfor %}", "\udc80", "\0"]),
        ]
    )()


def rendered(seed):
    rng = random.Random(seed)
    source = "{% set n = namespace(v=1) %}" + "".join(statement(rng) for _ in range(rng.randrange(1, 8)))
    if rng.random() < 0.2:
        at = rng.randrange(len(source))
        source = source[:at] + rng.choice("{%}|()[]'~") + source[at + 1 :]
    try:
        return ChatTemplate(source, bos_token="<s>").render(USER)
    except RlxError as error:
        assert str(error).startswith("chat template: "), source
        return None


def test_some_random_templates(monkeypatch):
    monkeypatch.setattr("rlx.models.chat_template.MAX_SECONDS", 0.2)
    found = [rendered(seed) for seed in range(60)]
    assert any(text is not None for text in found) and None in found


@pytest.mark.long
def test_two_thousand_random_templates():
    for seed in range(2000):
        rendered(seed)
