"""olmo2, gpt_neox, opt and modernbert against a forward pass in f64 NumPy, and vectors from models that write text."""

import json

import numpy as np
import pytest
from scipy.special import erf

import rlx
from models.numpy_forward import layer_norm, rms_norm, rotate, softmax
from models.random_directories import FAMILIES, random_directory
from models.tiny_models import language_model
from rlx.errors import OpError
from rlx.formats.safetensors import open_safetensors, write_safetensors

TOKENS = np.random.default_rng(1).integers(0, 260, 17)
OPT = {
    "model_type": "opt",
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 260,
    "max_position_embeddings": 40,
    "activation_function": "relu",
}


def attended(q, k, v, heads, kv_heads, turn=lambda x: x):
    """Causal attention of [S, H*D] rows."""
    width, visible = q.shape[1] // heads, np.tril(np.ones((len(q), len(q)), bool))
    out = []
    for head in range(heads):
        mine, shared = slice(head * width, (head + 1) * width), head // (heads // kv_heads)
        theirs = slice(shared * width, (shared + 1) * width)
        scores = turn(q[:, mine]) @ turn(k[:, theirs]).T / np.sqrt(width)
        out.append(softmax(np.where(visible, scores, -np.inf)) @ v[:, theirs])
    return np.concatenate(out, -1)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def olmo2(w, linear, c):
    x = w["model.embed_tokens.weight"][TOKENS]
    for i in range(c["num_hidden_layers"]):
        b = f"model.layers.{i}."
        q, k, v = (linear(x, f"{b}self_attn.{n}_proj") for n in "qkv")
        q = rms_norm(q, w[b + "self_attn.q_norm.weight"], 1e-5)
        k = rms_norm(k, w[b + "self_attn.k_norm.weight"], 1e-5)
        y = linear(attended(q, k, v, 4, 2, lambda h: rotate(h, 10000.0, False)), b + "self_attn.o_proj")
        x = x + rms_norm(y, w[b + "post_attention_layernorm.weight"], 1e-5)
        y = linear(silu(linear(x, b + "mlp.gate_proj")) * linear(x, b + "mlp.up_proj"), b + "mlp.down_proj")
        x = x + rms_norm(y, w[b + "post_feedforward_layernorm.weight"], 1e-5)
    return linear(rms_norm(x, w["model.norm.weight"], 1e-5), "lm_head")


def gpt_neox(w, linear, c):
    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], 1e-5)

    def turn(h):
        return np.concatenate([rotate(h[:, :4], 10000.0, False), h[:, 4:]], -1)

    x = w["gpt_neox.embed_in.weight"][TOKENS]
    for i in range(c["num_hidden_layers"]):
        b = f"gpt_neox.layers.{i}."
        qkv = linear(norm(x, b + "input_layernorm"), b + "attention.query_key_value").reshape(len(x), 4, 3, 8)
        q, k, v = (qkv[:, :, part].reshape(len(x), 32) for part in range(3))
        y = linear(attended(q, k, v, 4, 4, turn), b + "attention.dense")
        read = x if c.get("use_parallel_residual", True) else x + y
        inner = gelu(linear(norm(read, b + "post_attention_layernorm"), b + "mlp.dense_h_to_4h"))
        x = x + y + linear(inner, b + "mlp.dense_4h_to_h")
    return linear(norm(x, "gpt_neox.final_layer_norm"), "embed_out")


def opt(w, linear, c):
    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], 1e-5)

    d = "model.decoder."
    x = w[d + "embed_tokens.weight"][TOKENS] + w[d + "embed_positions.weight"][2 : 2 + len(TOKENS)]
    for i in range(c["num_hidden_layers"]):
        b = f"{d}layers.{i}."
        h = norm(x, b + "self_attn_layer_norm")
        x = x + linear(attended(*(linear(h, f"{b}self_attn.{n}_proj") for n in "qkv"), 4, 4), b + "self_attn.out_proj")
        x = x + linear(np.maximum(linear(norm(x, b + "final_layer_norm"), b + "fc1"), 0), b + "fc2")
    return norm(x, d + "final_layer_norm") @ w[d + "embed_tokens.weight"].T


@pytest.mark.parametrize(
    ("fields", "forward"),
    [
        (FAMILIES["olmo2"], olmo2),
        (FAMILIES["gpt_neox"], gpt_neox),
        (FAMILIES["gpt_neox"] | {"use_parallel_residual": False}, gpt_neox),
        (OPT, opt),
    ],
    ids=["olmo2", "gpt_neox", "gpt_neox sequential", "opt"],
)
def test_logits_are_those_of_the_formulas(fields, forward, tmp_path):
    folder = random_directory(tmp_path, fields)
    w = {name: t.array().astype(np.float64) for name, t in open_safetensors(folder).tensors.items()}

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    expected = forward(w, linear, fields)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(rlx.load(folder).logits(TOKENS.tolist()), expected, atol=1e-4)


MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu",
    "local_attention": 6,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "pad_token_id": 0,
}


def modernbert(w, ids):
    """f64[S, D] of one text."""

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], 0.0, 1e-5)

    x = norm(w["model.embeddings.tok_embeddings.weight"][ids], "model.embeddings.norm")
    distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
    for i in range(4):
        b, is_local = f"model.layers.{i}.", i % 3 > 0
        h = norm(x, b + "attn_norm") if i else x
        q, k, v = np.split(h @ w[b + "attn.Wqkv.weight"].T, 3, -1)
        out = []
        for head in range(4):
            part = slice(head * 8, head * 8 + 8)
            qh, kh = (rotate(z[:, part], 10000.0 if is_local else 160000.0, False) for z in (q, k))
            scores = np.where((distance <= 3) | (not is_local), qh @ kh.T / np.sqrt(8), -np.inf)
            out.append(softmax(scores) @ v[:, part])
        x = x + np.concatenate(out, -1) @ w[b + "attn.Wo.weight"].T
        gate, up = np.split(norm(x, b + "mlp_norm") @ w[b + "mlp.Wi.weight"].T, 2, -1)
        x = x + (gelu(gate) * up) @ w[b + "mlp.Wo.weight"].T
    return norm(x, "model.final_norm")


def test_modernbert_is_its_formula(tmp_path):
    rng = np.random.default_rng(4)
    dims = {"model.embeddings.tok_embeddings": (260, 32), "model.embeddings.norm": (32,), "model.final_norm": (32,)}
    for i in range(4):
        b = f"model.layers.{i}."
        dims |= {b + "attn.Wqkv": (96, 32), b + "attn.Wo": (32, 32), b + "mlp.Wi": (80, 32), b + "mlp.Wo": (32, 40)}
        dims |= {b + "mlp_norm": (32,)} | ({b + "attn_norm": (32,)} if i else {})
    w = {
        f"{n}.weight": (rng.normal(size=d) * (d[-1] ** -0.5 if len(d) > 1 else 0.3) + (len(d) == 1)).astype("f4")
        for n, d in dims.items()
    }
    write_safetensors(tmp_path / "model.safetensors", w)
    (tmp_path / "config.json").write_text(json.dumps(MODERNBERT))
    encoder, exact = rlx.load_encoder(tmp_path), {name: a.astype(np.float64) for name, a in w.items()}
    ids, lengths = rng.integers(0, 260, (3, 40)), [40, 1, 13]
    found = encoder.forward(ids, np.arange(40) < np.array(lengths)[:, None])
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(found[row, :length], modernbert(exact, ids[row, :length]), atol=1e-4)


def test_vectors_from_a_model_that_writes_text():
    """Hidden states are what logits are made of: times the head they are the logits."""
    lm = language_model()
    ids = lm.tokenizer.encode("some text")
    states, head = lm._states(ids), lm._open_again().weights.get("output.weight", (260, 32)).read()
    np.testing.assert_allclose(states @ head.T, lm.logits(ids), atol=1e-4)
    vectors = lm.embed(["some text", "another"])
    mean = states.mean(0)
    np.testing.assert_allclose(vectors[0], mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_allclose(lm.embed("some text", pooling="last", normalize=False), states[-1], atol=1e-5)
    assert vectors.shape == (2, 32) and vectors.dtype == np.float32
    assert lm.embed("x" * 500).shape == (32,)
    with pytest.raises(OpError, match="embed: pooling must be mean or last, got 'max'"):
        lm.embed("x", pooling="max")


def vector_directory(folder, modes=("lasttoken",), head=True):
    """A language model that was trained for vectors."""
    random_directory(folder, FAMILIES["llama"], seed=3)
    arrays = {name: np.array(t.array()) for name, t in open_safetensors(folder).tensors.items()}
    if not head:
        del arrays["lm_head.weight"]
    write_safetensors(folder / "model.safetensors", arrays)
    modules = [{"type": "a.Transformer"}, {"path": "1_Pooling", "type": "b.Pooling"}, {"type": "c.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": list(modes)}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "ask: "}}')
    return rlx.load(folder)


def test_directories_say_how_vectors_are_made(tmp_path):
    lm = vector_directory(tmp_path)
    states = lm._states(lm.tokenizer.encode("text"))
    np.testing.assert_allclose(lm.embed("text"), states[-1] / np.linalg.norm(states[-1]), atol=1e-5)
    np.testing.assert_allclose(lm.embed("text", pooling="mean", normalize=False), states.mean(0), atol=1e-5)
    np.testing.assert_array_equal(lm.embed("to", prompt_name="query"), lm.embed("ask: to"))
    np.testing.assert_array_equal(lm.embed("0123456789"), lm.embed("0123456"))
    assert lm.prompts == {"query": "ask: "}
    with pytest.raises(OpError, match="no prompt 'other'"):
        lm.embed("to", prompt_name="other")


def test_other_ways_of_making_vectors_are_refused_not_replaced(tmp_path):
    lm = vector_directory(tmp_path, modes=("cls",))
    with pytest.raises(OpError, match="pooling cls"):
        lm.embed("text")
    assert lm.embed("text", pooling="mean").shape == (32,)


def test_a_model_without_words_to_write_gives_vectors(tmp_path):
    with_head, without = vector_directory(tmp_path / "a"), vector_directory(tmp_path / "b", head=False)
    np.testing.assert_allclose(without.embed("text"), with_head.embed("text"), atol=1e-6)
    for asked in (lambda: without.generate("a"), lambda: without.logits([1]), without.session):
        with pytest.raises(OpError, match="lm_head"):
            asked()
