"""`TextEncoder`: texts to vectors; `load_encoder` makes one from a Hugging Face directory or a name.

encoder = rlx.load_encoder("minilm")
vectors = encoder.embed(["one text", "another text"])      # f32[2, 384]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.errors import BindingError, FormatError, OpError
from rlx.models import encoder_names
from rlx.models.config import EncoderConfig
from rlx.models.config_hf_encoders import encoder_config_from_directory
from rlx.models.encoder import build_encoder
from rlx.models.hf_layouts import REARRANGED
from rlx.models.model_files import open_weights, read_json, weights_identity
from rlx.models.pull import find_model
from rlx.models.relative_positions import place_rows, relative_buckets
from rlx.models.rope_tables import rope_tables
from rlx.models.sentence_modules import Prompts
from rlx.models.weights import Weight, WeightFile, hf_weights, read_weights
from rlx.ops.lowered.int8_products import ACTIVATIONS
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.distributed.layouts import Layout
    from rlx.distributed.reports import ProgramReport
    from rlx.models.adapters import Adapter
    from rlx.models.divided import DividedProgram
    from rlx.models.tokenizer import Tokenizer
    from rlx.runtime.compiled_graph import CompiledGraph
    from rlx.runtime.inspection import Profile
    from rlx.sharding import Mesh

F32 = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

# Tokens of a batch that keep all threads busy; more of them gain nothing, and may be padding.
ENOUGH_TOKENS = 512


def load_encoder(
    path_or_name: str | os.PathLike[str],
    device: str = "cpu",
    threads: int | None = None,
    weights: str | None = None,
    activations: str = "f32",
    mmap: bool = True,
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    mesh: Mesh | Layout | str | None = None,
) -> TextEncoder:
    """A text encoder from a Hugging Face directory or a name such as "minilm".

    `weights` names a GGUF type such as "q8_0", to which the matrices are quantised while loading; "int8" is short for
    eight bits. With `activations="int8"` products multiply codes of 8 bits, of weights and of activations: about twice
    as fast, and vectors that differ a little.
    With `mmap=False` the weights are read into memory instead of being mapped; see `rlx.load`. `adapter` is a PEFT
    folder, or several whose changes add up. A `mesh` divides the weights over its devices; see `rlx.load`.
    """
    from rlx.models.adapter_files import read_adapter
    from rlx.models.tokenizer import Tokenizer

    if activations not in ACTIVATIONS:
        raise OpError(f"load_encoder: activations must be one of {', '.join(ACTIVATIONS)}, got {activations!r}")
    path = find_model(path_or_name)
    source = weights_identity(path) if mmap and path.is_dir() else ""
    config, file = open_encoder(path, mmap)
    # Eight bits on both sides have a form of their own, with a scale for each column: floats are left for it.
    if weights not in (None, "f32") and (weights, activations) != ("int8", "int8"):
        file.quantize("q8_0" if weights == "int8" else weights, config.layers)
        # These are no longer the weights of the file.
        source = ""
    adapters: list[Adapter] = []
    if adapter is not None:
        paths = [adapter] if isinstance(adapter, str | os.PathLike) else adapter
        adapters, source = [read_adapter(place, config, file) for place in paths], ""
    layout = None
    if mesh is not None:
        from rlx.models.divided import mesh_layout

        if device not in ("cpu", "xla"):
            raise OpError(f"load_encoder: a mesh is of devices of xla, and not of {device!r}")
        device, layout = "xla", mesh_layout(mesh, "load_encoder")
    made = lambda: Tokenizer.from_directory(path)  # noqa: E731
    return TextEncoder(config, file, made, path, device, threads, activations, source, adapters, layout)


def open_encoder(path: Path, mmap: bool = True) -> tuple[EncoderConfig, WeightFile]:
    """The config and the weights of a Hugging Face directory."""
    if not path.is_dir():
        raise FormatError(f"{path}: an encoder is a Hugging Face directory with config.json and model.safetensors")
    config = encoder_config_from_directory(path)
    names, prefix = encoder_names.HF_ENCODERS[config.family], encoder_names.HF_ENCODER_PREFIX[config.family]
    file = hf_weights(
        open_weights(path, mmap),
        names | {"dense": "dense.{i}"},
        path.name,
        layers=config.layers,
        prefix=prefix,
        rearrange=REARRANGED.get(config.family),
    )
    more: dict[str, Weight] = {}
    for place, dense in enumerate(config.dense):
        own = hf_weights(open_weights(path / dense.folder, mmap), {"linear": "linear"}, dense.folder, layers=0)
        more |= {name.replace("linear.", f"dense.{place}.", 1): weight for name, weight in own.items()}
    return config, file.replaced(more)


def lowers_case(path: Path) -> bool:
    """Whether texts are made lower case before anything else."""
    file = path / "sentence_bert_config.json"
    return bool(read_json(file).get("do_lower_case")) if file.is_file() else False


def batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """The numbers of texts in batches of at most `most`, the longest first. Texts of similar length share a batch, and
    one that is large enough ends where shorter ones begin, so that little is padding.

    >>> batches([3, 300, 300, 4, 200], 8), batches([3, 300, 300, 4, 200], 1)
    ([[1, 2], [4], [3, 0]], [[1], [2], [4], [3], [0]])
    """
    found: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if found and len(found[-1]) < most:
            own, size = lengths[number], lengths[found[-1][0]]
            if own == size or (2 * own > size and len(found[-1]) * size < ENOUGH_TOKENS):
                found[-1].append(number)
                continue
        found.append([number])
    return found


class TextEncoder:
    """A compiled encoder with its weights and tokenizer. Threads may share one."""

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
        adapters: Sequence[Adapter] = (),
        layout: Layout | None = None,
    ) -> None:
        """`source` says which weights these are; see `CompiledGraph.freeze_params`. A `layout` divides the model over
        the devices of its mesh."""
        self.config, self.path = config, path
        self._make_tokenizer = tokenizer
        self._prompts = Prompts(path)
        session = Session(device, CompileOptions(threads=threads, activations=activations))
        self._compiled: CompiledGraph | DividedProgram
        if layout is None:
            built = build_encoder(config, weights, adapters)
            self._compiled = session.compile(built.graph)
            read_weights(built.weights, self._compiled, source)
        else:
            from rlx.models.divided import divide
            from rlx.models.layouts import whole_places

            built = build_encoder(config, weights, adapters, whole_places(layout, config))
            self._compiled = divide(session, layout, config, weights, built.graph, built.weights)
        self.graph = built.graph
        self._position_inputs = lru_cache(64)(partial(position_inputs, config))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model wants before its inputs, by name; from `config_sentence_transformers.json`."""
        return self._prompts.by_name

    @cached_property
    def _lowers_case(self) -> bool:
        return lowers_case(self.path)

    @property
    def report(self) -> CompileReport:
        """What runs where."""
        return self._compiled.report

    def exchanges(self, length: int = 128, batch: int = 1) -> ProgramReport:
        """Of a model on a mesh: what texts of so many tokens move between devices and need on each of them. Nothing
        runs."""
        from rlx.models.divided import DividedProgram

        if not isinstance(self._compiled, DividedProgram):
            raise OpError("exchanges: this model is on one device; load it with a mesh, such as mesh='tensor=4'")
        return self._compiled.exchanges({"B": batch, "S": length})

    def profile(self, text: str = "How long does each kernel take?", runs: int = 5) -> Profile:
        """How long each kernel takes for one text; see `Profile`."""
        return self._compiled.profile_while(lambda: self.embed(text), runs)

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self.config.dimension

    def embed(
        self,
        texts: str | Sequence[str],
        batch_size: int = 32,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: Progress | None = None,
    ) -> F32:
        """One vector per text, f32[n, dimension]; for a single string f32[dimension].

        Texts longer than the model reads are cut. `prompt` (or the one that the model calls `prompt_name`) is put
        before each text. A batch has at most `batch_size` texts; `progress(done, all)` is called after each.
        """
        if batch_size < 1:
            raise OpError(f"embed: batch_size must be at least 1, got {batch_size}")
        many = [texts] if isinstance(texts, str) else list(texts)
        before = self._prompts.chosen(prompt, prompt_name)
        ids = self.token_ids([before + text for text in many]) if many else []
        vectors, done = np.empty((len(ids), self.dimension), np.float32), 0
        for chosen in batches([len(row) for row in ids], batch_size):
            vectors[chosen] = self._run([ids[i] for i in chosen])[1]
            done += len(chosen)
            if progress is not None:
                progress(done, len(ids))
        return vectors[0] if isinstance(texts, str) else vectors

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, cut to what the model reads."""
        read = [text.lower() for text in texts] if self._lowers_case else texts
        return self.tokenizer.encode_batch(read, max_length=self.config.context)

    def forward(self, ids: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> F32:
        """Hidden states f32[n, s, d] of token ids [n, s]; mask is 1 for tokens and 0 for padding on the right.

        Hidden states of padding mean nothing.
        """
        tokens = np.asarray(ids)
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or 0 in tokens.shape:
            raise BindingError(f"forward: ids must be whole numbers [n, s], got {tokens.dtype}{list(tokens.shape)}")
        present = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask).astype(bool)
        if present.shape != tokens.shape:
            raise BindingError(f"forward: mask must have the shape of ids {tokens.shape}, got {present.shape}")
        if (present[:, 1:] > present[:, :-1]).any() or not present[:, 0].all():
            raise BindingError("forward: padding must stand on the right: each row of mask is ones, then zeros")
        return self._run([row[:n].tolist() for row, n in zip(tokens, present.sum(1))], tokens.shape[1])[0]

    def _run(self, ids: Sequence[Sequence[int]], length: int | None = None) -> list[F32]:
        """Hidden states and vectors of one batch."""
        lengths = np.array([len(row) for row in ids], np.int32)
        seq = max(int(lengths.max()), 1) if length is None else length
        if seq > self.config.context:
            raise BindingError(f"{seq} tokens are more than the {self.config.context} that this model reads")
        tokens = np.full((len(ids), seq), self.config.pad_id, np.int32)
        for row, given in enumerate(ids):
            tokens[row, : len(given)] = given
        inputs = {"ids": tokens, "lengths": lengths, **self._position_inputs(seq)}
        return [np.asarray(x) for x in self._compiled.run(inputs)]


def position_inputs(config: EncoderConfig, seq: int) -> dict[str, npt.NDArray[Any]]:
    """What a program is told about the places of so many tokens."""
    if config.disentangled is not None:
        d = config.disentangled
        return {"buckets": place_rows(seq, d.span, d.buckets, d.max_distance)}
    if config.rope is not None:
        found: dict[str, npt.NDArray[Any]] = {}
        for name, rope in (("rope", config.rope), ("rope.local", config.local_rope)):
            if rope is not None:
                found[f"{name}.cos"], found[f"{name}.sin"] = rope_tables(rope, seq)
        return found
    if config.relative_buckets:
        return {"buckets": relative_buckets(seq, config.relative_buckets, config.relative_max_distance)}
    return {}
