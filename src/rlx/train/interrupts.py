"""Ctrl-C between steps: a step overwrites its state, so that what is interrupted inside one could not be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["HeldInterrupt"]


class HeldInterrupt:
    """Holds Ctrl-C back while `is_holding`, until `release` raises it; a second one is not held.

    Outside the main thread, and where a program has its own answer to Ctrl-C, it does nothing.
    """

    def __init__(self) -> None:
        self.is_holding = False
        self._is_asked = False
        self._is_installed = False

    def __enter__(self) -> HeldInterrupt:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._asked)
            self._is_installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if not self.is_holding or self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True

    def release(self) -> None:
        """Nothing can be broken any more: raise what came meanwhile."""
        self.is_holding = False
        if self._is_asked:
            self._is_asked = False
            raise KeyboardInterrupt
