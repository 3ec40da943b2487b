"""Training a scene from pictures: one compiled program per step, for any number of splats.

    result = train(load_dataset("garden"), TrainSettings(steps=7000), report=print)
    result.scene, result.psnr

A step renders one view, compares it with its picture (L1 and SSIM), and moves every part of the scene with a learning
rate of its own. Between steps, the schedule of `rlx.splat.density` adds and removes splats. Spherical harmonics
come in one band after the other. With `checkpoint`, training can be stopped and goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlx
from rlx import numpy as rnp
from rlx.errors import ShapeError
from rlx.splat.adam import AdamState, adam_step
from rlx.splat.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rlx.splat.dataset import Dataset, View
from rlx.splat.density import DensitySettings, Pulls, densify, reset_opacities
from rlx.splat.losses import photo_loss, psnr
from rlx.splat.rendering import RenderSettings, next_entries, render, scene_specs, splat_image
from rlx.splat.scene import COEFFICIENTS, GaussianScene


class TrainSettings(NamedTuple):
    """What training does; learning rates are those that the field uses, positions per size of the scene."""

    steps: int = 30_000
    sh_degree: int = 3
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ssim_share: float = 0.2
    position_rate: float = 1.6e-4
    last_position_rate: float = 1.6e-6
    scale_rate: float = 5e-3
    rotation_rate: float = 1e-3
    opacity_rate: float = 5e-2
    color_rate: float = 2.5e-3
    band_every: int = 1_000
    start_splats: int = 0  # without points: so many at random places
    report_every: int = 500
    checkpoint_every: int = 2_000
    seed: int = 0
    density: DensitySettings = DensitySettings()
    render: RenderSettings = RenderSettings()


class Progress(NamedTuple):
    """How far training is; `psnr` is over the held-out views, or those trained on if there are none."""

    step: int
    loss: float
    psnr: float
    splats: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"step {self.step:6d}  loss {self.loss:.4f}  psnr {self.psnr:5.2f} dB  {self.splats} splats  "
            f"{self.seconds:.1f} s"
        )


class TrainResult(NamedTuple):
    scene: GaussianScene
    psnr: float
    history: list[Progress]


def initial_scene(data: Dataset, settings: TrainSettings) -> GaussianScene:
    """One splat per sparse point, or some at random places where cameras look if there are none."""
    points, colors = data.points, data.colors
    if len(points) == 0:
        rng = np.random.default_rng(settings.seed)
        count = settings.start_splats or 1000
        points = (data.center + rng.uniform(-0.5, 0.5, (count, 3)) * data.extent).astype(np.float32)
        colors = np.full((count, 3), 0.5, np.float32)
    limit = settings.density.max_splats
    if len(points) > limit:
        chosen = np.random.default_rng(settings.seed).choice(len(points), limit, replace=False)
        points, colors = points[chosen], colors[chosen]
    return GaussianScene.from_points(points, colors, settings.sh_degree)


def train(
    data: Dataset,
    settings: TrainSettings | None = None,
    report: Callable[[Progress], None] | None = None,
    checkpoint: Path | None = None,
) -> TrainResult:
    """Train a scene on the views of a dataset; goes on from `checkpoint` if that file exists."""
    chosen = settings or TrainSettings()
    if not data.training:
        raise ShapeError("train: the dataset has no views to train on")
    if chosen.steps < 1 or not 0 <= chosen.sh_degree <= 3:
        raise ShapeError(f"train: needs steps and an sh_degree of 0 to 3, got {chosen.steps} and {chosen.sh_degree}")
    trainer = Trainer(data, chosen, checkpoint)
    for progress in trainer.run():
        if report is not None:
            report(progress)
    return TrainResult(trainer.scene_now(), trainer.history[-1].psnr, trainer.history)


class Trainer:
    """The state of a training run."""

    def __init__(self, data: Dataset, settings: TrainSettings, checkpoint: Path | None = None) -> None:
        self.data, self.settings, self.path = data, settings, checkpoint
        self.extent = data.extent
        self.history: list[Progress] = []
        self.entries: dict[tuple[int, int], int] = {}
        self.programs: dict[tuple[int, int, int], Callable[..., Any]] = {}
        if checkpoint is not None and checkpoint.is_file():
            self.load(read_checkpoint(checkpoint))
        else:
            scene = initial_scene(data, settings)
            self.load(Checkpoint(0, scene, AdamState.zeros(scene), settings.seed))
        # What the program reads of a view, made once.
        self.inputs: dict[int, tuple[Any, ...]] = {}

    def load(self, checkpoint: Checkpoint) -> None:
        wanted = COEFFICIENTS[self.settings.sh_degree]
        if checkpoint.scene.sh.shape[1] != wanted:
            raise ShapeError(
                f"train: the checkpoint has {checkpoint.scene.sh.shape[1]} coefficients per splat, "
                f"an sh_degree of {self.settings.sh_degree} needs {wanted}"
            )
        self.step, self.scene, self.state = checkpoint.step, checkpoint.scene, checkpoint.state
        self.pulls = Pulls(self.scene.splats)

    def scene_now(self) -> GaussianScene:
        """The scene as arrays."""
        return GaussianScene(*(np.asarray(x) for x in self.scene))

    def run(self) -> Iterator[Progress]:
        """Steps to the end; gives the progress now and then, and at the end."""
        start = time.perf_counter()
        total, count = 0.0, 0
        while self.step < self.settings.steps:
            total, count = total + self.one_step(), count + 1
            is_last = self.step == self.settings.steps
            if is_last or self.step % self.settings.report_every == 0:
                elapsed = time.perf_counter() - start
                self.history.append(Progress(self.step, total / count, self.evaluate(), self.scene.splats, elapsed))
                total, count = 0.0, 0
                yield self.history[-1]
            self.change_density()
            if self.path is not None and (is_last or self.step % self.settings.checkpoint_every == 0):
                state = AdamState(*(GaussianScene(*(np.asarray(x) for x in part)) for part in self.state))
                write_checkpoint(self.path, Checkpoint(self.step, self.scene_now(), state, self.settings.seed))
        if not self.history:
            self.history.append(Progress(self.step, math.nan, self.evaluate(), self.scene.splats, 0.0))

    def one_step(self) -> float:
        """One view, one move of all parameters; the loss before it."""
        self.step += 1
        number = self.next_view()
        view = self.data.training[number]
        size = (view.camera.width, view.camera.height)
        while True:
            entries = self.entries.setdefault(size, 2**14)
            program = self.program(*size, entries)
            results = program(
                self.scene, self.state, *self.view_inputs(number, view), self.rates(), np.float32(self.step)
            )
            scene, state, loss, pull, listed = results
            if int(listed) < entries:
                break
            self.entries[size] = next_entries(entries)
        if self.step <= self.last_change:
            self.pulls.add(self.scene_now(), np.asarray(pull), view.camera)
        self.scene, self.state = scene, state
        return float(loss)

    def next_view(self) -> int:
        """Views in random order, each once before any comes again; the order depends on the step alone."""
        count = len(self.data.training)
        epoch, place = divmod(self.step - 1, count)
        return int(np.random.default_rng((self.settings.seed, epoch)).permutation(count)[place])

    def view_inputs(self, number: int, view: View) -> tuple[Any, ...]:
        if number not in self.inputs:
            meta = np.asarray(view.camera.meta(self.settings.background), np.float32)
            self.inputs[number] = meta, view.picture, view.known[..., None].astype(np.float32)
        return self.inputs[number]

    def rates(self) -> GaussianScene:
        """The learning rates at this step; bands of spherical harmonics that have not come yet stay as they are."""
        s = self.settings
        share = min(self.step / s.steps, 1.0)
        position = s.position_rate ** (1 - share) * s.last_position_rate**share * self.extent
        active = COEFFICIENTS[min(self.step // s.band_every, s.sh_degree)]
        bands = np.full((COEFFICIENTS[s.sh_degree], 1), s.color_rate / 20.0, np.float32)
        bands[0] = s.color_rate
        bands[active:] = 0.0
        return GaussianScene(
            positions=np.float32(position),
            scales=np.float32(s.scale_rate),
            rotations=np.float32(s.rotation_rate),
            opacities=np.float32(s.opacity_rate),
            sh=bands,
        )

    def program(self, width: int, height: int, entries: int) -> Callable[..., Any]:
        key = (width, height, entries)
        if key not in self.programs:
            self.programs[key] = _compiled_step(self.settings, width, height, entries)
        return self.programs[key]

    def change_density(self) -> None:
        density = self.settings.density
        if density.first_step < self.step <= self.last_change and self.step % density.every == 0:
            scene = self.scene_now()
            state = AdamState(*(GaussianScene(*(np.asarray(x) for x in part)) for part in self.state))
            rng = np.random.default_rng((self.settings.seed, self.step))
            changed = densify(scene, state, self.pulls, self.extent, density, rng, self.step > density.reset_every)
            self.scene, self.state = changed.scene, changed.state
            self.pulls = Pulls(changed.scene.splats)
        if self.step % density.reset_every == 0 and self.step < self.last_change:
            state = AdamState(*(GaussianScene(*(np.asarray(x) for x in part)) for part in self.state))
            self.scene, self.state = reset_opacities(self.scene_now(), state)

    @property
    def last_change(self) -> int:
        """The last step that changes densities: there must be time to recover from it."""
        return min(self.settings.density.last_step, self.settings.steps // 2)

    def evaluate(self) -> float:
        """The mean PSNR over the held-out views, or over at most eight that are trained on."""
        views = self.data.held_out or self.data.training[:8]
        scene = self.scene_now()
        return float(np.mean([view_psnr(scene, view, self.settings) for view in views]))


def view_psnr(scene: GaussianScene, view: View, settings: TrainSettings) -> float:
    picture = render(scene, view.camera, settings.background, settings.render)[..., :3]
    return psnr(picture[view.known], view.picture[view.known])


def _compiled_step(settings: TrainSettings, width: int, height: int, entries: int) -> Callable[..., Any]:
    params = settings.render.params(width, height, entries)

    def loss(scene: GaussianScene, meta: Any, wanted: Any, known: Any) -> Any:
        image, listed = splat_image(scene.operands(meta), params)
        picture = rnp.reshape(image, (height, width, 4))[:, :, :3]
        # What is not known is taken as right.
        compared = known * picture + (1.0 - known) * wanted
        return photo_loss(compared, wanted, settings.ssim_share), listed

    def step(
        scene: GaussianScene, state: AdamState, meta: Any, wanted: Any, known: Any, rates: GaussianScene, number: Any
    ) -> Any:
        (value, listed), gradient = rlx.value_and_grad(loss, has_aux=True)(scene, meta, wanted, known)
        moved, after = adam_step(scene, gradient, state, rates, number)
        return moved, after, value, gradient.positions, listed

    scene = scene_specs(COEFFICIENTS[settings.sh_degree])
    number = rlx.Spec(())
    rates = GaussianScene(number, number, number, number, rlx.Spec((COEFFICIENTS[settings.sh_degree], 1)))
    picture, known = rlx.Spec((height, width, 3)), rlx.Spec((height, width, 1))
    state = AdamState(scene, scene)
    return rlx.jit(step).lower(scene, state, rlx.Spec((23,)), picture, known, rates, number).compile()
