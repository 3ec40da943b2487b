"""Contrastive fine-tuning of a sentence encoder: it learns what the error codes of a machine mean.

    rlx pull minilm
    python examples/contrastive_minilm.py                    # about a minute
    python examples/contrastive_minilm.py --out tuned        # then rlx.load_encoder("minilm", adapter="tuned")

MiniLM has never seen the codes, so a question with a code finds a description by chance. The pairs (a sentence with a
code, its description) of a batch are told from each other by `nn.contrastive_loss`; only a LoRA adapter is trained. It
is asked with a sentence that was not trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run
from pictures import colours, write_png

import rlx
from rlx import nn, optim, train
from rlx.finetune import AdapterConfig, trainable_encoder
from rlx.models.adapter_files import write_peft
from rlx.models.pull import find_model
from rlx.models.text_encoder import open_encoder

PARTS = ("disk", "fan", "printer", "battery", "camera", "network card")
FAULTS = ("is too hot", "is missing", "does not answer", "needs to be cleaned", "is worn out and has to be replaced")
SENTENCES = ("I got {} this morning.", "The display shows {}.", "What does {} mean?", "It is {} again.")
NEW_SENTENCE = "Help, my machine says {}!"


def codes_and_meanings() -> tuple[list[str], list[str]]:
    """Thirty codes in an order that says nothing, and what they mean."""
    meanings = [f"The {part} {fault}." for part in PARTS for fault in FAULTS]
    numbers = np.random.default_rng(0).choice(np.arange(100, 1000), len(meanings), replace=False)
    return [f"E{number}" for number in numbers], meanings


def similarities(model: str | Path, codes: list[str], meanings: list[str], adapter: str | Path | None) -> Any:
    """How near every question is to every description, f32[codes, meanings]."""
    encoder = rlx.load_encoder(model, adapter=adapter)
    questions, answers = (encoder.embed(texts) for texts in ([NEW_SENTENCE.format(c) for c in codes], meanings))
    return questions @ answers.T


def padded(rows: list[list[int]], length: int) -> dict[str, Any]:
    ids = np.zeros((len(rows), length), np.int32)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return {"ids": ids, "lengths": np.array([len(tokens) for tokens in rows], np.int32)}


def main(argv: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="a Hugging Face directory, or the name of a pulled model")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--out", default="contrastive_minilm", help="a folder for the adapter and the picture")
    args = parser.parse_args(argv)

    codes, meanings = codes_and_meanings()
    config, weights = open_encoder(find_model(args.model))
    model = trainable_encoder(config, weights, AdapterConfig(rank=args.rank, alpha=2 * args.rank))
    tokenizer = rlx.load_encoder(args.model)
    asked = [tokenizer.token_ids([sentence.format(c) for c in codes]) for sentence in SENTENCES]
    answers = tokenizer.token_ids(meanings)
    length = max(len(tokens) for rows in [*asked, answers] for tokens in rows)

    def batch(step: int) -> dict[str, Any]:
        """All codes, each in a sentence of its own choice."""
        chosen = np.random.default_rng(step).integers(0, len(SENTENCES), len(codes))
        questions = [asked[sentence][code] for code, sentence in enumerate(chosen)]
        return {"questions": padded(questions, length), "answers": padded(answers, length), "frozen": model.frozen}

    def loss(params: Any, given: Any) -> Any:
        texts = (given["questions"], given["answers"])
        return nn.contrastive_loss(*(model.vectors(params, given["frozen"], t["ids"], t["lengths"]) for t in texts))

    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(args.rate, weight_decay=0.0))
    state = train.init_state(model.params, optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, batch, args.steps)

    out = Path(args.out)
    write_peft(out, model.trained(result.state.params), config, model.weights, str(args.model))
    found = [similarities(args.model, codes, meanings, adapter) for adapter in (None, out)]
    before, after = (float(np.mean(np.argmax(s, axis=1) == np.arange(len(codes)))) for s in found)
    print(f"descriptions found by a new sentence: {before:.0%} before, {after:.0%} after {args.steps} steps")
    tiles = [np.kron(colours(0.5 + 0.5 * s), np.ones((10, 10, 1), np.uint8)) for s in found]
    gap = np.full((tiles[0].shape[0], 10, 3), 255, np.uint8)
    write_png(out / "similarities.png", np.concatenate([tiles[0], gap, tiles[1]], axis=1))
    print(f"{out / 'similarities.png'}: codes by descriptions, before and after")
    return before, after


if __name__ == "__main__":
    run(main)
