"""GGUF files under the name of the Rust RLX: what `rlx.formats.gguf` has."""

from rlx.formats.gguf import *  # noqa: F403
from rlx.formats.gguf import __all__ as __all__
