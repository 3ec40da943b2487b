"""Serve a folder that `rlx export web` has written, to try it in a browser. Only this machine can reach it.

Any file server works. This one sends the content types, and the headers that let the page use several threads.

examples:
  rlx export web smollm2 page
  rlx serve-web page
"""

from __future__ import annotations

import argparse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "serve-web", __doc__)
    parser.add_argument("folder", type=Path, help="what `rlx export web` has written")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="the port; 0 picks a free one (default: 8000)"
    )
    parser.add_argument("--quiet", action="store_true", help="do not log requests")
    return parser


def run(args: argparse.Namespace) -> int:
    with page_server(args.folder, args.port, args.quiet) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    return 0


def page_server(folder: Path, port: int = 0, quiet: bool = True) -> ThreadingHTTPServer:
    """A server of a folder with a page, on this machine alone; `server_port` is its port."""
    if not (folder / "index.html").is_file():
        raise RlxError(f"{folder} has no index.html; write it with `rlx export web MODEL {folder}`")
    if not 0 <= port < 1 << 16:
        raise RlxError(f"a port is a number from 0 to 65535, got {port}")
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, quiet, directory=str(folder)))


class _Handler(SimpleHTTPRequestHandler):
    """Files with their types. Nothing is kept by the browser: the next export may have other files of the same name."""

    # The system's own table may know others for these, with which browsers refuse to run them.
    extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".wasm": "application/wasm",
        ".json": "application/json",
    }

    def __init__(self, quiet: bool, *args: object, directory: str) -> None:
        self._quiet = quiet
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        if not self._quiet:
            super().log_message(format, *args)
