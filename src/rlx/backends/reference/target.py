"""The reference: every program, by the definition of its ops."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.compile.target import DeviceInfo, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.engine import EngineBackend
    from rlx.backends.reference import ReferenceEngine

    return EngineBackend(ReferenceEngine)


TARGET = Target(
    name="reference",
    about="every program in plain NumPy, by the definition of its ops; for checking",
    aliases=("ref",),
    probe=lambda: Found((DeviceInfo(0, "NumPy"),)),
    backend=_backend,
)
