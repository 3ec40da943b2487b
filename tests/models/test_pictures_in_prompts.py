"""Pictures in the prompts of a language model: how they are found in conversations and texts, and what is refused."""

import argparse
import json

import numpy as np
import pytest

import rlx
from models.random_directories import COMMON, random_directory
from rlx.cli.chat import Conversation, add_parser
from rlx.errors import OpError
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models.picture_tokens import PictureToken
from rlx.models.picture_turns import turns_with_pictures

MARKS = ["<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
    "{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}\n{% endfor %}"
)
rng = np.random.default_rng(8)
PICTURES = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((8, 16), (16, 8))]


def tower(hidden, layers, ffn, patch, squares):
    sizes = {
        "embeddings.patch_embedding": (hidden, 3, patch, patch),
        "embeddings.position_embedding": (squares, hidden),
    }
    for i in range(layers):
        at = f"encoder.layers.{i}."
        sizes |= {f"{at}self_attn.{part}": (hidden, hidden) for part in ("q_proj", "k_proj", "v_proj", "out_proj")}
        sizes |= {f"{at}layer_norm1": (hidden,), f"{at}layer_norm2": (hidden,)}
        sizes |= {f"{at}mlp.fc1": (ffn, hidden), f"{at}mlp.fc2": (hidden, ffn)}
    return sizes | {"post_layernorm": (hidden,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """SmolVLM whose pictures are cut into tiles of 8 pixels, each 4 squares, which become one row."""
    folder = random_directory(tmp_path_factory.mktemp("seeing"), COMMON | {"model_type": "llama", "vocab_size": 270})
    words = {name: t.array() for name, t in open_safetensors(folder).tensors.items()}
    found = {name.replace("model.", "model.text_model.", 1): array for name, array in words.items()}
    sizes = {f"model.vision_model.{name}.weight": dims for name, dims in tower(8, 2, 12, 4, 4).items()}
    sizes["model.connector.modality_projection.proj.weight"] = (32, 32)
    found |= {name: rng.normal(size=dims).astype(np.float32) / 3 for name, dims in sizes.items()}
    write_safetensors(folder / "model.safetensors", found)
    vision = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "num_attention_heads": 2}
    fields = {"model_type": "smolvlm", "text_config": json.loads((folder / "config.json").read_text())}
    fields |= {"vision_config": vision | {"image_size": 8, "patch_size": 4}, "image_token_id": 260, "scale_factor": 2}
    (folder / "config.json").write_text(json.dumps(fields))
    recipe = {"size": {"longest_edge": 16}, "max_image_size": {"longest_edge": 8}, "resample": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(recipe))
    document = json.loads((folder / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] += [{"id": 260 + i, "content": mark, **plain} for i, mark in enumerate(MARKS)]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def lm(folder):
    return rlx.load(folder, device="reference")


def shape(lm, ids):
    """The words of a prompt, with a mark for each row of a picture."""
    return "".join("#" if isinstance(t, PictureToken) else lm.tokenizer.decode([t], skip_special=False) for t in ids)


def test_prompts_have_a_row_for_each_tile_and_the_whole(lm):
    around = "<fake_token_around_image>"
    ids = lm.prompt_ids("a<image>b", PICTURES[:1])
    tiles = f"{around}<row_1_col_1>#{around}<row_1_col_2>#\n\n{around}<global-img>#{around}"
    assert shape(lm, ids).removeprefix("<s>") == f"a{tiles}b"
    assert len({t for t in ids if isinstance(t, PictureToken)}) == 3
    assert ids == lm.prompt_ids("a<image>b", PICTURES[:1]) != lm.prompt_ids("a<image>b", [PICTURES[0][::-1]])
    with pytest.raises(OpError, match="the prompt has 1 times <image>, and there are 2 pictures"):
        lm.prompt_ids("a<image>b", PICTURES)


def test_rows_count_as_they_are_given(lm):
    """Equal words with other pictures are other texts, whatever was read before them; words alone are as ever."""
    prompts = [lm.prompt_ids("a<image>b", [p]) for p in (PICTURES[0], PICTURES[0][::-1])]
    first, second = (lm.logits(ids)[-1] for ids in prompts)
    assert np.abs(first - second).max() > 1e-3
    for ids, expected in (*zip(prompts, (first, second)), (prompts[0], first)):
        answer = lm.complete([ids], max_tokens=2, repetition_penalty=1.3)[0]
        assert answer.prompt_tokens == len(ids)
        session = lm.session()
        session.prefill(ids[:5])
        np.testing.assert_allclose(session.prefill(ids[5:]), expected, rtol=0, atol=1e-5)
    together = lm.complete([prompts[0], [3, 4], prompts[1]], max_tokens=3)
    alone = [lm.complete([ids], max_tokens=3)[0].token_ids for ids in (prompts[0], [3, 4], prompts[1])]
    assert [a.token_ids for a in together] == alone


def test_conversations_with_pictures(lm):
    inline = [{"role": "user", "content": [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "hm?"}]}]
    ids = lm.chat_ids("hm?", images=PICTURES[:1])
    assert ids == lm.chat_ids(inline)
    assert shape(lm, ids).startswith("user:<fake_token") and shape(lm, ids).endswith("hm?")
    assert lm.chat("hm?", 3, images=PICTURES[:1]) == lm.complete([ids], 3)[0].text
    assert "#" not in shape(lm, lm.chat_ids("hm?"))
    with pytest.raises(OpError, match="1 pictures stand in the messages without one, and images has 2"):
        turns_with_pictures([{"role": "user", "content": [{"type": "image"}]}], PICTURES)
    with pytest.raises(OpError, match="images stand before a message of the user, and there is none"):
        turns_with_pictures([{"role": "system", "content": "x"}], PICTURES)
    with pytest.raises(OpError, match=r"images are a list of pictures, got 'a\.png'"):
        lm.chat("hm?", images="a.png")
    with pytest.raises(OpError, match="a content is a text or a list of entries with a type, got 3"):
        lm.chat_ids([{"role": "user", "content": 3}])


def test_the_command_asks_about_pictures_once(folder, lm, capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["chat", str(folder), "--image", "a.png", "--image", "b.png", "--max-tokens", "3"])
    assert args.image == ["a.png", "b.png"]
    conversation = Conversation(lm, args, PICTURES)  # files need Pillow
    for question, images in (("hm?", PICTURES), ("and?", [])):
        expected = lm.chat([*conversation.messages, {"role": "user", "content": question}], 3, images=images)
        capsys.readouterr()
        conversation.answer(question)
        assert capsys.readouterr().out.strip() == expected.strip()
    assert [len(m["content"]) for m in conversation.messages[::2]] == [3, len("and?")]


def test_models_that_read_no_pictures_say_why(folder, tmp_path):
    plain = rlx.load(random_directory(tmp_path / "plain", COMMON | {"model_type": "llama"}), device="reference")
    with pytest.raises(OpError, match="plain reads no pictures: it is a model of texts"):
        plain.chat("hm?", images=PICTURES)
    wrapped = tmp_path / "wrapped"
    wrapped.mkdir()
    for file in folder.iterdir():
        (wrapped / file.name).write_bytes(file.read_bytes())
    fields = json.loads((folder / "config.json").read_text())
    fields["vision_config"]["num_attention_heads"] = 3
    (wrapped / "config.json").write_text(json.dumps(fields))
    half = rlx.load(wrapped, device="reference")
    assert half.logits([3, 4]).shape == (2, 270)
    with pytest.raises(OpError, match="3 heads do not divide a width of 8"):
        half.prompt_ids("<image>", PICTURES[:1])
