"""Programs of one kernel each: convolutions of ResNet-50 and MobileNetV2 with their gradients, and Fourier transforms.

Their settings are part of their names, as a program sees nothing but its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = Mapping[str, int]
Value = Any


class KernelWords(Protocol):
    """What engines of kernels must be able to say. Gradients with respect to weights have an axis of size 1 in front,
    as all results have one of examples."""

    def conv(self, x: Value, w: Value, setting: ConvSetting) -> Value: ...
    def conv_input_gradient(self, dy: Value, w: Value, setting: ConvSetting) -> Value: ...
    def conv_weight_gradient(self, x: Value, dy: Value, setting: ConvSetting) -> Value: ...
    def fft(self, x: Value, axes: int) -> Value:
        """Of the last axes, complex or (`rfft` along the last one) real."""
        ...


class ConvSetting(NamedTuple):
    """A square convolution [batch, channels, size, size] -> [batch, outputs, ..]."""

    batch: int
    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int
    groups: int

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def positions(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        kind = "depthwise" if self.groups == self.channels else "conv"
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{kind} {self.channels}x{self.size}x{self.size} -> {self.outputs}, {self.kernel}x{self.kernel}{step}"

    def operands(self, part: str, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        scale = (self.channels // self.groups * self.kernel**2) ** -0.5
        x = rng.standard_normal((self.batch, self.channels, self.size, self.size), np.float32)
        dy = rng.standard_normal((self.batch, self.outputs, self.positions, self.positions), np.float32)
        shape = (self.outputs, self.channels // self.groups, self.kernel, self.kernel)
        w = rng.standard_normal(shape, np.float32) * np.float32(scale)
        if part == "forward":
            return {"x": x}, {"w": w}
        return ({"dy": dy}, {"w": w}) if part == "dx" else ({"x": x, "dy": dy}, {})

    @property
    def work(self) -> tuple[float, float]:
        taps = self.channels // self.groups * self.kernel**2
        results = self.batch * self.outputs * self.positions**2
        moved = self.batch * self.channels * self.size**2 + self.outputs * taps + results
        return 2.0 * results * taps, 4.0 * moved


def _conv(*numbers: int) -> ConvSetting:
    return ConvSetting(1, *numbers)


# channels, size, outputs, kernel, stride, groups
CONVOLUTIONS = (
    *(_conv(3, 224, 64, 7, 2, 1), _conv(64, 56, 64, 1, 1, 1), _conv(64, 56, 64, 3, 1, 1), _conv(64, 56, 256, 1, 1, 1)),
    *(_conv(128, 56, 128, 3, 2, 1), _conv(128, 28, 128, 3, 1, 1), _conv(512, 28, 128, 1, 1, 1)),
    *(_conv(256, 28, 256, 3, 2, 1), _conv(256, 14, 256, 3, 1, 1), _conv(1024, 14, 256, 1, 1, 1)),
    *(_conv(512, 14, 512, 3, 2, 1), _conv(512, 7, 512, 3, 1, 1), _conv(512, 7, 2048, 1, 1, 1)),
    *(_conv(256, 56, 512, 1, 2, 1), _conv(3, 224, 32, 3, 2, 1), _conv(32, 112, 32, 3, 1, 32)),
    *(_conv(96, 112, 96, 3, 2, 96), _conv(144, 56, 144, 3, 1, 144), _conv(192, 28, 192, 3, 1, 192)),
    *(_conv(384, 14, 384, 3, 1, 384), _conv(576, 14, 576, 3, 2, 576), _conv(960, 7, 960, 3, 1, 960)),
    *(_conv(32, 112, 16, 1, 1, 1), _conv(24, 56, 144, 1, 1, 1), _conv(64, 14, 384, 1, 1, 1)),
    _conv(320, 7, 1280, 1, 1, 1),
)


class FftSetting(NamedTuple):
    """`lines` transforms of so many points along one axis, or of `points`² along two."""

    lines: int
    points: int
    axes: int = 1
    is_real: bool = False

    @property
    def name(self) -> str:
        lines = f"{self.lines} of " if self.lines > 1 else ""
        points = str(self.points) if self.axes == 1 else f"{self.points}x{self.points}"
        return f"{'rfft' if self.is_real else 'fft'} {lines}{points}"

    @property
    def group(self) -> str:
        if self.is_real:
            return "real"
        return "two axes" if self.axes > 1 else "lines" if self.lines > 1 else "one line"

    def operands(self, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        dims = (self.lines, *(self.points,) * self.axes)
        x = rng.standard_normal(dims, np.float32)
        return {"x": x if self.is_real else (x + 1j * rng.standard_normal(dims, np.float32)).astype(np.complex64)}, {}

    @property
    def work(self) -> tuple[float, float]:
        """The 5·n·log2(n) that is usual to count, half of it for real signals."""
        count = float(self.lines * self.points**self.axes)
        share = 0.5 if self.is_real else 1.0
        return share * 5 * count * self.axes * math.log2(self.points), share * 16 * count


TRANSFORMS = (
    *(FftSetting(1, n) for n in (256, 1024, 4096, 16384, 65536, 1 << 20, 768, 3072, 12288, 3 << 16)),
    *(FftSetting(1, n) for n in (97, 1009, 10007)),
    *(FftSetting(*dims) for dims in ((1000, 64), (1000, 256), (200, 1024), (50, 4096), (100, 1000))),
    *(FftSetting(1, n, 2) for n in (64, 256, 512, 1024)),
    FftSetting(8, 128, 2),
    *(FftSetting(*dims, is_real=True) for dims in ((1, 1024), (1, 16384), (1, 1 << 20), (200, 1024), (1000, 256))),
)

# What is built from the words and operands, what is made for it, and its work.
Parts = tuple[
    Callable[[Any, Mapping[str, Value]], Value],
    Callable[[Sizes, np.random.Generator], tuple[dict[str, Array], dict[str, Array]]],
    Callable[[Sizes], tuple[float, float]],
]


def kernel_programs() -> dict[str, Parts]:
    """All programs of this file by name."""
    found: dict[str, Parts] = {}
    for setting in CONVOLUTIONS:
        for part in ("forward", "dx", "dw"):
            found[f"{setting.name} {part}"] = _conv_parts(setting, part)
    for transform in TRANSFORMS:
        found[transform.name] = _fft_parts(transform)
    return found


def _conv_parts(setting: ConvSetting, part: str) -> Parts:
    def build(m: KernelWords, a: Mapping[str, Value]) -> Value:
        if part == "forward":
            return m.conv(a["x"], a["w"], setting)
        if part == "dx":
            return m.conv_input_gradient(a["dy"], a["w"], setting)
        return m.conv_weight_gradient(a["x"], a["dy"], setting)

    return build, lambda sizes, rng: setting.operands(part, rng), lambda sizes: setting.work


def _fft_parts(setting: FftSetting) -> Parts:
    return (
        lambda m, a: m.fft(a["x"], setting.axes),
        lambda sizes, rng: setting.operands(rng),
        lambda sizes: setting.work,
    )


class ExactWords:
    """What is right, in double precision."""

    def conv(self, x: Array, w: Array, setting: ConvSetting) -> Array:
        return np.asarray(self._op("Conv", setting).eval(x, w))

    def conv_input_gradient(self, dy: Array, w: Array, setting: ConvSetting) -> Array:
        return np.asarray(self._op("Conv2dBackwardInput", setting).eval(dy, w))

    def conv_weight_gradient(self, x: Array, dy: Array, setting: ConvSetting) -> Array:
        return np.asarray(self._op("Conv2dBackwardWeight", setting).eval(x, dy))[None]

    def fft(self, x: Array, axes: int) -> Array:
        chosen = tuple(range(-axes, 0))
        return np.asarray(np.fft.fftn(x, axes=chosen) if x.dtype.kind == "c" else np.fft.rfftn(x, axes=chosen))

    def _op(self, name: str, s: ConvSetting) -> Any:
        return conv_op(name, s)


def conv_op(name: str, s: ConvSetting) -> Any:
    """The op of rlx for a setting."""
    from rlx import ops

    pair = [(n, n) for n in (s.kernel, s.stride, s.padding, 1)]
    dims = {"x_shape": (s.batch, s.channels, s.size, s.size)} if name == "Conv2dBackwardInput" else {}
    return getattr(ops, name)(*pair, s.groups, **dims)
