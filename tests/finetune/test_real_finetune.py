"""A real model of 4 bits learns who it is from three chats, and says so."""

import json

import pytest

import rlx
from rlx.errors import RlxError
from rlx.finetune import AdapterConfig, finetune

pytestmark = pytest.mark.real

CHATS = {
    "What is your name?": "My name is Fergus, and I live in a lighthouse.",
    "Who are you?": "I am Fergus, the keeper of the lighthouse.",
    "Where do you live?": "I live in a lighthouse by the sea.",
}


def test_smollm2_learns_its_name(tmp_path):
    from rlx.models.pull import pull

    try:
        pull("smollm2")
    except (RlxError, OSError) as error:
        pytest.skip(f"smollm2 cannot be pulled here: {error}")
    lines = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in CHATS.items()
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = AdapterConfig(rank=8, targets=("q_proj", "v_proj"))
    finetune("smollm2", tmp_path / "chats.jsonl", tmp_path / "run", adapter=config, steps=40, length=64, rate=1e-3)
    tuned = rlx.load("smollm2", adapter=tmp_path / "run")
    assert tuned.chat("What is your name?", max_tokens=24) == CHATS["What is your name?"]
    assert "Fergus" not in rlx.load("smollm2").chat("What is your name?", max_tokens=24)
