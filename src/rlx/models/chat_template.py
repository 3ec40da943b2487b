"""Chat templates: the jinja2 programs that turn a conversation into a prompt.

A template comes with the model, from outside: it runs in a sandbox, sees nothing but its arguments, and has bounds on
its size, its output, its steps and its time (see `rlx.models.chat_template_sandbox`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rlx.errors import FormatError, RlxError

if TYPE_CHECKING:
    from rlx.models.chat_template_sandbox import Sandbox

MAX_TEMPLATE_CHARS = 1 << 20


@functools.cache
def _sandbox() -> Sandbox:
    try:
        from rlx.models.chat_template_sandbox import Sandbox
    except ImportError:
        raise RlxError("jinja2 is needed for chat templates; pip install 'rlx[llm]'") from None
    return Sandbox()


class ChatTemplate:
    """One template with the names it may use.

    >>> ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}").render(
    ...     [{"role": "user", "content": "hi"}])
    'user: hi; '
    """

    def __init__(self, source: str, **names: object) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise FormatError(f"chat template: at most {MAX_TEMPLATE_CHARS} characters, got {len(source)}")
        sandbox = _sandbox()
        import jinja2

        self.source, self._names = source, names
        try:
            self._template = sandbox.from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise FormatError(f"chat template: {error}{_line(error)}") from None

    def render(
        self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """The prompt of `messages`, each with at least `role` and `content`; `extra` are further template arguments."""
        import jinja2

        from rlx.models.chat_template_sandbox import fresh_budget

        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or "role" not in message:
                raise RlxError(f"chat: message {index} must be a mapping with a role and content, got {message!r:.80}")
        arguments = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            **self._names,
            **extra,
        }
        try:
            with fresh_budget():
                return "".join(_bounded(self._template.generate(arguments)))
        except jinja2.TemplateError as error:
            raise RlxError(f"chat template: {error}{_line(error)}") from None
        except RlxError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RlxError(f"chat template: {type(error).__name__}: {error}; check the messages it was given") from None


def _line(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    return f" (line {line} of the template)" if line else ""


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces of output, as long as they fit."""
    from rlx.models.chat_template_sandbox import require_size

    size = 0
    for piece in pieces:
        size += len(piece)
        require_size(size)
        yield piece
