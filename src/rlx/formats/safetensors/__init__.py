"""safetensors: named arrays in a file, with a JSON header and nothing that runs."""

from rlx.formats.safetensors.reader import Safetensors, SafetensorsTensor, open_safetensors
from rlx.formats.safetensors.writer import write_safetensors

__all__ = ["Safetensors", "SafetensorsTensor", "open_safetensors", "write_safetensors"]
