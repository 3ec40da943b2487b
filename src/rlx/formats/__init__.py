"""Files in and out: GGUF, safetensors and ONNX.

A file from outside is hostile until proven sane. Readers check every count, length and offset against the bytes that
are there before they use it, raise `FormatError` with the place, and hand out views of the mapped file, not copies.
"""
