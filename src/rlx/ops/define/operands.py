"""What functional constructors and `infer` rules share: promotion of operands, and checks that name the op.

Ops themselves take operands of one dtype; `promote_operands` inserts the casts, so that backends see them explicitly.
Python scalars are weak: they take the dtype of what they meet (NEP 50), or f32 / i32 when they meet only each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from rlx.ir.dims import collect_constraints
from rlx.ir.dtype import DType, promote
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor import Tensor, building, constant_data, current_scope, emit, is_python_scalar, lift, target_graph

# Python's own types, by category; the dtypes of the last two are settings.
_PYTHON_TYPES = (bool, int, float, complex)


def dtype_of(value: Any) -> DType:
    """The dtype of a tensor, an array or a Python scalar."""
    if isinstance(value, Tensor):
        return value.dtype
    if is_python_scalar(value):
        return constant_data(value).shape.dtype
    return DType.of(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)


def dims_of(value: Any) -> Dims:
    """The dims of a tensor, an array or a scalar."""
    dims: Dims = value.shape if hasattr(value, "shape") else np.shape(value)
    return dims


def _category(dtype: DType) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_float else 1 if dtype.is_int else 0


def _is_weak(value: Any) -> bool:
    return is_python_scalar(value) or getattr(value, "weak", False)


def common_dtype(*operands: Any) -> DType:
    """The dtype in which `operands` meet."""
    strong = [dtype_of(x) for x in operands if not _is_weak(x)]
    weak_category = max((_category(dtype_of(x)) for x in operands if _is_weak(x)), default=0)
    if not strong:
        # Integers that need 64 bits keep them; i32 would wrap in silence.
        wide = any(dtype_of(x) is DType.I64 for x in operands)
        return DType.I64 if wide and weak_category == 1 else DType.of(_PYTHON_TYPES[weak_category])
    result = strong[0]
    for d in strong[1:]:
        result = promote(result, d)
    if weak_category > _category(result):
        # A Python float turns an integer tensor into the default float, a complex one any real tensor into complex.
        return result.complex if weak_category == 3 else DType.of(_PYTHON_TYPES[weak_category])
    return result


def convert(value: Any, dtype: DType) -> Any:
    """`value` with the given dtype; scalars and arrays are converted at once, tensors by a cast."""
    from rlx.ops.pointwise.conversion import Cast

    if isinstance(value, Tensor):
        return value if value.dtype is dtype else Cast(dtype)(value)
    if is_python_scalar(value):
        graph = target_graph(())
        return graph.constant(value, dtype) if graph is not None else constant_data(value, dtype).array
    # An array of a device stays there.
    array = value if hasattr(value, "dtype") else np.asarray(value)
    if array.dtype != dtype.numpy:
        return emit(Cast(dtype), (array,))
    return array


def promote_operands(*operands: Any) -> tuple[Any, ...]:
    """The operands converted to their common dtype, as weak as they are if all of them are."""
    dtype = common_dtype(*operands)
    graph = target_graph(operands)
    if graph is None:
        return tuple(keep_weak(convert(x, dtype), *operands) for x in operands)
    return tuple(
        keep_weak(
            Tensor(graph, graph.constant(x, dtype).id) if is_python_scalar(x) else convert(lift(x, graph), dtype),
            *operands,
        )
        for x in operands
    )


def keep_weak(result: Any, *operands: Any) -> Any:
    """`result` of an elementwise op, weak when all operands are: `2 * s` takes the dtype of what it meets, as `s`."""
    if all(_is_weak(x) for x in operands) and hasattr(type(result), "weak"):
        result.weak = True
    return result


def inexact_dtype(dtype: DType) -> DType:
    """The dtype itself; for integers and bools the float that stands for them: f64 for 64 bits, else the default."""
    if dtype.is_inexact:
        return dtype
    return DType.F64 if dtype in (DType.I64, DType.U64) else DType.of(float)


def _are_alike(operands: tuple[Any, ...]) -> bool:
    """Whether these are arrays of one float or complex dtype, as in most calls: then there is nothing to convert."""
    kinds = {x.dtype if isinstance(x, np.ndarray) else None for x in operands}
    return len(kinds) == 1 and all(kind is not None and kind.char in "efdFD" and kind.isnative for kind in kinds)


def promote_inexact(*operands: Any) -> tuple[Any, ...]:
    """Like `promote_operands`, with integers and bools becoming floats (for functions such as exp or mean)."""
    if _are_alike(operands):
        return operands
    dtype = inexact_dtype(common_dtype(*operands))
    return tuple(convert(x, dtype) for x in operands)


@contextmanager
def same_graph(*operands: Any) -> Iterator[None]:
    """Inside, ops without operands (iota, constants) join the program that `operands` belong to."""
    graph = target_graph(operands)
    if graph is None or current_scope() is not None:
        yield
        return
    with building(graph):
        yield


def recording(*operands: Any) -> AbstractContextManager[None]:
    """Inside, sizes that only a binding can compare become constraints of the program that `operands` belong to."""
    graph = target_graph(operands)
    return collect_constraints([] if graph is None else graph.constraints)


def require_dtype(op: Op, ok: bool, wanted: str, *shapes: Shape) -> None:
    if not ok:
        raise op.fail(f"needs {wanted} operands, got {', '.join(str(s) for s in shapes)}")


def require_float(op: Op, *shapes: Shape) -> None:
    require_dtype(op, all(s.dtype.is_float and not s.dtype.is_storage for s in shapes), "float", *shapes)


def require_inexact(op: Op, *shapes: Shape) -> None:
    require_dtype(op, all(s.dtype.is_inexact and not s.dtype.is_storage for s in shapes), "float or complex", *shapes)


def require_numeric(op: Op, *shapes: Shape) -> None:
    ok = all(s.dtype is not DType.BOOL and not s.dtype.is_storage for s in shapes)
    require_dtype(op, ok, "numeric", *shapes)


def require_same_dtype(op: Op, *shapes: Shape) -> DType:
    first = shapes[0].dtype
    ok = all(s.dtype is first for s in shapes)
    require_dtype(op, ok, "one dtype for all (cast them, or use the function of the same name) but different", *shapes)
    return first


def require_rank(op: Op, shape: Shape, *ranks: int) -> None:
    if shape.rank not in ranks:
        wanted = " or ".join(str(r) for r in ranks)
        raise op.fail(f"needs an operand of rank {wanted}, got {shape}")
