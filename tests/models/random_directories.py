"""Hugging Face directories of small models with random weights, of any family, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tokenizers.pre_tokenizers import ByteLevel

from models.tiny_models import byte_tokenizer
from rlx.formats.safetensors import write_safetensors
from rlx.models import weight_names
from rlx.models.config_hf import decoder_config_from_hf
from rlx.models.decoder import build_decoder
from rlx.models.weights import Weight, WeightFile, plain_weight

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 260,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8, "hidden_act": "gelu_pytorch_tanh"}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0, 6.0]}
FAMILIES = {
    "llama": COMMON | {"model_type": "llama"},
    "llama3": COMMON
    | {"model_type": "llama", "rope_theta": 500000.0}
    | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}, "tie_word_embeddings": True},
    "mistral": COMMON | {"model_type": "mistral", "sliding_window": 40, "head_dim": 16},
    "mixtral": COMMON | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": COMMON | {"model_type": "qwen2", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "qwen3": COMMON | {"model_type": "qwen3", "head_dim": 16},
    "yarn": COMMON
    | {"model_type": "qwen3"}
    | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}},
    "qwen2_moe": COMMON | MOE | {"model_type": "qwen2_moe", "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3_moe": COMMON | MOE | {"model_type": "qwen3_moe", "num_experts": 4, "norm_topk_prob": True},
    "gemma2": COMMON
    | GEMMA
    | {"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": COMMON | GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 7},
    "phi3": COMMON | {"model_type": "phi3", "sliding_window": 20},
    "phi3_long": COMMON | {"model_type": "phi3", "original_max_position_embeddings": 24, "rope_scaling": LONGROPE},
    "olmo2": COMMON | {"model_type": "olmo2"},
    "gpt_neox": {
        **{k: v for k, v in COMMON.items() if k not in ("num_key_value_heads", "rms_norm_eps")},
        "model_type": "gpt_neox",
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "rotary_pct": 0.5,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 260,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
}


class _Recorder(WeightFile):
    """Says yes to every weight that a program asks for, and remembers it."""

    def __init__(self, family, names, tied, seed):
        super().__init__("a recorder", names, {})
        self.rng, self.arrays, self._family, self._tied = np.random.default_rng(seed), {}, family, tied

    def has(self, role: str, layer: int | None = None, part: str = "weight") -> bool:
        if role not in self._names or (role == "head" and self._tied):
            return False
        return part == "weight" or _has_bias(self._family, role)

    def get(self, name: str, dims: tuple[int, ...]) -> Weight:
        scale = 1 / np.sqrt(dims[-1]) if len(dims) > 1 else 0.3
        if name not in self.arrays:
            self.arrays[name] = (self.rng.normal(size=dims) * scale).astype(np.float32)
        return plain_weight(self.arrays[name])

    def refuse_unused(self, ignored) -> None:
        pass


def _has_bias(family: str, role: str) -> bool:
    if family in ("gpt2", "gpt_neox", "opt", "starcoder2"):
        return role not in ("embed", "positions", "head")
    if family == "phi":
        return role != "embed"
    if family == "gptj":
        return role in ("up", "down", "head") or role.endswith("norm")
    if family in ("falcon", "stablelm"):
        return role.endswith("norm")
    if family == "gpt_oss":
        return role in ("q", "k", "v", "o", "router") or role.startswith("experts")
    if family in ("glm", "glm4", "seed_oss"):
        return role in ("q", "k", "v")
    if role in ("ssm_dt", "ssm_conv"):
        return True
    return family.startswith("qwen2") and role in ("q", "k", "v")


def _as_states_are_stored(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Layers with states have a logarithm of -A, no suffixes for three parts, and convolutions of three axes."""
    base, _, part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")
    if part in ("A", "D", "dt"):
        return f"{base}.{ {'A': 'A_log', 'D': 'D', 'dt': 'dt_bias'}[part] }", array
    return name, array[:, None] if part in ("conv1d", "conv") and array.ndim == 2 else array


def _put_in_turn(arrays: dict[str, np.ndarray]) -> None:
    """Experts and sinks as files of gpt-oss have them."""
    for name in [name for name in arrays if name.endswith((".gate.weight", ".gate.bias"))]:
        pair = [arrays.pop(name), arrays.pop(name.replace(".gate.", ".up."))]
        whole = np.stack(pair, 2).reshape(pair[0].shape[0], -1, *pair[0].shape[2:])
        before, _, part = name.rpartition(".gate.")
        suffix = "_bias" if part == "bias" else ""
        arrays[f"{before}.gate_up_proj{suffix}"] = whole if suffix else whole.swapaxes(1, 2)
        down = arrays.pop(f"{before}.down.{part}")
        arrays[f"{before}.down_proj{suffix}"] = down if suffix else down.swapaxes(1, 2)
    for name in [name for name in arrays if name.endswith(".sinks.weight")]:
        arrays[name.removesuffix(".weight")] = arrays.pop(name)


def random_directory(folder: Path, fields: dict, seed: int = 0, template: str | None = None) -> Path:
    """Write a model of `config.json` fields, with a tokenizer of bytes."""
    config = decoder_config_from_hf(fields)
    family = fields["model_type"]
    names = {role: name.replace(".{e}", "") for role, name in weight_names.hf_names(config).items()}
    recorder = _Recorder(family, names, config.tied, seed)
    build_decoder(config, recorder)
    arrays = {}
    if family == "gpt_oss":
        _put_in_turn(recorder.arrays)
    for name, array in recorder.arrays.items():
        if config.recurrent_layers:
            name, array = _as_states_are_stored(name, array)
        if name.endswith(".gate.weight") and ".input_linear." in name:
            parts = [array, recorder.arrays[name.replace(".gate.", ".up.")]]
            arrays[name.replace(".gate.", ".")] = np.concatenate(parts, -2)
        elif ".input_linear.up." in name:
            continue
        elif name.endswith("_correction.bias"):
            arrays[name.replace("_correction.", "_correction_")] = array
        elif ".experts." in name and family != "gpt_oss":
            before, after = name.split(".experts.")
            arrays |= {f"{before}.experts.{e}.{after}": part for e, part in enumerate(array)}
        elif family in weight_names.HF_IN_OUT and array.ndim == 2 and ".wte" not in name and ".wpe" not in name:
            arrays[name] = np.ascontiguousarray(array.T)
        else:
            arrays[name] = array + np.float32(array.ndim == 1 and family not in weight_names.HF_NORM_PLUS_ONE)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", {name: np.ascontiguousarray(a) for name, a in arrays.items()})
    (folder / "config.json").write_text(json.dumps(fields))
    backend = byte_tokenizer()._backend
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
