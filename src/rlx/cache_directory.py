"""Where things are kept on disk: machine code, programs, prepared weights, models and what `rlx tune` has found."""

from __future__ import annotations

import os
from pathlib import Path

from rlx.knobs import knobs


def cache_directory() -> Path:
    """The knob `cache_dir` (`RLX_CACHE_DIR`), else `rlx` in the user's cache directory."""
    if knobs.cache_dir:
        return Path(knobs.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlx"
