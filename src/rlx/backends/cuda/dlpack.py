"""Arrays of other libraries on the same GPU, and ours for them, without a copy: DLPack both ways.

    y = torch.from_dlpack(x)              # `to_capsule`: their stream waits for ours
    x = rlx.numpy.from_dlpack(y)          # `from_array`: ours waits for theirs

Memory is handed over in the order of streams. What we gave is used again when the stream that it was given to is done
with it; what we were given is returned when our stream is.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.streams import Event
from rlx.errors import BindingError
from rlx.ir.dtype import DType

if TYPE_CHECKING:
    from rlx.backends.cuda.streams import Stream

# The stream 0 of a process by its handle, which is also what a consumer that names no stream means.
LEGACY_STREAM = 1
# A consumer that will not have its stream wait.
NO_STREAM = -1

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, c_void_p)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (c_void_p, ctypes.c_char_p, _Destructor)
_python.PyCapsule_GetPointer.restype = c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
# For destructors, which have the address of a capsule that nobody holds any more.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))

# What has been given away and not come back, by the address of its description.
_given: dict[int, tuple[object, ...]] = {}


def _take_back(managed: Any) -> None:
    """The consumer is done on the host; its stream may not be."""
    _, _, _, array, stream = _given.pop(ctypes.addressof(managed.contents))
    assert isinstance(array, DeviceArray) and isinstance(stream, int)
    own, driver = array.stream, array.stream.gpu.driver
    if not driver.is_usable:
        return
    own.gpu.use()
    if stream == NO_STREAM:
        driver.raw("cuCtxSynchronize")()
        return
    event = Event(own.gpu)
    if driver.raw("cuEventRecord")(event.handle, c_void_p(stream)) == 0:
        own.wait(event)
    else:
        # Their stream is gone: all there is to wait for is everything.
        driver.raw("cuCtxSynchronize")()


def _drop_capsule(capsule: int) -> None:
    """A capsule that nobody has taken."""
    if _is_valid(capsule, _NAME):
        managed = _Managed.from_address(_pointer_of(capsule, _NAME))
        managed.deleter(ctypes.pointer(managed))


# Python must not forget them while a capsule may call them.
_deleter, _destructor = _Deleter(_take_back), _Destructor(_drop_capsule)


def to_capsule(array: DeviceArray, stream: int | None = None) -> Any:
    """A capsule of an array; work that is put on the consumer's stream from now on waits for what computes it."""
    own, consumer = array.stream, LEGACY_STREAM if stream is None else int(stream)
    own.gpu.use()
    if consumer != NO_STREAM:
        ready = own.record()
        own.gpu.driver.cuStreamWaitEvent(c_void_p(consumer), ready.handle, 0)
    code, bits = _code_of(array.dtype)
    shape = (c_int64 * max(1, len(array.shape)))(*array.shape)
    tensor = _Tensor(array.address, own.gpu.driver.dlpack_kinds[0], own.gpu.info.index, len(array.shape), code, bits, 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(c_int64))
    managed = _Managed(tensor, None, _deleter)
    _given[ctypes.addressof(managed)] = (managed, shape, tensor, array, consumer)
    return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, _destructor)


def _code_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    if DType.of(dtype) is DType.BF16:
        return _BFLOAT, 16
    if dtype.kind not in _KINDS:
        raise BindingError(f"dlpack: arrays of {dtype} cannot be given to other libraries; convert them to f32 or bf16")
    return _KINDS[dtype.kind], 8 * dtype.itemsize


class _External:
    """Memory of another library, which gets it back when our stream is done with it."""

    def __init__(self, managed: Any, stream: Stream) -> None:
        self._managed, self._stream = managed, stream
        tensor = managed.tensor
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.size = 0

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)
        if managed is None or not managed.deleter:
            return
        if self._stream.gpu.driver.is_usable:
            self._stream.gpu.driver.raw("cuStreamSynchronize")(self._stream.handle)
        managed.deleter(ctypes.pointer(managed))


def from_array(x: Any, stream: Stream) -> DeviceArray:
    """An array of another library on this GPU, as ours."""
    kind, index = x.__dlpack_device__()
    driver = stream.gpu.driver
    if kind not in driver.dlpack_kinds or index != stream.gpu.info.index:
        here = f"{driver.device}:{stream.gpu.info.index}"
        raise BindingError(f"dlpack: the array lives on device ({kind}, {index}), not on {here}")
    stream.gpu.use()
    capsule = x.__dlpack__(stream=stream.handle.value or LEGACY_STREAM)
    if not _python.PyCapsule_IsValid(capsule, _NAME):
        raise BindingError(f"dlpack: {type(x).__name__}.__dlpack__ gave no capsule that has not been used")
    managed = _Managed.from_address(_python.PyCapsule_GetPointer(capsule, _NAME))
    _python.PyCapsule_SetName(capsule, _USED_NAME)
    external: Any = _External(managed, stream)
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = _dtype_of(tensor)
    if tensor.strides and not _is_dense(shape, tuple(tensor.strides[i] for i in range(tensor.ndim))):
        raise BindingError(f"dlpack: the elements of {list(shape)} do not lie side by side; make it contiguous first")
    external.size = math.prod(shape) * dtype.itemsize
    return DeviceArray(external, shape, dtype, stream)


def _dtype_of(tensor: Any) -> np.dtype[Any]:
    if (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1):
        return DType.BF16.numpy
    kinds = {code: kind for kind, code in _KINDS.items()}
    if tensor.lanes == 1 and tensor.bits % 8 == 0 and tensor.code in kinds:
        try:
            dtype = np.dtype(f"{kinds[tensor.code]}{tensor.bits // 8}")
            DType.of(dtype)
            return dtype
        except (TypeError, ValueError):
            pass
    raise BindingError(f"dlpack: elements of kind {tensor.code} with {tensor.bits} bits have no type here")


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
