"""Label texts, order them by how well they answer a query, or find the named parts of them: texts on the command line,
or the lines of a file or of standard input.

MODEL is a Hugging Face directory of a classifier. Each text becomes a line: its likeliest label with the score, with
--query its score and the text, best first, and of a model that labels words the parts that it found.

examples:
  rlx classify path/to/sentiment "A fine day" "A dull one"
  rlx classify path/to/reranker --query "How do I bake bread?" --file passages.txt --top 3
  rlx classify path/to/ner "Ada was born in London" --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlx.cli import add_command
from rlx.cli.arguments import path, positive, read_text, threads
from rlx.cli.waiting import Waiting
from rlx.models.text_classifier import Label, TextClassifier, load_classifier
from rlx.ops.lowered.int8_products import ACTIVATIONS

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "classify", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face directory, or a Hugging Face id")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="what to label")
    parser.add_argument("--file", type=path, metavar="PATH", help="label each line of this file")
    parser.add_argument("--query", metavar="TEXT", help="order the texts by how well they answer this")
    parser.add_argument("--top", type=positive, metavar="N", help="the N best texts, or the N likeliest labels of each")
    parser.add_argument("--batch-size", type=positive, default=32, metavar="N", help="texts per batch (default: 32)")
    parser.add_argument("--weights", metavar="TYPE", help="quantise the matrices to this GGUF type, such as q8_0")
    parser.add_argument(
        "--activations", choices=tuple(ACTIVATIONS), default="f32", help="precision in products (default: f32)"
    )
    parser.add_argument("--device", default="cpu", help="the device to run on; see `rlx devices` (default: cpu)")
    parser.add_argument(
        "--threads", type=threads, metavar="N", help="CPU threads (default: all that this process may use)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    texts = args.texts or read_text(None, args.file).splitlines()
    with Waiting(f"loading {args.model}"):
        classifier = load_classifier(args.model, args.device, args.threads, args.weights, args.activations)
    found, lines = _found(classifier, texts, args)
    if args.json:
        print(json.dumps({"model": args.model, "results": found}))
    else:
        for line in lines:
            print(line)
    return 0


def _found(classifier: TextClassifier, texts: Sequence[str], args: argparse.Namespace) -> tuple[list[Any], list[str]]:
    """What is printed as JSON, and as lines."""
    if args.query is not None:
        ranked = classifier.rank(args.query, texts, args.top, args.batch_size)
        found: list[Any] = [{"place": r.place, "score": r.score, "text": texts[r.place]} for r in ranked]
        return found, [f"{r.score:.4f}  {texts[r.place]}" for r in ranked]
    if classifier.head.of_tokens:
        tagged = [classifier.tag(text) for text in texts]
        parts = [", ".join(f"{tag.text} ({tag.label})" for tag in tags) for tags in tagged]
        return [{"text": t, "parts": [tag._asdict() for tag in tags]} for t, tags in zip(texts, tagged)], parts
    labelled: list[list[Label]] = []
    for row in classifier.classify(list(texts), args.batch_size):
        assert isinstance(row, list)
        labelled.append(row[: args.top or (None if args.json else 1)])
    lines = ["  ".join(f"{label.label} {label.score:.4f}" for label in row) for row in labelled]
    return [{"text": t, "labels": [label._asdict() for label in row]} for t, row in zip(texts, labelled)], lines
