"""TinyConv-MNIST and its weight file, RLXM: the network that the Rust RLX runs on microcontrollers and FPGAs.

    28×28×1 → conv 3×3, 8 channels, relu → max pool 2 → conv 3×3, 16 channels, relu → max pool 2 → dense 10 → argmax

    write_rlxm(program, "digits.rlxm", accuracy=0.97)
    program = read_rlxm("digits.rlxm")

The file holds weights of 8, 4 or 2 bits, i32 biases, and f32 multipliers, which the Rust RLX applies as floats; a
program has them as integers, and its codes differ from those by one at most. Scales are not in the file but for the
input's: a program that was read knows ratios of scales, and counts its results in steps.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import file_bytes, replace_file
from rlx.ir.dtype import DType
from rlx.quantized.packing import packed_size, unpack
from rlx.quantized.plain_steps import Argmax, MaxPool
from rlx.quantized.products import Conv2d, Dense
from rlx.quantized.program import Program
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, Multipliers, QuantizedError, Value, Weights, limits

INPUT_SCALE = 1 / 127
_MAGIC, _VERSION, _ARCHITECTURE = b"RLXM", 1, 1
_HEAD, _DESCRIPTOR = struct.Struct("<4sHHfHH"), struct.Struct("<HBBIII")
_ALIGN = 4
_WEIGHTS = {"conv1": (8, 3, 3, 1), "conv2": (16, 3, 3, 8), "fc": (10, 400)}
_NAMES = ("conv1_w", "conv1_b", "conv2_w", "conv2_b", "fc_w", "fc_b", "conv1_mult", "conv2_mult", "fc_mult", "image")
# In the order in which they lie: floats, then sums, then bytes.
_ORDER = (6, 7, 8, 1, 3, 5, 0, 2, 4, 9)
_PIXELS = 784
# Number of the type -> bits of one element; 8, 4 and 2 are weights.
_BITS = {0: 8, 1: 32, 2: 32, 3: 4, 4: 2}
_TYPE_OF_BITS = {8: 0, 4: 3, 2: 4}


class TinyConv(NamedTuple):
    """What a file holds: the program, what it scored in floats, and one test image as codes."""

    program: Program
    accuracy: float
    image: Array


def tinyconv(
    weights: dict[str, Weights], biases: dict[str, Array], scales: dict[str, float], name: str = "tinyconv"
) -> Program:
    """The program of weights and biases (conv1, conv2, fc), and of scales (input, conv1, conv2, fc)."""
    factors = {}
    before = np.float32(scales["input"])
    for layer in _WEIGHTS:
        factors[layer] = before * weights[layer].scales / np.float32(scales[layer])
        before = np.float32(scales[layer])
    return _program(weights, biases, factors, scales, name)


def _program(
    weights: dict[str, Weights],
    biases: dict[str, Array],
    factors: dict[str, Array],
    scales: dict[str, float],
    name: str,
) -> Program:
    scale = {k: float(np.float32(v)) for k, v in scales.items()}

    def fields(layer: str, dims: tuple[int, ...], low: int) -> dict[str, Any]:
        out = Value(layer, dims, scale[layer])
        tables = {"bias": biases[layer].astype(np.int32), "multipliers": Multipliers.of(factors[layer])}
        return {"out": out, "weights": weights[layer], "low": low, "high": limits(DType.I8)[1], **tables}

    steps: list[Step] = [Conv2d((0,), **fields("conv1", (26, 26, 8), 0))]
    steps.append(MaxPool((1,), Value("pool1", (13, 13, 8), scale["conv1"]), (2, 2), (2, 2)))
    steps.append(Conv2d((2,), **fields("conv2", (11, 11, 16), 0)))
    steps.append(MaxPool((3,), Value("pool2", (5, 5, 16), scale["conv2"]), (2, 2), (2, 2)))
    steps.append(Dense((4,), **fields("fc", (10,), -128)))
    steps.append(Argmax((5,), Value("digit", (), dtype=DType.I32)))
    return Program(name, Value("image", (28, 28, 1), scale["input"]), (1, 2, 0), tuple(steps))


def write_rlxm(
    program: Program, path: str | os.PathLike[str], accuracy: float = 0.0, image: Array | None = None
) -> None:
    """Write a program of this network; the file appears whole or not at all. `image` has codes, for a self-test."""
    conv1, conv2, fc = _products(program)
    bits = {s.weights.bits for s in (conv1, conv2, fc)}
    if len(bits) != 1:
        raise QuantizedError(f"write_rlxm: the file has one width of weights, got {sorted(bits)} bits")
    shown = np.zeros(_PIXELS, np.int8) if image is None else np.asarray(image)
    if shown.size != _PIXELS or shown.dtype != np.int8:
        raise QuantizedError(f"write_rlxm: the image is {_PIXELS} codes i8, got {shown.dtype}{list(shown.shape)}")
    arrays: dict[int, tuple[int, int, bytes]] = {9: (0, _PIXELS, shown.tobytes())}
    for n, (step, before) in enumerate(((conv1, program.input), (conv2, conv1.out), (fc, conv2.out))):
        factors = np.float32(before.scale) * step.weights.scales / np.float32(step.out.scale)
        arrays[2 * n] = (_TYPE_OF_BITS[step.weights.bits], step.weights.codes.size, step.weights.packed)
        arrays[2 * n + 1] = (1, step.channels, step.bias.astype("<i4").tobytes())
        arrays[6 + n] = (2, step.channels, factors.astype("<f4").tobytes())
    places, data, at = {}, b"", _HEAD.size + len(_NAMES) * _DESCRIPTOR.size
    for key in _ORDER:
        places[key] = at + len(data)
        data += arrays[key][2]
    head = _HEAD.pack(_MAGIC, _VERSION, _ARCHITECTURE, accuracy, len(_NAMES), 0)
    for key in range(len(_NAMES)):
        kind, count, _ = arrays[key]
        head += _DESCRIPTOR.pack(key, kind, 0, places[key], count, 0)
    with replace_file(Path(path)) as file:
        file.write(head + data)


def _products(program: Program) -> tuple[Conv2d, Conv2d, Dense]:
    kinds = [type(s) for s in program.steps]
    if kinds != [Conv2d, MaxPool, Conv2d, MaxPool, Dense, Argmax] or program.input.dims != (28, 28, 1):
        raise QuantizedError(f"write_rlxm: {program.name} is not TinyConv (conv, pool, conv, pool, dense, argmax)")
    conv1, _, conv2, _, fc, _ = program.steps
    assert isinstance(conv1, Conv2d) and isinstance(conv2, Conv2d) and isinstance(fc, Dense)
    for step, (layer, dims) in zip((conv1, conv2, fc), _WEIGHTS.items()):
        if step.weights.codes.shape != dims:
            raise QuantizedError(f"write_rlxm: the weights of {layer} are {dims}, got {step.weights.codes.shape}")
        plain = step.out.zero_point == 0 and step.low == (-128 if step is fc else 0) and step.high == 127
        if not plain or step.out.dtype is not DType.I8:
            raise QuantizedError(f"write_rlxm: {layer} must give i8 with zero point 0, both convolutions with a relu")
    if program.input.zero_point or abs(program.input.scale - INPUT_SCALE) > 1e-6 or conv1.padding != ((0, 0), (0, 0)):
        raise QuantizedError(f"write_rlxm: the input has the scale 1/127 and zero point 0, got {program.input}")
    return conv1, conv2, fc


def read_rlxm(path: str | os.PathLike[str]) -> TinyConv:
    """The program of a file; a FormatError for anything that is no such file."""
    where, data = str(path), file_bytes(Path(path), mmap=False).tobytes()
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise FormatError(f"{where}: this is no weight file of the Rust RLX (RLXM)")
    _, version, architecture, accuracy, count, _ = _HEAD.unpack_from(data)
    if (version, architecture, count) != (_VERSION, _ARCHITECTURE, len(_NAMES)):
        raise FormatError(
            f"{where}: version {version}, architecture {architecture} and {count} tensors are not known; "
            f"wanted {_VERSION}, {_ARCHITECTURE} (TinyConv) and {len(_NAMES)}"
        )
    if len(data) < _HEAD.size + count * _DESCRIPTOR.size:
        raise FormatError(f"{where}: the file ends inside of its table")
    found = dict(_tensor(where, data, _HEAD.size + n * _DESCRIPTOR.size) for n in range(count))
    if sorted(found) != sorted(_NAMES):
        raise FormatError(f"{where}: the table names {', '.join(sorted(found))}; each tensor must be there once")
    # Results are counted in their own steps: the scale of a result is 1, and weights have what is left of the ratio.
    scales = {"input": INPUT_SCALE, **dict.fromkeys(_WEIGHTS, 1.0)}
    weights, biases, factors, before = {}, {}, {}, INPUT_SCALE
    try:
        for layer, dims in _WEIGHTS.items():
            (codes, bits), (factor, _) = found[f"{layer}_w"], found[f"{layer}_mult"]
            if codes.size != np.prod(dims) or factor.shape != dims[:1] or found[f"{layer}_b"][0].shape != dims[:1]:
                raise FormatError(f"{where}: {layer} must have weights {dims} and {dims[0]} biases and multipliers")
            weights[layer] = Weights(codes.reshape(dims), (factor / np.float32(before)).astype(np.float32), bits)
            biases[layer], factors[layer] = found[f"{layer}_b"][0], factor
            before = 1.0
        program = _program(weights, biases, factors, scales, Path(path).stem)
    except QuantizedError as error:
        raise FormatError(f"{where}: {error}") from None
    return TinyConv(program, float(accuracy), found["image"][0].reshape(28, 28, 1))


def _tensor(where: str, data: bytes, at: int) -> tuple[str, tuple[Array, int]]:
    """The name of a tensor, its elements, and their bits."""
    key, kind, _, place, count, _ = _DESCRIPTOR.unpack_from(data, at)
    wanted = {**dict.fromkeys((1, 3, 5), (1,)), **dict.fromkeys((6, 7, 8), (2,)), 9: (0,)}.get(key, (0, 3, 4))
    if key >= len(_NAMES) or kind not in wanted:
        raise FormatError(f"{where}: tensor {key} of type {kind} is not known")
    size = packed_size(count, _BITS[kind])
    # The table ends where data begins; counts are checked against the file before memory is taken for them.
    is_outside = place < _HEAD.size + len(_NAMES) * _DESCRIPTOR.size or place + size > len(data)
    if is_outside or (place % _ALIGN and kind in (1, 2)):
        raise FormatError(f"{where}: {_NAMES[key]} is {size} bytes at {place}, and the file has {len(data)}")
    part = data[place : place + size]
    if kind in (1, 2):
        return _NAMES[key], (np.frombuffer(part, "<i4" if kind == 1 else "<f4").copy(), 32)
    return _NAMES[key], (unpack(part, count, _BITS[kind]), _BITS[kind])
