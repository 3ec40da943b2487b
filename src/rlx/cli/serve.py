"""Serve a model to programs that speak OpenAI's HTTP interface: chats, completions and embeddings, also as streams.

It listens on this machine alone unless --host says otherwise. Requests may leave out the model, or name any: there is
one. An encoder, such as minilm, answers /v1/embeddings; --embedder adds one to a language model.

examples:
  rlx serve smollm2
  rlx serve smollm2 --embedder minilm --port 9000
  rlx serve smollm2 --allow-origin http://localhost:3000     # pages from there may ask, too
  curl http://127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
"""

from __future__ import annotations

import argparse
import errno
import hmac
import ipaddress
import json
import select
import socket
import sys
from collections.abc import Collection, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rlx.cli import add_command
from rlx.cli.arguments import positive, read_text
from rlx.cli.generate_options import add_draft_argument, add_model_arguments, load_draft, load_model
from rlx.errors import RlxError
from rlx.models.config_hf_encoders import is_encoder_directory
from rlx.models.openai_protocol import Document, NotWanted, RequestError, Service
from rlx.models.pull import find_model
from rlx.models.text_encoder import load_encoder

if TYPE_CHECKING:
    from rlx.cli import Subparsers

# A conversation that fills a context of a million tokens is smaller.
MOST_BYTES = 16 << 20
# A client that sends nothing more is let go.
_PATIENCE = 60.0


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "serve", __doc__)
    add_model_arguments(parser, default="smollm2")
    parser.add_argument("--embedder", metavar="MODEL", help="an encoder that answers /v1/embeddings")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="0 picks a free one (default: 8080)")
    parser.add_argument(
        "--parallel", type=positive, default=8, metavar="N", help="prompts at once; others wait (default: 8)"
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="requests must bring what this file holds as a bearer token"
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of this origin, such as http://localhost:3000, may send requests; * for all pages; may be repeated",
    )
    add_draft_argument(parser)
    parser.add_argument("--quiet", action="store_true", help="do not log requests")
    parser.add_argument(
        "--kv-dtype", choices=("f32", "f16", "bf16", "q8"), default="f32", help="type of the KV cache (default: f32)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 1 << 16:
        raise RlxError(f"a port is a number from 0 to 65535, got {args.port}")
    key = None if args.key_file is None else read_text(None, args.key_file).strip()
    if key == "":
        raise RlxError(f"{args.key_file} is empty; it must hold the key")
    path, encoder = find_model(args.model), None
    name = args.model if not Path(args.model).exists() else path.stem
    if is_encoder_directory(path):
        lm, encoder = None, load_encoder(path, args.device, args.threads)
    else:
        lm = load_model(args)
        if args.embedder is not None:
            encoder = load_encoder(args.embedder, args.device, args.threads)
    # Made now: what is missing for it is told here, and not to every client.
    for model in (lm, encoder):
        if model is not None:
            _ = model.tokenizer
    service = Service(name, lm, encoder, args.parallel, load_draft(args, args.draft))
    with model_server(service, args.host, args.port, key, args.quiet, args.allow_origin) as server:
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        print(f"http://{shown}:{port}/v1 (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    return 0


class ModelServer(ThreadingHTTPServer):
    """A thread for each connection; `service` answers."""

    daemon_threads = True
    # Connections that come at the same moment wait here for their thread; the usual 5 would turn others away.
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], service: Service, key: str | None, quiet: bool, origins: Collection[str]
    ) -> None:
        self.service, self.key, self.quiet, self.origins = service, key, quiet, frozenset(origins)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line about what went wrong, and none about clients that have gone."""
        error = sys.exc_info()[1]
        if not self.quiet and not isinstance(error, ConnectionError | TimeoutError):
            print(f"rlx serve: {client_address[0]}: {type(error).__name__}: {error}", file=sys.stderr)


def model_server(
    service: Service,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | None = None,
    quiet: bool = True,
    origins: Collection[str] = (),
) -> ModelServer:
    """A server that is not running yet; `server_port` is its port. Pages of the `origins` may read its answers."""
    try:
        return ModelServer((host, port), service, key, quiet, origins)
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        hint = "try --port 0" if is_port else "--host takes an address of this machine"
        raise RlxError(f"cannot listen on {host}:{port}: {error.strerror or error}; {hint}") from None


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    server_version = "rlx"
    sys_version = ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        path = self._path()
        if not self._may_answer(needs_key=path != "/health"):
            return
        if path == "/health":
            self._send(HTTPStatus.OK, {"status": "ok"})
        elif path == "/metrics":
            self._send_bytes(HTTPStatus.OK, self.server.service.metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/v1/models":
            self._send(HTTPStatus.OK, self.server.service.models())
        elif path.startswith("/v1/models/"):
            name = unquote(path.removeprefix("/v1/models/"))
            entry = self.server.service.model(name)
            if entry is None:
                here = self.server.service.name
                self._refuse(HTTPStatus.NOT_FOUND, f"there is no model {name!r:.80}; there is {here}", "model")
            else:
                self._send(HTTPStatus.OK, entry)
        elif path in self.server.service.paths:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes POST")
        else:
            self._refuse_path(path)

    # The same without its body, which `_send` leaves out.
    do_HEAD = do_GET

    def do_OPTIONS(self) -> None:
        """What a browser asks before it sends the request of a page."""
        self.send_response(HTTPStatus.NO_CONTENT)
        if self._allowed_origin() is not None:
            self.send_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
            self.send_header("Access-Control-Allow-Headers", self.headers.get("Access-Control-Request-Headers", "*"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        # What cannot be read to its end must not be taken for the next request.
        path, self.close_connection = self._path(), True
        if not self._may_answer():
            return
        if path not in self.server.service.paths:
            self._refuse_path(path)
            return
        content = self._content()
        if content is None:
            return
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}")
            return
        try:
            answer = self.server.service.answer(path, body, self._is_heard)
        except RequestError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error), error.field)
        except NotWanted:
            self.close_connection = True
        except Exception as error:
            self.log_error("%s: %s", type(error).__name__, error)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        else:
            self._stream(answer) if isinstance(answer, Iterator) else self._send(HTTPStatus.OK, answer)

    def end_headers(self) -> None:
        if (origin := self._allowed_origin()) is not None:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Vary", "Origin")
        super().end_headers()

    def _allowed_origin(self) -> str | None:
        """The page's origin, if it may read what is answered."""
        # There are no headers yet where the first line of a request was wrong.
        headers = getattr(self, "headers", None)
        origin: str | None = headers.get("Origin") if headers is not None else None
        return origin if origin is not None and self.server.origins & {origin, "*"} else None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no HTTP, and methods that nothing has, are refused like everything else."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._refuse(status, message or status.phrase)

    def _is_heard(self) -> bool:
        """Whether the client is still there: one that has gone has sent the end of its stream."""
        try:
            has_more = bool(select.select([self.connection], [], [], 0)[0])
            return not has_more or bool(self.connection.recv(1, socket.MSG_PEEK))
        except ValueError:  # more files are open than can be watched like this
            return True
        except OSError:
            return False

    def _path(self) -> str:
        return self.path.partition("?")[0].rstrip("/")

    def _may_answer(self, needs_key: bool = True) -> bool:
        """A page of another origin must not reach a server of this machine by a name that leads here."""
        if _is_loopback(str(self.server.server_address[0])) and not _is_loopback(
            _host_of(self.headers.get("Host", ""))
        ):
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 and localhost alone; see --host")
            return False
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if needs_key and self.server.key and not hmac.compare_digest(given, self.server.key.encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED, "a bearer token with the key of this server is needed")
            return False
        return True

    def _content(self) -> bytes | None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the length of the body is needed (Content-Length)")
            return None
        if not 0 <= length <= MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MOST_BYTES} bytes, got {length}")
            return None
        content = self.rfile.read(length)
        if len(content) < length:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the body ends after {len(content)} of {length} bytes")
            return None
        return content

    def _refuse_path(self, path: str) -> None:
        known = ", ".join(["/v1/models", *self.server.service.paths])
        self._refuse(HTTPStatus.NOT_FOUND, f"there is nothing at {path or '/'}; there is {known}")

    def _refuse(self, status: HTTPStatus, message: str, field: str | None = None) -> None:
        kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        self._send(status, {"error": {"message": message, "type": kind, "param": field, "code": None}})

    def _send(self, status: HTTPStatus, document: Document) -> None:
        self._send_bytes(status, json.dumps(document).encode(), "application/json")

    def _send_bytes(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, documents: Iterator[Document]) -> None:
        """Events as they come; the end of the connection is the end of the answer."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-cache"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        try:
            for document in documents:
                self._event(json.dumps(document))
            self._event("[DONE]")
        except ConnectionError:
            # Whoever asked has gone; the iterator ends with this request, and so does its model.
            documents.close()  # type: ignore[attr-defined]
        except Exception as error:
            self.log_error("%s: %s", type(error).__name__, error)
            self._event(
                json.dumps({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
            )

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        if not self.server.quiet:
            super().log_message(format, *args)


def _host_of(header: str) -> str:
    """The name of a Host header, without its port."""
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"
