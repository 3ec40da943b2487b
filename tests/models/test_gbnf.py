"""Grammars in GBNF: which texts they allow, and what is said about those that are none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.cli import main
from rlx.errors import OpError, RlxError
from rlx.models.gbnf import gbnf_grammar

# Written for this test after the notation's description.
LISTS = r"""
# A list of numbers and words.
root   ::= "[" ws ( item ("," ws item)* )? "]"   # with groups
item   ::=
    number |
    word
number ::= "-"? ([0-9] | [1-9] [0-9]{1,3}) ("." [0-9]+)?
word   ::= "\"" [^"\\\x7F\u0000-\u001F]* "\""
ws     ::= " "?
"""


def allows(grammar, text):
    return grammar.may_end(grammar.walk(grammar.start, text.encode()))


@pytest.mark.parametrize("text", ["[]", "[ 1]", '[-1234.5, 0,"a é😀"]', '["",""]'])
def test_texts_that_follow(text):
    assert allows(gbnf_grammar(LISTS), text)


@pytest.mark.parametrize("text", ["", "[", "[1,]", "[01]", "[12345]", '["a\n"]', '["\\"]', "[]x", "[1.]", '["\x7f"]'])
def test_texts_that_do_not(text):
    assert not allows(gbnf_grammar(LISTS), text)


@pytest.mark.parametrize(
    "notation, pattern",
    [
        ('"a"{2}', "aa"),
        ('"a"{1,3} "b"{0,2}', "a{1,3}b{0,2}"),
        ('("a" | "bc"){2,}', "(a|bc){2,}"),
        ("[a-c]+ [^a-c]?", "[a-c]+[^a-c]?"),
        ('"a"* ("b" "c"*)*', "a*(bc*)*"),
        (". .", ".{2}"),
    ],
)
@given(st.text("abcd\u00e9\U0001f600", max_size=6))
def test_repetitions_are_those_of_regular_expressions(notation, pattern, text):
    found = allows(gbnf_grammar(f"root ::= {notation}"), text)
    assert found == (re.fullmatch(pattern, text, re.DOTALL) is not None)


@given(st.data())
def test_sets_are_of_characters_not_of_bytes(data):
    letters = st.characters(exclude_categories=["Cs"])
    low, high = sorted([data.draw(letters), data.draw(letters)])
    spelled = f"\\U{ord(low):08x}-\\U{ord(high):08x}"
    inside, outside = gbnf_grammar(f"root ::= [{spelled}]"), gbnf_grammar(f"root ::= [^{spelled}]")
    for letter in (low, high, data.draw(letters)):
        assert allows(inside, letter) == (low <= letter <= high) != allows(outside, letter)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "there is no rule 'root'"),
        ('x ::= "a"', "there is no rule 'root'"),
        ("root ::= other", "the rule 'other' is used and not defined"),
        ('root ::= root "a" | "b"', "the rule 'root' begins with itself"),
        ('root ::= a\na ::= "x"? b\nb ::= a', "the rule 'a' begins with itself"),
        ('root ::= (""*)*', "begins with itself"),
        ('root ::= "a" root', "no text follows it"),
        ('root ::= "a" ::= "b"', "line 1: a rule or a part of one is needed"),
        ('root ::= ("a"', "line 1: a closing parenthesis is needed, got 'the end'"),
        ('root ::= "a"\n\n  )', r"line 3: the next rule is needed, got '\)'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: there is a rule 'root' already"),
        ('root ::= "a', "line 1: a rule or a part of one is needed"),
        ("root ::= [z-a]", "the range z-a is empty"),
        ('root ::= "a"{3,2}', "must count upwards"),
        ('root ::= "a"{99999}', "must count upwards"),
        (r'root ::= "\uD800"', "is no character"),
        ("root ::= " + "(" * 200, "groups are nested deeper than 100"),
    ],
)
def test_what_is_no_grammar(text, message):
    with pytest.raises(RlxError, match=f"grammar: .*{message}"):
        gbnf_grammar(text)


def test_answers_that_follow_a_grammar(tmp_path, capsys):
    lm, grammar = rlx.load("tiny"), 'root ::= ("ROMEO" | "JULIET") ": " [a-z ]{5,20} "!"'
    text = lm.generate("A play", 60, grammar=grammar, temperature=1.0, seed=1)
    assert re.fullmatch("(ROMEO|JULIET): [a-z ]{5,20}!", text)
    (tmp_path / "play.gbnf").write_text(grammar)
    words = ["generate", "tiny", "A play", "--grammar-file", str(tmp_path / "play.gbnf"), "--max-tokens", "60"]
    assert main([*words, "--temperature", "1", "--seed", "1"]) == 0
    assert capsys.readouterr().out == text + "\n"
    with pytest.raises(OpError, match="schema and grammar are two forms"):
        lm.generate("x", 1, grammar=grammar, schema={})
    with pytest.raises(OpError, match="grammar must be a text"):
        lm.generate("x", 1, grammar={})
