"""Settings of others, said before anything is compiled."""

from __future__ import annotations

from rlx import env
from rlx.errors import BackendError

# Variables of the environment that have a meaning elsewhere, and what is written here instead.
_NO_TILES = "products use the tiles that are right on every GPU, and never round unasked"
REPLACED = {
    "RLX_WGPU_F16_WEIGHTS": "compile with the precision 'AutoMixed', or load f16 weights",
    "RLX_WGPU_NO_COOP_F32": _NO_TILES,
    "RLX_WGPU_FORCE_COOP_F32": _NO_TILES,
    "RLX_WGPU_NAN_TRACE": "use rlx.debug to find where a NaN comes from",
    "RLX_WGPU_SCHEDULE": "print the report of a compiled program",
}


def refuse_replaced_variables() -> None:
    for name, instead in REPLACED.items():
        if env.named(name):
            raise BackendError(f"wgpu: the environment variable {name} is not read; {instead}. Unset it.")
