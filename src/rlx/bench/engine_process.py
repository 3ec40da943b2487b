"""The process of one engine, as its parent sees it: questions and answers, patience, and an end that is an end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx.errors import RlxError

# An engine that takes longer for one preparation or round is left out of the case.
PATIENCE_S = 180.0


class EngineProblem(RlxError):
    """An engine could not do what it was asked, or took too long."""


def engine_environment(threads: int) -> dict[str, str]:
    """With which another Python finds this very rlx, and an engine takes so many threads and sends nothing home.

    What engines measure about their users is sent by forked processes, some of which never end; a build server, which
    CI stands for, is left alone.
    """
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RLX_THREADS", "CPU_COUNT")
    return {**os.environ, **dict.fromkeys(counts, str(threads)), "PYTHONPATH": path, "CI": "true"}


class Worker:
    """One engine of a family, in a process that runs `rlx.bench.worker`."""

    def __init__(
        self, family: str, name: str, python: str, threads: int, more_environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-m", "rlx.bench.worker", family, name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**engine_environment(threads), **(more_environment or {})},
            text=True,
            start_new_session=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.version = str(self._next(PATIENCE_S)["version"])
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _next(self, patience: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            self.close()
            raise EngineProblem(f"no answer within {patience:.0f} s") from None
        if line is None:
            raise EngineProblem(f"the process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineProblem(str(answer["error"]).splitlines()[0])
        return answer

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise EngineProblem("its process has ended") from None
        return self._next(PATIENCE_S)

    def close(self) -> None:
        """End the process and whatever it has forked: a child that lives on would keep the pipe open for ever."""
        if self._process.returncode is None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
