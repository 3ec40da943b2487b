"""Element-wise regions as device metadata: 150 words that a generic kernel interprets.

    16 input offsets (in f32 elements) | 32 steps x 4 words (kind, sub, a, b) | prologue tag, n, c, h, w, prologue input

A region is a chain of steps, each reading region inputs and earlier steps:

    operand = ("input", i) | ("step", i)
    step    = ("activation", kind, a) | ("cast", dtype, a) | ("binary", kind, a, b) | ("compare", kind, a, b)
            | ("where", condition, if_true, if_false)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError, ShapeError
from rlx.ir.shape import Shape
from rlx.knobs import knobs

U32 = npt.NDArray[np.uint32]
ChainOperand = tuple[str, int]
ChainStep = tuple[object, ...]

REGION_MAX_INPUTS = 16
REGION_MAX_STEPS = 32
WORDS_PER_STEP = 4
REGION_CHAIN_WORDS = REGION_MAX_STEPS * WORDS_PER_STEP
REGION_TAIL_WORDS = 6
REGION_META_WORDS = REGION_MAX_INPUTS + REGION_CHAIN_WORDS + REGION_TAIL_WORDS

REGION_PROLOGUE_NONE = 0
REGION_PROLOGUE_RESIZE_NEAREST_2X_NCHW = 1

# Most slices of a batched region that one launch handles.
FK_BATCH_SINGLE_KERNEL_MAX = 64

_STEP_BIT = 1 << 31
_PROLOGUES = {"none": REGION_PROLOGUE_NONE, "resize_nearest_2x": REGION_PROLOGUE_RESIZE_NEAREST_2X_NCHW}
_STEP_KINDS = ("activation", "cast", "binary", "compare", "where")
# The position of a name is its code.
ACTIVATIONS = (
    *("gelu", "gelu_approx", "silu", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs"),
    *("round", "sin", "cos", "tan", "atan", "recip"),
)
BINARIES = ("add", "sub", "mul", "div", "max", "min", "pow")
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")


def encode_chain_operand(operand: ChainOperand) -> int:
    """Inputs are their index, steps their index with bit 31 set.

    >>> encode_chain_operand(("input", 3)), hex(encode_chain_operand(("step", 2)))
    (3, '0x80000002')
    """
    source, index = operand
    limits = {"input": REGION_MAX_INPUTS, "step": REGION_MAX_STEPS}
    if source not in limits or not 0 <= index < limits[source]:
        raise OpError(f"region: an operand is ('input', 0..15) or ('step', 0..31), got {operand!r}")
    return index if source == "input" else _STEP_BIT | index


def encode_chain_steps(chain: Sequence[ChainStep]) -> U32:
    """The steps as 128 words; unused words are 0."""
    if len(chain) > REGION_MAX_STEPS:
        raise OpError(f"region: at most {REGION_MAX_STEPS} steps fit, got {len(chain)}; split the region")
    words = np.zeros((REGION_MAX_STEPS, WORDS_PER_STEP), np.uint32)
    for i, step in enumerate(chain):
        words[i] = _encode_step(step)
    return words.reshape(-1)


def _encode_step(step: ChainStep) -> tuple[int, int, int, int]:
    match step:
        case ("activation", str(kind), tuple(a)):
            return 0, _code("activation", ACTIVATIONS, kind), encode_chain_operand(a), 0
        case ("cast", _, tuple(a)):
            return 1, 0, encode_chain_operand(a), 0
        case ("binary", str(kind), tuple(a), tuple(b)):
            return 2, _code("binary op", BINARIES, kind), encode_chain_operand(a), encode_chain_operand(b)
        case ("compare", str(kind), tuple(a), tuple(b)):
            return 3, _code("comparison", COMPARES, kind), encode_chain_operand(a), encode_chain_operand(b)
        case ("where", tuple(condition), tuple(a), tuple(b)):
            return 4, encode_chain_operand(condition), encode_chain_operand(a), encode_chain_operand(b)
    raise OpError(f"region: {step!r} is not a step; the kinds are {', '.join(_STEP_KINDS)}")


def _code(what: str, names: tuple[str, ...], name: str) -> int:
    if name not in names:
        raise OpError(f"region: the {what} {name!r} has no device code; known: {', '.join(names)}")
    return names.index(name)


class RegionNchwDims(NamedTuple):
    """Sizes of a region's rank-4 output."""

    n: int
    c: int
    h: int
    w: int

    @staticmethod
    def of(shape: Shape) -> RegionNchwDims:
        if shape.rank != 4:
            raise ShapeError(f"region prologue: the output must be [N, C, H, W], got {shape}")
        return RegionNchwDims(*shape.static_dims)


class PrologueLaunchGrid(NamedTuple):
    """Threads of a region with a prologue: one per output pixel and plane."""

    width: int
    height: int
    depth: int

    @staticmethod
    def of(dims: RegionNchwDims) -> PrologueLaunchGrid:
        return PrologueLaunchGrid(dims.w, dims.h, dims.n * dims.c)


def encode_prologue_tail(prologue: str, out_shape: Shape, prologue_input: int = 0) -> U32:
    """Tag, output sizes and which input the prologue reads; all 0 without a prologue."""
    if prologue not in _PROLOGUES:
        raise OpError(f"region: the prologue must be one of {', '.join(_PROLOGUES)}, got {prologue!r}")
    if prologue == "none":
        return np.zeros(REGION_TAIL_WORDS, np.uint32)
    dims = RegionNchwDims.of(out_shape)
    return np.array([_PROLOGUES[prologue], *dims, min(prologue_input, REGION_MAX_INPUTS - 1)], np.uint32)


def encode_elementwise_region_meta(
    input_offs: Sequence[int],
    chain: Sequence[ChainStep],
    prologue: str,
    out_shape: Shape,
    prologue_input: int = 0,
) -> U32:
    """The whole metadata buffer of a region."""
    if len(input_offs) > REGION_MAX_INPUTS:
        raise OpError(f"region: at most {REGION_MAX_INPUTS} inputs fit, got {len(input_offs)}; split the region")
    offsets = np.zeros(REGION_MAX_INPUTS, np.uint32)
    offsets[: len(input_offs)] = input_offs
    tail = encode_prologue_tail(prologue, out_shape, prologue_input)
    return np.concatenate([offsets, encode_chain_steps(chain), tail])


def batch_region_slice_shape(shape: Shape) -> Shape:
    """One slice of a batched region: axis 0 becomes 1."""
    return shape.with_dim(0, 1)


def batch_region_slice_elems(shape: Shape, slices: int) -> int:
    """Elements per slice."""
    total = prod(shape.static_dims)
    if slices < 1 or total % slices:
        raise ShapeError(f"batch region: {shape} cannot be cut into {slices} equal slices")
    return total // slices


def batch_region_slice_dst_off_f32(base: int, slice_elems: int, index: int) -> int:
    """Where slice `index` begins, in elements, when slice 0 begins at `base`."""
    return base + index * slice_elems


def fk_batch_single_kernel_enabled() -> bool:
    return knobs.fk_batch_single_kernel


def fk_batch_use_single_launch(slices: int, prologue: str = "none") -> bool:
    """Whether all slices of a batched region go into one launch."""
    return fk_batch_single_kernel_enabled() and prologue == "none" and slices <= FK_BATCH_SINGLE_KERNEL_MAX
