"""`SpeechModel`: recordings to text; `load_speech` makes one from a Hugging Face directory of a Whisper model.

speech = rlx.load_speech("openai/whisper-tiny")
print(speech.transcribe("recording.wav").text)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.audio.mel import whisper_log_mel
from rlx.audio.resampling import resample
from rlx.audio.wav import read_wav
from rlx.backends.api import CompileOptions
from rlx.errors import OpError, ShapeError
from rlx.models.config_whisper import SAMPLE_RATE, WhisperConfig, WhisperTokens, whisper_config, whisper_tokens
from rlx.models.model_files import open_weights, weights_identity
from rlx.models.pull import find_directory
from rlx.models.weights import WeightFile, hf_weights, read_weights
from rlx.models.whisper import WHISPER_NAMES, build_whisper
from rlx.runtime.session import Session
from rlx.trace.jit import jit

if TYPE_CHECKING:
    from rlx.models.tokenizer import Tokenizer

F32 = npt.NDArray[np.float32]
Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[int, int], None]


class Segment(NamedTuple):
    """What was said in one window of a recording."""

    start: float
    end: float
    text: str
    token_ids: list[int]


class Transcript(NamedTuple):
    """What was said in a recording; `language` is None for models that know only one."""

    text: str
    language: str | None
    segments: list[Segment]


def load_speech(path_or_name: str | os.PathLike[str], device: str = "cpu", threads: int | None = None) -> SpeechModel:
    """A speech model from a Hugging Face directory, or a name such as "openai/whisper-tiny" that is pulled first."""
    from rlx.models.tokenizer import Tokenizer

    path = find_directory(path_or_name, "a speech model")
    config = whisper_config(path)
    source = weights_identity(path)
    layers = max(config.encoder_layers, config.decoder_layers)
    weights = hf_weights(open_weights(path), WHISPER_NAMES, path.name, layers=layers, prefix="model.")
    tokens = whisper_tokens(path, config.vocab)
    return SpeechModel(config, tokens, weights, lambda: Tokenizer.from_directory(path), device, threads, source)


class SpeechModel:
    """A compiled Whisper model with its weights and tokenizer. Threads may share one."""

    def __init__(
        self,
        config: WhisperConfig,
        tokens: WhisperTokens,
        weights: WeightFile,
        tokenizer: Callable[[], Tokenizer],
        device: str = "cpu",
        threads: int | None = None,
        source: str = "",
    ) -> None:
        """`source` says which weights these are; see `CompiledGraph.freeze_params`."""
        self.config, self.tokens = config, tokens
        self._make_tokenizer = tokenizer
        programs = build_whisper(config, weights)
        session = Session(device, CompileOptions(threads=threads))
        self._encoder, self._decoder = (session.compile(program.graph) for program in programs)
        for compiled, program in zip((self._encoder, self._decoder), programs):
            read_weights(program.weights, compiled, source and f"{source}\n{program.graph.name}")
        self._cross, self._caches = programs.encoder.kept, programs.decoder.kept
        self._features = jit(whisper_log_mel, static_argnums=1)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    def transcribe(
        self,
        recording: str | os.PathLike[str] | npt.ArrayLike,
        rate: int = SAMPLE_RATE,
        language: str | None = None,
        task: str = "transcribe",
        batch_size: int = 4,
        progress: Progress | None = None,
    ) -> Transcript:
        """The text of a WAV file, or of samples [frames] or [channels, frames] with `rate` of them in a second.

        The recording is cut into windows of 30 s, each of which is written by itself, `batch_size` at a time; words at
        a cut may suffer. `language` is a code such as "en"; without one it is heard from the first window. The task
        "translate" writes English. `progress(done, all)` is called after each batch of windows.
        """
        if batch_size < 1:
            raise OpError(f"transcribe: batch_size must be at least 1, got {batch_size}")
        samples = self._mono(recording, rate)
        # Asked for before anything is computed.
        self._prompt(language or next(iter(self.tokens.languages), None), task)
        width = self.config.samples
        starts = range(0, len(samples), width)
        segments: list[Segment] = []
        for first in range(0, len(starts), batch_size):
            chosen = starts[first : first + batch_size]
            heard = self.encode(np.stack([self.features(samples[s : s + width]) for s in chosen]))
            if language is None and self.tokens.languages:
                language = self._heard_language([part[:1] for part in heard])
            for start, ids in zip(chosen, self._written(heard, self._prompt(language, task))):
                end = min(start + width, len(samples)) / SAMPLE_RATE
                segments.append(Segment(start / SAMPLE_RATE, end, self.tokenizer.decode(ids).strip(), ids))
            if progress is not None:
                progress(first + len(chosen), len(starts))
        text = " ".join(segment.text for segment in segments if segment.text)
        return Transcript(text, language if self.tokens.languages else None, segments)

    def features(self, samples: npt.ArrayLike) -> F32:
        """The log-mel features f32[mels, frames] of at most one window of samples at 16 kHz, filled with silence."""
        given = np.asarray(samples, np.float32)
        if given.ndim != 1 or len(given) > self.config.samples:
            raise ShapeError(f"features: needs at most {self.config.samples} samples, got an array {list(given.shape)}")
        filled = np.pad(given, (0, self.config.samples - len(given)))
        return np.asarray(self._features(filled, self.config.mels))

    def encode(self, features: npt.ArrayLike) -> list[Array]:
        """The keys and values of windows of features f32[n, mels, frames], in the order in which the decoder reads
        them."""
        return [np.asarray(x) for x in self._encoder.run({"features": np.asarray(features, np.float32)})[1:]]

    def hidden_states(self, features: npt.ArrayLike) -> F32:
        """What the encoder makes of features f32[n, mels, frames]: f32[n, positions, hidden]."""
        return np.asarray(self._encoder.run({"features": np.asarray(features, np.float32)})[0])

    def _mono(self, recording: Any, rate: int) -> F32:
        if isinstance(recording, str | os.PathLike):
            wave = read_wav(Path(recording))
            samples, rate = wave.mono, wave.rate
        else:
            samples = np.asarray(recording)
            if samples.ndim not in (1, 2) or samples.dtype.kind != "f":
                raise ShapeError(
                    f"transcribe: needs floats [frames] or [channels, frames], got {samples.dtype}{list(samples.shape)}"
                )
            samples = samples.astype(np.float32) if samples.ndim == 1 else samples.mean(0, dtype=np.float32)
        if not np.isfinite(samples).all():
            raise OpError("transcribe: samples must be finite, got NaN or infinity")
        if rate == SAMPLE_RATE or not len(samples):
            return samples
        return np.asarray(resample(samples, rate, SAMPLE_RATE))

    def _prompt(self, language: str | None, task: str) -> list[int]:
        """The tokens that tell the decoder what to do."""
        found = self.tokens
        prompt = [found.start]
        if found.languages or found.tasks:
            if language is None or language not in found.languages:
                known = ", ".join(sorted(found.languages))
                raise OpError(f"transcribe: this model does not know the language {language!r}; it knows: {known}")
            if task not in found.tasks:
                raise OpError(f"transcribe: task must be one of {', '.join(sorted(found.tasks))}, got {task!r}")
            prompt += [found.languages[language], found.tasks[task]]
        elif task != "transcribe":
            raise OpError(f"transcribe: this model has one language and only transcribes, got task={task!r}")
        return prompt if found.no_timestamps is None else [*prompt, found.no_timestamps]

    def _heard_language(self, heard: Sequence[Array]) -> str:
        """The likeliest language after the start token."""
        logits = _Decoding(self, heard).extend(np.full((1, 1), self.tokens.start, np.int32))[0]
        return max(self.tokens.languages, key=lambda name: float(logits[self.tokens.languages[name]]))

    def _written(self, heard: Sequence[Array], prompt: Sequence[int]) -> list[list[int]]:
        """The likeliest tokens of each window, one after the other, up to an end token or a full context."""
        batch = len(heard[0])
        decoding = _Decoding(self, heard)
        written: list[list[int]] = [[] for _ in range(batch)]
        ended = np.zeros(batch, bool)
        new = np.tile(np.array(prompt, np.int32), (batch, 1))
        end = next(iter(self.tokens.ends))
        while not ended.all() and decoding.length + new.shape[1] <= self.config.context:
            logits = decoding.extend(new)
            logits[:, self.tokens.suppressed] = -np.inf
            if decoding.length == len(prompt):
                logits[:, self.tokens.suppressed_at_first] = -np.inf
            chosen = np.where(ended, end, logits.argmax(-1))
            for row, token in enumerate(chosen.tolist()):
                ended[row] |= token in self.tokens.ends
                if not ended[row]:
                    written[row].append(token)
            new = chosen[:, None].astype(np.int32)
        return written


class _Decoding:
    """Windows whose texts are written together, with the keys and values so far."""

    def __init__(self, model: SpeechModel, heard: Sequence[Array]) -> None:
        self._model = model
        self._cross = dict(zip(model._cross, heard))
        types, batch = model._decoder.input_types, len(heard[0])
        self._caches: list[Array] = [np.zeros((batch, *types[name].dims[1:]), np.float32) for name in model._caches]
        self.length = 0

    def extend(self, tokens: npt.NDArray[np.int32]) -> F32:
        """Append tokens i32[B, T]: logits f32[B, V] after the last ones."""
        batch, count = tokens.shape
        places = np.arange(self.length, self.length + count, dtype=np.int32)
        self.length += count
        inputs = {
            "tokens": tokens,
            "positions": np.tile(places, (batch, 1)),
            "kv_len": np.full(batch, self.length, np.int32),
            **self._cross,
            **dict(zip(self._model._caches, self._caches)),
        }
        # The caches are passed on as they come: a program may write into arrays that it returned itself.
        logits, *updated = self._model._decoder.run(inputs)
        self._caches = list(updated)
        return np.array(logits)
