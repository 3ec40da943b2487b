"""Products with experts that are floats, as kernels take them: rows grouped by expert, nothing gathered.

grouped_matmul(x, w, ids)    ->    routed_matmul(x, w, expert_route(ids))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.lowered.expert_products import ExpertRoute, RoutedMatMul
from rlx.ops.pointwise.conversion import cast


def routed_form(op: Op, x: Any, w: Any, ids: Any) -> Callable[..., Any] | None:
    """Rows by the matrices of their experts; None for types other than floats, and for a number of experts that only
    the run knows."""
    experts = w.shape[0]
    if not isinstance(experts, int) or experts < 1 or not x.dtype.is_float or x.dtype.is_storage:
        return None
    return lambda x, w, ids: RoutedMatMul()(x, w, ExpertRoute(experts)(whole_ids(ids)))


def whole_ids(ids: Any) -> Any:
    """Ids of a type that kernels look up by."""
    return ids if ids.dtype in (DType.I32, DType.I64) else cast(ids, DType.I64)
