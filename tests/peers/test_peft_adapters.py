"""Adapters beside PEFT: what rlx writes PEFT loads, what PEFT saves rlx loads, with the same logits; and a few steps of
training give the same losses."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")

import rlx  # noqa: E402
from peers.test_models_decoders import FAMILIES, TOKENS, saved_model  # noqa: E402
from rlx import optim, train  # noqa: E402
from rlx.finetune import AdapterConfig, causal_loss, trainable_decoder  # noqa: E402
from rlx.models.adapter_files import write_gguf_adapter, write_peft  # noqa: E402
from rlx.models.convert import convert  # noqa: E402
from rlx.models.model_files import open_decoder  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
NAMES = ["llama", "qwen2", "gemma2", "phi3", "gpt2", "gpt-neox", "olmo2"]
TARGETS = {
    "gpt2": ["c_attn", "c_proj"],
    "gpt-neox": ["query_key_value", "dense_4h_to_h"],
    "phi3": ["qkv_proj", "down_proj"],
}
USUAL = ["q_proj", "k_proj", "down_proj"]


def torch_logits(model):
    with torch.no_grad():
        return model(torch.tensor([list(TOKENS)])).logits[0].numpy()


def with_noise(model):
    """Adapters begin as no change; this makes them one."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("is_dora", [False, True])
@pytest.mark.parametrize("name", [n for n in NAMES if n in FAMILIES])
def test_adapters_go_both_ways(name, is_dora, tmp_path):
    model = saved_model(name, tmp_path / "hf").eval()
    targets = TARGETS.get(name, USUAL)
    settings = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, use_dora=is_dora, task_type="CAUSAL_LM")
    theirs = with_noise(peft.get_peft_model(model, settings)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = torch_logits(theirs)
    found = rlx.load(tmp_path / "hf", adapter=tmp_path / "theirs").logits(TOKENS)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4)

    files = open_decoder(tmp_path / "hf")
    ours = trainable_decoder(files, AdapterConfig(3, 5, targets=tuple(targets), is_dora=is_dora))
    rng = np.random.default_rng(0)
    changed = {n: a + 0.2 * rng.normal(size=a.shape).astype("f4") for n, a in ours.params.items()}
    write_peft(tmp_path / "ours", ours.trained(changed), files.config, files.weights)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    assert not [w for w in said if "missing" in str(w.message).lower()], "PEFT did not find all tensors"
    found = rlx.load(tmp_path / "hf", adapter=tmp_path / "ours").logits(TOKENS)
    assert np.abs(found - rlx.load(tmp_path / "hf").logits(TOKENS)).max() > 0.01
    np.testing.assert_allclose(found, torch_logits(read), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("is_dora", [False, True])
def test_losses_of_training_are_those_of_peft(is_dora, tmp_path):
    saved_model("llama", tmp_path / "hf")
    files = open_decoder(tmp_path / "hf")
    model = trainable_decoder(files, AdapterConfig(2, 4, targets=("q_proj", "up_proj"), is_dora=is_dora))
    write_peft(tmp_path / "start", model.adapter, files.config, files.weights)
    optimizer = optim.adamw(0.01, weight_decay=0.0)
    state, step = train.init_state(model.params, optimizer), train.make_step(causal_loss(model), optimizer)
    tokens = np.random.default_rng(0).integers(0, 96, (2, 13)).astype(np.int32)
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "frozen": model.frozen}
    ours = []
    for _ in range(20):
        state, metrics = step(state, batch)
        ours.append(float(metrics["loss"]))

    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "start", is_trainable=True)
    adam = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], 0.01, weight_decay=0.0)
    wanted = []
    for _ in range(20):
        logits = theirs(torch.tensor(tokens[:, :-1], dtype=torch.long)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens[:, 1:]).long().flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        wanted.append(loss.item())
    assert wanted[-1] < wanted[0] - 0.1
    np.testing.assert_allclose(ours, wanted, rtol=2e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3"])
def test_llama_cpp_gives_the_same_logits(name, tmp_path, monkeypatch):
    llama_cpp = pytest.importorskip("llama_cpp")
    from peers.test_convert_oracle import AS_IN_THE_FILE, saved

    saved(name, tmp_path / "hf", monkeypatch)
    files = open_decoder(tmp_path / "hf")
    model = trainable_decoder(files, AdapterConfig(3, 5))
    rng = np.random.default_rng(0)
    changed = {n: a + 0.2 * rng.normal(size=a.shape).astype("f4") for n, a in model.params.items()}
    write_gguf_adapter(tmp_path / "a.gguf", model.trained(changed), files.config, files.weights)
    convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    paths = {"model_path": str(tmp_path / "m.gguf"), "lora_path": str(tmp_path / "a.gguf")}
    theirs = llama_cpp.Llama(**paths, n_ctx=64, logits_all=True, verbose=False)
    theirs.eval(TOKENS)
    count = AS_IN_THE_FILE.get(name, len(TOKENS))
    wanted = np.array(theirs.scores[:count])
    found = rlx.load(tmp_path / "hf", adapter=tmp_path / "a.gguf").logits(TOKENS)[:count]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-3 * np.abs(wanted).max())
