"""Models from the Hugging Face hub, over HTTP with the standard library.

`org/name` fetches what rlx reads of a repository: configuration, tokenizer and weights (safetensors, or else what torch
has saved); `org/name/file.gguf` fetches one file. A copy in the Hugging Face cache is used where there is one. The
environment variables of the hub's own tools hold here: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`,
`HF_TOKEN`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, NamedTuple

from rlx.env import is_true
from rlx.errors import FormatError, RlxError
from rlx.models.pull_cache import lock, models_directory, safe_path, shortened
from rlx.models.pull_progress import Progress

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_WANTED = ("*.json", "*.model", "merges.txt", "vocab.txt", "chat_template.jinja")
# Files that hold all weights, or have an index with the names of several; the first kind that there is counts.
_WEIGHTS = {"model.safetensors": "*.safetensors", "pytorch_model.bin": "pytorch_model*.bin"}
_MAX_NAME = 96  # of an organisation or a repository, as the hub has it
_TIMEOUT_S = 30
_MAX_LISTING_BYTES = 32 << 20
_MAX_REDIRECTS = 5
_CHUNK = 1 << 20


class _RemoteFile(NamedTuple):
    url: str
    size: int
    etag: str


def pull_from_hub(name: str, progress: Progress, revision: str = "main") -> Path:
    """The folder of the repository `org/name`, or the file of `org/name/path/to/file`."""
    parts = name.split("/")
    if len(parts) < 2 or not all(_NAME.match(part) and len(part) <= _MAX_NAME for part in parts[:2]):
        raise RlxError(
            f"pull: a Hugging Face id is org/name, with letters, digits, '.', '_' and '-', at most {_MAX_NAME} of them "
            f"each, got {shortened(name)!r}"
        )
    repository, file = "/".join(parts[:2]), "/".join(parts[2:])
    if file:
        safe_path(Path(), file)
    found = _in_hub_cache(repository, file, revision) or _in_own_cache(repository, file, revision)
    if found is not None:
        return found
    if is_true(os.environ.get("HF_HUB_OFFLINE", "")):
        raise RlxError(f"pull: {name} is not on this machine, and HF_HUB_OFFLINE forbids looking for it")
    with lock(repository.replace("/", "--")):
        return _in_own_cache(repository, file, revision) or _download(repository, file, revision, progress)


def _in_hub_cache(repository: str, file: str, revision: str) -> Path | None:
    """A snapshot that the hub's own tools have made."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = hub / ("models--" + repository.replace("/", "--"))
    reference = folder / "refs" / revision
    if not reference.is_file():
        return None
    commit = reference.read_text(encoding="ascii", errors="replace").strip()
    return _complete(folder / "snapshots" / commit, file) if _COMMIT.match(commit) else None


def _own_folder(repository: str) -> Path:
    return models_directory() / "hub" / repository.replace("/", "--")


def _in_own_cache(repository: str, file: str, revision: str) -> Path | None:
    """A snapshot that rlx has made; the file `refs/<revision>` is written when all of it is there."""
    folder = _own_folder(repository)
    reference = folder / "refs" / (f"{revision}--{_key(file)}" if file else revision)
    if not reference.is_file():
        return None
    return _complete(folder / reference.read_text(encoding="ascii").strip(), file)


def _key(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()[:16]


def _complete(snapshot: Path, file: str) -> Path | None:
    """The asked-for part of a snapshot, if it is there: one file, or a folder with a configuration and weights."""
    if file:
        path = safe_path(snapshot, file)
        return path if path.is_file() else None
    if not (snapshot / "config.json").is_file():
        return None
    for single in _WEIGHTS:
        index = snapshot / f"{single}.index.json"
        if index.is_file():
            try:
                shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                return None
            return snapshot if all(safe_path(snapshot, str(shard)).is_file() for shard in shards) else None
        if (snapshot / single).is_file():
            return snapshot
    return None


def _download(repository: str, file: str, revision: str, progress: Progress) -> Path:
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    commit, names = _listing(endpoint, repository, revision)
    wanted = _select(repository, names, file)
    folder = _own_folder(repository)
    snapshot = folder / commit
    for name in wanted:
        target = safe_path(snapshot, name)
        url = f"{endpoint}/{repository}/resolve/{commit}/{urllib.parse.quote(name)}"
        if not target.is_file():
            _download_file(url, target, name, progress)
    reference = folder / "refs" / (f"{revision}--{_key(file)}" if file else revision)
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit, encoding="ascii")
    return snapshot / file if file else snapshot


def _listing(endpoint: str, repository: str, revision: str) -> tuple[str, list[str]]:
    """The commit that `revision` is now, and the files it has."""
    url = f"{endpoint}/api/models/{repository}/revision/{urllib.parse.quote(revision, safe='')}"
    with _open(url) as response:
        body = response.read(_MAX_LISTING_BYTES + 1)
    if len(body) > _MAX_LISTING_BYTES:
        raise FormatError(f"pull: the list of files of {repository} is longer than {_MAX_LISTING_BYTES} bytes")
    try:
        document = json.loads(body)
        commit, names = document["sha"], [entry["rfilename"] for entry in document["siblings"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"pull: {url} did not answer with a list of files: {error!r}") from None
    if not isinstance(commit, str) or not _COMMIT.match(commit) or not all(isinstance(n, str) for n in names):
        raise FormatError(f"pull: {url} did not answer with a commit and file names")
    for name in names:
        safe_path(Path(), name)
    return commit, names


def _select(repository: str, names: Sequence[str], file: str) -> list[str]:
    """The files rlx reads."""
    if file:
        if file not in names:
            raise RlxError(f"pull: {repository} has no file {file!r}; it has {_few(names)}")
        return [file]
    for single, parts in _WEIGHTS.items():
        if single in names or f"{single}.index.json" in names:
            patterns = (*_WANTED, parts)
            wanted = [n for n in names if any(fnmatch.fnmatchcase(n.rsplit("/", 1)[-1], p) for p in patterns)]
            # Exports for other runtimes lie in folders of their own; of the folders only configurations matter here.
            return [n for n in wanted if "/" not in n or n.endswith(".json")]
    models = [n for n in names if n.endswith(".gguf")]
    if models:
        raise RlxError(f"pull: {repository} has GGUF files; name one, such as {repository}/{models[0]}: {_few(models)}")
    raise RlxError(
        f"pull: {repository} has neither safetensors, pytorch_model.bin nor GGUF weights; it has {_few(names)}"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _download_file(url: str, target: Path, label: str, progress: Progress) -> None:
    """Fetch one file, going on where an earlier try stopped, and check it against the hub's digest."""
    remote = _remote(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + "." + _key(remote.etag) + ".part")
    part.touch()
    done = part.stat().st_size
    if done < remote.size:
        _fetch_rest(remote, part, done, label, progress)
    done = part.stat().st_size
    if done < remote.size:
        raise RlxError(
            f"pull: the connection broke after {done} of {remote.size} bytes of {label}; pull again to go on from there"
        )
    if done != remote.size or not _matches(part, remote):
        part.unlink()
        raise RlxError(
            f"pull: {label} is damaged: wanted {remote.size} bytes with digest {remote.etag}, got {done} bytes; "
            "pull it again"
        )
    part.replace(target)


def _remote(url: str) -> _RemoteFile:
    """Size and digest of a file. Large ones live on another host; the hub's redirect carries both."""
    with _open(url, method="HEAD", follow=False) as response:
        headers = response.headers
    etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").strip('W/"')
    size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
    if not re.fullmatch(r"[0-9]{1,18}", size) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag):
        raise FormatError(f"pull: {url} came without a size and digest that could be checked")
    return _RemoteFile(url, int(size), etag)


def _fetch_rest(remote: _RemoteFile, part: Path, done: int, label: str, progress: Progress) -> None:
    headers = {"Range": f"bytes={done}-"} if done else {}
    with _open(remote.url, headers=headers) as response:
        # A server without ranges sends the whole file.
        if response.status != 206:
            done = 0
        with open(part, "ab" if done else "wb") as file:
            for chunk in _chunks(response):
                file.write(chunk)
                done += len(chunk)
                progress(label, done, remote.size)
                if done > remote.size:
                    return


def _chunks(response: _Response) -> Iterator[bytes]:
    """What comes until the end, or until the connection breaks."""
    with contextlib.suppress(OSError, HTTPException):
        while chunk := response.read(_CHUNK):
            yield chunk


def _matches(path: Path, remote: _RemoteFile) -> bool:
    """Large files are known by their SHA-256, others by the SHA-1 that git gives a blob."""
    digest = hashlib.sha256() if len(remote.etag) == 64 else hashlib.sha1(f"blob {remote.size}\0".encode())
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == remote.etag


class _Response:
    """What this module needs of a response, whichever class urllib gives it."""

    def __init__(self, status: int, headers: Message, body: IO[bytes]) -> None:
        self.status, self.headers, self._body = status, headers, body

    def read(self, count: int) -> bytes:
        return self._body.read(count)

    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_: object) -> None:
        self._body.close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are followed by hand: urllib would send the token along to any host."""

    def http_error_302(self, *_: Any, **__: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _open(url: str, *, method: str = "GET", headers: dict[str, str] | None = None, follow: bool = True) -> _Response:
    """A request to the hub; the token goes to the hub's own host only."""
    opener = urllib.request.build_opener(_NoRedirect)
    host, token, place = _host(url), os.environ.get("HF_TOKEN"), url
    for _ in range(_MAX_REDIRECTS + 1):
        is_home = _host(place) == host
        request = urllib.request.Request(place, method=method, headers={"User-Agent": "rlx", **(headers or {})})
        if token and is_home:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            response = opener.open(request, timeout=_TIMEOUT_S)
            return _Response(response.status, response.headers, response)
        except urllib.error.HTTPError as error:
            if error.code not in (301, 302, 303, 307, 308):
                raise RlxError(_refusal(url, error)) from None
            following = _target(place, error.headers.get("Location") or "")
            # The answer about a large file is the redirect itself; a moved repository is a redirect on the same host.
            if not follow and (error.headers.get("X-Linked-Etag") or _host(following) != host):
                return _Response(error.code, error.headers, error)
            error.close()
            place = following
        except (urllib.error.URLError, OSError, HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", error)
            raise RlxError(
                f"pull: {host} cannot be reached ({reason}); check the network, set HF_ENDPOINT to a mirror, "
                "or give the path of a model that is on this machine"
            ) from None
    raise RlxError(f"pull: {url} redirects more than {_MAX_REDIRECTS} times")


def _host(url: str) -> str:
    """Host and port of an address, which must be one of http."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_sound = False
    if not is_sound or not url.isprintable() or not url.isascii() or " " in url:
        raise RlxError(f"pull: {shortened(url)!r} is not an http address; check HF_ENDPOINT")
    return parts.netloc


def _target(place: str, location: str) -> str:
    """Where a redirect leads."""
    try:
        following = urllib.parse.urljoin(place, location)
        _host(following)
    except (ValueError, RlxError):
        raise RlxError(f"pull: {place} redirects to {shortened(location)!r}, which is not an http address") from None
    return following


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    meanings = {
        401: "set HF_TOKEN",
        403: "accept the terms on its page, set HF_TOKEN",
        404: "check the name",
    }
    return f"pull: {url} answered {error.code} {error.reason}; {meanings.get(error.code, 'try again later')}"
