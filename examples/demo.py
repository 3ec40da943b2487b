"""A language model answers a question, in code that was compiled a moment ago. Run it with `make demo`.

    python examples/demo.py "Why is the sky blue?"

The model is SmolLM2 (135 million weights of 4 bits), which is pulled on the first run. Where it cannot be got, the
small model that comes with rlx writes instead, and where there is none either, a tour without a model is shown.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rlx
from rlx.errors import RlxError
from rlx.models.language_model import LanguageModel
from rlx.models.pull import SHIPPED, pull

QUESTION = "What does a compiler do? Answer in one sentence."
REPORT = Path(__file__).resolve().parent.parent / "build" / "demo-report.html"


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else QUESTION
    try:
        path = pull("smollm2")
    except (RlxError, OSError) as error:
        print(f"SmolLM2 cannot be got here: {error}\n")
        without_smollm2()
        return
    lm = loaded(path)
    print(f"\n> {question}")
    show(lm, lm.chat_ids(question), max_tokens=120)


def without_smollm2() -> None:
    if not SHIPPED["tiny"].is_file():
        from tour import tour

        print("This copy of rlx has no model of its own either, so here is a tour without one.")
        tour()
        return
    print("Instead, the small model that comes with rlx: trained on Shakespeare by examples/train_tiny_model.py, it")
    print("knows no facts.")
    lm = loaded(SHIPPED["tiny"])
    show(lm, lm.tokenizer.encode("ROMEO:"), max_tokens=80)


def loaded(path: Path) -> LanguageModel:
    started = time.perf_counter()
    lm = rlx.load(path)
    print(f"{path.name}: loaded and compiled in {time.perf_counter() - started:.2f} s")
    return lm


def show(lm: LanguageModel, prompt: list[int], max_tokens: int) -> None:
    """Stream what follows the prompt, then say how fast it was and where to see what ran."""
    started = time.perf_counter()
    pieces = lm.stream(prompt, max_tokens)
    first = None
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            answer = end.value
            break
        first = first or time.perf_counter()
        print(piece, end="", flush=True)
    ended = time.perf_counter()
    first = first or ended
    # The first token comes with the prompt.
    speed = max(len(answer.token_ids) - 1, 0) / max(ended - first, 1e-9)
    print(f"\n\n{len(prompt)} tokens read in {first - started:.2f} s, then {speed:.0f} tokens per second")
    REPORT.parent.mkdir(exist_ok=True)
    lm.report.html(REPORT)
    print(f"{lm.report.splitlines()[0]}\nThe compile report, kernel by kernel: {REPORT}")


if __name__ == "__main__":
    main()
