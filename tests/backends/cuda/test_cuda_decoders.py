"""Decoders on a GPU that is none, and launches that begin before others end: every one runs in the interpreter."""

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.backends.cuda.driver_types import LaunchAttributeId
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.decoder import build_decoder
from rlx.models.kv_cache import DecoderRunner, SequenceBatch
from rlx.models.language_model import compile_options
from rlx.models.weight_names import HF_DECODERS
from rlx.models.weights import WeightFile, plain_weight, read_weights


def normal(*dims):
    return np.random.default_rng(0).standard_normal(dims).astype("f4")


def test_kernels_of_a_recorded_program_begin_before_the_one_in_front_ends(fake):
    f = rlx.jit(lambda x: rnp.cumsum(rnp.cumsum(rnp.cumsum(x)[::-1])[::-1]), device="cuda")
    x = rlx.device_put(normal(64), "cuda")
    results = [np.asarray(f(x)) for _ in range(4)]
    start = len(fake.launches) // 2
    # The first run, and a recording: in that only the first kernel has nobody in front.
    plain, recorded = fake.launches[:start], fake.launches[start:]
    assert len(plain) >= 3 and not any(attributes for *_, attributes in plain)
    early = [LaunchAttributeId.PROGRAMMATIC_STREAM_SERIALIZATION in attributes for *_, attributes in recorded]
    assert early == [False] + [True] * (len(recorded) - 1)
    assert all((r == results[0]).all() for r in results)


@pytest.mark.long  # the interpreter takes its time for whole layers
@pytest.mark.parametrize(("activations", "bound"), [("f32", 2e-3), ("bf16", 5e-2)])
def test_a_decoder_with_weights_of_bf16_reads_them_as_they_are(fake, activations, bound):
    config = DecoderConfig("llama", 1, 32, 4, 2, 8, 48, 64, 128, norm_eps=1e-5, rope=RopeConfig(1e4, 8), tied=True)
    names, rng = HF_DECODERS["llama"], np.random.default_rng(3)
    dims = {"embed": (64, 32), "final_norm": (32,), "attn_norm": (32,), "ffn_norm": (32,), "q": (32, 32)}
    dims |= {"k": (16, 32), "v": (16, 32), "o": (32, 32), "gate": (48, 32), "up": (48, 32), "down": (32, 48)}
    arrays = {
        f"{names[role].replace('{i}', '0')}.weight": rng.standard_normal(d).astype(ml_dtypes.bfloat16)
        for role, d in dims.items()
    }
    weights = {name: plain_weight(array) for name, array in arrays.items()}

    def logits(device, options):
        built = build_decoder(config, WeightFile("a test", names, weights), DType.BF16)
        program = rlx.Session(device, options).compile(built.graph)
        read_weights(built.weights, program)
        batch = SequenceBatch(DecoderRunner(config, program, built.caches), 2)
        # Rows of a batch differ in length: those of the shorter one are padded.
        return [batch.extend([[3, 1, 4], [9]]), batch.extend([[6], [5]])], program

    wanted, _ = logits("cpu", None)
    found, program = logits("cuda", compile_options(None, activations))
    for a, b in zip(found, wanted):
        assert np.linalg.norm(a - b) <= bound * np.linalg.norm(b)
    # No weight is converted or turned by a run; only rows, maps, products and attention are left.
    assert "cast + transpose" not in str(program.report).replace("matmul + transpose + cast", "")


@pytest.mark.parametrize("unique", [False, True])
def test_updates_of_places_that_differ_are_threads_of_their_own(fake, unique):
    graph = rlx.Graph("append")
    cache, places = graph.input("cache", (2, 3, "C", 4), "f32"), graph.input("places", (2, "S", 1), "i32")
    new = graph.input("new", (2, "S", 3, 4), "f32")
    with building(graph):
        written = ops.scatter_nd(cache, places, new * 2.0, axes=(2,), batch_dims=1, mode="drop", unique=unique)
    graph.set_outputs([written])
    graph.alias(written, "cache")
    given = {
        "cache": normal(2, 3, 6, 4),
        "new": normal(2, 3, 3, 4),
        "places": np.array([[4, 0, 9], [1, 5, 2]], "i4")[..., None],
    }
    wanted = given["cache"].copy()
    for b, s in np.ndindex(2, 3):
        if (place := given["places"][b, s, 0]) < 6:
            wanted[b, :, place] = 2 * given["new"][b, s]
    np.testing.assert_array_equal(np.asarray(rlx.Session("cuda").compile(graph).run(given)[0]), wanted)
    # Where places may be the same, one thread writes one after the other.
    assert any("for %j" in text for text in fake.kernels) is not unique
