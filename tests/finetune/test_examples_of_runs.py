"""What counts in texts and chats, and what is said about files that cannot be learnt from."""

import json

import numpy as np
import pytest

from models.tiny_models import byte_tokenizer
from rlx.errors import FormatError
from rlx.finetune import IGNORED, chat_batches, example_batches, text_batches

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"
TALK = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


@pytest.fixture
def tokenizer():
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


def write_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts_of(batch, row):
    """All text of a row, and what counts of it."""
    tokens, labels = batch["tokens"][row], batch["labels"][row]
    read = lambda ids: bytes(int(i) for i in ids if 0 < i < 256).decode()  # noqa: E731
    return read(tokens), read(labels[labels != IGNORED])


def test_only_answers_count(tokenizer, tmp_path):
    file = write_lines(tmp_path / "a.jsonl", {"messages": TALK})
    batch = chat_batches(file, tokenizer, batch=1, length=100)(0)
    said, counted = texts_of(batch, 0)
    # The last token is a label only. The end of each answer counts, so that answers end.
    assert said == "<user>2+2?|<assistant>four|<user>sure?|<assistant>yes"
    assert counted == "four|yes|"
    # Each label is the token that follows the one at its row; that of the last one is not among the tokens.
    np.testing.assert_array_equal(batch["labels"][0][:-1], batch["tokens"][0][batch["rows"][0][:-1] + 1])
    assert batch["rows"].shape == batch["labels"].shape == (1, len("four|yes|"))


def test_prompts_and_completions_need_no_template(tmp_path):
    tokenizer = byte_tokenizer()
    file = write_lines(
        tmp_path / "a.jsonl", {"prompt": "one ", "completion": "two"}, {"prompt": "a", "completion": "b"}
    )
    batches = chat_batches(file, tokenizer, batch=2, length=20)
    batch = batches(0)
    assert batch["tokens"].shape == (2, 7) and batch["rows"].shape == (2, 4) and batches.count == 2
    found = sorted(texts_of(batch, row) for row in range(2))
    assert found == [("ab", "b"), ("one two", "two")]
    # The token that ends a text is the last label of each.
    assert all(row[row != IGNORED][-1] == 257 for row in batch["labels"])


def test_marks_that_editors_put_before_texts_are_no_part_of_them(tmp_path):
    line = json.dumps({"prompt": "a", "completion": "b"})
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    assert texts_of(chat_batches(tmp_path / "a.jsonl", byte_tokenizer(), batch=1, length=20)(0), 0) == ("ab", "b")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"0123456789")
    assert text_batches(tmp_path / "a.txt", byte_tokenizer(), batch=1, length=9, vocab=260).count == 1


def test_texts_count_whole_and_epochs_are_shuffled(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("".join(chr(97 + i % 26) for i in range(101)))
    batches = text_batches(file, byte_tokenizer(), batch=2, length=10, vocab=260)
    first = batches(0)
    np.testing.assert_array_equal(first["tokens"][:, 1:], first["labels"][:, :-1])
    seen = np.concatenate([batches(step)["tokens"] for step in range(5)])
    assert len({row.tobytes() for row in seen}) == 10
    np.testing.assert_array_equal(batches(7)["tokens"], batches(7)["tokens"])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.txt", "", "the file is empty; there is nothing to learn from"),
        ("a.txt", "short", "5 tokens are 0 windows of 10 and a target"),
        ("a.txt", b"\xff\xfe", "not UTF-8 text: byte 0 is 0xff"),
        ("a.jsonl", "\n\n", "the file is empty"),
        ("a.jsonl", '{"prompt": "a", "completion": "b"}\n{oops', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "line 1 must be an object"),
        ("a.jsonl", '{"text": "a"}', "line 1: `messages`, or `prompt` and `completion` are needed; it has text"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "line 1: messages[0] must be an object with"),
        ("a.jsonl", '{"messages": "a"}', "line 1: messages must be a list of objects"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "a"}]}', "line 1 has no answer to learn from"),
        (
            "a.jsonl",
            '{"prompt": "a", "completion": "%s"}' % ("b" * 40),
            "line 1 has 42 tokens, more than 11; shorten",
        ),
        ("a.jsonl", '{"prompt": "a", "completion": "b"}', "1 conversations are fewer than a batch of 2"),
        ("a.csv", "a,b", "a .txt file, or a .jsonl file of chats is needed"),
    ],
)
def test_files_that_cannot_be_learnt_from(tokenizer, tmp_path, name, content, match):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError) as caught:
        example_batches(file, tokenizer, batch=2, length=10, vocab=260)
    assert match in str(caught.value) and str(file) in str(caught.value)


def test_templates_that_shorten_earlier_answers_make_an_example_of_each(tokenizer, tmp_path):
    """Each answer is learned after what the model will see before it."""
    shown = "{{ m.content.split('/')[-1] if m.role == 'assistant' and not loop.last else m.content }}"
    tokenizer.chat_template = TEMPLATE.replace("{{ m.content }}", shown)
    talk = [{**m, "content": f"so/{m['content']}"} if m["role"] == "assistant" else m for m in TALK]
    batches = chat_batches(write_lines(tmp_path / "a.jsonl", {"messages": talk}), tokenizer, batch=2, length=100)
    assert batches.count == 2
    assert sorted(texts_of(batches(0), row) for row in range(2)) == [
        ("<user>2+2?|<assistant>four|<user>sure?|<assistant>so/yes", "so/yes|"),
        ("<user>2+2?|<assistant>so/four", "so/four|"),
    ]


def test_templates_that_write_answers_elsewhere_are_refused(tokenizer, tmp_path):
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    file = write_lines(tmp_path / "a.jsonl", {"messages": TALK})
    with pytest.raises(FormatError, match="line 1: the chat template of this model does not write an answer behind"):
        chat_batches(file, tokenizer, batch=1, length=100)


def test_tools_parts_and_lists_of_messages(tokenizer, tmp_path):
    """Files for other libraries: calls of tools without content, contents in parts, prompts that are conversations."""
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}()|{% endfor %}"
    tokenizer.chat_template = "{{ tools | length if tools }}" + TEMPLATE.replace("|{%", calls + "|{%", 1)
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "now"}}]}
    used = [{"role": "user", "content": "late?"}, call, {"role": "tool", "content": "9"}, TALK[3]]
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    lines = (
        {"messages": used, "tools": [{"name": "now"}]},
        {"messages": [{"role": "user", "content": parts}, TALK[1]]},
        {"prompt": TALK[:3], "completion": TALK[3:]},
    )
    batch = chat_batches(write_lines(tmp_path / "a.jsonl", *lines), tokenizer, batch=3, length=100)(0)
    assert sorted(texts_of(batch, row) for row in range(3)) == [
        ("1<user>late?|<assistant>now()||<tool>9|<assistant>yes", "now()||yes|"),
        ("<user>2+2?|<assistant>four", "four|"),
        ("<user>2+2?|<assistant>four|<user>sure?|<assistant>yes", "yes|"),
    ]
    image = {"messages": [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}, TALK[1]]}
    with pytest.raises(FormatError, match=r"line 1: messages\[0\]: only parts"):
        chat_batches(write_lines(tmp_path / "b.jsonl", image), tokenizer, batch=1, length=100)


def test_models_without_a_template_say_what_to_do(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", {"messages": TALK})
    with pytest.raises(FormatError, match="line 1: the model has no chat template"):
        chat_batches(file, byte_tokenizer(), batch=1, length=100)
