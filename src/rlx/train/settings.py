"""What a run began with, in its folder: a run goes on with the same settings or not at all.

agree_on_settings(Path("run"), {"layers": 6, "batch": 8})      # writes settings.json, or compares with it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx.errors import TrainingError
from rlx.formats.mapped_file import replace_file
from rlx.train.checkpoints import checkpoint_files
from rlx.train.folders import writing_to

SETTINGS_NAME = "settings.json"


def agree_on_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than a run began with; write down those of a new one."""
    place, wanted = folder / SETTINGS_NAME, json.loads(json.dumps(settings))
    if checkpoint_files(folder):
        # Checkpoints without settings are of a run from Python, or an older one.
        found = _read(place) if place.is_file() else wanted
        different = [key for key in wanted if found.get(key) != wanted[key]]
        if different:
            key = different[0]
            raise TrainingError(
                f"{folder}: the run began with {key} {found.get(key)!r:.80}, and now it is {wanted[key]!r:.80}; "
                "use the same settings, or another folder"
            )
        return
    with writing_to(folder), replace_file(place) as file:
        file.write((json.dumps(wanted, indent=2) + "\n").encode())


def kept_settings(folder: Path) -> Mapping[str, Any]:
    """The settings of the run in a folder; none where there is no run, or none that kept them."""
    place = folder / SETTINGS_NAME
    return _read(place) if place.is_file() and checkpoint_files(folder) else {}


def _read(place: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainingError(f"{place} is not JSON: {error}; remove it to go on without it") from None
    if not isinstance(found, dict):
        raise TrainingError(f"{place} must be an object; remove it to go on without it")
    return found
