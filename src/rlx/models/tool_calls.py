"""Functions that a model may call: how it is told of them, which answers are calls, and what they say.

    tools = read_tools([{"type": "function", "function": {"name": "add", "parameters": {...}}}])
    style = call_style(tokenizer.chat_template)
    form = tools.form(style)                 # a grammar: free text, then calls whose arguments follow the schemas
    read_message(style, '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>')

Definitions, choices and messages are those of OpenAI's interface. A model writes calls as its chat template shows them;
one whose template knows no functions is told of them in the system message, and writes them like Hermes and Qwen.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rlx.errors import RlxError
from rlx.models.grammar import Grammar, Item
from rlx.models.json_form import add_schema

# Where white space may stand in the texts of a style.
_SPACE = "~"
_ANY_BYTE = frozenset(range(256))
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# One template refuses other lengths.
_ID_LETTERS = 9
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

_TOLD = """You may call functions. They are, each with a JSON schema of its arguments:
{tools}

To call one, answer with its name and arguments in this form, and with nothing behind it:
<tool_call>
{{"name": "the name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
What it returns then comes in <tool_response> tags."""


@dataclass(frozen=True)
class CallStyle:
    """What stands around the parts of calls. The first follows `trigger`, or begins the answer where there is none."""

    trigger: str = "<tool_call>"
    open: str = ""
    before_name: str = '~{~"name":~"'
    after_name: str = '"~,~"arguments":~'
    after_arguments: str = "~}~</tool_call>"
    between: str = "~<tool_call>"
    close: str = "~"
    # Texts that are tokens of their own, if the vocabulary has them.
    marks: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    # Whether the template knows functions, calls and what they return.
    is_native: bool = True


HERMES = CallStyle()
GENERIC = CallStyle(is_native=False)
LLAMA = CallStyle(
    trigger="",
    before_name='{~"name":~"',
    after_name='"~,~"parameters":~',
    after_arguments="~}",
    between="~;~",
    marks=(),
)
MISTRAL = CallStyle(
    trigger="[TOOL_CALLS]",
    open="~[~",
    before_name='{~"name":~"',
    after_arguments="~}",
    between="~,~",
    close="~]",
    marks=("[TOOL_CALLS]",),
)
MISTRAL_ARGS = CallStyle(
    trigger="[TOOL_CALLS]",
    before_name="",
    after_name="[ARGS]",
    after_arguments="",
    between="[TOOL_CALLS]",
    close="",
    marks=("[TOOL_CALLS]", "[ARGS]"),
)


def call_style(template: str | None) -> CallStyle:
    """How the model of a chat template writes calls."""
    if template is None or "tools" not in template:
        return GENERIC
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    # Some write arguments as tags, which is another style.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return HERMES
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return LLAMA
    return GENERIC


class Function(NamedTuple):
    """A function as a request defines it."""

    name: str
    parameters: Any
    is_strict: bool
    definition: Mapping[str, Any]


@dataclass(frozen=True)
class Tools:
    """Functions that may be called, whether one must be, and whether several may."""

    functions: tuple[Function, ...]
    must_call: bool = False
    several: bool = True
    # The only one that may be called, of those that the model is told of.
    named: str | None = None

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        return [function.definition for function in self.functions]

    def form(self, style: CallStyle) -> Grammar:
        """The answers that a model of this style may give."""
        rules: dict[str, list[list[Item]]] = {"call": []}
        for function in self.functions:
            if self.named in (None, function.name):
                try:
                    arguments = add_schema(rules, function.parameters, function.is_strict)
                except RlxError as error:
                    raise RlxError(f"function {function.name}: {error}") from None
                around = _items(style.before_name + function.name + style.after_name), _items(style.after_arguments)
                rules["call"].append([*around[0], arguments, *around[1]])
        # White space before a call that does not come would only be written to the end.
        rules["more calls"] = [_items(style.close if self.several else style.close.removesuffix(_SPACE))]
        if self.several:
            rules["more calls"].append([*_items(style.between), "call", "more calls"])
        rules["calls"] = [[*_items(style.open), "call", "more calls"]]
        if self.must_call:
            rules["answer"] = [[*_items(style.trigger), "calls"]]
        else:
            rules |= _free_rules(style.trigger)
        return Grammar(rules, "answer", style.marks)


def _items(text: str) -> list[Item]:
    return ["space" if letter == _SPACE else frozenset(letter.encode()) for letter in text]


def _free_rules(trigger: str) -> dict[str, list[list[Item]]]:
    """Free text, and calls behind its first trigger; without one, calls are what begins with a brace."""
    if not trigger:
        brace = frozenset(b"{")
        return {"answer": [[], ["calls"], [_ANY_BYTE - brace, "free"]], "free": [[], [_ANY_BYTE, "free"]]}
    wanted = trigger.encode()
    rules: dict[str, list[list[Item]]] = {"answer": [["free 0"]]}
    # How much of the trigger has been read is all that matters of a text.
    for read in range(len(wanted)):
        behind: dict[int, set[int]] = {}
        for byte in range(256):
            text = wanted[:read] + bytes([byte])
            known = next(n for n in range(len(text), -1, -1) if text.endswith(wanted[:n]))
            behind.setdefault(known, set()).add(byte)
        alternatives: list[list[Item]] = [[]]
        for known, some in behind.items():
            alternatives.append([frozenset(some), "calls" if known == len(wanted) else f"free {known}"])
        rules[f"free {read}"] = alternatives
    return rules


def read_tools(given: object, choice: object = "auto", several: bool = True) -> Tools | None:
    """The functions that a request defines; None where there are none, or none may be called."""
    if not isinstance(given, list | tuple):
        raise RlxError("tools must be a list of functions")
    functions = tuple(_function(one, f"tools[{number}]") for number, one in enumerate(given))
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise RlxError(f"tools: there are two functions of the name {next(n for n in names if names.count(n) > 1)!r}")
    named = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if isinstance(named, Mapping) and isinstance(name := named.get("name"), str):
        if name not in names:
            raise RlxError(f"tool_choice: there is no function {name!r:.80}; there is {', '.join(names) or 'none'}")
        return Tools(functions, True, False, name)
    if choice not in ("auto", "none", "required"):
        wanted = "auto, none, required or {'type': 'function', 'function': {'name': ..}}"
        raise RlxError(f"tool_choice must be {wanted}, got {choice!r:.80}")
    if choice == "required" and not functions:
        raise RlxError("tool_choice: required needs tools")
    return Tools(functions, choice == "required", several) if functions and choice != "none" else None


def _function(given: object, where: str) -> Function:
    found = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
    if not isinstance(given, Mapping) or not isinstance(found, Mapping):
        raise RlxError(f"{where} must be {{'type': 'function', 'function': {{'name': .., 'parameters': ..}}}}")
    name, parameters = found.get("name"), found.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "letters, digits, '_', '-', '.', ':' and '/'"
        raise RlxError(f"{where}: a name has at most 128 {wanted}, got {name!r:.80}")
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise RlxError(f"{where}: parameters must be a JSON schema of an object, got {parameters!r:.80}")
    return Function(name, {"type": "object", **parameters}, found.get("strict") is True, given)


class Heard(NamedTuple):
    """A piece of an answer: text that is shown, the name of a function that is called, a piece of its arguments."""

    kind: Literal["content", "name", "arguments"]
    text: str


class CallReader:
    """Takes an answer apart as it is written; nothing is shown that may be the beginning of a call."""

    def __init__(self, style: CallStyle) -> None:
        self._style = style
        self._head = re.compile(f"{_pattern(style.before_name)}({_NAME.pattern}){_pattern(style.after_name)}")
        self._held, self._part = "", "content"
        self._has_begun = False
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def push(self, text: str) -> list[Heard]:
        """What a piece of text adds."""
        self._held += text
        found: list[Heard] = []
        while (more := self._next()) is not None:
            if more.text:
                found.append(more)
        return found

    def flush(self) -> list[Heard]:
        """What was held back, now that nothing follows: calls that were cut in their heads are none."""
        held, self._held = self._held, ""
        return [Heard("content", held)] if self._part == "content" and held else []

    def _next(self) -> Heard | None:
        if self._part == "content":
            return self._content()
        if self._part == "head":
            found = self._head.search(self._held)
            if found is None:
                return None
            self._held, self._part = self._held[found.end() :], "arguments"
            return Heard("name", found[1])
        return self._arguments()

    def _content(self) -> Heard | None:
        trigger, held = self._style.trigger, self._held
        if not trigger:
            if not self._has_begun and held.startswith("{"):
                self._part = "head"
                return Heard("content", "")
            self._has_begun = self._has_begun or bool(held)
            self._held = ""
            return Heard("content", held) if held else None
        place = held.find(trigger)
        if place >= 0:
            self._held, self._part = held[place + len(trigger) :], "head"
            return Heard("content", held[:place].rstrip())
        overlap = next((n for n in range(min(len(trigger) - 1, len(held)), 0, -1) if trigger.startswith(held[-n:])), 0)
        # White space before a call is not shown.
        shown = held[: len(held) - overlap].rstrip()
        self._held = held[len(shown) :]
        return Heard("content", shown) if shown else None

    def _arguments(self) -> Heard | None:
        """Text of arguments up to the end of their object."""
        self._held = self._held if self._depth else self._held.lstrip()
        for place, letter in enumerate(self._held):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped, self._in_string = letter == "\\", letter != '"'
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    text, self._held, self._part = self._held[: place + 1], self._held[place + 1 :], "head"
                    return Heard("arguments", text)
        text, self._held = self._held, ""
        return Heard("arguments", text) if text else None


def _pattern(text: str) -> str:
    return "".join(r"\s*" if letter == _SPACE else re.escape(letter) for letter in text)


def new_call(name: str) -> dict[str, Any]:
    """A call that has no arguments yet."""
    letters = string.ascii_letters + string.digits
    found = "".join(secrets.choice(letters) for _ in range(_ID_LETTERS))
    return {"id": found, "type": "function", "function": {"name": name, "arguments": ""}}


def read_message(style: CallStyle, text: str) -> dict[str, Any]:
    """The assistant's message that an answer is."""
    reader = CallReader(style)
    content, calls = "", []
    for heard in [*reader.push(text), *reader.flush()]:
        if heard.kind == "content":
            content += heard.text
        elif heard.kind == "name":
            calls.append(new_call(heard.text))
        else:
            calls[-1]["function"]["arguments"] += heard.text
    if not calls:
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def template_turns(
    messages: Sequence[Mapping[str, Any]], style: CallStyle, definitions: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, object]]:
    """The messages as a template takes them: arguments of calls as objects; for one that knows no functions, all of it
    as text."""
    turns = [_turn(message, style) for message in messages]
    if definitions and not style.is_native:
        told = _TOLD.format(tools="\n".join(json.dumps(one["function"], ensure_ascii=False) for one in definitions))
        if turns and turns[0].get("role") == "system":
            turns[0]["content"] = f"{turns[0]['content']}\n\n{told}"
        else:
            turns.insert(0, {"role": "system", "content": told})
    return turns


def _turn(message: Mapping[str, Any], style: CallStyle) -> dict[str, object]:
    turn = dict(message)
    calls = turn.get("tool_calls")
    if "role" not in turn or (not calls and turn["role"] != "tool"):
        return turn
    turn["content"] = turn.get("content") or ""
    if calls:
        if not isinstance(calls, list | tuple):
            raise RlxError(f"chat: tool_calls must be a list of calls, got {calls!r:.80}")
        turn["tool_calls"] = calls = [_call(call) for call in calls]
    if style.is_native:
        return turn
    if not calls:
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    written = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    return {"role": turn["role"], "content": "\n".join([*([turn["content"]] if turn["content"] else []), *written])}


def _call(given: object) -> dict[str, Any]:
    """A call with its arguments as an object, which messages have as text."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RlxError(f"chat: a call is {{'id': .., 'function': {{'name': .., 'arguments': ..}}}}, got {given!r:.80}")
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        raise RlxError(
            f"chat: arguments of {function['name']:.80} must be a JSON object, got {function['arguments']!r:.80}"
        )
    return {**given, "type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}
