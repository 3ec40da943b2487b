"""Transcribe speech in WAV files, or translate it to English, with a Whisper model.

Any sample rate and number of channels will do. Other formats must be converted first, for example with ffmpeg.

examples:
  rlx transcribe recording.wav
  rlx transcribe interview.wav --model path/to/hf_dir --language de --task translate
  rlx transcribe a.wav b.wav --json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import add_device_argument
from rlx.models.pull import missing_file
from rlx.models.pull_progress import ProgressBar
from rlx.models.speech_model import load_speech

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "transcribe", __doc__)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a WAV file")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        default="openai/whisper-tiny",
        help="a Hugging Face directory or a name (default: openai/whisper-tiny, which is downloaded)",
    )
    parser.add_argument("--language", metavar="CODE", help="the spoken language, such as en (default: detected)")
    parser.add_argument(
        "--task",
        default="transcribe",
        metavar="TASK",
        help="transcribe, or translate (to English) (default: transcribe)",
    )
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="windows of 30 s at a time (default: 4)")
    add_device_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all that this process may use)")
    parser.add_argument("--json", action="store_true", help="print one JSON list with text, language and segments")
    return parser


def run(args: argparse.Namespace) -> int:
    for name in args.files:
        # Before a model is downloaded for them.
        if not os.path.exists(name):
            raise missing_file(name)
    model = load_speech(args.model, args.device, args.threads)
    found = []
    with ProgressBar(unit="windows", scale=1) as bar:
        for name in args.files:
            transcript = model.transcribe(
                name,
                language=args.language,
                task=args.task,
                batch_size=args.batch_size,
                progress=functools.partial(bar, name),
            )
            if not args.json:
                print(transcript.text)
            segments = [s._asdict() for s in transcript.segments]
            found.append({"file": name, **transcript._asdict(), "segments": segments})
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    return 0
