"""Many mixed requests: memory stays flat."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest

from models.tiny_models import encoder, language_model

pytestmark = pytest.mark.long

REQUESTS = 2000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_two_thousand_requests_leave_memory_as_it_was():
    lm, enc, choose = language_model(), encoder(), random.Random(0)

    def text() -> str:
        return "".join(choose.choices("abcdefgh ", k=choose.randint(1, 60)))

    def request() -> None:
        kind = choose.randrange(5)
        if kind == 0:
            lm.generate(text(), max_tokens=choose.randint(1, 12), temperature=1.0, seed=choose.randrange(9))
        elif kind == 1:
            lm.generate([text() for _ in range(choose.randint(1, 4))], max_tokens=4)
        elif kind == 2:
            stream = lm.stream(text(), max_tokens=8)
            next(stream, None)
            stream.close()
        elif kind == 3:
            lm.logits(list(text().encode()))
        else:
            enc.embed([text() for _ in range(choose.randint(1, 5))])

    for _ in range(REQUESTS // 4):
        request()
    gc.collect()
    before = resident_bytes()
    for _ in range(REQUESTS - REQUESTS // 4):
        request()
    gc.collect()
    assert resident_bytes() - before < 16 << 20
