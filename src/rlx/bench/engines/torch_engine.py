"""PyTorch, eager and compiled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rlx.bench.kernel_programs import ConvSetting
from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

torch: Any = importlib.import_module("torch")
F: Any = importlib.import_module("torch.nn.functional")


class TorchWords:
    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return F.linear(x, weight.t(), bias)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def gelu(self, x: Any) -> Any:
        return F.gelu(x)

    def silu(self, x: Any) -> Any:
        return F.silu(x)

    def softmax(self, x: Any) -> Any:
        return F.softmax(x, -1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return F.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        return F.rms_norm(x, gamma.shape, gamma, 1e-6)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return F.cross_entropy(logits, labels, reduction="none")

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        shares = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shares)

    def conv(self, x: Any, w: Any, setting: ConvSetting) -> Any:
        return F.conv2d(x, w, stride=setting.stride, padding=setting.padding, groups=setting.groups)

    def conv_input_gradient(self, dy: Any, w: Any, setting: ConvSetting) -> Any:
        x = torch.empty(setting.batch, setting.channels, setting.size, setting.size)
        return self._gradient(dy, x, w, setting, 0)

    def conv_weight_gradient(self, x: Any, dy: Any, setting: ConvSetting) -> Any:
        w = torch.empty(setting.outputs, setting.channels // setting.groups, setting.kernel, setting.kernel)
        return self._gradient(dy, x, w, setting, 1)[None]

    def _gradient(self, dy: Any, x: Any, w: Any, s: ConvSetting, number: int) -> Any:
        pairs = ([n, n] for n in (s.stride, s.padding, 1))
        wanted = [n == number for n in range(3)]
        return torch.ops.aten.convolution_backward(dy, x, w, None, *pairs, False, [0, 0], s.groups, wanted)[number]

    def fft(self, x: Any, axes: int) -> Any:
        chosen = tuple(range(-axes, 0))
        return torch.fft.fftn(x, dim=chosen) if x.is_complex() else torch.fft.rfftn(x, dim=chosen)

    def take(self, table: Any, ids: Any) -> Any:
        return F.embedding(ids, table)

    def first_rows(self, table: Any, like: Any) -> Any:
        return table[: like.shape[1]]

    def split_heads(self, x: Any, heads: int) -> Any:
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def join_heads(self, x: Any) -> Any:
        return x.transpose(1, 2).flatten(2)


class TorchEngine:
    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    @property
    def version(self) -> str:
        return str(torch.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        inputs, weights = operands_of(program, sizes)
        operands = {n: _tensor(x) for n, x in {**inputs, **weights}.items()}
        call = self.function(lambda values: PROGRAMS[program].build(TorchWords(), values))
        return lambda: call(operands)

    def function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def as_numpy(self, result: Any) -> Array:
        array: Array = result.numpy()
        return array


class CompiledTorchEngine(TorchEngine):
    def function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(call, dynamic=False)
        return compiled


def _tensor(array: Array) -> Any:
    tensor = torch.from_numpy(array)
    return tensor.long() if array.dtype.kind == "i" else tensor
