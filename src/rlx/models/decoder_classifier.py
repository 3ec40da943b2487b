"""Classifiers whose texts a language model reads: `LlamaForSequenceClassification` and the like, of all its families.

A text is judged by what the model makes of its last token, which has seen all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.errors import FormatError
from rlx.models.config_hf import DECODERS
from rlx.models.config_hf_heads import plain_head
from rlx.models.decoder import build_decoder
from rlx.models.hf_fields import HfFields
from rlx.models.kv_cache import DecoderRunner
from rlx.models.model_files import open_decoder, read_json
from rlx.models.text_classifier import TextClassifier
from rlx.models.weights import read_weights
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.models.tokenizer import EncodedPair

F32 = npt.NDArray[np.float32]
# What families call the layer that makes scores.
_SCORES = ("score", "classifier")


def is_decoder(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a family of language models."""
    return fields.get("model_type") in DECODERS


class DecoderClassifier(TextClassifier):
    """A compiled classifier of this kind."""

    def __init__(
        self, path: Path, device: str, threads: int | None, weights: str | None, activations: str, mmap: bool
    ) -> None:
        fields, files = read_json(path / "config.json"), open_decoder(path, mmap)
        read = HfFields(fields)
        self.head, self.path, self._make_tokenizer = plain_head(read), path, files.tokenizer
        self.decoder_config, file, source = files.config, files.weights, files.source
        name = next((name for name in _SCORES if any(stored == f"{name}.weight" for stored, _ in file.items())), None)
        if name is None:
            raise FormatError(f"{path}: a classifier has the tensor 'score.weight', and there is none")
        if weights not in (None, "f32"):
            file.quantize("q8_0" if weights == "int8" else weights, files.config.layers)
            source = ""
        built = build_decoder(files.config, file.with_names({"score": name}), None, labels=len(self.head.labels))
        self.graph = built.graph
        self._compiled = Session(device, CompileOptions(threads=threads, activations=activations)).compile(built.graph)
        read_weights(built.weights, self._compiled, source)
        self._runner = DecoderRunner(files.config, self._compiled, ())
        self._pad = read.size("pad_token_id", least=0) if read.has("pad_token_id") else None

    @cached_property
    def _context(self) -> int:
        return min(self.decoder_config.context, self.tokenizer.max_length or self.decoder_config.context)

    def _run(self, encoded: Sequence[EncodedPair]) -> F32:
        lengths = [len(e.ids) for e in encoded]
        seq = max(*lengths, 1)
        tokens, places = np.zeros((len(encoded), seq), np.int32), np.arange(seq, dtype=np.int32)
        for row, e in enumerate(encoded):
            tokens[row, : len(e.ids)] = e.ids
        positions = np.broadcast_to(places, tokens.shape)
        rows = positions if self.head.of_tokens else np.array([[self._last(e.ids)] for e in encoded], np.int32)
        inputs = {"tokens": tokens, "positions": positions, "rows": rows, **self._runner.tables_for(seq)}
        wanted = {name: inputs[name] for name in self._compiled.input_types}
        found = np.asarray(self._compiled.run(wanted)[0], np.float32)
        return found if self.head.of_tokens else found[:, 0]

    def _last(self, ids: Sequence[int]) -> int:
        """The place of the last token that is no padding, also where a text ends with such tokens."""
        return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] != self._pad), max(len(ids) - 1, 0))
