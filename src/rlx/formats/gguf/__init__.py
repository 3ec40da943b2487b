"""GGUF: the file format of quantised language models."""

from rlx.formats.gguf.metadata import GgufMetadata, MetadataValue, TypedValue, ValueType
from rlx.formats.gguf.quantizer import can_write, quantize, quantize_file
from rlx.formats.gguf.reader import GgufFile, GgufTensor, open_gguf
from rlx.formats.gguf.tensor_types import TYPES, TensorType, tensor_type
from rlx.formats.gguf.writer import PackedTensor, write_gguf

__all__ = [
    "TYPES",
    "GgufFile",
    "GgufMetadata",
    "GgufTensor",
    "MetadataValue",
    "PackedTensor",
    "TensorType",
    "TypedValue",
    "ValueType",
    "can_write",
    "open_gguf",
    "quantize",
    "quantize_file",
    "tensor_type",
    "write_gguf",
]
