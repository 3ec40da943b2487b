"""The position of the largest or smallest element of rows by blocks of a GPU, in the interpreter with few threads."""

import numpy as np
import pytest
from test_gpu_radix import check, numbers

from rlx.kernels.gpu import search_rows
from rlx.ops.reduction.reductions import ArgReduce


@pytest.mark.parametrize(
    ("kind", "length", "dtype"),
    [("argmax", 300, "f4"), ("argmin", 64, "f8"), ("argmax", 65, "i2"), ("argmin", 130, "f2")],
)
def test_rows(kind, length, dtype, monkeypatch):
    monkeypatch.setattr(search_rows, "THREADS", 64)
    x = numbers((2, length), dtype)
    if x.dtype.kind == "f":
        x[1] = np.nan_to_num(x[1], nan=1)
    check(ArgReduce(kind, -1), x, kinds=("search",), seed=2)


def test_all_equal(monkeypatch):
    monkeypatch.setattr(search_rows, "THREADS", 64)
    for number in (-(2**31), 0):
        check(ArgReduce("argmax", -1), np.full((1, 90), number, np.int32), kinds=("search",))
