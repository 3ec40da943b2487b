"""Values between layers in 16 bits: the shipped model answers nearly as in f32, and other words are refused."""

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import OpError
from rlx.models import language_model

TINY = Path(language_model.__file__).parent / "data" / "tiny.gguf"


def test_logits_in_16_bits_are_near_those_in_32():
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    wanted = rlx.load(TINY).logits(ids)
    found = rlx.load(TINY, activations="bf16").logits(ids)
    # Rounded, and not by much.
    assert 0 < np.linalg.norm(found - wanted) <= 3e-2 * np.linalg.norm(wanted)


def test_other_words_are_refused():
    with pytest.raises(OpError, match="activations must be one of f32, int8, int16, auto, bf16, f16, got 'fp4'"):
        rlx.load(TINY, activations="fp4")
