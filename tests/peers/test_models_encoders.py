"""Every encoder family against transformers, and pooling against sentence-transformers."""

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

BASE = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 150,
}
FAMILIES = {
    "bert": BASE,
    "roberta": BASE | {"type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": BASE | {"type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu_new"},
    "camembert": BASE | {"type_vocab_size": 1, "pad_token_id": 1},
    "data2vec-text": BASE | {"type_vocab_size": 1, "pad_token_id": 1},
    "roberta-prelayernorm": BASE | {"pad_token_id": 1},
    "xlm-roberta-xl": BASE | {"pad_token_id": 1},
    "ernie": BASE,
    "megatron-bert": BASE,
    "distilbert": {
        "vocab_size": 90,
        "dim": 32,
        "hidden_dim": 56,
        "n_layers": 3,
        "n_heads": 4,
        "max_position_embeddings": 150,
    },
    "electra": BASE | {"embedding_size": 24},
    "albert": BASE | {"embedding_size": 24, "bos_token_id": 1, "eos_token_id": 2},
    "mpnet": BASE | {"layer_norm_eps": 1e-5},
    "nomic_bert": BASE,
    "modernbert": BASE
    | {"num_hidden_layers": 5, "local_attention": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    | {"cls_token_id": 1, "sep_token_id": 2},
}


def saved_encoder(kind, folder, with_head=False):
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind])
    maker = transformers.AutoModelForMaskedLM if with_head else transformers.AutoModel
    model = maker.from_config(config).eval()
    generator = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return model


def ragged_batch():
    rng = np.random.default_rng(7)
    lengths = [140, 3, 61, 1]
    mask = (np.arange(140) < np.array(lengths)[:, None]).astype(np.int64)
    return rng.integers(2, 90, mask.shape), mask


@pytest.mark.parametrize("kind", FAMILIES)
def test_hidden_states_agree(kind, tmp_path):
    model = saved_encoder(kind, tmp_path)
    ids, mask = ragged_batch()
    ids = np.where(mask, ids, model.config.pad_token_id)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    got = rlx.load_encoder(tmp_path).forward(ids, mask)
    present = mask.astype(bool)
    assert np.abs(expected[present]).max() > 0.5
    np.testing.assert_allclose(got[present], expected[present], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "electra", "albert"])
def test_files_with_a_head_hold_the_same_encoder(kind, tmp_path):
    model = saved_encoder(kind, tmp_path, with_head=True)
    ids, _ = ragged_batch()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids), output_hidden_states=True).hidden_states[-1].numpy()
    np.testing.assert_allclose(rlx.load_encoder(tmp_path).forward(ids), expected, rtol=0, atol=1e-4)


def test_older_files_of_torch_name_norms_otherwise(tmp_path):
    """Files that came from TensorFlow have gamma and beta; those before safetensors are pickles, in parts if large."""
    model = saved_encoder("bert", tmp_path)
    ids, _ = ragged_batch()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids)).last_hidden_state.numpy()
    (tmp_path / "model.safetensors").unlink()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, value in model.state_dict().items():
        for new, ending in old.items():
            name = name.replace(new, ending)
        weights[f"bert.{name}"] = value
    places = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(weights)}
    for part in set(places.values()):
        torch.save({name: value for name, value in weights.items() if places[name] == part}, tmp_path / part)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    np.testing.assert_allclose(rlx.load_encoder(tmp_path).forward(ids), expected, rtol=0, atol=1e-4)


MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
FLAGS = {"mean": "mean_tokens", "max": "max_tokens", "cls": "cls_token", "weightedmean": "weightedmean_tokens"}


@pytest.mark.parametrize("modes", [[m] for m in MODES] + [["cls", "mean", "max"]])
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling_agrees_with_sentence_transformers(modes, normalize, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sentence_transformers")
        from sentence_transformers.models import Pooling
    folder = tmp_path / "model"
    saved_encoder("bert", folder)
    settings = {"pooling_mode": modes}
    if normalize:
        settings = {f"pooling_mode_{FLAGS.get(mode, mode)}": mode in modes for mode in MODES}
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    modules += [{"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}] * normalize
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **settings}))
    (folder / "modules.json").write_text(json.dumps(modules))
    encoder = rlx.load_encoder(folder)
    ids, mask = ragged_batch()
    rows = [row[: m.sum()].tolist() for row, m in zip(ids, mask)]
    hidden, vectors = encoder._run(rows)
    pooling = Pooling.load(str(folder / "1_Pooling"))
    features = {"token_embeddings": torch.tensor(hidden), "attention_mask": torch.tensor(mask)}
    expected = pooling(features)["sentence_embedding"]
    if normalize:
        expected = torch.nn.functional.normalize(expected, p=2, dim=1)
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=0, atol=1e-5)
