"""The process of one engine: `python -m rlx.bench.worker FAMILY NAME THREADS` answers one JSON line for each it reads.

    {"do": "prepare", "program": .., "sizes": .., "result": FILE}
                                    -> {"seconds": first call, with compilation, "held": memory before it}
    {"do": "call", "result": FILE}  -> {}: one more call, whose result is looked at
    {"do": "round", "seconds": ..}  -> {"seconds": median of a call, "calls": .., "peak": memory at most}
    {"do": "logits", "tokens": [..], "result": FILE}
                                    -> {}: of every position, by a language model

Memory is bytes of the whole process, or of a device with memory of its own; None where the system does not say. An
answer with "error" says why something could not be done; the process goes on. Whatever an engine prints goes to stderr,
so that answers stay readable.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from rlx.bench.engines import Engine, create_engine
from rlx.bench.programs import PROGRAMS, operands_of
from rlx.bench.training_programs import TRAINING, drawn

# A call may be so short that the clock matters: several are then measured as one.
SHORTEST = 20e-6


def main() -> int:
    family, name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _keep_to(threads)
    try:
        engine: Any = create_engine(family, name, threads)
    except Exception as error:
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return 1
    _answer(answers, {"version": engine.version})
    call: Callable[[], Any] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                call = None
                gc.collect()
                _draw(request)
                held = _used(engine, "VmRSS")
                call, seconds = _prepared(engine, request)
                _answer(answers, {"seconds": seconds, "held": held})
            elif request["do"] == "logits":
                np.save(request["result"], engine.logits(request["tokens"]), allow_pickle=False)
                _answer(answers, {})
            elif call is not None and request["do"] == "call":
                np.save(request["result"], engine.as_numpy(call()), allow_pickle=False)
                _answer(answers, {})
            elif call is not None:
                _forget_peak()
                _answer(answers, {**_round(call, request["seconds"]), "peak": _used(engine, "VmHWM")})
            else:
                _answer(answers, {"error": "nothing is prepared"})
        except Exception as error:
            _answer(answers, {"error": f"{type(error).__name__}: {error}"})
    return 0


def _answer(stream: TextIO, values: dict[str, Any]) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()


def _keep_to(threads: int) -> None:
    """Engines that take every processor they are allowed get as many as the others."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed[:threads])


def _draw(request: dict[str, Any]) -> None:
    """Make the operands, once: they are remembered, and the clock is for the engine."""
    if request["program"] in PROGRAMS:
        operands_of(request["program"], request["sizes"])
    elif request["program"] in TRAINING:
        drawn(request["program"], request["sizes"])


def _prepared(engine: Engine, request: dict[str, Any]) -> tuple[Callable[[], Any], float]:
    """A call that has run; its result is in the file that was asked for."""
    start = time.perf_counter()
    call = engine.prepare(request["program"], request["sizes"])
    result = call()
    seconds = time.perf_counter() - start
    np.save(request["result"], engine.as_numpy(result), allow_pickle=False)
    # Some engines record the first calls and compile the second or third.
    for _ in range(3):
        call()
    return call, seconds


def _round(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Calls for about so long: at least three, or one that is longer. A first one warms the caches again."""
    start = time.perf_counter()
    call()
    is_long = time.perf_counter() - start > seconds
    batch = 1 if is_long else _calls_in(SHORTEST, call)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < (1 if is_long else 3) or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    return {"seconds": statistics.median(times), "calls": len(times) * batch}


def _used(engine: Any, what: str) -> int | None:
    """Bytes that an engine has used at most of a device with memory of its own, else those of this process."""
    found: int | None = getattr(engine, "peak_memory", None)
    return _memory(what) if found is None else found


def _memory(what: str) -> int | None:
    """Bytes of main memory that this process has (VmRSS), or had at most (VmHWM), as Linux counts them."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:")), None)
    except OSError:
        return None


def _forget_peak() -> None:
    """The most that the process had begins with what it has now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _calls_in(seconds: float, call: Callable[[], Any]) -> int:
    start = time.perf_counter()
    call()
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-9)))


if __name__ == "__main__":
    sys.exit(main())
