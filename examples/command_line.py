"""How the training examples answer on a command line: an error is one line, and Ctrl-C is no error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rlx.errors import RlxError


def run(main: Callable[[], object]) -> None:
    """Run an example; exit codes are 1 for what is wrong, 130 for Ctrl-C, as those of `rlx`."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (RlxError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
