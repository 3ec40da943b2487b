"""`CodeObject`: a loadable code object taken apart again, as the loader and the runtime of AMD's GPUs read it.

    found = read_code_object(image)
    found.arch                        # "gfx942"
    found.kernels["add"].vgprs        # registers of a thread, from the metadata
    found.kernels["add"].occupancy(found.arch)

What the runtime relies on is checked: a descriptor for each kernel in memory that is only read, its entry point in
memory that is executed, arguments where metadata and descriptor agree. What does not hold is an `InternalError`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlx.backends.native.elf import ElfObject, Symbol
from rlx.backends.rocm.link import AMDGPU, IDENT, NOTE_NAME, NOTE_TYPE
from rlx.backends.rocm.message_pack import Item, unpack
from rlx.errors import InternalError

_LOAD, _NOTE = 1, 4
_DYNAMIC_SYMBOLS = 11
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DESCRIPTOR_BYTES = 64


class Segment(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    at: int
    address: int
    physical: int
    size: int
    memory: int
    align: int

    def holds(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.address + self.size


class Argument(NamedTuple):
    """A kernel's argument: where it lies in the memory for arguments, how many bytes it has, and what it is."""

    offset: int
    size: int
    kind: str


class Chip(NamedTuple):
    """What decides how many waves a chip keeps at the same time: registers of a SIMD for each lane, how many are given
    at a time, waves of a SIMD at most, SIMDs that share the LDS of `lds_bytes`."""

    registers: int
    granule: int
    waves: int
    simds: int
    lds_bytes: int


_CDNA = Chip(512, 8, 8, 4, 64 << 10)
# Work groups of these run on two compute units together, with the LDS of both.
_RDNA2 = Chip(1024, 16, 16, 4, 128 << 10)
_RDNA3 = Chip(1536, 24, 16, 4, 128 << 10)
CHIPS: Mapping[str, Chip] = {
    "gfx90a": _CDNA,
    "gfx942": _CDNA,
    "gfx1030": _RDNA2,
    "gfx1100": _RDNA3,
    "gfx1201": _RDNA3,
}


@dataclass(frozen=True)
class KernelInfo:
    """What the metadata and the descriptor say of one kernel. `vgprs` counts registers of both kinds where a chip has
    two that share one file."""

    name: str
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    lds_bytes: int
    scratch_bytes: int
    vgprs: int
    sgprs: int
    spilled: int
    wave: int
    threads: int  # of a block, as it must be launched
    entry: int

    def occupancy(self, arch: str) -> int:
        """Waves of a SIMD that run at the same time."""
        chip = CHIPS[arch]
        given = -(-max(self.vgprs, 1) // chip.granule) * chip.granule
        waves = min(chip.waves, chip.registers // given)
        of_block = -(-self.threads // self.wave)
        blocks = waves * chip.simds // of_block
        if self.lds_bytes:
            blocks = min(blocks, chip.lds_bytes // self.lds_bytes)
        return min(waves, -(-blocks * of_block // chip.simds)) if blocks else 0


class CodeObject(NamedTuple):
    arch: str
    segments: tuple[Segment, ...]
    symbols: Mapping[str, Symbol]
    metadata: Mapping[str, Item]
    kernels: Mapping[str, KernelInfo]


def resource_table(found: CodeObject) -> list[str]:
    """A table in Markdown of what each kernel needs, and of how many waves there are then."""
    lines = [
        "| kernel | threads | VGPR | SGPR | LDS | scratch | spilled | waves |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kernel in found.kernels.values():
        needs = (kernel.threads, kernel.vgprs, kernel.sgprs, kernel.lds_bytes, kernel.scratch_bytes, kernel.spilled)
        cells = " | ".join(map(str, (*needs, kernel.occupancy(found.arch))))
        lines.append(f"| `{kernel.name}` | {cells} |")
    return lines


def read_code_object(image: bytes) -> CodeObject:
    """A code object that the loader would take; an `InternalError` that says why not otherwise."""
    parts = ElfObject(image)
    try:
        return _Reader(image, parts).read()
    except (struct.error, IndexError, ValueError, KeyError, TypeError) as error:
        raise InternalError(f"the code object is damaged: {error!r}") from None


class _Reader:
    def __init__(self, image: bytes, parts: ElfObject) -> None:
        self.image, self.parts = image, parts
        self.segments = tuple(self._segments())
        tables = [s for s in parts.sections if s.kind == _DYNAMIC_SYMBOLS]
        self.symbols = {s.name: s for table in tables for s in parts.symbols_of(table) if s.name}

    def read(self) -> CodeObject:
        self._require(self.image[:9] == IDENT[:9], "it is none of the interface of AMD's HSA with metadata V5")
        kind, machine = struct.unpack_from("<HH", self.image, 16)
        self._require((kind, machine) == (3, AMDGPU), "it is no shared object for an AMD GPU")
        for segment in self.segments:
            both = segment.flags & (_WRITE | _EXECUTE) == _WRITE | _EXECUTE
            self._require(segment.kind != _LOAD or not both, "memory is both written and executed")
        metadata = self._metadata()
        self._require(metadata["amdhsa.version"] == [1, 2], f"its metadata is {metadata['amdhsa.version']}, not V5")
        target = re.fullmatch(r"amdgcn-amd-amdhsa--(gfx\w+)", str(metadata["amdhsa.target"]))
        self._require(target is not None, f"its target is {metadata['amdhsa.target']}")
        assert target is not None
        listed = metadata["amdhsa.kernels"]
        assert isinstance(listed, list)
        kernels = [self._kernel(item) for item in listed if isinstance(item, dict)]
        return CodeObject(target[1], self.segments, self.symbols, metadata, {k.name: k for k in kernels})

    def _require(self, holds: bool, why: str) -> None:
        if not holds:
            raise InternalError(f"the code object cannot be loaded: {why}")

    def _segments(self) -> Iterator[Segment]:
        (at,) = struct.unpack_from("<Q", self.image, 32)
        size, count = struct.unpack_from("<HH", self.image, 54)
        for number in range(count):
            yield Segment(*struct.unpack_from("<IIQQQQQQ", self.image, at + number * size))

    def _metadata(self) -> dict[str, Item]:
        for segment in self.segments:
            if segment.kind == _NOTE:
                note = self.image[segment.at : segment.at + segment.size]
                name_size, size, kind = struct.unpack_from("<III", note)
                start = 12 + -(-name_size // 4) * 4
                if (note[12 : 12 + name_size], kind) == (NOTE_NAME, NOTE_TYPE):
                    found = unpack(note[start : start + size])
                    assert isinstance(found, dict)
                    return found
        raise InternalError("the code object cannot be loaded: it has no metadata")

    def _at(self, address: int, size: int, flags: int, what: str) -> bytes:
        """Bytes of a segment with just these permissions."""
        for segment in self.segments:
            if segment.kind == _LOAD and segment.holds(address, size):
                self._require(segment.flags == flags, f"{what} lies in memory with the permissions {segment.flags}")
                start = segment.at + address - segment.address
                return self.image[start : start + size]
        raise InternalError(f"the code object cannot be loaded: {what} lies in no segment")

    def _kernel(self, item: Mapping[str, Item]) -> KernelInfo:
        def number(key: str) -> int:
            value = item[key]
            assert isinstance(value, int)
            return value

        name, symbol = str(item[".name"]), str(item[".symbol"])
        descriptor, code = self.symbols[symbol], self.symbols[name]
        self._require(
            descriptor.size == _DESCRIPTOR_BYTES and descriptor.value % _DESCRIPTOR_BYTES == 0,
            f"the descriptor of {name} has {descriptor.size} bytes at {descriptor.value:#x}",
        )
        words = self._at(descriptor.value, _DESCRIPTOR_BYTES, _READ, f"the descriptor of {name}")
        lds, scratch, kernarg, _, offset = struct.unpack_from("<IIIIq", words)
        entry = descriptor.value + offset
        self._require(entry == code.value and entry % 256 == 0, f"{name} begins at {code.value:#x}, not at {entry:#x}")
        self._at(entry, code.size, _READ | _EXECUTE, f"the code of {name}")
        wanted = tuple(
            number(f".{key}")
            for key in ("group_segment_fixed_size", "private_segment_fixed_size", "kernarg_segment_size")
        )
        self._require((lds, scratch, kernarg) == wanted, f"descriptor and metadata of {name} differ")
        listed = item.get(".args", [])
        assert isinstance(listed, list)
        arguments = tuple(_argument(a) for a in listed if isinstance(a, dict))
        return KernelInfo(
            name=name,
            arguments=arguments,
            kernarg_bytes=kernarg,
            lds_bytes=lds,
            scratch_bytes=scratch,
            vgprs=number(".vgpr_count"),
            sgprs=number(".sgpr_count"),
            spilled=number(".vgpr_spill_count") + number(".sgpr_spill_count"),
            wave=number(".wavefront_size"),
            threads=number(".max_flat_workgroup_size"),
            entry=entry,
        )


def _argument(item: Mapping[str, Item]) -> Argument:
    offset, size = item[".offset"], item[".size"]
    assert isinstance(offset, int) and isinstance(size, int)
    return Argument(offset, size, str(item[".value_kind"]))
