"""Chat templates: the jinja2 programs that turn a conversation into a prompt.

A template comes with the model, from outside: it runs in a sandbox (`rlx.models.chat_template_sandbox`) in a process of
its own (`rlx.models.chat_template_worker`), sees nothing but its arguments, and has bounds on its size, its output, its
steps, its time and its memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rlx.errors import FormatError, RlxError
from rlx.models import chat_template_process
from rlx.models.chat_template_protocol import MAX_SECONDS

MAX_TEMPLATE_CHARS = 1 << 20
_MAX_READING_SECONDS = 1.0
# Conversations are flat; what nests deeper than this is not one.
_MAX_DEPTH = 200


class ChatTemplate:
    """One template with the names it may use.

    >>> ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}").render(
    ...     [{"role": "user", "content": "hi"}])
    'user: hi; '
    """

    def __init__(self, source: str, **names: object) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise FormatError(f"chat template: at most {MAX_TEMPLATE_CHARS} characters, got {len(source)}")
        self.source, self._names = source, names
        chat_template_process.start()
        started = time.monotonic()
        chat_template_process.ask(source, None, _MAX_READING_SECONDS)
        self._seconds = max(MAX_SECONDS - (time.monotonic() - started), MAX_SECONDS - _MAX_READING_SECONDS)

    def render(
        self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """The prompt of `messages`, each with at least `role` and `content`; `extra` are further template arguments.

        Arguments are text, numbers, None, lists and mappings of such."""
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or "role" not in message:
                raise RlxError(f"chat: message {index} must be a mapping with a role and content, got {message!r:.80}")
        arguments = {
            "messages": [_plain(message, f"message {i}") for i, message in enumerate(messages)],
            "add_generation_prompt": bool(add_generation_prompt),
            # Templates may ask whether there are some, but not whether the names are known.
            "tools": None,
            "documents": None,
            **{name: _plain(value, name) for name, value in {**self._names, **extra}.items()},
        }
        return chat_template_process.ask(self.source, arguments, self._seconds)


def _plain(value: object, what: str, depth: int = 0) -> object:
    """The same of Python's own types, which is what another process can be given."""
    if depth > _MAX_DEPTH:
        raise RlxError(f"chat: {what} nests deeper than {_MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {_plain(k, what, depth + 1): _plain(v, what, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, what, depth + 1) for item in value]
        return items if isinstance(value, list) else tuple(items)
    raise RlxError(f"chat: {what} must be text, numbers, lists and mappings, got {type(value).__name__}")
