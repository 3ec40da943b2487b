"""`rlx serve` as the `openai` package sees it, which checks the types of all that it is answered."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from models.tiny_models import LLAMA, language_model
from rlx.cli.serve import model_server
from rlx.models.openai_protocol import Service

pytestmark = pytest.mark.peers
openai = pytest.importorskip("openai")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
        },
    }
]
ASKED = {"model": "any", "messages": [{"role": "user", "content": "Add."}], "seed": 4, "temperature": 2.0}


@pytest.fixture(scope="module")
def client():
    lm = language_model(replace(LLAMA, context=2000))
    lm.tokenizer.chat_template = "{# tools <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}"
    server = model_server(Service("tiny", lm))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.shutdown()
    server.server_close()


def test_chats_whole_and_in_pieces(client):
    answer = client.chat.completions.create(**ASKED, max_completion_tokens=8, logprobs=True, top_logprobs=2)
    assert answer.choices[0].finish_reason == "length" and len(answer.choices[0].logprobs.content) == 8
    stream = client.chat.completions.create(
        **ASKED, max_completion_tokens=8, n=2, stream=True, stream_options={"include_usage": True}
    )
    events = list(stream)
    found = [c for e in events for c in e.choices if c.index == 0]
    assert "".join(c.delta.content or "" for c in found) == answer.choices[0].message.content
    assert events[-1].usage.completion_tokens == 16


def test_calls_whole_and_in_pieces(client):
    options = {**ASKED, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.create(**options)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments)["a"] in (1, 2)
    with client.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    messages = [*ASKED["messages"], answer.choices[0].message]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
    again = client.chat.completions.create(**{**ASKED, "messages": messages}, tools=TOOLS, max_tokens=5)
    assert again.usage.completion_tokens == 5


def test_texts_vectors_and_refusals(client):
    assert client.completions.create(model="any", prompt=["a", "b"], max_tokens=3).usage.completion_tokens == 6
    assert len(client.embeddings.create(model="any", input="text").data[0].embedding) == LLAMA.hidden
    assert client.models.list().data[0].id == "tiny"
    with pytest.raises(openai.BadRequestError, match="suffix is not supported") as caught:
        client.completions.create(model="any", prompt="a", suffix="b")
    assert caught.value.param == "suffix"
