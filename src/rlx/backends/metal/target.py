"""Apple GPUs: the kernels of the generator as Metal shaders."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.own_kernels import named_machine, own_generator
from rlx.backends.text_gpu.space import text_gpu_space
from rlx.compile.target import GENERATED, Absent, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.metal.executable import MetalBackend

    return MetalBackend(chosen.index)


def _probe() -> Found | Absent:
    from rlx.backends.metal.devices import probe

    return probe()


TARGET = Target(
    name="metal",
    about="Apple GPUs, through Metal; never tried on one",
    aliases=("mtl",),
    probe=_probe,
    machine=named_machine("metal"),
    generator=own_generator,
    backend=_backend,
    open=text_gpu_space("metal"),
    claims=GENERATED - {"FusedAttentionBlock"},
    extra="metal",
)
