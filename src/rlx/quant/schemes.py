"""Quantisation metadata (`QuantScheme`, `QuantMap`) and the reference decoding of quantised weights.

A scheme names a storage format; it travels as an attribute of the Dequant* ops. `str(scheme)` is what programs write
and `QuantScheme.of` accepts it back:

    >>> QuantScheme.of("int8/32") == QuantScheme.int8_block(32), str(QuantScheme.GgufQ4K)
    (True, 'gguf_q4k')

`dequantize_blocks` and `dequantize_matrix` define what the stored bytes mean; they are plain NumPy and never optimised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.errors import OpError, ShapeError
from rlx.ir.op import attribute_type
from rlx.ir.words import Words
from rlx.quant.block_fields import F32, U8
from rlx.quant.decode import FORMATS, BlockFormat
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.nvfp4 import NVFP4_GROUP_SIZE, fp4_e2m1_to_f32, fp8_e4m3_scale_to_f32
from rlx.quant.panels import PanelFormat


class QuantKind(Words):
    """The families of formats; the value is the display name without the block size."""

    Int8Block = "int8"
    Int8BlockAsym = "int8a"
    Int4Block = "int4"
    Fp8E4m3 = "fp8e4m3"
    Fp8E5m2 = "fp8e5m2"
    Nvfp4Block = "nvfp4"
    GgufQ2K = "gguf_q2k"
    GgufQ3K = "gguf_q3k"
    GgufQ4K = "gguf_q4k"
    GgufQ5K = "gguf_q5k"
    GgufQ6K = "gguf_q6k"
    GgufQ8K = "gguf_q8k"
    GgufQ4_0 = "gguf_q4_0"
    GgufQ4_1 = "gguf_q4_1"
    GgufQ5_0 = "gguf_q5_0"
    GgufQ5_1 = "gguf_q5_1"
    GgufQ8_0 = "gguf_q8_0"
    GgufIQ4NL = "gguf_iq4_nl"
    GgufIQ4XS = "gguf_iq4_xs"
    GgufMXFP4 = "gguf_mxfp4"
    GgufNVFP4 = "gguf_nvfp4"
    GgufQ8_1 = "gguf_q8_1"
    GgufIQ1S = "gguf_iq1_s"
    GgufIQ1M = "gguf_iq1_m"
    GgufIQ2XXS = "gguf_iq2_xxs"
    GgufIQ2XS = "gguf_iq2_xs"
    GgufIQ2S = "gguf_iq2_s"
    GgufIQ3XXS = "gguf_iq3_xxs"
    GgufIQ3S = "gguf_iq3_s"
    GgufTQ1_0 = "gguf_tq1_0"
    GgufTQ2_0 = "gguf_tq2_0"
    GgufQ1_0 = "gguf_q1_0"
    GgufQ2_0 = "gguf_q2_0"


_INT_KINDS = (QuantKind.Int8Block, QuantKind.Int8BlockAsym, QuantKind.Int4Block)
_FP8_DTYPES = {QuantKind.Fp8E4m3: ml_dtypes.float8_e4m3fn, QuantKind.Fp8E5m2: ml_dtypes.float8_e5m2}
_GGML_NAMES: dict[QuantKind, str] = {
    QuantKind.GgufQ2K: "Q2_K",
    QuantKind.GgufQ3K: "Q3_K",
    QuantKind.GgufQ4K: "Q4_K",
    QuantKind.GgufQ5K: "Q5_K",
    QuantKind.GgufQ6K: "Q6_K",
    QuantKind.GgufQ8K: "Q8_K",
    QuantKind.GgufQ4_0: "Q4_0",
    QuantKind.GgufQ4_1: "Q4_1",
    QuantKind.GgufQ5_0: "Q5_0",
    QuantKind.GgufQ5_1: "Q5_1",
    QuantKind.GgufQ8_0: "Q8_0",
    QuantKind.GgufIQ4NL: "IQ4_NL",
    QuantKind.GgufIQ4XS: "IQ4_XS",
    QuantKind.GgufMXFP4: "MXFP4",
    QuantKind.GgufNVFP4: "NVFP4",
    QuantKind.GgufQ8_1: "Q8_1",
    QuantKind.GgufIQ1S: "IQ1_S",
    QuantKind.GgufIQ1M: "IQ1_M",
    QuantKind.GgufIQ2XXS: "IQ2_XXS",
    QuantKind.GgufIQ2XS: "IQ2_XS",
    QuantKind.GgufIQ2S: "IQ2_S",
    QuantKind.GgufIQ3XXS: "IQ3_XXS",
    QuantKind.GgufIQ3S: "IQ3_S",
    QuantKind.GgufTQ1_0: "TQ1_0",
    QuantKind.GgufTQ2_0: "TQ2_0",
    QuantKind.GgufQ1_0: "Q1_0",
    QuantKind.GgufQ2_0: "Q2_0",
}
_KINDS_OF_GGML = {name: kind for kind, name in _GGML_NAMES.items()}


def _fixed_size(kind: QuantKind) -> int:
    """The block size of the formats that leave no choice."""
    return NVFP4_GROUP_SIZE if kind is QuantKind.Nvfp4Block else 0


@attribute_type
@dataclass(frozen=True)
class QuantScheme:
    """How the elements of a weight are stored. `block_size` is set for the formats whose display carries it."""

    kind: QuantKind
    block_size: int = 0

    Fp8E4m3: ClassVar[QuantScheme]
    Fp8E5m2: ClassVar[QuantScheme]
    Nvfp4Block: ClassVar[QuantScheme]
    GgufQ2K: ClassVar[QuantScheme]
    GgufQ3K: ClassVar[QuantScheme]
    GgufQ4K: ClassVar[QuantScheme]
    GgufQ5K: ClassVar[QuantScheme]
    GgufQ6K: ClassVar[QuantScheme]
    GgufQ8K: ClassVar[QuantScheme]
    GgufQ4_0: ClassVar[QuantScheme]
    GgufQ4_1: ClassVar[QuantScheme]
    GgufQ5_0: ClassVar[QuantScheme]
    GgufQ5_1: ClassVar[QuantScheme]
    GgufQ8_0: ClassVar[QuantScheme]
    GgufIQ4NL: ClassVar[QuantScheme]
    GgufIQ4XS: ClassVar[QuantScheme]
    GgufMXFP4: ClassVar[QuantScheme]
    GgufNVFP4: ClassVar[QuantScheme]
    GgufQ8_1: ClassVar[QuantScheme]
    GgufIQ1S: ClassVar[QuantScheme]
    GgufIQ1M: ClassVar[QuantScheme]
    GgufIQ2XXS: ClassVar[QuantScheme]
    GgufIQ2XS: ClassVar[QuantScheme]
    GgufIQ2S: ClassVar[QuantScheme]
    GgufIQ3XXS: ClassVar[QuantScheme]
    GgufIQ3S: ClassVar[QuantScheme]
    GgufTQ1_0: ClassVar[QuantScheme]
    GgufTQ2_0: ClassVar[QuantScheme]
    GgufQ1_0: ClassVar[QuantScheme]
    GgufQ2_0: ClassVar[QuantScheme]

    def __post_init__(self) -> None:
        if self.kind in _INT_KINDS:
            if self.block_size < 1:
                raise OpError(f"quant scheme {self.kind}: the block size must be at least 1, got {self.block_size}")
            return
        if self.block_size != _fixed_size(self.kind):
            raise OpError(f"quant scheme {self.kind}: the block size is fixed, got {self.block_size}; leave it out")

    @staticmethod
    def int8_block(block_size: int) -> QuantScheme:
        """Signed bytes, one scale per column and `block_size` rows."""
        return QuantScheme(QuantKind.Int8Block, block_size)

    @staticmethod
    def int8_block_asym(block_size: int) -> QuantScheme:
        """Signed bytes, one scale and one zero point per column and `block_size` rows."""
        return QuantScheme(QuantKind.Int8BlockAsym, block_size)

    @staticmethod
    def int4_block(block_size: int) -> QuantScheme:
        """Unsigned nibbles, low first, one scale (and optionally one zero point) per column and `block_size` rows."""
        return QuantScheme(QuantKind.Int4Block, block_size)

    @staticmethod
    def parse(text: str) -> QuantScheme:
        """The scheme whose display is `text`; a size that cannot be chosen may be left out.

        >>> QuantScheme.parse("int4/64").block_size, str(QuantScheme.parse("nvfp4"))
        (64, 'nvfp4/16')
        """
        name, slash, size = text.partition("/")
        if name in _KINDS and (size.isdecimal() or not slash):
            kind = QuantKind(name)
            return QuantScheme(kind, int(size) if slash else _fixed_size(kind))
        known = " ".join(k.value + ("/N" if k in _INT_KINDS else "") for k in QuantKind)
        raise OpError(f"unknown quant scheme {text!r}; use one of: {known}")

    @staticmethod
    def of(value: QuantScheme | str) -> QuantScheme:
        return value if isinstance(value, QuantScheme) else QuantScheme.parse(value)

    @staticmethod
    def of_ggml(name: str) -> QuantScheme:
        """The scheme of a GGML type name such as `"Q4_K"`."""
        if name not in _KINDS_OF_GGML:
            raise OpError(f"GGML type {name!r} cannot be decoded here; known types: {' '.join(_KINDS_OF_GGML)}")
        return QuantScheme(_KINDS_OF_GGML[name])

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.block_size}" if self.block_size else self.kind.value

    def __str__(self) -> str:
        return self.display

    @property
    def is_gguf(self) -> bool:
        return self.kind in _GGML_NAMES

    @property
    def ggml_name(self) -> str:
        """What GGUF files call the type; empty for other formats."""
        return _GGML_NAMES.get(self.kind, "")

    @property
    def block_format(self) -> BlockFormat | None:
        """Layout of a GGUF block; None for the formats that keep their scales beside the codes."""
        return FORMATS[_GGML_NAMES[self.kind]] if self.is_gguf else None

    @property
    def panel_format(self) -> PanelFormat | None:
        """How products read a GGUF weight once it is laid out for them; None for other formats."""
        return PANEL_FORMATS.get(_GGML_NAMES.get(self.kind, ""))

    @property
    def gguf_block_size(self) -> int | None:
        """Elements of a GGUF block."""
        return self.block_format.elements if self.block_format else None

    @property
    def gguf_block_bytes(self) -> int | None:
        """Bytes of a GGUF block."""
        return self.block_format.bytes if self.block_format else None

    @property
    def bits_per_element_x10(self) -> int:
        """Ten times the stored bits per element, rounded; scales that lie beside the codes are not counted."""
        if self.block_format:
            return round(80 * self.block_format.bytes / self.block_format.elements)
        return 40 if self.kind in (QuantKind.Int4Block, QuantKind.Nvfp4Block) else 80

    @property
    def bits_per_element(self) -> int:
        return self.bits_per_element_x10 // 10

    @property
    def has_scale(self) -> bool:
        """Whether a scale operand must come with the codes (FP8 accepts one but does not need it)."""
        return self.kind in _INT_KINDS or self.kind is QuantKind.Nvfp4Block

    @property
    def has_zero_point(self) -> bool:
        return self.kind is QuantKind.Int8BlockAsym

    @property
    def scale_is_fp8(self) -> bool:
        return self.kind is QuantKind.Nvfp4Block

    @property
    def nvfp4_group_size(self) -> int | None:
        return NVFP4_GROUP_SIZE if self.kind is QuantKind.Nvfp4Block else None

    def packed_bytes(self, k: int, n: int) -> int:
        """Bytes of the codes of a [k, n] matrix, side operands not counted."""
        if self.block_format:
            if k % self.block_format.elements:
                raise ShapeError(f"{self}: k must be a multiple of {self.block_format.elements}, got k={k}, n={n}")
            return k // self.block_format.elements * self.block_format.bytes * n
        return -(-k * n * self.bits_per_element // 8)


_KINDS = frozenset(k.value for k in QuantKind)
for _kind in QuantKind:
    if _kind not in _INT_KINDS:
        setattr(QuantScheme, _kind.name, QuantScheme(_kind, _fixed_size(_kind)))


class QuantMap:
    """Which node of a graph is quantised how; kept beside the graph."""

    def __init__(self) -> None:
        self._schemes: dict[int, QuantScheme] = {}

    def get(self, node: int) -> QuantScheme | None:
        return self._schemes.get(node)

    def insert(self, node: int, scheme: QuantScheme | str) -> None:
        self._schemes[node] = QuantScheme.of(scheme)

    def is_empty(self) -> bool:
        return not self._schemes

    def __len__(self) -> int:
        return len(self._schemes)

    def __iter__(self) -> Iterator[tuple[int, QuantScheme]]:
        """Pairs of node id and scheme, in order of insertion."""
        return iter(self._schemes.items())

    def __contains__(self, node: object) -> bool:
        return node in self._schemes


# Blocks are decoded in pieces of this many elements, so that the intermediates stay small.
_PIECE_ELEMENTS = 1 << 18


def dequantize_blocks(scheme: QuantScheme | str, data: U8) -> F32:
    """The numbers in a run of GGUF blocks, flat and in stored order."""
    fmt = _gguf_format("dequantize_blocks", scheme)
    raw = _as_bytes(data)
    if raw.size % fmt.bytes:
        raise ShapeError(
            f"dequantize_blocks: {scheme} blocks have {fmt.bytes} bytes, got {raw.size} bytes, "
            f"which leaves {raw.size % fmt.bytes} over"
        )
    blocks = raw.reshape(-1, fmt.bytes)
    out = np.empty((len(blocks), fmt.elements), np.float32)
    piece = _PIECE_ELEMENTS // fmt.elements
    # A file may hold any bits: a scale of inf or NaN is data, not a reason to warn.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), piece):
            out[start : start + piece] = fmt.decode(blocks[start : start + piece])
    return out.reshape(-1)


def quantize_blocks(scheme: QuantScheme | str, values: npt.ArrayLike) -> U8:
    """GGUF bytes of `values` by GGML's reference rounding. The codebook types (IQ*) can only be read."""
    fmt = _gguf_format("quantize_blocks", scheme)
    if fmt.encode is None:
        known = " ".join(kind for kind, name in _GGML_NAMES.items() if FORMATS[name].encode)
        raise OpError(f"quantize_blocks: cannot write {scheme}; its encoder needs data; use one of: {known}")
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    if flat.size % fmt.elements:
        raise ShapeError(f"quantize_blocks: {scheme} blocks hold {fmt.elements} values, got {flat.size}; pad the rows")
    groups = flat.reshape(-1, fmt.elements)
    out = np.empty((len(groups), fmt.bytes), np.uint8)
    piece = _PIECE_ELEMENTS // fmt.elements
    with np.errstate(invalid="ignore", under="ignore", over="ignore"):
        for start in range(0, len(groups), piece):
            out[start : start + piece] = fmt.encode(groups[start : start + piece])
    return out.reshape(-1)


def dequantize_matrix(
    scheme: QuantScheme | str,
    k: int,
    n: int,
    packed: npt.NDArray[np.generic],
    scale: npt.NDArray[np.generic] | None = None,
    zp: npt.NDArray[np.generic] | None = None,
) -> F32:
    """The f32[k, n] matrix W for which a quantised matmul computes `x @ W`.

    Int8 and Int4: `W[p, j] = (q[p, j] - zp[p // bs, j]) · scale[p // bs, j]`; Int8Block has no zero point.
    FP8: `W[p, j] = q[p, j] · scale[j]`, scale optional. NVFP4: see `rlx.quant.nvfp4`; `zp` holds the global scale.
    GGUF: the bytes describe `W.T`, that is n rows of k elements.
    """
    scheme = QuantScheme.of(scheme)
    codes = _as_bytes(packed)
    wanted = scheme.packed_bytes(k, n)
    if codes.size != wanted:
        raise ShapeError(f"{scheme} matrix [{k}, {n}]: wanted {wanted} packed bytes, got {codes.size}")
    if scheme.is_gguf:
        return np.ascontiguousarray(dequantize_blocks(scheme, codes).reshape(n, k).T)
    # An operand without elements is how a program says "absent".
    scale = None if scale is None or scale.size == 0 else scale
    zp = None if zp is None or zp.size == 0 else zp
    with np.errstate(all="ignore"):
        return _scaled_matrix(scheme, k, n, codes, scale, zp)


def _scaled_matrix(
    scheme: QuantScheme,
    k: int,
    n: int,
    codes: U8,
    scale: npt.NDArray[np.generic] | None,
    zp: npt.NDArray[np.generic] | None,
) -> F32:
    """The schemes whose scales lie beside the codes."""
    if scheme.kind in _FP8_DTYPES:
        weights: F32 = codes.view(_FP8_DTYPES[scheme.kind]).astype(np.float32).reshape(k, n)
        return weights if scale is None else weights * _side(scheme, "scale", scale, (n,))
    if scale is None:
        raise OpError(f"{scheme} matrix [{k}, {n}]: the scale operand is missing")
    if zp is None and scheme.has_zero_point:
        raise OpError(f"{scheme} matrix [{k}, {n}]: the zero point operand is missing")
    groups = (-(-k // scheme.block_size), n)
    group_of_row = np.arange(k) // scheme.block_size
    if scheme.kind is QuantKind.Nvfp4Block:
        steps = fp8_e4m3_scale_to_f32(_side_bytes(scheme, scale, groups))
        weights = fp4_e2m1_to_f32(_low_nibble_first(codes, k, n)) * steps[group_of_row]
        return weights if zp is None else weights * _side(scheme, "global scale", zp, (1,))
    if scheme.kind is QuantKind.Int4Block:
        weights = _low_nibble_first(codes, k, n).astype(np.float32)
    else:
        weights = codes.view(np.int8).astype(np.float32).reshape(k, n)
    if zp is not None and scheme.kind is not QuantKind.Int8Block:
        weights -= _side(scheme, "zero point", zp, groups)[group_of_row]
    return weights * _side(scheme, "scale", scale, groups)[group_of_row]


def _gguf_format(function: str, scheme: QuantScheme | str) -> BlockFormat:
    fmt = QuantScheme.of(scheme).block_format
    if fmt is None:
        raise OpError(f"{function}: {scheme} is not a GGUF format; use dequantize_matrix")
    return fmt


def _as_bytes(data: npt.NDArray[np.generic]) -> U8:
    """The codes as flat bytes: u8, i8 and the one-byte floats are accepted, wider types are a mistake."""
    array = np.ascontiguousarray(data)
    if array.dtype.itemsize != 1:
        raise OpError(f"packed weights must have one-byte elements (u8), got {array.dtype}")
    return array.reshape(-1).view(np.uint8)


def _low_nibble_first(codes: U8, k: int, n: int) -> U8:
    """The nibbles of flat element order [k, n]: even index low, odd index high."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1)[: k * n].reshape(k, n)


def _side(scheme: QuantScheme, what: str, values: npt.NDArray[np.generic], shape: tuple[int, ...]) -> F32:
    """A side operand as f32 of `shape`; any operand with the right number of elements will do."""
    if values.size != np.prod(shape):
        raise ShapeError(f"{scheme}: the {what} must have shape {list(shape)}, got {list(values.shape)}")
    return np.asarray(values, dtype=np.float32).reshape(shape)


def _side_bytes(scheme: QuantScheme, values: npt.NDArray[np.generic], shape: tuple[int, ...]) -> U8:
    if values.size != np.prod(shape):
        raise ShapeError(f"{scheme}: the scale bytes must have shape {list(shape)}, got {list(values.shape)}")
    return _as_bytes(values).reshape(shape)
