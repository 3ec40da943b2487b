"""Pages that compute by WebGPU, in a real browser whose GPU is software (SwiftShader)."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from importlib import resources

import numpy as np
import pytest
from page_runs import READY, SOFTWARE_GPU, answered, ask, driving, serving, watched

import rlx
from compile.family_programs import FAMILIES, forward, values_for
from rlx.backends.wasm.exporter import WebExporter
from rlx.backends.wasm.gpu_program import buffer_sizes
from rlx.backends.wasm.web_program import WebProgram
from rlx.cli import main
from rlx.compile.claims.legalize import LegalizeError
from rlx.errors import BackendError, RlxError
from rlx.ir.binding import bind_graph
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.models.pull import locate

TINY = str(resources.files("rlx.models") / "data" / "tiny.gguf")
GPU = {"gpu": "yes"}


def linear():
    graph = Graph("linear")
    x, w = graph.input("x", ("B", 4), "f32"), graph.param("w", (4, 2), "f32")
    graph.set_outputs([rlx.ops.matmul(x, w)])
    return graph, {"w": np.arange(8, dtype=np.float32).reshape(4, 2)}


def test_a_folder_for_gpus_has_a_second_program(tmp_path):
    done = WebExporter().export(*linear(), tmp_path / "page", GPU)
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert {"gpu.json.gz", "gpu_machine.js", "gpu_kernels.js", "program.wasm", "weights.000.bin"} <= names
    # Both programs read this weight as it is.
    assert "gpu.000.bin" not in names and done.figures["weights for GPUs alone"] == "0.0 MB"
    found = json.loads(gzip.decompress((tmp_path / "page" / "gpu.json.gz").read_bytes()))
    assert found["format"] == "rlx.web" and sum(found["buffers"]) == found["weightBytes"] == found["parts"][0]["size"]
    (kernel,) = found["kernels"]
    aligned, anywhere = kernel["forms"]
    # Memory is bound in the browser: a kernel has functions for it and no binding of its own but the arguments.
    assert "fn main(" in aligned["text"] and aligned["text"].count("@binding(") == 1
    assert aligned["calls"] == [["read"], ["read"], ["store"]] and anywhere is None and found["copy"] is None
    WebExporter().export(*linear(), tmp_path / "page")
    assert not any(path.name.startswith("gpu") for path in (tmp_path / "page").iterdir())


def test_weights_that_gpus_read_in_another_order_are_written_twice(tmp_path):
    graph = Graph("wide")
    graph.set_outputs([rlx.ops.matmul(graph.input("x", ("B", 8), "f32"), graph.param("w", (8, 64), "f32"))])
    weight = np.arange(512, dtype=np.float32).reshape(8, 64)
    WebExporter().export(graph, {"w": weight}, tmp_path / "page", GPU)
    one, other = ((tmp_path / "page" / f"{name}.000.bin").read_bytes() for name in ("weights", "gpu"))
    assert np.frombuffer(other, np.float32).tolist() == weight.ravel().tolist() and one != other


def test_what_wgsl_does_not_have_is_refused_and_leaves_nothing(tmp_path):
    graph = Graph("wide")
    graph.set_outputs([rlx.ops.exp(graph.input("x", (4,), "f64"))])
    with pytest.raises(LegalizeError, match="WGSL has no f64"):
        WebExporter().export(graph, {}, tmp_path / "out", GPU)
    graph = Graph("spectrum")
    graph.set_outputs(list(rlx.ops.eigh(graph.input("x", (4, 4), "f32"))))
    with pytest.raises(
        BackendError, match=r"@spectrum cannot be run by WebGPU, only by WebAssembly \(leave gpu away\): eigh"
    ):
        WebExporter().export(graph, {}, tmp_path / "out", GPU)
    with pytest.raises(RlxError, match="gpu is yes or no, got 'maybe'"):
        WebExporter().export(*linear(), tmp_path / "out", {"gpu": "maybe"})
    assert list(tmp_path.iterdir()) == []


def test_weights_are_cut_into_buffers_between_arrays():
    program = WebProgram.__new__(WebProgram)
    program.pieces, program.weight_bytes = [(at, np.zeros(1)) for at in (0, 64, 256, 1024, 1088)], 1152
    assert list(buffer_sizes(program, 256)) == [256, 768, 128]
    assert list(buffer_sizes(program, 10_000)) == [1152]
    program.pieces, program.weight_bytes = [], 0
    assert list(buffer_sizes(program)) == []


# In a browser.


@pytest.fixture(scope="module")
def open_browser():
    with driving() as found:
        yield found


@pytest.fixture(scope="module")
def browser(open_browser):
    return open_browser(*SOFTWARE_GPU)


@pytest.fixture
def page(browser):
    with watched(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("web") / "page"
    assert main(["export", "web", TINY, str(out), "--gpu"]) == 0
    return out


PROMPTS = ["Once upon a time", "KING: what " + "say you to it? " * 20]


@pytest.fixture(scope="module")
def expected():
    return [answer.text.strip() for answer in rlx.load(TINY).complete(PROMPTS, 32)]


@pytest.mark.targets
def test_the_shipped_model_writes_by_webgpu_what_it_writes_on_the_cpu(page, folder, expected):
    """The second prompt is long enough for caches that have to grow."""
    with serving(folder) as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        assert "WebGPU (google swiftshader)" in page.inner_text("#about") and page.inner_text("#note") == ""
        for prompt, text in zip(PROMPTS, expected):
            ask(page, prompt)
            assert answered(page).strip() == text
        assert "32 tokens" in page.inner_text("#rate") and "tokens/s" in page.inner_text("#rate")
    assert page.faults == []


@pytest.mark.targets
def test_the_page_is_small(folder):
    assert (
        sum(f.stat().st_size for f in folder.iterdir() if f.suffix != ".bin")
        - (
            # One of the modules is loaded.
            (folder / "relaxed.wasm").stat().st_size
        )
        < 300_000
    )


@pytest.mark.targets
def test_without_an_adapter_the_page_says_so_and_uses_webassembly(open_browser, folder, expected):
    with watched(open_browser()) as page, serving(folder) as url:
        page.goto(url)
        page.wait_for_selector(READY, timeout=60_000)
        assert "thread" in page.inner_text("#about")
        assert page.inner_text("#note").startswith("no WebGPU: this browser ") and page.is_visible("#note")
        ask(page, PROMPTS[0])
        assert answered(page).strip() == expected[0]


@pytest.mark.targets
def test_a_page_can_be_told_not_to_use_the_gpu(page, folder):
    with serving(folder) as url:
        page.goto(f"{url}?device=wasm")
        page.wait_for_selector(READY, timeout=60_000)
        assert "thread" in page.inner_text("#about") and page.inner_text("#note") == ""


@pytest.mark.targets
def test_damage_is_named_and_is_no_reason_to_go_on_without_a_gpu(page, folder, tmp_path):
    for file, words in (("weights.000.bin", "weights.000.bin is dam"), ("gpu.json.gz", "gpu.json.gz is damaged")):
        damaged = tmp_path / file
        shutil.copytree(folder, damaged)
        content = bytearray((damaged / file).read_bytes())
        content[1000] ^= 255
        (damaged / file).write_bytes(content)
        with serving(damaged) as url:
            page.goto(url)
            page.wait_for_selector("#talk .error", timeout=60_000)
        assert words in page.inner_text("#talk .error")


_WRITE = """async ([prompt, count]) => {
  const { LanguageModel } = await import("/language_model.js"), ids = [];
  const model = await LanguageModel.load(new URL("/", location.href), { gpu: true });
  for await (const id of model.generateIds(prompt, { maxTokens: count })) ids.push(id);
  return { device: model.program.device, ids };
}"""


@pytest.mark.real
def test_smollm2_writes_by_webgpu_what_it_writes_on_the_cpu(page, tmp_path):
    try:
        model = locate("smollm2")
    except RlxError as error:
        pytest.skip(f"{error}")
    assert main(["export", "web", str(model), str(tmp_path / "page"), "--gpu"]) == 0
    # The weights are blocks of a file, which both programs read alike.
    assert not list((tmp_path / "page").glob("gpu.*.bin"))
    page.set_default_timeout(600_000)
    with serving(tmp_path / "page") as url:
        blank(page, url)
        said = page.evaluate(_WRITE, ["The capital of France is", 32])
    assert said == {"device": "webgpu", "ids": rlx.load(model).complete(["The capital of France is"], 32)[0].token_ids}


# Any program.

_RUN = """async ([given, window]) => {
  const { load } = await import("/rlx.js"), { ARRAYS } = await import("/rlx.js");
  const program = await load(new URL("/", location.href), { gpu: true });
  if (program.device !== "webgpu") throw new Error(program.note || "there is no gpu.json.gz");
  if (window) program.machine.window = window;
  const inputs = {};
  for (const [name, { dtype, shape, bytes }] of Object.entries(given)) {
    const { buffer } = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0));
    inputs[name] = { data: new ARRAYS[dtype](buffer), shape };
  }
  const text = ({ data }) => {
    let found = "";
    new Uint8Array(data.buffer).forEach((byte) => (found += String.fromCharCode(byte)));
    return btoa(found);
  };
  // Both at once: runs follow each other.
  const [once, again] = await Promise.all([program.run(inputs), program.run(inputs)]);
  const outputs = once.map((o) => ({ dtype: o.dtype, shape: o.shape, bytes: text(o) }));
  return { outputs, isSame: once.every((o, i) => text(o) === text(again[i])) };
}"""


def blank(page, url):
    """An empty page of a server."""
    page.route("**/blank", lambda route: route.fulfill(content_type="text/html", body="<link rel=icon href=data:,>"))
    page.goto(f"{url}blank")


def run_by_webgpu(page, folder, inputs, window=0):
    """The outputs of the program of a folder, as a page computes them by WebGPU, the same twice."""
    given = {
        name: {
            "dtype": DType.of(array.dtype).value,
            "shape": list(array.shape),
            "bytes": base64.b64encode(array.tobytes()).decode(),
        }
        for name, array in ((n, np.asarray(a)) for n, a in inputs.items())
    }
    with serving(folder) as url:
        blank(page, url)
        said = page.evaluate(_RUN, [given, window])
    assert said["isSame"] and page.faults == []
    return [
        np.frombuffer(base64.b64decode(o["bytes"]), DType(o["dtype"]).numpy).reshape(o["shape"])
        for o in said["outputs"]
    ]


# The others take long: their kernels are large, and a processor compiles and runs them.
QUICK = {"bert_block", "scan_rnn", "fourier_pipeline"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.targets if n in QUICK else pytest.mark.targets_full) for n in FAMILIES]
)
def test_families_by_webgpu(name, page, tmp_path):
    graph = forward(FAMILIES[name], "f32")
    values = values_for(FAMILIES[name], graph)
    WebExporter().export(graph, {n.op.key: values[n.op.key] for n in graph.params}, tmp_path / "page", GPU)
    got = run_by_webgpu(page, tmp_path / "page", {n.op.key: values[n.op.key] for n in graph.inputs})
    wanted = interpret(bind_graph(graph, {"B": 2}), values, None)
    for w, g in zip(wanted, got, strict=True):
        assert (w.shape, w.dtype) == (g.shape, g.dtype)
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-4 * max(1.0, float(np.abs(w).max(initial=0))))


@pytest.mark.targets
def test_loops_branches_and_bytes_by_webgpu(page, tmp_path):
    """Rows of a scan that are 5 bytes long begin inside of words."""

    def steps(x, n, flags):
        total = rlx.while_loop(lambda s: s[1] < n, lambda s: (s[0] * 1.5 + s[1], s[1] + 1), (x, np.float32(0)))[0]
        carry, rows = rlx.scan(lambda c, r: (c ^ r, c & r), flags[0], flags)
        return rlx.cond(n > 2.5, lambda a: a * 2.0, lambda a: -a, total), carry, rows

    x, flags = np.linspace(-1, 1, 6, dtype=np.float32), np.arange(20, dtype=np.int8).reshape(4, 5) * 11 - 90
    flags = flags.astype(np.int8)
    graph = rlx.trace(steps, x, np.float32(0), flags).graph
    WebExporter().export(graph, {}, tmp_path / "page", GPU)
    for n in (0.0, 3.0):
        values = {node.op.key: v for node, v in zip(graph.inputs, (x, np.float32(n), flags))}
        got = run_by_webgpu(page, tmp_path / "page", values)
        for w, g in zip(interpret(graph, values, None), got, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)


@pytest.mark.targets
def test_memory_over_several_bindings_by_webgpu(page, tmp_path):
    """What a limit of 128 MiB asks for, with a limit of 2 KiB."""
    graph = Graph("turned")
    x = graph.input("x", (1500,), "f32")
    graph.set_outputs([rlx.ops.add(rlx.ops.mul(x, 3.0), 1.25)])
    WebExporter().export(graph, {}, tmp_path / "page", GPU)
    x = np.linspace(-3, 3, 1500, dtype=np.float32)
    (got,) = run_by_webgpu(page, tmp_path / "page", {"x": x}, window=2048)
    np.testing.assert_allclose(got, x * 3 + 1.25, rtol=1e-6)


@pytest.mark.targets
def test_residents_and_errors_by_webgpu(page, tmp_path):
    graph = Graph("counter")
    state, x = graph.input("state", ("N",), "f32"), graph.input("x", (2,), "f32")
    after = rlx.ops.add(state, 1.0)
    graph.set_outputs([after, rlx.ops.mul(x, 2.0)])
    graph.alias(after, "state")
    WebExporter().export(graph, {}, tmp_path / "page", GPU)
    with serving(tmp_path / "page") as url:
        blank(page, url)
        said = page.evaluate("""async () => {
  const { load } = await import("/rlx.js"), program = await load(new URL("/", location.href), { gpu: true });
  const x = Float32Array.of(1, 2), said = [], state = program.put("f32", [3], Float32Array.of(0, 1, 2));
  let same = true;
  for (let i = 0; i < 5; i++) same &&= (await program.run({ state, x }))[0] === state;
  const data = Array.from(await state.read()), taken = program.machine.buffers.size;
  for (let i = 0; i < 5; i++) await program.run({ state, x });
  const more = program.machine.buffers.size - taken;
  const tell = (f) => Promise.resolve().then(f).then(() => said.push("ran"), (error) => said.push(error.message));
  await tell(() => program.run({ state }));
  await tell(() => program.zeros("f32", [2 ** 30]));
  await tell(() => state.data);
  await tell(() => program.run({ state, x }));
  program.close();
  await tell(() => program.run({ state, x }));
  return { same, data, more, said };
}""")
    assert said["same"] and said["data"] == [5, 6, 7] and said["more"] == 0
    assert said["said"][0] == "no value for input x is f32[2]"
    assert "has 4294967296 bytes, and a buffer of this GPU at most" in said["said"][1]
    assert "no view; use `await tensor.read()`" in said["said"][2] and said["said"][3] == "ran"
    assert said["said"][4].startswith("the GPU was lost")


@pytest.mark.targets
def test_any_program_has_a_page_with_webgpu(page, tmp_path):
    WebExporter().export(*linear(), tmp_path / "page", GPU)
    with serving(tmp_path / "page") as url:
        page.goto(url)
        page.wait_for_selector("#run:not([disabled])", timeout=60_000)
        page.fill("#inputs", '{"x": [1, 1, 1, 1]}')
        page.click("#run")
        page.wait_for_function("document.getElementById('result').textContent", timeout=60_000)
        assert page.inner_text("#result") == "f32[1,2]\n12 16" and page.inner_text("#device") == "WebGPU"
    assert page.faults == []
