"""The same program gives the same LIR, in every process and whatever the order of hashes."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from family_programs import FAMILIES, forward, training
from rlx.compile.compiler import CompilePipeline

for name in ("llama_block", "mobilenet", "mixture_of_experts", "scan_rnn", "quantized_mlp"):
    for build in (forward, training):
        for target in ("cpu", "wgpu"):
            pipeline = CompilePipeline.new(target).with_precision("AutoMixedBf16")
            result = pipeline.compile(build(FAMILIES[name], "f32"))
            print(result.lir, result.prepare, result.lir.as_graph().fingerprint(), result.lir.buffers.to_json())
            print(result.fusion, *result.barriers, sep="\\n")
"""


def lir_text(hash_seed):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hashes_decide_nothing():
    first, second = lir_text("1"), lir_text("2")
    assert first.count("lir @") >= 20
    assert first == second
