"""LIR to executables, one folder per backend. Backends register here by name and are loaded on first use."""

from __future__ import annotations

from rlx.backends.api import Backend, register_backend


def _reference() -> Backend:
    from rlx.backends.reference import ReferenceBackend

    return ReferenceBackend()


register_backend("reference", _reference)
