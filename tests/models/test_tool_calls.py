"""Functions that models call: which answers they may give, and what is read in them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from models.tiny_models import LLAMA as CONFIG
from models.tiny_models import byte_tokenizer, language_model
from rlx.errors import RlxError
from rlx.models.grammar import DEAD, Guide
from rlx.models.tool_calls import (
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    CallReader,
    call_style,
    read_message,
    read_tools,
    template_turns,
)

NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["name"],
}
TOOLS = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "walk", "parameters": {**NODE, "$defs": {"node": NODE}}}},
]
# Texts as the models of these styles write them, after their templates.
WRITTEN = {
    HERMES: 'Well.\n<tool_call>\n{"name": "walk", "arguments": {"name": "a}\\"", "next": null}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    LLAMA: '{"name": "walk", "parameters": {"name": "a}\\"", "next": null}}; {"name": "now", "parameters": {}}',
    MISTRAL: 'Well.[TOOL_CALLS] [{"name": "walk", "arguments": {"name": "a}\\"", "next": null}}, '
    '{"name": "now", "arguments": {}}]',
    MISTRAL_ARGS: 'Well.[TOOL_CALLS]walk[ARGS]{"name": "a}\\"", "next": null}[TOOL_CALLS]now[ARGS]{}',
}


@pytest.mark.parametrize("style", WRITTEN, ids=["hermes", "llama", "mistral", "mistral args"])
def test_calls_are_read_however_the_text_is_cut(style):
    text = WRITTEN[style]
    message = read_message(style, text)
    assert message["content"] == (None if style is LLAMA else "Well.")
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]] == [
        ("walk", {"name": 'a}"', "next": None}),
        ("now", {}),
    ]
    reader, found = CallReader(style), []
    for letter in text:
        found += reader.push(letter)
    found += reader.flush()
    assert "".join(h.text for h in found if h.kind == "content") == (message["content"] or "")
    assert [h.text for h in found if h.kind == "name"] == ["walk", "now"]
    assert "".join(h.text for h in found if h.kind == "arguments") == "".join(
        c["function"]["arguments"] for c in message["tool_calls"]
    )


@pytest.mark.parametrize("style", WRITTEN, ids=["hermes", "llama", "mistral", "mistral args"])
def test_forms_allow_calls_and_nothing_that_looks_like_one(style):
    def allows(text, **more):
        form = read_tools(TOOLS, **more).form(style)
        return form.may_end(form.walk(form.start, text.encode()))

    text = WRITTEN[style]
    calls = text.removeprefix("Well.").removeprefix("\n")
    assert allows(text) and allows("no call, <tool and [TOOL at the end: é") and allows("")
    assert allows(calls, choice="required") and not allows("Well.", choice="required")
    assert not allows(text, several=False)
    assert not allows(text.replace('"walk"', '"run"').replace("]walk[", "]run["))
    assert not allows(text.replace(', "next": null', ', "last": null'))
    only = {"type": "function", "function": {"name": "now"}}
    assert not allows(calls, choice=only)
    assert not allows(text[:-3]) and not allows(text + "x")


def test_what_is_no_call_is_shown():
    text = "a < b, <tool and <tool_cal"
    assert read_message(HERMES, text) == {"role": "assistant", "content": text}
    assert read_message(LLAMA, "see {}") == {"role": "assistant", "content": "see {}"}


def test_templates_say_how_calls_are_written():
    assert call_style(None) is call_style("{{ messages }}") is GENERIC
    assert call_style("{% if tools %}<tool_call>{% endif %}") is HERMES
    assert call_style("{% if tools %}<tool_call><function={% endif %}") is GENERIC
    assert call_style("{% if tools %}[TOOL_CALLS]{% endif %}") is MISTRAL
    assert call_style("{% if tools %}[TOOL_CALLS][ARGS]{% endif %}") is MISTRAL_ARGS
    assert call_style("{% if tools %}<|python_tag|>{% endif %}") is LLAMA


def test_templates_are_given_arguments_as_objects_and_others_text():
    call = {"id": "1", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "1", "content": "noon"})
    native = template_turns(messages, HERMES, TOOLS)
    assert native[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1} and native[2]["role"] == "tool"
    system, _, assistant, tool = template_turns(messages, GENERIC, TOOLS)
    assert system["role"] == "system" and '"walk"' in system["content"]
    assert assistant["content"] == '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
    assert tool == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}


def test_special_tokens_are_text_in_a_form():
    """As Mistral's tokens before calls: nowhere else do they stand for text."""
    import tokenizers

    tokenizer = byte_tokenizer()
    tokenizer._backend.add_special_tokens([tokenizers.AddedToken("[TOOL_CALLS]", special=True)])
    mark = tokenizer.id_of("[TOOL_CALLS]")
    assert tokenizer.token_bytes.of(mark) == b"" and tokenizer.bytes_with(["[TOOL_CALLS]"]).of(mark) == b"[TOOL_CALLS]"
    form = read_tools(TOOLS, "required").form(MISTRAL)
    guide = Guide(form, tokenizer.bytes_with(form.marks), [257])
    assert guide.permits(mark) and guide.permits(ord("[")) and not guide.permits(ord("a"))
    guide.advance(mark)
    assert guide.permits(ord("[")) and not guide.permits(mark)


def test_a_model_that_must_call_does():
    lm = language_model(replace(CONFIG, context=2000))
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"enum": [1, "é"]}}}}}]
    options = {"temperature": 2.0, "seed": 3}
    message = lm.answer("go", tools, 900, tool_choice="required", parallel_tool_calls=False, **options)
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) in ({}, {"x": 1}, {"x": "é"})
    assert lm.answer("go", tools, 5, tool_choice="none") == {"role": "assistant", "content": lm.chat("go", 5)}


def test_keywords_that_cannot_be_promised_are_passed_over_unless_strict():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 3},
            "b": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "c": {"allOf": [{"type": "string"}, {"minLength": 3}]},
        },
        "required": ["a"],
    }
    tool = {"name": "f", "parameters": schema}
    form = read_tools([{"type": "function", "function": tool}], "required").form(MISTRAL_ARGS)
    assert form.may_end(form.walk(form.start, b'[TOOL_CALLS]f[ARGS]{"a": 1, "b": "x", "c": 7}'))
    assert form.walk(form.start, b'[TOOL_CALLS]f[ARGS]{"a": "1"') == DEAD
    with pytest.raises(RlxError, match="function f: schema: #/properties/a has the keyword 'minimum'"):
        read_tools([{"type": "function", "function": {**tool, "strict": True}}]).form(HERMES)
