"""What only shows from outside of a process: forks, the end, Ctrl-C, and quiet between runs."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

# Enough work for every thread, in f32 values that are exact.
PROGRAM = """
import os, sys, threading, time
import numpy as np
import rlx

def program(layers, width=256):
    g = rlx.Graph("long")
    y, w = g.input("x", ("B", width)), g.param("w", (width, width))
    for _ in range(layers):
        y = rlx.relu(y @ w)
    g.set_outputs([y])
    c = rlx.Session("cpu").compile(g)
    c.set_param("w", np.eye(width, dtype="f4"))
    return c

x = np.arange(512 * 256, dtype="f4").reshape(512, 256)

def check(c):
    assert np.array_equal(c.run(x=x)[0], x)

c = program(4)
"""


def run(script, **environment):
    """The output of a process that runs `script`; one that hangs fails the test."""
    process = start(script, **environment)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        # With its children: they would take the processor from all other tests.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, err
    return out


def start(script, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "RLX_THREADS": "3", **environment},
    )


def test_a_forked_child_has_threads_of_its_own():
    out = run(
        """
        check(c)
        child = os.fork()
        check(c)
        workers = [t.name for t in threading.enumerate() if t.name.startswith("rlx-worker")]
        if child == 0:
            from rlx.backends.cpu import pool
            print("child", pool._pool.workers, len(workers), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        check(c)
        print("parent", len(workers), status)
        """
    )
    assert sorted(out.split("\n")) == ["", "child 2 2", "parent 2 0"]


FORK_IN_THE_MIDDLE = """
stop = False
def work():
    while not stop:
        check(c)
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads:
    t.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        for _ in range(3):
            check(c)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for t in threads:
    t.join()
print("done")
"""


def test_a_fork_in_the_middle_of_other_runs():
    assert run(FORK_IN_THE_MIDDLE) == "done\n"


@pytest.mark.long
def test_many_forks_on_a_busy_machine():
    """Threads are interrupted at any place where there are more of them than processors."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for _ in range(200):
            assert run(FORK_IN_THE_MIDDLE) == "done\n"
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "script",
    [
        "check(c)",
        "check(c); time.sleep(0.05)",
        "check(c); sys.exit(0)",
        """
        def forever():
            while True:
                check(c)
        threading.Thread(target=forever, daemon=True).start()
        check(c)
        time.sleep(0.1)
        """,
        """
        import atexit
        atexit.register(lambda: check(c))
        check(c)
        """,
    ],
    ids=["busy", "asleep", "sys.exit", "in the middle of a run", "a run at exit"],
)
def test_a_process_ends(script):
    run(script)


def test_control_c_stops_a_long_run():
    """Minutes of work in one run, so that only a run that really stops is over in time."""
    process = start(
        """
        import signal
        # Who starts the tests in the background may have them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        endless, rows = program(400, 2048), np.zeros((1 << 14, 2048), "f4")
        print("ready", flush=True)
        try:
            endless.run(x=rows)
        except KeyboardInterrupt:
            check(c)
            print("interrupted", flush=True)
        """
    )
    try:
        assert process.stdout.readline() == "ready\n"
        # Long enough to be inside of the run, where Python sees no signals by itself.
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert out == "interrupted\n" and process.returncode == 0, err
    finally:
        process.kill()


def test_idle_threads_sleep():
    out = run(
        """
        for _ in range(3):
            check(c)
        time.sleep(0.02)
        before = time.process_time()
        time.sleep(0.2)
        print(time.process_time() - before)
        check(c)
        """
    )
    # One thread that spins would use all of it.
    assert float(out) < 0.1
