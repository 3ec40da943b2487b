"""The page of the shipped model in a real browser, driven as a user would."""

from __future__ import annotations

import json
import shutil
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import ml_dtypes
import numpy as np
import pytest
from page_runs import READY, answered, ask, driving, serving, watched

import rlx
from rlx.backends.wasm.exporter import WebExporter
from rlx.cli import main
from rlx.formats.gguf import open_gguf, write_gguf

pytestmark = pytest.mark.targets

TINY = str(resources.files("rlx.models") / "data" / "tiny.gguf")


@pytest.fixture(scope="module")
def browser():
    with driving() as open_browser:
        yield open_browser()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("web") / "page"
    assert main(["export", "web", TINY, str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def address(folder):
    with serving(folder) as url:
        yield url


@pytest.fixture
def page(browser):
    with watched(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected():
    return rlx.load(TINY).complete(["Once upon a time"], 32)[0].text


def test_a_text_is_continued_as_on_the_cpu(page, address, expected):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    assert page.inner_text("#title") == "tiny" and "256 tokens of context" in page.inner_text("#about")
    assert not page.is_visible("#loading") and not page.is_visible("#stop")
    ask(page, "Once upon a time")
    assert answered(page).strip() == expected.strip()
    assert "32 tokens" in page.inner_text("#rate") and "tokens/s" in page.inner_text("#rate")
    # As many threads as the browser says there are cores, since the server allows it.
    cores = page.evaluate("navigator.hardwareConcurrency")
    assert page.evaluate("crossOriginIsolated") and f"{cores} thread" in page.inner_text("#about")
    assert page.faults == []


def test_without_isolation_there_is_one_thread(page, folder, expected):
    class Plain(SimpleHTTPRequestHandler):
        def log_message(self, *given):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Plain, directory=str(folder)))
    with serving(folder, server) as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        assert "1 thread " in page.inner_text("#about")
        ask(page, "Once upon a time")
        assert answered(page).strip() == expected.strip()


def test_stopping_keeps_what_was_written_and_allows_another_question(page, address):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "Once upon a time", 240)
    # From inside the page: a fast machine has written everything before a click from here arrives.
    page.wait_for_function(
        "document.querySelector('#talk .model').textContent.length > 10"
        " && (document.querySelector('#stop').click(), true)",
        timeout=60_000,
    )
    written = answered(page)
    count = int(page.inner_text("#rate").split()[0])
    assert 0 < count < 240 and written
    ask(page, "O Romeo,", 4)
    answered(page)
    assert page.locator("#talk .user").count() == page.locator("#talk .model").count() == 2
    page.click("#clear")
    assert page.locator("#talk > *").count() == 0


def test_a_page_that_was_loaded_once_needs_no_network(page, folder, expected):
    with serving(folder) as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        # Files are kept while the page goes on.
        page.wait_for_function(
            "caches.open('rlx').then((c) => c.keys()).then((k) => k.some((r) => r.url.includes('.bin?')))",
            timeout=60_000,
        )
    # The server is gone.
    ask(page, "Once upon a time")
    assert answered(page).strip() == expected.strip()
    page.reload()
    page.wait_for_selector(READY, timeout=60_000)
    assert page.locator("#talk > *").count() == 0
    ask(page, "Once upon a time")
    assert answered(page).strip() == expected.strip()


def test_a_new_export_is_taken_when_the_page_is_loaded_again(page, folder, tmp_path, expected):
    """What is kept does not hide what has changed: here the name of the model, then its weights."""
    changed = tmp_path / "page"
    shutil.copytree(folder, changed)
    with serving(changed) as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        notes = json.loads((changed / "model.json").read_text())
        (changed / "model.json").write_text(json.dumps({**notes, "name": "another"}))
        page.reload()
        page.wait_for_selector(READY, timeout=60_000)
        assert page.inner_text("#title") == "another"
        part, document = changed / "weights.000.bin", json.loads((changed / "program.json").read_text())
        part.write_bytes(bytes(len(part.read_bytes())))
        document["parts"][0]["crc32"] = zlib.crc32(part.read_bytes())
        (changed / "program.json").write_text(json.dumps(document))
        page.reload()
        page.wait_for_selector(READY, timeout=60_000)
        ask(page, "Once upon a time")
        assert answered(page).strip() != expected.strip()


def test_two_tabs_do_not_disturb_each_other(page, address, expected):
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(address)
    for tab in (page, other):
        tab.wait_for_selector(READY, timeout=60_000)
        ask(tab, "Once upon a time")
    assert [answered(tab).strip() for tab in (page, other)] == [expected.strip()] * 2


def test_a_prompt_that_does_not_fit_is_said_and_is_no_turn(page, address, expected):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "word " * 400)
    page.wait_for_selector("#talk .error")
    assert "and the context of this model 256" in page.inner_text("#talk .error")
    ask(page, "Once upon a time")
    assert answered(page).strip() == expected.strip()


CHAT = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:"


def test_a_conversation_goes_on_until_it_is_full(page, tmp_path):
    with open_gguf(TINY) as file:
        write_gguf(tmp_path / "chat.gguf", {**file.metadata.typed(), "tokenizer.chat_template": CHAT}, file.tensors)
    assert main(["export", "web", str(tmp_path / "chat.gguf"), str(tmp_path / "page")]) == 0
    model, turns = rlx.load(tmp_path / "chat.gguf"), []
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        assert (
            page.inner_text("#about").endswith("chat") and page.get_attribute("#text", "placeholder") == "Ask something"
        )
        for question in ("Who is there?", "Where is the king?"):
            turns.append({"role": "user", "content": question})
            ask(page, question, 24)
            wanted = model.complete([model.chat_ids(turns)], 24)[0].text
            assert answered(page) and page.locator("#talk .model").last.text_content() == wanted
            turns.append({"role": "assistant", "content": wanted})
        ask(page, "word " * 200)
        page.wait_for_selector("#talk .error")
        words = page.inner_text("#talk .error")
        assert "this conversation has " in words and "Clear begins another one" in words
        # What did not fit is no turn; after Clear the first question is the first one again.
        page.click("#clear")
        ask(page, "Who is there?", 24)
        answered(page)
        assert page.locator("#talk .model").last.text_content() == turns[1]["content"]
    assert page.faults == []


def test_a_full_context_is_said(page, address):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "Once upon a time", 1000)
    answered(page)
    assert page.inner_text("#rate").endswith("tokens/s · the context is full")
    ask(page, "Once upon a time", 4)
    answered(page)
    assert "full" not in page.inner_text("#rate")


def test_long_talks_keep_their_lines_apart(page, address):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    for number in range(5):
        ask(page, f"Question {number} " + "of many words " * 20, 60)
        answered(page)
    boxes = page.evaluate("[...document.querySelectorAll('#talk div')].map((d) => [d.scrollHeight, d.clientHeight])")
    assert len(boxes) == 10 and all(text <= box for text, box in boxes)
    talk = page.evaluate(
        "(({ scrollTop, clientHeight, scrollHeight }) => [scrollTop + clientHeight, scrollHeight])(talk)"
    )
    assert talk[0] >= talk[1] - 50, "the last answer is in sight"


def test_whoever_reads_what_was_before_is_left_there(page, address):
    page.set_viewport_size({"width": 320, "height": 420})
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "Once upon a time", 60)
    answered(page)
    ask(page, "O Romeo,", 200)
    page.wait_for_function(
        "document.querySelectorAll('#talk .model')[1].textContent.length > 10 && ((talk.scrollTop = 0), true)"
    )
    answered(page)
    assert page.evaluate("talk.scrollTop") == 0 and page.evaluate("talk.scrollHeight > 2 * talk.clientHeight")


def test_the_last_answer_stays_in_sight_when_the_window_shrinks(page, address):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "Once upon a time", 100)
    answered(page)
    page.set_viewport_size({"width": 320, "height": 330})
    end = "talk.scrollHeight > talk.clientHeight && talk.scrollTop + talk.clientHeight > talk.scrollHeight - 50"
    page.wait_for_function(end)


def test_a_page_without_a_server_says_what_it_needs(page, folder, tmp_path):
    WebExporter().export(*doubled(), tmp_path / "page")
    for shown, title, said in ((folder, "#title", "#talk .error"), (tmp_path / "page", "#name", "#result")):
        page.goto((shown / "index.html").as_uri())
        assert page.inner_text(title) == "Not loaded"
        assert "A server has to give this page to the browser: `rlx serve-web FOLDER`" in page.inner_text(said)


def test_a_damaged_part_is_named_until_it_is_mended(page, folder, tmp_path, expected):
    damaged = tmp_path / "page"
    shutil.copytree(folder, damaged)
    part = damaged / "weights.000.bin"
    content = bytearray(part.read_bytes())
    content[1000] ^= 255
    part.write_bytes(content)
    with serving(damaged) as url:
        page.goto(url)
        page.wait_for_selector("#talk .error", timeout=60_000)
        assert "weights.000.bin is damaged" in page.inner_text("#talk .error")
        assert page.is_disabled("#text") and page.is_disabled("#send") and page.inner_text("#title") == "Not loaded"
        # What the browser has kept of it does not outlive the mended folder.
        shutil.copy(folder / "weights.000.bin", part)
        page.reload()
        page.wait_for_selector(READY, timeout=60_000)
        ask(page, "Once upon a time")
        assert answered(page).strip() == expected.strip()


def test_a_damaged_module_is_named(page, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "page")
    for module in (tmp_path / "page").glob("*.wasm"):
        module.write_bytes(module.read_bytes()[:20_000])
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#talk .error", timeout=60_000)
    assert ".wasm cannot be compiled: " in page.inner_text("#talk .error")


def test_a_missing_part_is_named(page, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "page")
    (tmp_path / "page" / "weights.000.bin").unlink()
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#talk .error", timeout=60_000)
    assert "weights.000.bin: the server answers 404" in page.inner_text("#talk .error")


def test_a_phone_shows_all_of_it(page, address):
    page.set_viewport_size({"width": 320, "height": 560})
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "x" * 200, 8)
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for button in ("#send", "#clear", "#text"):
        box = page.locator(button).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 320 and box["y"] + box["height"] <= 560, button


def test_text_is_shown_as_text(page, address):
    page.goto(address)
    page.wait_for_selector(READY, timeout=60_000)
    ask(page, "<img src=x onerror=document.title='broken'>", 2)
    answered(page)
    assert page.locator("#talk img").count() == 0 and page.title() == "tiny"


def doubled():
    graph = rlx.Graph("doubled")
    graph.set_outputs([rlx.ops.mul(graph.input("x", ("N",), "f32"), 2.0)])
    return graph, {}


def run_text(page, text):
    page.fill("#inputs", text)
    page.click("#run")
    return page.inner_text("#result")


def test_any_program_has_a_page(page, tmp_path):
    WebExporter().export(*doubled(), tmp_path / "page")
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#run:not([disabled])", timeout=60_000)
        assert run_text(page, '{"x": [1, 2, 3.5]}') == "f32[3]\n2 4 7"
        assert "no value for input x is f32[N]" in run_text(page, "{}")
        assert "there is no input y; there are x" in run_text(page, '{"x": [1], "y": [1]}')
        assert "Expected" in run_text(page, '{"x": [1')
    assert page.faults == []


def test_numbers_of_all_types_are_written_as_numbers(page, tmp_path):
    graph, ops = rlx.Graph("mixed"), rlx.ops
    x, half = graph.input("x", ("B", 3), "f32"), graph.input("half", ("B", 2), "f16")
    brain, whole = graph.input("brain", (2,), "bf16"), graph.input("whole", ("N",), "i64")
    mask, scale, many = (
        graph.input(*i) for i in (("mask", (3,), "bool"), ("scale", (), "f32"), ("many", (99,), "i32"))
    )
    chosen = ops.where(mask, ops.mul(x, scale), x)
    graph.set_outputs(
        [chosen, ops.add(half, half), ops.add(brain, brain), ops.add(whole, whole), ops.reduce(many, "sum", axes=[0])]
    )
    WebExporter().export(graph, {}, tmp_path / "page")
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#run:not([disabled])", timeout=60_000)
        page.click("#run")
        # What the page begins with is an example that runs.
        assert page.inner_text("#result").startswith("f32[1,3]\n0 0 0\n\nf16[1,2]\n0 0\n\n")
        text = """{"x": [[1, 2, 3], [4, 5, 6]], "half": [[1.5, -0.25], [6e-8, "Infinity"]], "brain": [0.1, "NaN"],
          "whole": [9007199254740993, -7], "mask": [true, false, 1], "scale": -2, "many": 3}"""
        wanted = "f32[2,3]\n-2 2 -6 -8 5 -12\n\nf16[2,2]\n3 -0.5 1.1920928955078125e-7 Infinity\n\n"
        wanted += "bf16[2]\n0.2001953125 NaN\n\ni64[2]\n18014398509481986 -14\n\ni32[]\n297"
        assert run_text(page, text) == wanted
        for wrong, words in (('"whole": [0.5]', "input whole: 0.5 is no whole number, which i64 needs"),
                             ('"whole": [1e30]', "input whole: 1e+30 does not fit into i64"),
                             ('"whole": [9223372036854775808]', "9223372036854775808 does not fit into i64"),
                             ('"many": 3000000000', "input many: 3000000000 does not fit into i32"),
                             ('"mask": [2, 0, 1]', "input mask: 2 does not fit into bool"),
                             ('"x": {"data": 1, "shape": [9999999999, 3]}', "[9999999999,3] is none, or has more than"),
                             ('"x": {"data": 1, "shape": [-1, 3]}', "the shape [-1,3] is none, or has more than"),
                             ('"x": ["a", 1, 2]', 'input x: "a" is no number'),
                             ('"x": 1', "input x: one number for all elements needs a shape")):  # fmt: skip
            assert words in run_text(page, text[:-1] + ", " + wrong + "}")
    assert page.faults == []


def test_halves_are_those_of_numpy(page, tmp_path):
    """All numbers of both types, and numbers between two of them."""
    WebExporter().export(*doubled(), tmp_path / "page")
    rng = np.random.default_rng(0)
    script = """async ([values, f16, bf16]) => {
      const { numbersOf, tensorOf } = await import("./plain_numbers.js");
      const given = (dtype) => ({ name: "x", dtype, shape: ["N"] });
      return [tensorOf(given("f16"), values), tensorOf(given("bf16"), values), numbersOf({ dtype: "f16", data: f16 }),
        numbersOf({ dtype: "bf16", data: bf16 })].map((a) => Array.from(a, String));
    }"""
    every = np.arange(2**16, dtype=np.uint16)
    halves, brains = (every.view(t).astype(np.float32) for t in (np.float16, ml_dtypes.bfloat16))
    exact = halves[np.isfinite(halves)].astype(np.float64)
    near = np.concatenate(
        [(exact[:-1] + exact[1:]) / 2, exact * (1 + 2.0**-12), rng.standard_normal(500) * 1e5, [0.0, -0.0]]
    )
    near = near.astype(np.float32)
    with serving(tmp_path / "page") as url:
        page.goto(url)
        found = page.evaluate(script, [near.tolist(), every.tolist(), every.tolist()])
    with np.errstate(over="ignore"):
        wanted = [near.astype(t).view(np.uint16) for t in (np.float16, ml_dtypes.bfloat16)]
    for bits, right in zip(found[:2], wanted, strict=True):
        np.testing.assert_array_equal(np.array(bits, np.int64), right)
    for numbers, right in zip(found[2:], (halves, brains), strict=True):
        np.testing.assert_array_equal(np.array(numbers, np.float64), right)
