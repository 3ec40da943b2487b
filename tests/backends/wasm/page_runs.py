"""Exported folders at work, in node and in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.cli.serve_web import page_server
from rlx.ir.dtype import DType

# The box to write in, when the page waits for a text.
READY = "#text:not([disabled])"
# What lets Chromium have WebGPU without a GPU.
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")


def node_command() -> str:
    """Where node is; the test is skipped where there is none."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("no JavaScript: node is not on the path (make tools)")
    return found


def run_node(script: str, folder: Path, *arguments: str) -> dict | list:
    """What a module prints as JSON; it runs in the folder."""
    file = folder / "script.mjs"
    file.write_text(script)
    done = subprocess.run([node_command(), str(file), *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# Runs the program of `page` on inputs from files, twice, and writes its outputs.
_RUN = """
import { load } from "./page/rlx.js";
import { readFileSync, writeFileSync } from "node:fs";
const arrays = { f64: Float64Array, f32: Float32Array, i64: BigInt64Array, i32: Int32Array, i8: Int8Array,
  u8: Uint8Array, bool: Uint8Array, f16: Uint16Array, bf16: Uint16Array, c64: Float32Array };
const program = await load(), given = {};
for (const { name, dtype, shape, file } of JSON.parse(readFileSync("inputs.json"))) {
  const bytes = Uint8Array.from(readFileSync(file));
  given[name] = { data: new arrays[dtype](bytes.buffer), shape };
}
const bytes = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);
const outputs = program.run(given), again = program.run(given);
outputs.forEach((o, i) => writeFileSync(`output${i}.bin`, bytes(o)));
console.log(JSON.stringify({
  types: outputs.map(({ dtype, shape }) => [dtype, shape]),
  isSame: outputs.every((o, i) => Buffer.compare(bytes(o), bytes(again[i])) === 0),
}));
"""


def run_page(folder: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of the program that was exported to `page` of a folder, as node computes them, the same twice."""
    described = []
    for number, (name, array) in enumerate(inputs.items()):
        file = f"input{number}.bin"
        (folder / file).write_bytes(np.asarray(array).tobytes())
        described.append({"name": name, "dtype": DType.of(array.dtype).value, "shape": array.shape, "file": file})
    (folder / "inputs.json").write_text(json.dumps(described))
    said = run_node(_RUN, folder)
    assert said["isSame"]
    return [
        np.frombuffer((folder / f"output{i}.bin").read_bytes(), DType(dtype).numpy).reshape(shape)
        for i, (dtype, shape) in enumerate(said["types"])
    ]


@contextmanager
def driving() -> Iterator[Callable[..., Any]]:
    """What opens Chromium with flags, for a block; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make tools)")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no browser: chromium is not on the path (make tools)")
    with playwright.sync_playwright() as driver:
        opened = []

        def browser(*flags: str) -> Any:
            args = ["--no-sandbox", "--disable-dev-shm-usage", *flags]
            opened.append(driver.chromium.launch(executable_path=found, args=args))
            return opened[-1]

        yield browser
        for one in opened:
            one.close()


@contextmanager
def watched(browser: Any) -> Iterator[Any]:
    """A page whose `faults` are the errors that it reports."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    opened = context.new_page()
    opened.faults = []
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.on("console", lambda message: message.type == "error" and opened.faults.append(message.text))
    yield opened
    context.close()


class serving:
    """A server of a folder, for the time of a block."""

    def __init__(self, folder, server=None):
        self.server = page_server(folder) if server is None else server

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def ask(page, text, tokens=32):
    page.fill("#tokens", str(tokens))
    page.fill("#text", text)
    page.press("#text", "Enter")


def answered(page):
    page.wait_for_selector(READY, timeout=60_000)
    return page.inner_text("#talk .model:last-child")
