"""`rlx.Array`: what running a program returns.

It is a NumPy array (so `__array__`, `__dlpack__`, the buffer protocol and every library that takes arrays work at no
cost) with two differences: it is immutable, and its operators and methods mean what they mean inside a traced program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.memory import ALIGNMENT
from rlx.errors import RlxError, TraceError
from rlx.ir.foreign_arrays import to_dlpack
from rlx.ir.op import Op
from rlx.ir.tensor import eager_eval, set_eager
from rlx.knobs import knobs
from rlx.ops.shape.subscript import index
from rlx.ops.tensor_methods import TensorMethods
from rlx.trace.nan_checks import looks_for_nans, refuse_new_nans


class Array(TensorMethods, np.ndarray[Any, np.dtype[Any]]):  # type: ignore[misc]
    """An immutable array. Operators promote as rlx does: `i32 + f32` is f32, Python scalars are weak."""

    # `_loan` and `_place` are only of arrays that lie where a program stores over its inputs (`rlx.runtime.donation`),
    # `weak` of what was computed from Python numbers alone, which is as weak as they are.
    __slots__ = ("_loan", "_place", "weak")
    _loan: Any
    _place: object
    weak: bool

    # Equality is elementwise, so arrays are not hashable, as in NumPy.
    __hash__ = None

    # Memory of its own, as in NumPy: who gives an array away may keep a copy.
    copy = np.ndarray.copy  # type: ignore[assignment]

    def block_until_ready(self) -> Array:
        """The array itself: values on the CPU are always ready."""
        return self

    @property
    def device(self) -> str:  # type: ignore[override]
        return "cpu"

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in Array.__slots__:
            raise RlxError(
                f"rlx arrays cannot be changed in place: .{name} is fixed; use x.reshape, x.astype or x.view"
            )
        super().__setattr__(name, value)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        """NumPy's, which takes classes of arrays too; a view of what cannot be changed cannot be changed."""
        if args and isinstance(args[0], int | tuple):
            shape = ", ".join(map(str, args))
            raise RlxError(
                f"x.view takes a dtype, as in NumPy, got {shape}; for another shape write x.reshape({shape})"
            )
        found = np.asarray(self).view(*args, **kwargs)
        is_class = any(isinstance(x, type) and issubclass(x, np.ndarray) for x in (*args, *kwargs.values()))
        return found if is_class else as_array(found)

    def __getitem__(self, key: Any) -> Any:
        try:
            return as_array(np.asarray(self)[key])
        except (IndexError, TraceError):
            # What NumPy refuses means what it means in a program, be it a computed id or one that is out of range.
            return index(self, key)

    def __dlpack__(self, **options: Any) -> Any:
        return to_dlpack(np.asarray(self), **options)

    def __repr__(self) -> str:
        values = np.array2string(np.asarray(self), separator=", ", prefix="Array(")
        return f"Array({values}, dtype={self.dtype.name})"

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __format__(self, spec: str) -> str:
        return format(np.asarray(self).item() if self.ndim == 0 else np.asarray(self), spec)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy functions see plain arrays and return what they always return."""
        return func(*_plain(args), **{k: _plain(v) for k, v in kwargs.items()})


# `x += y` binds x to a new array; ndarray would try to write into the old one.
_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
for _name in _IN_PLACE:
    setattr(Array, f"__i{_name}__", getattr(TensorMethods, f"__{_name}__"))


def as_array(value: Any) -> Array:
    """`value` as an `rlx.Array` without a copy; the original must not be written to afterwards."""
    array: Array = (value if type(value) is np.ndarray else np.asarray(value)).view(Array)
    # A quarter of the time that `array.flags.writeable = False` takes.
    array.setflags(False)  # type: ignore[call-arg]
    return array


def as_borrowed_array(value: Any) -> Array:
    """`value`, at which its maker may still look, as an `rlx.Array`: donated, it is copied before it is overwritten."""
    if isinstance(value, Array) or not isinstance(value, np.ndarray):
        return as_array(value)
    kept = value.view()
    kept.flags.writeable = False
    return as_array(kept)


def given_away(value: Any) -> np.ndarray[Any, Any]:
    """An argument whose memory its caller gives to the program: an `rlx.Array` may then be written into.

    Not so a part of one, because the whole is still somebody's. Other arrays stay as they are; a program copies what it
    must not write into.
    """
    array: np.ndarray[Any, Any] = np.asarray(value)
    if isinstance(value, Array) and _is_whole(value):
        array.flags.writeable = True
    return array


def _is_whole(array: Array) -> bool:
    """Whether an array is all that lies in its memory, which belongs to no one who forbids to write there."""
    owner = array.base
    if not isinstance(owner, np.ndarray) or not owner.flags.writeable:
        return False
    # Memory for results has room to begin on a multiple of `ALIGNMENT`.
    spare = ALIGNMENT if owner.dtype == np.uint8 != array.dtype else 0
    return owner.nbytes - array.nbytes in (0, spare)


def _plain(value: Any) -> Any:
    """`value` with every rlx.Array in it as a plain NumPy array."""
    if isinstance(value, Array):
        return np.asarray(value)
    if isinstance(value, tuple | list):
        return type(value)(_plain(v) for v in value)
    return value


def _run_eagerly(op: Op, operands: Sequence[Any]) -> Any:
    chosen = knobs.backend
    if chosen or not all(isinstance(x, np.ndarray) for x in operands):
        from rlx.runtime.device_arrays import DeviceArray, has_memory, run_on_device

        if any(isinstance(x, DeviceArray) for x in operands):
            return run_on_device(op, operands)
        if chosen and has_memory(chosen):
            return run_on_device(op, operands, chosen)
    result = eager_eval(op, operands)
    if looks_for_nans():
        refuse_new_nans(op.mnemonic, operands, result)
    # What a definition returns may be a view of an operand; the caller may still write into that.
    writable = [x for x in operands if isinstance(x, np.ndarray) and x.flags.writeable]
    owned = [
        np.array(r) if any(np.may_share_memory(r, x) for x in writable) else r
        for r in (result if isinstance(result, tuple) else (result,))
    ]
    return tuple(as_array(r) for r in owned) if isinstance(result, tuple) else as_array(owned[0])


set_eager(_run_eagerly)
