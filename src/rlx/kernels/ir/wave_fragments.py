"""Square matrices that a wave holds in a layout nobody knows, as Apple's GPUs have them: filled with a number, loaded
from and stored to memory, multiplied.

These statements stand in loops over threads, and all threads of a wave take part with the same operands: what each of
them has of a fragment is the machine's own business. Fragments are declared as those of groups are
(`GroupBuilder.fragment`), with as many rows and columns as the machine's `MatrixUnit` has.

    fill f, 0.0                                       f[i, j] = 0
    wave load a, tile[0] 8x8 stride 40                a[i, j] = tile[40 i + j]
    wave load b, tile[64] 8x8 stride 40 transposed    b[i, j] = tile[64 + 40 j + i]
    wave product f, a, b                              f += a @ b
    wave store sums[0] 8x8 stride 36, f               sums[36 i + j] = f[i, j]
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.kernels.ir.groups import WaveStatement
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.kernels.ir.regions import Region, Renew, Use
from rlx.kernels.machines import MatrixUnit


@dataclass(eq=False, slots=True)
class FragmentFill(WaveStatement):
    """Every element of a fragment becomes one number."""

    unit: MatrixUnit
    fragment: Buffer
    literal: float

    def text(self, use: Use) -> str:
        return f"wave fill {self.fragment.name}, {self.literal}"

    def renewed(self, new: Renew) -> FragmentFill:
        return self


@dataclass(eq=False, slots=True)
class FragmentLoad(WaveStatement):
    """`fragment = source`, or the transpose of it."""

    unit: MatrixUnit
    fragment: Buffer
    source: Region
    transposed: bool

    def operands(self) -> tuple[Value, ...]:
        return self.source.operands()

    def text(self, use: Use) -> str:
        return f"wave load {self.fragment.name}, {self.source.text(use)}{' transposed' if self.transposed else ''}"

    def renewed(self, new: Renew) -> FragmentLoad:
        return FragmentLoad(self.unit, self.fragment, self.source.renewed(new), self.transposed)


@dataclass(eq=False, slots=True)
class FragmentStore(WaveStatement):
    """`target = fragment`."""

    unit: MatrixUnit
    target: Region
    fragment: Buffer

    def operands(self) -> tuple[Value, ...]:
        return self.target.operands()

    def text(self, use: Use) -> str:
        return f"wave store {self.target.text(use)}, {self.fragment.name}"

    def renewed(self, new: Renew) -> FragmentStore:
        return FragmentStore(self.unit, self.target.renewed(new), self.fragment)


@dataclass(eq=False, slots=True)
class FragmentMma(WaveStatement):
    """`total += a @ b`."""

    unit: MatrixUnit
    total: Buffer
    a: Buffer
    b: Buffer

    def text(self, use: Use) -> str:
        return f"wave product {self.total.name}, {self.a.name}, {self.b.name}"

    def renewed(self, new: Renew) -> FragmentMma:
        return self


def fragments_of(statement: WaveStatement) -> tuple[Buffer, ...]:
    """The fragments that a statement uses."""
    match statement:
        case FragmentMma(_, total, a, b):
            return (total, a, b)
        case FragmentFill(_, fragment) | FragmentLoad(_, fragment) | FragmentStore(_, _, fragment):
            return (fragment,)
    return ()


def region_of(statement: WaveStatement) -> Region | None:
    """The memory that a statement uses."""
    match statement:
        case FragmentLoad(_, _, region) | FragmentStore(_, region):
            return region
    return None
