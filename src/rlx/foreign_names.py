"""Names that other libraries have and rlx has not, and what to write instead: the error about one says it."""

from __future__ import annotations

from typing import NoReturn

_TORCH, _JAX, _ORT = "docs/coming_from_torch.md", "docs/coming_from_jax.md", "docs/coming_from_onnx_runtime.md"
_LLAMA, _TINY = "docs/coming_from_llama_cpp.md", "docs/coming_from_tinygrad.md"
_NO_GRAD = "nothing: derivatives are computed where rlx.grad asks for them, and nowhere else"
_SEED = "keys: rlx.random.normal(rlx.random.key(0), shape)"
_LOAD = 'rlx.load("model.gguf")'
_TO_DEVICE = 'rlx.device_put(x, "cuda"), or rlx.jit(f, device="cuda")'

# Of modules, and of "Array": the name -> what to write, and the page that says more.
INSTEAD: dict[str, dict[str, tuple[str, str]]] = {
    "rlx": {
        "tensor": ("rlx.numpy.asarray(values)", _TORCH),
        "array": ("rlx.numpy.array(values)", _JAX),
        "from_numpy": ("the NumPy array itself: every function takes it", _TORCH),
        "no_grad": (_NO_GRAD, _TORCH),
        "inference_mode": (_NO_GRAD, _TORCH),
        "manual_seed": (_SEED, _TORCH),
        "randn": ("rlx.random.normal(rlx.random.key(0), shape)", _TORCH),
        "rand": ("rlx.random.uniform(rlx.random.key(0), shape)", _TORCH),
        "save": ("rlx.save_graph, compiled.save(path), or rlx.formats.safetensors.write_safetensors", _TORCH),
        "pmap": ("rlx.shard_map", _JAX),
        "config": ("rlx.knobs", _JAX),
        "InferenceSession": ("rlx.onnx.load(path)", _ORT),
        "Llama": (_LOAD, _LLAMA),
        "AutoModelForCausalLM": ('rlx.load("org/name"), or a directory', _TORCH),
        "TinyJit": ("rlx.jit", _TINY),
    },
    "rlx.numpy": {
        "tensor": ("rlx.numpy.asarray(values)", _TORCH),
        "Tensor": ("rlx.numpy.asarray(values)", _TORCH),
        "from_numpy": ("the NumPy array itself: every function takes it", _TORCH),
        "cat": ("rlx.numpy.concatenate(arrays, axis)", _TORCH),
        "unsqueeze": ("rlx.numpy.expand_dims(x, axis)", _TORCH),
        "permute": ("rlx.numpy.transpose(x, axes)", _TORCH),
        "mm": ("rlx.numpy.matmul(a, b)", _TORCH),
        "bmm": ("rlx.numpy.matmul(a, b)", _TORCH),
        "clamp": ("rlx.numpy.clip(x, low, high)", _TORCH),
        "randn": ("rlx.random.normal(rlx.random.key(0), shape)", _TORCH),
        "random": ("rlx.random, whose functions take a key", _JAX),
    },
    "rlx.random": {
        "manual_seed": (_SEED, _TORCH),
        "seed": (_SEED, _TORCH),
        "randn": ("rlx.random.normal(rlx.random.key(0), shape)", _TORCH),
        "rand": ("rlx.random.uniform(rlx.random.key(0), shape)", _TORCH),
    },
    "rlx.onnx": {
        "InferenceSession": ("rlx.onnx.load(path)", _ORT),
        "OnnxRunner": ("rlx.onnx.load(path)", _TINY),
    },
    "rlx.nn": {
        "Module": (
            "functions of a tree of weights; layers are pairs of functions, such as rlx.nn.dense(8)",
            _TORCH,
        ),
        "Linear": ("rlx.nn.dense(features)", _TORCH),
        "Dense": ("rlx.nn.dense(features)", _JAX),
        "Conv1d": ("rlx.nn.conv_layer", _TORCH),
        "Conv2d": ("rlx.nn.conv_layer", _TORCH),
        "Sequential": ("rlx.nn.chain(...)", _TORCH),
        "Embedding": ("rlx.nn.embedding_layer", _TORCH),
        "LayerNorm": ("rlx.nn.norm_layer", _TORCH),
        "Dropout": ("rlx.nn.dropout_layer", _TORCH),
        "LSTM": ("rlx.nn.lstm(size)", _TORCH),
        "GRU": ("rlx.nn.gru(size)", _TORCH),
        "MultiheadAttention": ("rlx.nn.self_attention(heads)", _TORCH),
        "ReLU": ("rlx.nn.relu", _TORCH),
        "GELU": ("rlx.nn.gelu", _TORCH),
        "MSELoss": ("rlx.nn.mse_loss", _TORCH),
        "CrossEntropyLoss": ("rlx.nn.cross_entropy", _TORCH),
        "functional": ("rlx.nn itself", _TORCH),
    },
    "rlx.optim": {
        "Adam": ("rlx.optim.adam(rate)", _TORCH),
        "AdamW": ("rlx.optim.adamw(rate)", _TORCH),
        "SGD": ("rlx.optim.sgd(rate)", _TORCH),
        "lr_scheduler": ("a schedule in place of the rate, such as rlx.optim.warmup_cosine", _TORCH),
    },
    "Array": {
        "to": (f"{_TO_DEVICE}; for a dtype x.astype(dtype)", _TORCH),
        "cuda": (_TO_DEVICE, _TORCH),
        "cpu": ("np.asarray(x)", _TORCH),
        "numpy": ("np.asarray(x)", _TORCH),
        "detach": ("rlx.stop_gradient(x); outside of a function that is differentiated nothing is needed", _TORCH),
        "backward": ("value, grads = rlx.value_and_grad(loss)(params)", _TORCH),
        "grad": ("rlx.grad(loss)(params)", _TORCH),
        "requires_grad": ("rlx.grad(loss)(params), which says what is differentiated", _TORCH),
        "requires_grad_": ("rlx.grad(loss)(params), which says what is differentiated", _TORCH),
        "permute": ("x.transpose(axes)", _TORCH),
        "unsqueeze": ("rlx.numpy.expand_dims(x, axis)", _TORCH),
        "float": ('x.astype("f32")', _TORCH),
        "half": ('x.astype("f16")', _TORCH),
        "long": ('x.astype("i64")', _TORCH),
        "realize": ("nothing: results are there when a call returns", _TINY),
    },
}


def no_attribute(owner: str, name: str) -> NoReturn:
    """The AttributeError about a name that a module, or an "Array", does not have."""
    what = "an rlx array" if owner == "Array" else f"module {owner!r}"
    found = INSTEAD.get(owner, {}).get(name)
    hint = "" if found is None else f"; write {found[0]} ({found[1]})"
    raise AttributeError(f"{what} has no attribute {name!r}{hint}", name=name)
