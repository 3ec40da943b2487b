"""How answers of OpenAI's HTTP interface look: whole, and as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlx.models.openai_requests import MOST_ALTERNATIVES, Document, RequestError, flag, whole
from rlx.models.tool_calls import CallReader, CallStyle, Heard, new_call, read_message

if TYPE_CHECKING:
    from rlx.models.generation import Completion
    from rlx.models.language_model import LanguageModel


class AnswerForm:
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

    def choice(self, index: int, answer: Completion) -> Document:
        """The text of a whole answer, and why it ended."""
        raise NotImplementedError

    def whole(self, answers: Sequence[Completion], each: int) -> Document:
        """The answers to all prompts, so many to each."""
        choices = [{"index": i, **self.choice(i, a), "logprobs": self.logprobs(a)} for i, a in enumerate(answers)]
        return {**self._frame, "object": self.object_name, "choices": choices, "usage": _usage(answers, each)}

    def begin(self, index: int) -> Iterator[Document]:
        """What comes before the first piece of an answer."""
        return iter(())

    def piece(self, index: int, text: str) -> Iterator[Document]:
        """More text of an answer."""
        raise NotImplementedError

    def end(self, index: int, answer: Completion) -> Iterator[Document]:
        """Behind the last piece."""
        raise NotImplementedError

    def chunk(
        self, index: int, part: Document, finish: str | None = None, logprobs: Document | None = None
    ) -> Document:
        choice = {"index": index, **part, "logprobs": logprobs, "finish_reason": finish}
        return {**self._frame, "object": self.chunk_name, "choices": [choice]}

    def usage(self, answers: Sequence[Completion], each: int) -> Document:
        """The last event where the request asks for it."""
        return {**self._frame, "object": self.chunk_name, "choices": [], "usage": _usage(answers, each)}


class ChatForm(AnswerForm):
    prefix, object_name, chunk_name, field = "chatcmpl", "chat.completion", "chat.completion.chunk", "messages"

    def __init__(self, model: str, lm: LanguageModel, style: CallStyle | None = None) -> None:
        """With a `style` answers may have calls of functions, which are written like this."""
        super().__init__(model, lm)
        self._style = style
        self._readers: dict[int, CallReader] = {}
        self._calls: dict[int, int] = {}

    def alternatives(self, body: Document) -> Document:
        most = whole(body, "top_logprobs", 0, MOST_ALTERNATIVES, least=0)
        if flag(body, "logprobs"):
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

    def choice(self, index: int, answer: Completion) -> Document:
        message: Document = {"role": "assistant", "content": answer.text}
        if self._style is not None:
            message = read_message(self._style, answer.text)
        return {"message": message, "finish_reason": _finish(answer, "tool_calls" in message)}

    def begin(self, index: int) -> Iterator[Document]:
        if self._style is not None:
            self._readers[index], self._calls[index] = CallReader(self._style), 0
        yield self.chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, index: int, text: str) -> Iterator[Document]:
        reader = self._readers.get(index)
        heard = [Heard("content", text)] if reader is None else reader.push(text)
        return (self.chunk(index, {"delta": self._delta(index, one)}) for one in heard)

    def _delta(self, index: int, heard: Heard) -> Document:
        if heard.kind == "content":
            return {"content": heard.text}
        if heard.kind == "name":
            self._calls[index] += 1
        place = self._calls[index] - 1
        call = new_call(heard.text) if heard.kind == "name" else {"function": {"arguments": heard.text}}
        return {"tool_calls": [{"index": place, **call}]}

    def end(self, index: int, answer: Completion) -> Iterator[Document]:
        if index in self._readers:
            for heard in self._readers[index].flush():
                yield self.chunk(index, {"delta": self._delta(index, heard)})
        # Pieces of text are no tokens; whoever joins the lists of all events has those of the whole answer.
        finish = _finish(answer, bool(self._calls.get(index)))
        yield self.chunk(index, {"delta": {}}, finish, self.logprobs(answer))


class TextForm(AnswerForm):
    prefix, object_name, chunk_name, field = "cmpl", "text_completion", "text_completion", "prompt"

    def __init__(self, model: str, lm: LanguageModel, before: Sequence[str] = ()) -> None:
        """`before` are texts that come before the answers, one for each."""
        super().__init__(model, lm)
        self._before = before

    def alternatives(self, body: Document) -> Document:
        if body.get("logprobs", False) is False:
            return {}
        return {"logprobs": whole(body, "logprobs", 0, MOST_ALTERNATIVES, least=0)}

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

    def choice(self, index: int, answer: Completion) -> Document:
        return {"text": self._echo(index) + answer.text, "finish_reason": _finish(answer)}

    def _echo(self, index: int) -> str:
        return self._before[index] if self._before else ""

    def begin(self, index: int) -> Iterator[Document]:
        if echo := self._echo(index):
            yield from self.piece(index, echo)

    def piece(self, index: int, text: str) -> Iterator[Document]:
        yield self.chunk(index, {"text": text})

    def end(self, index: int, answer: Completion) -> Iterator[Document]:
        yield self.chunk(index, {"text": ""}, _finish(answer), self.logprobs(answer))


def _finish(answer: Completion, has_calls: bool = False) -> str:
    if answer.finish_reason != "stop":
        return "length"
    return "tool_calls" if has_calls else "stop"


def _usage(answers: Sequence[Completion], each: int) -> dict[str, int]:
    """How many tokens were read and written; a prompt with several answers is read once."""
    prompt, written = sum(a.prompt_tokens for a in answers[::each]), sum(len(a.token_ids) for a in answers)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
