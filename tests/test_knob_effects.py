"""Every knob does something: what it says is seen in a process that has its variable set, and not in one without.

One process imports rlx, then forks a child for each case, so that thirty processes cost little more than one.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.compile.pipeline import STEPS
from rlx.knobs import all_knobs

# What a child does; each returns a text that the knob changes, besides what goes to standard error.
PROGRAM = r"""
import json, os, sys
import numpy as np
import rlx, rlx.numpy, rlx.nn
from rlx import ops
from rlx.fusion import FusionOptions, FusionTarget, fusion_passes

def jit():
    f = rlx.jit(lambda x: rlx.numpy.tanh(x @ x) + 1)
    return str(f(np.ones((8, 8), "f4"))[0][0])

def session():
    g = rlx.Graph("layer")
    x = g.input("x", ("B", 16))
    h = ops.relu(x @ g.param("w", (16, 16)) + g.param("b", (16,)))
    g.set_outputs([ops.softmax(h @ g.param("u", (16, 16)) + x)])
    compiled = rlx.Session("cpu").compile(g)
    rng = np.random.default_rng(0)
    compiled.set_params({n: rng.standard_normal(s.dims).astype("f4") for n, s in compiled.param_types.items()})
    return str(compiled.run(x=np.ones((2, 16), "f4"))[0][0, 0])

def both():
    return jit() + " " + session()

def passes(target="metal"):
    name = FusionTarget(target)
    return " ".join(p.name + str(vars(p)) for p in fusion_passes(name, FusionOptions.for_target(name)))

def wgpu_passes():
    return passes("wgpu")

def options():
    return str(FusionOptions.for_target(FusionTarget.Cuda))

def threshold():
    g = rlx.Graph("block")
    x, mask = g.input("x", (1, 8, 16)), g.input("mask", (1, 8), "bool")
    qkv = x @ g.param("w", (16, 48)) + g.param("w_bias", (48,))
    q, k, v = (ops.narrow(qkv, -1, 16 * i, 16) for i in range(3))
    y = ops.attention(q, k, v, mask, num_heads=2, head_dim=8, layout="bsm")
    g.set_outputs([y @ g.param("o", (16, 16)) + g.param("o_bias", (16,))])
    # Targets that claim the block; those with kernels of the generator have no use for it.
    from rlx.compile.claims.fusion.fuse_attention_block import FuseAttentionBlock
    return str(FuseAttentionBlock().run(g))

def dispatch():
    from rlx.compile.claims.logical_kernel import KernelDispatchConfig
    return str(KernelDispatchConfig.from_env().policy)

def derivative():
    from rlx.autodiff.higher_order import HigherOrderOptions
    return str(HigherOrderOptions.new())

def single_kernel():
    from rlx.compile.claims.region_encode import fk_batch_use_single_launch
    return str(fk_batch_use_single_launch(4))

def threads():
    from rlx.backends.cpu.threads import thread_count
    return str(thread_count(None))

def device():
    from rlx.runtime.device import default_device
    return default_device() + " " + jit()

def broken():
    from dataclasses import replace
    from rlx.compile import pipeline
    from rlx.errors import RlxError
    def run(c):
        graph = c.graph.copy()
        graph.nodes[-1].inputs = (99,)
        return replace(c, graph=graph)
    def mend(c):
        return replace(c, graph=c.mir)
    change = {"unfuse": run, "simplify": mend}
    pipeline.STEPS = tuple(s._replace(run=change.get(s.name, s.run)) for s in pipeline.STEPS)
    try:
        return session()
    except RlxError as error:
        return str(error)

def arena():
    g = rlx.Graph("two")
    x = g.input("x", (3, 3))
    g.set_outputs([ops.tanh(x @ x) @ x])
    return str(rlx.CompilePipeline.new().compile(g).lir.buffers.alignment)

def cpu():
    from rlx.kernels.machines import host
    return host().name + jit()

def main():
    out = sys.argv[1]
    for number, (action, variables) in enumerate(json.loads(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{out}/{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
            os.environ.update(variables)
            print(globals()[action](), flush=True)
            # As at the end of a process.
            import atexit
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(pid, 0)

main()
"""

# The least that CPUs of this family have.
LOWEST = {"x86_64": "generic", "AMD64": "generic"}.get(platform.machine(), "neon")
# Knob (or knob=level): what a child does, the value, and what is seen then and not otherwise: on standard error, or
# with None in the result.
SEEN = {
    "debug=1": ("both", "1", ["rlx: compile 1: @", "rlx: @layer on cpu, 1 run on one thread", "matmul + add + relu"]),
    "debug=2": ("both", "2", ["plan_buffers", "constant_folding", "rlx: @layer for cpu"]),
    "debug=3": ("both", "3", ["mir @layer", "lir @layer"]),
    "debug=4": ("both", "4", ["define ", "rlx: kernel "]),
    "verbose=1": ("both", "1", ["plan_buffers", "kernel dispatch: cpu"]),
    "verbose=2": ("both", "2", ["kernel dispatch: cpu", "rlx: hardware cpu: "]),
    "dispatch_report": ("both", "1", ["kernel dispatch: cpu", "  - MatMul", "rewritten:\n  - Softmax"]),
    "fusion_report": ("both", "1", ["fusion report", "product_operand"]),
    "skip_passes": ("both", "nonsense", None),
    "verify": ("broken", "2", None),
    "backend": ("device", "reference", None),
    "threads": ("threads", "1", None),
    "cpu": ("cpu", LOWEST, None),
    "kernel_dispatch": ("dispatch", "common", None),
    "higher_order_no_fuse": ("derivative", "1", None),
    "fk_batch_single_kernel": ("single_kernel", "1", None),
    "fuse_attn_threshold": ("threshold", "1", None),
    "enable_fuse_transformer_layer": ("wgpu_passes", "1", None),
    "disable_matmul_bias_fusion": ("passes", "1", None),
    "disable_residual_ln_fusion": ("passes", "1", None),
    "no_weight_concat_fusion": ("passes", "1", None),
    "no_shared_input_matmul": ("passes", "1", None),
    "keep_elementwise_regions": ("options", "1", None),
    "decompose_fusion_regions": ("options", "1", None),
    "no_fk_fusion": ("options", "1", None),
    "fuse_region_prologue": ("options", "0", None),
    "fuse_batch_preprocess": ("options", "0", None),
    "native_fk_regions": ("options", "0", None),
    "no_native_fk_regions": ("options", "1", None),
    "metal_no_fusion": ("passes", "1", None),
    "metal_unfuse_regions": ("passes", "1", None),
    "arena_align": ("arena", "256", None),
}
# Knobs that name files: `test_files` looks at them.
FILES = {"dump": "dumped", "ir_dump": "stages.txt", "trace_perfetto": "trace.json", "cache_dir": "cache"}
MISSPELT = {"RLX_DEBGU": "1", "RLX_THRED": "2", "RLX_COMPLETELY_ELSE": "1"}


def variable(knob):
    return "RLX_" + knob.partition("=")[0].upper()


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    """What each case has printed: (result, standard error)."""
    folder = tmp_path_factory.mktemp("children")
    cases = {}
    for action, _, _ in SEEN.values():
        cases[f"no knob, {action}"] = (action, {})
    for knob, (action, value, _) in SEEN.items():
        cases[knob] = (action, {variable(knob): value})
    files = {variable(knob): str(folder / name) for knob, name in FILES.items()}
    cases["files"] = ("both", files)
    cases["misspelt"] = ("both", MISSPELT)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLX_")}
    env = {**clean, "RLX_CACHE_DIR": str(folder / "shared"), "RLX_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(list(cases.values()))]
    subprocess.run(command, env=env, check=True, timeout=300)
    texts = {
        case: tuple((folder / f"{number}.{name}").read_text() for name in ("out", "err"))
        for number, case in enumerate(cases)
    }
    return folder, texts


# Seen by tests/backends/xla, mlx, tpu, cuda, rocm (test_hipblaslt.py) and wgpu (test_wgpu_features.py), which need what
# it is for.
OF_ENGINES = {
    *("xla_devices", "xla_buckets", "mlx_mode", "tpu_hlo_dump", "cuda_one_kernel", "rocm_blas", "wgpu_features"),
}


def test_no_knob_is_forgotten():
    listed = {name.partition("=")[0] for name in SEEN} | set(FILES) | {"override"} | OF_ENGINES
    assert listed == {knob.name for knob in all_knobs()}


@pytest.mark.parametrize("knob", SEEN)
def test_the_effect_is_seen(children, knob):
    action, _, wanted = SEEN[knob]
    _, texts = children
    (result, shown), (plain_result, plain) = texts[knob], texts[f"no knob, {action}"]
    assert plain_result.strip()
    if wanted is None:
        assert (result, shown) != (plain_result, plain)
    else:
        assert result == plain_result
        for text in wanted:
            assert text in shown and text not in plain


def test_files(children):
    folder, texts = children
    assert texts["files"][0] == texts["no knob, both"][0]
    last = f"{[step.name for step in STEPS].index('plan_buffers') + 1:02}-plan_buffers"
    assert {p.name.split(".")[2] for p in (folder / "dumped").glob("layer-*")} >= {"00-program", last}
    # The stages of both programs, one after the other.
    assert (folder / "stages.txt").read_text().count("==== LIR ====") == 2
    events = json.loads((folder / "trace.json").read_text())
    names = {e["name"] for e in events}
    assert names >= {"compile @layer", "group", "plan_buffers", "run @layer"}
    assert any(e["cat"] == "kernel matmul" and "relu" in e["name"] and e["dur"] > 0 for e in events)
    assert any((folder / "cache").rglob("*"))


def test_an_edited_step_is_compiled(children, tmp_path):
    """What `RLX_DUMP` wrote is what `RLX_OVERRIDE` reads, from one process to the next."""
    folder, _ = children
    (program,) = (folder / "dumped").glob("layer-*.cpu.00-program.mir")
    (tmp_path / program.name).write_text(program.read_text().replace("relu(", "exp("))
    cases = json.dumps([("session", {}), ("session", {"RLX_OVERRIDE": str(tmp_path)})])
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLX_")} | {"RLX_CACHE_DIR": str(folder / "shared")}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), cases], env=env, check=True, timeout=300)
    plain, edited = ((Path(tmp_path) / f"{n}.out").read_text() for n in (0, 1))
    assert plain != edited and "replaces what was compiled" in (tmp_path / "1.err").read_text()


def test_a_misspelt_name_is_reported_once(children):
    _, texts = children
    result, shown = texts["misspelt"]
    assert result == texts["no knob, both"][0]
    assert shown.splitlines() == [
        "rlx: nothing reads the environment variable RLX_COMPLETELY_ELSE; docs/knobs.md lists all settings",
        "rlx: nothing reads the environment variable RLX_DEBGU; did you mean RLX_DEBUG?",
        "rlx: nothing reads the environment variable RLX_THRED; did you mean RLX_THREADS?",
    ]
