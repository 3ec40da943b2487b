"""The options that `generate`, `stream`, `complete` and `chat` share: names, what they mean, and how they are read.

`shows_options` puts them into the signature and the text that `help()` shows, and the command line has the same texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np

from rlx.errors import OpError
from rlx.models.sampling import SamplingOptions

if TYPE_CHECKING:
    from rlx.models.grammar import Grammar
    from rlx.models.language_model import LanguageModel

F = TypeVar("F", bound=Callable[..., Any])


class WritingOptions(TypedDict, total=False):
    """How tokens are chosen, and when to stop; see `OPTIONS`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str]
    logprobs: int | None
    schema: Mapping[str, Any] | None
    grammar: str | None
    draft: LanguageModel | Literal["prompt"] | None


class Option(NamedTuple):
    """What is used when it is not given, and what it does."""

    default: Any
    doc: str


OPTIONS: dict[str, Option] = {
    "temperature": Option(0.0, "0 takes the most probable token; higher values draw more freely"),
    "top_k": Option(None, "draw among the K most probable tokens"),
    "top_p": Option(None, "draw among the fewest tokens that have P of the probability"),
    "min_p": Option(None, "leave out tokens below P times the most probable one"),
    "repetition_penalty": Option(1.0, "above 1 makes all tokens of prompt and answer less likely"),
    "presence_penalty": Option(0.0, "taken from the logit of each token that the answer has"),
    "frequency_penalty": Option(0.0, "taken from the logit of a token once for each time that the answer has it"),
    "seed": Option(None, "the same seed makes the same choices"),
    "logit_bias": Option(None, "what is added to the logits of some tokens, by their ids; -inf for never"),
    "stop": Option((), "a text, or several, at which an answer ends; it is not part of the answer"),
    "logprobs": Option(None, "keep the log probability of each token, and those of the K most probable ones"),
    "schema": Option(None, "a JSON schema that the answer follows; {'type': 'object'} for any JSON object"),
    "grammar": Option(None, "a grammar in llama.cpp's notation (GBNF) that the answer follows"),
    "draft": Option(None, "guesses tokens, which the model then reads together and decides on: 'prompt', or a model"),
}


# What transformers, llama.cpp and others call options and arguments of ours.
_OTHER_NAMES = {
    **dict.fromkeys(("max_new_tokens", "n_predict", "max_length", "num_predict"), "max_tokens"),
    **dict.fromkeys(("temp", "do_sample"), "temperature"),
    **dict.fromkeys(("repeat_penalty", "rep_pen"), "repetition_penalty"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("json_schema", "response_format"), "schema"),
    **dict.fromkeys(("draft_model", "assistant_model", "prompt_lookup_num_tokens"), "draft"),
    "num_return_sequences": "n",
}


class ReadOptions(NamedTuple):
    """Options that were checked."""

    sampling: SamplingOptions
    stop: list[str]
    logprobs: int | None
    form: Grammar | None
    draft: Any = None


def read_options(caller: str, given: Mapping[str, Any]) -> ReadOptions:
    """Check what a method was given; errors begin with its name."""
    for name in given:
        if name not in OPTIONS:
            import difflib  # only where something is wrong

            near = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise OpError(f"{caller}: there is no option {name!r}; {hint}options are {', '.join(OPTIONS)}")
    options = {name: given.get(name, option.default) for name, option in OPTIONS.items()}
    names = ("stop", "logprobs", "schema", "grammar", "draft")
    stop, logprobs, schema, grammar, draft = (options.pop(name) for name in names)
    stops: list[str] = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, list | tuple) else [stop]
    if not all(isinstance(text, str) for text in stops):
        raise OpError(f"{caller}: stop must be a text or a list of texts, got {stop!r:.80}")
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int) or logprobs < 0):
        raise OpError(f"{caller}: logprobs must be a whole number from 0 on, got {logprobs!r:.80}")
    return ReadOptions(SamplingOptions.of(caller, options), stops, logprobs, _form(caller, schema, grammar), draft)


def _form(caller: str, schema: Any, grammar: Any) -> Grammar | None:
    """The grammar of a schema, or one that is written as such."""
    if grammar is not None:
        if schema is not None:
            raise OpError(f"{caller}: schema and grammar are two forms; give one of them")
        if not isinstance(grammar, str):
            raise OpError(f'{caller}: grammar must be a text such as \'root ::= "yes" | "no"\', got {grammar!r:.80}')
        from rlx.models.gbnf import gbnf_grammar  # most answers are free

        return gbnf_grammar(grammar)
    if schema is None:
        return None
    if not isinstance(schema, Mapping):
        raise OpError(f"{caller}: schema must be a JSON schema (a dict), got {schema!r:.80}")
    from rlx.models.json_form import schema_grammar  # most answers are free

    return schema_grammar(schema)


def require_count(caller: str, name: str, value: object) -> None:
    """Refuse what is not a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OpError(f"{caller}: {name} must be a whole number from 1 on, got {value!r:.80}")


def shows_options(method: F) -> F:
    """Put the options into the signature and the documentation of a method that takes them as `**options`."""
    signature = inspect.signature(method)
    kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = WritingOptions.__annotations__
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=_text(hints[name]))
        for name, option in OPTIONS.items()
    ]
    method.__signature__ = signature.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]
    lines = "\n".join(f"    {name}: {option.doc}" for name, option in OPTIONS.items())
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\nOptions:\n\n{lines}"
    return method


def _text(hint: Any) -> Any:
    """An annotation as it was written."""
    return getattr(hint, "__forward_arg__", hint)
