"""Scans that carry, read or stack complex values, as scans of their parts: loops of kernels know real numbers only.

scan: z = body(z)    ->    scan: re, im = parts of body(make_complex(re, im))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.compile.lower.complex_numbers import parts
from rlx.ir.op import Op
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import build_body, input_types, output_types
from rlx.ops.control.scans import Scan
from rlx.ops.pointwise.complex_numbers import MakeComplex

Form = Callable[..., Any]


def scan_of_parts(op: Op, *operands: Any) -> Form | None:
    """The form of a scan with complex values; None for others."""
    assert isinstance(op, Scan)
    inputs, outputs = input_types(op.body), output_types(op.body)
    if not any(t.dtype.is_complex for t in (*inputs, *outputs)):
        return None
    counts = [_count(inputs[a:b]) for a, b in _ranges(op)]

    def body(*values: Any) -> Any:
        return tuple(_apart(inline_graph(op.body, _together(inputs, values))))

    types = [t.with_dtype(t.dtype.real) for t in inputs for _ in range(_count([t]))]
    apart = build_body(op.body.name, body, **{f"v{i}": t for i, t in enumerate(types)})
    carries, bcasts, xs = counts
    loop = op.replace(body=apart, num_carry=carries, num_bcast=bcasts, num_xs=xs)

    def build(*operands: Any) -> Any:
        found = loop(*_apart(operands))
        results = _together(outputs, found if isinstance(found, tuple) else (found,))
        return tuple(results) if len(results) > 1 else results[0]

    return build


def _ranges(op: Scan) -> list[tuple[int, int]]:
    """Where among the operands carries, bcasts and xs are."""
    first, second = op.num_carry, op.num_carry + op.num_bcast
    return [(0, first), (first, second), (second, second + op.num_xs)]


def _count(types: Sequence[Shape]) -> int:
    return sum(2 if t.dtype.is_complex else 1 for t in types)


def _apart(values: Sequence[Any]) -> list[Any]:
    return [p for v in values for p in (parts(v) if v.dtype.is_complex else (v,))]


def _together(types: Sequence[Shape], values: Sequence[Any]) -> list[Any]:
    left = iter(values)
    return [MakeComplex()(next(left), next(left)) if t.dtype.is_complex else next(left) for t in types]
