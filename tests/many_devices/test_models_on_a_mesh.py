"""`rlx.load(mesh=)` and `rlx.load_encoder(mesh=)`: the answers of one device, from weights that are divided."""

import sys
from pathlib import Path

import numpy as np
import pytest
from many_devices_runs import many_devices, needs_xla
from test_many_processes import launched

import rlx
from rlx import Mesh, P
from rlx.distributed import layout_of
from rlx.errors import OpError, ShardingError
from rlx.models.divided import mesh_layout
from rlx.models.layouts import cache_sharding, weight_shardings
from rlx.models.weights import WeightFile, plain_weight

sys.path.insert(0, str(Path(__file__).parents[1]))
from models.tiny_models import BERT, LLAMA, bert_arrays, encoder_weights, gguf_file, llama_arrays

TESTS = Path(__file__).parents[1]
FIELDS = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 260,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
HERE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from models.random_directories import random_directory
FIELDS = {FIELDS!r}
"""


def specs(mesh, config=LLAMA, file=None):
    file = file or gguf_file(llama_arrays(config))
    weights = dict(file.items())
    found = weight_shardings(layout_of(Mesh.of(mesh)), config, file, weights)
    return {name: sharding.spec for name, sharding in found.items()}


def test_weights_are_divided_by_role():
    found = specs("fsdp=2,tensor=2")
    assert found["blk.0.attn_q.weight"] == P("tensor", "fsdp")
    assert found["blk.0.attn_output.weight"] == P("fsdp", "tensor")
    assert found["blk.1.ffn_up.weight"] == P("tensor", "fsdp") and found["blk.1.ffn_down.weight"] == P("fsdp", "tensor")
    assert found["token_embd.weight"] == found["output.weight"] == P("tensor", "fsdp")
    assert found["blk.0.attn_norm.weight"] == P()


def test_heads_are_not_cut():
    # Two heads of keys do not divide over four devices, so that attention stays whole; features do divide.
    found = specs("tensor=4")
    assert found["blk.0.attn_q.weight"] == found["blk.0.attn_k.weight"] == found["blk.0.attn_output.weight"] == P()
    assert found["blk.0.ffn_up.weight"] == P("tensor")
    assert cache_sharding(layout_of(Mesh.of("tensor=4")), LLAMA).spec == P()
    assert cache_sharding(layout_of(Mesh.of("tensor=2")), LLAMA).spec == P(None, "tensor")


def test_adapters_lie_beside_their_matrices():
    arrays = llama_arrays(LLAMA)
    parts = {"blk.0.attn_q.lora_A": (2, 32), "blk.0.attn_q.lora_B": (32, 2), "blk.0.ffn_down.lora_A.1": (2, 48)}
    file = gguf_file(arrays)
    weights = {name: plain_weight(np.zeros(dims, "f4")) for name, dims in parts.items()}
    found = weight_shardings(layout_of(Mesh.of("tensor=2")), LLAMA, file, weights)
    assert found["blk.0.attn_q.lora_A"].spec == P() and found["blk.0.attn_q.lora_B"].spec == P("tensor")
    assert found["blk.0.ffn_down.lora_A.1"].spec == P(None, "tensor")


def test_biases_of_encoders_follow_their_rows():
    file = encoder_weights(bert_arrays(BERT))
    assert isinstance(file, WeightFile)
    found = specs("tensor=3", BERT, file)
    q, down = "bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.output.dense"
    assert found[f"{q}.weight"] == P("tensor") and found[f"{q}.bias"] == P("tensor")
    assert found[f"{down}.weight"] == P() and found[f"{down}.bias"] == P()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mesh_layout("data=2", "load"), ShardingError, "load: data divides texts of training"),
        (lambda: mesh_layout("rows=2", "load"), ShardingError, "'rows' names no role"),
        (lambda: mesh_layout("tensor:2", "load"), ShardingError, "is no mesh"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_mesh_is_of_devices_of_xla(tmp_path):
    pytest.importorskip("tokenizers")
    from models.random_directories import random_directory

    random_directory(tmp_path / "m", FIELDS)
    with pytest.raises(OpError, match="a mesh is of devices of xla, and not of 'wasm'"):
        rlx.load(tmp_path / "m", device="wasm", mesh="tensor=2")
    with pytest.raises(OpError, match="exchanges: this model is on one device"):
        rlx.load(tmp_path / "m").exchanges()


class TestOnDevices:
    pytestmark = needs_xla

    def test_decoders_give_the_logits_of_one_device(self, tmp_path):
        many_devices(
            HERE
            + f"""
place = random_directory(Path({str(tmp_path)!r}) / "m", FIELDS)
one, ids = rlx.load(place), list(range(3, 40))
lm = rlx.load(place, mesh="tensor=4")
whole, part = lm._compiled.weight_bytes
assert whole / 4 <= part < 1.1 * whole / 4
told = lm.exchanges()
assert told.mesh == "tensor=4" and told.memory.arguments > part
# Logits move, and not the head.
assert [u.result_bytes for u in told.collectives if u.kind == "all-gather"] == [260 * 4], told
a, b = lm.session(), one.session()
for step in (ids, [5], [6]):
    np.testing.assert_allclose(a.prefill(step), b.prefill(step), rtol=0, atol=1e-5)
"""
        )

    @pytest.mark.targets_full
    def test_caches_grow_and_encoders(self, tmp_path):
        many_devices(
            HERE
            + f"""
from models.tiny_models import *
place = random_directory(Path({str(tmp_path)!r}) / "m", FIELDS)
one, lm, ids = rlx.load(place), rlx.load(place, mesh="fsdp=2,tensor=2"), [n % 250 for n in range(300)]
np.testing.assert_allclose(lm.logits(ids[:37]), one.logits(ids[:37]), rtol=0, atol=1e-5)
assert lm.generate("ab", max_tokens=3) == one.generate("ab", max_tokens=3)
np.testing.assert_allclose(lm.session().prefill(ids), one.session().prefill(ids), rtol=0, atol=1e-5)
a, b = lm.session(), one.session()
for part in (ids[:250], ids[250:]):
    np.testing.assert_allclose(a.prefill(part), b.prefill(part), rtol=0, atol=1e-5)
from rlx.models.divided import mesh_layout
one = encoder()
arrays = encoder_weights(bert_arrays(BERT))
enc = TextEncoder(BERT, arrays, byte_tokenizer, Path("tiny"), "xla", layout=mesh_layout("fsdp=2,tensor=3", "t"))
ids = np.arange(3, 35).reshape(2, 16)
np.testing.assert_allclose(enc.forward(ids), one.forward(ids), rtol=0, atol=1e-5)
assert "mesh fsdp=2,tensor=3" in str(enc.exchanges(16))
"""
        )

    def test_processes_hold_their_parts_only(self, tmp_path):
        script = tmp_path / "s.py"
        script.write_text(
            HERE
            + f"""
import numpy as np, rlx
rlx.distributed.initialize(timeout=60)
place = Path({str(tmp_path)!r}) / "m"
if rlx.distributed.process_index() == 0:
    random_directory(place, FIELDS)
rlx.distributed.wait_for_all()
lm = rlx.load(place, mesh="tensor=2")
name = "model.layers.0.mlp.up_proj.weight"
shards = lm._compiled._weights[name].addressable_shards
assert [s.data.shape for s in shards] == [(24, 32)] and shards[0].index[0].start == 24 * rlx.distributed.process_index()
ids = list(range(3, 20))
difference = np.abs(lm.logits(ids) - rlx.load(place).logits(ids)).max()
assert difference < 1e-5
print("same", len(shards))
"""
        )
        told = launched(["-n", "2", "--devices", "1"], str(script))
        assert told.count("same 1") == 2, told
