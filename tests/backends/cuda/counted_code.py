"""`CountedCode`: code of tensor-core forms that is only counted, where a test looks at launches."""

from __future__ import annotations


class CountedCode:
    """Loads nothing, and notes the entries and keys of what it was asked for."""

    def __init__(self):
        self.entries, self.keys = [], set()

    def __call__(self, entry, what, make):
        self.entries.append(entry)
        self.keys.add(what)
        return self

    def function(self, gpu):
        return self

    def allow_shared(self, size):
        pass
