"""Products of 8-bit codes, exact in whole numbers: what activations of 8 bits are multiplied with.

The compiler writes products in this form when it is asked for activations of 8 bits. A weight becomes codes with one
scale for each column, laid out in panels for dot-product instructions; blocks of GGUF files stay what they are, and
their activations may have 16 bits. The scales of rows, columns and blocks are multiplied afterwards, in floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype, require_float
from rlx.ops.define.samples import Sample, sample, spec
from rlx.quant.panels import PANEL_ROWS, PanelFormat, unpack_rows, word_order
from rlx.quant.schemes import QuantScheme

__all__ = ["Int8BlockMatMul", "Int8Blocks", "Int8MatMul", "Int8Panels"]

Array = np.ndarray[Any, np.dtype[Any]]

# How activations may be multiplied with stored weights, and how many codes of 8 bits one then is. "auto" is the fastest
# that keeps answers, which `rlx.compile.weights.integer_activations` chooses for each product.
ACTIVATIONS = {"f32": 0, "int8": 1, "int16": 2, "auto": 2}
# Codes of activations are stored as code + ZERO, without a sign, and lie between -LEVELS and LEVELS.
ZERO = 128
LEVELS = 127
# Codes of 16 bits are two digits in base 256, each between -128 and 127.
MAX_DIGITS = max(ACTIVATIONS.values())
# Neighbours along K that one lane of a dot-product instruction multiplies.
WORD = 4
# Activations of a block, where weights come in blocks.
BLOCK = 32
# How many blocks share a scale, by the digits of their codes. One that is shared costs a multiplication less for every
# block of a product, and digits: of 16 bits there are enough.
SPANS = {1: 1, 2: 4}
# Of the scale and the sums behind the codes of a block.
SUMS_BYTES = 16

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use matmul")


class _Int8Op(Op):
    primitive = True
    lowered = True
    jvp = _INTERNAL
    vjp = _INTERNAL
    batch = _INTERNAL


@op("int8_panels")
class Int8Panels(_Int8Op):
    """A weight [k, n] as codes in panels of `width` columns, i8[panels, 1 + k/4, width, 4], and its scales f32[n].

    w ≈ code·scale with scale = max|w|/127 of its column. Line 1 + p of a panel holds rows 4p .. 4p+3 of its columns;
    line 0 holds one i32 for each column, -128·Σ code, which takes the offset of unsigned activations back.
    """

    width: int

    def infer(self, w: Shape) -> tuple[Shape, Shape]:
        require_float(self, w)
        if self.width < 1:
            raise self.fail(f"panels have at least one column, got width={self.width}")
        if w.rank != 2 or not w.is_static or w.static_dims[0] % WORD:
            raise self.fail(f"needs a weight [k, n] of a fixed size with k a multiple of {WORD}, got {w}")
        k, n = w.static_dims
        panels = Shape((-(-n // self.width), 1 + k // WORD, self.width, WORD), DType.I8)
        return panels, Shape((n,), DType.F32)

    def eval(self, w: Array) -> tuple[Array, Array]:
        k, n = w.shape
        with np.errstate(all="ignore"):
            scale = np.abs(w).max(0, initial=0).astype(np.float32) / np.float32(LEVELS)
            found = w / np.where(scale > 0, scale, 1)
        codes = np.zeros((k, -(-n // self.width) * self.width), np.int8)
        # What is no number has no code; its scale makes the whole column one that is none.
        codes[:, :n] = np.clip(np.rint(np.nan_to_num(found, nan=0.0)), -LEVELS, LEVELS)
        start = -ZERO * codes.sum(0, dtype=np.int32)
        lines = codes.reshape(k // WORD, WORD, -1, self.width).transpose(2, 0, 3, 1)
        first = start.astype("<i4").view(np.int8).reshape(-1, 1, self.width, WORD)
        return np.ascontiguousarray(np.concatenate([first, lines], axis=1)), scale

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, n, width in ((8, 5, 4), (64, 33, 16), (4, 1, 2), (12, 16, 16)):
            yield sample(cls(width), spec(k, n), dtypes=("f32",))


@op("int8_matmul")
class Int8MatMul(_Int8Op):
    """y[.., n] = Σ (code - 128)·w as i32, for codes u8[.., k] and the panels of a weight with n columns."""

    n: int

    def infer(self, codes: Shape, panels: Shape) -> Shape:
        require_dtype(self, codes.dtype is DType.U8 and codes.rank > 0, "codes u8[.., k]", codes)
        if panels.dtype is not DType.I8 or panels.rank != 4 or not panels.is_static:
            raise self.fail(f"needs panels i8[panels, 1 + k/{WORD}, width, {WORD}], got {panels}")
        count, lines, width, word = panels.static_dims
        if width < 1 or self.n < 0:
            raise self.fail(f"needs panels of at least one column and n >= 0, got {panels} and n={self.n}")
        if word != WORD or codes.dims[-1] != (lines - 1) * WORD or count != -(-self.n // width):
            raise self.fail(f"{codes} by n={self.n} columns do not fit the panels {panels}")
        return Shape((*codes.dims[:-1], self.n), DType.I32)

    def eval(self, codes: Array, panels: Array) -> Array:
        count, lines, width, _ = panels.shape
        w = panels[:, 1:].transpose(1, 3, 0, 2).reshape((lines - 1) * WORD, count * width)[:, : self.n]
        return np.asarray((codes.astype(np.int32) - ZERO) @ w.astype(np.int32))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(5)
        for k, n, width in ((8, 5, 16), (64, 130, 64), (132, 64, 64), (4, 1, 16)):
            panels, _ = Int8Panels(width).eval(rng.standard_normal((k, n)).astype(np.float32))
            stored = spec(*panels.shape, dtype="i8", values=panels)
            codes = spec(3, k, dtype="u8", values=rng.integers(1, 256, (3, k)))
            yield sample(cls(n), codes, stored, dtypes=("u8",))
        many = spec("B", "S", k, dtype="u8", low=1, high=255)
        yield sample(cls(n), many, stored, dtypes=("u8",), B=2, S=9)


@op("int8_blocks")
class Int8Blocks(_Int8Op):
    """Rows of k floats as bytes, a record for every block of 32: 32 i8 for each digit of the codes, the lowest digit
    first, then the scale as f32 and the sums of the first half of the codes, the second half and all: as f32, or where
    there is a `bias` times -bias as i32. That is what dot products begin with whose other codes are so much more than
    what they stand for.

    x ≈ code·scale with scale = max|x|/most of a span of blocks (`SPANS`; the last one may be shorter), code =
    round(x/scale), half to even; the most a code can be is 127, and 127·257 where it has two digits, code = low +
    256·high. Codes lie in the order of `word_order`: the one in which a product finds those of the weight, of which
    `per_byte` share a byte.
    """

    digits: int = 1
    per_byte: int = 1
    bias: int = 0

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        _require_digits(self, self.digits)
        if self.per_byte not in (1, 2, 4):
            raise self.fail(f"1, 2 or 4 codes of a weight share a byte, got per_byte={self.per_byte}")
        if not 0 <= self.bias <= 2 * ZERO:
            raise self.fail(f"bytes are at most {2 * ZERO} more than what they stand for, got bias={self.bias}")
        if x.rank == 0 or not isinstance(x.dims[-1], int) or x.dims[-1] % BLOCK:
            raise self.fail(f"the last axis must be fixed and a multiple of {BLOCK}, got {x}")
        return Shape((*x.dims[:-1], block_bytes(x.dims[-1], self.digits)), DType.U8)

    def eval(self, x: Array) -> Array:
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK).astype(np.float32)
        most, count, span = highest_code(self.digits), blocks.shape[-2], SPANS[self.digits]
        with np.errstate(all="ignore"):
            largest = np.abs(blocks).max(-1, keepdims=True)
            if span > 1 and count:
                largest = np.maximum.reduceat(largest, np.arange(0, count, span), axis=-2)
                largest = np.repeat(largest, span, axis=-2)[..., :count, :]
            scale = largest * np.float32(1 / most)
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
            # What is no number has no code; its scale makes the span one of which every product is none.
            found = np.nan_to_num(np.rint(blocks * inverse), nan=0.0)
            codes = np.clip(found, -most, most).astype(np.int32)
            halves = codes.reshape(*codes.shape[:-1], 2, BLOCK // 2).sum(-1)
            sums = np.concatenate([halves, halves.sum(-1, keepdims=True)], axis=-1)
            stored = (sums * -self.bias).astype("<i4") if self.bias else sums.astype("<f4").view("<i4")
        parts, rest = [], codes[..., word_order(self.per_byte)]
        for _ in range(self.digits):
            digit = ((rest + 128) & 255) - 128
            parts.append(digit.astype(np.int8).view(np.uint8))
            rest = (rest - digit) >> 8
        numbers = np.concatenate([scale.astype("<f4").view("<i4"), stored], axis=-1)
        parts.append(np.ascontiguousarray(numbers).view(np.uint8))
        return np.concatenate(parts, axis=-1).reshape(*x.shape[:-1], block_bytes(x.shape[-1], self.digits))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for form, dims in (((1, 1, 128), (3, 64)), ((2, 2, 8), (1, 32)), ((1, 4, 0), (5, 160)), ((2, 1, 0), (5, 192))):
            yield sample(cls(*form), spec(*dims), dtypes=("f32",))
        yield sample(cls(), spec("B", "S", 96), dtypes=("f32",), B=2, S=3)


@op("int8_block_matmul")
class Int8BlockMatMul(_Int8Op):
    """y = x · W for rows x as `int8_blocks` stores them for codes of this type, and the panels of GGUF blocks
    (`rlx.quant.panels`) of W[k, n]. The dot products of blocks are whole numbers, their sum is f32."""

    scheme: QuantScheme
    n: int
    digits: int = 1

    def infer(self, rows: Shape, panels: Shape) -> Shape:
        require_dtype(self, rows.dtype is DType.U8 and rows.rank > 0, "rows u8[.., digits·k + k/8]", rows)
        _require_digits(self, self.digits)
        layout, size = self.scheme.panel_format, rows.dims[-1]
        if layout is None or not has_byte_codes(layout):
            raise self.fail(f"{self.scheme} has no panels whose codes are bytes or parts of them")
        k = self.depth(rows)
        if k < 1 or self.n < 0 or block_bytes(k, self.digits) != size or k % (self.scheme.gguf_block_size or 1):
            raise self.fail(f"{rows} is not made of blocks of {self.scheme}, or n={self.n} is negative")
        wanted = Shape((-(-self.n // PANEL_ROWS), layout.panel_bytes(k)), DType.U8)
        if panels != wanted:
            raise self.fail(f"{self.n} rows of {k} elements as {self.scheme} are panels {wanted}, got {panels}")
        return Shape((*rows.dims[:-1], self.n), DType.F32)

    def depth(self, rows: Shape) -> int:
        """k, the number of codes in a row."""
        size = rows.dims[-1]
        return size * BLOCK // block_bytes(BLOCK, self.digits) if isinstance(size, int) else 0

    def eval(self, rows: Array, panels: Array) -> Array:
        layout, k = self.scheme.panel_format, rows.shape[-1] * BLOCK // block_bytes(BLOCK, self.digits)
        assert layout is not None
        records = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], k // BLOCK, block_bytes(BLOCK, self.digits))
        planes = np.ascontiguousarray(records[..., : self.digits * BLOCK]).view(np.int8)
        weights = 256.0 ** np.arange(self.digits)
        ordered = (planes.reshape(*records.shape[:-1], self.digits, BLOCK) * weights[:, None]).sum(-2)
        codes = np.empty_like(ordered)
        codes[..., word_order(layout.per_byte)] = ordered
        scales = np.ascontiguousarray(records[..., self.digits * BLOCK :][..., :4]).view("<f4").astype(np.float64)
        with np.errstate(all="ignore"):
            x = (codes * scales).reshape(*rows.shape[:-1], k)
            w = unpack_rows(layout, panels, self.n, k)
            return np.asarray(x @ w.T.astype(np.float64)).astype(np.float32)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(5)
        cases = [
            (QuantScheme.GgufQ4_1, 64, 3, 1),
            (QuantScheme.GgufQ8_0, 96, 17, 2),
            (QuantScheme.GgufQ4_0, 32, 40, 2),
            (QuantScheme.GgufIQ4NL, 64, 19, 2),
            (QuantScheme.GgufQ2K, 256, 5, 1),
        ]
        for scheme, k, n, digits in cases:
            layout = scheme.panel_format
            assert layout is not None
            size = (-(-n // PANEL_ROWS), layout.panel_bytes(k))
            # Bytes among which no half is huge or not a number, wherever one may lie.
            values = ((np.arange(size[0] * size[1]) * 37 + 11) % 256 & 0xBB).reshape(size)
            stored = spec(*size, dtype="u8", values=values)
            row = Int8Blocks(digits, layout.per_byte, byte_bias(layout)).eval(rng.standard_normal((1, k)).astype("f4"))
            rows = spec(2, block_bytes(k, digits), values=row)
            yield sample(cls(scheme, n, digits), rows, stored, dtypes=("u8",))
        many = spec("B", "S", block_bytes(k), values=row)
        yield sample(cls(scheme, n), many, stored, dtypes=("u8",), B=2, S=9)


def _require_digits(op: Op, digits: int) -> None:
    if not 1 <= digits <= MAX_DIGITS:
        raise op.fail(f"codes have 1 to {MAX_DIGITS} digits, got {digits}")


def block_bytes(k: int, digits: int = 1) -> int:
    """Bytes of a row of k activations."""
    return k // BLOCK * (digits * BLOCK + SUMS_BYTES)


def highest_code(digits: int) -> int:
    """The code of the largest activation of a block."""
    return LEVELS if digits == 1 else LEVELS * 257


def has_byte_codes(layout: PanelFormat) -> bool:
    """Whether codes can be taken four at a time out of words, as the bytes of a dot product."""
    first, *others = layout.planes
    if layout.table:
        return layout.planes == (4,) and all(value == int(value) and -128 <= value < 128 for value in layout.table)
    return first in (2, 4, 8) and all(width in (1, 2) for width in others)


def byte_bias(layout: PanelFormat, has_signs: bool = False) -> int:
    """What the bytes of a dot product are more than the values that they stand for. Where they have no sign, codes with
    one, and tables of values with one, have 128 added to them."""
    return layout.bias + (128 if not has_signs and (layout.planes == (8,) or layout.table) else 0)
