"""Models that read one text and write another, against plain forward passes in f64 NumPy."""

import json

import numpy as np
import pytest

import rlx
from models.numpy_forward import layer_norm, rms_norm, softmax
from models.tiny_models import byte_tokenizer
from rlx.cli import main
from rlx.errors import FormatError, OpError
from rlx.formats.safetensors import write_safetensors
from rlx.models.config_hf_seq2seq import seq2seq_config_from_hf
from rlx.models.kv_cache import ContextOverflow

WIDTH, HEADS, SIZE, FFN, LAYERS = 16, 2, 5, 24, 2
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 260,
    "d_model": WIDTH,
    "d_kv": SIZE,
    "d_ff": FFN,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
BART = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "vocab_size": 260,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FFN,
    "decoder_ffn_dim": FFN,
    "max_position_embeddings": 40,
    "activation_function": "relu",
    "scale_embedding": True,
    "decoder_start_token_id": 2,
    "eos_token_id": 257,
}


def directory(folder, fields, arrays):
    write_safetensors(folder / "model.safetensors", {name: a.astype("f4") for name, a in arrays.items()})
    (folder / "config.json").write_text(json.dumps(fields))
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    scale = lambda dims: dims[-1] ** -0.5 if len(dims) > 1 else 0.3  # noqa: E731
    return {name: rng.normal(size=dims) * scale(dims) + (len(dims) == 1) * 0.5 for name, dims in shapes.items()}


def t5_arrays():
    inner, shapes = HEADS * SIZE, {"shared.weight": (260, WIDTH), "lm_head.weight": (260, WIDTH)}
    for side, modules in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        shapes[f"{side}.final_layer_norm.weight"] = (WIDTH,)
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (8, HEADS)
        for i in range(LAYERS):
            for place, module in enumerate(modules):
                base = f"{side}.block.{i}.layer.{place}"
                shapes |= {f"{base}.{module}.{part}.weight": (inner, WIDTH) for part in "qkv"}
                shapes |= {f"{base}.{module}.o.weight": (WIDTH, inner), f"{base}.layer_norm.weight": (WIDTH,)}
            base = f"{side}.block.{i}.layer.{len(modules)}"
            shapes |= {f"{base}.DenseReluDense.wi_{n}.weight": (FFN, WIDTH) for n in (0, 1)}
            shapes |= {f"{base}.DenseReluDense.wo.weight": (WIDTH, FFN), f"{base}.layer_norm.weight": (WIDTH,)}
    return drawn(shapes)


def heads(x):
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def attended(q, k, v, scale, bias=0.0):
    return (
        (softmax(heads(q) @ heads(k).transpose(0, 2, 1) * scale + bias) @ heads(v))
        .transpose(1, 0, 2)
        .reshape(len(q), -1)
    )


def bucket(distance, count):
    """The definition, one number at a time."""
    exact = count // 2
    if distance < exact:
        return distance
    return min(exact + int(np.log(distance / exact) / np.log(16 / exact) * (count - exact)), count - 1)


def t5_side(w, side, x, source=None):
    table, length = w[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"], len(x)
    bias = np.full((HEADS, length, length), -np.inf)
    for q in range(length):
        for k in range(length if source is None else q + 1):
            row = 4 * (k > q) + bucket(abs(q - k), 4) if source is None else bucket(q - k, 8)
            bias[:, q, k] = table[row]

    def half(x, base, module, other=None, bias=0.0):
        h = rms_norm(x, w[f"{base}.layer_norm.weight"], 1e-6)
        other = h if other is None else other
        q, k, v = (a @ w[f"{base}.{module}.{p}.weight"].T for a, p in ((h, "q"), (other, "k"), (other, "v")))
        return x + attended(q, k, v, 1.0, bias) @ w[f"{base}.{module}.o.weight"].T

    for i in range(LAYERS):
        x = half(x, f"{side}.block.{i}.layer.0", "SelfAttention", bias=bias)
        if source is not None:
            x = half(x, f"{side}.block.{i}.layer.1", "EncDecAttention", source)
        base = f"{side}.block.{i}.layer.{1 if source is None else 2}"
        h = rms_norm(x, w[f"{base}.layer_norm.weight"], 1e-6)
        gate, up = (h @ w[f"{base}.DenseReluDense.wi_{n}.weight"].T for n in (0, 1))
        gelu = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
        x = x + (gelu * up) @ w[f"{base}.DenseReluDense.wo.weight"].T
    return rms_norm(x, w[f"{side}.final_layer_norm.weight"], 1e-6)


def bart_arrays():
    shapes = {"model.shared.weight": (260, WIDTH), "final_logits_bias": (1, 260)}
    for side in ("encoder", "decoder"):
        base = f"model.{side}"
        shapes[f"{base}.embed_positions.weight"] = (42, WIDTH)
        norms = [f"{base}.layernorm_embedding"]
        linear = {}
        for i in range(LAYERS):
            layer = f"{base}.layers.{i}"
            for module in ["self_attn"] + ["encoder_attn"] * (side == "decoder"):
                linear |= {f"{layer}.{module}.{p}_proj": (WIDTH, WIDTH) for p in ("q", "k", "v", "out")}
                norms.append(f"{layer}.{module}_layer_norm")
            linear |= {f"{layer}.fc1": (FFN, WIDTH), f"{layer}.fc2": (WIDTH, FFN)}
            norms.append(f"{layer}.final_layer_norm")
        shapes |= {f"{name}.weight": dims for name, dims in linear.items()}
        shapes |= {f"{name}.bias": dims[:1] for name, dims in linear.items()}
        shapes |= {f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    return drawn(shapes, seed=1)


def bart_side(w, side, tokens, source=None):
    base = f"model.{side}"

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def half(x, name, other, bias=0.0):
        q, k, v = (linear(a, f"{name}.{p}_proj") for a, p in ((x, "q"), (other, "k"), (other, "v")))
        mixed = attended(q, k, v, (WIDTH // HEADS) ** -0.5, bias)
        return norm(x + linear(mixed, f"{name}.out_proj"), f"{name}_layer_norm")

    x = w["model.shared.weight"][tokens] * np.sqrt(WIDTH) + w[f"{base}.embed_positions.weight"][2 : len(tokens) + 2]
    x = norm(x, f"{base}.layernorm_embedding")
    bias = 0.0 if source is None else np.where(np.tri(len(tokens)), 0.0, -np.inf)
    for i in range(LAYERS):
        layer = f"{base}.layers.{i}"
        x = half(x, f"{layer}.self_attn", x, bias)
        if source is not None:
            x = half(x, f"{layer}.encoder_attn", source)
        inner = np.maximum(linear(x, f"{layer}.fc1"), 0)
        x = norm(x + linear(inner, f"{layer}.fc2"), f"{layer}.final_layer_norm")
    return x


def expected_logits(kind, w, source, written):
    if kind == "bart":
        states = bart_side(w, "decoder", written, bart_side(w, "encoder", source))
        return states @ w["model.shared.weight"].T + w["final_logits_bias"]
    read = t5_side(w, "encoder", w["shared.weight"][source])
    return t5_side(w, "decoder", w["shared.weight"][written], read) @ w["lm_head.weight"].T * WIDTH**-0.5


KINDS = {"t5": (T5, t5_arrays), "bart": (BART, bart_arrays)}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_formulas(kind, tmp_path):
    fields, make = KINDS[kind]
    arrays = make()
    directory(tmp_path, fields, arrays)
    rng = np.random.default_rng(3)
    source, written = rng.integers(0, 260, 25).tolist(), rng.integers(0, 260, 19).tolist()
    model = rlx.load_seq2seq(tmp_path)
    wanted = expected_logits(kind, arrays, source, written)
    np.testing.assert_allclose(model.logits(source, written), wanted, rtol=0, atol=1e-4 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_in_a_batch_and_step_by_step(kind, tmp_path):
    fields, make = KINDS[kind]
    arrays = make()
    directory(tmp_path, fields, arrays)
    model, texts = rlx.load_seq2seq(tmp_path), ["a text of some length", "x", "two"]
    answers = model.complete(texts, max_tokens=9)
    for text, answer in zip(texts, answers):
        [alone] = model.complete([text], max_tokens=9)
        assert alone.token_ids == answer.token_ids and answer.prompt_tokens == len(text)
        written = [fields["decoder_start_token_id"]]
        for token in answer.token_ids:
            assert token == expected_logits(kind, arrays, list(text.encode()), written)[-1].argmax()
            written.append(token)
        assert "".join(model.stream(text, max_tokens=9)) == answer.text == model.generate(text, max_tokens=9)


def test_several_answers_are_drawn(tmp_path):
    directory(tmp_path, T5, t5_arrays())
    answers = rlx.load_seq2seq(tmp_path).complete(["a"], max_tokens=5, n=3, temperature=1.0, seed=1)
    assert len({tuple(a.token_ids) for a in answers}) == 3


def test_the_command_writes_answers(tmp_path, capsys):
    directory(tmp_path, T5, t5_arrays())
    assert main(["generate", str(tmp_path), "a text", "--max-tokens", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token_ids"] == rlx.load_seq2seq(tmp_path).complete(["a text"], max_tokens=4)[0].token_ids
    assert main(["generate", str(tmp_path), "a text", "--kv-dtype", "q8"]) != 0
    assert "--kv-dtype" in capsys.readouterr().err


def test_what_cannot_be_done_is_refused(tmp_path):
    directory(tmp_path, BART, bart_arrays())
    model = rlx.load_seq2seq(tmp_path)
    with pytest.raises(ContextOverflow, match="41 tokens"):
        model.generate("x" * 41)
    with pytest.raises(OpError, match="no token 'xx_XX'"):
        model.generate("a", begin="xx_XX")
    with pytest.raises(OpError, match="no tokens"):
        model.generate("")
    with pytest.raises(FormatError, match="load_seq2seq"):
        rlx.load(tmp_path)
    with pytest.raises(FormatError, match="with rlx"):
        seq2seq_config_from_hf({"model_type": "llama"}, {})
    with pytest.raises(FormatError, match="token 999"):
        seq2seq_config_from_hf(BART | {"forced_bos_token_id": 999}, {})
