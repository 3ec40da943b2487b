"""rlx beside its peers, in one run: `rlx bench`.

A case is a program with sizes. The program is written once, in the few words of `Words`, and every engine speaks them:
rlx, NumPy in f64 (what is right), PyTorch, JAX, ONNX Runtime, OpenVINO, tinygrad. One process per engine; rounds of all
engines are interleaved, because the speed of a machine drifts by more than what is to be measured. Two separate runs
are never compared.

A device by itself, without peers, is measured on patterns: `run_benchmark`, `rlx bench --tier L1 --device cpu`.
"""

from rlx.bench.driver import BenchResult as BenchResult
from rlx.bench.driver import run_suite as run_suite
from rlx.bench.patterns import BenchmarkPattern as BenchmarkPattern
from rlx.bench.patterns import Tier as Tier
from rlx.bench.patterns import patterns_of as patterns_of
from rlx.bench.tiers import BenchmarkResult as BenchmarkResult
from rlx.bench.tiers import run_benchmark as run_benchmark
