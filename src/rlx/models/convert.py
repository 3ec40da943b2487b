"""Hugging Face directories as GGUF files: config, weights, tokenizer and chat template in one file.

convert("path/to/hf_dir", "model.gguf", "Q4_K_M")

The keys and names are those that llama.cpp reads. Whatever is written is read back as a config and compared with that
of the directory, so that a model which the format cannot describe is refused and not changed.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.gguf import PackedTensor, TensorType, quantize, tensor_type, write_gguf
from rlx.formats.gguf.quantizer import type_mix, with_progress
from rlx.formats.gguf.type_mix import TypeMix, fitting_type, is_kept, wanted_type
from rlx.formats.mapped_file import U8
from rlx.models import weight_names
from rlx.models.config import DecoderConfig, RopeConfig, SsmConfig
from rlx.models.config_gguf import decoder_config_from_gguf
from rlx.models.decoder import build_decoder
from rlx.models.model_files import DecoderFiles, open_decoder
from rlx.models.rope_tables import attention_gain, frequencies, yarn_gain
from rlx.models.weights import Array, Weight, plain_weight
from rlx.ops.nn.rotary import RopeStyle

# model_type of a directory -> architecture of a file.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "olmo2": "olmo2",
    "gpt_neox": "gptneox",
    "smollm3": "smollm3",
    "granite": "granite",
    "gemma": "gemma",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "olmo": "olmo",
    "phi": "phi2",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "glm": "chatglm",
    "glm4": "glm4",
    "falcon": "falcon",
    "exaone4": "exaone4",
    "ernie4_5": "ernie4_5",
    "seed_oss": "seed_oss",
    "hunyuan_v1_dense": "hunyuan-dense",
    "gpt_oss": "gpt-oss",
    "arcee": "arcee",
    "nemotron": "nemotron",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "gpt_bigcode": "starcoder",
    "bloom": "bloom",
    "mpt": "mpt",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba2",
    "granitemoehybrid": "granitehybrid",
    "lfm2": "lfm2",
}
# Architectures whose files say which layers see a window.
_WITH_WINDOWS = ("gemma2", "gemma3", "phi3", "cohere2", "exaone4", "gpt-oss")
# Every so many layers one sees all keys, where a file does not say it.
_USUAL_PATTERN = 6
Progress = Callable[[str, int, int], None]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str = "F16",
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the model of a directory as a GGUF file, and say how many tensors got which type.

    `type` is that of the matrices, such as F16 or Q8_0, or a mix such as Q4_K_M; vectors stay f32.
    """
    folder = Path(source)
    if not (folder / "config.json").is_file():
        raise FormatError(f"{folder}: a Hugging Face directory with a config.json is needed")
    return convert_files(open_decoder(folder), target, type, progress)


def convert_files(
    files: DecoderFiles, target: str | os.PathLike[str], type: str = "F16", progress: Progress | None = None
) -> dict[str, int]:
    """The same for a directory that is open already, whose weights may have been changed since."""
    from rlx.models.convert_tokenizer import tokenizer_metadata

    mix, folder = type_mix(type), files.path
    architecture = ARCHITECTURES.get(files.config.family)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise FormatError(f"convert: {files.config.family} models cannot be written as GGUF here; known: {known}")
    # Building the program checks that all weights are there, and no others.
    build_decoder(files.config, files.weights)
    config = _as_stored(files.config, architecture)
    tables = _tables(config)
    weights = {**dict(_weights(files, architecture)), **{name: _table(values) for name, values in tables.items()}}
    tensors = [_tensor(name, weight, mix, config) for name, weight in weights.items()]
    metadata = {**_metadata(folder, config, mix), **tokenizer_metadata(folder, config.vocab)}
    _require_same(config, metadata, {t.name: t.shape for t in tensors}, tables)
    write_gguf(target, metadata, with_progress(tensors, progress) if progress else tensors)
    return dict(Counter(tensor.type.name for tensor in tensors))


def _as_stored(config: DecoderConfig, architecture: str) -> DecoderConfig:
    """The config that a file can have: what the format leaves out must make no difference."""
    changes: dict[str, Any] = {"family": architecture}
    if config.windows and architecture not in _WITH_WINDOWS:
        # Within one window a model that has windows is a model without.
        smallest = min(w for w in config.windows if w is not None)
        changes |= {"windows": (), "context": min(config.context, smallest)}
    if architecture in weight_names.GGUF_PAIRS_TOGETHER and config.rope is not None:
        changes["rope"] = dataclasses.replace(config.rope, style=RopeStyle.GptJ)
    return dataclasses.replace(config, **changes)


def _weights(files: DecoderFiles, architecture: str) -> Iterator[tuple[str, Weight]]:
    """The weights under the names of the format."""
    config = files.config
    names = weight_names.gguf_names(dataclasses.replace(config, family=architecture))
    is_paired = architecture in weight_names.GGUF_PAIRS_TOGETHER
    heads = {"q": config.heads, "k": config.kv_heads} if is_paired else {}
    for role, layer, part, weight in files.weights.by_role(config.layers):
        if role == "head" and config.tied:
            continue
        name = f"{names[role].replace('{i}', str(layer))}.{part}"
        if config.ssm is not None and role in ("ssm_a", "ssm_d", "ssm_norm"):
            name, weight = _of_state_space(name, weight, role, config.ssm)
        yield name, _paired(weight, heads[role]) if role in heads else weight


def _of_state_space(name: str, weight: Weight, role: str, ssm: SsmConfig) -> tuple[str, Weight]:
    """Decays and skips have no suffix in the format; those of heads, and the norm of groups, are matrices there."""
    dims = weight.dims
    if ssm.heads:
        dims = (ssm.groups, ssm.inner // ssm.groups) if role == "ssm_norm" else (ssm.heads, 1)
    shaped = weight._replace(dims=dims, read=lambda: weight.read().reshape(dims))
    return name if role == "ssm_norm" else name.removesuffix(".weight"), shaped


def _paired(weight: Weight, heads: int) -> Weight:
    """Rows of q or k so that the two features of a rotary pair, half a head apart, become neighbours."""

    def read() -> Array:
        rows = weight.read()
        split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)

    return weight._replace(read=read)


def _table(values: tuple[float, ...]) -> Weight:
    return plain_weight(np.array(values, np.float32))


def _tables(config: DecoderConfig) -> dict[str, tuple[float, ...]]:
    """Factors of rotary frequencies that files have as tensors."""
    rope = config.rope
    if rope is None or rope.scaling not in ("llama3", "longrope"):
        return {}
    if rope.scaling == "longrope":
        return {"rope_factors_long.weight": rope.long_factors, "rope_factors_short.weight": rope.factors}
    plain = frequencies(RopeConfig(base=rope.base, dims=rope.dims), 1)
    return {"rope_freqs.weight": tuple((plain / frequencies(rope, 1)).tolist())}


class _Converted:
    """A tensor that is read and packed when its turn to be written has come."""

    def __init__(self, name: str, weight: Weight, kind: TensorType) -> None:
        self.name, self.shape, self.type = name, weight.dims, kind
        self._weight = weight

    def data(self) -> U8:
        if self._weight.scheme is not None:
            return self._weight.read().reshape(-1)
        return quantize(np.asarray(self._weight.read(), np.float32), self.type)


def _tensor(name: str, weight: Weight, mix: TypeMix, config: DecoderConfig) -> PackedTensor:
    shape = weight.dims
    if len(shape) == 2 and shape[0] == 1 and name.endswith("ffn_gate_inp_shexp.weight"):
        # A router with one output, whose axis of size 1 the format drops.
        shape, row = shape[1:], weight.read
        weight = weight._replace(dims=shape, read=lambda: row()[0])
    if weight.scheme is not None:
        # Packed already: codes stay what they are.
        return _Converted(name, weight, tensor_type(weight.scheme.ggml_name))
    wanted = (
        tensor_type("F32") if len(shape) < 2 or is_kept(name) else wanted_type(mix, name, config.layers, config.tied)
    )
    return _Converted(name, weight, fitting_type(wanted, shape[-1]) or tensor_type("F32"))


def _metadata(folder: Path, config: DecoderConfig, mix: TypeMix) -> dict[str, Any]:
    a, c = config.family, config
    is_rms = c.norm == "rms"
    keys: dict[str, Any] = {
        "block_count": np.uint32(c.layers),
        "context_length": np.uint32(c.context),
        "embedding_length": np.uint32(c.hidden),
        "feed_forward_length": np.uint32(c.ffn),
        f"attention.layer_norm_{'rms_' if is_rms else ''}epsilon": np.float32(c.norm_eps),
        "vocab_size": np.uint32(c.vocab),
        **_head_keys(c),
        **_state_keys(c),
        **_rope_keys(c.rope),
    }
    keys |= {key: np.float32(value) for key, value in _multipliers(c).items()}
    if a in ("gptneox", "stablelm"):
        keys["use_parallel_residual"] = c.parallel_residual
    if a == "mpt":
        keys["attention.max_alibi_bias"] = np.float32(-math.log2(min(c.alibi_slopes)))
    if c.qkv_limit is not None:
        keys["attention.clamp_kqv"] = np.float32(c.qkv_limit)
    window = next((w for w in c.windows if w is not None), None)
    if window is not None:
        keys["attention.sliding_window"] = np.uint32(window)
    if a == "exaone4" and window is not None:
        keys["attention.sliding_window_pattern"] = [w is not None for w in c.windows]
    if c.local_rope is not None:
        keys["rope.freq_base_swa"] = np.float32(c.local_rope.base)
        every = next((i for i, w in enumerate(c.windows) if w is None), c.layers) + 1
        if every <= c.layers and every != _USUAL_PATTERN:
            keys["attention.sliding_window_pattern"] = np.uint32(every)
    if c.attention_softcap is not None:
        keys["attn_logit_softcapping"] = np.float32(c.attention_softcap)
    if c.final_softcap is not None:
        keys["final_logit_softcapping"] = np.float32(c.final_softcap)
    if c.moe is not None:
        keys["expert_count"], keys["expert_used_count"] = np.uint32(c.moe.experts), np.uint32(c.moe.top_k)
        keys["expert_feed_forward_length"] = np.uint32(c.moe.ffn)
        if c.moe.shared_ffn:
            keys["expert_shared_feed_forward_length"] = np.uint32(c.moe.shared_ffn)
    general: dict[str, Any] = {
        "general.architecture": a,
        "general.type": "model",
        "general.name": folder.resolve().name,
        "general.quantization_version": np.uint32(2),
    }
    if mix.file_type is not None:
        general["general.file_type"] = np.uint32(mix.file_type)
    return general | {f"{a}.{key}": value for key, value in keys.items()}


def _head_keys(c: DecoderConfig) -> dict[str, Any]:
    """Layers without attention have no heads of keys."""
    if len(c.recurrent_layers) == c.layers and not c.ffn:
        return {"attention.head_count": np.uint32(0)}
    kv_heads: Any = np.uint32(c.kv_heads)
    if c.recurrent_layers:
        kv_heads = np.array([0 if i in c.recurrent_layers else c.kv_heads for i in range(c.layers)], np.int32)
    return {
        "attention.head_count": np.uint32(c.heads),
        "attention.head_count_kv": kv_heads,
        "attention.key_length": np.uint32(c.head_dim),
        "attention.value_length": np.uint32(c.head_dim),
    }


def _state_keys(c: DecoderConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {"shortconv.l_cache": np.uint32(c.short_conv)} if c.short_conv else {}
    if c.family == "granitehybrid":
        # What the format calls positions that were trained stands for positions at all.
        keys["rope.scaling.finetuned"] = c.rope is not None
    if c.ssm is None:
        return keys
    sizes = {"conv_kernel": c.ssm.taps, "inner_size": c.ssm.inner, "state_size": c.ssm.state}
    sizes |= {"time_step_rank": c.ssm.heads or c.ssm.rank, "group_count": c.ssm.groups}
    keys |= {f"ssm.{name}": np.uint32(size) for name, size in sizes.items()}
    return keys | ({"ssm.dt_b_c_rms": True} if c.ssm.part_norm_eps is not None else {})


def _multipliers(config: DecoderConfig) -> dict[str, float]:
    """Factors that files of an architecture have keys for; elsewhere the architecture fixes them."""
    if config.family in ("command-r", "cohere2"):
        return {"logit_scale": config.logit_multiplier}
    if config.family in ("granite", "granitemoe", "granitehybrid"):
        assert config.attention_scale is not None
        return {
            "embedding_scale": config.embed_scale,
            "attention.scale": config.attention_scale,
            "residual_scale": config.residual_multiplier,
            "logit_scale": 1.0 / config.logit_multiplier,
        }
    return {}


def _rope_keys(rope: RopeConfig | None) -> dict[str, Any]:
    if rope is None:
        return {}
    keys: dict[str, Any] = {"rope.dimension_count": np.uint32(rope.dims), "rope.freq_base": np.float32(rope.base)}
    if rope.scaling in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope.scaling, "rope.scaling.factor": np.float32(rope.factor)}
    if rope.scaling in ("yarn", "longrope"):
        keys["rope.scaling.original_context_length"] = np.uint32(rope.original_context)
    if rope.scaling == "longrope":
        keys["rope.scaling.attn_factor"] = np.float32(attention_gain(rope))
    elif rope.scaling == "yarn" and rope.attention_factor is not None:
        keys["rope.scaling.attn_factor"] = np.float32(rope.attention_factor / yarn_gain(rope.factor))
    return keys


def _require_same(
    config: DecoderConfig,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, tuple[float, ...]],
) -> None:
    """Read what will be written, and refuse a model that would come back as another one."""
    found = decoder_config_from_gguf(metadata, shapes, tables.__getitem__)
    for field in dataclasses.fields(DecoderConfig):
        if field.name in ("rope", "local_rope"):
            same = _same_rope(getattr(config, field.name), getattr(found, field.name), config.context)
        else:
            same = _close(getattr(config, field.name), getattr(found, field.name), field.name, config)
        if not same:
            raise FormatError(
                f"convert: GGUF files of {config.family} cannot say that {field.name} is "
                f"{getattr(config, field.name)!r:.100}; it would be read as {getattr(found, field.name)!r:.100}"
            )


def _same_rope(wanted: RopeConfig | None, found: RopeConfig | None, context: int) -> bool:
    """Whether positions turn in the same way, whatever the settings are called."""
    if wanted is None or found is None:
        return wanted is found
    rows = {1, min(wanted.original_context or 1, context), context}
    turns = all(np.allclose(frequencies(wanted, n), frequencies(found, n), rtol=1e-6, atol=0) for n in rows)
    gains = np.isclose(attention_gain(wanted), attention_gain(found), rtol=1e-6)
    return bool(turns and gains and wanted.style == found.style and wanted.dims == found.dims)


def _close(wanted: Any, found: Any, name: str, config: DecoderConfig) -> bool:
    if name == "attention_scale" and (wanted is None or found is None):
        # None stands for the usual scale of heads of this width.
        usual = config.head_dim**-0.5
        wanted, found = (usual if x is None else x for x in (wanted, found))
    if isinstance(wanted, SsmConfig) and isinstance(found, SsmConfig):
        fields = [field.name for field in dataclasses.fields(SsmConfig)]
        return all(_close(getattr(wanted, field), getattr(found, field), field, config) for field in fields)
    if isinstance(wanted, float) and isinstance(found, float):
        return bool(np.isclose(wanted, found, rtol=1e-6))
    return bool(wanted == found)
