"""Many processes, one program: each runs the same script, and their devices make one mesh.

    rlx.distributed.initialize()                       # under rlx launch, torchrun, Slurm, MPI or Kubernetes
    mesh = rlx.make_mesh((8,), ("data",))              # the devices of all processes
    rlx.distributed.process_index(), rlx.distributed.process_count()

Call it before anything runs on xla. When another process is not heard of for `HEARTBEAT` seconds, this one ends with a
message; `rlx launch` is faster, since it sees its children die.
"""

from __future__ import annotations

import atexit
import ipaddress
import itertools
import os
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

import rlx
from rlx.backends.xla import adapter
from rlx.distributed.launchers import find_place
from rlx.distributed.rendezvous import meet
from rlx.distributed.service import Service, start
from rlx.errors import InternalError, ShardingError
from rlx.sharding import NamedSharding
from rlx.trace.pytree import tree_map

__all__ = ["gather", "initialize", "is_initialized", "process_count", "process_index", "wait_for_all"]

# Seconds after which a process that says nothing is taken for dead; how much longer the service outlives process 0, so
# that the others end by that and not by losing it.
HEARTBEAT, NOTICED = 10, 5
# Seconds that process 0 waits for the others to part.
PARTING = 10
_PARTING = "rlx/parting"
# What a process that ends because another one did returns.
EXIT_LOST = 75

_barriers = itertools.count()
_left = threading.Event()


def initialize(
    coordinator: str | None = None, processes: int | None = None, rank: int | None = None, *, timeout: int = 60
) -> None:
    """Join the other processes: `coordinator` is the address (`host:port`) at which process 0 listens.

    Without arguments they come from the launcher; see `rlx.distributed.launchers`. Waits up to `timeout` seconds for
    all of them.
    """
    if coordinator is None and processes is None and rank is None:
        place = find_place(os.environ)
        if place is None:
            raise ShardingError(
                "initialize: no launcher has started this process; use rlx launch -n 4 script.py, or give "
                "coordinator='host:port', processes= and rank="
            )
        coordinator, processes, rank = place.coordinator, place.processes, place.rank
    if coordinator is None or processes is None or rank is None:
        raise ShardingError("initialize: give coordinator, processes and rank, or none of them")
    if processes < 1 or not 0 <= rank < processes:
        raise ShardingError(f"initialize: rank {rank} is not one of {processes} processes, which count from 0")
    host, port = _address(coordinator)
    if adapter.connection() is not None:
        raise ShardingError("initialize: this process has joined the others already")
    adapter.require_unused()
    local = _is_loopback(host)
    releases = f"rlx {rlx.__version__}, jaxlib {getattr(adapter.installed(), 'version', '?')}"
    bind = "127.0.0.1" if local else "::"
    meet(host, port, bind, processes, rank, releases, timeout)
    own = "127.0.0.1" if local else _own_address(host, port)
    listens = f"{bind}:{port}" if local else f"[{bind}]:{port}"
    service = None
    try:
        if rank == 0:
            service = start(listens, processes, timeout, HEARTBEAT + NOTICED)
        joined = adapter.connect(f"{host}:{port}", own, processes, rank, timeout)
        joined.beat()
    except InternalError as error:
        if service is not None:
            service.end()
        raise ShardingError(f"initialize: process {rank} of {processes} cannot join the others: {error}") from None
    _Watch(joined, HEARTBEAT).start()
    atexit.register(_leave, joined, service)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ShardingError(f"initialize: the coordinator is host:port, got {coordinator!r}")
    return host.strip("[]") if ":" in host else host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_address(host: str, port: int) -> str:
    """The address of this machine on the way to another; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host, port))
            return str(way.getsockname()[0])
    except OSError as error:
        raise ShardingError(f"initialize: there is no way to the coordinator {host!r}: {error}") from None


class _Watch(threading.Thread):
    """Says that this process lives, and ends it when another one does not: collectives would wait for it for ever."""

    def __init__(self, joined: adapter.Connection, limit: float) -> None:
        super().__init__(name="rlx heartbeat", daemon=True)
        self._joined, self._limit = joined, limit
        # What each process said last, and when it was new.
        self._seen = dict.fromkeys(range(joined.processes), (0, time.monotonic()))

    def run(self) -> None:
        pause = self._limit / 10
        failed_since: float | None = None
        while not _left.wait(pause):
            now = time.monotonic()
            try:
                counts = self._joined.beat()
                failed_since = None
            except InternalError as error:
                failed_since = failed_since or now
                if now - failed_since > self._limit / 2:
                    self._end(f"process 0 does not answer: {str(error).splitlines()[0]}")
                continue
            for rank, (known, since) in self._seen.items():
                count = counts.get(rank, 0)
                if count != known:
                    self._seen[rank] = (count, now)
                elif now - since > self._limit:
                    self._end(f"process {rank} has been silent for {self._limit:g} s")

    def _end(self, why: str) -> None:
        # Who has left well is silent, too; then this process is about to leave as well.
        if not _left.is_set():
            print(f"rlx: {why}; this process ends too", file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)


def _leave(joined: adapter.Connection, service: Service | None) -> None:
    _left.set()
    if getattr(sys, "last_exc", None) is not None or getattr(sys, "last_type", None) is not None:
        # This process has failed: the others learn it the sooner the less it waits for them.
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)
    try:
        with _Parting(joined):
            joined.leave()
    except InternalError as error:
        print(f"rlx: the other processes did not end well: {error}", file=sys.stderr)
    if service is not None:
        service.end()


class _Parting:
    """Process 0 ends last: XLA ends those that lose its service while they part. Each of the others holds a line to it
    until it has parted."""

    def __init__(self, joined: adapter.Connection) -> None:
        self._joined = joined
        self._line: socket.socket | None = None

    def __enter__(self) -> None:
        try:
            if self._joined.rank == 0:
                self._line = socket.create_server((self._joined.host, 0), backlog=self._joined.processes)
                self._joined.tell(_PARTING, str(self._line.getsockname()[1]))
                self._joined.tell(f"{_PARTING}/host", self._joined.host)
            else:
                port = int(self._joined.told(_PARTING, PARTING))
                host = self._joined.told(f"{_PARTING}/host", PARTING)
                self._line = socket.create_connection((host, port), timeout=PARTING)
        except (OSError, ValueError, InternalError):
            # Another process has failed before this one could part from it; what ends them all says so.
            self._line = None

    def __exit__(self, *error: object) -> None:
        if self._line is None:
            return
        with self._line:
            if self._joined.rank == 0:
                self._wait_for_others(self._line)

    def _wait_for_others(self, line: socket.socket) -> None:
        limit = time.monotonic() + PARTING
        for _ in range(self._joined.processes - 1):
            try:
                line.settimeout(max(limit - time.monotonic(), 0.01))
                other, _ = line.accept()
                with other:
                    other.settimeout(max(limit - time.monotonic(), 0.01))
                    other.recv(1)
            except OSError:
                return


def is_initialized() -> bool:
    return adapter.connection() is not None


def process_index() -> int:
    """Which process this is, from 0; 0 if it is alone."""
    joined = adapter.connection()
    return 0 if joined is None else joined.rank


def process_count() -> int:
    joined = adapter.connection()
    return 1 if joined is None else joined.processes


def wait_for_all(what: str = "barrier", timeout: float = 300.0) -> None:
    """Return when all processes have come here; they must do so equally often."""
    joined = adapter.connection()
    if joined is None:
        return
    try:
        joined.wait_for_all(f"rlx/{what}/{next(_barriers)}", timeout)
    except InternalError as error:
        raise ShardingError(
            f"{what}: not all of {joined.processes} processes came within {timeout} s: {error}"
        ) from None


def gather(x: Any) -> Any:
    """A tree of arrays with all of each in every process, as NumPy arrays. All processes must call it."""

    def whole(value: Any) -> Any:
        sharding = getattr(value, "sharding", None)
        if sharding is None or sharding.is_fully_replicated:
            return np.asarray(value)
        return np.asarray(rlx.device_put(value, NamedSharding(sharding.mesh)))

    return tree_map(whole, x)
