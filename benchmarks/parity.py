"""How far the answers of a language model are from those of its weights in f64: rlx, rlx int16, rlx int8, llama.cpp.

    PYTHONPATH=tests python benchmarks/parity.py [PYTHON_WITH_LLAMA_CPP]

For 512 positions of one text: mean and largest KL divergence in nats, and how often the likeliest token is the same.
The f64 side is a plain NumPy forward, the one that tests use.
"""

from __future__ import annotations

import sys
from pathlib import Path

from models.exact_gguf import gguf_logits
from rlx.bench.agreement import compare_logits, engine_logits
from rlx.bench.engine_process import EngineProblem
from rlx.formats.gguf import open_gguf
from rlx.models.pull import pull
from rlx.models.tokenizer import Tokenizer

TEXT = Path(__file__).parent.parent / "LICENSE"
MODEL = "smollm2"
POSITIONS = 512
ENGINES = ("rlx", "rlx int16", "rlx int8", "llama.cpp")


def main() -> int:
    peer_python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    path = pull(MODEL)
    with open_gguf(path) as file:
        tokens = Tokenizer.from_gguf(file).encode(TEXT.read_text(encoding="utf-8"))[:POSITIONS]
    exact = gguf_logits(path, tokens)
    print(f"{path.name}, {len(tokens)} positions, against f64")
    print(f"{'engine':10}  {'mean KL':>9}  {'largest KL':>10}  {'top-1':>7}")
    for engine in ENGINES:
        try:
            python = peer_python if engine == "llama.cpp" else sys.executable
            found = compare_logits(exact, engine_logits(engine, path, tokens, python=python))
        except EngineProblem as problem:
            print(f"{engine:10}  not measured: {problem}")
            continue
        print(f"{engine:10}  {found.mean_kl:9.2e}  {found.max_kl:10.2e}  {found.top1:7.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
