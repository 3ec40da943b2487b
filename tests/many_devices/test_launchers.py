"""Places of processes from what launchers say, and `rlx launch` itself. No jaxlib is needed."""

import os
import signal
import subprocess
import sys
import time

import pytest
from many_devices_runs import SOURCE

from rlx.cli import main
from rlx.distributed import initialize, process_count, process_index, wait_for_all
from rlx.distributed.launchers import Place, find_place, first_node
from rlx.errors import ShardingError

TOLD = {
    "torchrun": (
        {"MASTER_ADDR": "node7", "MASTER_PORT": "1234", "WORLD_SIZE": "8", "RANK": "3", "SLURM_PROCID": "0"},
        Place("node7:1234", 8, 3, "rlx launch or torchrun"),
    ),
    "slurm": (
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "1", "SLURM_JOB_NODELIST": "tux[003-006],x", "SLURM_JOB_ID": "4099"},
        Place("tux003:29403", 4, 1, "Slurm"),
    ),
    "slurm step": (
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "9", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "a,b"},
        Place("a:29400", 2, 1, "Slurm"),
    ),
    "open mpi": (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "MASTER_ADDR": "10.0.0.1"},
        Place("10.0.0.1:29400", 4, 2, "Open MPI"),
    ),
    "mpich alone": ({"PMI_SIZE": "1", "PMI_RANK": "0"}, Place("127.0.0.1:29400", 1, 0, "MPICH")),
    "kubernetes": (
        {"JOB_COMPLETION_INDEX": "5", "WORLD_SIZE": "6", "MASTER_ADDR": "job-0.net", "MASTER_PORT": "99"},
        Place("job-0.net:99", 6, 5, "Kubernetes"),
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_launchers_say_who_a_process_is(name):
    environment, place = TOLD[name]
    assert find_place(environment) == place


def test_no_launcher_is_no_place():
    assert find_place({"HOME": "/"}) is None and first_node("n[12,15]") == "n12" and first_node("solo") == "solo"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "1"}, "set WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI has started 4 processes, and nothing"),
        ({"WORLD_SIZE": "four", "RANK": "0"}, "WORLD_SIZE='four' is no number"),
    ],
)
def test_half_a_place_is_refused(environment, message):
    with pytest.raises(ShardingError, match=message):
        find_place(environment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:1", 2), "give coordinator, processes and rank, or none"),
        (("127.0.0.1:1", 2, 2), "rank 2 is not one of 2 processes"),
        (("nowhere", 2, 0), "the coordinator is host:port"),
        (("h:99999", 2, 0), "the coordinator is host:port"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ShardingError, match=message):
        initialize(*arguments)


def test_one_process_is_alone(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ShardingError, match="no launcher has started this process; use rlx launch"):
        initialize()
    assert (process_index(), process_count()) == (0, 1)
    wait_for_all()


def launched(tmp_path, code, *options):
    script = tmp_path / "script.py"
    script.write_text(code)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "launch", *options, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done, time.monotonic() - started


TELL = """
import os, sys
print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR')), sys.argv[1])
"""


def test_every_process_is_told_who_it_is(tmp_path):
    done, _ = launched(tmp_path, TELL, "-n", "2", "--nodes", "2", "--node", "1", "--coordinator", "far:1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {r} 4 {r - 2} far {tmp_path}" for r in (2, 3)]


def test_a_death_ends_all(tmp_path):
    code = """
import os, signal, subprocess, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    while len(list(Path(sys.argv[1]).glob("pid*"))) < 3:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)       # it does not want to end
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
for pid in (os.getpid(), child.pid) if os.environ["RANK"] == "0" else (os.getpid(),):
    Path(sys.argv[1], f"pid{pid}").touch()
time.sleep(60)
"""
    done, _ = launched(tmp_path, code, "-n", "3")
    assert done.returncode == 128 + signal.SIGKILL
    assert "process 1 was killed by SIGKILL; the others were ended" in done.stderr
    for file in tmp_path.glob("pid*"):
        assert not os.path.exists(f"/proc/{file.name[3:]}/exe"), "a process was left behind"


def test_restarts(tmp_path):
    code = """
import os, sys
from pathlib import Path
mine = Path(sys.argv[1], f"{os.environ['RANK']}-{os.environ['MASTER_PORT']}")
mine.touch()
runs = len(list(Path(sys.argv[1]).glob("1-*")))
sys.exit(3 if os.environ["RANK"] == "1" and runs < 3 else 0)
"""
    done, _ = launched(tmp_path, code, "-n", "2", "--restarts", "2")
    assert done.returncode == 0, done.stderr
    assert "exit code 3; starting all again, 2 restarts left" in done.stderr and "1 restart left" in done.stderr
    for file in tmp_path.glob("1-*"):
        file.unlink()
    done, _ = launched(tmp_path, code, "-n", "2", "--restarts", "1")
    assert done.returncode == 3 and "the others were ended" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", "2", "no_such_script.py"], "there is no script 'no_such_script.py'"),
        (["-n", "2", "--nodes", "2", __file__], "several nodes need --coordinator"),
        (["-n", "2", "--node", "2", __file__], "--node 2 is not one of 1 nodes"),
    ],
)
def test_wrong_commands(options, message, capsys):
    assert main(["launch", *options]) == 1
    assert message in capsys.readouterr().err
