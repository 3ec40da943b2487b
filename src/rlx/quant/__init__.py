"""Quantised formats: schemes, and how the blocks of GGUF and NVFP4 files are laid out, decoded and encoded."""

from rlx.quant.schemes import QuantMap as QuantMap
from rlx.quant.schemes import QuantScheme as QuantScheme
