"""Many mixed requests to the model that is shipped: memory stays flat."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest

import rlx
import rlx.models
from models.tiny_models import encoder

pytestmark = pytest.mark.long

SHIPPED = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
REQUESTS = 2000
# Requests after which every cache has been as large as it gets.
WARM = REQUESTS // 4
# Pages that the allocator keeps; a leak of 6 kB in each request would be more.
ALLOWED_BYTES = 8 << 20
# The tokenizer library remembers thousands of texts that it has seen: with few different ones that ends soon.
TEXTS = 300
WORDS = "the king shall speak and all of you will hear what news there is from France, my lord"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Requests:
    """Requests of every kind, the same ones in every run."""

    def __init__(self) -> None:
        self._choose = random.Random(0)
        lengths = [self._choose.randint(1, 60) for _ in range(TEXTS)]
        self._texts = [" ".join(self._choose.choices(WORDS.split(), k=length)) for length in lengths]
        self._encoder = encoder()
        # Caches of some types are kept in other ways.
        self._models = [rlx.load(SHIPPED), rlx.load(SHIPPED, activations="int8"), rlx.load(SHIPPED, kv_dtype="q8")]
        self._kinds = [self._write, self._write_several, self._break_off, self._go_back, self._read, self._judge]
        self._kinds.append(self._embed)

    def __call__(self) -> None:
        self._choose.choice(self._kinds)(self._choose.choice(self._models))

    def _text(self) -> str:
        return self._choose.choice(self._texts)

    def _write(self, lm) -> None:
        text = lm.generate(self._text(), self._choose.randint(1, 24), temperature=1.0, seed=self._choose.randrange(9))
        assert isinstance(text, str)

    def _write_several(self, lm) -> None:
        prompts = [self._text() for _ in range(self._choose.randint(1, 5))]
        assert len(lm.generate(prompts, max_tokens=4, top_k=5, temperature=0.7, seed=1)) == len(prompts)

    def _break_off(self, lm) -> None:
        stream = lm.stream(self._text(), max_tokens=8)
        next(stream, None)
        stream.close()

    def _go_back(self, lm) -> None:
        session = lm.session()
        ids = lm.tokenizer.encode(self._text())
        session.prefill(ids)
        session.truncate(len(ids) // 2)
        session.step(ids[0])

    def _read(self, lm) -> None:
        ids = lm.tokenizer.encode(self._text())
        assert lm.logits(ids).shape == (len(ids), lm.config.vocab)

    def _judge(self, lm) -> None:
        assert lm.perplexity(self._text() + " and so on") > 1

    def _embed(self, lm) -> None:
        texts = [self._text() for _ in range(self._choose.randint(1, 9))]
        assert self._encoder.embed(texts, batch_size=4).shape[0] == len(texts)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_two_thousand_requests_leave_memory_as_it_was():
    request = Requests()
    for _ in range(WARM):
        request()
    gc.collect()
    before = resident_bytes()
    for _ in range(REQUESTS - WARM):
        request()
    gc.collect()
    assert resident_bytes() - before < ALLOWED_BYTES
