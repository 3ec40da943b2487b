"""Directories that divide their weights otherwise than most: given as what other families have.

In gpt-oss a layer of experts has gates and ups in turn, as floats `gate_up_proj` [E, in, 2·out] or as MXFP4,
`gate_up_proj_blocks` u8[E, 2·out, in/32, 16] with `gate_up_proj_scales` u8[E, 2·out, in/32]; and `gate_up_proj_bias`
[E, 2·out]. `down_proj` is likewise. A block of 16 bytes holds 32 codes, two neighbours in each byte; GGUF files have
the first 16 in the low halves of bytes and the others in the high ones, behind their scale, and so are they given
here: no number changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from rlx.errors import FormatError
from rlx.ir.dtype import DType
from rlx.models.weights import Array, Rearrange, Weight
from rlx.quant.schemes import QuantScheme

# Codes in a block, and bytes that hold them.
_CODES, _BYTES = 32, 16


def experts_apart(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """The weights with `experts.gate`, `.up`, `.down` and their biases in the place of what the file has, and sinks
    under a name with a suffix."""
    result = dict(found)
    for layer in range(layers):
        experts = f"model.layers.{layer}.mlp.experts."
        for stored, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            whole = _matrices(result, experts + stored)
            bias = result.pop(f"{experts}{stored}_bias", None)
            for turn, part in enumerate(parts):
                if whole is not None:
                    result[f"{experts}{part}.weight"] = _every(whole, turn, len(parts))
                if bias is not None:
                    result[f"{experts}{part}.bias"] = _every(bias, turn, len(parts))
        sinks = f"model.layers.{layer}.self_attn.sinks"
        if sinks in result:
            result[f"{sinks}.weight"] = result.pop(sinks)
    return result


def halves_apart(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """Granite: `input_linear` [.., gates then ups, in] as its two halves."""
    result = dict(found)
    for name in [name for name in found if name.endswith(".input_linear.weight")]:
        whole, base = result.pop(name), name.removesuffix(".weight")
        for half, part in enumerate(("gate", "up")):
            result[f"{base}.{part}.weight"] = _half(name, whole, half)
    return result


def state_spaces_usual(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """Layers with states: A itself in the place of a logarithm of -A, convolutions [features, taps], and a suffix for
    what has none."""
    result = {}
    for name, weight in found.items():
        base, _, part = name.rpartition(".")
        if part == "A_log":
            result[f"{base}.A.weight"] = _decays(weight)
        elif part == "D":
            result[f"{base}.D.weight"] = weight
        elif part == "dt_bias":
            result[f"{base}.dt.bias"] = weight
        elif len(weight.dims) == 3 and weight.dims[1] == 1:
            result[name] = _without_axis(weight)
        else:
            result[name.replace("backbone.embedding.", "backbone.embeddings.")] = weight
    return result


def _decays(weight: Weight) -> Weight:
    return Weight(weight.dims, DType.F32, None, lambda: -np.exp(np.asarray(weight.read(), np.float32)))


def _without_axis(weight: Weight) -> Weight:
    return weight._replace(dims=(weight.dims[0], weight.dims[2]), read=lambda: weight.read()[:, 0])


def _half(name: str, weight: Weight, half: int) -> Weight:
    *before, rows, inputs = weight.dims if len(weight.dims) > 1 else (1, *weight.dims)
    if rows % 2:
        raise FormatError(f"{name}: gates and ups cannot be {rows} rows")
    first, count = half * (rows // 2), rows // 2
    return weight._replace(
        dims=(*before, count, inputs),
        read=lambda: np.ascontiguousarray(weight.read()[..., first : first + count, :]),
    )


def norms_joined(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """StableLM: norms of heads, each a tensor with a number, as one tensor [heads, features]."""
    result = dict(found)
    for layer, role in itertools.product(range(layers), ("q_layernorm", "k_layernorm")):
        base = f"model.layers.{layer}.self_attn.{role}.norms"
        parts: list[Weight] = []
        while (name := f"{base}.{len(parts)}.weight") in result:
            parts.append(result.pop(name))
        if parts:
            if len({(part.dims, part.dtype) for part in parts}) != 1:
                raise FormatError(f"{base}.0.weight and its like must be vectors of one length and type")
            result[f"{base}.weight"] = _stacked(parts)
    return result


def sides_apart(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """Models with an encoder and a decoder: names without what both share, and embeddings for each side. A bias of the
    words that are written is one row; what is computed of places is left out."""
    result = {name.removeprefix("model."): weight for name, weight in found.items()}
    result = {name: weight for name, weight in result.items() if not name.endswith(".embed_positions.weights")}
    shared, bias = result.pop("shared.weight", None), result.pop("final_logits_bias", None)
    if bias is not None:
        result["lm_head.bias"] = bias._replace(dims=bias.dims[-1:], read=lambda: bias.read().reshape(-1))
    for side in ("encoder", "decoder"):
        if shared is not None:
            result.setdefault(f"{side}.embed_tokens.weight", shared)
    return {name.replace(".DenseReluDense.wi.", ".DenseReluDense.wi_1."): weight for name, weight in result.items()}


def _stacked(parts: list[Weight]) -> Weight:
    return parts[0]._replace(dims=(len(parts), *parts[0].dims), read=lambda: np.stack([part.read() for part in parts]))


def _matrices(found: dict[str, Weight], name: str) -> Weight | None:
    """The stack [E, out, in] that is stored as floats or blocks; it is taken away from what was found."""
    floats = found.pop(name, None)
    blocks, scales = (found.pop(f"{name}_{part}", None) for part in ("blocks", "scales"))
    if floats is not None:
        experts, inputs, outputs = _dims(name, floats, 3)
        return floats._replace(dims=(experts, outputs, inputs), read=lambda: floats.read().swapaxes(1, 2))
    if blocks is None or scales is None:
        return None
    experts, outputs, count, size = _dims(f"{name}_blocks", blocks, 4)
    if size != _BYTES or scales.dims != blocks.dims[:3]:
        raise FormatError(
            f"{name}: MXFP4 needs blocks of {_BYTES} bytes and a scale for each, got blocks {list(blocks.dims)} and "
            f"scales {list(scales.dims)}"
        )

    def read() -> Array:
        return _as_gguf(blocks.read(), scales.read())

    return Weight((experts, outputs, count * _CODES), DType.U8, QuantScheme.GgufMXFP4, read)


def _dims(name: str, weight: Weight, rank: int) -> tuple[int, ...]:
    if len(weight.dims) != rank:
        raise FormatError(f"{name}: a tensor of rank {rank} is needed, got {list(weight.dims)}")
    return weight.dims


def _as_gguf(blocks: Array, scales: Array) -> Array:
    """u8[E, out, in/32·17]: of each block the scale, then codes 0 and 16, 1 and 17, .."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:3], 2, _BYTES)
    packed = codes[..., 0, :] | (codes[..., 1, :] << 4)
    return np.concatenate([scales[..., None], packed], -1).reshape(*blocks.shape[:2], -1)


def _every(weight: Weight, first: int, step: int) -> Weight:
    """Rows first, first + step, .. of each expert."""
    if step == 1:
        return weight
    experts, rows, *rest = weight.dims
    if rows % step:
        raise FormatError(f"gates and ups of experts in turn cannot be {rows} rows")
    return weight._replace(
        dims=(experts, rows // step, *rest), read=lambda: np.ascontiguousarray(weight.read()[:, first::step])
    )


# What the files of a family are read with.
REARRANGED: dict[str, Rearrange] = {
    "gpt_oss": experts_apart,
    "granitemoe": halves_apart,
    "granitemoeshared": halves_apart,
    "granitemoehybrid": lambda found, layers: state_spaces_usual(halves_apart(found, layers), layers),
    "stablelm": norms_joined,
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2", "bamba", "lfm2"), state_spaces_usual),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus", "m2m_100"), sides_apart),
}
