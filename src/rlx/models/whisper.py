"""The programs of a Whisper model: an encoder that reads features, and a decoder that writes tokens.

Encoder, for B windows: features f32[B, mels, frames] to hidden states f32[B, S, D], then the keys and values
f32[B, H, S, D/H] that each decoder layer reads of them: `cross.k.0`, `cross.v.0`, `cross.k.1`, ...

Decoder, with T new tokens: tokens and positions i32[B, T], kv_len i32[B], those keys and values, and caches `k.0`,
`v.0`, ... f32[B, H, context, D/H]. Outputs: logits f32[B, V] after the last token, then the caches, updated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlx import ops
from rlx.hir import functions as blocks
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.module import HirModule
from rlx.models.config_whisper import WhisperConfig
from rlx.models.layers import Layers, append_to_cache
from rlx.models.weights import Weight, WeightFile
from rlx.ops.attn.operands import MaskKind
from rlx.ops.pointwise.unary import ActivationKind

_NORM_EPS = 1e-5


def _attention_names(prefix: str, module: str, role: str) -> dict[str, str]:
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return {f"{role}_{part}": f"{prefix}.{module}.{name}" for part, name in parts.items()}


def _block_names(side: str) -> dict[str, str]:
    prefix = f"model.{side}.layers.{{i}}"
    return {
        **_attention_names(prefix, "self_attn", f"{side}_self"),
        f"{side}_self_norm": f"{prefix}.self_attn_layer_norm",
        f"{side}_up": f"{prefix}.fc1",
        f"{side}_down": f"{prefix}.fc2",
        f"{side}_ffn_norm": f"{prefix}.final_layer_norm",
        f"{side}_positions": f"model.{side}.embed_positions",
        f"{side}_norm": f"model.{side}.layer_norm",
    }


# Role -> name in the file; see `rlx.models.weight_names`.
WHISPER_NAMES: dict[str, str] = {
    **_block_names("encoder"),
    **_block_names("decoder"),
    **_attention_names("model.decoder.layers.{i}", "encoder_attn", "cross"),
    "cross_norm": "model.decoder.layers.{i}.encoder_attn_layer_norm",
    "conv1": "model.encoder.conv1",
    "conv2": "model.encoder.conv2",
    "embed": "model.decoder.embed_tokens",
    "head": "proj_out",
}


class WhisperProgram(NamedTuple):
    """A graph, the weights that its params need, and the names of its outputs or inputs that hold keys and values."""

    graph: Graph
    weights: dict[str, Weight]
    kept: tuple[str, ...]


class WhisperPrograms(NamedTuple):
    encoder: WhisperProgram
    decoder: WhisperProgram


def build_whisper(config: WhisperConfig, file: WeightFile) -> WhisperPrograms:
    """Both programs of a model on the weights of `file`; tensors that neither needs are refused."""
    programs = WhisperPrograms(_encoder(config, file), _decoder(config, file))
    file.refuse_unused(lambda name: config.tied and name == f"{WHISPER_NAMES['head']}.weight")
    return programs


def _encoder(c: WhisperConfig, file: WeightFile) -> WhisperProgram:
    graph = HirModule("whisper_encoder")
    block = _Block(graph, file, "encoder", c.activation)
    x = graph.input("features", ("B", c.mels, c.frames), DType.F32)
    for role, channels, stride in (("conv1", c.mels, 1), ("conv2", c.hidden, 2)):
        name = file.name(role)
        kernel = block.layers.table(f"{name}.weight", (c.hidden, channels, 3))
        bias = ops.reshape(block.layers.vector(f"{name}.bias", c.hidden), (c.hidden, 1))
        x = ops.activation(ActivationKind.Gelu, ops.add(ops.conv(x, kernel, stride, 1), bias))
    x = ops.transpose(x, (0, 2, 1))
    positions = block.layers.table(f"{file.name('encoder_positions')}.weight", (c.positions, c.hidden))
    x = ops.add(x, positions)
    for layer in range(c.encoder_layers):
        h = block.norm(x, "self_norm", layer)
        q, k, v = (block.layers.linear(h, f"encoder_self_{part}", layer, c.hidden) for part in "qkv")
        attended = blocks.attention(q, k, v, num_heads=c.encoder_heads, layout="bsm", mask_kind="none")
        x = ops.add(x, block.layers.linear(attended, "encoder_self_o", layer, c.hidden))
        x = block.feed_forward(x, layer, c.encoder_ffn)
    x = block.norm(x, "norm", None)
    kept = {
        f"cross.{part}.{layer}": _heads(block.layers.linear(x, f"cross_{part}", layer, c.hidden), c.decoder_heads)
        for layer in range(c.decoder_layers)
        for part in "kv"
    }
    graph.set_outputs([x, *kept.values()])
    return WhisperProgram(block.layers.lowered(), block.layers.weights, tuple(kept))


def _decoder(c: WhisperConfig, file: WeightFile) -> WhisperProgram:
    graph = HirModule("whisper_decoder")
    block = _Block(graph, file, "decoder", c.activation)
    tokens, positions = (graph.input(name, ("B", "T"), DType.I32) for name in ("tokens", "positions"))
    kv_len = graph.input("kv_len", ("B",), DType.I32)
    places = ops.expand_dims(positions, -1)
    size = c.hidden // c.decoder_heads
    x = block.layers.embedding(tokens, "embed", c.vocab, c.hidden)
    x = ops.add(x, block.layers.embedding(positions, "decoder_positions", c.context, c.hidden))
    caches: dict[str, Any] = {}
    for layer in range(c.decoder_layers):
        h = block.norm(x, "self_norm", layer)
        q = _heads(block.layers.linear(h, "decoder_self_q", layer, c.hidden), c.decoder_heads)
        for part in "kv":
            new = block.layers.linear(h, f"decoder_self_{part}", layer, c.hidden)
            cache = graph.input(f"{part}.{layer}", ("B", c.decoder_heads, c.context, size), DType.F32)
            split = ops.reshape(new, (*new.shape[:2], c.decoder_heads, size))
            caches[f"{part}.{layer}"] = append_to_cache(cache, split, places)
        attended = blocks.attention(
            q,
            caches[f"k.{layer}"],
            caches[f"v.{layer}"],
            layout="bhsd",
            mask_kind=MaskKind.Causal,
            kv_len=kv_len,
            positions=positions,
        )
        x = ops.add(x, block.layers.linear(_joined(attended), "decoder_self_o", layer, c.hidden))
        q = _heads(
            block.layers.linear(block.norm(x, "cross_norm", layer, ""), "cross_q", layer, c.hidden), c.decoder_heads
        )
        heard = [graph.input(f"cross.{p}.{layer}", ("B", c.decoder_heads, c.positions, size), DType.F32) for p in "kv"]
        attended = blocks.attention(q, *heard, layout="bhsd", mask_kind="none")
        x = ops.add(x, block.layers.linear(_joined(attended), "cross_o", layer, c.hidden))
        x = block.feed_forward(x, layer, c.decoder_ffn)
    batch, length, hidden = x.shape
    last = ops.reshape(ops.narrow(x, 1, length - 1, 1), (batch, hidden))
    logits = block.layers.linear(block.norm(last, "norm", None), "embed" if c.tied else "head", None, c.vocab)
    graph.set_outputs([logits, *caches.values()])
    for name, updated in caches.items():
        graph.alias(updated, name)
    return WhisperProgram(block.layers.lowered(), block.layers.weights, tuple(caches))


class _Block:
    """The parts that both sides have in common."""

    def __init__(self, graph: HirModule, file: WeightFile, side: str, activation: ActivationKind) -> None:
        self.layers = Layers(graph, file)
        self._side, self._activation = side, activation

    def norm(self, x: Any, role: str, layer: int | None, prefix: str | None = None) -> Any:
        prefix = f"{self._side}_" if prefix is None else prefix
        return self.layers.norm(x, f"{prefix}{role}", layer, "layer", _NORM_EPS)

    def feed_forward(self, x: Any, layer: int, width: int) -> Any:
        up = self.layers.linear(self.norm(x, "ffn_norm", layer), f"{self._side}_up", layer, width)
        down = self.layers.linear(ops.activation(self._activation, up), f"{self._side}_down", layer, x.shape[-1])
        return ops.add(x, down)


def _heads(x: Any, heads: int) -> Any:
    """[B, S, D] as [B, H, S, D/H]."""
    batch, length, hidden = x.shape
    return ops.transpose(ops.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def _joined(x: Any) -> Any:
    """The inverse of `_heads`."""
    batch, heads, length, size = x.shape
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))
