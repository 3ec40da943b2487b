"""Hugging Face directories as GGUF files, written with the `gguf` package: its key names and its table of tensor names
are the oracle for ours."""

import json

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")
safetensors = pytest.importorskip("safetensors.numpy")

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}
PAIRS_TOGETHER = ("llama", "mistral", "mixtral")


def permuted(weight, heads):
    """Rows of q or k so that rotary pairs (i, i + D/2) become neighbours."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


def converted(name, tensor, config):
    """A tensor as the format wants it."""
    kind = config["model_type"]
    if kind == "gpt2" and tensor.ndim == 2 and "wte" not in name and "wpe" not in name:
        return np.ascontiguousarray(tensor.T)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    if kind in PAIRS_TOGETHER and ".q_proj." in name:
        return permuted(tensor, config["num_attention_heads"])
    if kind in PAIRS_TOGETHER and ".k_proj." in name:
        return permuted(tensor, config["num_key_value_heads"])
    return tensor


def stacked_experts(tensors, count):
    """One tensor per matrix of all experts, under the name of the first with its number left out."""
    result = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            result[name] = tensor
        elif ".experts.0." in name:
            members = [tensors[name.replace(".experts.0.", f".experts.{e}.")] for e in range(count)]
            result[name.replace(".experts.0.", ".experts.")] = np.stack(members)
    return result


def convert(folder, path, quantize=None):
    """Write the model of `folder` to `path`; `quantize` is the type of matrices, f32 otherwise."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    write_keys(writer, config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(architecture, layers)
    tensors = safetensors.load_file(folder / "model.safetensors")
    experts = config.get("num_experts") or config.get("num_local_experts")
    for name, tensor in (stacked_experts(tensors, experts) if experts else tensors).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        array = converted(name, tensor.astype(np.float32), config)
        if quantize is not None and array.ndim > 1:
            packed = gguf.quants.quantize(array, quantize)
            writer.add_tensor(stored, packed, raw_dtype=quantize)
        else:
            writer.add_tensor(stored, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_keys(writer, config):
    kind = config["model_type"]
    gpt2 = kind == "gpt2"
    hidden, heads = (
        (config["n_embd"], config["n_head"]) if gpt2 else (config["hidden_size"], config["num_attention_heads"])
    )
    writer.add_block_count(config["n_layer"] if gpt2 else config["num_hidden_layers"])
    writer.add_context_length(config["n_positions"] if gpt2 else config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_head_count(heads)
    if gpt2:
        writer.add_feed_forward_length(4 * hidden)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_dim = config.get("head_dim") or hidden // heads
    if head_dim != hidden // heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    parameters = config["rope_parameters"]
    writer.add_rope_freq_base(parameters.get("full_attention", parameters)["rope_theta"])
    if kind in ("gemma2", "gemma3_text", "phi3") and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
