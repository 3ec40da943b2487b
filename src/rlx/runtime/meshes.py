"""`rlx.devices` and `rlx.make_mesh`: the devices that arrays can be divided over, and a mesh of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.compile.target import Absent, require, select
from rlx.errors import ShardingError
from rlx.runtime.device_arrays import space_of
from rlx.sharding import Mesh, MeshDevice


def devices(target: str = "xla") -> list[MeshDevice]:
    """The devices of a target, by their numbers; those of XLA are the devices of all processes."""
    chosen = select(target)
    require(chosen)
    space = space_of(target)
    found = getattr(space, "mesh_devices", None)
    if found is not None:
        return list(found)
    here = chosen.target.probe()
    return [] if isinstance(here, Absent) else [MeshDevice(d.index, 0, chosen.target.name) for d in here.devices]


def _xla_devices() -> list[MeshDevice]:
    return devices("xla")


def make_mesh(
    axis_shapes: Sequence[int], axis_names: Sequence[str], *, devices: Sequence[MeshDevice] | None = None
) -> Mesh:
    """A mesh of the first devices that there are, or of those given; an error if they are too few."""
    found = _xla_devices() if devices is None else list(devices)
    wanted = math.prod(axis_shapes)
    if wanted > len(found):
        raise ShardingError(
            f"make_mesh: the shape {tuple(axis_shapes)} needs {wanted} devices, and there are {len(found)}; set "
            f"RLX_XLA_DEVICES={wanted} before the process starts, start more processes, or make the mesh smaller"
        )
    ids = np.array([device.id for device in found[:wanted]], np.int64)
    return Mesh(ids.reshape(tuple(axis_shapes)), axis_names)
