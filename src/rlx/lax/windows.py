"""Windows of arrays: their reductions, and how they are placed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.errors import OpError
from rlx.ir.shape import Size
from rlx.ops.define.operands import dims_of

_WINDOW_KINDS = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod", "multiply": "prod", "max": "max"}
_WINDOW_KINDS |= {"min": "min", "sum": "sum", "prod": "prod"}
_IDENTITIES = {"sum": (0,), "prod": (1,), "max": (-math.inf,), "min": (math.inf,)}


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Sums, products, largest or smallest elements of windows; `computation` is `lax.add`, `mul`, `max` or `min`."""
    kind = _WINDOW_KINDS.get(getattr(computation, "__name__", ""))
    if kind is None or init_value not in _IDENTITIES[kind]:
        raise OpError(
            "reduce_window: computation is lax.add, lax.mul, lax.max or lax.min, and init_value its identity; got "
            f"{getattr(computation, '__name__', computation)!r} with {init_value!r}. Write other windows with lax.scan"
        )
    window_strides = window_strides or [1] * len(window_dimensions)
    if base_dilation is not None and {*base_dilation} != {1}:
        empty = _IDENTITIES[kind][0]
        none = [0] * len(base_dilation)
        operand = ops.pad(operand, empty, none, none, [d - 1 for d in base_dilation])
    if isinstance(padding, str):
        spread = [(w - 1) * d + 1 for w, d in zip(window_dimensions, window_dilation or [1] * len(window_dimensions))]
        padding = padtype_to_pads(dims_of(operand), spread, window_strides, padding)
    return ops.reduce_window(operand, kind, window_dimensions, window_strides, padding, window_dilation)


def padtype_to_pads(
    in_shape: Sequence[Size], window_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """What "VALID", "SAME" and "SAME_LOWER" put in front of each axis and behind it."""
    name, sizes, window, strides = padding, in_shape, window_shape, window_strides
    if name.upper() == "VALID":
        return [(0, 0)] * len(window)
    known = [n for n in sizes if isinstance(n, int)]
    if name.upper() not in ("SAME", "SAME_LOWER") or len(known) != len(window):
        raise OpError(f"padtype_to_pads: padding is 'VALID', 'SAME' (of known sizes) or pairs, got {name!r}")
    totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(known, window, strides)]
    if name.upper() == "SAME_LOWER":
        return [(total - total // 2, total // 2) for total in totals]
    return [(total // 2, total - total // 2) for total in totals]
