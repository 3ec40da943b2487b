"""Names that other libraries have and rlx has not, and what to write instead: the error about one says it."""

from __future__ import annotations

import sys
from typing import NoReturn

_TORCH, _JAX, _ORT = "docs/coming_from_torch.md", "docs/coming_from_jax.md", "docs/coming_from_onnx_runtime.md"
_LLAMA, _TINY = "docs/coming_from_llama_cpp.md", "docs/coming_from_tinygrad.md"
_NO_GRAD = "nothing: derivatives are computed where rlx.grad asks for them, and nowhere else"
_SEED = "keys: rlx.random.normal(rlx.random.key(0), shape)"
_LOAD = 'rlx.load("model.gguf")'
_TO_DEVICE = 'rlx.device_put(x, "cuda"), or rlx.jit(f, device="cuda")'

# Of modules, and of the values in `_OWNERS`: the name -> what to write, and the page that says more.
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
        "SiLU": ("rlx.nn.silu", _TORCH),
        "Tanh": ("rlx.nn.tanh", _TORCH),
        "Sigmoid": ("rlx.nn.sigmoid", _TORCH),
        "Softmax": ("rlx.nn.softmax", _TORCH),
        "Flatten": ("rlx.nn.flatten", _TORCH),
        "BatchNorm2d": ("rlx.nn.norm_layer, or rlx.nn.batch_norm", _TORCH),
        "GroupNorm": ("rlx.nn.group_norm", _TORCH),
        "RMSNorm": ("rlx.nn.norm_layer, or rlx.nn.rms_norm", _TORCH),
        "MaxPool2d": ("rlx.nn.max_pool(x, window)", _TORCH),
        "AvgPool2d": ("rlx.nn.avg_pool(x, window)", _TORCH),
        "MSELoss": ("rlx.nn.mse_loss", _TORCH),
        "CrossEntropyLoss": ("rlx.nn.cross_entropy", _TORCH),
        "BCEWithLogitsLoss": ("rlx.nn.binary_cross_entropy_with_logits", _TORCH),
        "conv1d": ("rlx.nn.conv", _TORCH),
        "conv2d": ("rlx.nn.conv", _TORCH),
        "max_pool2d": ("rlx.nn.max_pool(x, window)", _TORCH),
        "avg_pool2d": ("rlx.nn.avg_pool(x, window)", _TORCH),
        "interpolate": ("rlx.image.resize", _TORCH),
        "pad": ("rlx.numpy.pad", _TORCH),
        "logsigmoid": ("rlx.nn.log_sigmoid", _TORCH),
        "hardswish": ("rlx.nn.hard_swish", _TORCH),
        "hardsigmoid": ("rlx.nn.hard_sigmoid", _TORCH),
        "hardtanh": ("rlx.nn.hard_tanh", _TORCH),
        "softsign": ("rlx.nn.soft_sign", _TORCH),
        "functional": ("rlx.nn itself", _TORCH),
    },
    "rlx.optim": {
        "Adam": ("rlx.optim.adam(rate)", _TORCH),
        "AdamW": ("rlx.optim.adamw(rate)", _TORCH),
        "SGD": ("rlx.optim.sgd(rate)", _TORCH),
        "cosine_decay_schedule": ("rlx.optim.cosine(start, steps, end)", _JAX),
        "warmup_cosine_decay_schedule": ("rlx.optim.warmup_cosine(peak, warmup_steps, decay_steps)", _JAX),
        "linear_schedule": ("rlx.optim.linear(start, end, steps)", _JAX),
        "constant_schedule": ("rlx.optim.constant(value)", _JAX),
        "exponential_decay": ("rlx.optim.exponential(start, steps, rate)", _JAX),
        "polynomial_schedule": ("rlx.optim.polynomial(start, end, power, steps)", _JAX),
        "piecewise_constant_schedule": ("rlx.optim.piecewise_constant(start, scales)", _JAX),
        "cosine_onecycle_schedule": ("rlx.optim.one_cycle(steps, peak)", _JAX),
        "join_schedules": ("rlx.optim.join(schedules, boundaries)", _JAX),
        "multi_transform": ("rlx.optim.partition(transforms, labels)", _JAX),
        "MultiSteps": ("rlx.optim.accumulate(optimizer, steps)", _JAX),
        "softmax_cross_entropy": ("rlx.nn.softmax_cross_entropy", _JAX),
        "softmax_cross_entropy_with_integer_labels": ("rlx.nn.softmax_cross_entropy_with_integer_labels", _JAX),
        "sigmoid_binary_cross_entropy": ("rlx.nn.binary_cross_entropy_with_logits", _JAX),
        "huber_loss": ("rlx.nn.huber_loss", _JAX),
        "ctc_loss": ("rlx.nn.ctc_loss", _JAX),
        "l2_loss": ("rlx.nn.mse_loss", _JAX),
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
    "LanguageModel": {
        "create_completion": ("lm.generate(text, max_tokens)", _LLAMA),
        "create_chat_completion": ("lm.chat(messages)", _LLAMA),
        "create_embedding": ("lm.embed(texts)", _LLAMA),
        "tokenize": ("lm.tokenizer.encode(text)", _LLAMA),
        "detokenize": ("lm.tokenizer.decode(ids)", _LLAMA),
        "to": ('rlx.load(path, device="cuda")', _TORCH),
        "eval": ("nothing: a loaded model is never in training", _TORCH),
    },
    "TextEncoder": {
        "encode": ("encoder.embed(texts)", "docs/tutorial/10-embeddings.md"),
        "similarity": ("a @ b.T: vectors have length 1", "docs/tutorial/10-embeddings.md"),
        "to": ('rlx.load_encoder(path, device="cuda")', _TORCH),
    },
    "OnnxModel": {
        "get_inputs": ("model.inputs, a dict of names and types", _ORT),
        "get_outputs": ("model.outputs, a list of names", _ORT),
        "get_providers": ("rlx.devices or `rlx devices`", _ORT),
    },
}
# What is no module, in words.
_OWNERS = {
    "Array": "an rlx array",
    "LanguageModel": "a language model",
    "TextEncoder": "a text encoder",
    "OnnxModel": "an ONNX model",
}


def no_attribute(owner: str, name: str) -> NoReturn:
    """The AttributeError about a name that a module, or a value such as an "Array", does not have."""
    what = _OWNERS.get(owner) or f"module {owner!r}"
    found = INSTEAD.get(owner, {}).get(name)
    hint = "" if found is None else f"; write {found[0]} ({found[1]})"
    # With the module itself, Python names what is spelled alike when it shows the error.
    module = None if found else sys.modules.get(owner)
    raise AttributeError(f"{what} has no attribute {name!r}{hint}", name=name, obj=module)
