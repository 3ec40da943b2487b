"""Settings from the environment, with overrides from code that win over it.

Keys may omit the `RLX_` prefix and are not case-sensitive: `var("verbose")` reads `RLX_VERBOSE`. Overrides hold for the
whole process; `RuntimeOverrides.install` scopes them. Typed settings are in `rlx.knobs`, which reads through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rlx.locks import fork_safe_lock

PREFIX = "RLX_"
_FALSE = frozenset({"", "0", "false", "off", "no"})

_lock = fork_safe_lock()
_overrides: dict[str, str] = {}
# Names as the mapping of the environment has them.
_encoded: dict[str, object] = {}

_T = TypeVar("_T", bool, int, float, str)
Pairs = Mapping[str, str] | Iterable[tuple[str, str]]


def normalize(key: str) -> str:
    """
    >>> normalize("verbose"), normalize("RLX_VERBOSE")
    ('RLX_VERBOSE', 'RLX_VERBOSE')
    """
    upper = key.upper()
    return upper if upper.startswith(PREFIX) else PREFIX + upper


def set(key: str, value: str) -> None:
    """Override `key` for the whole process, whatever the environment says."""
    with _lock:
        _overrides[normalize(key)] = str(value)


def unset(key: str) -> None:
    """Drop the override of `key`; the environment counts again."""
    with _lock:
        _overrides.pop(normalize(key), None)


def clear_overrides() -> None:
    with _lock:
        _overrides.clear()


def var(key: str) -> str | None:
    """The override of `key`, else its value in the environment, else None."""
    return named(normalize(key))


def named(name: str) -> str | None:
    """`var` of a name in full.

    Runs of programs ask each time, and `os.environ.get` raises and catches two exceptions for a name that is not set.
    So the mapping behind it is asked first, where there is one.
    """
    # One dict lookup is atomic; the lock is for writers that must not see each other half done.
    value = _overrides.get(name)
    if value is not None:
        return value
    environment = os.environ
    mapping = getattr(environment, "_data", None)
    if mapping is None:
        return environment.get(name)
    encoded = _encoded.get(name)
    if encoded is None:
        encoded = _encoded[name] = environment.encodekey(name)
    return environment.get(name) if encoded in mapping else None


def unknown_variables(known: Iterable[str]) -> list[str]:
    """The names in the environment that begin as ours do and are not among `known`."""
    names = frozenset(known)
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in names)


def var_os(key: str) -> bytes | None:
    """`var` in the bytes of the operating system, for paths that are not text."""
    value = var(key)
    return None if value is None else os.fsencode(value)


def is_unset(key: str) -> bool:
    """True when neither code nor environment gives `key` a value."""
    return var(key) is None


def is_true(text: str) -> bool:
    """
    >>> [is_true(t) for t in ("1", "yes", "anything", "", "0", "Off")]
    [True, True, True, False, False, False]
    """
    return text.strip().lower() not in _FALSE


def flag(key: str) -> bool:
    """True for any value but empty, 0, false, off and no."""
    return is_true(var(key) or "")


def parse_or(key: str, default: _T) -> _T:
    """The value of `key` as the type of `default`; `default` when it is unset or cannot be read as one."""
    text = var(key)
    if text is None:
        return default
    if isinstance(default, bool):
        return is_true(text)
    try:
        return type(default)(text)
    except ValueError:
        return default


class RlxEnv:
    """Several overrides at once: `RlxEnv().set("verbose", "1").flag("dispatch_report").apply()`."""

    def __init__(self) -> None:
        self.pairs: dict[str, str] = {}

    def set(self, key: str, value: str) -> RlxEnv:
        self.pairs[normalize(key)] = str(value)
        return self

    def flag(self, key: str, on: bool = True) -> RlxEnv:
        return self.set(key, "1" if on else "0")

    def apply(self) -> None:
        """Make the overrides hold, all at one moment."""
        with _lock:
            _overrides.update(self.pairs)


class RuntimeOverrides:
    """Overrides that end with a `with` block."""

    @staticmethod
    @contextmanager
    def install(pairs: Pairs) -> Iterator[None]:
        """Override the given keys inside the block; afterwards each has the override it had before, or none."""
        wanted = {normalize(k): str(v) for k, v in dict(pairs).items()}
        with _lock:
            before = {key: _overrides.get(key) for key in wanted}
            _overrides.update(wanted)
        try:
            yield
        finally:
            with _lock:
                for key, value in before.items():
                    if value is None:
                        _overrides.pop(key, None)
                    else:
                        _overrides[key] = value
