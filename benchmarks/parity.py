"""How far the answers of a language model are from those of its weights in f64: rlx, rlx f32, rlx int8, llama.cpp.

    PYTHONPATH=src:tests python benchmarks/parity.py                                     # SmolLM2
    PYTHONPATH=src:tests python benchmarks/parity.py --shape 1b 8b --type Q4_K Q6_K      # real widths, random weights
    PYTHONPATH=src:tests python benchmarks/parity.py --peer-python PYTHON_WITH_LLAMA_CPP

For 512 positions of one text: mean and largest KL divergence in nats, and how often the likeliest token is the same.
The f64 side is a plain NumPy forward, the one that tests use. What rlx does by itself must stay below 1e-6 and keep
every likeliest token: the exit status says whether it did.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from models.exact_gguf import gguf_logits
from rlx.bench.agreement import compare_logits, engine_logits
from rlx.bench.engine_process import EngineProblem
from rlx.bench.synthetic_models import MODEL_TYPES, SHAPES, synthetic_model
from rlx.formats.gguf import open_gguf
from rlx.models.pull import pull
from rlx.models.tokenizer import Tokenizer

TEXT = Path(__file__).parent.parent / "LICENSE"
MODEL = "smollm2"
POSITIONS = 512
ENGINES = ("rlx", "rlx f32", "rlx int8", "llama.cpp")
# What is kept by the mode that nobody asked for.
LARGEST_KL = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", choices=tuple(SHAPES), help="models with random weights, not SmolLM2")
    parser.add_argument("--type", nargs="*", choices=MODEL_TYPES, default=["Q4_K"], help="their types")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES)
    parser.add_argument("--positions", type=int, default=POSITIONS)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has llama.cpp")
    args = parser.parse_args()
    is_kept = True
    for path in _models(args):
        with open_gguf(path) as file:
            tokens = Tokenizer.from_gguf(file).encode(args.text.read_text(encoding="utf-8"))[: args.positions]
        exact = gguf_logits(path, tokens)
        print(f"{path.name}, {len(tokens)} positions, against f64")
        print(f"{'engine':10}  {'mean KL':>9}  {'largest KL':>10}  {'top-1':>7}", flush=True)
        for engine in args.engines:
            try:
                python = args.peer_python if engine == "llama.cpp" else sys.executable
                found = compare_logits(exact, engine_logits(engine, path, tokens, python=python))
            except EngineProblem as problem:
                print(f"{engine:10}  not measured: {problem}", flush=True)
                is_kept = is_kept and engine != "rlx"
                continue
            print(f"{engine:10}  {found.mean_kl:9.2e}  {found.max_kl:10.2e}  {found.top1:7.2%}", flush=True)
            if engine == "rlx":
                is_kept = is_kept and found.mean_kl <= LARGEST_KL and found.top1 == 1.0
    return 0 if is_kept else 1


def _models(args: argparse.Namespace) -> Iterator[Path]:
    if not args.shape:
        yield pull(MODEL)
        return
    for shape in args.shape:
        for kind in args.type:
            yield synthetic_model(shape, kind)


if __name__ == "__main__":
    sys.exit(main())
