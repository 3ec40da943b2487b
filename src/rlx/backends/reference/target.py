"""The reference: every program, by the definition of its ops."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.compile.target import DeviceInfo, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.reference import ReferenceBackend

    return ReferenceBackend()


TARGET = Target(
    name="reference",
    about="every program in plain NumPy, by the definition of its ops; for checking",
    aliases=("ref",),
    probe=lambda: Found((DeviceInfo(0, "NumPy"),)),
    backend=_backend,
)
