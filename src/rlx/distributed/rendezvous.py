"""How processes find each other before XLA joins them: all tell process 0 who they are, it tells all whether that fits.

XLA ends a process that cannot join the others, whatever the reason. So the reasons are looked for before: nobody at the
address, a process that does not come, two with one rank, other releases, other numbers of processes. All processes get
the same answer, then XLA's service takes over the port.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from rlx.errors import ShardingError

__all__ = ["meet"]

_LINE = 4096
_HELLO = "rlx"


def meet(host: str, port: int, bind: str, processes: int, rank: int, releases: str, timeout: float) -> None:
    """Return in all processes when all have come; raise in all of them what does not fit."""
    mine = {"hello": _HELLO, "rank": rank, "processes": processes, "releases": releases}
    limit = time.monotonic() + timeout
    if rank == 0:
        _wait_for_others(port, bind, mine, limit, timeout)
    else:
        _go_to_first(host, port, mine, limit, timeout)


def _wait_for_others(port: int, bind: str, mine: dict[str, Any], limit: float, timeout: float) -> None:
    here: dict[int, socket.socket] = {}
    strangers: list[socket.socket] = []
    try:
        with _listener(bind, port) as door:
            why = ""
            while len(here) < mine["processes"] - 1 and not why:
                door.settimeout(max(limit - time.monotonic(), 0.01))
                try:
                    guest, _ = door.accept()
                except TimeoutError:
                    missing = [str(r) for r in range(1, mine["processes"]) if r not in here]
                    why = f"process {', '.join(missing)} of {mine['processes']} did not come within {timeout:g} s"
                    break
                strangers.append(guest)
                told = _read(guest, 5.0)
                if told is None or told.get("hello") != _HELLO:
                    # Somebody looks at open ports.
                    guest.close()
                    continue
                why = _misfit(mine, told, here)
                here[int(told["rank"])] = guest
        for guest in strangers:
            _write(guest, {"why": why})
        if why:
            raise ShardingError(f"initialize: {why}")
    finally:
        for guest in strangers:
            guest.close()


def _misfit(mine: dict[str, Any], told: dict[str, Any], here: dict[int, socket.socket]) -> str:
    rank = told.get("rank")
    if told.get("processes") != mine["processes"]:
        return f"process {rank} was started as one of {told.get('processes')}, process 0 as one of {mine['processes']}"
    if not isinstance(rank, int) or not 0 < rank < mine["processes"] or rank in here:
        return f"two processes have the rank {rank}"
    if told.get("releases") != mine["releases"]:
        return f"process {rank} runs {told.get('releases')}, process 0 runs {mine['releases']}; use the same"
    return ""


def _listener(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    door = socket.socket(family)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        door.bind((bind, port))
        door.listen(1024)
    except OSError as error:
        door.close()
        raise ShardingError(
            f"initialize: process 0 cannot listen at port {port}: {error.strerror or error}; choose another port"
        ) from None
    return door


def _go_to_first(host: str, port: int, mine: dict[str, Any], limit: float, timeout: float) -> None:
    last: OSError | None = None
    while time.monotonic() < limit:
        try:
            with socket.create_connection((host, port), timeout=2) as way:
                _write(way, mine)
                told = _read(way, max(limit - time.monotonic(), 0.01) + 5)
                if told is not None and "why" in told:
                    if told["why"]:
                        raise ShardingError(f"initialize: {told['why']}")
                    return
        except OSError as error:
            last = error
        time.sleep(0.05)
    reason = f": {last.strerror or last}" if last is not None else ""
    raise ShardingError(
        f"initialize: process {mine['rank']} of {mine['processes']} cannot reach process 0 at {host}:{port} within "
        f"{timeout:g} s{reason}; does it run there, and is the port open?"
    )


def _write(way: socket.socket, told: dict[str, Any]) -> None:
    try:
        way.sendall(json.dumps(told).encode() + b"\n")
    except OSError:
        # It has gone; whoever misses it says so.
        return


def _read(way: socket.socket, seconds: float) -> dict[str, Any] | None:
    """One line of JSON; None if nothing of that kind came."""
    way.settimeout(seconds)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _LINE:
            more = way.recv(_LINE)
            if not more:
                return None
            line += more
        told = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None
