"""Arrays of a GPU given to other libraries and taken from them, without a copy."""

import ctypes
import gc

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.cuda import dlpack
from rlx.backends.cuda.arrays import DeviceArray
from rlx.errors import BindingError


class Other:
    """An array of another library: what it is given as, and the stream that it was asked to be ready on."""

    def __init__(self, array, strides=None, device=(2, 0)):
        self.array, self.strides, self.device, self.streams = array, strides, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **options):
        self.streams.append(stream)
        capsule = dlpack.to_capsule(self.array, dlpack.NO_STREAM)
        if self.strides is not None:
            at = dlpack._python.PyCapsule_GetPointer(capsule, b"dltensor")
            self.kept = (ctypes.c_int64 * len(self.strides))(*self.strides)
            pointer = ctypes.cast(self.kept, ctypes.POINTER(ctypes.c_int64))
            dlpack._Managed.from_address(at).tensor.strides = pointer
        return capsule


def on_gpu(gpu, values):
    return DeviceArray.of(np.asarray(values), gpu.stream)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u1", "?", "c8", rlx.DType.BF16.numpy])
def test_an_array_is_taken_without_a_copy(fake, gpu, dtype):
    given = on_gpu(gpu, np.arange(6).reshape(2, 3).astype(dtype))
    other = Other(given)
    fake.log.clear()
    taken = rnp.from_dlpack(other)
    assert isinstance(taken, rlx.DeviceArray) and taken.device == "cuda"
    assert taken.value.address == given.address and taken.shape == (2, 3) and taken.dtype == given.dtype
    # The other library makes our stream wait.
    assert other.streams == [gpu.stream.handle.value] and "cuMemcpyDtoDAsync_v2" not in fake.log
    np.testing.assert_array_equal(np.asarray(taken), np.asarray(given))
    assert len(dlpack._given) == 1
    fake.log.clear()
    del taken
    gc.collect()
    # It gets its memory back when our stream is done.
    assert not dlpack._given and "cuStreamSynchronize" in fake.log
    assert rlx.device_put(other, "cuda").value.address == given.address


def test_programs_run_on_what_was_taken(fake, gpu):
    taken = rnp.from_dlpack(Other(on_gpu(gpu, np.float32([1, 2, 3]))))
    np.testing.assert_array_equal(np.asarray(rlx.jit(lambda x: x * 2 + 1)(taken)), [3, 5, 7])
    copied = rnp.from_dlpack(Other(on_gpu(gpu, np.float32([1, 2, 3]))), copy=True)
    assert copied.value.address != taken.value.address


def test_an_array_is_given_and_the_stream_of_the_other_waits(fake, gpu):
    x = rlx.device_put(np.float32([1, 2]), "cuda")
    assert x.__dlpack_device__() == (2, 0)
    fake.log.clear()
    capsule = x.__dlpack__(stream=7)
    assert [n for n in fake.log if n.startswith(("cuEventR", "cuEventD", "cuStreamW"))] == [
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventDestroy_v2",
    ]
    at = dlpack._python.PyCapsule_GetPointer(capsule, b"dltensor")
    tensor = dlpack._Managed.from_address(at).tensor
    assert (tensor.data, tensor.ndim, tensor.shape[0], tensor.code, tensor.bits) == (x.value.address, 1, 2, 2, 32)
    fake.log.clear()
    # A capsule that nobody took comes back, behind what the other stream has to do.
    del capsule
    gc.collect()
    assert not dlpack._given and fake.log.index("cuEventRecord") < fake.log.index("cuStreamWaitEvent")
    assert x.__cuda_array_interface__["data"] == (x.value.address, False)
    assert x.__cuda_array_interface__["typestr"] == "<f4"


def test_what_cannot_be_given_or_taken_is_refused(fake, gpu):
    array = on_gpu(gpu, np.zeros((2, 3), "f4"))
    with pytest.raises(BindingError, match=r"the elements of \[2, 3\] do not lie side by side"):
        rnp.from_dlpack(Other(array, strides=(1, 2)))
    gc.collect()
    assert not dlpack._given
    assert rnp.from_dlpack(Other(array, strides=(3, 1))).shape == (2, 3)
    with pytest.raises(BindingError, match=r"lives on device \(2, 1\), not on cuda:0"):
        dlpack.from_array(Other(array, device=(2, 1)), gpu.stream)
    half = rlx.device_put(np.zeros(2, rlx.DType.BF16.numpy), "cuda")
    assert not hasattr(half, "__cuda_array_interface__")
    with pytest.raises(BufferError, match=r"not given to device \(1, 0\)"):
        half.__dlpack__(dl_device=(1, 0))
