"""The kinds of kernels, and what each needs: the one place that says so.

    KernelKind.of(kernel.kind).runs         # False for a view

A kind is the text that LIR, reports and caches have. Ops with a kernel of their own (attention, sort, conv, ...) bring
the name of their family as the kind, so that list is open; for all that code has to know of them, they are `Own`.
"""

from __future__ import annotations

from rlx.ir.words import Words


class KernelKind(Words):
    """How a kernel runs."""

    # An element-wise program over one index space, or over several with the same results.
    Map = "map"
    # Maps and reductions along rows that stay in cache.
    Row = "row"
    # Sums over other axes.
    Reduce = "reduce"
    # A product with what follows.
    MatMul = "matmul"
    # A scan, a while loop or a branch, with kernels inside.
    Loop = "loop"
    # Another shape of the same bytes.
    View = "view"
    # The op's definition, on the host.
    Call = "call"
    # A whole op, by a target that has kernels of its own for it.
    Op = "op"
    # A whole op, by a kernel of our own generator; LIR has the name of its family instead.
    Own = "own"
    # While kernels are formed: a value joined from parts, and several maps side by side. LIR has `map` for both.
    Parts = "parts"
    Several = "several"

    # A kind is its text, in lists too.
    __repr__ = str.__repr__

    @staticmethod
    def of(text: str) -> KernelKind:
        """The kind that a text names; names of families are `Own`."""
        found = _KINDS.get(text)
        return KernelKind.Own if found is None else found

    @property
    def runs(self) -> bool:
        """Whether anything happens when it is its turn."""
        return self is not KernelKind.View

    @property
    def is_native(self) -> bool:
        """Whether code does it, which needs memory that the plan has placed; the host brings its own."""
        return self not in (KernelKind.View, KernelKind.Call)

    @property
    def is_mapped(self) -> bool:
        """Whether each element is computed from elements, so that others of its kind can join it."""
        return self in (KernelKind.Map, KernelKind.Parts, KernelKind.Several)

    @property
    def has_loop_nest(self) -> bool:
        """Whether it is made from a loop nest over points; others are made from their op."""
        return self in (KernelKind.Map, KernelKind.Row, KernelKind.Reduce)


_KINDS = {kind.value: kind for kind in KernelKind}

# For code that compares kinds often: a name of a module is found faster than a member of an enum.
MAP, ROW, REDUCE, MATMUL, LOOP = KernelKind.Map, KernelKind.Row, KernelKind.Reduce, KernelKind.MatMul, KernelKind.Loop
VIEW, CALL, PARTS, SEVERAL = KernelKind.View, KernelKind.Call, KernelKind.Parts, KernelKind.Several
