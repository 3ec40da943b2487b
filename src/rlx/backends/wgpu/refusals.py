"""What WebGPU does not have, said before anything is compiled: types, and settings of others."""

from __future__ import annotations

from rlx import env
from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph

# Variables of the environment that have a meaning elsewhere, and what is written here instead.
_NO_TILES = "products use the tiles that are right on every GPU, and never round unasked"
REPLACED = {
    "RLX_WGPU_F16_WEIGHTS": "compile with the precision 'AutoMixed', or load f16 weights",
    "RLX_WGPU_NO_COOP_F32": _NO_TILES,
    "RLX_WGPU_FORCE_COOP_F32": _NO_TILES,
    "RLX_WGPU_NAN_TRACE": "use rlx.debug to find where a NaN comes from",
    "RLX_WGPU_SCHEDULE": "print the report of a compiled program",
}
_MISSING = (DType.F64, DType.C128)


def refuse_replaced_variables() -> None:
    for name, instead in REPLACED.items():
        if env.named(name):
            raise BackendError(f"wgpu: the environment variable {name} is not read; {instead}. Unset it.")


def refuse_unknown_types(graph: Graph) -> None:
    """WGSL has no f64; 64-bit integers are computed exactly in two words."""
    from rlx.compile.claims.legalize import LegalizeError, Offender

    found = [n for n in graph.nodes if any(s.dtype in _MISSING for s in n.shapes)]
    if found:
        offenders = [Offender(n.id, n.op.mnemonic) for n in found]
        reasons = {n.op.mnemonic: "WGSL has no f64; cast to f32, or use the device cpu" for n in found}
        raise LegalizeError("wgpu", offenders, reasons)
