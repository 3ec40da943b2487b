"""Products with sparse matrices as gathers and sums by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.op import Op

Form = Callable[..., Any]

SPARSE_FORMS: dict[type[Op], Callable[..., Form | None]] = {}
