"""`TextClassifier`: labels of texts, of pairs of texts, and of the words of a text; `load_classifier` makes one from a
Hugging Face directory or a name.

classifier = rlx.load_classifier("path/to/sentiment")
classifier.classify("What a fine day")                     # [Label(label='POSITIVE', score=0.99)]
rlx.load_classifier("path/to/reranker").rank("a question", ["one text", "another text"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.errors import OpError
from rlx.models import encoder_names
from rlx.models.config import EncoderConfig
from rlx.models.config_hf_heads import classifier_config_from_hf, head_names
from rlx.models.encoder import build_encoder
from rlx.models.model_files import open_weights, read_json, weights_identity
from rlx.models.pull import find_directory
from rlx.models.text_encoder import batches, position_inputs
from rlx.models.weights import WeightFile, hf_weights, read_weights
from rlx.ops.lowered.int8_products import ACTIVATIONS
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.models.tokenizer import EncodedPair, Tokenizer

F32 = npt.NDArray[np.float32]
Text = str | tuple[str, str]


class Label(NamedTuple):
    """A label of a text, and how likely it is."""

    label: str
    score: float


class Ranked(NamedTuple):
    """A text by its place in what was given, and how well it fits."""

    place: int
    score: float


class Tagged(NamedTuple):
    """A part of a text, its label, how likely that is, and where the part begins and ends."""

    text: str
    label: str
    score: float
    start: int
    end: int


def load_classifier(
    path_or_name: str | os.PathLike[str],
    device: str = "cpu",
    threads: int | None = None,
    weights: str | None = None,
    activations: str = "f32",
    mmap: bool = True,
) -> TextClassifier:
    """A classifier, reranker or tagger from a Hugging Face directory, or a name that is pulled first. Its texts may be
    read by an encoder or by a language model.

    `weights` and `activations` are those of `rlx.load_encoder`."""
    from rlx.models.tokenizer import Tokenizer

    if activations not in ACTIVATIONS:
        raise OpError(f"load_classifier: activations must be one of {', '.join(ACTIVATIONS)}, got {activations!r}")
    path = find_directory(path_or_name, "a classifier")
    fields = read_json(path / "config.json")
    from rlx.models import decoder_classifier  # it is one of these itself

    if decoder_classifier.is_decoder(fields):
        return decoder_classifier.DecoderClassifier(path, device, threads, weights, activations, mmap)
    config = classifier_config_from_hf(fields)
    source = weights_identity(path) if mmap else ""
    prefix = encoder_names.HF_ENCODER_PREFIX[config.family]
    file = hf_weights(open_weights(path, mmap), head_names(config), path.name, layers=config.layers, prefix=prefix)
    if weights not in (None, "f32") and (weights, activations) != ("int8", "int8"):
        file.quantize("q8_0" if weights == "int8" else weights, config.layers)
        source = ""
    made = lambda: Tokenizer.from_directory(path)  # noqa: E731
    return TextClassifier(config, file, made, path, device, threads, activations, source)


class TextClassifier:
    """A compiled classifier with its weights and tokenizer. Threads may share one."""

    def __init__(
        self,
        config: EncoderConfig,
        weights: WeightFile,
        tokenizer: Callable[[], Tokenizer],
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        activations: str = "f32",
        source: str = "",
    ) -> None:
        """`source` says which weights these are; see `CompiledGraph.freeze_params`."""
        assert config.head is not None
        self.config, self.head, self.path = config, config.head, path
        self._make_tokenizer = tokenizer
        built = build_encoder(config, weights)
        self.graph = built.graph
        self._compiled = Session(device, CompileOptions(threads=threads, activations=activations)).compile(built.graph)
        read_weights(built.weights, self._compiled, source)
        self._has_types = "types" in self._compiled.input_types

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of their scores."""
        return self.head.labels

    @property
    def report(self) -> CompileReport:
        """What runs where."""
        return self._compiled.report

    def logits(self, texts: Text | Sequence[Text], batch_size: int = 32) -> F32:
        """The scores of the labels f32[n, labels] of texts, or of pairs of texts, as the model gives them; for one text
        f32[labels]. What is longer than the model reads is cut."""
        self._require(of_tokens=False)
        if batch_size < 1:
            raise OpError(f"logits: batch_size must be at least 1, got {batch_size}")
        many: list[Any] = [texts] if _is_one(texts) else list(texts)
        encoded = [self._encoded(text) for text in many]
        found = np.empty((len(many), len(self.labels)), np.float32)
        for chosen in batches([len(e.ids) for e in encoded], batch_size):
            found[chosen] = self._run([encoded[i] for i in chosen])
        return found[0] if _is_one(texts) else found

    def classify(self, texts: Text | Sequence[Text], batch_size: int = 32) -> list[Label] | list[list[Label]]:
        """The labels of a text (or a pair of texts), likeliest first; of several texts a list for each.

        Scores add up to 1, unless a text may have several labels, or there is but one: then each is between 0 and 1."""
        logits = self.logits(texts, batch_size)
        found = [
            [Label(self.labels[i], float(row[i])) for i in np.argsort(-row, kind="stable")]
            for row in self._likelihoods(np.atleast_2d(logits))
        ]
        return found[0] if logits.ndim == 1 else found

    def rank(self, query: str, texts: Sequence[str], top: int | None = None, batch_size: int = 32) -> list[Ranked]:
        """The texts by how well they answer a query, best first; `top` are so many of them. The model must have one
        label, whose score is given as the model gives it."""
        if len(self.labels) != 1:
            raise OpError(
                f"rank: a model that ranks has one label, this one has {len(self.labels)}: {self.labels!r:.80}"
            )
        if isinstance(texts, str):
            raise OpError("rank: texts must be a list of texts, got one text")
        if top is not None and top < 1:
            raise OpError(f"rank: top must be at least 1, got {top}")
        scores = self.logits([(query, text) for text in texts], batch_size)[:, 0] if len(texts) else np.zeros(0)
        order = np.argsort(-scores, kind="stable")[:top]
        return [Ranked(int(i), float(scores[i])) for i in order]

    def tag(self, text: str) -> list[Tagged]:
        """The parts of a text that have a label other than "O", in their order. Neighbours with the same label are one
        part; labels may begin with B- at the beginning of a part and I- inside."""
        self._require(of_tokens=True)
        encoded = self._encoded(text)
        likely = self._likelihoods(self._run([encoded])[0])
        parts: list[tuple[str, list[float], int, int]] = []
        last = -1
        for number, (place, is_special) in enumerate(zip(encoded.places, encoded.is_special)):
            if is_special:
                continue
            best = int(likely[number].argmax())
            begins, name = _parted(self.labels[best])
            score = float(likely[number, best])
            if parts and last == number - 1 and parts[-1][0] == name and not begins:
                _, scores, start, _ = parts.pop()
                parts.append((name, [*scores, score], start, place[1]))
            else:
                parts.append((name, [score], *place))
            last = number
        return [_tagged(text, *part) for part in parts if part[0] != "O"]

    def token_logits(self, text: str) -> F32:
        """The scores of the labels f32[tokens, labels] of each token of a text."""
        self._require(of_tokens=True)
        return np.asarray(self._run([self._encoded(text)])[0], np.float32)

    def _require(self, of_tokens: bool) -> None:
        if self.head.of_tokens != of_tokens:
            kind, methods = ("tokens", "tag") if self.head.of_tokens else ("texts", "classify, logits and rank")
            raise OpError(f"{self.path.name}: this model labels {kind}; use {methods}")

    @cached_property
    def _context(self) -> int:
        return min(self.config.context, self.tokenizer.max_length or self.config.context)

    def _encoded(self, text: Text) -> EncodedPair:
        pair = (text, None) if isinstance(text, str) else text
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise OpError(f"a text is a str, or a pair of them, got {text!r:.80}")
        return self.tokenizer.encode_pair(pair[0], pair[1], self._context)

    def _run(self, encoded: Sequence[EncodedPair]) -> F32:
        """The scores of one batch."""
        lengths = np.array([len(e.ids) for e in encoded], np.int32)
        seq = max(int(lengths.max()), 1)
        ids = np.full((len(encoded), seq), self.config.pad_id, np.int32)
        types = np.zeros_like(ids)
        for row, e in enumerate(encoded):
            ids[row, : len(e.ids)], types[row, : len(e.types)] = e.ids, e.types
        inputs: dict[str, Any] = {"ids": ids, "lengths": lengths, **position_inputs(self.config, seq)}
        if self._has_types:
            inputs["types"] = types
        return np.asarray(self._compiled.run(inputs)[0], np.float32)

    def _likelihoods(self, logits: F32) -> npt.NDArray[np.float64]:
        scores = logits.astype(np.float64)
        if self.head.several or len(self.labels) == 1:
            return np.asarray(0.5 * (1.0 + np.tanh(0.5 * scores)))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))


def _is_one(texts: Any) -> bool:
    """Whether one text or one pair was given; a pair is a tuple."""
    return isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and isinstance(texts[0], str))


def _parted(label: str) -> tuple[bool, str]:
    """Whether a label says that a part begins, and what it says without that."""
    return (label[0] == "B", label[2:]) if label[:2] in ("B-", "I-") else (False, label)


def _tagged(text: str, label: str, scores: Sequence[float], start: int, end: int) -> Tagged:
    """A part without the spaces around it, which some tokenizers count in."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    part = part.strip()
    return Tagged(part, label, float(np.mean(scores)), start, start + len(part))
