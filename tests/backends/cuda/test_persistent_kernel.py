"""The kernel of a decode step: its text run without a GPU by all blocks at once, and its PTX as assemblers see it."""

import re

import numpy as np
import pytest
from decoder_cases import BLOCK_SIZES, STEPS, decoder_case, distance, stored_all
from grid_text import GLOBAL, run_grid
from test_persistent_plan import BOUND, LLAMA_1B, LLAMA_8B, SHARED, stored_shape

from rlx.backends.cuda.persistent.interpret import Exchange, run_plan
from rlx.backends.cuda.persistent.kernel import kernel_text
from rlx.backends.cuda.persistent.plan import THREADS, Plan
from rlx.backends.cuda.persistent.runner import step_ptx
from rlx.kernels.machines import machine_named

MOST_STEPS = 4


class Device:
    """Memory with all arrays of a case, and launches of its kernel."""

    def __init__(self, case, plan):
        self.case, self.plan = case, plan
        step = plan.step
        arrays = {name: np.asarray(a) for name, a in case.arrays.items()}
        arrays |= {"<owned>": np.array(plan.owned(), "i4"), "<exchange>": np.zeros(plan.exchange_words, "u8")}
        arrays |= {"<logits>": np.full((plan.batch, step.head.height), np.nan, "f4")}
        arrays |= {"<table>": np.zeros(len(plan.table), "u8"), "<moves>": np.ones(plan.batch, "i4")}
        arrays |= {"<chosen>": np.full((MOST_STEPS, plan.batch), -1, "i4")}
        self.at, end = {}, GLOBAL
        for name, array in arrays.items():
            self.at[name], end = end, end + -(-array.nbytes // 256) * 256
        arrays["<table>"][:] = [e.offset + (self.at[e.name] if e.name else 0) for e in plan.table]
        self.memory = np.zeros(end - GLOBAL, np.uint8)
        for name, array in arrays.items():
            self.view(name, array)[...] = array
        self.text = kernel_text(plan, "nvptx64-nvidia-cuda")

    def view(self, name, like):
        start = self.at[name] - GLOBAL
        return self.memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)

    def launch(self, number, seed, steps=1):
        step, plan = self.plan.step, self.plan
        names = ["<table>", "<owned>", "<exchange>", step.tokens, step.positions, step.lengths, "<logits>", "<moves>"]
        capacity = self.case.arrays[step.layers[0].keys].shape[2]
        arguments = [*(self.at[name] for name in (*names, "<chosen>")), capacity, number, steps]
        run_grid(self.text, arguments, self.memory, plan.blocks, THREADS, plan.shared_bytes, seed)
        if plan.chooses:
            return self.view("<chosen>", np.zeros((MOST_STEPS, plan.batch), "i4"))[:steps].copy()
        return self.view("<logits>", np.zeros((plan.batch, step.head.height), "f4")).copy()


def check(case, plan, launches=1):
    device = Device(case, plan)
    arrays = {name: np.array(a) for name, a in case.arrays.items()}
    wanted = run_plan(plan, arrays, 0, Exchange(plan))
    found = [device.launch(number, seed=number) for number in range(launches)]
    assert distance(found[0], case.wanted) < BOUND
    # Closer to the plan, which rounds where the kernel does; a sum on the other side of a rounding is another operand.
    assert distance(found[0], wanted) < BOUND / 4
    assert len({f.tobytes() for f in found}) == 1
    for name, cache in case.after.items():
        assert distance(device.view(name, cache).astype("f4"), cache.astype("f4")) < BOUND


def test_blocks_together_give_the_logits_of_the_cpu_engine():
    case = decoder_case(layers=1, heads=2, kv_heads=1, past=5, vocab=12, hidden=16, ffn=16)
    plan = case.plan(2)
    assert plan.splits == 2
    check(case, plan)


def test_a_marked_kernel_notes_the_times_of_its_phases():
    case = decoder_case(layers=1, heads=2, kv_heads=1, past=5, vocab=12, hidden=16, ffn=16)
    plain = case.plan(2)
    plan = Plan(case.step, 1, 2, SHARED, is_marked=True)
    assert not plain.marks and plain.exchange_words == plan.marks_at
    devices = [Device(case, p) for p in (plain, plan)]
    assert len({device.launch(0, seed=1).tobytes() for device in devices}) == 1
    words = devices[1].view("<exchange>", np.zeros(plan.exchange_words, "u8"))[plan.marks_at :]
    layer, last = words.reshape(2, 2, len(plan.marks)).swapaxes(0, 1)
    # Those of logits stand behind the layers.
    is_last = np.array([mark.startswith("logits") for mark in plan.marks])
    assert (np.diff(layer[:, ~is_last].astype("i8")) > 0).all() and (np.diff(last[:, is_last].astype("i8")) > 0).all()


# Options of `decoder_case`, and blocks.
CHAINS = {
    "small": ({"layers": 1, "heads": 2, "kv_heads": 1, "past": 31, "vocab": 12, "hidden": 16, "ffn": 16}, 2),
    "two sequences": ({"layers": 2, "batch": 2, "past": 30, "vocab": 28, "hidden": 16, "ffn": 16}, 3),
    "blocks without rows": ({"hidden": 16, "heads": 1, "kv_heads": 1, "ffn": 16, "layers": 1, "vocab": 16}, 7),
    "windows": ({"family": "mistral", "windows": (9, None), "past": 62, "vocab": 20, "heads": 2, "kv_heads": 1}, 3),
}


@pytest.mark.targets
@pytest.mark.parametrize("name", CHAINS)
def test_steps_of_one_launch_are_those_of_several(name):
    """Tokens and caches are those of launches that are given each token by the host, whose logits choose it."""
    options, blocks = CHAINS[name]
    case, batch = decoder_case(**options), options.get("batch", 1)
    plain = Device(case, case.plan(blocks, batch))
    wanted, places = [], {name: case.arrays[name] for name in (case.step.positions, case.step.lengths)}
    for number in range(3):
        wanted.append(plain.launch(number, seed=number).argmax(-1))
        plain.view(case.step.tokens, case.arrays["tokens"])[:, 0] = wanted[-1]
        for place, at_first in places.items():
            plain.view(place, at_first)[...] = at_first + number + 1
    plan = Plan(case.step, batch, blocks, SHARED, chooses=True)
    chain = Device(case, plan)
    assert chain.launch(0, seed=5, steps=3).tolist() == np.array(wanted).tolist()
    for name, cache in case.after.items():
        assert np.array_equal(*(device.view(name, cache).view("u2") for device in (plain, chain)))


@pytest.mark.targets
@pytest.mark.parametrize("name", STEPS)
def test_kernels_of_all_forms_give_the_logits_of_the_cpu_engine(name):
    options, blocks, launches = STEPS[name]
    case = decoder_case(**options)
    check(case, case.plan(blocks, options.get("batch", 1)), launches)


def test_the_ptx_streams_weights_and_exchanges_words():
    plan = Plan(LLAMA_1B._replace(layers=LLAMA_1B.layers[:2]), 1, 132, SHARED)
    ptx = step_ptx(plan, machine_named("sm_90a"))
    entry = ptx[ptx.index(".entry decode_step") :]
    assert ".maxntid 288" in ptx and ".local" not in ptx
    assert "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint" in entry
    assert "ld.relaxed.gpu.global.v2.b64" in entry and "st.relaxed.gpu.global.b64" in entry
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in entry
    # No barrier over the grid, no fence: the tags decide.
    assert not re.search(r"fence\.(acq_rel|sc)|membar|griddepcontrol|atom\.", entry)


@pytest.mark.targets
def test_stages_of_half_the_warps_give_the_same():
    case = decoder_case(**BLOCK_SIZES | {"stored": stored_all("Q4_K"), "ffn": 2816})
    whole, half = case.plan(2), case.plan(2)
    half.stage_chunks, half.stage_bytes = whole.stage_chunks // 2, whole.stage_bytes // 2
    assert len({Device(case, plan).launch(0, seed=1).tobytes() for plan in (whole, half)}) == 1


LARGE = [("1B", LLAMA_1B, 1), ("1B", LLAMA_1B, 8), ("8B", LLAMA_8B, 1)]
LARGE += [(f"8B {kind}", stored_shape(LLAMA_8B, kind, v="Q6_K", down="Q6_K"), 1) for kind in ("Q4_K", "Q5_K")]
LARGE += [("1B Q4_0", stored_shape(LLAMA_1B, "Q4_0"), 8), ("1B Q8_0", stored_shape(LLAMA_1B, "Q8_0"), 3)]


@pytest.mark.targets
@pytest.mark.parametrize(("name", "step", "batch"), LARGE)
def test_large_kernels_use_no_stack(name, step, batch, assembled):
    said = assembled(step_ptx(Plan(step, batch, 132, SHARED), machine_named("sm_90a")))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    # Of 65536 for the threads of a multiprocessor.
    assert registers <= 65536 // THREADS // 8 * 8, f"{name}: {registers}"
