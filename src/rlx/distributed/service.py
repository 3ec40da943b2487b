"""The service through which processes find each other, in a process of its own beside process 0.

XLA ends every process that loses the service, with a message of its own. So it must not end with process 0: here it
stays long enough for the others to notice that process 0 is silent, and to end with our message.

    service = start("127.0.0.1:8476", processes=4, timeout=60, outlives=15)     # in process 0
    service.end()                                                               # when all have parted

    python -m rlx.distributed.service 127.0.0.1:8476 4 60 15                    # what `start` runs
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from rlx.errors import InternalError

__all__ = ["Service", "start"]

# Seconds between two looks at whether process 0 lives.
_LOOK = 0.5
_DONE = b"done\n"


class Service:
    """The running service, as process 0 has it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def end(self) -> None:
        """All have parted: nobody needs it any more."""
        try:
            self._child.communicate(_DONE, timeout=_LOOK * 10)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._child.kill()


def start(bind: str, processes: int, timeout: int, outlives: int) -> Service:
    """Start the service, which outlives this process by so many seconds; an InternalError says why it cannot listen."""
    child = subprocess.Popen(
        [sys.executable, "-m", "rlx.distributed.service", bind, *map(str, (processes, timeout, outlives))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # The package is found as this process has found it, wherever the script has gone since.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], timeout)
    line = child.stdout.readline() if ready else b""
    why = json.loads(line)["why"] if line else f"it did not start within {timeout} s"
    if why:
        child.kill()
        child.wait()
        raise InternalError(f"the service of the processes: {why}")
    return Service(child)


def _serve(bind: str, processes: int, timeout: int, outlives: int) -> None:
    from rlx.backends.xla import adapter

    # Whoever ends a whole group ends process 0, which this one outlives.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    why, service = "", None
    try:
        service = adapter.start_service(bind, processes, timeout)
    except InternalError as error:
        why = str(error)
    sys.stdout.write(json.dumps({"why": why}) + "\n")
    sys.stdout.flush()
    if service is None or _is_told_to_end(parent):
        return
    time.sleep(outlives)


def _is_told_to_end(parent: int) -> bool:
    """Wait for the word of process 0, or for its death: a process that it has forked may hold the line open."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], _LOOK)[0]:
            return sys.stdin.buffer.readline() == _DONE
    return False


if __name__ == "__main__":
    _serve(sys.argv[1], *map(int, sys.argv[2:]))
