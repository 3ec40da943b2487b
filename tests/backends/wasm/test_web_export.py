"""Folders for browsers: what is in them, what is refused, and that node computes with them what the reference does."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from page_runs import driving, run_node, run_page, serving, watched
from tokenizers import processors

import rlx
from compile.family_programs import FAMILIES, forward, training, values_for
from models.tiny_models import BERT, bert_arrays
from rlx.backends.wasm.exporter import WebExporter
from rlx.backends.wasm.web_program import WebProgram, parts_of
from rlx.cli import main
from rlx.errors import BackendError, RlxError
from rlx.formats.safetensors import write_safetensors
from rlx.ir.binding import bind_graph
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.models.pull import locate
from tokenizer_cases import train_wordpiece

TINY = str(resources.files("rlx.models") / "data" / "tiny.gguf")


def linear():
    graph = Graph("linear")
    x, w = graph.input("x", ("B", 4), "f32"), graph.param("w", (4, 2), "f32")
    graph.set_outputs([rlx.ops.matmul(x, w)])
    return graph, {"w": np.arange(8, dtype=np.float32).reshape(4, 2)}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    WebExporter().export(*linear(), folder / "page")
    return folder


def document(folder):
    return json.loads((folder / "page" / "program.json").read_text())


def test_a_folder_has_all_that_a_page_needs(page):
    files = {path.name for path in (page / "page").iterdir()}
    assert files == {
        "helper.js",
        "index.html",
        "needs_server.js",
        "plain_numbers.js",
        "program.d.ts",
        "program.json",
        "program.wasm",
        "relaxed.wasm",
        "rlx.d.ts",
        "rlx.js",
        "sizes.js",
        "threads.js",
        "wasm_machine.js",
        "weights.000.bin",
    }
    assert [path.name for path in page.iterdir()] == ["page"], "nothing is left beside it"
    found = document(page)
    (part,) = found["parts"]
    content = (page / "page" / part["file"]).read_bytes()
    assert (len(content), zlib.crc32(content)) == (part["size"], part["crc32"])
    assert np.frombuffer(content, np.float32)[:8].tolist() == list(range(8))
    for module, flags in found["memoryFlags"].items():
        content = (page / "page" / module).read_bytes()
        # Without the flag of shared memory, which the runtime sets.
        assert content.startswith(b"\0asm") and content[flags] == 1
    # Without weights a page is small.
    assert sum(f.stat().st_size for f in (page / "page").iterdir()) < 100_000


def test_the_declaration_names_inputs_and_outputs(page):
    text = (page / "page" / "program.d.ts").read_text()
    assert "  /** f32[B,4] */\n  x: Float32Array | Tensor<Float32Array>;" in text
    assert "export type Outputs = [\n  /** f32[B,2] */ Tensor<Float32Array>,\n];" in text


def test_weights_are_cut_into_parts():
    program = WebProgram.__new__(WebProgram)
    arrays = [np.arange(n, dtype=np.uint8) for n in (100, 1, 0, 250, 64)]
    program.pieces, at = [], 0
    for array in arrays:
        program.pieces.append((at, array))
        at += -(-array.nbytes // 64) * 64
    program.weight_bytes = at
    whole = np.zeros(at, np.uint8)
    for start, array in program.pieces:
        whole[start : start + array.size] = array
    for size in (64, 100, 128, 1000):
        parts = list(parts_of(program, size))
        assert b"".join(parts) == whole.tobytes() and all(len(p) == size for p in parts[:-1])


def test_an_earlier_export_is_replaced_and_nothing_else(page, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        WebExporter().export(*linear(), out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RlxError, match="mine exists and is no folder that was exported before"):
        WebExporter().export(*linear(), tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_what_has_no_kernel_is_refused_by_name_and_leaves_nothing(tmp_path):
    graph = Graph("bytes")
    graph.set_outputs([rlx.ops.bitcast(rlx.ops.exp(graph.input("x", (4,), "f32")), "u8")])
    words = "export: @bytes cannot become a page: bitcast has no kernel, it runs in Python on the host"
    with pytest.raises(BackendError, match=words):
        WebExporter().export(graph, {}, tmp_path / "out")
    strange = Graph("strange")
    strange.set_outputs([rlx.ops.cast(strange.input("x", (4,), "f8e4m3"), "f32")])
    with pytest.raises(BackendError, match=r"'x' is f8e4m3\[4\], and JavaScript has no arrays of f8e4m3"):
        WebExporter().export(strange, {}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("rlx.backends.wasm.exporter.declaration", lambda signature: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        WebExporter().export(*linear(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_options_are_checked(tmp_path):
    for option, words in (({"part": "x"}, "a number of megabytes"), ({"gpus": "1"}, "no option 'gpus'; known: part")):
        with pytest.raises(RlxError, match=words):
            WebExporter().export(*linear(), tmp_path / "out", option)


def test_a_model_comes_with_its_notes(tmp_path, capsys):
    assert main(["export", "web", TINY, str(tmp_path / "page"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kernels"].isdigit() and float(said["page"].split()[0]) < 300
    notes = json.loads((tmp_path / "page" / "model.json").read_text())
    assert (notes["kind"], notes["context"], notes["chat"]) == ("decoder", 256, None)
    assert notes["caches"][:2] == ["k.0", "v.0"] and len(notes["rope"]["rope"]["angles"]) == 16
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert {"language_model.js", "tokenizer.js", "worker.js", "page.js", "model.json"} <= names


def test_serving_needs_a_page(tmp_path, capsys):
    assert main(["serve-web", str(tmp_path)]) == 1
    assert "has no index.html; write it with `rlx export web MODEL" in capsys.readouterr().err


# In node.


@pytest.mark.targets
def test_inputs_are_checked_in_javascript(page):
    script = """
import { load } from "./page/rlx.js";
const program = await load(), said = [], x = new Float32Array(8).fill(1);
const tell = (inputs) => { try { program.run(inputs); said.push("ran"); } catch (error) { said.push(error.message); } };
tell({ x }); tell({}); tell({ x: new Float64Array(8) }); tell({ x: new Float32Array(7) });
tell({ x: { data: x, shape: [2, 5] } }); tell({ x: { data: x, shape: [8] } }); tell({ x: { data: x, shape: [4, 2] } });
tell({ x, y: x }); tell({ x: { data: new Float32Array(0), shape: [0, 4] } });
const [y] = program.run({ x });
console.log(JSON.stringify({ said, data: Array.from(y.data), shape: y.shape, inputs: program.inputs }));
"""
    found = run_node(script, page)
    assert found["data"] == [12, 16, 12, 16] and found["shape"] == [2, 2]
    assert found["inputs"] == [{"name": "x", "dtype": "f32", "shape": ["B", "4"]}]
    says = "x is f32[B,4]"
    assert found["said"] == [
        "ran",
        f"no value for input {says}",
        f"input {says}: give a Float32Array",
        f"input {says}: give {{data, shape}}",
        f"input {says}: the shape [2,5] does not have 8 elements",
        f"input {says}, got the shape [8]",
        "input x: axis 1 must be 4, got 2",
        "there is no input y; there are x",
        "ran",
    ]


@pytest.mark.targets
def test_damage_is_named(page, tmp_path):
    script = """
import { load, reader } from "./page/rlx.js";
const whole = reader(new URL("./page/", import.meta.url)), said = [];
for (const [file, change] of [
  ["weights.000.bin", (b) => { b = Uint8Array.from(b); b[3] ^= 1; return b; }],
  ["weights.000.bin", (b) => b.slice(0, -1)],
  ["program.json", (b) => b.slice(0, -1)],
]) {
  const read = async (name, hear) => (name === file ? change(await whole(name, hear)) : whole(name, hear));
  said.push(await load(undefined, { read }).then(() => "loaded", (error) => error.message));
}
said.push(await load(new URL("./nowhere/", import.meta.url)).then(() => "loaded", (error) => error.message));
console.log(JSON.stringify(said));
"""
    said = run_node(script, page)
    assert "weights.000.bin is damaged: its 64 bytes are not the 64 that were written" in said[0]
    assert "weights.000.bin is damaged: its 63 bytes are not the 64" in said[1]
    assert said[2].startswith("program.json is damaged: ") and "nowhere" in said[3]


@pytest.mark.targets
def test_ids_are_checked_as_on_other_devices(tmp_path):
    graph = Graph("table")
    ids = graph.input("ids", ("N",), "i32")
    table = graph.param("table", (5, 2), "f32")
    graph.set_outputs([rlx.ops.gather(table, ids, axis=0)])
    WebExporter().export(graph, {"table": np.arange(10, dtype=np.float32).reshape(5, 2)}, tmp_path / "page")
    script = """
import { load } from "./page/rlx.js";
const program = await load(), [y] = program.run({ ids: Int32Array.of(4, 0, -1) });
let message = "";
try { program.run({ ids: Int32Array.of(1, 5) }); } catch (error) { message = error.message; }
console.log(JSON.stringify({ message, data: Array.from(y.data) }));
"""
    found = run_node(script, tmp_path)
    assert found["data"] == [8, 9, 0, 1, 8, 9] and "ids holds 5, but the indexed axis has size 5" in found["message"]


@pytest.mark.targets
def test_residents_are_stored_over_in_their_place(tmp_path):
    graph = Graph("counter")
    state = graph.input("state", ("N",), "f32")
    after = rlx.ops.add(state, 1.0)
    graph.set_outputs([after])
    graph.alias(after, "state")
    WebExporter().export(graph, {}, tmp_path / "page")
    script = """
import { load } from "./page/rlx.js";
const program = await load(), state = program.zeros("f32", [3]), before = program.machine.heap.holes.length;
let same = true;
for (let i = 0; i < 5; i++) same &&= program.run({ state })[0] === state;
const data = Array.from(state.data), [copied] = program.run({ state: new Float32Array(2) });
state.free();
const holes = [before, program.machine.heap.holes.length];
console.log(JSON.stringify({ same, data, copied: Array.from(copied.data), holes }));
"""
    found = run_node(script, tmp_path)
    assert found == {"same": True, "data": [5, 5, 5], "copied": [1, 1], "holes": [1, 1]}


@pytest.mark.targets
@pytest.mark.parametrize("way", [forward, training], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_in_node(name, way, tmp_path):
    graph = way(FAMILIES[name], "f32")
    values = values_for(FAMILIES[name], graph)
    WebExporter().export(graph, {n.op.key: values[n.op.key] for n in graph.params}, tmp_path / "page")
    got = run_page(tmp_path, {n.op.key: values[n.op.key] for n in graph.inputs})
    wanted = interpret(bind_graph(graph, {"B": 2}), values, None)
    for w, g in zip(wanted, got, strict=True):
        assert (w.shape, w.dtype) == (g.shape, g.dtype)
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-4 * max(1.0, float(np.abs(w).max(initial=0))))


@pytest.mark.targets
def test_loops_and_branches_in_node(tmp_path):
    def steps(x, n):
        total = rlx.while_loop(lambda s: s[1] < n, lambda s: (s[0] * 1.5 + s[1], s[1] + 1), (x, np.float32(0)))[0]
        carry, rows = rlx.scan(lambda c, r: (c + r, c * r), total, x[None, :] * np.ones((4, 1), np.float32))
        return rlx.cond(n > 2.5, lambda a: a * 2.0, lambda a: -a, carry), rows

    x = np.linspace(-1, 1, 6, dtype=np.float32)
    graph = rlx.trace(steps, x, np.float32(0)).graph
    WebExporter().export(graph, {}, tmp_path / "page")
    for n in (0.0, 2.0, 3.0):
        values = {node.op.key: v for node, v in zip(graph.inputs, (x, np.float32(n)))}
        got = run_page(tmp_path, {k: np.asarray(v) for k, v in values.items()})
        for w, g in zip(interpret(graph, values, None), got, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)


@pytest.mark.targets
def test_threads_give_the_same_bits(tmp_path):
    graph = Graph("rows")
    x = graph.input("x", (512, 96), "f32")
    w = graph.param("w", (96, 96), "f32")
    graph.set_outputs([rlx.ops.softmax(rlx.ops.matmul(rlx.ops.matmul(x, w), w), axis=-1)])
    weight = np.random.default_rng(3).standard_normal((96, 96)).astype(np.float32)
    WebExporter().export(graph, {"w": weight}, tmp_path / "page")
    script = """
import { load } from "./page/rlx.js";
const x = Float32Array.from({ length: 512 * 96 }, (_, i) => Math.sin(i)), one = await load();
const several = await load(undefined, { threads: 3 }), [{ data: wanted }] = one.run({ x });
let isSame = true, runs = 0;
// Helpers come when they are ready.
for (const start = Date.now(); Date.now() - start < 60000 && (runs < 20 || several.machine.team.helped < 20); runs++) {
  const [{ data }] = several.run({ x });
  isSame &&= wanted.every((value, i) => value === data[i]);
}
const { helped } = several.machine.team, { threads } = several;
several.close();
console.log(JSON.stringify({ isSame, helped, threads: [one.threads, threads, several.threads] }));
process.exit();
"""
    found = run_node(script, tmp_path)
    assert found["isSame"] and found["helped"] >= 20 and found["threads"] == [1, 3, 1]


# The shipped model.


@pytest.fixture(scope="module")
def tiny_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    assert main(["export", "web", TINY, str(folder / "page")]) == 0
    return folder


_WRITE = """
import { LanguageModel } from "./page/language_model.js";
const model = await LanguageModel.load(), found = [];
for (const prompt of JSON.parse(process.argv[2])) {
  const ids = [];
  for await (const id of model.generateIds(prompt, { maxTokens: 32 })) ids.push(id);
  found.push({ prompt: model.tokenizer.encode(prompt), ids, text: model.tokenizer.decode(ids) });
}
console.log(JSON.stringify(found));
"""
PROMPTS = ["Once upon a time", "O Romeo,", "KING: what " + "say you to it? " * 20]


@pytest.mark.targets
def test_node_writes_the_tokens_of_the_cpu(tiny_page):
    """One model for all prompts, so that caches are used again, and one prompt is longer than half of the context."""
    model = rlx.load(TINY)
    for prompt, said in zip(PROMPTS, run_node(_WRITE, tiny_page, json.dumps(PROMPTS)), strict=True):
        answer = model.complete([prompt], 32)[0]
        assert said["prompt"] == model.tokenizer.encode(prompt)
        assert (said["ids"], said["text"]) == (answer.token_ids, answer.text)


@pytest.mark.targets
def test_a_prompt_can_be_stopped_while_it_is_read(tiny_page):
    """Between its parts; what was read of it is not read again."""
    script = """
import { LanguageModel } from "./page/language_model.js";
const model = await LanguageModel.load(), stopper = new AbortController();
const prompt = process.argv[2], stopped = [], ids = [];
const total = model.tokenizer.encode(prompt).length;
setTimeout(() => stopper.abort());
for await (const id of model.generateIds(prompt, { maxTokens: 32, signal: stopper.signal })) stopped.push(id);
const read = model.tokens.length;
for await (const id of model.generateIds(prompt, { maxTokens: 32 })) ids.push(id);
console.log(JSON.stringify({ stopped, read, total, ids }));
"""
    prompt = "KING: what " + "say you to it? " * 35
    said = run_node(script, tiny_page, prompt)
    assert said["stopped"] == [] and said["read"] == 128 < said["total"]
    assert said["ids"] == rlx.load(TINY).complete([prompt], 32)[0].token_ids


# Encoders.


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """A small BERT as a directory, with random weights."""
    folder = tmp_path_factory.mktemp("bert")
    backend = train_wordpiece(True)
    pairs = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single=["[CLS]", "$A", "[SEP]"], special_tokens=pairs)
    backend.save(str(folder / "tokenizer.json"))
    config = replace(BERT, vocab=backend.get_vocab_size())
    fields = {
        "model_type": "bert",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(fields))
    write_safetensors(folder / "model.safetensors", bert_arrays(config))
    return folder


_EMBED = """
import { Embedder } from "./page/embedder.js";
const embedder = await Embedder.load(), texts = JSON.parse(process.argv[2]);
const vectors = embedder.embed(texts).map((v) => Array.from(v));
const one = Array.from(embedder.embed(texts[0])), ids = texts.map((text) => embedder.ids(text));
console.log(JSON.stringify({ vectors, ids, one }));
"""
LINES = ["The quick brown fox", "naïve café — 東京!", "", "over " * 200]


def assert_embeds(folder, model, tolerance):
    """Vectors of node are those of the CPU; a text that is too long is cut in the same place."""
    assert main(["export", "web", str(model), str(folder / "page")]) == 0
    encoder = rlx.load_encoder(model)
    said = run_node(_EMBED, folder, json.dumps(LINES))
    assert said["ids"] == encoder.token_ids(LINES)
    wanted = encoder.embed(LINES)
    np.testing.assert_allclose(said["vectors"], wanted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(said["one"], wanted[0], rtol=0, atol=tolerance)


@pytest.mark.targets
def test_encoders_give_the_vectors_of_the_cpu(encoder_folder, tmp_path):
    assert_embeds(tmp_path, encoder_folder, 2e-6)


@pytest.mark.targets
def test_an_encoder_has_a_page_that_searches(encoder_folder, tmp_path):
    assert main(["export", "web", str(encoder_folder), str(tmp_path / "page")]) == 0
    with driving() as open_browser, serving(tmp_path / "page") as url, watched(open_browser()) as page:
        page.goto(url)
        page.wait_for_selector("#query:not([disabled])", timeout=60_000)
        lines = ["The king is dead", "Bread is made of flour", "Where do penguins live?"]
        page.fill("#query", lines[2])
        page.fill("#texts", "\n".join(["", *lines, ""]))
        page.press("#texts", "Tab")
        page.wait_for_function("document.querySelectorAll('#found li').length === 3")
        found = [line.split(" ", 1) for line in page.locator("#found li").all_inner_texts()]
        assert found[0] == ["1.000", lines[2]] and [score for score, _ in found] == sorted(
            (s for s, _ in found), reverse=True
        )
        vectors = rlx.load_encoder(encoder_folder).embed(lines)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        wanted = dict(zip(lines, unit @ unit[2], strict=True))
        assert all(abs(float(score) - wanted[line]) < 1e-3 for score, line in found)
        assert "4 texts in" in page.inner_text("#took") and page.faults == []


# Models that have to be pulled first.


def pulled(name):
    try:
        return locate(name)
    except RlxError as error:
        pytest.skip(f"{error}")


@pytest.mark.real
def test_smollm2_in_node_writes_what_it_writes_on_the_cpu(tmp_path):
    model, prompts = pulled("smollm2"), ["The capital of France is", "Once upon a time there was"]
    assert main(["export", "web", str(model), str(tmp_path / "page")]) == 0
    lm = rlx.load(model)
    for prompt, said in zip(prompts, run_node(_WRITE, tmp_path, json.dumps(prompts)), strict=True):
        answer = lm.complete([prompt], 32)[0]
        assert (said["ids"], said["text"]) == (answer.token_ids, answer.text)
    notes = json.loads((tmp_path / "page" / "model.json").read_text())
    script = """
import { LanguageModel } from "./page/language_model.js";
const model = await LanguageModel.load();
console.log(JSON.stringify([model.chatIds(["Hello"]), model.chatIds(["Hello", "Hi!", "Why is the sky blue?"])]));
"""
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
    turns.append({"role": "user", "content": "Why is the sky blue?"})
    assert notes["chat"] and run_node(script, tmp_path) == [lm.chat_ids(turns[:1]), lm.chat_ids(turns)]


@pytest.mark.real
def test_minilm_in_node_gives_the_vectors_of_the_cpu(tmp_path):
    assert_embeds(tmp_path, pulled("minilm"), 2e-6)
