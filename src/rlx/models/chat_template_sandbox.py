"""The jinja2 sandbox of chat templates, with bounds on time and memory.

jinja2's immutable sandbox keeps a template from reaching Python's internals and from changing its arguments. It does
not keep it from running for ever or from making a terabyte of text. Here every loop turn and every call takes a step
from a budget, and what commonly makes something large is measured before it is done, so that it ends in an error that
says which. What gets past that is ended with its process; see `rlx.models.chat_template_worker`.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlx.errors import RlxError
from rlx.models.chat_template_protocol import MAX_SECONDS

MAX_TEXT = 1 << 24
MAX_RANGE = 100_000
MAX_STEPS = 2_000_000
_MAX_WIDTH = 1000
_MAX_INT_BITS = 4096

# What chat templates use. jinja2 has more filters; some of them make large things from small arguments.
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items join last length list lower "
    "map max min reject rejectattr replace reverse round safe select selectattr sort string sum title trim unique upper"
)
# Methods of str that pad to any width, or whose result cannot be bounded.
_REFUSED_METHODS = frozenset(
    ["center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans", "format", "format_map"]
)


class TemplateLimit(RlxError):
    """A chat template that went over one of its bounds."""


class _Budget:
    """What one rendering has left."""

    def __init__(self) -> None:
        self.steps, self.deadline = MAX_STEPS, time.monotonic() + MAX_SECONDS

    def take(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TemplateLimit(f"chat template: it takes more than {MAX_STEPS} steps")
        if self.steps % 256 == 0 and time.monotonic() > self.deadline:
            raise TemplateLimit(f"chat template: it runs longer than {MAX_SECONDS:g} seconds")


_budget: ContextVar[_Budget | None] = ContextVar("chat_template_budget", default=None)


@contextmanager
def fresh_budget() -> Iterator[None]:
    """The bounds of one rendering hold inside the block."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _take_step() -> None:
    budget = _budget.get()
    if budget is not None:
        budget.take()


def require_size(size: int) -> None:
    """Refuse text and lists beyond the limit."""
    if size > MAX_TEXT:
        raise TemplateLimit(f"chat template: it makes more than {MAX_TEXT} characters or items")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the model's own words for training; here it is the words alone."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for templates from outside."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        known = {name: self.filters[name] for name in _FILTERS.split()}
        self.filters = {**known, "counted": _counted, "measured": _measured, "tojson": _tojson, "indent": _indent}
        self.filters["replace"] = lambda text, old, new: self.call_text(str(text).replace, str(old), str(new))
        self.globals = {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "range": _bounded_range,
            **{name: self.globals[name] for name in ("namespace", "joiner", "cycler")},
            "dict": dict,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Count the turns of every loop, and measure what `~` joins."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _filter(loop.iter, "counted")  # type: ignore[arg-type]  # an Expr, declared as any Node
        _wrap_joins(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _take_step()
        if operator == "**":
            raise TemplateLimit("chat template: powers are not allowed")
        if operator == "%" and isinstance(left, str):
            raise TemplateLimit("chat template: formatting with % is not allowed; join with ~")
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            require_size(len(left) + len(right))
        if operator == "*":
            _check_product(left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """jinja2 sends every call in a template through here; its own names must not hide the template's keywords."""
        _take_step()
        if isinstance(getattr(__obj, "__self__", None), str):
            # What jinja2 tells its own functions inside of loops and blocks.
            given = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            return __self.call_text(__obj, *args, **given)
        return super().call(__context, __obj, *args, **kwargs)

    def call_text(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """A method of a string, its result measured first where it can be long."""
        name, text = method.__name__, method.__self__
        if name == "replace" and len(args) >= 2:
            require_size(len(text) + text.count(args[0]) * len(args[1]))
        elif name == "join" and args:
            parts = [str(part) for part in args[0]]
            require_size(sum(map(len, parts)) + len(text) * len(parts))
            return text.join(parts)
        return method(*args, **kwargs)

    def wrap_str_format(self, value: Any) -> None:
        """jinja2 would allow `str.format` with a formatter of its own, which still pads to any width."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _REFUSED_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)


def _filter(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _wrap_joins(node: nodes.Node) -> None:
    """Put the filter `measured` around every `~` below `node`."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_measured_join(item) for item in value])
        else:
            setattr(node, field, _measured_join(value))
    for child in node.iter_child_nodes():
        # The join inside a new filter is visited through its own operands.
        _wrap_joins(child.node if _is_wrapped(child) else child)  # type: ignore[attr-defined]


def _measured_join(value: Any) -> Any:
    return _filter(value, "measured") if isinstance(value, nodes.Concat) else value


def _is_wrapped(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Filter) and node.name == "measured"


def _check_product(left: Any, right: Any) -> None:
    """Text or lists times a number, and numbers that grow by multiplying."""
    sized, count = (left, right) if isinstance(left, str | list | tuple) else (right, left)
    if isinstance(sized, str | list | tuple) and isinstance(count, int):
        require_size(len(sized) * count)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_INT_BITS:
        raise TemplateLimit(f"chat template: whole numbers are limited to {_MAX_INT_BITS} bits")


def _counted(items: Iterable[Any]) -> Any:
    """The items of a loop, one step each; things with a length keep it, so that `loop.length` costs nothing."""
    return _CountedSequence(items) if isinstance(items, list | tuple | str | range) else _counted_iterator(items)


class _CountedSequence:
    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _counted_iterator(self._items)


def _counted_iterator(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _take_step()
        yield item


def _measured(text: str) -> str:
    require_size(len(text))
    return text


def _raise_exception(message: str) -> NoReturn:
    raise RlxError(f"chat template: {message}")


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_WIDTH:
        raise TemplateLimit(f"chat template: strftime_now takes at most {_MAX_WIDTH} characters")
    return datetime.datetime.now().strftime(format)


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimit(f"chat template: range is limited to {MAX_RANGE} items, got {len(numbers)}")
    return numbers


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = " " * min(width, _MAX_WIDTH) if isinstance(width, int) else width
    lines = str(text).split("\n")
    require_size(len(text) + len(lines) * len(margin))
    moved = [margin + line if line or blank else line for line in lines]
    return "\n".join(moved if first else [lines[0], *moved[1:]])


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as models were trained on it: not escaped for HTML, characters as they are."""
    if isinstance(indent, int) and indent > _MAX_WIDTH:
        raise TemplateLimit(f"chat template: tojson indents by at most {_MAX_WIDTH}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
