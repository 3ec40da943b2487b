"""Checkpoints of divided arrays: a folder with one safetensors file per process, each with the parts it holds.

    step-00000100.sharded/
        part-00000.safetensors      # the parts of process 0, each once however many devices have a copy
        part-00001.safetensors
        index.json                  # step, extra, and the whole type of each array

The folder gets its name when all files are in it, so it is there as a whole or not at all. Parts say where they belong,
so that the arrays can be read back onto any mesh, or into the memory of one process, bit by bit the same. All processes
must see the same folder. `rlx.train.save_checkpoint` and `load_checkpoint` come here when arrays are divided.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.distributed.processes import process_index, wait_for_all
from rlx.errors import FormatError
from rlx.formats.mapped_file import replace_file
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.runtime.device_arrays import make_array_from_callback
from rlx.sharding import NamedSharding
from rlx.sharding.named_sharding import Index

__all__ = ["Index", "is_divided", "read_sharded", "sharded_info", "write_sharded"]

Array = np.ndarray[Any, np.dtype[Any]]

_VERSION = "1"
_INDEX = "index.json"


class ShardedInfo(NamedTuple):
    """What is said beside the arrays: after which step they were saved, and what else was."""

    step: int
    extra: dict[str, Any]
    leaves: dict[str, tuple[tuple[int, ...], str]]


def is_divided(leaf: Any) -> bool:
    """Whether an array lies on the devices of a mesh."""
    return getattr(leaf, "sharding", None) is not None


def write_sharded(folder: Path, leaves: Mapping[str, Any], step: int, extra: dict[str, Any]) -> None:
    """Write arrays by name; all processes call it with the same names."""
    unfinished = folder.with_name(f".{folder.name}.part")
    if process_index() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    wait_for_all(f"checkpoint {step}")
    pieces, places = _own_pieces(leaves)
    metadata = {"rlx.checkpoint.part": _VERSION, "pieces": json.dumps(places)}
    write_safetensors(unfinished / f"part-{process_index():05}.safetensors", pieces, metadata)
    wait_for_all(f"checkpoint {step}")
    if process_index() == 0:
        types = {name: [list(np.shape(x)), str(np.dtype(x.dtype))] for name, x in leaves.items()}
        told = {"rlx.checkpoint": _VERSION, "step": step, "extra": extra, "leaves": types}
        with replace_file(unfinished / _INDEX) as file:
            file.write(json.dumps(told).encode())
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(unfinished, folder)
    wait_for_all(f"checkpoint {step}")


def _own_pieces(leaves: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, list[Any]]]:
    """What this process writes: parts of which it has the first copy; process 0 also what is not divided."""
    pieces: dict[str, Array] = {}
    places: dict[str, list[Any]] = {}
    for name, leaf in leaves.items():
        if is_divided(leaf):
            for shard in leaf.addressable_shards:
                if shard.replica_id == 0:
                    start = [s.start for s in shard.index]
                    key = f"{name}@{','.join(map(str, start))}"
                    pieces[key], places[key] = np.asarray(shard.data), [name, start]
        elif process_index() == 0:
            pieces[f"{name}@"], places[f"{name}@"] = np.asarray(leaf), [name, [0] * np.ndim(leaf)]
    return pieces, places


def sharded_info(folder: Path) -> ShardedInfo:
    """What the index of a checkpoint says."""
    try:
        told = json.loads((folder / _INDEX).read_bytes())
        if told["rlx.checkpoint"] != _VERSION:
            raise FormatError(f"{folder}: not a sharded checkpoint of version {_VERSION}")
        leaves = {str(n): (tuple(map(int, dims)), str(dtype)) for n, (dims, dtype) in told["leaves"].items()}
        return ShardedInfo(int(told["step"]), dict(told["extra"]), leaves)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{folder}: not a sharded checkpoint: its {_INDEX} cannot be read: {error}") from None


def read_sharded(folder: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name: divided as those of `like` are, and only the parts of this process are read; else NumPy's."""
    types = sharded_info(folder).leaves
    with ExitStack() as opened:
        stored = _stored_pieces(folder, opened)
        return {name: _read(folder, name, leaf, types, stored.get(name, [])) for name, leaf in like.items()}


_Piece = tuple[tuple[int, ...], Callable[[], Array], tuple[int, ...]]


def _stored_pieces(folder: Path, opened: ExitStack) -> dict[str, list[_Piece]]:
    """All parts of each array: where they begin, how to get at them, and their sizes."""
    found: dict[str, list[_Piece]] = {}
    for path in sorted(folder.glob("part-*.safetensors")):
        file = opened.enter_context(open_safetensors(path))
        try:
            places = json.loads(file.metadata["pieces"])
            for key, (name, start) in places.items():
                tensor = file.tensors[key]
                found.setdefault(name, []).append((tuple(map(int, start)), tensor.array, tuple(tensor.shape)))
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: the part of a checkpoint is damaged: {error}") from None
    return found


def _read(folder: Path, name: str, like: Any, types: Mapping[str, Any], pieces: list[_Piece]) -> Any:
    dims, dtype = types.get(name, ((), ""))
    if dims != tuple(np.shape(like)) or dtype != str(np.dtype(like.dtype)):
        raise FormatError(
            f"{folder}: the checkpoint is of another model: {name!r} is {dtype}{list(dims)}, "
            f"{np.dtype(like.dtype)}{list(np.shape(like))} is wanted"
        )

    def part(index: Index) -> Array:
        return _part(folder, name, index, np.dtype(like.dtype), pieces)

    sharding: NamedSharding | None = getattr(like, "sharding", None)
    if sharding is None:
        return part(tuple(slice(0, n) for n in dims))
    return make_array_from_callback(dims, sharding, part)


def _part(folder: Path, name: str, index: Index, dtype: np.dtype[Any], pieces: list[_Piece]) -> Array:
    """One part of an array, put together from the stored parts that it meets."""
    result = np.empty([s.stop - s.start for s in index], dtype)
    filled = 0
    for start, read, dims in pieces:
        low = [max(s.start, a) for s, a in zip(index, start, strict=True)]
        high = [min(s.stop, a + n) for s, a, n in zip(index, start, dims)]
        size = math.prod(max(h - lo, 0) for lo, h in zip(low, high))
        if size:
            into = tuple(slice(lo - s.start, h - s.start) for lo, h, s in zip(low, high, index))
            source = tuple(slice(lo - a, h - a) for lo, h, a in zip(low, high, start))
            result[into] = read()[source]
            filled += size
    if filled != result.size:
        raise FormatError(f"{folder}: parts of {name!r} are missing; is a file of another process not there?")
    return result
