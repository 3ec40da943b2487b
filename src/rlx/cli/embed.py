"""Turn texts into vectors: texts on the command line, or the lines of a file or of standard input.

MODEL is a text encoder, or a language model, whose vectors are made as its directory says (as those of Qwen3-Embedding
are), or are the mean of its last hidden states. Vectors are written as a .npy array (--out), as JSON (--json), or as
lines of numbers.

examples:
  rlx embed minilm "one text" "another text" --json
  rlx embed minilm --file sentences.txt --out vectors.npy
  rlx embed path/to/hf_dir --prompt-name query < questions.txt > vectors.txt
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rlx.cli import add_command
from rlx.cli.arguments import add_device_argument, path, positive, read_text, threads
from rlx.cli.waiting import Waiting
from rlx.models.config_hf_encoders import is_encoder_directory
from rlx.models.language_model import load
from rlx.models.pull import find_model
from rlx.models.pull_progress import ProgressBar
from rlx.models.text_encoder import F32, load_encoder
from rlx.ops.lowered.int8_products import ACTIVATIONS

if TYPE_CHECKING:
    from rlx.cli import Subparsers

Embed: TypeAlias = Callable[[Sequence[str], Callable[[int, int], None]], F32]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "embed", __doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a Hugging Face directory, a GGUF file, or a name such as minilm"
    )
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="what to embed")
    parser.add_argument("--file", type=path, metavar="PATH", help="embed each line of this file")
    parser.add_argument("--prompt", metavar="TEXT", help="put this before each text")
    parser.add_argument(
        "--prompt-name", metavar="NAME", help="put the model's own prompt of this name before each text"
    )
    parser.add_argument("--batch-size", type=positive, default=32, metavar="N", help="texts per batch (default: 32)")
    parser.add_argument("--weights", metavar="TYPE", help="quantise the matrices to this GGUF type, such as q8_0")
    parser.add_argument(
        "--activations",
        choices=tuple(ACTIVATIONS),
        default="f32",
        help="precision of activations in products: int8 is fastest and least accurate (default: f32)",
    )
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="PATH", help="a PEFT folder of this model; may be repeated"
    )
    add_device_argument(parser)
    parser.add_argument(
        "--threads", type=threads, metavar="N", help="CPU threads (default: all that this process may use)"
    )
    parser.add_argument(
        "--no-mmap",
        action="store_true",
        help="read the weights into memory instead of mapping them, so that the file may be changed",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--out", type=path, metavar="PATH", help="write a float32 array [texts, size] in NumPy's format"
    )
    output.add_argument("--json", action="store_true", help="print one JSON object with the vectors")
    return parser


def run(args: argparse.Namespace) -> int:
    texts = args.texts or read_text(None, args.file).splitlines()
    model = find_model(args.model)
    with Waiting(f"loading {args.model}"):
        embed = _from_encoder(model, args) if is_encoder_directory(model) else _from_decoder(model, args)
    with ProgressBar(unit="texts", scale=1) as bar:
        vectors = embed(texts, lambda done, total: bar("embed", done, total))
    if args.out is not None:
        with args.out.open("wb") as file:
            np.save(file, vectors)
    elif args.json:
        rounded = [[float(f"{x:.8g}") for x in row] for row in vectors]
        print(json.dumps({"model": args.model, "dimension": vectors.shape[1], "vectors": rounded}))
    else:
        for row in vectors:
            print(" ".join(f"{x:.8g}" for x in row))
    return 0


def _from_encoder(model: Path, args: argparse.Namespace) -> Embed:
    encoder = load_encoder(
        model, args.device, args.threads, args.weights, args.activations, not args.no_mmap, args.adapter or None
    )

    def embed(texts: Sequence[str], progress: Callable[[int, int], None]) -> F32:
        return encoder.embed(
            texts, args.batch_size, prompt=args.prompt, prompt_name=args.prompt_name, progress=progress
        )

    return embed


def _from_decoder(model: Path, args: argparse.Namespace) -> Embed:
    lm = load(
        model,
        args.device,
        args.threads,
        args.activations,
        weights=args.weights,
        mmap=not args.no_mmap,
        adapter=args.adapter or None,
    )
    return lambda texts, progress: lm.embed(texts, progress=progress, prompt=args.prompt, prompt_name=args.prompt_name)
