"""Who this process is among those that were started with it, from what launchers leave in the environment.

    place = find_place(os.environ)         # Place(coordinator="node1:29400", processes=8, rank=3, launcher="Slurm")

`rlx launch` and torchrun say all of it. Slurm says all but a port, which follows from the number of the job. MPI and
Kubernetes do not say where process 0 is: `MASTER_ADDR` and `MASTER_PORT` say it for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rlx.errors import ShardingError

__all__ = ["Place", "find_place"]

_FIRST_PORT, _PORTS = 29400, 4096


class Place(NamedTuple):
    """A process among several: where process 0 listens, how many there are, and which this one is."""

    coordinator: str
    processes: int
    rank: int
    launcher: str


# Launcher, the variable with the number of processes, the variable with the rank.
_RANKS = (
    ("rlx launch or torchrun", "WORLD_SIZE", "RANK"),
    ("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("Slurm", "SLURM_NTASKS", "SLURM_PROCID"),
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPICH", "PMI_SIZE", "PMI_RANK"),
    ("Kubernetes", "WORLD_SIZE", "JOB_COMPLETION_INDEX"),
)


def find_place(environment: Mapping[str, str]) -> Place | None:
    """What a launcher says; None if none has started this process. An error if it says only a part."""
    for launcher, size, rank in _RANKS:
        if size in environment and rank in environment:
            count, number = _number(environment, size), _number(environment, rank)
            return Place(_coordinator(environment, launcher, count), count, number, launcher)
    if "JOB_COMPLETION_INDEX" in environment:
        raise ShardingError(
            "initialize: Kubernetes says which process this is, but not how many there are; set WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT in the spec of the job"
        )
    return None


def _coordinator(environment: Mapping[str, str], launcher: str, processes: int) -> str:
    if "MASTER_ADDR" in environment:
        return f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', _FIRST_PORT)}"
    if launcher == "Slurm":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
        if nodes:
            job = environment.get("SLURM_JOB_ID", "0")
            port = _FIRST_PORT + (int(job) % _PORTS if job.isdigit() else 0)
            return f"{first_node(nodes)}:{port}"
    if processes == 1:
        return f"127.0.0.1:{_FIRST_PORT}"
    raise ShardingError(
        f"initialize: {launcher} has started {processes} processes, and nothing says where process 0 is; set "
        "MASTER_ADDR (and MASTER_PORT) for all of them, or call initialize(coordinator, processes, rank)"
    )


def first_node(nodes: str) -> str:
    """The first name of a list of Slurm's: `tux[003-010,12],other` begins with tux003."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if match is None:
        raise ShardingError(f"initialize: {nodes!r} is no list of nodes of Slurm")
    return match[1] + (match[2] or "")


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ShardingError(f"initialize: {name}={environment[name]!r} is no number") from None
