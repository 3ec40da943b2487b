"""Rules of ops that read images between their pixels: Resize, GridSample, RoiAlign, AffineGrid."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.onnx.values import Call, Size, dtype_of, rank_of, rule

F32 = np.float32


@rule("Resize", "Upsample")
def _resize(call: Call) -> Any:
    x = call[0]
    rank = rank_of(x)
    if call.attribute("antialias", 0):
        call.unsupported("antialias")
    axes = tuple(call.in_rank(a, rank) for a in call.attribute("axes", list(range(rank))))
    wanted, factors = _wanted(call, [x.shape[a] for a in axes])
    mode = call.attribute("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        call.unsupported(f"the mode {mode!r}")
    is_old = call.node.op == "Upsample" or call.opset < 11
    places = "asymmetric" if is_old else call.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if is_old else call.attribute("nearest_mode", "round_prefer_floor")
    for axis, size, factor in zip(axes, wanted, factors):
        if isinstance(size, int) and size == x.shape[axis] and places != "tf_crop_and_resize":
            continue
        at = _coordinates(call, places, size, x.shape[axis], factor)
        if mode == "nearest":
            x = rnp.take(x, _limited(_rounded(at, rounding), x.shape[axis]), axis=axis)
        else:
            x = _interpolated(call, x, axis, at, mode)
    return x


def _wanted(call: Call, have: list[Size]) -> tuple[list[Size], list[Any]]:
    """The new sizes, and by how much each axis grows: None for what the sizes say."""
    modern = call.node.op == "Resize" and call.opset >= 11
    if modern and call.has(3) and call.value(3).shape != (0,):
        given = call.known(3).tolist()
        policy = call.attribute("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return given, [None] * len(given)
        if any(isinstance(n, Dim) for n in (*given, *have)):
            call.unsupported("a kept aspect ratio of open sizes")
        choose = min if policy == "not_larger" else max
        factor = choose(n / m for n, m in zip(given, have))
        return [int(np.floor(factor * m + 0.5)) for m in have], [factor] * len(have)
    index = 2 if modern else 1
    factors = call.known(index).reshape(-1).tolist() if call.has(index) else call.attribute("scales")
    if not factors:
        call.fail("it has neither sizes nor scales")
    sizes: list[Size] = []
    for size, factor in zip(have, factors):
        if isinstance(size, int):
            sizes.append(int(np.floor(F32(size) * F32(factor))))
            continue
        above, below = float(F32(factor)), float(1 / F32(factor))
        if above.is_integer():
            sizes.append(size * int(above))
        elif abs(below - round(below)) < 1e-6:
            sizes.append(size // round(below))
        elif (doubled := above * 64).is_integer():
            sizes.append(size * int(doubled) // 64)
        else:
            call.unsupported(f"the factor {factor} of the open size {size}")
    return sizes, factors


def _number(size: Size) -> Any:
    return rnp.dim_value(size, DType.F32) if isinstance(size, Dim) else F32(size)


def _coordinates(call: Call, mode: str, size: Size, have: Size, factor: float | None) -> Any:
    """For each place of the result, where it lies in the input; f32, as others compute it."""
    out = rnp.astype(rnp.arange(size), DType.F32) if isinstance(size, Dim) else np.arange(size, dtype=F32)
    if factor is not None:
        scale: Any = F32(factor)
    elif isinstance(size, Dim) and isinstance(have, Dim) and _whole_factor(size, have) is not None:
        scale = F32(_whole_factor(size, have))
    else:
        scale = _number(size) / _number(have)
    match mode:
        case "half_pixel":
            return (out + F32(0.5)) / scale - F32(0.5)
        case "asymmetric":
            return out / scale
        case "pytorch_half_pixel":
            if isinstance(size, Dim):
                return rnp.where(rnp.greater(_number(size), 1), (out + F32(0.5)) / scale - F32(0.5), F32(0) * out)
            return (out + F32(0.5)) / scale - F32(0.5) if size > 1 else np.zeros(1, F32)
        case "align_corners":
            if isinstance(size, Dim):
                return out * (_number(have) - 1) / rnp.maximum(_number(size) - 1, F32(1))
            # The length that a scale asks for need not be whole.
            length = F32(size) if factor is None or isinstance(have, Dim) else F32(factor) * F32(have)
            return out * (_number(have) - F32(1)) / (length - F32(1)) if size > 1 else np.zeros(1, F32)
        case "half_pixel_symmetric":
            if isinstance(size, Dim) or isinstance(have, Dim):
                call.unsupported("half_pixel_symmetric with open sizes")
            centre = F32(have) / 2 * (1 - F32(size) / (scale * F32(have)))
            return centre + (out + F32(0.5)) / scale - F32(0.5)
    call.unsupported(f"the coordinates {mode!r}")


def _whole_factor(size: Dim, have: Dim) -> int | None:
    return next((n for n in range(1, 65) if size == have * n), None)


def _rounded(at: Any, mode: str) -> Any:
    m = np if isinstance(at, np.ndarray) else rnp
    places = {
        "floor": lambda: m.floor(at),
        "ceil": lambda: m.ceil(at),
        "round_prefer_ceil": lambda: m.floor(at + F32(0.5)),
        "round_prefer_floor": lambda: m.ceil(at - F32(0.5)),
    }[mode]()
    return _integer(places)


def _integer(x: Any) -> Any:
    return x.astype(np.int64) if isinstance(x, np.ndarray) else rnp.astype(x, DType.I64)


def _limited(places: Any, size: Size) -> Any:
    if isinstance(places, np.ndarray) and isinstance(size, int):
        return np.clip(places, 0, size - 1)
    last = rnp.dim_value(size, DType.I64) - 1 if isinstance(size, Dim) else np.int64(size - 1)
    return rnp.minimum(rnp.maximum(places, np.int64(0)), last)


def _interpolated(call: Call, x: Any, axis: int, at: Any, mode: str) -> Any:
    """x read at `at` along an axis, from the two or four pixels around each place."""
    m = np if isinstance(at, np.ndarray) else rnp
    kind = dtype_of(x)
    wide = DType.F32 if kind.is_int or kind.size_bytes < 4 else kind
    size = x.shape[axis]
    if mode == "linear":
        # Outside of the image its edge goes on.
        last = F32(size - 1) if isinstance(size, int) else _number(size) - 1
        at = (m if isinstance(size, int) else rnp).minimum(m.maximum(at, F32(0)), last)
    m = np if isinstance(at, np.ndarray) else rnp
    low = m.floor(at)
    rest = at - low
    first = _integer(low)
    if mode == "linear":
        weights = [1 - rest, rest]
        offsets = [0, 1]
    else:
        weights, offsets = _cubic(m, rest, call.attribute("cubic_coeff_a", -0.75)), [-1, 0, 1, 2]
    if mode == "cubic" and call.attribute("exclude_outside", 0):
        if not isinstance(at, np.ndarray) or not isinstance(size, int):
            call.unsupported("exclude_outside with open sizes")
        weights = [np.where((first + o >= 0) & (first + o < size), w, F32(0)) for w, o in zip(weights, offsets)]
        total = sum(weights)
        weights = [w / total for w in weights]
    shape = [1] * rank_of(x)
    shape[axis] = -1
    seen = rnp.astype(x, wide)
    result = None
    for weight, offset in zip(weights, offsets):
        part = rnp.take(seen, _limited(first + np.int64(offset), size), axis=axis)
        part = part * rnp.astype(rnp.reshape(weight, shape), wide)
        result = part if result is None else result + part
    return rnp.astype(rnp.round(result) if kind.is_int else result, kind)


def _cubic(m: Any, t: Any, a: float) -> list[Any]:
    """Weights of the pixels at -1, 0, 1 and 2 for a place t behind pixel 0."""

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


@rule("GridSample")
def _grid_sample(call: Call) -> Any:
    x, grid = call[0], call[1]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name := call.attribute("mode", "linear"), name)
    border, corners = call.attribute("padding_mode", "zeros"), bool(call.attribute("align_corners", 0))
    rank = rank_of(x) - 2
    if mode not in ("nearest", "linear", "cubic") or (mode == "cubic" and rank != 2):
        call.unsupported(f"the mode {mode!r} over {rank} axes")
    sizes = x.shape[2:]
    # The last coordinate of a point belongs to the first spatial axis.
    points = [_to_pixels(grid[..., rank - 1 - i], _number(n), corners) for i, n in enumerate(sizes)]
    if mode != "cubic":
        points = [_folded(p, _number(n), border, corners) for p, n in zip(points, sizes)]
    taps = []
    for point in points:
        low = rnp.floor(point)
        rest = point - low
        if mode == "nearest":
            taps.append([(rnp.round(point), None)])
        elif mode == "linear":
            taps.append([(low, 1 - rest), (low + 1, rest)])
        else:
            taps.append([(low + o, w) for o, w in zip((-1, 0, 1, 2), _cubic(rnp, rest, -0.75))])
    total = None
    for corner in itertools.product(*taps):
        part = _read(x, [place for place, _ in corner], border, corners)
        for _, weight in corner:
            part = part if weight is None else part * rnp.expand_dims(weight, 1)
        total = part if total is None else total + part
    return rnp.astype(total, dtype_of(x))


def _to_pixels(point: Any, size: Any, corners: bool) -> Any:
    """-1..1 as places of pixels."""
    if corners:
        return (point + F32(1)) / F32(2) * (size - F32(1))
    return ((point + F32(1)) * size - F32(1)) / F32(2)


def _folded(point: Any, size: Any, border: str, corners: bool) -> Any:
    if border == "border":
        return rnp.minimum(rnp.maximum(point, F32(0)), size - F32(1))
    if border == "reflection":
        low = F32(0) if corners else F32(-0.5)
        span = size - F32(1) if corners else size
        phase = rnp.mod(point - low, 2 * span)
        inside = rnp.where(rnp.greater(phase, span), 2 * span - phase, phase) + low
        return rnp.minimum(rnp.maximum(inside, F32(0)), size - F32(1))
    return point


def _read(x: Any, places: list[Any], border: str, corners: bool) -> Any:
    """x [N, C, spatial..] at whole places [N, out..] for each axis: [N, C, out..]."""
    sizes = x.shape[2:]
    inside, flat = None, None
    for place, size in zip(places, sizes):
        folded = _folded(place, _number(size), border, corners)
        index = _limited(rnp.astype(folded, DType.I64), size)
        flat = index if flat is None else flat * (rnp.dim_value(size, DType.I64)) + index
        within = rnp.logical_and(rnp.greater_equal(place, F32(0)), rnp.less_equal(place, _number(size) - F32(1)))
        inside = within if inside is None else rnp.logical_and(inside, within)
    batch, channels = x.shape[:2]
    assert flat is not None and inside is not None
    out = flat.shape[1:]
    pixels = rnp.reshape(x, (batch, channels, -1))
    index = rnp.broadcast_to(
        rnp.reshape(flat, (batch, 1, -1)), (batch, channels, *rnp.reshape(flat, (batch, -1)).shape[1:])
    )
    seen = rnp.reshape(rnp.take_along_axis(pixels, index, -1), (batch, channels, *out))
    if border != "zeros":
        return seen
    return rnp.where(rnp.expand_dims(inside, 1), seen, rnp.zeros_like(seen))


@rule("AffineGrid")
def _affine_grid(call: Call) -> Any:
    theta, size = call[0], call.known(1).tolist()
    corners = bool(call.attribute("align_corners", 0))
    if any(isinstance(n, Dim) for n in size[2:]):
        call.unsupported("a grid of an open size")
    spatial = size[2:]
    lines = []
    for n in spatial:
        places = np.arange(n, dtype=F32)
        lines.append(-1 + 2 * places / max(1, n - 1) if corners else (2 * places + 1) / F32(n) - 1)
    grids = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(grids), np.ones_like(grids[0])], axis=-1).reshape(-1, len(spatial) + 1)
    found = rnp.matmul(points.astype(F32), rnp.swapaxes(theta, 1, 2))
    return rnp.reshape(found, (theta.shape[0], *spatial, len(spatial)))


@rule("RoiAlign")
def _roi_align(call: Call) -> Any:
    x, boxes, batch = call[0], call[1], rnp.astype(call[2], DType.I64)
    height, width = int(call.attribute("output_height", 1)), int(call.attribute("output_width", 1))
    ratio, scale = int(call.attribute("sampling_ratio", 0)), F32(call.attribute("spatial_scale", 1.0))
    if call.attribute("mode", "avg") != "avg":
        call.unsupported("the mode max")
    if ratio < 1:
        call.unsupported("a sampling ratio that depends on the boxes (0)")
    shifted = call.attribute("coordinate_transformation_mode", "output_half_pixel" if call.opset < 16 else "half_pixel")
    offset = F32(0.5) if shifted == "half_pixel" else F32(0)
    samples = []
    for first, last, bins, size in ((1, 3, height, x.shape[2]), (0, 2, width, x.shape[3])):
        low, high = boxes[:, first] * scale - offset, boxes[:, last] * scale - offset
        span = high - low if shifted == "half_pixel" else rnp.maximum(high - low, F32(1))
        steps = (np.arange(bins * ratio, dtype=F32) + F32(0.5)) / F32(bins * ratio)
        samples.append((low[:, None] + span[:, None] * steps, size))
    count = boxes.shape[0]
    (rows, row_size), (columns, column_size) = samples
    shape = (count, height * ratio, width * ratio)
    y = rnp.broadcast_to(rows[:, :, None], shape)
    z = rnp.broadcast_to(columns[:, None, :], shape)
    images = rnp.take(x, batch, axis=0)
    values = _bilinear_inside(images, y, z, row_size, column_size)
    parts = rnp.reshape(values, (count, x.shape[1], height, ratio, width, ratio))
    return rnp.mean(parts, axis=(3, 5))


def _bilinear_inside(images: Any, y: Any, z: Any, rows: Size, columns: Size) -> Any:
    """Between four pixels; beyond one pixel outside of the image, 0."""
    inside = None
    taps = []
    for place, size in ((y, rows), (z, columns)):
        last = _number(size)
        within = rnp.logical_and(rnp.greater_equal(place, F32(-1)), rnp.less_equal(place, last))
        inside = within if inside is None else rnp.logical_and(inside, within)
        limited = rnp.minimum(rnp.maximum(place, F32(0)), last - F32(1))
        low = rnp.floor(limited)
        taps.append([(low, 1 - (limited - low)), (low + 1, limited - low)])
    total = None
    for (row, a), (column, b) in itertools.product(*taps):
        part = _read(images, [row, column], "border", True) * rnp.expand_dims(a * b, 1)
        total = part if total is None else total + part
    return rnp.where(rnp.expand_dims(inside, 1), total, F32(0))
