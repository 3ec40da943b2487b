"""`LoweredProduct`: what products have in common that only the compiler makes."""

from __future__ import annotations

from rlx.ir.op import NoRule, Op

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use matmul or a convolution")


class LoweredProduct(Op):
    """A primitive without rules, in which most of the time of a program may go."""

    primitive = True
    lowered = True
    is_heavy = True
    jvp = vjp = batch = _INTERNAL
