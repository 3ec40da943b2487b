"""Why two ops that follow each other are not in one kernel: a closed list of reasons."""

from __future__ import annotations

import enum
from typing import NamedTuple

from rlx.ir.graph import NodeId
from rlx.ir.provenance import SourceLocation


class FusionBarrier(enum.StrEnum):
    """What keeps a value from staying inside a kernel on its way from one op to the next."""

    HostCall = "host_call"
    OwnKernel = "own_kernel"
    ProductOperand = "product_operand"
    ProductResult = "product_result"
    SeveralReaders = "several_readers"
    IsOutput = "is_output"
    DifferentIndexSpace = "different_index_space"
    ReductionOverOtherAxis = "reduction_over_other_axis"
    ViewNeedsCopy = "view_needs_copy"
    LookedUp = "looked_up"
    JoinedValue = "joined_value"
    OneRow = "one_row"
    OtherPath = "other_path"
    TooLarge = "too_large"

    @property
    def meaning(self) -> str:
        """The reason in words."""
        return _MEANINGS[self]


_MEANINGS = {
    FusionBarrier.HostCall: "one of the two runs on the host",
    FusionBarrier.OwnKernel: "one of the two has a kernel of its own that takes nothing else in",
    FusionBarrier.ProductOperand: "a matrix product reads its operands again and again",
    FusionBarrier.ProductResult: "a product has an epilogue, and this is more than an epilogue",
    FusionBarrier.SeveralReaders: "others read it too, and the kernel can store one value only",
    FusionBarrier.IsOutput: "it is returned, and the kernel can store one value only",
    FusionBarrier.DifferentIndexSpace: "the loops around the two have nothing in common",
    FusionBarrier.ReductionOverOtherAxis: "rows of the one are no rows of the other",
    FusionBarrier.ViewNeedsCopy: "a view between the two is no index map",
    FusionBarrier.LookedUp: "elements are read at positions that are computed",
    FusionBarrier.JoinedValue: "it is put together from parts, each with loops of its own",
    FusionBarrier.OneRow: "together they would run on one thread",
    FusionBarrier.OtherPath: "another kernel between the two needs the one and feeds the other",
    FusionBarrier.TooLarge: "the kernel would have more ops or operands than is good for it",
}


class UnfusedEdge(NamedTuple):
    """A value on its way through memory, from the node that computes it to one that reads it (through views)."""

    producer: NodeId
    reader: NodeId
    reason: FusionBarrier
    source: SourceLocation | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.producer} -> {self.reader}{where}: {self.reason}"
