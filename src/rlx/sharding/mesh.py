"""`Mesh`: devices in a grid whose axes have names.

>>> Mesh((4, 2), ("x", "y")).shape
{'x': 4, 'y': 2}
>>> str(Mesh((4, 2), ("x", "y")))
'x=4,y=2'

A mesh only numbers its devices: it can be made, printed and planned with where there are none. Whether they exist is
found out when an array is put on them or a program is compiled for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import ShardingError
from rlx.ir.words import nearest

_NAME = re.compile(r"[A-Za-z_]\w*")
_TEXT = re.compile(r"\s*([^|]*?)\s*(?:\|\s*(.*))?")

# A program for more has no place in any machine that there is; it would only take time to find that out.
MOST_DEVICES = 1 << 20


class MeshDevice(NamedTuple):
    """One device that a mesh may have: its number among all devices of all processes, and the process it belongs to."""

    id: int
    process_index: int = 0
    kind: str = "cpu"


class Mesh:
    """Devices in a grid: by its shape, which takes devices from number 0 on, or as an array of devices."""

    def __init__(self, devices: Sequence[int] | Any, axis_names: str | Sequence[str]) -> None:
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        ids = _numbers(devices)
        if ids.ndim != len(names):
            raise ShardingError(f"Mesh: {ids.ndim} axes of devices have the sizes {ids.shape}, but {len(names)} names")
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "None":
                raise ShardingError(f"Mesh: {name!r} is no name of an axis; use letters, digits and _")
        if len(set(names)) != len(names):
            raise ShardingError(f"Mesh: two axes have one name: {names}")
        if len(set(ids.reshape(-1).tolist())) != ids.size:
            raise ShardingError(f"Mesh: a device is in the mesh twice: {ids.tolist()}")
        ids.flags.writeable = False
        self.axis_names: tuple[str, ...] = names
        self.device_ids = ids

    @property
    def shape(self) -> dict[str, int]:
        """The sizes by name."""
        return dict(zip(self.axis_names, self.axis_sizes))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.device_ids.shape)

    @property
    def size(self) -> int:
        """How many devices there are."""
        return int(self.device_ids.size)

    @cached_property
    def flat_ids(self) -> tuple[int, ...]:
        """The numbers of the devices, the last axis fastest: the order of the participants of a program."""
        return tuple(int(i) for i in self.device_ids.reshape(-1))

    def axis_size(self, axes: str | Sequence[str], what: str = "Mesh") -> int:
        """How many parts an array axis has that is divided over mesh axes; an error if there is no such axis."""
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        for name in names:
            if name not in self.axis_names:
                known = ", ".join(map(repr, self.axis_names))
                raise ShardingError(
                    f"{what}: the mesh {self} has no axis {name!r}{nearest(name, self.axis_names)}; it has {known}"
                )
        return math.prod(self.shape[name] for name in names)

    def coordinates(self, position: int) -> dict[str, int]:
        """Where the device at a position of `flat_ids` stands along each axis."""
        found = np.unravel_index(position, self.axis_sizes) if self.axis_names else ()
        return {name: int(i) for name, i in zip(self.axis_names, found)}

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Positions of `flat_ids` that differ along the given axes only, in the order of these axes."""
        kept = [i for i, name in enumerate(self.axis_names) if name not in axes]
        moved = [self.axis_names.index(name) for name in axes]
        positions = np.arange(self.size).reshape(self.axis_sizes).transpose((*kept, *moved))
        count = self.axis_size(axes)
        return [[int(i) for i in row] for row in positions.reshape(-1, count)]

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={size}" for name, size in self.shape.items())
        in_order = self.flat_ids == tuple(range(self.size))
        return sizes if in_order else f"{sizes}|{','.join(map(str, self.flat_ids))}"

    @staticmethod
    def of(text: str | Mesh) -> Mesh:
        """A mesh from its text: `x=4,y=2`, and `x=2|1,0` where the devices are not those from 0 on."""
        if isinstance(text, Mesh):
            return text
        match = _TEXT.fullmatch(text)
        sizes, devices = match.groups() if match else ("", None)
        pairs = [part.split("=") for part in sizes.split(",")] if sizes else []
        try:
            dims = tuple(int(size) for _, size in pairs)
            ids = None if devices is None else [int(i) for i in devices.split(",")]
        except ValueError:
            raise ShardingError(f"{text!r} is no mesh; write x=4,y=2") from None
        if ids is not None and len(ids) != math.prod(dims):
            raise ShardingError(f"the mesh {text!r} has {math.prod(dims)} places and {len(ids)} devices")
        grid = dims if ids is None else np.array(ids, np.int64).reshape(dims)
        return Mesh(grid, tuple(name.strip() for name, _ in pairs))

    def __repr__(self) -> str:
        return f"Mesh({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.axis_names, self.axis_sizes, self.flat_ids


def _numbers(devices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The grid of device numbers that a shape or an array of devices stands for."""
    if isinstance(devices, int):
        devices = (devices,)
    items = list(devices) if not isinstance(devices, np.ndarray) else None
    if items is not None and all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in items):
        sizes = tuple(int(n) for n in items)
        if any(n < 1 for n in sizes):
            raise ShardingError(f"Mesh: every axis needs at least one device, got the shape {sizes}")
        if math.prod(sizes) > MOST_DEVICES:
            raise ShardingError(
                f"Mesh: {math.prod(sizes)} devices in the shape {sizes}; there are at most {MOST_DEVICES}"
            )
        return np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    return _ids_of(devices)


def _ids_of(devices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    if isinstance(devices, MeshDevice):
        return np.array(devices.id, np.int64)
    if isinstance(devices, np.ndarray) and devices.dtype != object:
        if devices.dtype.kind not in "iu" or not devices.size or (devices < 0).any():
            raise ShardingError(f"Mesh: devices or their numbers are needed, got {devices.dtype}{list(devices.shape)}")
        return devices.astype(np.int64)
    if isinstance(devices, list | tuple | np.ndarray) and len(devices):
        parts = [_ids_of(np.array(d, np.int64) if isinstance(d, int) else d) for d in devices]
        if len({p.shape for p in parts}) == 1:
            return np.stack(parts)
    raise ShardingError(f"Mesh: a shape or a full grid of devices is needed, got {devices!r}")
