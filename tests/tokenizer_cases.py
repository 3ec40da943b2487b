"""Small vocabularies trained on the spot, and texts that find the corners of tokenizers."""

import functools
import json
import random
import string

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPACE = "\u2581"
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1234 o'clock, isn't it? We'll see; they've said I'd go.",
    "def main(argv):\n    return [x ** 2 for x in range(10)]\n\n\n\tprint('Hello,   World!')",
    "Ünïcödé naïve café façade über straße ĲSSEL ﬁnd 東京タワー 你好，世界 안녕하세요",
    "Привет мир हिन्दी العربية 🙂👩‍👩‍👧",
    "HelloWorld camelCase SCREAMING_CASE x=1;y=2 https://example.org/a?b=c&d=%20 3.14159 1,000,000 ½ ² Ⅷ ٣",
] * 3
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n \n",
    "a",
    " a",
    "a ",
    "  a  b  ",
    "\ta\r\nb\r\n\r\n c",
    "It's we'LL THEY'VE I'm 'tis 'S",
    "12 123 1234 12345 3.14 1e-5 ½ ٣٤ Ⅷ",
    "don't   stop!!!  (really?)...",
    "e\u0301 é \u200b\u00a0\u3000x",
    "日本語とEnglishの混在123です。",
    "🙂👩‍👩‍👧🇩🇪",
    "ﬁ ĲSSEL ẞ ǅ",
    "\u0000\u0001\x7f",
    "Hindi हिन्दी Thai ไทย Arabic العربية",
    "<s></s><|special|>[UNK] <0x0A>",
]


def random_texts(count, seed=0, wild=True):
    """Texts of words, signs, spaces and, if `wild`, any characters."""
    chance = random.Random(seed)
    pools = [
        string.ascii_letters,
        string.digits,
        string.punctuation,
        " \n\t\r",
        "äöüßéñçœ",
        "日本語한국어中文кириллицаελληνικά",
        "🙂👩‍🇩🇪\u0301\u200d",
        "".join(chr(chance.randrange(0x80, 0xD800)) for _ in range(40)),
        "".join(chr(chance.randrange(0x10000, 0x1FFFF)) for _ in range(20)),
    ]
    words = [word for line in CORPUS for word in line.split() if wild or word.isascii()]
    if not wild:
        pools = pools[:5]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(chance.randrange(1, 12)):
            kind = chance.random()
            if kind < 0.4:
                parts.append(chance.choice(words))
            elif kind < 0.6:
                parts.append(chance.choice([" ", "  ", "\n", "'", "'s", " 12", "\r\n"]))
            else:
                pool = chance.choice(pools)
                parts.append("".join(chance.choice(pool) for _ in range(chance.randrange(1, 6))))
        texts.append("".join(parts))
    return texts


def train_bytes(pre_tokenizer, size=420, **model):
    """A byte-level BPE with the given way of cutting words."""
    backend = Tokenizer(models.BPE(**model))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|special|>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def bytes_metadata(backend, pre, **more):
    """A trained byte-level BPE as GGUF metadata."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token == "<|special|>" else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        **more,
    }


@functools.cache
def sentencepiece_vocabulary():
    """Tokens, scores and kinds of a SentencePiece BPE vocabulary with bytes: later merges have lower scores."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE}?[^{SPACE}]+|{SPACE}+"), "isolated")
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=350, show_progress=False))
    vocabulary = backend.get_vocab()
    pieces = sorted(vocabulary, key=lambda token: (len(token) == 1, vocabulary[token]))
    specials = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = [*specials, *bytes_, *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(place) for place in range(len(pieces))]
    return tokens, scores, kinds


def sentencepiece_metadata(**more):
    tokens, scores, kinds = sentencepiece_vocabulary()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(score) for score in scores],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def train_wordpiece(lowercase):
    """A WordPiece tokenizer; training breaks ties at random, so it is done once."""
    return Tokenizer.from_str(_trained_wordpiece(lowercase))


@functools.cache
def _trained_wordpiece(lowercase):
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    )
    return backend.to_str()


def wordpiece_metadata(backend, **more):
    """A WordPiece vocabulary as files keep it: starts of words marked, parts within words not."""
    vocabulary = backend.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    stored = [t if t.startswith("[") and len(t) > 3 else t[2:] if t.startswith("##") else SPACE + t for t in tokens]
    ids = {role: vocabulary[f"[{name}]"] for role, name in [("cls", "CLS"), ("unknown", "UNK"), ("padding", "PAD")]}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": stored,
        "tokenizer.ggml.token_type": [3 if t.startswith("[") and len(t) > 3 else 1 for t in tokens],
        **{f"tokenizer.ggml.{role}_token_id": id for role, id in ids.items()},
        "tokenizer.ggml.seperator_token_id": vocabulary["[SEP]"],
        "tokenizer.ggml.mask_token_id": vocabulary["[MASK]"],
        **more,
    }
