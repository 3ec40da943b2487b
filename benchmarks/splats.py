"""Gaussian splats, forward and backward, against a vectorised torch renderer of the same formulas.

    python benchmarks/splats.py [--splats 100000] [--size 640x480] [--threads 2] [--rounds 5]

Torch sorts splats by distance, bins them into tiles by the boxes of their outlines, and blends tile after tile with
whole matrices of pixels and splats; its gradient is autograd's. Pictures and gradients are compared first, and at a
small size with a per-pixel renderer in f64 (tests/ops/splat_oracle.py). Engines take turns; `wall` is the shortest
round, `cpu` the least processor time of one, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import rlx
from rlx.ops.splat.render import (
    GaussianSplatInputs,
    GaussianSplatRender,
    GaussianSplatRenderBackward,
    GaussianSplatRenderParams,
    gaussian_splat_render_meta,
)
from rlx.ops.splat.scene import unpack_gaussian_splat_packed_grads

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "ops"))

NAMES = ("positions", "scales", "rotations", "opacities", "colors")


def random_scene(count: int, params: GaussianSplatRenderParams) -> GaussianSplatInputs:
    """A cloud of small splats in front of the camera, some five tiles' worth of them over every pixel."""
    rng = np.random.default_rng(0)
    turns = rng.normal(size=(count, 4))
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    width = math.log(0.01 * (100_000 / count) ** 0.5)
    parts = (
        rng.uniform(-1.5, 1.5, (count, 3)),
        rng.uniform(width - 0.9, width + 0.6, (count, 3)),
        turns,
        rng.uniform(0.1, 0.95, count),
        rng.uniform(0, 1, (count, 3)),
        np.zeros(0),
    )
    meta = gaussian_splat_render_meta((0, 0, 4), (0, 0, 0), (0, 1, 0), 50.0, 0.1, 100.0, (0.1, 0.2, 0.3), params)
    return GaussianSplatInputs(*(np.asarray(x, np.float32).reshape(-1) for x in parts), np.asarray(meta))


class TorchRenderer:
    """The picture in linear light, C + T·background² .² and 1 - T, as tensors with a gradient."""

    def __init__(self, scene: GaussianSplatInputs, params: GaussianSplatRenderParams) -> None:
        self.params = params
        self.leaves = [torch.tensor(getattr(scene, n)).requires_grad_() for n in NAMES]
        meta = torch.tensor(scene.meta)
        self.eye = meta[0:3]
        ahead = torch.nn.functional.normalize(meta[3:6] - meta[0:3], dim=0)
        right = torch.nn.functional.normalize(torch.linalg.cross(meta[6:9], ahead), dim=0)
        self.axes = torch.stack([right, torch.linalg.cross(ahead, right), ahead])
        self.focal = 0.5 * params.height / math.tan(math.radians(float(meta[9])) / 2)
        self.near, self.far = float(meta[10]), float(meta[11])
        self.background = meta[12:15].clamp(min=0) ** 2.2
        columns = (torch.arange(params.width) + 0.5 - params.width / 2) / self.focal
        rows = (torch.arange(params.height) + 0.5 - params.height / 2) / self.focal
        rays = rows[:, None, None] * self.axes[1] + columns[None, :, None] * self.axes[0] + self.axes[2]
        self.rays = torch.nn.functional.normalize(rays, dim=-1)

    def maps(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """World to splat [n, 3, 3], where one standard deviation is 1; the camera there [n, 3]; opacities."""
        positions, scales, turns, opacities, _ = self.leaves
        w, x, y, z = turns.view(-1, 4).unbind(-1)
        rows = [
            1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y),
            2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x),
            2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y),
        ]  # fmt: skip
        rotation = torch.stack(rows, dim=-1).view(-1, 3, 3)
        matrix = rotation / (torch.exp(scales.view(-1, 3)) * self.params.radius_scale)[:, :, None]
        origin = torch.einsum("nij,nj->ni", matrix, self.eye - positions.view(-1, 3))
        return matrix, origin, opacities.clamp(0, 1)

    @torch.no_grad()
    def lists(self) -> list[torch.Tensor]:
        """The splats of each tile, nearest first."""
        params = self.params
        view = self.leaves[0].detach().view(-1, 3) - self.eye
        x, y, z = (view @ self.axes.T).unbind(-1)
        matrix, _, opacity = self.maps()
        reach = torch.sqrt(2 * torch.log((opacity / params.alpha_cutoff).clamp(min=1.0)))
        inverse = torch.linalg.inv(matrix) * reach[:, None, None]
        spread = self.axes @ inverse @ inverse.transpose(1, 2) @ self.axes.T
        xx, yy, zz, xz, yz = (spread[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 2), (1, 2)))
        room = z * z - zz
        scale = self.focal / room
        half_x = torch.sqrt((scale * scale * ((z * z - zz) * xx - 2 * z * x * xz + x * x * zz + xz * xz)).clamp(min=0))
        half_y = torch.sqrt((scale * scale * ((z * z - zz) * yy - 2 * z * y * yz + y * y * zz + yz * yz)).clamp(min=0))
        mid_x, mid_y = scale * (x * z - xz) + params.width / 2, scale * (y * z - yz) + params.height / 2
        size = params.tile_size
        columns, rows = -(-params.width // size), -(-params.height // size)
        left, right = ((mid_x + s * (half_x + 0.2)).div(size).floor().long() for s in (-1, 1))
        top, bottom = ((mid_y + s * (half_y + 0.2)).div(size).floor().long() for s in (-1, 1))
        seen = (opacity >= params.alpha_cutoff) & (z > self.near) & (z < self.far) & (room > 0)
        seen &= (right >= 0) & (left < columns) & (bottom >= 0) & (top < rows)
        order = torch.argsort(view.norm(dim=1))
        order = order[seen[order]]
        left, right = left[order].clamp(0, columns - 1), right[order].clamp(0, columns - 1)
        top, bottom = top[order].clamp(0, rows - 1), bottom[order].clamp(0, rows - 1)
        wide = right - left + 1
        counts = wide * (bottom - top + 1)
        rank = torch.repeat_interleave(torch.arange(len(order)), counts)
        place = torch.arange(len(rank)) - (counts.cumsum(0) - counts)[rank]
        tile = (top[rank] + place // wide[rank]) * columns + left[rank] + place % wide[rank]
        by_tile = torch.argsort(tile, stable=True)
        return list(torch.split(order[rank[by_tile]], torch.bincount(tile, minlength=rows * columns).tolist()))

    def picture(self, upstream: torch.Tensor | None = None) -> torch.Tensor:
        """The picture; with `upstream`, its gradient goes to the leaves, tile by tile, so that little is kept."""
        params, size = self.params, self.params.tile_size
        matrix, origin, opacity = self.maps()
        colors = self.leaves[4].view(-1, 3).clamp(0, 1)
        lists = self.lists()
        splats = torch.cat([matrix.flatten(1), origin, opacity[:, None], colors], dim=1)[torch.cat(lists)]
        parts = iter(torch.split(splats.detach(), [len(ids) for ids in lists]))
        gradients, bands = [], []
        for top in range(0, params.height, size):
            band = []
            for left in range(0, params.width, size):
                block = slice(top, top + size), slice(left, left + size)
                part = next(parts).requires_grad_(upstream is not None)
                pixels = self.tile(self.rays[block].reshape(-1, 3), part)
                if upstream is not None:
                    gradients += torch.autograd.grad(pixels, part, upstream[block].reshape(-1, 4))
                band.append(pixels.detach().view(*self.rays[block].shape[:2], 4))
            bands.append(torch.cat(band, dim=1))
        if upstream is not None:
            splats.backward(torch.cat(gradients))
        return torch.cat(bands, dim=0)

    def gradients(self, upstream: torch.Tensor) -> list[torch.Tensor]:
        for leaf in self.leaves:
            leaf.grad = None
        self.picture(upstream)
        return [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def tile(self, rays: torch.Tensor, splats: torch.Tensor) -> torch.Tensor:
        matrix, origin, opacity, color = splats[:, :9].view(-1, 3, 3), splats[:, 9:12], splats[:, 12], splats[:, 13:]
        direction = torch.einsum("mij,pj->pmi", matrix, rays)
        t = -(direction * origin).sum(-1) / (direction * direction).sum(-1)
        miss = origin + t[..., None] * direction
        alpha = opacity * torch.exp(-0.5 * (miss * miss).sum(-1))
        alpha = torch.where((t > 0) & (alpha >= self.params.alpha_cutoff), alpha, 0.0)
        through = torch.cumprod(1 - alpha, dim=-1)
        before = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], dim=-1)
        alpha = torch.where(before.detach() >= self.params.transmittance_threshold, alpha, 0.0)
        left = (1 - alpha).prod(dim=-1, keepdim=True)
        return torch.cat([(before * alpha) @ color + left * self.background, 1 - left], dim=-1)


def compiled(op: rlx.Op, *extra: int) -> Callable[..., np.ndarray]:
    graph = rlx.Graph("splats")
    dims = [("3*N",), ("3*N",), ("4*N",), ("N",), ("3*N",), (0,), (23,), *((n,) for n in extra)]
    graph.set_outputs([op(*(graph.input(f"x{i}", d) for i, d in enumerate(dims)))])
    program = rlx.Session("cpu").compile(graph)
    return lambda *arrays: np.asarray(program.run({f"x{i}": a for i, a in enumerate(arrays)})[0])


def measure(rounds: int, **work: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """The least wall and processor time of each, in turns."""
    best = dict.fromkeys(work, (math.inf, math.inf))
    for _ in range(rounds):
        for name, run in work.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return best


def check_small() -> None:
    """Both engines against the per-pixel renderer."""
    from splat_oracle import linear_image

    params = GaussianSplatRenderParams(48, 40, 16, 1.0, 1 / 255, 0, 1e-4, 4096)
    scene = random_scene(150, params)
    wide = GaussianSplatInputs(*(x.astype(np.float64) for x in scene))
    oracle = linear_image(wide, params, wide.meta[12:15] ** 2.2)
    picture = TorchRenderer(scene, params).picture().detach().numpy().reshape(-1, 4)
    shown = compiled(GaussianSplatRender(*params))(*scene).reshape(-1, 4)
    of_shown = linear_image(wide, params, wide.meta[12:15])
    apart = np.abs(picture - oracle).max(), np.abs(shown[:, :3] - np.maximum(of_shown[:, :3], 0) ** 2.2).max()
    print(f"48x40, 150 splats, from the per-pixel renderer in f64: torch {apart[0]:.1e}, rlx {apart[1]:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splats", type=int, default=100_000)
    parser.add_argument("--size", default="640x480")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    torch.set_num_threads(args.threads)
    check_small()
    params = GaussianSplatRenderParams(width, height, 16, 1.0, 1 / 255, 0, 1e-4, 2**19)
    scene = random_scene(args.splats, params)
    upstream = np.random.default_rng(1).normal(size=width * height * 4).astype(np.float32)
    peer = TorchRenderer(scene, params)
    forward = compiled(GaussianSplatRender(*params))
    backward = compiled(GaussianSplatRenderBackward(*params, 0.0, 0, 10.0), width * height * 4)

    def torch_forward() -> torch.Tensor:
        with torch.no_grad():
            return peer.picture()

    def torch_both() -> list[torch.Tensor]:
        return peer.gradients(torch.tensor(upstream).view(height, width, 4))

    with rlx.threads(args.threads):
        mine = backward(*scene, upstream)
        parts = unpack_gaussian_splat_packed_grads(mine, args.splats, 0)
        for name, got, wanted in zip(NAMES, parts, torch_both()):
            far = wanted.numpy()
            apart = 1 - got @ far / np.linalg.norm(got) / np.linalg.norm(far)
            print(f"gradient of {name}: cosine distance {apart:.1e}")
        found = measure(
            args.rounds,
            rlx_forward=lambda: forward(*scene),
            torch_forward=torch_forward,
            rlx_backward=lambda: backward(*scene, upstream),
            torch_backward=torch_both,
        )
    for name, (wall, cpu) in found.items():
        print(f"{name:15s} wall {wall * 1e3:9.1f} ms   cpu {cpu * 1e3:9.1f} ms")
    for what in ("forward", "backward"):
        walls, cpus = zip(found[f"torch_{what}"], found[f"rlx_{what}"])
        print(f"{what}: {walls[0] / walls[1]:.1f}x by wall, {cpus[0] / cpus[1]:.1f}x by processor time")


if __name__ == "__main__":
    main()
