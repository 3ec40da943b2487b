"""Products of 8-bit codes, exact in whole numbers: what activations of 8 bits are multiplied with.

The compiler writes products in this form when it is asked for activations of 8 bits. A weight becomes codes with one
scale for each column, laid out in panels for dot-product instructions; blocks of GGUF files stay what they are, and
their activations may have 16 bits. The scales of rows, columns and blocks are multiplied afterwards, in floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype, require_float
from rlx.ops.define.samples import Sample, sample, spec
from rlx.quant.panels import PANEL_ROWS, PanelFormat, unpack_rows, word_order
from rlx.quant.schemes import QuantScheme

__all__ = ["Int8BlockMatMul", "Int8Blocks", "Int8Lines", "Int8MatMul", "Int8Panels"]

Array = np.ndarray[Any, np.dtype[Any]]

# How activations may be multiplied with stored weights, and how many codes of 8 bits one then is. "auto" is the fastest
# that keeps answers, which `rlx.compile.weights.integer_activations` chooses for each product.
ACTIVATIONS = {"f32": 0, "int8": 1, "int16": 2, "auto": 2}
# Codes of activations are stored as code + ZERO, without a sign, and lie between -LEVELS and LEVELS.
ZERO = 128
LEVELS = 127
# Codes of 16 bits are two digits, each of 8 bits.
MAX_DIGITS = max(ACTIVATIONS.values())
# Neighbours along K that one lane of a dot-product instruction multiplies.
WORD = 4
# Activations of a block, where weights come in blocks.
BLOCK = 32
# How many blocks share a scale, by the digits of their codes. One that is shared costs a multiplication less for every
# block of a product, and digits: of 16 bits there are enough.
SPANS = {1: 1, 2: 4}

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
        with np.errstate(all="ignore"):
            scale = np.abs(w).max(0, initial=0).astype(np.float32) / np.float32(LEVELS)
            found = w / np.where(scale > 0, scale, 1)
        # What is no number has no code; its scale makes the whole column one that is none.
        codes = np.clip(np.rint(np.nan_to_num(found, nan=0.0)), -LEVELS, LEVELS).astype(np.int8)
        return _panels(codes, self.width), scale

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, n, width in ((8, 5, 4), (64, 33, 16), (4, 1, 2), (12, 16, 16)):
            yield sample(cls(width), spec(k, n), dtypes=("f32",))


def _panels(codes: Array, width: int) -> Array:
    """Codes i8[k, n] in panels of so many columns, each behind the sums to start from."""
    k, n = codes.shape
    filled = np.zeros((k, -(-n // width) * width), np.int8)
    filled[:, :n] = codes
    start = -ZERO * filled.sum(0, dtype=np.int32)
    lines = filled.reshape(k // WORD, WORD, -1, width).transpose(2, 0, 3, 1)
    first = start.astype("<i4").view(np.int8).reshape(-1, 1, width, WORD)
    return np.ascontiguousarray(np.concatenate([first, lines], axis=1))


@op("int8_lines")
class Int8Lines(_Int8Op):
    """A matrix i8[k, n] in the panels of `int8_panels`, with its elements as codes."""

    width: int

    def infer(self, w: Shape) -> Shape:
        require_dtype(self, w.dtype is DType.I8, "a matrix i8[k, n]", w)
        return Int8Panels(self.width).infer(w.with_dtype(DType.F32))[0]

    def eval(self, w: Array) -> Array:
        return _panels(w, self.width)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, n, width in ((8, 5, 4), (64, 33, 16), (4, 1, 2), (12, 16, 16)):
            yield sample(cls(width), spec(k, n, dtype="i8"), dtypes=("i8",))


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
        for k, n, width in ((8, 5, 16), (64, 200, 64), (132, 64, 64), (4, 1, 16)):
            panels, _ = Int8Panels(width).eval(rng.standard_normal((k, n)).astype(np.float32))
            stored = spec(*panels.shape, dtype="i8", values=panels)
            codes = spec(3, k, dtype="u8", values=rng.integers(1, 256, (3, k)))
            yield sample(cls(n), codes, stored, dtypes=("u8",))
        many = spec("B", "S", k, dtype="u8", low=1, high=255)
        yield sample(cls(n), many, stored, dtypes=("u8",), B=2, S=9)


@op("int8_blocks")
class Int8Blocks(_Int8Op):
    """Rows of k floats as bytes, for products with blocks of this type: a record for every block of 32 with 32 i8 for
    each digit of the codes, the lowest digit first, then the scale as f32, and for each group that shares a step of the
    weight the sum of its codes: as f32, or times -bias as i32, where the weight's bytes are so much more than what they
    stand for. Dot products begin with that. Where codes may be multiplied in pairs there is an i32 behind these, with
    which such products begin (`PairForm`).

    x ≈ code·scale with scale = max|x|/most of a span of blocks (`SPANS`; the last one may be shorter), code =
    round(x/scale), half to even, code = low + 256·high where it has two digits, low at least -128 and below 128. Codes
    lie in the order of `word_order`: the one in which a product finds those of the weight.
    """

    scheme: QuantScheme
    digits: int = 1

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        _require_digits(self, self.digits)
        layout = _layout(self, self.scheme)
        if x.rank == 0 or not isinstance(x.dims[-1], int) or x.dims[-1] % BLOCK:
            raise self.fail(f"the last axis must be fixed and a multiple of {BLOCK}, got {x}")
        return Shape((*x.dims[:-1], block_bytes(layout, x.dims[-1], self.digits)), DType.U8)

    def eval(self, x: Array) -> Array:
        layout = _layout(self, self.scheme)
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK).astype(np.float32)
        most, count, span = highest_code(layout, self.digits), blocks.shape[-2], SPANS[self.digits]
        with np.errstate(all="ignore"):
            largest = np.abs(blocks).max(-1, keepdims=True)
            if span > 1 and count:
                largest = np.maximum.reduceat(largest, np.arange(0, count, span), axis=-2)
                largest = np.repeat(largest, span, axis=-2)[..., :count, :]
            scale = largest * np.float32(1 / most)
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
            # What is no number has no code; its scale makes the span one of which every product is none.
            found = np.nan_to_num(np.rint(blocks * inverse), nan=0.0)
            codes = np.clip(found, -most, most).astype(np.int32)[..., word_order(layout.per_byte)]
        bias, pairs = byte_bias(layout), pair_form(layout, self.digits)
        digits, rest = [], codes
        for _ in range(self.digits - 1):
            digits.append(((rest + 128) & 255) - 128)
            rest = (rest - digits[-1]) >> 8
        digits.append(rest)
        sums = codes.reshape(*codes.shape[:-1], layout.groups, layout.group).sum(-1)
        numbers = [scale.astype("<f4").view("<i4")]
        numbers.append((sums * -bias).astype("<i4") if bias else sums.astype("<f4").view("<i4"))
        if pairs is not None:
            first, second = pairs.places
            start = sums[..., 0] * -bias
            for number, digit in enumerate(digits):
                start = start - 256**number * pairs.most * digit[..., second].sum(-1)
            highest = pairs.half * digits[-1][..., first] - digits[-1][..., first] * digits[-1][..., second]
            start = start + 256 ** (self.digits - 1) * highest.sum(-1)
            numbers.append(start[..., None].astype("<i4"))
        behind = np.ascontiguousarray(np.concatenate(numbers, axis=-1)).view(np.uint8)
        parts = [*(digit.astype(np.int8).view(np.uint8) for digit in digits), behind]
        return np.concatenate(parts, axis=-1).reshape(*x.shape[:-1], block_bytes(layout, x.shape[-1], self.digits))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases = (
            (QuantScheme.GgufQ8_0, 1, (3, 64)),
            (QuantScheme.GgufQ4_0, 2, (1, 32)),
            (QuantScheme.GgufQ2K, 1, (5, 160)),
            (QuantScheme.GgufQ6K, 2, (5, 192)),
        )
        for scheme, digits, dims in cases:
            yield sample(cls(scheme, digits), spec(*dims), dtypes=("f32",))
        yield sample(cls(QuantScheme.GgufQ4_1), spec("B", "S", 96), dtypes=("f32",), B=2, S=3)


@op("int8_block_matmul")
class Int8BlockMatMul(_Int8Op):
    """y = x · W for rows x as `int8_blocks` stores them for codes of this type, and the panels of GGUF blocks
    (`rlx.quant.panels`) of W[k, n]. The dot products of blocks are whole numbers, their sum is f32."""

    scheme: QuantScheme
    n: int
    digits: int = 1

    def infer(self, rows: Shape, panels: Shape) -> Shape:
        require_dtype(self, rows.dtype is DType.U8 and rows.rank > 0, "rows of u8 as int8_blocks stores them", rows)
        _require_digits(self, self.digits)
        layout, size = _layout(self, self.scheme), rows.dims[-1]
        k = self.depth(rows)
        if k < 1 or self.n < 0 or block_bytes(layout, k, self.digits) != size or k % (self.scheme.gguf_block_size or 1):
            raise self.fail(f"{rows} is not made of blocks of {self.scheme}, or n={self.n} is negative")
        wanted = Shape((-(-self.n // PANEL_ROWS), layout.panel_bytes(k)), DType.U8)
        if panels != wanted:
            raise self.fail(f"{self.n} rows of {k} elements as {self.scheme} are panels {wanted}, got {panels}")
        return Shape((*rows.dims[:-1], self.n), DType.F32)

    def depth(self, rows: Shape) -> int:
        """k, the number of codes in a row."""
        size = rows.dims[-1]
        return (
            size // block_bytes(_layout(self, self.scheme), BLOCK, self.digits) * BLOCK if isinstance(size, int) else 0
        )

    def eval(self, rows: Array, panels: Array) -> Array:
        layout = _layout(self, self.scheme)
        record = block_bytes(layout, BLOCK, self.digits)
        k = rows.shape[-1] // record * BLOCK
        records = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], k // BLOCK, record)
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
            row = Int8Blocks(scheme, digits).eval(rng.standard_normal((1, k)).astype("f4"))
            rows = spec(2, block_bytes(layout, k, digits), values=row)
            yield sample(cls(scheme, n, digits), rows, stored, dtypes=("u8",))
        many = spec("B", "S", row.shape[-1], values=row)
        yield sample(cls(scheme, n), many, stored, dtypes=("u8",), B=2, S=9)


def _require_digits(op: Op, digits: int) -> None:
    if not 1 <= digits <= MAX_DIGITS:
        raise op.fail(f"codes have 1 to {MAX_DIGITS} digits, got {digits}")


def _layout(op: Op, scheme: QuantScheme) -> PanelFormat:
    layout = scheme.panel_format
    if layout is None or not has_byte_codes(layout):
        raise op.fail(f"{scheme} has no panels whose codes are bytes or parts of them")
    return layout


def block_bytes(layout: PanelFormat, k: int, digits: int = 1) -> int:
    """Bytes of a row of k activations."""
    numbers = 1 + layout.groups + (pair_form(layout, digits) is not None)
    return k // BLOCK * (digits * BLOCK + WORD * numbers)


def highest_code(layout: PanelFormat, digits: int) -> int:
    """The code of the largest activation of a block."""
    pairs = pair_form(layout, digits)
    highest = pairs.most if pairs else LEVELS
    return highest if digits == 1 else 256 * highest + LEVELS


class PairForm(NamedTuple):
    """How one multiplication of bytes takes the place of two, as in Winograd's inner product.

    Activations a and c meet codes w and v, which stand for w - bias and v - bias, in two of the fours of a record that
    follow each other. With the highest digits of a and c, neither larger than `most`,

        a·(w - bias) + c·(v - bias) = (a + v + most)·(c + w - half) - a·c + half·a - most·c - bias·(a + c)
                                      - (v + most)·(w - half)

    where the first factor is a byte without a sign and the second one with it. What depends on activations alone, or on
    weights alone, is added up once for many products: they begin with that.

    Lower digits are multiplied with the same bytes, v + most and w, as they are: so `half` is 0 with two digits, and
    with one is what lets it be largest.
    """

    most: int
    half: int

    @property
    def places(self) -> tuple[list[int], list[int]]:
        """Where in a record, in the order of `word_order`, the first and the second codes of pairs are."""
        first = [four * WORD + byte for four in range(0, BLOCK // WORD, 2) for byte in range(WORD)]
        return first, [place + WORD for place in first]


def pair_form(layout: PanelFormat, digits: int) -> PairForm | None:
    """The pairs of codes of a type; None where bytes have no bits to spare, or groups of 16 would begin with another
    number so often that nothing is won."""
    bits = sum(layout.planes)
    if layout.table or bits >= 8 or layout.group < BLOCK:
        return None
    if digits == 1:
        return PairForm(ZERO - 2**bits // 2, 2**bits // 2)
    return PairForm(ZERO - 2**bits, 0)


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
