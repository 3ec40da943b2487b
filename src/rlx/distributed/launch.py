"""`rlx launch`: start processes, hand on what they print, and end all when one dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO, NamedTuple, NoReturn

from rlx.errors import ShardingError

__all__ = ["launch"]

# Seconds between two looks at the children; those that a child has to end by itself when it is told to.
_LOOK, _GRACE = 0.05, 1.0


class _Death(NamedTuple):
    """The first process that ended otherwise than well."""

    rank: int
    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"process {self.rank} has ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"process {self.rank} was killed by {name}"

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code


def launch(
    command: Sequence[str],
    processes: int,
    *,
    devices: int | None = None,
    restarts: int = 0,
    nodes: int = 1,
    node: int = 0,
    coordinator: str | None = None,
) -> int:
    """Run a script in so many processes; the exit code of the first that failed, or 0."""
    if not 0 <= node < nodes:
        raise ShardingError(f"launch: --node {node} is not one of {nodes} nodes, which count from 0")
    if nodes > 1 and coordinator is None:
        raise ShardingError("launch: several nodes need --coordinator, the same host:port for all of them")
    if command[0] != "-m" and not os.path.isfile(command[0]):
        raise ShardingError(f"launch: there is no script {command[0]!r}")
    left = restarts
    while True:
        host, _, port = (coordinator or f"127.0.0.1:{_free_port()}").rpartition(":")
        settings = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(processes * nodes)}
        if devices is not None:
            settings["RLX_XLA_DEVICES"] = str(devices)
        death = _run_once(command, processes, node * processes, settings)
        if death is None:
            return 0
        after = (
            f"starting all again, {left} restart{'' if left == 1 else 's'} left" if left else "the others were ended"
        )
        print(f"rlx launch: {death}; {after}", file=sys.stderr, flush=True)
        if not left:
            return death.exit_code
        left -= 1


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def _run_once(command: Sequence[str], processes: int, first: int, settings: dict[str, str]) -> _Death | None:
    children: dict[int, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    death: _Death | None = None
    before = signal.signal(signal.SIGTERM, _stopped)
    try:
        for local in range(processes):
            rank = first + local
            own = {**os.environ, **settings, "RANK": str(rank), "LOCAL_RANK": str(local)}
            child = subprocess.Popen(
                [sys.executable, "-u", *command],
                env=own,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # A group of its own: what it has started ends with it.
                start_new_session=True,
            )
            children[rank] = child
            for source, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
                assert source is not None
                reader = threading.Thread(target=_hand_on, args=(rank, source, target), daemon=True)
                reader.start()
                readers.append(reader)
        death = _watch(children)
        return death
    finally:
        _end(children, death)
        for reader in readers:
            reader.join(timeout=1)
        signal.signal(signal.SIGTERM, before)


def _stopped(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _hand_on(rank: int, source: IO[str], target: IO[str]) -> None:
    for line in source:
        target.write(f"[{rank}] {line}")
        target.flush()


def _watch(children: dict[int, subprocess.Popen[str]]) -> _Death | None:
    """Wait for all to end, or for the first to end badly."""
    running = dict(children)
    while running:
        for rank, child in list(running.items()):
            code = child.poll()
            if code is not None:
                del running[rank]
                if code:
                    return _Death(rank, code)
        time.sleep(_LOOK)
    return None


def _end(children: dict[int, subprocess.Popen[str]], death: _Death | None) -> None:
    """Ask those that still run to end, and make them; then end what they and the one that died have started."""
    running = [child for child in children.values() if child.poll() is None]
    groups = [child.pid for child in running]
    for how, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        _signal_groups([child.pid for child in running], how)
        limit = time.monotonic() + seconds
        while running and time.monotonic() < limit:
            running = [child for child in running if child.poll() is None]
            time.sleep(_LOOK)
    if death is not None:
        groups.append(children[death.rank].pid)
    # A killed service holds its port until the system has taken it down, and the next start may need that port.
    limit = time.monotonic() + _GRACE
    while (groups := _signal_groups(groups, signal.SIGKILL)) and time.monotonic() < limit:
        time.sleep(_LOOK)


def _signal_groups(groups: list[int], how: signal.Signals) -> list[int]:
    """Those of the groups that there still are."""
    there = []
    for group in groups:
        try:
            os.killpg(group, how)
        except ProcessLookupError:
            continue
        there.append(group)
    return there
