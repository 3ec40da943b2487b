"""What backends may do otherwise than the definition of an op, on poisoned values only: a closed list with reasons.

An entry forgives single elements of a result, for some ops and some poisons, and only those which the poison changes
by the definition: all others must be what they are without it. `test_no_difference_is_out_of_date` fails for an entry,
or an op of one, that nothing needs. docs/semantics.md says the same to users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Vectors are unique up to their signs, or phases.
UP_TO_SIGNS = {"Eig", "Eigh", "Svd"}
# Rows in any order, up to signs: tests of factorisations look at what they are good for.
NOT_UNIQUE = {"OrthogonalRows", "Bidiagonalized", "BidiagonalRotations", "PairBidiagonal", "Tridiagonalized",
              "TridiagonalRotations"}  # fmt: skip
# Operands that must be in ascending order, by their number; poisons are put in their place.
SORTED = {"SearchSorted": (0,)}
# Made by the compiler alone, from tables in which numbers of tiles and Gaussians are kept as floats: not poisoned. What
# users give to `gaussian_splat_render` is. Steps of complex and general factorisations work on parts of numbers, one of
# which may be NaN alone, and roots lie between poles that ascend; what users give to `lu`, `qr`, `eigh`, `eig`, `schur`
# and the others is poisoned.
TRUSTING = {
    *("SplatBlend", "SplatGather", "SplatPulls", "SplatTileCounts", "SplatTileLists"),
    *("PairLu", "PairReflectors", "PairBasis", "Hessenberg", "SchurSteps", "SplitPairs", "TriangularVectors"),
    *("LuStep", "SecularRoots", "SecularWeights"),
}
# Weights in blocks stand for f32 numbers, whatever they are multiplied by.
COARSEST = {"DequantMatMul": "f32", "DequantGroupedMatMul": "f32"}

# Subnormal numbers are zeros there: XLA runs its programs in that mode of the CPU and has no switch for it.
FLUSHING = {"xla"}

OVERFLOWING = ("largest", "-largest")
INFINITE = ("inf", "-inf", "several poisons")
NOT_FINITE = ("nan", *INFINITE)


class Elements(NamedTuple):
    """One result: by the definition, on the backend, and by the definition of the values without poison."""

    wanted: np.ndarray
    got: np.ndarray
    plain: np.ndarray

    @property
    def changed(self) -> np.ndarray:
        """What the poison changes."""
        return ~((self.wanted == self.plain) | ((self.wanted != self.wanted) & (self.plain != self.plain)))


class Difference(NamedTuple):
    """Elements that may differ, for these ops and poisons."""

    reason: str
    ops: tuple[str, ...]
    # Of any operand, or "inf in operand 3" of one.
    poisons: tuple[str, ...]
    forgives: Callable[[Elements], np.ndarray]
    # Empty: all.
    backends: tuple[str, ...] = ()


def as_if_absent(found: Elements) -> np.ndarray:
    """As if the poison were not there."""
    with np.errstate(all="ignore"):
        near = np.abs(found.got - found.plain) <= 0.01 * np.maximum(np.abs(found.plain), 0.01)
    return found.changed & near


def not_a_number(found: Elements) -> np.ndarray:
    return np.isinf(found.wanted) & np.isnan(found.got)


def neither_finite(found: Elements) -> np.ndarray:
    return ~np.isfinite(found.wanted) & ~np.isfinite(found.got)


def changed(found: Elements) -> np.ndarray:
    return found.changed


def everything(found: Elements) -> np.ndarray:
    return np.ones(found.wanted.shape, bool)


def overflown(found: Elements) -> np.ndarray:
    """What the poison changes, and what has become infinite or NaN."""
    return found.changed | ~np.isfinite(found.got)


def finite_instead(found: Elements) -> np.ndarray:
    return ~np.isfinite(found.wanted) & np.isfinite(found.got)


def in_spoilt_matrix(found: Elements) -> np.ndarray:
    """All of a matrix which is not finite as a whole, neither here nor there."""
    if found.wanted.ndim < 2:
        return found.changed
    spoilt = [~np.isfinite(x).all(axis=(-2, -1), keepdims=True) for x in (found.wanted, found.got)]
    return np.broadcast_to(spoilt[0] & spoilt[1], found.wanted.shape) | found.changed


def as_far_as_plain(found: Elements) -> np.ndarray:
    """Within 64 roundings of f32 of what it is without poison."""
    largest = np.abs(found.plain[np.isfinite(found.plain)]).max(initial=1.0)
    with np.errstate(all="ignore"):
        return ~found.changed & (np.abs(found.got - found.plain) <= 64 * 2.0**-23 * largest)


UNSEEN = (
    "the definition multiplies what a row does not see by 0, which lets NaN and infinities through; kernels read no "
    "key that none of their rows sees"
)

DIFFERENCES = {
    "overflow": Difference(
        "sums and products of f32 and narrower types are f32, those of the definition f64: what passes 3.4e38 on the "
        "way is infinite, NaN where two such meet, and 0 below a fraction; of f64 it depends on the order of the sum",
        (
            *("LayerNorm", "LayerNorm2d", "LayerNormBackwardInput", "LayerNormBackwardGamma", "RmsNorm"),
            *("RmsNormBackwardInput", "RmsNormBackwardGamma", "GroupNorm", "GroupNormBackwardInput"),
            *("GroupNormBackwardGamma", "BatchNormInference", "BatchNormInferenceBackwardInput"),
            *("BatchNormInferenceBackwardGamma", "FusedResidualLN", "FusedResidualRmsNorm"),
            *("FusedMatMulBiasAct", "FusedAttentionBlock", "LoraMatMul", "DequantMatMul"),
            *(
                "DequantGroupedMatMul",
                "PanelMatMul",
                "ExpertMatMul",
                "Attention",
                "AttentionWithSinks",
                "AttentionParts",
                "AttentionWithLogs",
            ),
            *(
                "Reduce",
                "Cumulative",
                "Pool",
                "SelectiveScan",
                "LinearAttention",
                "GatedDeltaNet",
                "LogMel",
                "LogMelBackward",
            ),
            *(
                "Reflectors",
                "Qr",
                "DenseSolve",
                "Eigh",
                "Schur",
                "CsrTriangularSolve",
                "ActivationBackward",
                "FakeQuantizeBackward",
            ),
            *("Irfft", "Rfft", "GaussianSplatPrepare", "GaussianSplatRender"),
        ),
        OVERFLOWING,
        overflown,
    ),
    "scores that overflow": Difference(
        "a score below -3.4e38 is -inf in f32, as that of a key which the row does not see: if it sees no "
        "other, it is 0",
        ("Attention",),
        OVERFLOWING,
        lambda found: found.got == 0,
    ),
    "drowned singular values": Difference(
        "beside one entry of 3.4e38, or 1.8e308, the other values are less than its rounding: vectors and factors "
        "are those of a matrix that differs by as much",
        ("Eig", "PolarFactor", "Svd"),
        OVERFLOWING,
        changed,
    ),
    "scales that are infinite": Difference(
        "a scale of a column meets the sum of its products, which it makes infinite; in the definition it meets the "
        "weights, whose infinities may have both signs",
        ("DequantMatMul",),
        INFINITE,
        neither_finite,
    ),
    "scales of keys that are infinite": Difference(
        "codes of a cache meet the row first and their scale afterwards, which makes the score infinite as a whole; in "
        "the definition it makes them infinities of both signs, whose sum is NaN. A score of -inf weighs nothing",
        ("Attention",),
        ("inf in operand 3", "-inf in operand 3"),
        lambda found: np.isnan(found.wanted) & np.isfinite(found.got),
        ("wgpu", "opencl", "metal"),
    ),
    "windows beyond the picture": Difference(
        "kernels of loops add up existing products alone, the definition multiplies zeros around the picture by the "
        "weights; the compiler makes this op for tensor cores, which do so, too",
        ("ChannelWindows", "WindowGradient", "WindowMatMul"),
        NOT_FINITE,
        lambda found: finite_instead(found) | neither_finite(found),
    ),
    "overflow on the way": Difference(
        "a row or key whose score or variance overflows in f32 counts for nothing in sums over rows and later layers, "
        "also where the definition rounds to what it is without the poison; what cancels leaves a rounding of 3.4e38",
        ("AttentionBackward", "AttentionGradients", "FusedTransformerLayer", "GaussianSplatRenderBackward"),
        OVERFLOWING,
        everything,
    ),
    "a thousand squarings": Difference(
        "of the exponential of 1e308 nothing is known but that it is very large or very small: each squaring doubles "
        "the error of the one before",
        ("Expm",),
        OVERFLOWING,
        everything,
    ),
    "unseen keys": Difference(
        UNSEEN,
        ("Attention", "AttentionWithSinks", "AttentionBackward", "AttentionWithLogs", "AttentionGradients"),
        ("nan", "inf", "-inf"),
        as_if_absent,
    ),
    "several unseen keys": Difference(
        UNSEEN,
        ("Attention", "AttentionWithSinks", "AttentionBackward", "AttentionWithLogs", "AttentionGradients"),
        ("several poisons",),
        finite_instead,
    ),
    "keys of weight 0": Difference(
        "a key whose weight is 0 adds nothing to gradients; in the definition it adds 0 times what may be infinite",
        ("AttentionGradients",),
        INFINITE,
        lambda found: ~np.isfinite(found.wanted),
    ),
    "later tokens of a piece": Difference(
        "where there is no kernel for the steps, tokens are computed in pieces by products, in which those that one "
        "does not see are multiplied by 0: that lets NaN and infinities through",
        ("LinearAttention",),
        (*NOT_FINITE, *OVERFLOWING),
        lambda found: ~np.isfinite(found.got),
        ("mlx", "xla"),
    ),
    "sums of decays": Difference(
        "there the decay from one token to another is a difference of running sums, in which 3.4e38 swallows all "
        "others",
        ("LinearAttention",),
        ("-largest in operand 3",),
        everything,
        ("mlx", "xla"),
    ),
    "slopes of softcaps": Difference(
        "far out the slope 1 - tanh² of a softcap is 0 but for a rounding: times infinity it is NaN or infinite",
        ("AttentionBackward",),
        INFINITE,
        neither_finite,
    ),
    "statistics of parts": Difference(
        "the highest score of a part of the keys is found by a comparison, which NaN loses; the sum of powers beside "
        "it has the NaN, and so has the result that is joined from both",
        ("AttentionParts",),
        NOT_FINITE,
        changed,
    ),
    "offsets of blocks": Difference(
        "weights of blocks are scale·code - offset: kernels sum up x·code and x alone, so that an infinite x gives the "
        "difference of two infinities",
        ("DequantMatMul", "DequantGroupedMatMul", "PanelMatMul", "ExpertMatMul"),
        INFINITE,
        not_a_number,
    ),
    "factorisations": Difference(
        "where a matrix that is not finite spoils its factors first depends on the order of the steps, which LAPACK, "
        "behind the definition, chooses otherwise",
        ("Qr", "Reflectors"),
        NOT_FINITE,
        in_spoilt_matrix,
    ),
    "inserted zeros": Difference(
        "kernels put zeros between and around the elements and multiply all of them by the weights, the definition "
        "adds up existing products alone: a weight that is not finite also spoils what it does not reach",
        ("ConvTranspose2d", "Conv2dBackwardInput"),
        NOT_FINITE,
        lambda found: ~np.isfinite(found.got),
    ),
    "subnormal pivots": Difference(
        "a quotient by 1e-45 is infinite in f32 and 7e44 in f64: its difference with another infinity is NaN, where "
        "the definition rounds to an infinity at the end",
        ("CsrIncompleteLu",),
        ("several poisons",),
        not_a_number,
    ),
    "squares beside subnormal pivots": Difference(
        "the square of a quotient by the root of 1e-45 is infinite in f32 and 3e45 in f64: taken from an infinity on "
        "the diagonal it leaves NaN, which the elements below it are divided by",
        ("PanelCholesky",),
        ("several poisons",),
        lambda found: found.changed & np.isnan(found.got),
    ),
    "values drowned in spectra": Difference(
        "values that are summed up with one of 1.8e308 are less than its rounding: where it cancels they are missing",
        ("Irfft",),
        OVERFLOWING,
        lambda found: np.abs(found.got) <= 8 * np.abs(found.plain).max(),
    ),
    "slopes of subnormal numbers": Difference(
        "1 / x overflows in f32 before it is multiplied by a gradient that is as small as x",
        ("ActivationBackward",),
        ("several poisons",),
        lambda found: np.isinf(found.got) & found.changed,
    ),
    "overflow in engines": Difference(
        "as for others, in ops that they take apart or join otherwise: a sum of equal numbers is a product, and layers "
        "of blocks are not fused",
        (
            *(
                "AllReduce",
                "BatchedDenseSolve",
                "GaussianSplatRender",
                "HirAttention",
                "HirRmsNorm",
                "LlamaDecoderBlock",
                "Pinv",
            ),
            *("HirGatedDeltaNet", "Qwen35MtpHead", "ResidualRmsNorm"),
        ),
        OVERFLOWING,
        everything,
        ("xla", "mlx"),
    ),
    "quotients in XLA": Difference(
        "a finite complex number by an infinite one is 0 there, NaN where the definition divides part by part",
        ("ActivationBackward",),
        INFINITE,
        lambda found: finite_instead(found) & np.iscomplexobj(found.wanted),
        ("xla",),
    ),
    "roots of subnormal numbers in XLA": Difference(
        "cube roots see the number that other ops take for 0, to fewer digits: the slope is huge there, not infinite",
        ("ActivationBackward",),
        ("subnormal", "several poisons"),
        changed,
        ("xla",),
    ),
    "sums that cancel in XLA": Difference(
        "elements that the poison does not reach may be off by what is allowed without it, when larger ones stand "
        "beside them",
        ("DequantMatMul",),
        NOT_FINITE,
        as_far_as_plain,
        ("xla",),
    ),
    "rows near 0 in engines": Difference(
        "a norm divides a row that is almost 0 by its size, and what f32 has rounded off before grows with it; the "
        "same values in f64 are right",
        ("LlamaDecoderBlock",),
        ("subnormal",),
        lambda found: np.abs(found.got - found.wanted) <= 1e-4 * np.abs(found.wanted).max(),
        ("xla", "mlx"),
    ),
    "padding in engines": Difference(
        "their convolutions add up existing products alone, the definition multiplies zeros around the image by the "
        "weights, which lets NaN and infinities of these through",
        ("Conv",),
        NOT_FINITE,
        lambda found: finite_instead(found) | neither_finite(found),
        ("xla", "mlx"),
    ),
    "parts of transforms": Difference(
        "real and imaginary parts that do not meet are summed apart; in the definition a complex scale multiplies them "
        "together, so that one part that is not finite spoils the other. Factors are 0 there or left out, and 0 times "
        "infinity is NaN",
        ("Fft",),
        NOT_FINITE,
        lambda found: finite_instead(found) | neither_finite(found),
    ),
    "scores that are infinite in MLX": Difference(
        "its attention has a large number in place of -inf for keys that a row does not see: where a row sees scores "
        "of -inf alone, which is 0 by the definition, it is NaN, or the keys that are not seen weigh the same",
        ("Attention", "LlamaDecoderBlock", "Qwen35MtpHead"),
        INFINITE,
        changed,
        ("mlx",),
    ),
    "spectra that are completed": Difference(
        "half a spectrum is completed, or folded, and transformed as complex numbers, whose products mix their parts: "
        "one that is not finite spoils the other; the definition adds up real numbers",
        ("Irfft",),
        NOT_FINITE,
        lambda found: ~np.isfinite(found.got),
    ),
    "Gaussians that are not finite": Difference(
        "whether a Gaussian covers a pixel is a comparison of numbers that are NaN or overflow in f32 and not in f64; "
        "those of others at the same pixel follow",
        ("GaussianSplatRender", "GaussianSplatRenderBackward"),
        NOT_FINITE,
        everything,
    ),
}


def forgiven(name: str, values: str, found: Elements, backend: str = "") -> np.ndarray:
    """Which elements of a result of an op may differ, on values that are named so."""
    mask = np.zeros(found.wanted.shape, bool)
    for difference in DIFFERENCES.values():
        if difference.backends and backend not in difference.backends:
            continue
        if name in difference.ops and {values, values.split(" in operand")[0]} & {*difference.poisons}:
            mask |= difference.forgives(found)
    return mask
