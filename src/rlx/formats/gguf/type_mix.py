"""Which type each tensor of a file gets: one type for all matrices, or a mix that spends more bits where they matter.

`Q4_K_M` and `Q5_K_M` are llama.cpp's mixes: the head, and in some layers the values and the down projection, get Q6_K.
Vectors, norms, biases and routers are never quantised.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rlx.formats.gguf.tensor_types import TYPES, TensorType

# Weights that decide much and weigh little stay as they are.
_KEPT = (
    *(".bias", "_norm", "ffn_gate_inp", "position_embd", "token_types", "rope_freqs", "rope_factors"),
    *("ssm_conv1d", "shortconv.conv"),
)
# What rows get that are no whole number of 256-element blocks: blocks of 32 with at least as many bits.
_NEAREST = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}


class TypeMix(NamedTuple):
    """The type of most matrices, whether some get more bits, and the number that `general.file_type` has for it."""

    base: str
    is_mixed: bool
    file_type: int | None


MIXES = {"Q4_K_M": TypeMix("Q4_K", True, 15), "Q5_K_M": TypeMix("Q5_K", True, 17)}


def is_kept(name: str) -> bool:
    """Whether a tensor stays in floats, whatever its shape: biases of experts and decays of states are matrices."""
    return name.endswith((".ssm_a", ".ssm_d")) or any(part in name for part in _KEPT)


def wanted_type(mix: TypeMix, name: str, layers: int, is_tied: bool) -> TensorType:
    """The type that a matrix should have, if its rows are whole blocks of it."""
    if mix.is_mixed:
        if name == "output.weight" or (is_tied and name == "token_embd.weight"):
            return TYPES["Q6_K"]
        layer = re.match(r"blk\.(\d+)\.(attn_v|ffn_down|ffn_down_exps)\.weight$", name)
        if layer is not None and _matters_more(int(layer[1]), layers):
            return TYPES["Q6_K"]
        if re.match(r"blk\.\d+\.attn_qkv\.weight$", name):
            return TYPES["Q5_K" if mix.base == "Q4_K" else "Q6_K"]
    return TYPES[mix.base]


def _matters_more(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def fitting_type(kind: TensorType, row: int) -> TensorType | None:
    """`kind` if rows of this length are whole blocks of it, else one with smaller blocks and at least as many bits."""
    choices = (kind, TYPES[_NEAREST.get(kind.name, "Q8_0")], TYPES["F16"])
    return next((choice for choice in choices if row % choice.elements == 0), None)
