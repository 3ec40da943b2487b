"""Programs as XLA gets them and as it leaves them, in the folder that the knob `tpu_hlo_dump` names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rlx.knobs import knobs


def dump(name: str, suffix: str, text: Callable[[], str]) -> None:
    """Write `text()` as the next file of a program; nothing where no folder is named."""
    folder = knobs.tpu_hlo_dump
    if not folder:
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W", "_", name) or "program"
    number = len(list(place.glob(f"{stem}.*.{suffix}")))
    (place / f"{stem}.{number}.{suffix}").write_text(text(), encoding="utf-8")
