"""Programs of decoders whose steps are one launch, on a GPU that is none: its kernel runs as text, block by block."""

import fake_libcuda
import numpy as np
import pytest
from decoder_cases import decoder, decoder_case, distance, inputs_of
from grid_text import run_grid
from test_persistent_plan import BOUND
from warp_text import Memory

import rlx
from rlx.backends.cuda.driver_types import DeviceAttribute, LaunchAttributeId
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.persistent import runner
from rlx.backends.cuda.persistent.kernel import kernel_text
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.models.kv_cache import DecoderRunner, SequenceBatch
from rlx.models.language_model import compile_options
from rlx.models.sampling import SamplingOptions
from rlx.models.weights import read_weights

SIZES = {"layers": 1, "heads": 2, "kv_heads": 1, "hidden": 16, "ffn": 16, "vocab": 12, "past": 5}


class DeviceMemory(Memory):
    """What is allocated, and nothing else."""

    def __init__(self, fake):
        self.fake = fake

    def block(self, at, size):
        assert at % min(size, 16) == 0
        found = self.fake.memory_at(int(at), size)
        assert found is not None, "outside of memory"
        return found

    def load(self, at, size):
        return np.stack([self.block(a, size) for a in at])

    def store(self, at, values):
        for a, value in zip(at, values):
            self.block(a, len(value))[:] = value


class StepKernel:
    """The kernel of a plan, as the driver sees it."""

    name = "decode_step"

    def __init__(self, plan, fake):
        self.plan, self.memory = plan, DeviceMemory(fake)
        self.text = kernel_text(plan, "nvptx64-nvidia-cuda")
        self.params = [None] * 12

    def run_grid(self, words, blocks, threads):
        assert blocks == self.plan.blocks
        run_grid(self.text, words, self.memory, blocks, threads, self.plan.shared_bytes)


@pytest.fixture
def stepping(fake, monkeypatch):
    """The fake GPU with two multiprocessors, which runs decode steps."""
    monkeypatch.setitem(fake_libcuda._ATTRIBUTES, DeviceAttribute.MULTIPROCESSOR_COUNT, 2)

    def as_text(plan, machine):
        text = f"step {plan.batch} {plan.chooses}"
        fake.kernels[text] = StepKernel(plan, fake)
        return text

    monkeypatch.setattr(runner, "step_ptx", as_text)
    return fake


@pytest.mark.targets
def test_a_step_is_one_cooperative_launch(stepping):
    case = decoder_case(**SIZES)
    program = rlx.Session("cuda", compile_options(None, "bf16")).compile(case.built.graph)
    read_weights(case.built.weights, program)
    assert "decode: one kernel for up to 8 sequences" in str(program.report)
    before = len(stepping.launches)
    logits, *caches = program.run(inputs_of(case))
    ((name, grid, block, attributes),) = stepping.launches[before:]
    assert (name, grid, block) == ("decode_step", (2, 1, 1), (288, 1, 1))
    assert attributes[LaunchAttributeId.COOPERATIVE].flag == 1
    assert distance(np.asarray(logits)[:, 0], case.wanted) < BOUND
    for cache, wanted in zip(caches, case.after.values(), strict=True):
        assert distance(np.asarray(cache).astype("f4"), wanted.astype("f4")) < BOUND
    # The second launch finds words that the first has left.
    again, *_ = program.run(inputs_of(case))
    assert np.asarray(again).tobytes() == np.asarray(logits).tobytes()


@pytest.mark.targets
def test_several_steps_are_one_launch(stepping):
    """Those of a batch of sequences, of which one does not go on; beside single steps, whose logits choose tokens."""
    sizes = SIZES | {"batch": 2}
    case = decoder_case(**sizes)
    program = rlx.Session("cuda", compile_options(None, "bf16")).compile(case.built.graph)
    read_weights(case.built.weights, program)
    config = decoder(**{name: size for name, size in SIZES.items() if name != "past"})[0]
    steps = DecoderRunner(config, program, case.built.caches)
    found, caches = [], []
    for is_one in (False, True):
        given = inputs_of(case)
        spare = given[case.built.caches[0]].shape[2] - 1
        sequences = SequenceBatch(steps, 2)
        sequences._caches = [given[name] for name in case.built.caches]
        sequences.tokens = [[0] * int(n) for n in given["positions"][:, 0]]
        before = len(stepping.launches)
        if is_one:
            chosen = sequences.write_ahead([int(given["tokens"][0, 0]), None], SamplingOptions(), np.zeros((3, 2)))
            assert [name for name, *_ in stepping.launches[before:]] == ["decode_step"]
            found.append(chosen[:, 0].tolist())
            assert len(sequences.tokens[0]) == given["positions"][0, 0] + 3
        else:
            token, tokens = int(given["tokens"][0, 0]), []
            for _ in range(3):
                token = int(sequences.extend([[token], []])[0].argmax())
                tokens.append(token)
            found.append(tokens)
        caches.append([np.asarray(c)[:, :, :spare].tobytes() for c in sequences._caches])
    assert found[0] == found[1] and caches[0] == caches[1]


@pytest.mark.parametrize(
    ("arch", "activations", "options", "said"),
    [
        (
            "sm_90a",
            "bf16",
            {},
            "decode: one kernel for up to 8 sequences",
        ),
        ("sm_120", "bf16", {}, "decode: one kernel for up to 8 sequences"),
        ("sm_90a", "f32", {}, "decode: a graph of kernels, not one kernel: its products are f32; load the model with"),
        ("sm_80", "bf16", {}, "decode: a graph of kernels, not one kernel: sm_80 has no engine"),
        ("sm_90a", "bf16", {"hidden": 20}, "not one kernel; 1 do not fit: products over"),
    ],
)
def test_the_report_says_how_steps_run(arch, activations, options, said):
    _, built, _ = decoder(layers=1, **options)
    compiled = compile_with_options(built.graph, "cuda", compile_options(None, activations), arch)
    assert said in str(CudaExecutable.of(compiled, arch=arch).report)
