"""Functions that change HIR modules after they are built: a process-wide list, applied in order of registration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock

from rlx.errors import RlxError
from rlx.ir.module import HirModule

HirExtensionFn = Callable[[HirModule], None]

_extensions: dict[str, HirExtensionFn] = {}
_lock = Lock()


def register_hir_extension(name: str, extension: HirExtensionFn) -> None:
    """Add an extension; one of the same name is replaced and moves to the end."""
    with _lock:
        _extensions.pop(name, None)
        _extensions[name] = extension


def registered_hir_extensions() -> list[str]:
    """Names in the order in which they are applied."""
    return list(_extensions)


def apply_hir_extensions(hir: HirModule) -> None:
    """Apply all extensions."""
    apply_hir_extensions_named(hir, registered_hir_extensions())


def apply_hir_extensions_named(hir: HirModule, names: Iterable[str]) -> None:
    """Apply the named extensions, in the order given."""
    for name in names:
        extension = _extensions.get(name)
        if extension is None:
            known = ", ".join(_extensions) or "none"
            raise RlxError(f"no HIR extension is called {name!r}; registered are: {known}")
        extension(hir)
