"""How byte-pair vocabularies cut text into words before merging, by the name a GGUF file gives in `tokenizer.ggml.pre`.

Each name stands for the pre-tokeniser that the model was trained with. Patterns are in the syntax of `tokenizers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlx.errors import FormatError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Words that start a new piece where a capital follows a small letter.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SIGNS_AND_SPACE}"
_TEKKEN = rf"{_CASED_WORDS[0]}|{_CASED_WORDS[1]}|\p{{N}}|{_CASED_REST}"
_GPT4O = rf"{_CASED_WORDS[0]}{_CONTRACTIONS}?|{_CASED_WORDS[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_REST}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"[0-9][0-9][0-9]")


class WordRule(NamedTuple):
    """How one family cuts words.

    `splits` are patterns applied one after the other; what they match and what lies between become pieces. `gpt2_words`
    applies GPT-2's own rule after them, `single_digits` cuts off every digit before. `whole_words` takes a word that is
    in the vocabulary as it is, whatever the merges say. `add_bos` is what a file means that does not say.
    """

    splits: tuple[str, ...] = ()
    gpt2_words: bool = False
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_GPT2_RULE = WordRule(gpt2_words=True)
_DIGITS_RULE = WordRule(gpt2_words=True, single_digits=True)
_LLAMA3_RULE = WordRule((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_RULE = WordRule((_QWEN2,), nfc=True)
_GPT4O_RULE = WordRule((_GPT4O,))

WORD_RULES: dict[str, WordRule] = {
    "default": WordRule(_DEFAULT),
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "roberta-bpe": WordRule(gpt2_words=True, add_bos=True),
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "codeshell": _DIGITS_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "dbrx": WordRule((_LLAMA3,)),
    "smaug-bpe": WordRule((_LLAMA3,)),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "stablelm2": WordRule((_QWEN2,)),
    "deepseek-coder": WordRule(_DEEPSEEK_CODER),
    "deepseek-v3": WordRule(_DEEPSEEK3),
    "tekken": WordRule((_TEKKEN,), whole_words=True, add_bos=True),
    "olmo": _GPT2_RULE,
    "exaone4": _GPT2_RULE,
    "command-r": _DIGITS_RULE,
    "exaone": _DIGITS_RULE,
    "falcon": WordRule(_FALCON),
    "falcon3": _LLAMA3_RULE,
    "glm4": WordRule((_LLAMA3,), whole_words=True),
    "chatglm-bpe": WordRule((_LLAMA3,)),
    "hunyuan-dense": WordRule(_DEEPSEEK3),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2", "falcon-h1"), _LLAMA3_RULE),
    **dict.fromkeys(("jais", "mpt", "trillion", "mellum", "gigachat", "a.x-4.0", "granite-docling"), _GPT2_RULE),
    **dict.fromkeys(("hunyuan", "megrez", "bailingmoe", "kormo", "solar-open"), WordRule((_QWEN2,))),
    "minerva-7b": _DIGITS_RULE,
}


def word_rule(name: str) -> WordRule:
    """The rule called `name`: another rule would give other token ids, so an unknown name is an error."""
    if name not in WORD_RULES:
        raise FormatError(
            f"tokenizer.ggml.pre is {name!r}, whose way of cutting words is not known here, so its token ids would be "
            f"wrong; known: {', '.join(sorted(WORD_RULES))}. A Hugging Face directory with tokenizer.json will work"
        )
    return WORD_RULES[name]


def pre_tokenizer(rule: WordRule) -> PreTokenizer:
    """The rule as a pre-tokeniser, ending in the mapping of bytes to printable characters."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[PreTokenizer] = []
    if rule.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.splits]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.gpt2_words))
    return pre_tokenizers.Sequence(steps)


def normalizer(rule: WordRule) -> Normalizer | None:
    from tokenizers import normalizers

    return normalizers.NFC() if rule.nfc else None
