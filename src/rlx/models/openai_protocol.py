"""Requests and answers of OpenAI's HTTP interface, as far as a model on this machine can give them.

    service = Service("tiny", lm)
    service.answer("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})

An answer is a document, or for `"stream": true` an iterator of documents. What a request asks for that the model cannot
do is refused by name, never ignored, except for fields that change nothing about the answer (`user`, `metadata`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.models.drafts import require_draft
from rlx.models.openai_answers import AnswerForm, ChatForm, TextForm
from rlx.models.openai_requests import (
    MOST_CHOICES,
    Document,
    RequestError,
    checked,
    flag,
    messages_of,
    prompts_of,
    require_embedding,
    require_fields,
    require_known,
    token_limit,
    tools_of,
    whole,
    writing_options,
)
from rlx.models.scheduler import Scheduler
from rlx.models.writing_options import ReadOptions, read_options

if TYPE_CHECKING:
    from rlx.models.generation import Completion, Steps
    from rlx.models.language_model import LanguageModel
    from rlx.models.text_encoder import TextEncoder
    from rlx.models.tokenizer import Tokenizer

__all__ = ["Document", "NotWanted", "RequestError", "Service"]


class NotWanted(Exception):
    """Whoever asked has gone before the answer was complete."""


class Service:
    """A language model, an encoder or both, and the requests that they answer."""

    def __init__(
        self,
        name: str,
        lm: LanguageModel | None = None,
        encoder: TextEncoder | None = None,
        parallel: int = 8,
        draft: Any = None,
    ) -> None:
        """At most `parallel` requests are worked on at once; others wait. A `draft` guesses for one that is alone."""
        if lm is not None:
            require_draft("serve", draft, lm)
        self._draft = draft
        self.name, self.lm, self.encoder = name, lm, encoder
        self.started = int(time.time())
        self._room = Semaphore(parallel)
        self.scheduler = Scheduler(lm, parallel) if lm is not None and Scheduler.serves(lm) else None
        self._answers: dict[str, Callable[[Document, Callable[[], bool]], Document | Iterator[Document]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/v1/embeddings": self._embed,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
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

    def metrics(self) -> str:
        """What was done so far and what goes on, as Prometheus reads it."""
        lines = []
        if self.scheduler is not None and self.lm is not None:
            counts, (running, waiting) = self.scheduler.counts, self.scheduler.load
            kept = self.lm.kept
            for name, kind, value in (
                ("prompts_total", "counter", counts.requests),
                ("prompt_tokens_total", "counter", counts.prompt_tokens),
                ("reused_prompt_tokens_total", "counter", counts.reused_tokens),
                ("written_tokens_total", "counter", counts.written_tokens),
                ("steps_total", "counter", counts.steps),
                ("answers_running", "gauge", running),
                ("answers_waiting", "gauge", waiting),
                ("kept_sequences", "gauge", len(kept)),
                ("kept_cache_bytes", "gauge", kept.size),
            ):
                lines += [f"# TYPE rlx_{name} {kind}", f"rlx_{name} {value}"]
        return "".join(f"{line}\n" for line in lines)

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
        require_known(body, is_chat=True)
        messages, tools = messages_of(body.get("messages")), tools_of(body)
        style = None if tools is None else lm.call_style
        ids = checked(lambda: lm.chat_ids(messages, None if tools is None else tools.definitions), "messages")
        form = ChatForm(self.name, lm, style)
        read = self._options(body, form)
        if tools is not None and style is not None:
            read = read._replace(form=checked(lambda: tools.form(style), "tools"))
        name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        return self._written(body, lm, [ids], token_limit(body, name, None), form, read, is_wanted)

    def _complete(self, body: Document, is_wanted: Callable[[], bool]) -> Document | Iterator[Document]:
        lm = self._language_model()
        require_known(body, is_chat=False)
        prompts = [self._ids(lm, prompt) for prompt in prompts_of(body.get("prompt", ""))]
        form = TextForm(self.name, lm, self._echoed(body, lm, prompts))
        read, most = self._options(body, form), token_limit(body, "max_tokens", 16)
        return self._written(body, lm, prompts, most, form, read, is_wanted)

    @staticmethod
    def _echoed(body: Document, lm: LanguageModel, prompts: list[list[int]]) -> list[str]:
        """The text of the prompt of each answer, where a request wants it before the answer."""
        if not flag(body, "echo"):
            return []
        if body.get("logprobs") not in (None, False):
            raise RequestError("echo with logprobs is not supported; leave one of them out", "echo")
        return [lm.tokenizer.decode(ids) for ids in prompts for _ in range(whole(body, "n", 1, MOST_CHOICES))]

    @staticmethod
    def _options(body: Document, form: AnswerForm) -> ReadOptions:
        options = writing_options(body) | form.alternatives(body)
        read: ReadOptions = checked(lambda: read_options("complete", options))
        return read

    @staticmethod
    def _ids(lm: LanguageModel, prompt: str | list[int]) -> list[int]:
        return lm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _written(
        self,
        body: Document,
        lm: LanguageModel,
        prompts: list[list[int]],
        most: int | None,
        form: AnswerForm,
        read: ReadOptions,
        is_wanted: Callable[[], bool],
    ) -> Document | Iterator[Document]:
        each, longest = whole(body, "n", 1, MOST_CHOICES), max(map(len, prompts))
        if not all(prompts):
            raise RequestError("the prompt is empty", form.field)
        if longest >= lm.config.context:
            raise RequestError(f"the prompt has {longest} tokens; the context is {lm.config.context}", form.field)
        wrong = next((t for ids in prompts for t in ids if not 0 <= t < lm.config.vocab), None)
        if wrong is not None:
            raise RequestError(f"token {wrong} is not one of the {lm.config.vocab} of this model", form.field)
        room = lm.config.context - longest
        read = read._replace(draft=self._draft)
        steps = self._steps(lm, prompts, room if most is None else min(most, room), read, each)
        if flag(body, "stream"):
            options = body.get("stream_options", {})
            return self._streamed(steps, len(prompts) * each, each, form, flag(options, "include_usage"))
        return form.whole(checked(lambda: _completions(steps, is_wanted)), each)

    def _steps(self, lm: LanguageModel, prompts: list[list[int]], most: int, read: ReadOptions, each: int) -> Steps:
        """The texts that follow prompts: with those of other requests where that can be, else beside them."""
        if self.scheduler is not None:
            return (yield from self.scheduler.steps(prompts, most, read, each))
        with self._room:
            return (yield from lm.steps(prompts, most, read, each))

    def _streamed(self, steps: Steps, rows: int, each: int, form: AnswerForm, has_usage: bool) -> Iterator[Document]:
        try:
            for row in range(rows):
                yield from form.begin(row)
            while True:
                for row, text in enumerate(next(steps)):
                    if text:
                        yield from form.piece(row, text)
        except StopIteration as end:
            answers: list[Completion] = end.value
            for row, answer in enumerate(answers):
                yield from form.end(row, answer)
            if has_usage:
                yield form.usage(answers, each)
        finally:
            steps.close()

    def _tokenize(self, body: Document, is_wanted: Callable[[], bool]) -> Document:
        """The tokens of a text, as llama.cpp's server has it."""
        require_fields(body, {"content": str, "add_special": bool}, "content")
        tokenizer = self._tokenizer()
        return {"tokens": tokenizer.encode(body["content"], add_special=body.get("add_special", False))}

    def _detokenize(self, body: Document, is_wanted: Callable[[], bool]) -> Document:
        require_fields(body, {"tokens": list}, "tokens")
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in body["tokens"]):
            raise RequestError("tokens must be a list of token ids", "tokens")
        tokenizer = self._tokenizer()
        return {"content": checked(lambda: tokenizer.decode(body["tokens"], skip_special=False), "tokens")}

    def _tokenizer(self) -> Tokenizer:
        model = self.lm or self.encoder
        if model is None:
            raise RequestError("there is no model")
        return model.tokenizer

    def _embed(self, body: Document, is_wanted: Callable[[], bool]) -> Document:
        texts, how = require_embedding(body)
        model = self.encoder or self._language_model()
        with self._room:
            vectors = checked(lambda: np.asarray(model.embed(texts), "<f4"))
        if body.get("dimensions", vectors.shape[1]) != vectors.shape[1]:
            raise RequestError(f"the vectors of {self.name} have {vectors.shape[1]} dimensions", "dimensions")
        tokens = sum(len(model.tokenizer.encode(text)) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": _encoded(v, how)} for i, v in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": self.name, "data": data, "usage": usage}


def _completions(steps: Steps, is_wanted: Callable[[], bool]) -> list[Completion]:
    """What texts that are written piece by piece become."""
    while is_wanted():
        try:
            next(steps)
        except StopIteration as end:
            answers: list[Completion] = end.value
            return answers
    steps.close()
    raise NotWanted


def _encoded(vector: Any, how: str) -> Any:
    return base64.b64encode(vector.tobytes()).decode() if how == "base64" else vector.tolist()
