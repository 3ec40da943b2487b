"""Cutting generated text at stop strings, also when they arrive in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Lets text through until a stop string appears; what could be the beginning of one is held back.

    >>> scanner = StopScanner(["END"])
    >>> [scanner.push(piece) for piece in ("one E", "N", "x E", "ND two")]
    ['one ', '', 'ENx ', '']
    >>> scanner.stopped
    True
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may be shown now."""
        if self.stopped:
            return ""
        self._held += text
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """How much of the end of the held text is a beginning of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if stop.startswith(self._held[-n:])), 0)
