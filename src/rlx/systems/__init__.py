"""What differs between operating systems for code that a process makes for itself: memory for it, how its threads
sleep, where the system's functions are, and what the CPU has. One small file per system.

    this_system().new_pages(4096)         # an address; `fill_pages` puts code there and lets it run
    this_system().cpu_flags()             # {"avx2", "fma", ...}, or None where the system does not say

Linux runs in every test. macOS and Windows have been tried against stand-ins for their libraries, not on machines.
"""

from __future__ import annotations

import sys
from functools import cache

from rlx.systems.api import System


@cache
def this_system() -> System:
    """The system of this process. What is neither macOS nor Windows is taken for a POSIX system like Linux."""
    if sys.platform == "darwin":
        from rlx.systems.macos import MacOS

        return MacOS()
    if sys.platform == "win32":
        from rlx.systems.windows import Windows

        return Windows()
    from rlx.systems.linux import Linux

    return Linux()
