"""`rlx.debug.print` and `rlx.debug.callback`: look at values while a compiled program runs.

    @rlx.jit
    def f(x):
        rlx.debug.print("x = {}, mean {m:.3f}", x, m=x.mean())
        return x * 2

Values are printed each time the program passes, inside of loops and branches too.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.tensor import Tensor


def print(fmt: str, *args: Any, **kwargs: Any) -> None:
    """Print `fmt` with its fields filled in, when the program gets to this place, as often as it does.

    Fields are those of `str.format`: `{}`, `{0}`, `{name}`, with a format after a colon for scalars. Values that are
    not arrays are filled in at once. Outside of a program it prints immediately.
    """
    from rlx.ops.control.effects import DebugPrint

    text, operands = _numbered_away(fmt, args, kwargs)
    # The op passes its first operand on; without one, a constant stands in.
    DebugPrint(text)(*(operands or [np.int32(0)]))


def callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call a Python function with the values of `args`, when the program gets to this place, as often as it does.

    >>> seen = []
    >>> callback(seen.append, 3)
    >>> seen
    [3]
    """
    from rlx.trace.callbacks import debug_callback

    debug_callback(callback, *args, ordered=ordered, **kwargs)


def _numbered_away(fmt: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
    """The format with plain fields only, in the order of the operands that fill them."""
    pieces: list[str] = []
    operands: list[Any] = []
    following = iter(range(len(args)))
    for literal, field, spec, conversion in string.Formatter().parse(fmt):
        pieces.append(_escaped(literal))
        if field is None:
            continue
        value = _field_value(fmt, field, following, args, kwargs)
        suffix = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        if isinstance(value, Tensor | bool | int | float | complex) or hasattr(value, "__array__"):
            pieces.append("{" + suffix + "}")
            operands.append(value)
        else:
            pieces.append(_escaped(("{" + suffix + "}").format(value)))
    return "".join(pieces), operands


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _field_value(fmt: str, field: str, following: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if field in kwargs:
        return kwargs[field]
    index = next(following, len(args)) if field == "" else int(field) if field.isdigit() else len(args)
    if index >= len(args):
        given = f"{len(args)} values" + (f" and {', '.join(kwargs)}" if kwargs else "")
        raise OpError(f"debug.print: nothing is given for the field {{{field}}} of {fmt!r}; got {given}")
    return args[index]
