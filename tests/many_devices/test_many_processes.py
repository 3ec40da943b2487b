"""Several processes over loopback: the same losses, checkpoints on other meshes, and what happens when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from many_devices_runs import environment, many_devices, needs_xla

from rlx.distributed import processes

pytestmark = needs_xla

HERE = Path(__file__).parent
SCRIPT = str(HERE / "gpt_script.py")


def losses_in(text):
    """The losses a run printed: every time the same, where a process died after the end and all started again."""
    told = [json.loads(line.split("LOSSES ")[1]) for line in text.splitlines() if "LOSSES" in line]
    assert told and all(losses == told[0] for losses in told), text
    return told[0]


def launched(options, script, *arguments, fails=False):
    settings = environment(1)
    del settings["RLX_XLA_DEVICES"]
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "launch", *options, script, *map(str, arguments)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def alone(devices, *arguments):
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env=environment(devices),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The run of one process with four devices, undisturbed."""
    return losses_in(alone(4, tmp_path_factory.mktemp("alone"), "data=2,fsdp=2", 6))


def test_a_killed_run_goes_on_and_ends_the_same(tmp_path, one_process):
    told = launched(["-n", "2", "--devices", "2", "--restarts", "1"], SCRIPT, tmp_path, "data=2,fsdp=2", 6, 3)
    assert "process 1 was killed by SIGKILL; starting all again, 1 restart left" in told
    np.testing.assert_allclose(losses_in(told), one_process, rtol=0, atol=1e-5)
    # The checkpoint of two processes goes on in one, on another mesh.
    more = losses_in(alone(4, tmp_path, "data=4", 8))
    assert len(more) == 8 and more[:6] == losses_in(told)


@pytest.mark.targets_full
def test_four_processes_of_two_devices(tmp_path, one_process):
    told = launched(["-n", "4", "--devices", "2"], SCRIPT, tmp_path, "data=2,fsdp=2,tensor=2", 6)
    np.testing.assert_allclose(losses_in(told), one_process, rtol=0, atol=1e-5)


@pytest.mark.targets_full
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments(tmp_path, one_process, seed):
    """From outside, at any time from the start of the processes to their end."""
    killed_run_ends_the_same(tmp_path, one_process, seed, ["-n", "2", "--devices", "2"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 24))
def test_twenty_more_kills_of_four_processes(tmp_path, one_process, seed):
    killed_run_ends_the_same(tmp_path, one_process, seed, ["-n", "4", "--devices", "1"])


def killed_run_ends_the_same(tmp_path, one_process, seed, processes):
    """The moment and the process follow from the seed."""
    moment = np.random.default_rng(seed).uniform(0.5, 25)
    options = [*processes, "--restarts", "1"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "rlx", "launch", *options, SCRIPT, str(tmp_path), "data=2,fsdp=2", "6"],
        env=environment(1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(moment)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    if children:
        os.kill(int(children[seed % len(children)]), signal.SIGKILL)
    told, _ = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, (moment, told)
    assert not children or "was killed by SIGKILL; starting all again" in told, (moment, told)
    np.testing.assert_allclose(losses_in(told), one_process, rtol=0, atol=1e-5)


def test_checkpoints_move_to_other_meshes(tmp_path):
    told = many_devices(
        f"""
        from pathlib import Path
        from rlx.errors import FormatError
        out = Path({str(tmp_path)!r})
        rng = np.random.default_rng(0)
        values = {{"w": rng.standard_normal((16, 24)).astype("f4"), "n": np.int32(7),
                  "h": rng.random((8, 8)).astype("f2"), "whole": np.arange(5)}}
        two = rlx.make_mesh((2, 4), ("x", "y"))
        specs = {{"w": P("y", "x"), "n": P(), "h": P(None, ("x", "y"))}}
        state = {{k: rlx.device_put(v, NamedSharding(two, specs[k])) if k in specs else v for k, v in values.items()}}
        for step in (1, 2, 3):
            rlx.train.save_checkpoint(out, state, step, keep=2, extra={{"a": 1}})
        assert [s for s, _ in rlx.train.checkpoint_files(out)] == [2, 3]
        assert not list(out.glob(".step*"))
        one = rlx.make_mesh((8, 1), ("x", "y"))
        rows = lambda v: NamedSharding(one, P("x") if v.ndim == 2 else P())
        likes = [values, state, {{k: rlx.device_put(np.zeros_like(v), rows(v)) for k, v in values.items()}}]
        for like in likes:
            got, info = rlx.train.load_checkpoint(out, like)
            assert info.step == 3 and info.extra == {{"a": 1}}
            for k, v in values.items():
                assert np.asarray(got[k]).tobytes() == v.tobytes() and got[k].dtype == v.dtype, k
                assert getattr(got[k], "sharding", None) == getattr(like[k], "sharding", None)
        # One file of a plain run onto a mesh.
        rlx.train.save_checkpoint(out / "plain", values, 1)
        got, _ = rlx.train.load_checkpoint(out / "plain", likes[2])
        assert got["w"].sharding == likes[2]["w"].sharding and (np.asarray(got["w"]) == values["w"]).all()
        for damage, word in ((lambda f: (f / "index.json").write_text("[]"), "index.json cannot be read"),
                             (lambda f: next(f.glob("part*")).unlink(), "parts of 'h' are missing")):
            rlx.train.save_checkpoint(out / "damaged", state, 1)
            damage(out / "damaged" / "step-00000001.sharded")
            try:
                rlx.train.load_checkpoint(out / "damaged", values)
            except FormatError as error:
                assert word in str(error), error
            else:
                raise SystemExit("damage was not seen")
        other = {{**values, "w": values["w"][:4]}}
        for like, word in ((other, "of another model"), ({{"w": values["w"]}}, "which is not wanted")):
            try:
                rlx.train.load_checkpoint(out, like)
            except FormatError as error:
                assert word in str(error), error
            else:
                raise SystemExit("another model was not seen")
        print("done")
        """
    )
    assert told.split() == ["done"]


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def assert_nothing_listens(address):
    """The service goes, too, and leaves its port: soon, since what was killed ends when the system comes to it."""
    host, port = address.split(":")
    limit = time.monotonic() + 30
    while True:
        with socket.socket() as way:
            if way.connect_ex((host, int(port))) != 0:
                return
        assert time.monotonic() < limit, "the service is still there"
        time.sleep(0.2)


def test_initialize_comes_first():
    told = many_devices(
        f"""
        rlx.devices("xla")
        rlx.distributed.initialize("127.0.0.1:{free_port()}", 1, 0, timeout=5)
        """,
        devices=1,
        fails=True,
    )
    assert "devices are in use already; call it before anything runs on xla" in told


def test_an_error_in_one_process_ends_all(tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        """
import numpy as np
import rlx
from rlx import NamedSharding, P
rlx.distributed.initialize(timeout=60)
rank = rlx.distributed.process_index()
mesh = rlx.make_mesh((2,), ("x",))
a = rlx.device_put(np.arange(4.0), NamedSharding(mesh, P("x")))
print("all", rlx.distributed.gather(a).tolist(), a.is_fully_addressable, len(a.addressable_shards))
print(a)
print("total", float(rlx.jit(lambda a: a.sum())(a)))
rlx.distributed.wait_for_all()
if rank == 1:
    raise ValueError("out of luck")
rlx.jit(lambda a: a.max() * 2)(a).block_until_ready()      # waits for a process that never comes
rlx.distributed.wait_for_all()
"""
    )
    told = launched(["-n", "2", "--devices", "1"], str(script), fails=True)
    for rank in (0, 1):
        assert f"[{rank}] all [0.0, 1.0, 2.0, 3.0] False 1" in told and f"[{rank}] total 6.0" in told, told
        assert f"[{rank}] Array(float64[4], sharding=[x=2](x), device=xla)" in told
    assert "ValueError: out of luck" in told and "rlx launch: process" in told


@pytest.mark.parametrize("dead", [0, 1])
def test_a_silent_death_is_noticed_without_a_launcher(tmp_path, dead):
    """Also that of process 0, whose service of XLA ends all others when it is lost."""
    script = tmp_path / "s.py"
    script.write_text(
        """
import os, signal, sys, time
import rlx
from rlx.distributed import processes
processes.HEARTBEAT = 3
rlx.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), timeout=60)
rlx.distributed.wait_for_all()
if sys.argv[2] == sys.argv[3]:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    )
    address = f"127.0.0.1:{free_port()}"
    started = [
        subprocess.Popen(
            [sys.executable, str(script), address, str(rank), str(dead)],
            env=environment(1),
            stderr=subprocess.DEVNULL if rank == dead else subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    alive = started[1 - dead]
    try:
        _, told = alive.communicate(timeout=60)
        assert alive.returncode == processes.EXIT_LOST, told
        assert told.splitlines() == [f"rlx: process {dead} has been silent for 3 s; this process ends too"]
        assert_nothing_listens(address)
    finally:
        for process in started:
            if process.poll() is None:
                os.kill(process.pid, 9)
            process.wait()


def test_the_launcher_ends_the_service_of_a_process_that_dies(tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        """
import os, signal, time
import rlx
from rlx.distributed import processes
processes.HEARTBEAT = 100  # The service would stay for longer than this test waits.
rlx.distributed.initialize()
rlx.distributed.wait_for_all()
if rlx.distributed.process_index() == 0:
    print("PORT", os.environ["MASTER_PORT"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    )
    told = launched(["-n", "2", "--devices", "1"], str(script), fails=True)
    assert "process 0 was killed by SIGKILL; the others were ended" in told
    assert_nothing_listens(f"127.0.0.1:{told.split('PORT ')[1].split()[0]}")
