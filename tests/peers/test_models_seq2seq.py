"""Models that read one text and write another against transformers: states, logits, and answers token for token."""

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402
from peers.test_models_classifiers import save_tokenizer  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

T5 = {"vocab_size": 84, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 1}
T5 |= {"pad_token_id": 1, "eos_token_id": 2}
BART = {"vocab_size": 84, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 56, "max_position_embeddings": 64}
BART |= {
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
    "forced_eos_token_id": None,
}
KINDS = {
    "t5": ("t5", T5),
    "t5-gated": ("t5", T5 | {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 2}),
    "t5-unscaled": ("t5", T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-silu"}),
    "mt5": ("mt5", T5 | {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("umt5", T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("bart", BART),
    "bart-scaled": ("bart", BART | {"scale_embedding": True, "activation_function": "relu", "forced_bos_token_id": 0}),
    "mbart": ("mbart", BART | {"scale_embedding": True}),
    "marian": ("marian", BART | {"scale_embedding": True, "activation_function": "swish"}),
    "pegasus": ("pegasus", BART),
    "m2m_100": ("m2m_100", BART | {"activation_function": "relu"}),
}


def saved(name, folder):
    kind, settings = KINDS[name]
    model = transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model(kind, **settings)).eval()
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * noise
            elif not (key.endswith("embed_positions.weight") and kind in ("marian", "pegasus")):
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(0.3 * torch.randn(model.final_logits_bias.shape, generator=generator))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def sources():
    rng = np.random.default_rng(2)
    return [rng.integers(3, 84, n).tolist() for n in (30, 3, 17)]


@pytest.mark.parametrize("name", KINDS)
def test_states_and_logits_agree(name, tmp_path):
    peer, source, written = saved(name, tmp_path), sources()[0], [2, *sources()[2]]
    with torch.no_grad():
        found = peer(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written]), use_cache=False)
    model = rlx.load_seq2seq(tmp_path)
    states, logits = found.encoder_last_hidden_state[0].numpy(), found.logits[0].numpy()
    assert np.abs(logits).max() > 0.3
    np.testing.assert_allclose(model.states(source), states, rtol=0, atol=1e-4)
    np.testing.assert_allclose(model.logits(source, written), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_answers_agree_token_for_token(name, tmp_path):
    peer, given = saved(name, tmp_path), sources()
    width = max(map(len, given))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in given])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in given])
    with torch.no_grad():
        made = peer.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, num_beams=1).tolist()
    model = rlx.load_seq2seq(tmp_path)
    first = 1 + len(model.config.first)
    answers = model.complete(given, max_tokens=21 - first)
    for row, answer in zip(made, answers):
        wanted = row[first:]
        end = wanted.index(2) if 2 in wanted else len(wanted)
        assert answer.token_ids == wanted[:end]
        assert answer.finish_reason == ("stop" if 2 in wanted else "length")
    assert sum(len(answer.token_ids) for answer in answers) > 10


def test_tokens_that_may_not_be_written(tmp_path):
    saved("marian", tmp_path)
    [before] = rlx.load_seq2seq(tmp_path).complete(sources()[:1], max_tokens=6)
    never = before.token_ids[-1]
    fields = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps(fields | {"bad_words_ids": [[never]]}))
    [after] = rlx.load_seq2seq(tmp_path).complete(sources()[:1], max_tokens=6)
    place = before.token_ids.index(never)
    assert after.token_ids[:place] == before.token_ids[:place] and never not in after.token_ids


@pytest.mark.parametrize("name", ["t5-gated", "umt5"])
def test_encoders_of_such_models_alone(name, tmp_path):
    peer = saved(name, tmp_path)
    maker = {"t5": transformers.T5EncoderModel, "umt5": transformers.UMT5EncoderModel}[KINDS[name][0]]
    lengths = np.array([50, 3, 21, 1])
    mask = (np.arange(50) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask, np.random.default_rng(7).integers(2, 84, mask.shape), 1)
    present = mask.astype(bool)
    for folder in (tmp_path, tmp_path / "alone"):
        if folder != tmp_path:
            maker.from_pretrained(tmp_path).save_pretrained(folder)
            save_tokenizer(folder)
        with torch.no_grad():
            expected = peer.encoder(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state
        got = rlx.load_encoder(folder).forward(ids, mask)
        np.testing.assert_allclose(got[present], expected.numpy()[present], rtol=0, atol=1e-4)
