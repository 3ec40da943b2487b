"""`TensorData`: an immutable array with a content hash, the value of a `Constant`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]


class TensorData:
    """Read-only, C-contiguous values. Equal when type and bytes are: NaN equals NaN, 0.0 differs from -0.0."""

    __slots__ = ("_digest", "array", "shape")

    array: Array
    shape: Shape

    def __init__(self, value: Any, shape: Shape | None = None) -> None:
        array = np.asarray(value) if shape is None else np.asarray(value, shape.dtype.numpy).reshape(shape.static_dims)
        if array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array, order="C", copy=True)
            array.flags.writeable = False
        self.array = array
        self.shape = shape or Shape(array.shape, DType.of(array.dtype))
        self._digest: str | None = None

    @staticmethod
    def from_bytes(data: bytes, shape: Shape) -> TensorData:
        """The array whose little-endian bytes are `data`."""
        array = np.frombuffer(data, dtype=shape.dtype.numpy).reshape(shape.static_dims)
        return TensorData(array, shape)

    @property
    def digest(self) -> str:
        """128 bits of blake2b over type and bytes, in hex."""
        if self._digest is None:
            state = hashlib.blake2b(str(self.shape).encode(), digest_size=16)
            state.update(self.array.tobytes())
            self._digest = state.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, TensorData) and self.shape == other.shape and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"TensorData({self.shape}, {self.digest[:8]})"
