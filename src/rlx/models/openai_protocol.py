"""Requests and answers of OpenAI's HTTP interface, as far as a model on this machine can give them.

    service = Service("tiny", lm)
    service.answer("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})

An answer is a document, or for `"stream": true` an iterator of documents. What a request asks for that the model cannot
do is refused by name, never ignored, except for fields that change nothing about the answer (`user`, `metadata`).
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Semaphore
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.models.generation import Completion, Pieces
    from rlx.models.language_model import LanguageModel
    from rlx.models.text_encoder import TextEncoder

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
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "seed": (int,),
}
# Fields that ask for nothing when they have one of these values; any other value is refused.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "modalities": (["text"],),
    "audio": (),
}
_WITHOUT_EFFECT = {"model", "user", "metadata", "store", "service_tier", "stream", "stream_options"}
_WITHOUT_EFFECT |= {"parallel_tool_calls", "reasoning_effort", "safety_identifier", "prompt_cache_key", "verbosity"}
_OF_BOTH = {"max_tokens", "stop", "n", "response_format", "logprobs"}
_OF_CHAT = {"messages", "max_completion_tokens", "top_logprobs", *_OF_BOTH}
_OF_TEXT = {"prompt", *_OF_BOTH}


class RequestError(RlxError):
    """A request that cannot be answered: what is wrong with it, and in which field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NotWanted(Exception):
    """Whoever asked has gone before the answer was complete."""


class Service:
    """A language model, an encoder or both, and the requests that they answer."""

    def __init__(
        self, name: str, lm: LanguageModel | None = None, encoder: TextEncoder | None = None, parallel: int = 4
    ) -> None:
        """At most `parallel` requests are worked on at once; others wait."""
        self.name, self.lm, self.encoder = name, lm, encoder
        self.started = int(time.time())
        self._room = Semaphore(parallel)
        self._answers: dict[str, Callable[[Document, Callable[[], bool]], Document | Iterator[Document]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/v1/embeddings": self._embed,
        }

    @property
    def paths(self) -> Sequence[str]:
        """Where requests may be sent."""
        return [*self._answers]

    def models(self) -> Document:
        entry = {"id": self.name, "object": "model", "created": self.started, "owned_by": "rlx"}
        return {"object": "list", "data": [entry]}

    def model(self, name: str) -> Document | None:
        """The entry of one model; None where there is none of this name."""
        entries: list[Document] = self.models()["data"]
        return next((entry for entry in entries if entry["id"] == name), None)

    def answer(
        self, path: str, body: object, is_wanted: Callable[[], bool] = lambda: True
    ) -> Document | Iterator[Document]:
        """The answer to the body of a request; a `RequestError` where there is none.

        A text is written as long as somebody wants it: `is_wanted` is asked now and then, and a no is `NotWanted`.
        """
        if not isinstance(body, dict):
            raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
        return self._answers[path]({key: value for key, value in body.items() if value is not None}, is_wanted)

    def _language_model(self) -> LanguageModel:
        if self.lm is None:
            raise RequestError(f"{self.name} is an encoder: it answers /v1/embeddings alone", "model")
        return self.lm

    def _chat(self, body: Document, is_wanted: Callable[[], bool]) -> Document | Iterator[Document]:
        lm = self._language_model()
        _require_known(body, _OF_CHAT)
        messages = _messages(body.get("messages"))
        try:
            ids = lm.chat_ids(messages)
        except RlxError as error:
            raise RequestError(f"{error}", "messages") from None
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        return self._written(body, lm, [ids], most, _ChatForm(self.name, lm), is_wanted)

    def _complete(self, body: Document, is_wanted: Callable[[], bool]) -> Document | Iterator[Document]:
        lm = self._language_model()
        _require_known(body, _OF_TEXT)
        prompts = [self._ids(lm, prompt) for prompt in _prompts(body.get("prompt", ""))]
        return self._written(body, lm, prompts, body.get("max_tokens", 16), _TextForm(self.name, lm), is_wanted)

    @staticmethod
    def _ids(lm: LanguageModel, prompt: str | list[int]) -> list[int]:
        return lm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _written(
        self,
        body: Document,
        lm: LanguageModel,
        prompts: list[list[int]],
        most: Any,
        form: _Form,
        is_wanted: Callable[[], bool],
    ) -> Document | Iterator[Document]:
        options, count = _options(body) | form.alternatives(body), _whole(body, "n", 1, MOST_CHOICES)
        room = lm.config.context - max(map(len, prompts))
        if room < 1 or not all(prompts):
            said = (
                "is empty"
                if not all(prompts)
                else f"has {max(map(len, prompts))} tokens; the context is {lm.config.context}"
            )
            raise RequestError(f"the prompt {said}", form.field)
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise RequestError(f"max_tokens must be a whole number from 1 on, got {most!r:.80}", "max_tokens")
        limit = room if most is None else min(most, room)
        is_one, is_stream = count == len(prompts) == 1, _flag(body, "stream")
        if is_stream and not is_one:
            raise RequestError("a stream is for one prompt and one choice", "n")
        if not is_stream:
            with self._room:
                if not is_one:
                    return form.whole(_checked(lambda: lm.complete(prompts, limit, n=count, **options)), count)
                pieces = _checked(lambda: lm.stream(prompts[0], limit, **options))
                return form.whole([_checked(lambda: _completion(pieces, is_wanted))], 1)
        # Made here, so that what is wrong with the request is told before the first byte of the answer.
        return self._streamed(_checked(lambda: lm.stream(prompts[0], limit, **options)), form, body)

    def _streamed(self, pieces: Pieces, form: _Form, body: Document) -> Iterator[Document]:
        with self._room:
            try:
                yield from form.begin()
                while True:
                    yield form.piece(next(pieces))
            except StopIteration as end:
                yield from form.end(end.value, _flag(body.get("stream_options") or {}, "include_usage"))
            finally:
                pieces.close()

    def _embed(self, body: Document, is_wanted: Callable[[], bool]) -> Document:
        if unknown := [n for n in body if n not in {"input", "encoding_format", "dimensions", *_WITHOUT_EFFECT}]:
            raise RequestError(f"there is no field {unknown[0]!r:.80}", unknown[0])
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise RequestError("input must be a text or a list of texts, none of them empty", "input")
        if len(texts) > MOST_TEXTS:
            raise RequestError(f"input has {len(texts)} texts; at most {MOST_TEXTS} are taken at once", "input")
        how = body.get("encoding_format", "float")
        if how not in ("float", "base64"):
            raise RequestError(f"encoding_format must be float or base64, got {how!r:.80}", "encoding_format")
        model = self.encoder or self._language_model()
        with self._room:
            vectors = _checked(lambda: np.asarray(model.embed(texts), "<f4"))
        if body.get("dimensions", vectors.shape[1]) != vectors.shape[1]:
            raise RequestError(f"the vectors of {self.name} have {vectors.shape[1]} dimensions", "dimensions")
        tokens = sum(len(model.tokenizer.encode(text)) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": _encoded(v, how)} for i, v in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": self.name, "data": data, "usage": usage}


def _completion(pieces: Pieces, is_wanted: Callable[[], bool]) -> Completion:
    """What a text that is written piece by piece becomes."""
    while is_wanted():
        try:
            next(pieces)
        except StopIteration as end:
            answer: Completion = end.value
            return answer
    pieces.close()
    raise NotWanted


def _encoded(vector: Any, how: str) -> Any:
    return base64.b64encode(vector.tobytes()).decode() if how == "base64" else vector.tolist()


def _checked(call: Callable[[], Any]) -> Any:
    """What a model refuses is the request's fault."""
    try:
        return call()
    except RlxError as error:
        # Methods put their own name first.
        name, _, rest = str(error).partition(": ")
        raise RequestError(rest if name in ("complete", "stream", "embed") else str(error)) from None


def _require_known(body: Document, own: set[str]) -> None:
    for name, value in body.items():
        if name in _PLAIN and value not in _PLAIN[name]:
            raise RequestError(f"{name} is not supported", name)
        if name not in {*own, *_OPTIONS, *_PLAIN, *_WITHOUT_EFFECT}:
            raise RequestError(f"there is no field {name!r:.80}", name)


def _options(body: Document) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": USUAL_TEMPERATURE}
    for name, kinds in _OPTIONS.items():
        if name in body:
            if isinstance(body[name], bool) or not isinstance(body[name], kinds):
                raise RequestError(f"{name} must be a number, got {body[name]!r:.80}", name)
            found[name] = body[name]
    stop = body.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise RequestError("stop must be a text or a list of texts", "stop")
    return {**found, "stop": stops, "schema": _schema(body.get("response_format", {"type": "text"}))}


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


def _whole(body: Document, name: str, otherwise: int, most: int, least: int = 1) -> int:
    value = body.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{name} must be a whole number from {least} to {most}, got {value!r:.80}", name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False) if isinstance(body, Mapping) else None
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", name)
    return value


def _messages(given: object) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise RequestError("messages must be a list of at least one message", "messages")
    found = []
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"{where} must be an object with a role and a content", where)
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(_part(where, part) for part in content)
        if not isinstance(content, str):
            raise RequestError(f"{where}.content must be a text", where)
        # Its newer name.
        role = "system" if message["role"] == "developer" else message["role"]
        found.append({"role": role, "content": content})
    return found


def _part(where: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.content may have parts of text only", where)
    text: str = part["text"]
    return text


def _prompts(given: object) -> list[str | list[int]]:
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


def _finish(answer: Completion) -> str:
    return "stop" if answer.finish_reason == "stop" else "length"


def _usage(answers: Sequence[Completion], each: int) -> dict[str, int]:
    """How many tokens were read and written; a prompt with several answers is read once."""
    prompt, written = sum(a.prompt_tokens for a in answers[::each]), sum(len(a.token_ids) for a in answers)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


class _Form:
    """How answers to one kind of request look."""

    prefix, object_name, chunk_name, field = "", "", "", ""

    def __init__(self, model: str, lm: LanguageModel) -> None:
        self._frame = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._tokens = lm.tokenizer

    def alternatives(self, body: Document) -> Document:
        """The option `logprobs` of the model, where a request asks for it."""
        raise NotImplementedError

    def logprobs(self, answer: Completion) -> Document | None:
        """What the model thought of the tokens of an answer, where that was asked for."""
        raise NotImplementedError

    def choice(self, answer: Completion) -> Document:
        """The text of a whole answer."""
        raise NotImplementedError

    def part(self, text: str | None) -> Document:
        """A piece of a text; None behind its end."""
        raise NotImplementedError

    def whole(self, answers: Sequence[Completion], each: int) -> Document:
        """The answers to all prompts, so many to each."""
        choices = [
            {"index": i, **self.choice(a), "logprobs": self.logprobs(a), "finish_reason": _finish(a)}
            for i, a in enumerate(answers)
        ]
        return {**self._frame, "object": self.object_name, "choices": choices, "usage": _usage(answers, each)}

    def _chunk(self, part: Document, finish: str | None = None, logprobs: Document | None = None) -> Document:
        choice = {"index": 0, **part, "logprobs": logprobs, "finish_reason": finish}
        return {**self._frame, "object": self.chunk_name, "choices": [choice]}

    def begin(self) -> Iterator[Document]:
        return iter(())

    def piece(self, text: str) -> Document:
        return self._chunk(self.part(text))

    def end(self, answer: Completion, with_usage: bool) -> Iterator[Document]:
        # Pieces of text are no tokens; whoever joins the lists of all events has those of the whole answer.
        yield self._chunk(self.part(None), _finish(answer), self.logprobs(answer))
        if with_usage:
            yield {**self._frame, "object": self.chunk_name, "choices": [], "usage": _usage([answer], 1)}


class _ChatForm(_Form):
    prefix, object_name, chunk_name, field = "chatcmpl", "chat.completion", "chat.completion.chunk", "messages"

    def alternatives(self, body: Document) -> Document:
        most = _whole(body, "top_logprobs", 0, MOST_ALTERNATIVES, least=0)
        if _flag(body, "logprobs"):
            return {"logprobs": most}
        if most:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        return {}

    def logprobs(self, answer: Completion) -> Document | None:
        if answer.logprobs is None:
            return None
        found = [
            {**self._token(t.token_id, t.logprob), "top_logprobs": [self._token(*pair) for pair in t.top]}
            for t in answer.logprobs
        ]
        return {"content": found, "refusal": None}

    def _token(self, token: int, logprob: float) -> Document:
        text = self._tokens.token_bytes.of(token)
        return {"token": text.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(text)}

    def choice(self, answer: Completion) -> Document:
        return {"message": {"role": "assistant", "content": answer.text}}

    def part(self, text: str | None) -> Document:
        return {"delta": {} if text is None else {"content": text}}

    def begin(self) -> Iterator[Document]:
        yield self._chunk({"delta": {"role": "assistant", "content": ""}})


class _TextForm(_Form):
    prefix, object_name, chunk_name, field = "cmpl", "text_completion", "text_completion", "prompt"

    def alternatives(self, body: Document) -> Document:
        if body.get("logprobs", False) is False:
            return {}
        return {"logprobs": _whole(body, "logprobs", 0, MOST_ALTERNATIVES, least=0)}

    def logprobs(self, answer: Completion) -> Document | None:
        if answer.logprobs is None:
            return None
        texts = [self._text(t.token_id) for t in answer.logprobs]
        return {
            "tokens": texts,
            "token_logprobs": [t.logprob for t in answer.logprobs],
            "top_logprobs": [{self._text(token): logprob for token, logprob in t.top} for t in answer.logprobs],
            "text_offset": [len("".join(texts[:place])) for place in range(len(texts))],
        }

    def _text(self, token: int) -> str:
        return self._tokens.token_bytes.of(token).decode("utf-8", "replace")

    def choice(self, answer: Completion) -> Document:
        return {"text": answer.text}

    def part(self, text: str | None) -> Document:
        return {"text": text or ""}
