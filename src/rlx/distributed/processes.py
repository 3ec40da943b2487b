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
from typing import Any, NoReturn

import numpy as np

import rlx
from rlx.backends.xla import adapter
from rlx.distributed.launchers import find_place
from rlx.errors import InternalError, ShardingError
from rlx.sharding import NamedSharding
from rlx.trace.pytree import tree_map

__all__ = ["gather", "initialize", "is_initialized", "process_count", "process_index", "wait_for_all"]

# Seconds after which a process that says nothing is taken for dead.
HEARTBEAT = 10
# What a process that ends because another one did returns.
EXIT_LOST = 75

_barriers = itertools.count()


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
    if adapter.connection() is not None:
        raise ShardingError("initialize: this process has joined the others already")
    host, port = _address(coordinator)
    local = _is_loopback(host)
    bind = f"127.0.0.1:{port}" if local else f"[::]:{port}"
    own = "127.0.0.1" if local else _own_address(host, port)
    try:
        joined = adapter.connect(f"{host}:{port}", bind, own, processes, rank, timeout, HEARTBEAT, _lost)
        _require_same(joined, timeout)
    except InternalError as error:
        raise ShardingError(_why_not(coordinator, processes, rank, timeout, error)) from None
    atexit.register(_leave, joined)


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


def _why_not(coordinator: str, processes: int, rank: int, timeout: int, error: Exception) -> str:
    text = str(error)
    start = f"initialize: process {rank} of {processes} cannot join the others at {coordinator}"
    if rank == 0 and ("in use" in text or "Failed to start" in text or "bind" in text.lower()):
        return f"{start}: the port is taken; choose another ({text})"
    if "DEADLINE_EXCEEDED" in text or "UNAVAILABLE" in text:
        return (
            f"{start} within {timeout} s; does process 0 run there, do all {processes} run, and is the port open "
            f"to all? ({text.splitlines()[0]})"
        )
    return f"{start}: {text}"


def _require_same(joined: adapter.Connection, timeout: int) -> None:
    """All processes must run the same releases with as many processes in mind: they compile the same programs."""
    found = adapter.installed()
    mine = f"rlx {rlx.__version__}, jaxlib {getattr(found, 'version', '?')}, {joined.processes} processes"
    joined.tell(f"rlx/version/{joined.rank}", mine)
    first = joined.ask("rlx/version/0", timeout)
    if first != mine:
        raise ShardingError(f"initialize: process {joined.rank} runs {mine}, process 0 runs {first}; use the same")


def _lost(status: str) -> NoReturn:
    """Another process is gone. The collectives that wait for it would wait for ever."""
    text = status.splitlines()[0] if status else ""
    print(f"rlx: another process has ended or is not heard of; this one ends too ({text})", file=sys.stderr, flush=True)
    os._exit(EXIT_LOST)


def _leave(joined: adapter.Connection) -> None:
    if getattr(sys, "last_exc", None) is not None or getattr(sys, "last_type", None) is not None:
        # This process has failed: the others learn it the sooner the less it waits for them.
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)
    try:
        joined.leave()
    except InternalError as error:
        print(f"rlx: the other processes did not end well: {error}", file=sys.stderr)


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
        raise ShardingError(f"{what}: not all of {joined.processes} processes came within {timeout} s: {error}") from None


def gather(x: Any) -> Any:
    """A tree of arrays with all of each in every process, as NumPy arrays. All processes must call it."""
    def whole(value: Any) -> Any:
        sharding = getattr(value, "sharding", None)
        if sharding is None or sharding.is_fully_replicated:
            return np.asarray(value)
        return np.asarray(rlx.device_put(value, NamedSharding(sharding.mesh)))

    return tree_map(whole, x)
