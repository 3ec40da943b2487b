"""The process in which chat templates run.

Templates come from outside. The sandbox counts their steps, and measures what they make where it can; what C code does
with a small argument, such as printing a list that holds itself in thirty doublings, only the system can bound. So they
run in a process of their own: it may have `MAX_BYTES` of memory, and who asked ends it when its time is over
(`rlx.models.chat_template_process`).
"""

from __future__ import annotations

import functools
import marshal
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import jinja2

from rlx.errors import RlxError
from rlx.models.chat_template_protocol import ANSWER, BAD_SOURCE, FAILED, MAX_BYTES, NO_MEMORY, REQUEST, TEXT
from rlx.models.chat_template_sandbox import Sandbox, fresh_budget, require_size

if TYPE_CHECKING:
    from jinja2 import Template

# Compiled templates that are kept; a process rarely has more than one.
_KEPT = 4


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    # Ctrl-C is for the process that owns this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    compiled = functools.lru_cache(_KEPT)(Sandbox().from_string)
    _send(answers, TEXT, "ready")
    while head := requests.read(REQUEST.size):
        (size,) = REQUEST.unpack(head)
        _limit_time()
        _send(answers, *_answer(compiled, requests.read(size)))


def _answer(compiled: functools._lru_cache_wrapper[Template], request: bytes) -> tuple[bytes, str]:
    try:
        source, arguments = marshal.loads(request)
        try:
            template = compiled(source)
        except MemoryError:
            return NO_MEMORY, ""
        except Exception as error:
            return BAD_SOURCE, f"{_reason(error)}{_line(error)}"
        if arguments is None:
            return TEXT, ""
        with fresh_budget():
            return TEXT, "".join(_bounded(template.generate(arguments)))
    except MemoryError:
        return NO_MEMORY, ""
    except RlxError as error:
        return FAILED, str(error)
    except jinja2.TemplateError as error:
        return FAILED, f"{error}{_line(error)}"
    except Exception as error:
        return FAILED, f"{_reason(error)}; check the messages it was given"


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces of output, as long as they fit."""
    size = 0
    for piece in pieces:
        size += len(piece)
        require_size(size)
        yield piece


def _send(answers: BinaryIO, kind: bytes, text: str) -> None:
    content = text.encode("utf-8", "surrogatepass")
    answers.write(ANSWER.pack(kind, len(content)))
    answers.write(content)
    answers.flush()


def _reason(error: Exception) -> str:
    text = str(error)[:500]
    return text if isinstance(error, jinja2.TemplateError | RlxError) else f"{type(error).__name__}: {text}"


def _line(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    return f" (line {line} of the template)" if line else ""


def _limit_memory() -> None:
    """Bound all memory of this process, where the system can do that; Windows and macOS cannot."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time() -> None:
    """If the owner is killed in the middle of a rendering, this process ends by itself a little later."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        used = sum(os.times()[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 4, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    """What the owner starts: answers go to what was standard output, and nothing else does."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr
    serve(sys.stdin.buffer, answers)
