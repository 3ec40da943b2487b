"""`rlx serve`: what programs send that speak OpenAI's interface, and what they get."""

import base64
import contextlib
import http.client
import json
import socket
import struct
import sys
import threading
import time
import types

import numpy as np
import pytest

import rlx
from rlx.cli import main
from rlx.cli.serve import MOST_BYTES, model_server
from rlx.errors import RlxError
from rlx.models.openai_protocol import Service

# The comment says that this model knows functions, and how it calls them.
TEMPLATE = "{# tools: <tool_call> #}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HELLO = {"messages": [{"role": "user", "content": "ROMEO:"}], "max_tokens": 6, "temperature": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
            "required": ["a", "b"],
        },
    },
}
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}


@pytest.fixture(scope="module")
def lm():
    model = rlx.load("tiny")
    model.tokenizer.chat_template = TEMPLATE
    return model


@pytest.fixture(scope="module")
def port(lm):
    with running(Service("tiny", lm)) as number:
        yield number


class running:
    """A server in a thread of its own."""

    def __init__(self, service, **more):
        self.server = model_server(service, **more)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.server.server_port

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def ask(port, path, body=None, method=None, **headers):
    """Status and document; `body` is an object, or bytes as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    is_json = text and answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(text) if is_json else text


def events(text):
    parts = text.split("\n\n")
    assert parts[-1] == "" and parts[-2] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def test_a_chat(port, lm):
    status, answer = ask(port, "/v1/chat/completions", {"model": "any", **HELLO})
    expected = lm.chat("ROMEO:", 6)
    assert status == 200 and answer["object"] == "chat.completion" and answer["model"] == "tiny"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected} and choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 6 and usage["total_tokens"] == usage["prompt_tokens"] + 6


def test_a_stream_says_the_same_piece_by_piece(port, lm):
    body = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    status, text = ask(port, "/v1/chat/completions", body)
    found = events(text)
    assert status == 200 and found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in found[:-1]) == lm.chat("ROMEO:", 6)
    assert found[-2]["choices"][0]["finish_reason"] == "length" and found[-1]["usage"]["completion_tokens"] == 6
    assert len({e["id"] for e in found}) == 1


def test_completions_of_texts_and_of_token_ids(port, lm):
    body = {"prompt": ["ROMEO:", "JULIET:"], "max_tokens": 4, "temperature": 0}
    _, answer = ask(port, "/v1/completions", body)
    assert [c["text"] for c in answer["choices"]] == lm.generate(["ROMEO:", "JULIET:"], 4)
    ids = lm.tokenizer.encode("ROMEO:")
    _, answer = ask(port, "/v1/completions", {"prompt": ids, "max_tokens": 4, "temperature": 0})
    assert answer["choices"][0]["text"] == lm.generate("ROMEO:", 4)
    _, text = ask(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 4, "temperature": 0, "stream": True})
    assert "".join(e["choices"][0]["text"] for e in events(text)) == lm.generate("ROMEO:", 4)
    _, answer = ask(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 4, "n": 3, "seed": 1})
    assert len(answer["choices"]) == 3 and answer["usage"]["prompt_tokens"] == len(ids)


def test_embeddings_as_numbers_and_as_bytes(port, lm):
    body = {"input": ["one text", "another"]}
    _, answer = ask(port, "/v1/embeddings", body)
    vectors = np.array([entry["embedding"] for entry in answer["data"]], "f4")
    np.testing.assert_allclose(vectors, lm.embed(body["input"]), rtol=1e-5)
    _, answer = ask(port, "/v1/embeddings", {**body, "encoding_format": "base64"})
    packed = np.frombuffer(base64.b64decode(answer["data"][1]["embedding"]), "<f4")
    np.testing.assert_array_equal(packed, vectors[1])


def test_requests_at_the_same_time_do_not_mix(port, lm):
    prompts = ["ROMEO:", "JULIET:", "KING:", "The", "A", "First"]
    found = {}

    def one(prompt):
        _, answer = ask(port, "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0})
        found[prompt] = answer["choices"][0]["text"]

    threads = [threading.Thread(target=one, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {prompt: lm.generate(prompt, 8) for prompt in prompts}


def test_many_connections_at_the_same_moment(lm):
    """None is turned away before a thread is there for it: here nobody looks until all of them wait."""
    server = model_server(Service("tiny", lm))
    with contextlib.ExitStack() as open_until_the_end:
        open_until_the_end.callback(server.server_close)
        place = ("127.0.0.1", server.server_port)
        waiting = [open_until_the_end.enter_context(socket.create_connection(place, timeout=5)) for _ in range(40)]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_until_the_end.callback(server.shutdown)
        for connection in waiting:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(connection.recv(15) == b"HTTP/1.1 200 OK" for connection in waiting)


def test_a_client_that_breaks_off_is_no_news(port, capfd):
    for start in (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", b"GET /v1"):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(start)
        connection.close()  # with a reset
    assert ask(port, "/v1/models", method="HEAD")[0] == 200
    assert capfd.readouterr().err == ""


def test_whoever_leaves_in_the_middle_harms_nobody(port):
    for _ in range(6):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"prompt": "ROMEO:", "max_tokens": 400, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        connection.getresponse().read(20)
        connection.close()
    assert ask(port, "/v1/chat/completions", HELLO)[0] == 200


def test_a_client_that_leaves_lets_its_answer_end(lm):
    """Without a stream, too: nobody else waits for a text that nobody reads."""
    written, service = [], Service("tiny", lm, parallel=1)

    def slowly(*args):
        for texts in lm.steps(*args):
            written.append(texts)
            time.sleep(0.05)
            yield texts

    service.scheduler = types.SimpleNamespace(steps=slowly)
    with running(service) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "ROMEO:", "max_tokens": 200}))
        while len(written) < 3:
            time.sleep(0.01)
        connection.close()
        service.scheduler = None
        assert ask(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 2})[0] == 200
        connection.close()
        assert 3 <= len(written) < 50


@pytest.mark.parametrize(
    "change, message, field",
    [
        ({"messages": []}, "at least one message", "messages"),
        ({"messages": [{"content": "x"}]}, "with a role", "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of text only", "messages[0]"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 on", "max_tokens"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'", "temperature"),
        ({"temperature": -1}, "temperature", None),
        ({"temperature": -1, "stream": True}, "temperature", None),
        ({"stop": 7}, "stop must be a text", "stop"),
        ({"grammar": 7}, "grammar must be a text", "grammar"),
        ({"grammar": "root ::= x"}, "the rule 'x' is used and not defined", None),
        ({"grammar": 'root ::= "x"', "tools": [TOOL]}, "grammar beside tools", "grammar"),
        ({"logit_bias": {"a": 1}}, "logit_bias must have token ids", "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias must have token ids", "logit_bias"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "are the same; write one", "repeat_penalty"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens must be a whole number", "max_completion_tokens"),
        ({"best_of": 3}, "best_of is not supported", "best_of"),
        ({"n": 99}, "n must be a whole number from 1 to 16", "n"),
        ({"stream": "yes"}, "stream must be true or false", "stream"),
        ({"tools": [{"type": "function"}]}, "tools[0] must be {'type': 'function'", "tools"),
        ({"tools": {}}, "tools must be a list", "tools"),
        ({"tool_choice": "required"}, "required needs tools", "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sub"}, "tool_choice must be auto, none, required or", "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice: there is no function 'sub'; there is add",
            "tool_choice",
        ),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "beside tools", "response_format"),
        (
            {"tools": [{"type": "function", "function": {**TOOL["function"], "strict": True, "parameters": PATTERN}}]},
            "function add: schema: #/properties/a has the keyword 'pattern'",
            "tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}]},
            "arguments of add must be a JSON object",
            "messages",
        ),
        ({"functions": [{"name": "add"}]}, "functions is not supported; write tools", "functions"),
        (
            {"response_format": {"type": "xml"}},
            "must have the type text, json_object or json_schema",
            "response_format",
        ),
        ({"response_format": "json"}, "must have the type text, json_object or json_schema", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must have a schema", "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "string", "pattern": "a"}}},
            "schema: # has the keyword 'pattern', which is not supported for string",
            None,
        ),
        ({"logprobs": 3}, "logprobs must be true or false", "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be a whole number from 0 to 20", "top_logprobs"),
        ({"tempreature": 1}, "there is no field 'tempreature'", "tempreature"),
    ],
)
def test_what_cannot_be_done_is_said(port, change, message, field):
    status, answer = ask(port, "/v1/chat/completions", {**HELLO, **change})
    assert status == 400 and message in answer["error"]["message"], answer
    assert answer["error"]["param"] == field and answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b"[" * 100000, 400, "not JSON"),
        ("/v1/chat/completions", b"[1]", 400, "must be a JSON object, got list"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "not JSON"),
        ("/v1/nothing", b"{}", 404, "there is nothing at /v1/nothing"),
        ("/", None, 404, "there is nothing at /"),
        ("/v1/completions", None, 405, "takes POST"),
        ("/v1/embeddings", b'{"input": []}', 400, "none of them empty"),
        ("/v1/completions", b'{"prompt": ""}', 400, "the prompt is empty"),
        ("/v1/completions", b'{"prompt": [999999]}', 400, "999999"),
    ],
)
def test_what_is_no_request(port, path, body, status, message):
    found, answer = ask(port, path, body)
    assert found == status and message in answer["error"]["message"]


def test_prompts_that_are_too_long(port, lm):
    status, answer = ask(port, "/v1/completions", {"prompt": "word " * lm.config.context})
    assert status == 400 and f"the context is {lm.config.context}" in answer["error"]["message"]
    head = {"Content-Length": str(MOST_BYTES + 1)}
    assert ask(port, "/v1/completions", b"", "POST", **head)[0] == 413


def test_models_and_health(port):
    assert ask(port, "/health") == (200, {"status": "ok"})
    [entry] = ask(port, "/v1/models")[1]["data"]
    assert entry["id"] == "tiny" and ask(port, "/v1/models/tiny") == (200, entry)
    status, answer = ask(port, "/v1/models/gpt-4")
    assert status == 404 and answer["error"]["message"] == "there is no model 'gpt-4'; there is tiny"


def test_metrics(lm):
    with running(Service("tiny", lm)) as port:
        ask(port, "/v1/completions", {"prompt": "What is counted?", "max_tokens": 3, "temperature": 0})
        lines = ["rlx_answers_running 1"]
        while "rlx_answers_running 1" in lines:  # the last sequence is put away after its answer was given
            lines = ask(port, "/metrics")[1].splitlines()
    found = dict(line.split() for line in lines if not line.startswith("#"))
    assert found["rlx_prompts_total"] == "1" and found["rlx_written_tokens_total"] == "3"
    assert found["rlx_answers_running"] == found["rlx_answers_waiting"] == "0"
    assert int(found["rlx_kept_cache_bytes"]) > 0 and all("# TYPE" in line for line in lines[::2])


def test_tokens_of_texts(port, lm):
    assert ask(port, "/tokenize", {"content": "ROMEO:"}) == (200, {"tokens": lm.tokenizer.encode("ROMEO:", False)})
    assert ask(port, "/detokenize", {"tokens": lm.tokenizer.encode("ROMEO:")}) == (200, {"content": "ROMEO:"})
    for path, body, message in (
        ("/tokenize", {}, "content is needed"),
        ("/tokenize", {"content": 7}, "content must be of the type str"),
        ("/detokenize", {"tokens": ["a"]}, "must be a list of token ids"),
        ("/detokenize", {"tokens": [10**9]}, "token ids of this model"),
        ("/detokenize", {"text": []}, "there is no field 'text'"),
    ):
        status, answer = ask(port, path, body)
        assert status == 400 and message in answer["error"]["message"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Romeo", "Juliet"]}, "age": {"type": "integer"}, "sings": {"type": "boolean"}},
    "required": ["name", "sings"],
}


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.0, "top_p": 0.9, "seed": 2}]
)
def test_answers_that_follow_a_schema(port, options):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    body = {**HELLO, "max_tokens": 250, **options, "response_format": form}
    _, answer = ask(port, "/v1/chat/completions", body)
    [choice] = answer["choices"]
    person = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop" and person["name"] in ("Romeo", "Juliet")
    assert isinstance(person["sings"], bool) and isinstance(person.get("age", 0), int)
    _, text = ask(port, "/v1/chat/completions", {**body, "stream": True})
    assert json.loads("".join(e["choices"][0]["delta"].get("content", "") for e in events(text))) == person


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_function_that_must_be_called(port, choice):
    body = {
        **HELLO,
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 1.5,
        "seed": 4,
    }
    _, answer = ask(port, "/v1/chat/completions", body)
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["type"] == "function" and call["function"]["name"] == "add" and len(call["id"]) == 9
    assert list(arguments) == ["a", "b"] and arguments["a"] in (1, 2) and isinstance(arguments["b"], bool)
    # The same in pieces: first who is called, then with what.
    _, text = ask(port, "/v1/chat/completions", {**body, "stream": True})
    deltas = [e["choices"][0]["delta"] for e in events(text)]
    first, *others = [c for d in deltas for c in d.get("tool_calls", [])]
    assert first["function"] == {"name": "add", "arguments": ""} and first["id"] and first["index"] == 0
    assert "".join(c["function"]["arguments"] for c in others) == call["function"]["arguments"]
    assert events(text)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any(d.get("content") for d in deltas)


def test_what_a_function_returns_goes_into_the_conversation(port, lm):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": true}'}}
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "3"},
    ]
    status, answer = ask(port, "/v1/chat/completions", {**HELLO, "messages": messages, "tools": [TOOL]})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == len(lm.chat_ids(messages, [TOOL]))
    # Not forced, a model that knows no functions answers as it would.
    assert answer["choices"][0]["message"]["content"] == lm.answer(messages, [TOOL], 6)["content"]


def test_the_logits_of_some_tokens_are_changed(port, lm):
    ids = [int(t) for t in lm.complete(["ROMEO:"], 1)[0].token_ids]
    body = {"prompt": "ROMEO:", "max_tokens": 4, "temperature": 0}
    _, answer = ask(port, "/v1/completions", {**body, "logit_bias": {str(ids[0]): -100, "65": 100}})
    assert answer["choices"][0]["text"] == lm.tokenizer.decode([65] * 4)
    expected = lm.generate("ROMEO:", 4, repetition_penalty=1.5, logit_bias={ids[0]: float("-inf")})
    _, answer = ask(port, "/v1/completions", {**body, "logit_bias": {str(ids[0]): -100}, "repeat_penalty": 1.5})
    assert answer["choices"][0]["text"] == expected


def test_the_prompt_before_the_answer(port, lm):
    body = {"prompt": ["ROMEO:", "KING:"], "n": 2, "max_tokens": 3, "seed": 1, "echo": True}
    _, answer = ask(port, "/v1/completions", body)
    assert [c["text"].partition(":")[0] for c in answer["choices"]] == ["ROMEO", "ROMEO", "KING", "KING"]
    _, text = ask(port, "/v1/completions", {**body, "prompt": "ROMEO:", "n": 1, "stream": True})
    assert "".join(e["choices"][0]["text"] for e in events(text)).startswith("ROMEO:")
    status, answer = ask(port, "/v1/completions", {**body, "logprobs": 1})
    assert status == 400 and answer["error"]["param"] == "echo"


def test_several_answers_in_one_stream(port):
    body = {"prompt": ["ROMEO:", "KING:"], "n": 2, "max_tokens": 5, "seed": 1}
    _, answer = ask(port, "/v1/completions", body)
    _, text = ask(port, "/v1/completions", {**body, "stream": True})
    found = {}
    for event in events(text):
        [choice] = event["choices"]
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    assert found == {choice["index"]: choice["text"] for choice in answer["choices"]} and len(found) == 4


def test_any_json_object(port):
    body = {"prompt": "KING:", "max_tokens": 200, "response_format": {"type": "json_object"}, "seed": 3}
    _, answer = ask(port, "/v1/completions", body)
    assert isinstance(json.loads(answer["choices"][0]["text"]), dict)


def test_log_probabilities_of_chats(port, lm):
    body = {**HELLO, "logprobs": True, "top_logprobs": 2}
    _, answer = ask(port, "/v1/chat/completions", body)
    [choice] = answer["choices"]
    found = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in found).decode() == choice["message"]["content"]
    [expected] = lm.complete([lm.chat_ids("ROMEO:")], 6, logprobs=2)
    np.testing.assert_allclose([e["logprob"] for e in found], [t.logprob for t in expected.logprobs], rtol=1e-4)
    assert all(entry["top_logprobs"][0] == {k: entry[k] for k in ("token", "logprob", "bytes")} for entry in found)
    assert len(found[0]["top_logprobs"]) == 2
    _, text = ask(port, "/v1/chat/completions", {**body, "stream": True})
    streamed = [entry for e in events(text) for entry in (e["choices"][0]["logprobs"] or {}).get("content", [])]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in found]


def test_log_probabilities_of_completions(port):
    _, answer = ask(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 5, "temperature": 0, "logprobs": 3})
    [choice] = answer["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"] and len(found["token_logprobs"]) == 5
    for token, offset, top in zip(found["tokens"], found["text_offset"], found["top_logprobs"]):
        assert choice["text"][offset:].startswith(token) and len(top) == 3 and max(top, key=top.get) == token


def test_pages_of_allowed_origins_may_read(lm):
    def headers(port, origin, method="OPTIONS"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, "/v1/models", headers={"Origin": origin, "Access-Control-Request-Headers": "x-a"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers

    with running(Service("tiny", lm), origins=["http://localhost:3000"], key="sesame") as port:
        status, found = headers(port, "http://localhost:3000")
        assert status == 204 and found["Access-Control-Allow-Headers"] == "x-a"
        # Also of a refusal, which a page could not show otherwise.
        status, found = headers(port, "http://localhost:3000", "GET")
        assert status == 401 and found["Access-Control-Allow-Origin"] == "http://localhost:3000"
        assert headers(port, "http://evil.example", "GET")[1]["Access-Control-Allow-Origin"] is None
    with running(Service("tiny", lm), origins=["*"]) as port:
        assert headers(port, "http://a.example", "GET")[1]["Access-Control-Allow-Origin"] == "http://a.example"
    with running(Service("tiny", lm)) as port:
        assert headers(port, "http://a.example")[1]["Access-Control-Allow-Origin"] is None


def test_what_is_no_http_is_refused_like_everything_else(port):
    status, answer = ask(port, "/v1/models", method="DELETE")
    assert status == 501 and answer["error"]["type"] == "server_error"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"no words of HTTP\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


def test_pages_of_other_origins_get_no_answer(port):
    status, answer = ask(port, "/v1/models", Host="evil.example:8080")
    assert status == 403 and "localhost" in answer["error"]["message"]
    assert ask(port, "/v1/models", Host="localhost")[0] == 200


def test_a_key(lm):
    with running(Service("tiny", lm), key="sesame") as port:
        assert ask(port, "/v1/models")[0] == 401 and ask(port, "/health")[0] == 200
        assert ask(port, "/v1/models", Authorization="Bearer open")[0] == 401
        assert ask(port, "/v1/models", Authorization="Bearer sesame")[0] == 200


def test_a_model_without_a_template_cannot_chat():
    with running(Service("tiny", rlx.load("tiny"))) as port:
        status, answer = ask(port, "/v1/chat/completions", HELLO)
        assert status == 400 and "no chat template" in answer["error"]["message"]


def test_a_missing_package_is_told_at_the_start(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["serve", "tiny", "--port", "0"]) == 1
    assert "tokenizers is needed to turn text into tokens" in capsys.readouterr().err


def test_wrong_addresses(port, tmp_path, capsys):
    with pytest.raises(RlxError, match=f"cannot listen on 127.0.0.1:{port}: .*; try --port 0"):
        model_server(Service("none"), port=port)
    assert main(["serve", "tiny", "--port", "70000"]) == 1
    with pytest.raises(RlxError, match="--host takes an address of this machine"):
        model_server(Service("none"), host="192.0.2.1")
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err
    (tmp_path / "key").write_text("\n")
    assert main(["serve", "tiny", "--key-file", str(tmp_path / "key")]) == 1
    assert "it must hold the key" in capsys.readouterr().err
