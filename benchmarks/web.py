"""Exported pages in Chromium, beside the libraries that browsers have for the same work, on one thread.

    npm install --prefix peers @wllama/wllama onnxruntime-web
    python benchmarks/web.py [smollm2] [minilm] [page] --peers peers/node_modules [--rounds 5] [--pages FOLDER]

    smollm2   tokens a second of decoding; `@wllama/wllama` reads the same GGUF file
    minilm    one forward pass at several sizes; `onnxruntime-web` reads an ONNX file of the same weights (needs onnx)
    page      the first tokens of the shipped model and of SmolLM2, and the sizes of their pages

Each engine is a browser of its own; they take turns in every round. A ratio is the median of the rounds' own ratios,
since the machine drifts by more than engines differ. What is computed is compared first.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli import main as rlx_command
from rlx.cli.serve_web import page_server
from rlx.errors import RlxError
from rlx.models.pull import find_model

PROMPT = "The history of the city begins with"
TOKENS = 32
ENCODED = ((1, 16), (1, 128), (8, 128))
# How far the vectors of two engines may be apart: both compute in f32, in another order.
SAME = 2e-5
Page = Any


OUR_LANGUAGE_MODEL = """
import { LanguageModel } from "/smollm2/language_model.js";
window.model = await LanguageModel.load(new URL("/smollm2/", location.href), { threads: 1 });
window.round = async (prompt, tokens) => {
  let ids = [], first = 0;
  const shown = model.tokenizer.decoder();
  let text = "";
  for await (const id of model.generateIds(prompt, { maxTokens: tokens })) {
    if (!ids.length) first = performance.now();
    ids.push(id);
    text += shown.push(id);
  }
  const rate = (ids.length - 1) / ((performance.now() - first) / 1000);
  // The next prompt is read from its beginning, as the peer does.
  model.tokens.length = 0;
  return { rate, text, count: ids.length };
};
"""

WLLAMA = """
import { Wllama, LoggerWithoutDebug } from "/peers/@wllama/wllama/esm/index.js";
const quiet = { suppressNativeLog: true, logger: LoggerWithoutDebug };
window.model = new Wllama({ default: "/peers/@wllama/wllama/esm/wasm/wllama.wasm" }, quiet);
const file = await (await fetch("/model.gguf")).blob();
await model.loadModel([file], { n_threads: 1, n_gpu_layers: 0, n_ctx: 512 });
window.round = async (prompt, tokens) => {
  const asked = { prompt, max_tokens: tokens, temperature: 0, top_k: 1, stream: true, cache_prompt: false };
  let text = "", count = 0, first = 0, timings = null;
  for await (const chunk of await model.createCompletion(asked)) {
    const piece = chunk.choices?.[0]?.text ?? "";
    if (!count) first = performance.now();
    if (piece) count++;
    text += piece;
    timings = chunk.timings ?? timings;
  }
  const seen = (count - 1) / ((performance.now() - first) / 1000);
  // What it says of itself leaves out the messages between its worker and the page: the better of both is taken.
  return { rate: Math.max(seen, timings?.predicted_per_second ?? 0), text, count, threads: model.getNumThreads() };
};
"""

OUR_ENCODER = """
import { load } from "/minilm/rlx.js";
window.program = await load(new URL("/minilm/", location.href), { threads: 1 });
window.round = (ids, batch, length) => {
  const given = {
    ids: { data: Int32Array.from(ids), shape: [batch, length] },
    lengths: { data: new Int32Array(batch).fill(length), shape: [batch] },
  };
  const start = performance.now();
  const [, vectors] = program.run(given);
  return { ms: performance.now() - start, vectors: Array.from(vectors.data) };
};
"""

ONNX_RUNTIME = """
import * as ort from "/peers/onnxruntime-web/dist/ort.wasm.min.mjs";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = "/peers/onnxruntime-web/dist/";
const asked = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
window.session = await ort.InferenceSession.create("/minilm.onnx", asked);
window.round = async (ids, batch, length) => {
  const shape = [batch, length];
  const given = {
    ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
    mask: new ort.Tensor("int64", new BigInt64Array(batch * length).fill(1n), shape),
  };
  const start = performance.now();
  const found = await session.run(given);
  return { ms: performance.now() - start, vectors: Array.from(Object.values(found)[0].data) };
};
"""

MODULES = {"rlx_model": OUR_LANGUAGE_MODEL, "wllama": WLLAMA, "rlx_encoder": OUR_ENCODER, "onnxruntime": ONNX_RUNTIME}

# The bytes of a folder are fetched first; then the model is made of them, and writes one token.
FIRST_TOKEN = """async ([folder, names, prompt, threads]) => {
  const { LanguageModel } = await import(`/${folder}/language_model.js`);
  const files = new Map();
  for (const name of names) files.set(name, new Uint8Array(await (await fetch(`/${folder}/${name}`)).arrayBuffer()));
  const start = performance.now();
  const read = async (name, onBytes) => { onBytes?.(files.get(name).length); return files.get(name); };
  const model = await LanguageModel.load(new URL(`/${folder}/`, location.href), { read, threads });
  const loaded = performance.now();
  for await (const id of model.generateIds(prompt, { maxTokens: 1 })) break;
  const end = performance.now();
  model.program.machine.close?.();
  return { load: (loaded - start) / 1000, first: (end - loaded) / 1000 };
}"""


class Browsers:
    """Chromium, as often as it is asked for, at the pages of one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        playwright: Any = import_module("playwright.sync_api")
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if found is None:
            raise RlxError("there is no Chromium on the path; `make tools` installs it")
        self._chromium, self._program, self._stack = (
            stack.enter_context(playwright.sync_playwright()).chromium,
            found,
            stack,
        )
        self.address = stack.enter_context(serving(folder))

    def page(self, module: str = "") -> Page:
        """A page of a browser of its own, in which a module of `MODULES` has run."""
        browser = self._chromium.launch(executable_path=self._program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        self._stack.callback(browser.close)
        page = browser.new_page()
        page.goto(self.address)
        if module:
            page.evaluate("(module) => import(module).then(() => null)", f"/{module}.js")
        return page


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    server = page_server(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def turns(rounds: int, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float, float]:
    """Medians of both, and the median of how many times ours is the peer's."""
    pairs = [(ours(), peer()) if i % 2 else (peer(), ours())[::-1] for i in range(rounds)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def measure_smollm2(folder: Path, browsers: Browsers, rounds: int) -> dict[str, object]:
    pages = browsers.page("rlx_model"), browsers.page("wllama")
    said = [page.evaluate("([p, n]) => round(p, n)", [PROMPT, TOKENS]) for page in pages]
    rates = [lambda page=page: page.evaluate("([p, n]) => round(p, n)", [PROMPT, TOKENS])["rate"] for page in pages]
    ours, peer, ratio = turns(rounds, *rates)
    same = len(commonprefix(said[0]["text"], said[1]["text"]))
    print(f"decode smollm2       rlx {ours:6.1f} tokens/s   wllama {peer:6.1f} tokens/s   ratio {ratio:.2f}")
    print(f"  rlx    {said[0]['text']!r}\n  wllama {said[1]['text']!r}\n  equal for {same} characters")
    return {"rlx": ours, "wllama": peer, "ratio": ratio, "equal_characters": same}


def commonprefix(a: str, b: str) -> str:
    return a[: next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))]


def measure_minilm(folder: Path, browsers: Browsers, rounds: int) -> dict[str, object]:
    pages = browsers.page("rlx_encoder"), browsers.page("onnxruntime")
    rng, found = np.random.default_rng(0), {}
    for batch, length in ENCODED:
        given = [rng.integers(1000, 20000, batch * length).tolist(), batch, length]
        vectors = [np.array(page.evaluate("(given) => round(...given)", given)["vectors"]) for page in pages]
        apart = float(abs(vectors[0] - vectors[1]).max())
        if not apart < SAME:
            raise RlxError(f"the vectors of both are {apart} apart at {batch}x{length}")
        times = [partial(forward_time, page, given) for page in pages]
        for run in times:
            run()
        ours, peer, _ = turns(rounds, *times)
        ratio = peer / ours
        print(
            f"minilm {batch}x{length:<10}    rlx {ours:7.2f} ms   onnxruntime-web {peer:7.2f} ms   ratio {ratio:.2f}"
            f"   {apart:.1e} apart"
        )
        found[f"{batch}x{length}"] = {"rlx": ours, "onnxruntime-web": peer, "ratio": ratio, "apart": apart}
    return found


def forward_time(page: Page, given: list[object]) -> float:
    return float(page.evaluate("(given) => round(...given)", given)["ms"])


def measure_page(folder: Path, browsers: Browsers, rounds: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in ("tiny", "smollm2"):
        names = [file.name for file in (folder / name).iterdir() if file.suffix not in (".html", ".ts")]
        page, rows = browsers.page(), []
        for _ in range(rounds):
            rows.append(page.evaluate(FIRST_TOKEN, [name, names, PROMPT, 1]))
        whole = [row["load"] + row["first"] for row in rows]
        load, first = (statistics.median(row[part] for row in rows) for part in ("load", "first"))
        sizes = page_sizes(folder / name)
        parts = f"{load:.3f} s to load, {first:.3f} s for the prompt"
        print(f"page {name:8} from bytes in memory to the first token {statistics.median(whole):.3f} s ({parts})")
        print("  " + ", ".join(f"{what} {size} kB" for what, size in sizes.items()))
        found[name] = {"load": load, "first": first, "sizes": sizes}
    return found


def page_sizes(folder: Path) -> dict[str, int]:
    """kB of what a browser loads besides weights: one of the two modules, and no types."""
    sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix not in (".ts", ".bin")}
    modules = [sizes.pop(name) for name in ("program.wasm", "relaxed.wasm")]
    tokenizer = sizes.pop("model.json")
    return {"page": round((sum(sizes.values()) + max(modules)) / 1000), "tokenizer": round(tokenizer / 1000)}


def prepare(folder: Path, wanted: list[str], peers: Path) -> None:
    """Pages, weights and peers in one folder that is served."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text("<!doctype html><title>benchmark</title><body></body>")
    for module, text in MODULES.items():
        (folder / f"{module}.js").write_text(text)
    _link(folder / "peers", peers)
    models = {
        "tiny": str(resources.files("rlx.models") / "data" / "tiny.gguf"),
        "smollm2": "smollm2",
        "minilm": "minilm",
    }
    needed = {name for part in wanted for name in {"page": ("tiny", "smollm2")}.get(part, (part,))}
    for name in sorted(needed):
        if (folder / name).exists():
            continue
        with redirect_stdout(io.StringIO()):
            failed = rlx_command(["export", "web", models[name], str(folder / name), "--json"])
        if failed:
            raise RlxError(f"{name} cannot be exported")
    if "smollm2" in needed:
        _link(folder / "model.gguf", find_model("smollm2"))
    if "minilm" in needed and not (folder / "minilm.onnx").exists():
        (folder / "minilm.onnx").write_bytes(minilm_onnx())


def _link(at: Path, to: Path) -> None:
    at.unlink(missing_ok=True)
    at.symlink_to(to.resolve())


def minilm_onnx() -> bytes:
    from rlx.bench.engines.onnx_bert import bert_onnx
    from rlx.formats.safetensors import open_safetensors
    from rlx.models.config_hf_encoders import encoder_config_from_directory

    path = find_model("minilm")
    tensors = open_safetensors(path).tensors
    weights = {name.removeprefix("bert."): tensor.array() for name, tensor in tensors.items()}
    return bert_onnx(encoder_config_from_directory(path), weights)


MEASURES = {"smollm2": measure_smollm2, "minilm": measure_minilm, "page": measure_page}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], help="default: all")
    parser.add_argument("--peers", type=Path, required=True, help="the node_modules with the peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=Path, help="keep exported pages here, and take those that are here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = args.what or list(MEASURES)
    with ExitStack() as stack:
        folder = args.pages or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(folder, wanted, args.peers)
        found = {}
        for part in wanted:
            with ExitStack() as opened:
                found[part] = MEASURES[part](folder, Browsers(folder, opened), args.rounds)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
