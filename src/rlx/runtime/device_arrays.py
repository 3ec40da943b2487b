"""Arrays that live on a device: `rlx.device_put`, and what `rlx.Array` is there.

    x = rlx.device_put(np.ones(3, "f4"), "cuda")
    y = rlx.jit(lambda x: x * 2)(x)       # runs where its arguments live; arrays of the host follow
    y + 1                                 # so do operators
    np.asarray(y)                         # waits, and copies to the host

Nothing is copied to the host unless somebody asks for values there. Arrays of two devices in one call are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from rlx.backends.api import Executable
from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace, Shard
from rlx.compile.target import require, select
from rlx.errors import BindingError, ShardingError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ir.tensor import constant_data, emit_into
from rlx.ops.tensor_methods import TensorMethods
from rlx.runtime.arrays import as_array, as_borrowed_array
from rlx.sharding import NamedSharding
from rlx.trace.jit import jit
from rlx.trace.shardings import shardings_of


class DeviceArray(TensorMethods):
    """An immutable array in the memory of a device, with the operators and methods of `rlx.Array`."""

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # equality is elementwise, as in NumPy
    # NumPy's functions and operators must not copy it to the host behind its owner's back.
    __array_ufunc__ = None

    def __init__(self, value: DeviceValue) -> None:
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    @property
    def ndim(self) -> int:
        return len(self._value.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self._value.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        return self._value.space.device

    @property
    def value(self) -> DeviceValue:
        """What the device has of it."""
        return self._value

    @property
    def sharding(self) -> NamedSharding | None:
        """How it is divided over devices; None for an array on one device."""
        return getattr(self._value, "sharding", None)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all parts lie on devices of this process."""
        return bool(getattr(self._value, "is_fully_addressable", True))

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has all of it."""
        return self.sharding is None or self.sharding.is_fully_replicated

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on devices of this process; the content of each is an array on one device."""
        found: list[Shard] | None = getattr(self._value, "addressable_shards", None)
        if found is None:
            raise ShardingError(f"this array lies on {self.device} alone; rlx.device_put(x, sharding) divides it")
        return [replace(shard, data=DeviceArray(shard.data)) for shard in found]

    def given_away(self) -> None:
        """The memory belongs to a program now, which stores over it."""
        self._value = _Donated(self._value)

    def block_until_ready(self) -> DeviceArray:
        """The array itself, once its content is there."""
        self._value.wait()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        """A copy on the host; with `copy=False` the memory itself where the host shares it, not to be written."""
        array = self._value.view() if copy is False else self._value.numpy()
        if array is None:
            raise ValueError(f"an array on {self.device} cannot be read without a copy")
        return array if dtype is None else array.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How other libraries read it without a copy, if it lives on a GPU of NVIDIA."""
        found: dict[str, Any] = self._value.__cuda_array_interface__  # type: ignore[attr-defined]
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self._dlpack("__dlpack_device__")()
        return found

    def __dlpack__(self, **options: Any) -> Any:
        """The array for `from_dlpack` of another library, without a copy. It must not be written there."""
        return self._dlpack("__dlpack__")(**options)

    def _dlpack(self, name: str) -> Any:
        if isinstance(self._value, _Donated):
            self._value.wait()
        method = getattr(self._value, name, None)
        if method is None:
            raise BufferError(f"arrays on {self.device} are not given to other libraries; copy them with np.asarray")
        return method

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self._value.numpy().item()

    def tolist(self) -> Any:
        return self._value.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return np.asarray(self).__index__()

    def __bool__(self) -> bool:
        return bool(self._value.numpy())

    def __repr__(self) -> str:
        if not self.is_fully_addressable and not self.is_fully_replicated:
            # Other processes have parts of it, and printing must not wait for them.
            return f"Array({self.dtype.name}{list(self.shape)}, sharding={self.sharding}, device={self.device})"
        values = np.array2string(np.asarray(self), separator=", ", prefix="Array(")
        return f"Array({values}, dtype={self.dtype.name}, device={self.device})"


class _Donated(DeviceValue):
    """What is left of a value whose memory was given to a program."""

    def __init__(self, value: DeviceValue) -> None:
        self.shape, self.dtype, self._space = value.shape, value.dtype, value.space

    @property
    def space(self) -> MemorySpace:
        return self._space

    def wait(self) -> NoReturn:
        raise BindingError("this array was donated to a program, which has stored its result over it; use the result")

    def numpy(self) -> NoReturn:
        self.wait()


def common_device(values: Sequence[Any], what: str) -> str | None:
    """The device of all arrays that live on one; arrays of the host follow them."""
    found = {value.device for value in values if isinstance(value, DeviceArray)}
    if len(found) > 1:
        raise BindingError(
            f"{what}: its arguments live on {' and '.join(sorted(found))}; bring them to one device with rlx.device_put"
        )
    return next(iter(found), None)


def device_put(value: Any, device: Any = None) -> Any:
    """A tree of arrays and numbers as arrays on a device; None is the host.

    What lives there already is returned as it is. An array of another device goes by way of the host. In the place of
    a device may stand a sharding, or a tree of shardings above the values; see `rlx.NamedSharding`.
    """
    from rlx.trace.pytree import tree_flatten, tree_map

    if device is not None and not isinstance(device, str):
        leaves, structure = tree_flatten(value)
        chosen = shardings_of(device, value, "device_put")
        return structure.unflatten([_divided(x, s) for x, s in zip(leaves, chosen)])
    space = None if device is None else space_of(device)
    return tree_map(lambda x: _put(x, space), value)


def _put(value: Any, space: MemorySpace | None) -> Any:
    if space is None:
        if isinstance(value, DeviceArray):
            return as_array(np.asarray(value))
        array = constant_data(value).array
        return as_borrowed_array(array) if array is value else as_array(array)
    if isinstance(value, DeviceArray):
        if value.device == space.device:
            return value
        value = np.asarray(value)
    adopted = space.adopt(value)
    if adopted is not None:
        return DeviceArray(adopted)
    # Not `ascontiguousarray`, which gives numbers an axis.
    return DeviceArray(space.put(np.asarray(constant_data(value).array, order="C")))


def _divided(value: Any, sharding: NamedSharding | None) -> Any:
    if sharding is None:
        return _put(value, space_of("xla"))
    if isinstance(value, DeviceArray):
        if value.sharding == sharding:
            return value
        if value.sharding is not None and value.sharding.mesh == sharding.mesh:
            # Only what has to move moves, and not by way of the host.
            return jit(_same, out_shardings=sharding)(value)
        value = np.asarray(value)
    array = np.asarray(constant_data(value).array)
    return make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _same(x: Any) -> Any:
    return x


def make_array_from_callback(shape: Sequence[int], sharding: NamedSharding, part: Callable[[Any], Any]) -> DeviceArray:
    """A divided array of what `part(index)` returns for the parts on devices of this process, an index being a tuple of
    slices: so a process reads only what it holds."""
    space = space_of("xla")
    assert space is not None
    return DeviceArray(space.put_parts(lambda index: np.asarray(part(index)), tuple(shape), sharding))


def space_of(device: str) -> MemorySpace | None:
    """The memory of a device; None where it is the host's."""
    chosen = select(device)
    require(chosen)
    if chosen.target.open is None:
        return None
    return chosen.target.open(chosen.index)


def values_for(executable: Executable, given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The arguments of a program in the memory that it reads: arrays of the host go to its device."""
    space = executable.space
    return {
        name: value_in(space, value, name, what) if isinstance(value, DeviceArray) else value
        for name, value in given.items()
    }


def value_in(space: MemorySpace | None, array: DeviceArray, name: str, what: str) -> DeviceValue:
    """The value of an argument that lies in some memory already; refused if it lies elsewhere."""
    value = array.value
    own = value.space
    if own is not space and (space is None or own.device != space.device):
        where = "the host" if space is None else space.device
        raise BindingError(
            f"{what}: {name!r} lives on {own.device}, the program runs on {where}; "
            f"use rlx.device_put(x{'' if space is None else f', {space.device!r}'})"
        )
    if isinstance(value, _Donated):
        value.wait()
    return value


def results_of(executable: Executable, results: Sequence[Any]) -> list[Any]:
    """What a run has given, as users hold it."""
    if executable.space is None:
        return [as_array(result) for result in results]
    return [DeviceArray(result) for result in results]


@lru_cache(64)
def has_memory(device: str) -> bool:
    """Whether arrays can live on a device that is named; where they cannot, single ops are evaluated on the host."""
    return select(device).target.open is not None


def run_on_device(op: Op, operands: Sequence[Any], device: str | None = None) -> Any:
    """One op where its operands live, or on the device that is named if they live on the host."""
    device = common_device(operands, op.mnemonic) if device is None else select(device).name
    assert device is not None
    arrays = [x if isinstance(x, DeviceArray) else constant_data(x).array for x in operands]
    shapes = tuple(Shape(a.shape, DType.of(a.dtype)) for a in arrays)
    executable, count = _one_op(op, shapes, device)
    given = {f"x{i}": array for i, array in enumerate(arrays)}
    outputs = results_of(executable, executable.run(values_for(executable, given, op.mnemonic), {}))
    return tuple(outputs) if count > 1 else outputs[0]


@lru_cache(4096)
def _one_op(op: Op, shapes: tuple[Shape, ...], device: str) -> tuple[Executable, int]:
    from rlx.backends.api import CompileOptions
    from rlx.runtime.compile_cache import compiled_program

    graph = Graph(op.mnemonic)
    inputs = [graph.input(f"x{i}", shape.dims, shape.dtype) for i, shape in enumerate(shapes)]
    result = emit_into(graph, op, inputs)
    results = result if isinstance(result, tuple) else (result,)
    graph.set_outputs(list(results))
    return compiled_program(graph, device, CompileOptions(verify=False)), len(results)
