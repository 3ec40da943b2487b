"""What chips can do, from what their makers publish: memory, arithmetic, links. The only place with such figures.

    chip("h100").peak            # 494.5e12 multiplications and additions a second

Sources, by name: Google Cloud TPU documentation, pages "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e" (memory, bandwidth,
peak of bf16, interconnect per chip, chips of a pod); NVIDIA data sheets "A100 Tensor Core GPU", "H100 Tensor Core GPU",
"H200 Tensor Core GPU" (SXM), and the user guides "DGX A100" and "DGX H100" (GPUs joined by NVSwitch, network adapters
per GPU); AMD data sheet "Instinct MI300X" (its network is taken to be that of a DGX). Peaks are those of f32 products
as XLA forms them by default: with one pass of bf16 on TPUs, as TF32 on GPUs (dense, half of what is stated with
sparsity). Makers state links in both directions together; here they are what one device sends: in a collective along
one axis of a mesh, which on a torus goes both ways round one ring.

Three figures are estimates, not published: `share_of_peak`, which products of usual sizes reach, `hop_seconds`, the
delay of one step of a ring, and the share of a host's network that each TPU has.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.errors import ShardingError
from rlx.ir.words import nearest

__all__ = ["CHIPS", "Chip", "chip"]

_GB, _TERA = 1e9, 1e12


class Chip(NamedTuple):
    """One device. Speeds are per second; `domain` is how many devices the fast links join, `network_bytes` what a
    device sends to others beyond."""

    name: str
    memory_bytes: float
    memory_speed: float
    peak: float
    link_bytes: float
    domain: int
    network_bytes: float
    hop_seconds: float = 1e-6
    network_hop_seconds: float = 10e-6
    share_of_peak: float = 0.5


def _tpu(name: str, memory: float, speed: float, peak: float, gigabits: float, axes: int, pod: int) -> Chip:
    # A ring along one axis of the torus has that share of all links, one way of each.
    link = gigabits / 8 * _GB / axes
    return Chip(name, memory * _GB, speed * _GB, peak * _TERA, link, pod, 6.25 * _GB)


CHIPS: dict[str, Chip] = {
    c.name: c
    for c in (
        _tpu("v4", 32, 1228, 275, 2400, 3, 4096),
        _tpu("v5e", 16, 819, 197, 1600, 2, 256),
        _tpu("v5p", 95, 2765, 459, 4800, 3, 8960),
        _tpu("v6e", 32, 1638, 918, 3200, 2, 256),
        Chip("a100", 80 * _GB, 2039 * _GB, 156 * _TERA, 300 * _GB, 8, 25 * _GB),
        Chip("h100", 80 * _GB, 3350 * _GB, 494.5 * _TERA, 450 * _GB, 8, 50 * _GB),
        Chip("h200", 141 * _GB, 4800 * _GB, 494.5 * _TERA, 450 * _GB, 8, 50 * _GB),
        Chip("mi300x", 192 * _GB, 5300 * _GB, 653.7 * _TERA, 448 * _GB, 8, 50 * _GB),
    )
}


def chip(name: str) -> Chip:
    """A chip by its name."""
    if name not in CHIPS:
        raise ShardingError(f"plan: there is no chip {name!r}{nearest(name, CHIPS)}; it is one of {', '.join(CHIPS)}")
    return CHIPS[name]
