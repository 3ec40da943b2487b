"""The page of the shipped model in a real browser, driven as a user would."""

from __future__ import annotations

import json
import shutil
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import pytest
from page_runs import READY, answered, ask, driving, serving, watched

import rlx
from rlx.cli import main

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


def test_a_damaged_part_is_named(page, folder, tmp_path):
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
    assert page.is_disabled("#text")


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


def test_any_program_has_a_page(page, tmp_path):
    graph = rlx.Graph("doubled")
    graph.set_outputs([rlx.ops.mul(graph.input("x", ("N",), "f32"), 2.0)])
    from rlx.backends.wasm.exporter import WebExporter

    WebExporter().export(graph, {}, tmp_path / "page")
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#run:not([disabled])", timeout=60_000)
        page.fill("#inputs", '{"x": [1, 2, 3.5]}')
        page.click("#run")
        assert page.inner_text("#result") == "f32[3]\n2 4 7"
        page.fill("#inputs", "{}")
        page.click("#run")
        assert "no value for input x is f32[N]" in page.inner_text("#result")
    assert page.faults == []
