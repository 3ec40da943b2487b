"""`Seq2SeqModel`: a model that reads one text and writes another, such as a translation or a summary;
`load_seq2seq` makes one from a Hugging Face directory or a name.

model = rlx.load_seq2seq("path/to/flan-t5-small")
print(model.generate("Translate to German: How old are you?"))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.errors import OpError
from rlx.models.beams import Written, search
from rlx.models.decoder import build_decoder
from rlx.models.encoder import build_encoder
from rlx.models.generation import Completion, Pieces, drained, first_row, write
from rlx.models.kv_cache import ContextOverflow, DecoderRunner, SequenceBatch
from rlx.models.model_files import weights_identity
from rlx.models.pull import find_directory
from rlx.models.seq2seq import Seq2SeqFiles, build_source, open_seq2seq
from rlx.models.text_encoder import batches, position_inputs
from rlx.models.weights import read_weights
from rlx.models.writing_options import ReadOptions, WritingOptions, read_options, require_count, shows_options
from rlx.ops.lowered.int8_products import ACTIVATIONS
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.models.tokenizer import Tokenizer

F32 = npt.NDArray[np.float32]
Source = str | Sequence[int]


def load_seq2seq(
    path_or_name: str | os.PathLike[str],
    device: str = "cpu",
    threads: int | None = None,
    weights: str | None = None,
    activations: str = "f32",
    mmap: bool = True,
) -> Seq2SeqModel:
    """A model that reads one text and writes another from a Hugging Face directory, or a name that is pulled first.

    `weights`, `activations` and `mmap` are those of `rlx.load`."""
    from rlx.models.tokenizer import Tokenizer

    if activations not in ACTIVATIONS:
        raise OpError(f"load_seq2seq: activations must be one of {', '.join(ACTIVATIONS)}, got {activations!r}")
    path = find_directory(path_or_name, "such a model")
    source = weights_identity(path) if mmap else ""
    files = open_seq2seq(path, mmap)
    if weights is not None:
        source = ""
        for file, layers in (
            (files.encoder, files.config.encoder.layers),
            (files.decoder, files.config.decoder.layers),
        ):
            file.quantize(weights, layers)
    made = lambda: Tokenizer.from_directory(path)  # noqa: E731
    return Seq2SeqModel(files, made, path, device, threads, activations, source)


class Seq2SeqModel:
    """A compiled model with its weights and tokenizer. Threads may share one."""

    def __init__(
        self,
        files: Seq2SeqFiles,
        tokenizer: Callable[[], Tokenizer],
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        activations: str = "f32",
        source: str = "",
    ) -> None:
        """`source` says which weights these are; see `CompiledGraph.freeze_params`."""
        self.config, self.path = files.config, path
        self._make_tokenizer = tokenizer
        session = Session(device, CompileOptions(threads=threads, activations=activations))
        # The decoder comes last: what no program has asked for by then, none needs.
        encoder = build_encoder(files.config.encoder, files.encoder)
        between = build_source(files.config.decoder, files.decoder)
        decoder = build_decoder(files.config.decoder, files.decoder)
        self._encoder, self._between, self._decoder = (
            session.compile(built.graph) for built in (encoder, between, decoder)
        )
        for built, program in ((encoder, self._encoder), (between, self._between), (decoder, self._decoder)):
            read_weights(built.weights, program, source and f"{source}\n{built.graph.name}")
        self._source_names = between.names
        self._runner = DecoderRunner(files.config.decoder, self._decoder, decoder.caches)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        made = self._make_tokenizer()
        made.ids = max(made.ids, self.config.decoder.vocab)
        return made

    @property
    def report(self) -> CompileReport:
        """What runs where, of the program that writes."""
        return self._decoder.report

    @shows_options
    def generate(
        self,
        source: str | Sequence[str],
        max_tokens: int = 256,
        *,
        begin: str | None = None,
        beams: int = 1,
        length_penalty: float = 1.0,
        batch_size: int = 8,
        **options: Unpack[WritingOptions],
    ) -> str | list[str]:
        """What the model writes about a text; of several texts a list.

        `begin` is a token that the answer begins with, as translators are told a language, such as "fra_Latn". With
        `beams` above 1 so many answers are written side by side, and the best is given; see `search`.
        """
        many = [source] if isinstance(source, str) else list(source)
        if beams == 1:
            answers = self._complete("generate", many, max_tokens, begin, batch_size, options)
        else:
            if options:
                raise OpError(f"generate: beams take the likeliest tokens, without {', '.join(options)}")
            answers = [found[0] for found in self.beam_search(many, max_tokens, beams, length_penalty, begin=begin)]
        texts = [answer.text for answer in answers]
        return texts[0] if isinstance(source, str) else texts

    def beam_search(
        self,
        sources: Sequence[Source],
        max_tokens: int = 256,
        beams: int = 4,
        length_penalty: float = 1.0,
        *,
        begin: str | None = None,
    ) -> list[list[Completion]]:
        """The best answers to each text or list of token ids, best first. Lengths count to the power of
        `length_penalty`: above 1 longer answers are preferred."""
        require_count("beam_search", "max_tokens", max_tokens)
        require_count("beam_search", "beams", beams)
        if isinstance(sources, str):
            raise OpError("beam_search: sources must be a list of texts; for one text give [text]")
        first, found = self._beginning("beam_search", begin), []
        most = min(max_tokens, self.config.decoder.context - len(first))
        for source in sources:
            ids = self._ids("beam_search", source)
            batch = self._started([ids] * beams)
            answers = search(batch, batch.extend([first] * beams), self._ends, most, length_penalty)
            found.append([self._completion(answer, len(ids)) for answer in answers])
        return found

    @property
    def _ends(self) -> frozenset[int]:
        return frozenset(self.tokenizer.eos_ids)

    def _completion(self, answer: Written, prompt: int) -> Completion:
        ended = answer.tokens[-1:] and answer.tokens[-1] in self._ends
        tokens = answer.tokens[:-1] if ended else answer.tokens
        return Completion(self.tokenizer.decode(tokens), tokens, "stop" if ended else "length", prompt)

    @shows_options
    def complete(
        self,
        sources: Sequence[Source],
        max_tokens: int = 256,
        *,
        n: int | None = None,
        begin: str | None = None,
        batch_size: int = 8,
        **options: Unpack[WritingOptions],
    ) -> list[Completion]:
        """The same of texts or lists of token ids, with tokens, and why each answer ended. With `n` there are so many
        answers to each, one after the other; they differ when a temperature is given."""
        if isinstance(sources, str):
            raise OpError("complete: sources must be a list of texts; for one text use generate or [text]")
        if n is None:
            return self._complete("complete", list(sources), max_tokens, begin, batch_size, options)
        require_count("complete", "n", n)
        return [
            answer
            for source in sources
            for answer in self._complete("complete", [source] * n, max_tokens, begin, n, options)
        ]

    @shows_options
    def stream(
        self, source: Source, max_tokens: int = 256, *, begin: str | None = None, **options: Unpack[WritingOptions]
    ) -> Pieces:
        """What the model writes about a text, piece by piece; the generator's value is the `Completion`."""
        read = self._read("stream", max_tokens, options)
        return first_row(
            self._written([self._ids("stream", source)], max_tokens, self._beginning("stream", begin), read)
        )

    def logits(self, source: Source, written: Sequence[int]) -> F32:
        """f32[len(written), V]: the scores of the token after each one that the answer has so far."""
        batch = self._started([self._ids("logits", source)])
        return batch.all_logits([int(token) for token in written])

    def states(self, source: Source) -> F32:
        """What the encoder makes of a text: f32[tokens, hidden]."""
        return self._encoded([self._ids("states", source)])[0][0]

    def _complete(
        self,
        caller: str,
        sources: Sequence[Source],
        max_tokens: int,
        begin: str | None,
        batch_size: int,
        options: Mapping[str, Any],
    ) -> list[Completion]:
        read = self._read(caller, max_tokens, options)
        require_count(caller, "batch_size", batch_size)
        first = self._beginning(caller, begin)
        ids = [self._ids(caller, source) for source in sources]
        found: dict[int, Completion] = {}
        for chosen in batches([len(row) for row in ids], batch_size):
            answers = drained(self._written([ids[i] for i in chosen], max_tokens, first, read))
            found |= zip(chosen, answers)
        return [found[i] for i in range(len(ids))]

    def _read(self, caller: str, max_tokens: int, options: Mapping[str, Any]) -> ReadOptions:
        require_count(caller, "max_tokens", max_tokens)
        read = read_options(caller, options)
        if read.draft is not None:
            raise OpError(f"{caller}: a draft is for models that continue a text")
        return read

    def _beginning(self, caller: str, begin: str | None) -> list[int]:
        if begin is None:
            return [self.config.start, *self.config.first]
        token = self.tokenizer.id_of(begin)
        if token is None:
            raise OpError(f"{caller}: this model has no token {begin!r} that an answer could begin with")
        return [self.config.start, token]

    def _ids(self, caller: str, source: Source) -> list[int]:
        if isinstance(source, str):
            ids = self.tokenizer.encode(source)
        elif isinstance(source, Sequence | np.ndarray) and all(isinstance(t, int | np.integer) for t in source):
            ids = [int(token) for token in source]
        else:
            raise OpError(f"{caller}: a source is a text or a list of token ids, got {source!r:.80}")
        vocab = self.config.encoder.vocab
        wrong = next((token for token in ids if not 0 <= token < vocab), None)
        if not ids or wrong is not None:
            what = (
                f"token {wrong} is not one of the {vocab} tokens of this model" if ids else "the source has no tokens"
            )
            raise OpError(f"{caller}: {what}")
        # Where distances take the place of positions, texts may be of any length.
        if self.config.encoder.learned_positions and len(ids) > self.config.encoder.context:
            raise ContextOverflow(
                f"{caller}: a source of {len(ids)} tokens is more than the {self.config.encoder.context} that this "
                "model reads; shorten it"
            )
        return ids

    def _encoded(self, ids: Sequence[Sequence[int]]) -> tuple[F32, npt.NDArray[np.int32]]:
        """States of texts, and how many of each are no padding."""
        lengths = np.array([len(row) for row in ids], np.int32)
        tokens = np.full((len(ids), int(lengths.max())), self.config.encoder.pad_id, np.int32)
        for row, given in enumerate(ids):
            tokens[row, : len(given)] = given
        inputs = {"ids": tokens, "lengths": lengths, **position_inputs(self.config.encoder, tokens.shape[1])}
        return np.asarray(self._encoder.run(inputs)[0], np.float32), lengths

    def _started(self, ids: Sequence[Sequence[int]]) -> SequenceBatch:
        """Answers to texts, without a token yet."""
        states, lengths = self._encoded(ids)
        read = dict(zip(self._source_names, self._between.run({"states": states})))
        return SequenceBatch(self._runner.with_inputs({**read, "source_len": lengths}), len(ids))

    def _written(
        self, ids: Sequence[Sequence[int]], max_tokens: int, first: Sequence[int], read: ReadOptions
    ) -> Generator[list[str], None, list[Completion]]:
        batch = self._started(ids)
        answers = yield from write(
            batch,
            self.tokenizer,
            batch.extend([first] * len(ids)),
            options=read.sampling,
            max_tokens=max_tokens,
            stop=read.stop,
            context=self.config.decoder.context,
            logprobs=read.logprobs,
        )
        for answer, row in zip(answers, ids):
            answer.prompt_tokens = len(row)
        return answers
