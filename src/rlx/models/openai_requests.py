"""What requests of OpenAI's HTTP interface ask for: their fields, checked.

A field that would change the answer and that nothing here knows is refused by name, never ignored; `_WITHOUT_EFFECT`
are those that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rlx.errors import RlxError
from rlx.models.tool_calls import Tools, read_tools

Document: TypeAlias = dict[str, Any]
# What the interface says is used where a request does not.
USUAL_TEMPERATURE = 1.0
MOST_CHOICES = 16
MOST_TEXTS = 2048
MOST_ALTERNATIVES = 20
# Options of the model that requests may set, and their types.
_OPTIONS: dict[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "min_p": (int, float),
    "repetition_penalty": (int, float),
    "repeat_penalty": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "seed": (int,),
}
# Fields that ask for nothing when they have one of these values; any other value is refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "suffix": ("",),
    "best_of": (1,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
# Names of llama.cpp.
_SAME = {"repeat_penalty": "repetition_penalty"}
_INSTEAD = {"functions": "; write tools", "function_call": "; write tool_choice"}
_WITHOUT_EFFECT = {"model", "user", "metadata", "store", "service_tier", "stream", "stream_options"}
_WITHOUT_EFFECT |= {"reasoning_effort", "safety_identifier", "prompt_cache_key", "verbosity"}
_OF_BOTH = {"max_tokens", "stop", "n", "response_format", "logprobs", "logit_bias", "grammar"}
_OF_CHAT = {
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
} | _OF_BOTH
_OF_TEXT = {"prompt", "echo", *_OF_BOTH}


class RequestError(RlxError):
    """A request that cannot be answered: what is wrong with it, and in which field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def checked(call: Callable[[], Any], field: str | None = None) -> Any:
    """What a model refuses is the request's fault."""
    try:
        return call()
    except RlxError as error:
        # Methods put their own name first.
        name, _, rest = str(error).partition(": ")
        raise RequestError(rest if name in ("complete", "stream", "embed") else str(error), field) from None


def require_known(body: Document, is_chat: bool) -> None:
    """Refuse fields that a request for a chat, or for a text, does not have."""
    own = _OF_CHAT if is_chat else _OF_TEXT
    for name, value in body.items():
        if name in _PLAIN and value not in _PLAIN[name]:
            raise RequestError(f"{name} is not supported{_INSTEAD.get(name, '')}", name)
        if name not in {*own, *_OPTIONS, *_PLAIN, *_WITHOUT_EFFECT}:
            raise RequestError(f"there is no field {name!r:.80}", name)


def require_fields(body: Document, kinds: Mapping[str, type], needed: str) -> None:
    """Refuse a request that has other fields than these, or not the one that is needed."""
    for name, value in body.items():
        if name not in kinds:
            raise RequestError(f"there is no field {name!r:.80}", name)
        if not isinstance(value, kinds[name]):
            raise RequestError(f"{name} must be of the type {kinds[name].__name__}, got {value!r:.80}", name)
    if needed not in body:
        raise RequestError(f"{needed} is needed", needed)


def require_embedding(body: Document) -> tuple[list[str], str]:
    """The texts of a request for vectors, and how these are written."""
    if unknown := [n for n in body if n not in {"input", "encoding_format", "dimensions", *_WITHOUT_EFFECT}]:
        raise RequestError(f"there is no field {unknown[0]!r:.80}", unknown[0])
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise RequestError("input must be a text or a list of texts, none of them empty", "input")
    if len(texts) > MOST_TEXTS:
        raise RequestError(f"input has {len(texts)} texts; at most {MOST_TEXTS} are taken at once", "input")
    how: str = body.get("encoding_format", "float")
    if how not in ("float", "base64"):
        raise RequestError(f"encoding_format must be float or base64, got {how!r:.80}", "encoding_format")
    return texts, how


def writing_options(body: Document) -> dict[str, Any]:
    """The options of the model, with the names that it gives them."""
    found: dict[str, Any] = {"temperature": USUAL_TEMPERATURE}
    for name, kinds in _OPTIONS.items():
        if name in body:
            if isinstance(body[name], bool) or not isinstance(body[name], kinds):
                raise RequestError(f"{name} must be a number, got {body[name]!r:.80}", name)
            if _SAME.get(name) in body:
                raise RequestError(f"{name} and {_SAME[name]} are the same; write one of them", name)
            found[_SAME.get(name, name)] = body[name]
    stop = body.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise RequestError("stop must be a text or a list of texts", "stop")
    found["logit_bias"] = _bias(body.get("logit_bias", {}))
    if not isinstance(body.get("grammar", ""), str):
        raise RequestError("grammar must be a text in GBNF", "grammar")
    found["grammar"] = body.get("grammar")
    return {**found, "stop": stops, "schema": _schema(body.get("response_format", {"type": "text"}))}


def _bias(given: object) -> dict[int, float]:
    """What is added to logits, by token id; JSON has names for numbers."""
    found = {}
    pairs: list[tuple[Any, Any]] = [*given.items()] if isinstance(given, dict) else [(None, None)]
    for token, value in pairs:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100
        if not isinstance(token, str) or not token.isdecimal() or len(token) > 9 or not is_number:
            raise RequestError(
                'logit_bias must have token ids and numbers from -100 to 100: {"42": -100}', "logit_bias"
            )
        found[int(token)] = float(value)
    return found


def _schema(form: object) -> Any:
    """The schema of the form that a request asks for; None for free text."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema") or not isinstance(form, dict):
        raise RequestError("response_format must have the type text, json_object or json_schema", "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return form.get("schema", {"type": "object"})
    named = form.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise RequestError("response_format.json_schema must have a schema", "response_format")
    return named["schema"]


def tools_of(body: Document) -> Tools | None:
    """The functions that an answer may call."""
    several = flag(body, "parallel_tool_calls", True)
    try:
        tools = read_tools(body.get("tools", []), body.get("tool_choice", "auto"), several)
    except RlxError as error:
        raise RequestError(str(error), "tool_choice" if str(error).startswith("tool_choice") else "tools") from None
    has_schema = _schema(body.get("response_format", {"type": "text"})) is not None
    if tools is not None and (has_schema or "grammar" in body):
        name = "response_format" if has_schema else "grammar"
        raise RequestError(f"{name} beside tools is not supported; leave one of them out", name)
    return tools


def token_limit(body: Document, name: str, otherwise: int | None) -> int | None:
    """How many tokens an answer has at most, by a field of this name; None where it says nothing."""
    most = body.get(name, otherwise)
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise RequestError(f"{name} must be a whole number from 1 on, got {most!r:.80}", name)
    return most


def whole(body: Document, name: str, otherwise: int, most: int, least: int = 1) -> int:
    value = body.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{name} must be a whole number from {least} to {most}, got {value!r:.80}", name)
    return value


def flag(body: Mapping[str, Any], name: str, otherwise: bool = False) -> bool:
    value = body.get(name, otherwise) if isinstance(body, Mapping) else None
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", name)
    return value


def messages_of(given: object) -> list[dict[str, Any]]:
    """A conversation, each content of it as one text."""
    if not isinstance(given, list) or not given:
        raise RequestError("messages must be a list of at least one message", "messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(given)]


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a role and a content", where)
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if not isinstance(content, str) and not (content is None and calls):
        raise RequestError(f"{where}.content must be a text", where)
    # Its newer name.
    role = "system" if message["role"] == "developer" else message["role"]
    kept = {name: message[name] for name in ("name", "tool_call_id") if isinstance(message.get(name), str)}
    return {"role": role, "content": content, **kept, **({"tool_calls": calls} if calls else {})}


def _part(where: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.content may have parts of text only", where)
    text: str = part["text"]
    return text


def prompts_of(given: object) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(part, str) for part in given):
            return list(given)
        if all(_is_id(part) for part in given):
            return [given]
        if all(isinstance(part, list) and part and all(map(_is_id, part)) for part in given):
            return list(given)
    raise RequestError("prompt must be a text, a list of texts, or a list of token ids", "prompt")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
