"""Training that can be stopped: the scene, the optimiser's memory and the number of steps, in one .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import replace_file
from rlx.splat.adam import AdamState
from rlx.splat.scene import GaussianScene

_VERSION = 1


class Checkpoint(NamedTuple):
    step: int
    scene: GaussianScene
    state: AdamState
    seed: int


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """The file appears whole or not at all."""
    arrays: dict[str, Any] = {"version": _VERSION, "step": checkpoint.step, "seed": checkpoint.seed}
    parts = {"scene": checkpoint.scene, "mean": checkpoint.state.mean, "square": checkpoint.state.square}
    arrays |= {f"{part}.{name}": np.asarray(x) for part, s in parts.items() for name, x in zip(s._fields, s)}
    with replace_file(path) as file:
        np.savez(file, **arrays)


def read_checkpoint(path: Path) -> Checkpoint:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if int(file["version"]) != _VERSION:
                raise FormatError(f"{path}: version {int(file['version'])} is not read, only {_VERSION}")
            scene, mean, square = (
                GaussianScene(*(file[f"{part}.{name}"] for name in GaussianScene._fields)).checked()
                for part in ("scene", "mean", "square")
            )
            step, seed = int(file["step"]), int(file["seed"])
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, FormatError | FileNotFoundError):
            raise
        raise FormatError(f"{path}: not a checkpoint of splat training: {error}") from None
    if any(part.splats != scene.splats for part in (mean, square)):
        raise FormatError(f"{path}: the optimiser's memory does not fit the {scene.splats} splats of the scene")
    return Checkpoint(step, scene, AdamState(mean, square), seed)
