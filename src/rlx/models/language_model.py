"""`LanguageModel`: a causal language model that writes text; `load` makes one from a file, a directory or a name.

lm = rlx.load("smollm2")
print(lm.generate("The capital of France is", max_tokens=8))
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.collector import collector_at_rest
from rlx.errors import OpError
from rlx.foreign_names import no_attribute
from rlx.ir.dtype import DType
from rlx.models.config import DecoderConfig
from rlx.models.decode_session import DecodeSession
from rlx.models.decoder import KV_DTYPES, MODEL_ACTIVATIONS, DecoderProgram, build_decoder
from rlx.models.drafts import drafter_of, require_draft
from rlx.models.generation import Completion, Pieces, Steps, drained, first_row, write
from rlx.models.kept_sequences import KeptSequences
from rlx.models.kv_cache import FIRST_CAPACITY, PREFILL_CHUNK, ContextOverflow, DecoderRunner, SequenceBatch
from rlx.models.model_files import DecoderFiles, open_decoder
from rlx.models.picture_tokens import PictureToken, plain_token
from rlx.models.pull import find_model
from rlx.models.sentence_modules import Prompts, vector_rules
from rlx.models.token_losses import token_losses
from rlx.models.weights import read_weights
from rlx.models.writing_options import ReadOptions, WritingOptions, read_options, require_count, shows_options
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.distributed.layouts import Layout
    from rlx.distributed.reports import ProgramReport
    from rlx.models.adapters import Adapter
    from rlx.models.picture_prompts import PictureReader
    from rlx.models.tokenizer import Tokenizer
    from rlx.models.tool_calls import CallStyle
    from rlx.runtime.inspection import Profile
    from rlx.sharding import Mesh

F32 = npt.NDArray[np.float32]
Message = Mapping[str, Any]
Texts = list[str] | tuple[str, ...]
AdapterPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def load(
    path_or_name: str | os.PathLike[str],
    device: str = "cpu",
    threads: int | None = None,
    activations: str = "auto",
    kv_dtype: str = "f32",
    weights: str | None = None,
    mmap: bool = True,
    adapter: AdapterPaths | None = None,
    mesh: Mesh | Layout | str | None = None,
) -> LanguageModel:
    """A language model from a GGUF file, a Hugging Face directory or a name such as "smollm2".

    `kv_dtype` is how keys and values are kept: f32, f16, bf16, or q8 (one byte per element and a scale per row).
    `weights` names a GGUF type such as "q8_0", to which float matrices are quantised while loading. With
    `activations="auto"` products with GGUF blocks multiply codes of 16 bits where the machine has dot products of
    bytes, and those with f16 and bf16 weights codes of 16 bits for both where it has them of words: faster than "f32",
    and the answers are the same but for the last digits. "int8" is faster still, and not exact; with "int16" machines
    without such instructions use codes too. With "bf16" and "f16" values between layers have 16 bits, as most libraries
    compute on GPUs: several times as fast there. `report` says which products.

    `adapter` is a PEFT folder or a GGUF adapter, or several whose changes add up; weights stay as they are.

    With a `mesh` such as "tensor=4" or "fsdp=2,tensor=4" the weights are divided over its devices, through XLA: each
    process reads only the parts that its devices hold. `exchanges()` says before anything runs what a step moves and
    needs.

    The file is mapped, which is fast and takes no memory of its own; if another process cuts it while the model is in
    use, the system ends this one. With `mmap=False` it is read, and may become of it what will.
    """
    if activations not in MODEL_ACTIVATIONS:
        raise OpError(f"load: activations must be one of {', '.join(MODEL_ACTIVATIONS)}, got {activations!r}")
    if kv_dtype not in KV_DTYPES:
        raise OpError(f"load: kv_dtype must be one of {', '.join(KV_DTYPES)}, got {kv_dtype!r}")
    path = find_model(path_or_name)

    def opened() -> DecoderFiles:
        files = open_decoder(path, mmap)
        if weights is not None:
            files.weights.quantize(weights, files.config.layers)
        if adapter is not None:
            files = files._replace(adapters=read_adapters(adapter, files))
        # Otherwise these are no longer the weights of the file.
        return files if weights is None and adapter is None else files._replace(source="")

    layout = None
    if mesh is not None:
        from rlx.models.divided import mesh_layout

        if device not in ("cpu", "xla"):
            raise OpError(f"load: a mesh is of devices of xla, and not of {device!r}")
        device, layout = "xla", mesh_layout(mesh, "load")
    with collector_at_rest():
        return LanguageModel(opened(), device, threads, KV_DTYPES[kv_dtype], activations, opened, layout)


def compile_options(threads: int | None, activations: str) -> CompileOptions:
    """How a model is compiled whose values between layers are as `activations` says."""
    if activations in ("bf16", "f16"):
        return CompileOptions(threads=threads, precision=activations)
    return CompileOptions(threads=threads, activations=activations)


def read_adapters(adapter: AdapterPaths, files: DecoderFiles) -> tuple[Adapter, ...]:
    """The adapters of these paths for a model."""
    from rlx.models.adapter_files import read_adapter

    paths = [adapter] if isinstance(adapter, str | os.PathLike) else adapter
    return tuple(read_adapter(path, files.config, files.weights) for path in paths)


class LanguageModel:
    """A compiled model with its weights and tokenizer. Threads may share one."""

    # Type checkers must go on to find names that do not exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Asked for what is not there; other libraries may have it under this name."""
            no_attribute("LanguageModel", name)

    def __init__(
        self,
        files: DecoderFiles,
        device: str = "cpu",
        threads: int | None = None,
        kv_dtype: DType = DType.F32,
        activations: str = "f32",
        open_again: Callable[[], DecoderFiles] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """`open_again` gives the files once more, for a second program of the same weights; without it they are kept,
        and what they hold of the weights with them. A `layout` divides the model over the devices of its mesh."""
        self.config: DecoderConfig = files.config
        self.path: Path = files.path
        self._make_tokenizer = files.tokenizer
        self._picture_parts = files.pictures
        self._layout = layout
        self._session = Session(device, compile_options(threads, activations))
        # Directories of models that were trained for vectors may have no words to write.
        self._writes = self.config.tied or files.weights.has("head")
        built = self._built(files, kv_dtype, gives_states=not self._writes)
        self.graph = built.graph
        self._runner = self._runner_of(built, files)
        self._compiled = self._runner.program
        self._open_again = open_again if open_again is not None else lambda: files
        self.kept = KeptSequences(self._runner)

    def __repr__(self) -> str:
        c, device = self.config, self._compiled.device
        return f"LanguageModel({self.path.name}: {c.family}, {c.layers} layers of {c.hidden}, on {device})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        with collector_at_rest():
            made: Tokenizer = self._make_tokenizer()
        # Vocabularies are often padded, and a model may write what the tokenizer has no name for.
        made.ids = max(made.ids, self.config.vocab)
        return made

    @cached_property
    def _picture_reader(self) -> PictureReader:
        from rlx.models.picture_prompts import PictureReader

        if isinstance(self._picture_parts, str):
            raise OpError(f"{self.path.name} reads no pictures: {self._picture_parts}")
        return PictureReader(self._picture_parts, self._session, self.config.vocab)

    @property
    def report(self) -> CompileReport:
        """What runs where."""
        return self._compiled.report

    def profile(self, context: int = 16, runs: int = 5, new: int = 1) -> Profile:
        """How long each kernel takes for `new` more tokens after `context` others; see `Profile`."""
        session = self.session()
        if context:
            session.prefill([0] * context)

        def step() -> None:
            session.truncate(context)
            session.prefill([0] * new)

        return self._compiled.profile_while(step, runs)

    def session(self) -> DecodeSession:
        """A new conversation."""
        self._require_words("session")
        return DecodeSession(self._runner)

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, stream: Literal[False] = ..., **options: Unpack[WritingOptions]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, stream: Literal[True], **options: Unpack[WritingOptions]
    ) -> Pieces: ...
    @overload
    def generate(
        self, prompt: Texts, max_tokens: int = ..., *, n: None = ..., **options: Unpack[WritingOptions]
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, n: int, **options: Unpack[WritingOptions]
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: Texts, max_tokens: int = ..., *, n: int, **options: Unpack[WritingOptions]
    ) -> list[list[str]]: ...
    @shows_options
    def generate(
        self,
        prompt: str | Sequence[str],
        max_tokens: int = 64,
        *,
        stream: bool = False,
        n: int | None = None,
        **options: Unpack[WritingOptions],
    ) -> str | list[str] | list[list[str]] | Pieces:
        """The text that follows `prompt`; several prompts are continued together.

        With `stream=True` an iterator over the pieces of the text as they come, for one prompt. With `n` a list of so
        many continuations of each prompt; they differ when a temperature is given.
        """
        if stream:
            if n is not None or not isinstance(prompt, str):
                raise OpError("generate: stream=True is for one prompt and one continuation")
            return self._stream("generate", prompt, max_tokens, options)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        texts = [a.text for a in self._complete("generate", prompts, max_tokens, n, options)]
        if n is None:
            return texts[0] if isinstance(prompt, str) else texts
        return texts if isinstance(prompt, str) else [texts[i : i + n] for i in range(0, len(texts), n)]

    @shows_options
    def complete(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int = 64,
        *,
        n: int | None = None,
        **options: Unpack[WritingOptions],
    ) -> list[Completion]:
        """Completions of prompts, given as text or token ids, with their tokens and why they ended.

        With `n` there are so many of each prompt, one after the other. Sampling is defined in `rlx.models.sampling`.
        """
        return self._complete("complete", prompts, max_tokens, n, options)

    @shows_options
    def stream(self, prompt: str | Sequence[int], max_tokens: int = 64, **options: Unpack[WritingOptions]) -> Pieces:
        """The text that follows `prompt`, piece by piece; pieces are whole characters.

        The generator's value, for those who want it, is the `Completion`.
        """
        return self._stream("stream", prompt, max_tokens, options)

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        max_tokens: int = ...,
        stream: Literal[False] = ...,
        images: Sequence[Any] = ...,
        **options: Unpack[WritingOptions],
    ) -> str: ...
    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        max_tokens: int = ...,
        *,
        stream: Literal[True],
        images: Sequence[Any] = ...,
        **options: Unpack[WritingOptions],
    ) -> Pieces: ...
    @shows_options
    def chat(
        self,
        messages: str | Sequence[Message],
        max_tokens: int = 256,
        stream: bool = False,
        images: Sequence[Any] = (),
        **options: Unpack[WritingOptions],
    ) -> str | Pieces:
        """The answer to a conversation ([{"role": "user", "content": ..}, ..], or one message as text).

        With `stream=True` an iterator over its pieces. `images` are pictures (paths, arrays u8[H, W, 3], or pictures of
        Pillow) that stand before the last message of the user, of a model that reads some. Contents may also be lists
        of {"type": "text", "text": ..} and {"type": "image", "image": ..}.
        """
        pieces = self._stream("chat", self.chat_ids(messages, images=images), max_tokens, options)
        return pieces if stream else "".join(pieces)

    @shows_options
    def answer(
        self,
        messages: str | Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        max_tokens: int = 256,
        *,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        **options: Unpack[WritingOptions],
    ) -> dict[str, Any]:
        """The next message of a conversation with functions that the model may call: {"role": "assistant", "content":
        .., "tool_calls": [..]}, the latter if it calls some. To go on, append it and what each call returns, as
        {"role": "tool", "tool_call_id": .., "content": ..}.

        `tools` and `tool_choice` are those of OpenAI's interface. Calls are of functions that there are, and their
        arguments follow their JSON schemas.
        """
        from rlx.models.tool_calls import read_message, read_tools

        wanted, style = read_tools(tools, tool_choice, parallel_tool_calls), self.call_style
        if wanted is None:
            return {"role": "assistant", "content": self.chat(messages, max_tokens, **options)}
        read = read_options("answer", options)
        if read.form is not None:
            raise OpError("answer: schema and grammar are for answers without tools")
        read = read._replace(form=wanted.form(style))
        ids = self.chat_ids(messages, wanted.definitions)
        [found] = drained(self._write("answer", [ids], max_tokens, {}, read=read))
        return read_message(style, found.text)

    @property
    def call_style(self) -> CallStyle:
        """How this model writes calls of functions."""
        from rlx.models.tool_calls import call_style

        return call_style(self.tokenizer.tool_template or self.tokenizer.chat_template)

    def prompt_ids(self, text: str, images: Sequence[Any] = ()) -> list[int]:
        """The prompt of a text in which a mark such as `<image>` stands for each of some pictures."""
        if not images:
            return self.tokenizer.encode(text)
        return self._picture_reader.prompt(text, images, self.tokenizer, add_special=True)

    def chat_ids(
        self,
        messages: str | Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        images: Sequence[Any] = (),
    ) -> list[int]:
        """The prompt of a conversation, and of pictures before its last question, by the model's own template, which is
        told of the `tools`."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if isinstance(messages, Mapping) or not all(isinstance(message, Mapping) for message in messages):
            wanted = "a text or a list of messages, [{'role': .., 'content': ..}]"
            raise OpError(f"chat: a conversation is {wanted}, got {messages!r:.80}")
        # Most models are never talked to.
        from rlx.models import chat_template_process
        from rlx.models.tool_calls import template_turns

        # What renders the template starts while the tokenizer is made.
        chat_template_process.start()
        style = self.call_style
        turns, told = template_turns(messages, style, tools), list(tools) if tools and style.is_native else None
        if images or not isinstance(self._picture_parts, str):
            return self._picture_reader.conversation(turns, images, self.tokenizer, told)
        return self.tokenizer.encode(self.tokenizer.render_chat(turns, tools=told), add_special=False)

    def logits(self, token_ids: Sequence[int]) -> F32:
        """f32[len(token_ids), V]: the scores of the token after each position."""
        self._require_words("logits")
        ids = self._ids("logits", token_ids)
        batch, pieces = SequenceBatch(self._runner), range(0, len(ids), PREFILL_CHUNK)
        return np.concatenate([batch.all_logits(ids[i : i + PREFILL_CHUNK]) for i in pieces])

    def embed(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        normalize: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> F32:
        """One vector per text, f32[n, hidden]; for a single string f32[hidden]: with `pooling="mean"` the mean of the
        model's last hidden states, with "last" that of the last token, of length 1 unless `normalize=False`. Without
        them as a directory of sentence-transformers says; else the mean, of length 1.

        `prompt` (or the one that the model calls `prompt_name`) is put before each text. Texts longer than the context
        are cut. `progress(done, all)` is called after each text. The first call reads the model's file again, for a
        program of its own.
        """
        rules = vector_rules(self.path, self.config.context, pooling, normalize)
        before = self._prompts.chosen(prompt, prompt_name)
        many = [texts] if isinstance(texts, str) else list(texts)
        vectors = np.empty((len(many), self.config.hidden), np.float32)
        for row, text in enumerate(many):
            states = self._states(self._embedded_ids(before + text if isinstance(text, str) else text, rules.limit))
            vector = states[-1] if rules.reads_last else states.mean(axis=0, dtype=np.float64)
            vectors[row] = vector / max(float(np.linalg.norm(vector)), 1e-12) if rules.normalize else vector
            if progress is not None:
                progress(row + 1, len(many))
        return vectors[0] if isinstance(texts, str) else vectors

    def _embedded_ids(self, text: str | Sequence[int], limit: int) -> list[int]:
        """The tokens of a text that are read. Of a text that is cut the tokens stay that stand around every text: the
        vector may be that of the last one."""
        ids = self._ids("embed", text)
        if len(ids) <= limit:
            return ids
        return self.tokenizer.encode(text, max_length=limit) if isinstance(text, str) else ids[:limit]

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model wants before what it embeds, by name; from `config_sentence_transformers.json`."""
        return self._prompts.by_name

    @cached_property
    def _prompts(self) -> Prompts:
        return Prompts(self.path)

    def _states(self, ids: list[int]) -> F32:
        """f32[len(ids), hidden]: what logits are made of, after each token."""
        batch, pieces = SequenceBatch(self._state_runner), range(0, len(ids), PREFILL_CHUNK)
        return np.concatenate([batch.all_logits(ids[i : i + PREFILL_CHUNK]) for i in pieces])

    @cached_property
    def _state_runner(self) -> DecoderRunner:
        if not self._writes:
            return self._runner
        files = self._open_again()
        return self._runner_of(self._built(files, gives_states=True), files)

    def _built(
        self, files: DecoderFiles, kv_dtype: DType | None = DType.F32, gives_states: bool = False
    ) -> DecoderProgram:
        places = None
        if self._layout is not None:
            from rlx.models.layouts import whole_places

            places = whole_places(self._layout, files.config)
        # Decode steps of other devices want all layers alike, and a program that is divided keeps its rows in place.
        cuts_rows = self._layout is None and str(self._session.device) == "cpu"
        return build_decoder(
            files.config,
            files.weights,
            kv_dtype,
            gives_states,
            files.adapters,
            places,
            cuts_rows,
            reads_pictures=not isinstance(files.pictures, str),
        )

    def _runner_of(self, built: DecoderProgram, files: DecoderFiles) -> DecoderRunner:
        """A program with its weights."""
        if self._layout is not None:
            from rlx.models.divided import divide, on_host

            parts = (files.config, files.weights, built.graph, built.weights, built.caches)
            return DecoderRunner(self.config, divide(self._session, self._layout, *parts), built.caches, on_host)
        program = self._session.compile(built.graph)
        read_weights(built.weights, program, files.source)
        return DecoderRunner(self.config, program, built.caches)

    def exchanges(self, new: int = 1, context: int = FIRST_CAPACITY, batch: int = 1) -> ProgramReport:
        """Of a model on a mesh: what a step of `new` tokens with room for `context` moves between devices and needs on
        each of them. Nothing runs."""
        from rlx.models.divided import DividedProgram

        if not isinstance(self._compiled, DividedProgram):
            raise OpError("exchanges: this model is on one device; load it with a mesh, such as mesh='tensor=4'")
        return self._compiled.exchanges({"B": batch, "S": new, "R": 1, "C": context})

    def perplexity(
        self,
        text: str | Sequence[int],
        context: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> float:
        """exp of the mean negative log probability of each token given those before it.

        Longer texts are read in pieces of `context` tokens (the model's own by default), each from its beginning.
        `progress(done, all)` is called with the number of tokens that were read.
        """
        self._require_words("perplexity")
        ids = self._ids("perplexity", text)
        window = min(context or self.config.context, self.config.context)
        if len(ids) < 2 or window < 2:
            raise OpError(f"perplexity: needs two tokens and a context of two, got {len(ids)} and {window}")
        losses = []
        for start in range(0, len(ids), window):
            tell = (lambda done, start=start: progress(start + done, len(ids))) if progress is not None else None
            losses.append(token_losses(SequenceBatch(self._runner), ids[start : start + window], tell))
        return math.exp(float(np.concatenate(losses).mean()))

    def _ids(self, caller: str, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Sequence | np.ndarray) and all(isinstance(t, int | np.integer) for t in prompt):
            ids = [plain_token(t) for t in prompt if not isinstance(t, str)]
        else:
            raise OpError(f"{caller}: a prompt is a text or a list of token ids, got {prompt!r:.80}")
        if not ids:
            raise OpError(f"{caller}: the prompt has no tokens; this model needs at least one")
        reads = self._runner.reads_pictures
        wrong = next(
            (t for t in ids if not (0 <= t < self.config.vocab or (reads and isinstance(t, PictureToken)))), None
        )
        if wrong is not None:
            raise OpError(f"{caller}: token {wrong} is not one of the {self.config.vocab} tokens of this model")
        return ids

    def _require_words(self, caller: str) -> None:
        if not self._writes:
            raise OpError(f"{caller}: {self.path.name} has no weights for the words to write (lm_head); use embed")

    def _complete(
        self,
        caller: str,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int,
        n: int | None,
        options: Mapping[str, Any],
    ) -> list[Completion]:
        if isinstance(prompts, str):
            raise OpError(f"{caller}: prompts must be a list of prompts; for one text use generate or [text]")
        if not isinstance(prompts, Sequence):
            raise OpError(f"{caller}: a prompt is a text, and prompts are a list of them, got {prompts!r:.80}")
        return drained(self._write(caller, prompts, max_tokens, options, n))

    def _stream(self, caller: str, prompt: str | Sequence[int], max_tokens: int, options: Mapping[str, Any]) -> Pieces:
        return first_row(self._write(caller, [prompt], max_tokens, options))

    def _write(
        self,
        caller: str,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int,
        options: Mapping[str, Any],
        n: int | None = None,
        read: ReadOptions | None = None,
    ) -> Steps:
        """Check what a method was given, at once; the answers come as the generator is run."""
        self._require_words(caller)
        read = read_options(caller, options) if read is None else read
        require_draft(caller, read.draft, self)
        require_count(caller, "max_tokens", max_tokens)
        if n is not None:
            require_count(caller, "n", n)
        ids = [self._ids(caller, p) for p in prompts]
        longest = max(map(len, ids), default=0)
        if longest >= self.config.context:
            raise ContextOverflow(
                f"{caller}: a prompt of {longest} tokens leaves no room in the context of {self.config.context} tokens "
                "of this model; shorten it"
            )
        return self.steps(ids, max_tokens, read, n or 1) if ids else _nothing()

    def steps(self, prompts: list[list[int]], max_tokens: int, read: ReadOptions, n: int = 1) -> Steps:
        """The texts that follow prompts, `n` of each, step by step; what was given is checked already."""
        batch, logits = self._begin(prompts)
        if n > 1:
            self.kept.keep(batch)
            batch, logits = batch.repeated(n), np.repeat(logits, n, axis=0)
        is_sound = False
        try:
            answers = yield from write(
                batch,
                self.tokenizer,
                logits,
                options=read.sampling,
                max_tokens=max_tokens,
                stop=read.stop,
                context=self.config.context,
                logprobs=read.logprobs,
                form=read.form,
                draft=drafter_of(read.draft) if len(batch.tokens) == 1 else None,
            )
            is_sound = True
            return answers
        except GeneratorExit:
            # Whoever reads has had enough; between two steps, the sequences are whole.
            is_sound = True
            raise
        finally:
            # Ctrl-C may come in the middle of a step: then nobody knows what the caches hold.
            if is_sound:
                self.kept.keep(batch)

    def _begin(self, prompts: list[list[int]]) -> tuple[SequenceBatch, F32]:
        """Sequences that hold the prompts, and the logits after them. One prompt reuses what a kept one shares."""
        batch = self.kept.take(prompts[0]) if len(prompts) == 1 else SequenceBatch(self._runner, len(prompts))
        return batch, batch.extend([ids[len(known) :] for ids, known in zip(prompts, batch.tokens)])


def _nothing() -> Steps:
    """No prompts have no answers."""
    yield from ()
    return []
