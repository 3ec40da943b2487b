"""Random damage to sound files: whatever comes, a file is read or refused with FormatError."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors

_spec = importlib.util.spec_from_file_location(
    "make_malformed_files", Path(__file__).parents[2] / "tools" / "make_malformed_files.py"
)
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

FORMATS = {
    "gguf": (open_gguf, [corpus.sound_gguf(), *(case.content for case in corpus.malformed_gguf())]),
    "safetensors": (
        open_safetensors,
        [corpus.sound_safetensors(), *(c.content for c in corpus.malformed_safetensors() if len(c.content) < 5000)],
    ),
}
# Published, so that a finding can be looked at again.
LONG = (201, 202, 203, 204, 205)
# Numbers at which checks go wrong.
EDGES = [0, 1, 2, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
CHANGES = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, 2**16), st.integers(0, 255)),
    st.tuples(st.just("u32"), st.integers(0, 2**16), st.sampled_from([e % 2**32 for e in EDGES])),
    st.tuples(st.just("u64"), st.integers(0, 2**16), st.sampled_from(EDGES)),
    st.tuples(st.just("cut"), st.integers(0, 2**16), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 2**16), st.integers(1, 64)),
    st.tuples(st.just("repeat"), st.integers(0, 2**16), st.integers(1, 64)),
)


def damaged(content, changes):
    for what, place, value in changes:
        at = place % (len(content) + 1)
        if what == "byte":
            content = content[:at] + bytes([value]) + content[at + 1 :]
        elif what in ("u32", "u64"):
            width = 4 if what == "u32" else 8
            content = content[:at] + value.to_bytes(width, "little") + content[at + width :]
        elif what == "cut":
            content = content[:at]
        elif what == "drop":
            content = content[:at] + content[at + value :]
        else:
            content = content[: at + value] + content[at:]
    return content


def check(kind, content, path):
    path.write_bytes(content)
    try:
        with FORMATS[kind][0](path) as file:
            for key in file.metadata:
                file.metadata[key]
            arrays = {name: tensor.array() for name, tensor in file.tensors.items()}
            if kind == "gguf":
                write_gguf(path.with_suffix(".copy"), file.metadata, file.tensors, version=3)
    except FormatError:
        return
    # What was accepted lies in the file: it cannot be larger than decoding allows.
    assert sum(np.asarray(a).nbytes for a in arrays.values()) <= 64 * len(content)


def fuzz(kind, examples, folder):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(sound=st.sampled_from(FORMATS[kind][1]), changes=st.lists(CHANGES, min_size=1, max_size=6))
    def run(sound, changes):
        check(kind, damaged(sound, changes), folder / "model")

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files(kind, tmp_path):
    fuzz(kind, 250, tmp_path)


def random_changes(rng):
    """As CHANGES draws them, a hundred times faster: these are not made smaller when they find something."""
    found = []
    for _ in range(rng.randint(1, 6)):
        what = rng.choice(("byte", "u32", "u64", "cut", "drop", "repeat"))
        edge = rng.choice(EDGES)
        value = {"byte": rng.randrange(256), "u32": edge % 2**32, "u64": edge}.get(what, rng.randint(1, 64))
        found.append((what, rng.randrange(2**16), value))
    return found


@pytest.mark.long
@pytest.mark.parametrize("number", LONG)
@pytest.mark.parametrize("kind", FORMATS)
def test_very_many_damaged_files(kind, number, tmp_path):
    """50,000 files in all."""
    rng = random.Random(f"{kind}:{number}")
    for at in range(5_000):
        content = damaged(rng.choice(FORMATS[kind][1]), random_changes(rng))
        try:
            check(kind, content, tmp_path / "model")
        except Exception as error:
            raise AssertionError(f"{kind}, seed {number}, file {at}: {error!r}") from error
