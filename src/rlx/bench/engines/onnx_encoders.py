"""Sentence encoders on ONNX Runtime and OpenVINO: one ONNX model, made on the spot from the weights of a directory.

Both get what rlx gives itself: the fast form of the same tokenizer, and batches of texts of similar length.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.bench.engines import MODEL_VARIABLE
from rlx.bench.engines.onnx_bert import bert_onnx
from rlx.bench.engines.sentence_encoders import BATCH
from rlx.bench.programs import Array, Sizes
from rlx.bench.sentences import sentences
from rlx.formats.safetensors import open_safetensors
from rlx.models.config_hf_encoders import encoder_config_from_directory

# Vectors of a batch, from ids and mask.
Forward = Callable[[Array, Array], Array]


class _OnnxModelEncoder:
    """Tokenisation and batching around `forward`."""

    def __init__(self) -> None:
        tokenizers: Any = importlib.import_module("tokenizers")
        path = Path(os.environ[MODEL_VARIABLE])
        config = encoder_config_from_directory(path)
        tensors = open_safetensors(path).tensors
        weights = {name.removeprefix("bert."): tensor.array() for name, tensor in tensors.items()}
        self.content = bert_onnx(config, weights)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(config.context)
        self._width, self._pad = config.hidden, config.pad_id
        self.forward: Forward

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        texts = list(sentences(sizes["texts"]))
        return lambda: self._embed(texts)

    def _embed(self, texts: Sequence[str]) -> Array:
        found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(found)), key=lambda i: -len(found[i]))
        vectors = np.empty((len(found), self._width), np.float32)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            ids = np.full((len(chosen), len(found[chosen[0]])), self._pad, np.int64)
            mask = np.zeros_like(ids)
            for row, i in enumerate(chosen):
                ids[row, : len(found[i])] = found[i]
                mask[row, : len(found[i])] = 1
            vectors[chosen] = self.forward(ids, mask)
        return vectors

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result)


class OnnxEncoder(_OnnxModelEncoder):
    def __init__(self, threads: int) -> None:
        from rlx.bench.engines.onnx_engine import ort, session_options

        super().__init__()
        self.version = str(ort.__version__)
        session = ort.InferenceSession(self.content, session_options(threads), providers=["CPUExecutionProvider"])
        self.forward = lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


class OpenVinoEncoder(_OnnxModelEncoder):
    def __init__(self, threads: int) -> None:
        from rlx.bench.engines.openvino_engine import compile_options, ov, version

        super().__init__()
        self.version = version()
        core = ov.Core()
        model = core.read_model(io.BytesIO(self.content))
        request = core.compile_model(model, "CPU", compile_options(threads)).create_infer_request()
        self.forward = lambda ids, mask: request.infer([ids, mask], share_inputs=True, share_outputs=True)[0]
