"""What a target is, and how one is found by its name. The core names no vendor.

A target is a folder of `rlx.backends` with a module `target` that has a `TARGET`, or an entry point of the group
`rlx.backends` in another package. Nothing of it is loaded before somebody asks for it.

    chosen = select("cuda:1")             # the target, and which of its devices
    chosen.target.probe()                 # Found(devices) or Absent(what is missing, what to do); cheap
    require(chosen)                       # the device, or an error that says why there is none
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlx.errors import BackendError, ExportOnly, NoDevice, NotInstalled, UnknownDevice

if TYPE_CHECKING:
    from rlx.backends.api import Backend
    from rlx.backends.export import Exporter
    from rlx.backends.memory_space import MemorySpace
    from rlx.compile.generators import Generator
    from rlx.kernels.machines import Machine

# Where other packages put theirs.
ENTRY_POINTS = "rlx.backends"


@dataclass(frozen=True)
class DeviceInfo:
    """One device: its number among those of its target, its name, and what is worth knowing of it."""

    index: int
    name: str
    detail: str = ""
    memory_bytes: int | None = None


class Found(NamedTuple):
    """The devices that a target has here, at least one."""

    devices: tuple[DeviceInfo, ...]


class Absence(enum.Enum):
    """Why a target has no device here."""

    NotInstalled = "not installed"
    NoDevice = "no device here"
    ExportOnly = "export only"


class Absent(NamedTuple):
    """No device: why, what was looked for, and what to do about it."""

    why: Absence
    reason: str
    remedy: str


# What fusion forms for targets whose kernels are generated: ops that a kernel computes as a whole.
GENERATED = frozenset(
    {
        "MatMul",
        "DotGeneral",
        "ElementwiseRegion",
        "FusedMatMulBiasAct",
        "FusedResidualLN",
        "FusedResidualRmsNorm",
        "FusedSwiGLU",
        "FusedAttentionBlock",
        "If",
        "While",
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Where programs run, or what they are exported for. Every callable loads what it needs when it is called."""

    name: str
    about: str
    # Other names. Those of `variants` also say which interface of the device is meant, as "vulkan" does.
    aliases: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    probe: Callable[[], Found | Absent]
    # The chip by its name ("sm_90a", "avx2", "cortex-m4"), or the one that is found here; never needs a device.
    machine: Callable[[str | None], Machine] | None = None
    # What a machine's programs are cut into kernels for; None: the target has kernels for whole ops, its claims.
    generator: Callable[[Machine], Generator] | None = None
    # Compiles programs for a device and runs them; None: they can only be exported.
    backend: Callable[[Selection], Backend] | None = None
    # Memory of the device with a number; None: it is the host's.
    open: Callable[[int], MemorySpace] | None = None
    # Writes programs to files; independent of `backend`.
    exporter: Callable[[], Exporter] | None = None
    # Kinds of ops that named fusion may form, and how many steps and inputs its regions may have; None: any number.
    claims: frozenset[str] = frozenset()
    region_limits: tuple[int, int] | None = (32, 16)
    # The extra of the package that installs what it needs.
    extra: str = ""


@dataclass(frozen=True)
class Selection:
    """A target, the number of one of its devices, and the interface that is meant."""

    target: Target
    index: int = 0
    variant: str = ""

    @property
    def name(self) -> str:
        """What this is called: `cpu`, `cuda:1`."""
        return self.target.name if self.index == 0 else f"{self.target.name}:{self.index}"


def select(name: str) -> Selection:
    """The target and device that a name means: `cpu`, `nvidia`, `cuda:1`, `vulkan`."""
    word, separator, number = str(name).strip().lower().partition(":")
    if separator and not (number.isascii() and number.isdigit() and len(number) < 5):
        raise UnknownDevice(f"there is no device {name!r}: what follows the colon is its number, as in {word}:1")
    index = int(number) if separator else 0
    found = find_target(word)
    if found is None:
        # Only names that are wrong are compared.
        import difflib

        near = difflib.get_close_matches(word, _names(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnknownDevice(f"there is no device {name!r}{hint}; known devices: {', '.join(target_names())}")
    return Selection(found, index, found.variants.get(word, ""))


def require(chosen: Selection) -> DeviceInfo:
    """The device that was chosen, or an error that says why it is not there and what to do."""
    target, found = chosen.target, chosen.target.probe()
    if isinstance(found, Absent):
        error = {
            Absence.NotInstalled: NotInstalled,
            Absence.NoDevice: NoDevice,
            Absence.ExportOnly: ExportOnly,
        }[found.why]
        raise error(f"{target.name}: {found.reason}; {found.remedy}")
    for device in found.devices:
        if device.index == chosen.index:
            return device
    listed = ", ".join(f"{target.name}:{d.index} ({d.name})" for d in found.devices)
    raise NoDevice(f"{chosen.name}: this machine has {len(found.devices)} of these; use {listed}")


def find_target(word: str) -> Target | None:
    """The target with a name or an alias, in lower case; None if there is none."""
    folder = word.replace("-", "_")
    if folder in _folders():
        return _load(folder)
    if word in _registered:
        return _registered[word]
    for target in targets():
        if word in (target.name, *target.aliases, *target.variants):
            return target
    return None


def targets() -> list[Target]:
    """All targets: those of rlx, in the order of their folders, then those of other packages."""
    return [*map(_load, _folders()), *_registered.values(), *_from_other_packages().values()]


def target_names() -> list[str]:
    return [target.name for target in targets()]


_registered: dict[str, Target] = {}


def register_target(target: Target) -> None:
    """Make a target known in this process; a package that is installed declares an entry point instead."""
    if target.name.replace("-", "_") in _folders():
        raise BackendError(f"{target.name!r} is a target of rlx itself; choose another name")
    _registered[target.name] = target


def _names() -> list[str]:
    return [word for target in targets() for word in (target.name, *target.aliases, *target.variants)]


@cache
def _folders() -> tuple[str, ...]:
    """The folders of `rlx.backends` that describe a target."""
    places = importlib.import_module("rlx.backends").__path__
    return tuple(sorted(file.parent.name for place in places for file in Path(place).glob("*/target.py")))


@cache
def _load(folder: str) -> Target:
    target: Target = importlib.import_module(f"rlx.backends.{folder}.target").TARGET
    return target


@cache
def _from_other_packages() -> dict[str, Target]:
    """Targets of installed packages. One that cannot be loaded is left out with a warning: it must not take the others
    with it."""
    import warnings
    from importlib.metadata import entry_points

    found: dict[str, Target] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            target = entry.load()
        except Exception as error:  # whatever another package does wrong
            warnings.warn(f"the rlx target {entry.name!r} of {entry.value} cannot be loaded: {error}", stacklevel=2)
            continue
        if not isinstance(target, Target):
            warnings.warn(f"{entry.value} is no rlx Target but {type(target).__name__}", stacklevel=2)
        elif target.name in found or target.name.replace("-", "_") in _folders():
            warnings.warn(f"{entry.value}: there is a target {target.name!r} already", stacklevel=2)
        else:
            found[target.name] = target
    return found
