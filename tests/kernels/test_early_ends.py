"""Loops that end after the first round in which they say so."""

import numpy as np
import pytest
from kernel_runs import check_everywhere

from rlx.errors import DTypeError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_emit import c_source
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import LoopKind
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import CORTEX_M4


def search():
    """Where the first element of x that is larger than n is: a loop that ends early."""
    k = KernelBuilder("search")
    x, y, limit = k.pointer("x", DType.F32), k.pointer("y", DType.I64, write=True), k.scalar("limit", DType.F32)
    with k.fold("i", 0, 10, init=[k.const(-1, DType.I64)]) as f:
        is_larger = k.load(x, f.index) > limit
        f.next(k.select(is_larger, f.index, f.values[0]), again=~is_larger)
    k.store(y, 0, f.results[0])
    return k.build()


@pytest.mark.parametrize("limit, wanted", [(-1.0, 0), (4.5, 5), (8.5, 9), (100.0, -1)])
def test_loops_that_end_early(limit, wanted):
    kernel, args = search(), {"x": np.arange(10, dtype="f4"), "y": np.zeros(1, "i8"), "limit": limit}
    assert check_everywhere(kernel, args)["y"] == [wanted]
    assert "again if" in kernel.text and "break;" in c_source([kernel], CORTEX_M4)


def test_only_serial_loops_end_early():
    kernel = search()
    (loop,) = (s for s in kernel.body.statements if hasattr(s, "kind"))
    loop.kind = LoopKind.WALK
    with pytest.raises(VerificationError, match="only a serial loop ends early"):
        verify(kernel)
    k = KernelBuilder("wrong")
    with pytest.raises(DTypeError, match="scalar bool"), k.fold("i", 0, 3) as f:
        f.next(again=f.index)
