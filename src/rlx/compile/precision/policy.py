"""What mixed precision is made of: precisions, classes of ops, and policies that choose one for the other.

    policy = PrecisionPolicy.AutoMixed
    policy.precision_for(op_kind(node.op))          # Precision.F16 for a matmul, Precision.F32 for an input

The pass that applies a policy is `rlx.compile.precision.apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlx.errors import RlxError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op
from rlx.ir.words import Words


class Precision(Words):
    """A float type to compute in."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "single": "f32"}

    def dtype(self) -> DType:
        return DType(self.value)

    @property
    def size_bytes(self) -> int:
        return self.dtype().size_bytes

    @property
    def bytes(self) -> int:
        return self.size_bytes


class PrecisionClass(Words):
    """What an op is to a precision policy: where its time goes, and what rounding does to it."""

    Compute = "compute"
    Reduction = "reduction"
    Elementwise = "elementwise"
    DataMovement = "data_movement"
    Boundary = "boundary"


# The name of the seed documents; `rlx.OpKind` is the discriminant of an op.
OpKind = PrecisionClass


def op_kind(op: Op) -> PrecisionClass:
    """The precision class of an op, which its class says; Compute where it does not."""
    return PrecisionClass(op.precision_class)


@dataclass(frozen=True)
class PrecisionPolicy:
    """Which precision each class of ops computes in; a class that is not named computes in F32.

    Inputs, params and constants keep their type under every policy; ops read converted copies.
    """

    name: str
    choices: tuple[tuple[PrecisionClass, Precision], ...] = ()

    AlwaysF32: ClassVar[PrecisionPolicy]
    AlwaysF16: ClassVar[PrecisionPolicy]
    AutoMixedConservative: ClassVar[PrecisionPolicy]
    AutoMixed: ClassVar[PrecisionPolicy]
    AutoMixedBf16: ClassVar[PrecisionPolicy]

    @staticmethod
    def Custom(choices: Mapping[PrecisionClass | str, Precision | str]) -> PrecisionPolicy:
        """A precision per class: `PrecisionPolicy.Custom({OpKind.Compute: Precision.BF16})`."""
        read = {PrecisionClass(c): Precision(p) for c, p in choices.items()}
        return PrecisionPolicy("Custom", tuple((c, read[c]) for c in PrecisionClass if c in read))

    @staticmethod
    def of(value: PrecisionPolicy | Precision | str) -> PrecisionPolicy:
        """A policy, its name, or the usual policy for a precision: AutoMixed for F16, AutoMixedBf16 for BF16."""
        if isinstance(value, PrecisionPolicy):
            return value
        word = Precision.other_spellings().get(str(value), str(value))
        found = _NAMED.get(word) or _FOR_PRECISION.get(word)
        if found is None:
            known = ", ".join((*_NAMED, *_FOR_PRECISION))
            raise RlxError(f"there is no precision policy {value!r}; use one of {known}, or PrecisionPolicy.Custom")
        return found

    def precision_for(self, kind: PrecisionClass) -> Precision:
        return Precision.F32 if kind is PrecisionClass.Boundary else dict(self.choices).get(kind, Precision.F32)

    def __str__(self) -> str:
        if self.name != "Custom":
            return self.name
        return f"Custom({', '.join(f'{c}={p}' for c, p in self.choices)})"


_INNER = tuple(c for c in PrecisionClass if c is not PrecisionClass.Boundary)


def _policy(name: str, precision: Precision, classes: Iterable[PrecisionClass] = _INNER) -> PrecisionPolicy:
    return PrecisionPolicy(name, tuple((c, precision) for c in classes))


PrecisionPolicy.AlwaysF32 = PrecisionPolicy("AlwaysF32")
PrecisionPolicy.AlwaysF16 = _policy("AlwaysF16", Precision.F16)
PrecisionPolicy.AutoMixedConservative = _policy(
    "AutoMixedConservative", Precision.F16, (c for c in _INNER if c is not PrecisionClass.Reduction)
)
PrecisionPolicy.AutoMixed = _policy("AutoMixed", Precision.F16)
PrecisionPolicy.AutoMixedBf16 = _policy("AutoMixedBf16", Precision.BF16)

_NAMED = {
    p.name: p
    for p in (
        PrecisionPolicy.AlwaysF32,
        PrecisionPolicy.AlwaysF16,
        PrecisionPolicy.AutoMixedConservative,
        PrecisionPolicy.AutoMixed,
        PrecisionPolicy.AutoMixedBf16,
    )
}
_FOR_PRECISION = {
    "f32": PrecisionPolicy.AlwaysF32,
    "f16": PrecisionPolicy.AutoMixed,
    "bf16": PrecisionPolicy.AutoMixedBf16,
}


class CastConfig(NamedTuple):
    """A conversion: the type to convert to and, for blocked FP8 and FP4, one scale per block of (rows, columns),
    rounded to a power of two with `round_sf`."""

    out_dtype: DType
    sf_block: tuple[int, int] | None = None
    round_sf: bool = False

    @staticmethod
    def plain(dtype: DTypeLike) -> CastConfig:
        """A conversion without scales."""
        return CastConfig(DType.of(dtype))

    def is_noop(self, in_dtype: DTypeLike) -> bool:
        """Whether values of `in_dtype` stay as they are."""
        return DType.of(in_dtype) is self.out_dtype and self.sf_block is None
