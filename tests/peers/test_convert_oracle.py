"""`rlx convert` beside the `gguf` package: the same tensors under the same names, and the same keys; logits as
transformers gives them; and llama.cpp itself where it is installed."""

import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

import rlx  # noqa: E402
from models.tiny_models import byte_tokenizer  # noqa: E402
from peers.gguf_conversion import convert  # noqa: E402
from peers.test_models_decoders import FAMILIES, TOKENS, peer_logits, saved_model  # noqa: E402
from peers.test_models_gguf import CHANGES, NAMES  # noqa: E402
from rlx.models.convert import ARCHITECTURES as OURS  # noqa: E402
from rlx.models.convert import convert as rlx_convert  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
MORE = ["olmo2", "gpt-neox", "gpt-neox-sequential", "llama3-rope", "linear-rope", "yarn-rope", "llama-head-dim"]
# Positions at which llama.cpp computes what the file says: it leaves out the window of Phi-3 (its pull request 13676).
AS_IN_THE_FILE = {"phi3": FAMILIES["phi3"][1]["sliding_window"]}
# Keys that say of a model what it is; the others are names and versions.
SAID_BY_BOTH = ("block_count", "context_length", "embedding_length", "feed_forward_length", "head_count", "epsilon")


def saved(name, folder, monkeypatch):
    """A model that transformers has saved, with a tokenizer of bytes beside it."""
    kind, settings = FAMILIES[name]
    monkeypatch.setitem(FAMILIES, name, (kind, settings | CHANGES.get(name, {}) | {"vocab_size": 260}))
    model = saved_model(name, folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder):
    from tokenizers.pre_tokenizers import ByteLevel

    backend = byte_tokenizer()._backend
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.mark.parametrize("name", NAMES)
def test_files_are_those_of_the_gguf_package(name, tmp_path, monkeypatch):
    saved(name, tmp_path / "hf", monkeypatch)
    convert(tmp_path / "hf", tmp_path / "theirs.gguf")
    rlx_convert(tmp_path / "hf", tmp_path / "ours.gguf", "F32")
    theirs, ours = (gguf.GGUFReader(tmp_path / f"{who}.gguf") for who in ("theirs", "ours"))
    wanted = {t.name: np.asarray(t.data) for t in theirs.tensors}
    found = {t.name: np.asarray(t.data) for t in ours.tensors}
    if "output.weight" in wanted and "output.weight" not in found:
        np.testing.assert_array_equal(wanted.pop("output.weight"), wanted["token_embd.weight"])
    assert set(found) == set(wanted)
    for tensor, array in wanted.items():
        np.testing.assert_array_equal(found[tensor].reshape(-1), array.reshape(-1), err_msg=tensor)
    for key, field in theirs.fields.items():
        if key.endswith(SAID_BY_BOTH) or ".rope.freq_base" in key or "softcapping" in key or ".expert_" in key:
            assert ours.fields[key].contents() == field.contents(), key


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_logits_are_those_of_transformers(name, tmp_path, monkeypatch):
    model = saved(name, tmp_path / "hf", monkeypatch)
    rlx_convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    lm = rlx.load(tmp_path / "m.gguf", device="reference")
    np.testing.assert_allclose(lm.logits(TOKENS), peer_logits(model, TOKENS), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "architecture"), [("olmo2", gguf.MODEL_ARCH.OLMO2), ("gpt-neox", gguf.MODEL_ARCH.GPTNEOX)]
)
def test_tensor_names_are_those_of_the_architecture(name, architecture, tmp_path, monkeypatch):
    saved(name, tmp_path / "hf", monkeypatch)
    rlx_convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    assert gguf.MODEL_ARCH_NAMES[architecture] == OURS[FAMILIES[name][0]]
    known = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[architecture]}
    found = [t.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors]
    assert {re.sub(r"blk\.\d+", "blk.{bid}", n).rsplit(".", 1)[0] for n in found} <= known


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "olmo2", "gpt-neox"])
def test_llama_cpp_gives_the_same_logits(name, tmp_path, monkeypatch):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = saved(name, tmp_path / "hf", monkeypatch)
    rlx_convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    theirs = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, logits_all=True, verbose=False)
    theirs.eval(TOKENS)
    count = AS_IN_THE_FILE.get(name, len(TOKENS))
    found = np.array(theirs.scores[:count])
    np.testing.assert_allclose(found, peer_logits(model, TOKENS)[:count], rtol=0, atol=5e-3 * np.abs(found).max())
