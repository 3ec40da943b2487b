"""Checkpoints: a tree of arrays as one safetensors file that appears whole or not at all; the last few are kept.

    rlx.train.save_checkpoint("run", state, step=100, keep=3)
    state, info = rlx.train.load_checkpoint("run", like=state)      # the newest one

Leaves are named by their paths (`params.head.w`). One run writes into a folder at a time. A state that is divided over
devices is written by all processes together, as a folder `step-00000100.sharded`; see `rlx.distributed.checkpoints`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx import tree
from rlx.distributed.checkpoints import is_divided, read_sharded, sharded_info, write_sharded
from rlx.distributed.processes import process_index
from rlx.errors import FormatError, TrainingError, TreeError
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.runtime.device_arrays import device_put

__all__ = ["CheckpointInfo", "checkpoint_files", "load_checkpoint", "save_checkpoint"]

_NAME = re.compile(r"step-(\d{8,})\.(?:safetensors|sharded)")
_VERSION = "1"


class CheckpointInfo(NamedTuple):
    """Where a checkpoint lies, after which step it was made, and what was saved beside the arrays."""

    path: Path
    step: int
    extra: dict[str, Any]


def checkpoint_files(folder: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Steps and files of a folder, oldest first."""
    place = Path(folder)
    found = ((_NAME.fullmatch(file.name), file) for file in place.glob("step-*"))
    return sorted((int(match[1]), file) for match, file in found if match)


def _named_leaves(state: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(state):
        name = tree.path_text(path) or "value"
        if name in named:
            raise TreeError(f"checkpoint: two leaves are named {name!r}; rename a key that has a dot in it")
        named[name] = leaf
    return named


def save_checkpoint(
    folder: str | os.PathLike[str], state: Any, step: int, *, keep: int = 3, extra: dict[str, Any] | None = None
) -> Path:
    """Write `state` as the checkpoint of `step`, then remove all but the newest `keep`.

    `extra` is anything that JSON can hold. If it cannot be written, what was there before stays as it was.
    """
    if keep < 1:
        raise TrainingError(f"save_checkpoint: keep must be 1 or more, got {keep}")
    place = Path(folder)
    leaves = _named_leaves(state)
    divided = any(map(is_divided, leaves.values()))
    path = place / f"step-{step:08}.{'sharded' if divided else 'safetensors'}"
    try:
        if divided:
            write_sharded(path, leaves, step, extra or {})
        else:
            metadata = {"rlx.checkpoint": _VERSION, "step": str(step), "extra": json.dumps(extra or {})}
            write_safetensors(path, {name: np.asarray(leaf) for name, leaf in leaves.items()}, metadata)
        _sync_folder(place)
    except OSError as error:
        kept = [file.name for _, file in checkpoint_files(place)] if place.is_dir() else []
        last = f"the last checkpoint is {kept[-1]}" if kept else "there is no earlier checkpoint"
        raise TrainingError(
            f"{path}: the checkpoint cannot be written: {error.strerror or error}; {last}. Make room and resume"
        ) from error
    if process_index() == 0:
        for _, old in checkpoint_files(place)[:-keep]:
            _remove(old)
    return path


def _remove(checkpoint: Path) -> None:
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint, ignore_errors=True)
    else:
        checkpoint.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """The new name must be on the disk before older files go."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Parts of files that a killed run left behind."""
    if process_index() == 0:
        for part in (*folder.glob(".step-*.safetensors.*"), *folder.glob(".step-*.sharded.part")):
            _remove(part)


def load_checkpoint(path: str | os.PathLike[str], like: Any) -> tuple[Any, CheckpointInfo]:
    """The tree of a checkpoint file, or of the newest one of a folder, with the structure and types of `like`."""
    place = Path(path)
    if place.is_dir() and not _NAME.fullmatch(place.name):
        found = checkpoint_files(place)
        if not found:
            raise TrainingError(f"{place}: there is no checkpoint (step-*.safetensors) in this folder")
        place = _newest(found)
    if place.is_dir():
        return _load_sharded(place, like)
    if not place.is_file():
        raise TrainingError(f"{place}: there is no such checkpoint or folder")
    with open_safetensors(place) as file:
        if file.metadata.get("rlx.checkpoint") != _VERSION:
            raise FormatError(f"{place}: not a checkpoint of rlx.train, version {_VERSION}")
        wanted = _named_leaves(like)
        _require_same_names(place, wanted, file.tensors)
        leaves = [_array(place, name, leaf, file.tensors[name].array()) for name, leaf in wanted.items()]
        try:
            info = CheckpointInfo(place, int(file.metadata["step"]), json.loads(file.metadata["extra"]))
        except (KeyError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{place}: the checkpoint is damaged: its step or its extra cannot be read: {error}"
            ) from None
    return tree.structure(like).unflatten(leaves), info


def _newest(found: list[tuple[int, Path]]) -> Path:
    """The last of some checkpoints; when it is broken, the one before it is a way out."""
    place = found[-1][1]
    try:
        with open_safetensors(place) if place.is_file() else nullcontext():
            return place
    except FormatError as error:
        before = f"goes on from {found[-2][1].name}" if len(found) > 1 else "begins again"
        raise FormatError(f"{error}; the checkpoint is broken: remove it, and the run {before}") from None


def _load_sharded(place: Path, like: Any) -> tuple[Any, CheckpointInfo]:
    wanted, info = _named_leaves(like), sharded_info(place)
    _require_same_names(place, wanted, info.leaves)
    leaves = read_sharded(place, wanted)
    return tree.structure(like).unflatten(leaves.values()), CheckpointInfo(place, info.step, info.extra)


def _require_same_names(place: Path, wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    missing, unknown = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    if missing or unknown:
        which = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which is not wanted"
        raise FormatError(f"{place}: the checkpoint is of another model or optimiser: it {which}")


def _array(place: Path, name: str, like: Any, found: Any) -> Any:
    wanted = like if is_divided(like) else np.asarray(like)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise FormatError(
            f"{place}: the checkpoint is of another model: {name!r} is {found.dtype}{list(found.shape)}, "
            f"{wanted.dtype}{list(wanted.shape)} is wanted"
        )
    # A copy: the file may be removed, and the array will be donated.
    return device_put(np.array(found), like.sharding) if is_divided(like) else np.array(found)
