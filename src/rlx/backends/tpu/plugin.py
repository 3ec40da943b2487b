"""Where the plugin for TPUs is, and whether this machine has one of them. Nothing is loaded to find out."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlx.backends.xla.adapter import Unusable, installed, open_plugin
from rlx.backends.xla.arrays import XlaSpace
from rlx.errors import NotInstalled

PLUGIN = "tpu"
REMEDY = "pip install libtpu (a proprietary package of 590 MB), or name its library in LIBTPU_PATH"

_PCI_DEVICES = Path("/sys/bus/pci/devices")
# Of Google, and chips that are TPUs; network cards are of Google too.
_VENDOR = "0x1ae0"
_CHIPS = {
    "0x0027": "TPU v3",
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU 7x",
}


def library() -> str | None:
    """The path of libtpu: what LIBTPU_PATH says, else that of the package."""
    named = os.environ.get("LIBTPU_PATH")
    if named:
        return named if Path(named).is_file() else None
    found = find_spec("libtpu")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    files = [Path(place) / "libtpu.so" for place in places]
    return next((str(file) for file in files if file.is_file()), None)


def chips(devices: Path = _PCI_DEVICES) -> list[str]:
    """The TPUs in this machine, by name."""
    found = []
    for device in sorted(devices.glob("*")) if devices.is_dir() else ():
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue
        if vendor == _VENDOR and kind in _CHIPS:
            found.append(_CHIPS[kind])
    return found


def missing() -> Unusable | None:
    """What is needed to compile for TPUs and is not here."""
    found = installed()
    if isinstance(found, Unusable):
        return found
    named = os.environ.get("LIBTPU_PATH")
    if library() is None:
        reason = f"LIBTPU_PATH names {named}, which is no file" if named else "the compiler for TPUs is not installed"
        return Unusable(reason, REMEDY)
    return None


def require_library() -> str:
    """The path of libtpu, or an error that says what to do."""
    lacking, found = missing(), library()
    if lacking is not None or found is None:
        raise NotInstalled(f"tpu: {lacking.reason}; {lacking.remedy}" if lacking else f"tpu: {REMEDY}")
    return found


@cache
def open_space(index: int) -> XlaSpace:
    """The memory of a TPU with a number, the same object for all who ask."""
    return XlaSpace(open_plugin(PLUGIN, require_library()), index, "tpu")
