"""Train, render and show scenes of Gaussian splats.

A folder to train on has pictures (PNG) in images/ and a COLMAP model in sparse/0. Scenes are PLY files with the
usual property names, plain or compressed. Cameras are positions (x,y,z) that look at --target, or pictures of a COLMAP
model given by --model.

examples:
  rlx splat synthetic toy                                   # a small folder to try things with
  rlx splat train toy toy.ply --steps 2000 --max-splats 2000
  rlx splat render toy.ply --camera 0,1.5,3 toy.png
  rlx splat render toy.ply --camera view_000.png --model toy toy.png
  rlx splat orbit toy.ply --camera 0,1.5,3 toy-orbit.png    # an animated PNG
  rlx splat view toy.ply --camera 0,1.5,3 toy.html          # opens in a browser
  rlx splat compress toy.ply small.ply
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.errors import RlxError
from rlx.splat import (
    Camera,
    DensitySettings,
    GaussianScene,
    Progress,
    TrainSettings,
    load_dataset,
    orbit,
    read_colmap,
    read_scene,
    render,
    to_bytes,
    train,
    write_apng,
    write_png,
    write_scene,
    write_synthetic,
    write_viewer,
)

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "splat", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    training = actions.add_parser("train", help="train a scene from a folder of pictures")
    training.add_argument("folder", type=Path, help="images/ and a COLMAP model in sparse/0")
    training.add_argument("out", type=Path, help="the PLY file to write")
    training.add_argument("--steps", type=int, default=30_000, metavar="N", help="default: 30000")
    training.add_argument("--max-splats", type=int, default=1_000_000, metavar="N", help="default: 1000000")
    training.add_argument("--sh-degree", type=int, default=3, choices=range(4), help="default: 3")
    training.add_argument("--downscale", type=int, default=1, metavar="N", help="downscale pictures by this factor")
    training.add_argument(
        "--hold-out", type=int, default=8, metavar="N", help="hold out every N-th picture (default: 8, 0: none)"
    )
    training.add_argument(
        "--checkpoint", type=Path, metavar="PATH", help="save the state here, and continue from it if it exists"
    )
    training.add_argument("--seed", type=int, default=0, help="default: 0")
    training.add_argument("--json", action="store_true", help="print a JSON document at the end")
    _add_background(training)

    for name, kind, line in (
        ("render", "PNG", "take a picture of a scene"),
        ("orbit", "PNG", "take an animated picture (APNG) from all around"),
        ("view", "HTML", "write a page that shows a scene in a browser"),
    ):
        action = actions.add_parser(name, help=line)
        action.add_argument("scene", type=Path, help="a PLY file")
        action.add_argument("out", type=Path, help=f"the {kind} file to write")
        action.add_argument(
            "--camera", required=True, metavar="X,Y,Z", help="a position, or the name of a picture of --model"
        )
        action.add_argument("--target", type=_numbers, default=(0.0, 0.0, 0.0), metavar="X,Y,Z", help="default: 0,0,0")
        action.add_argument("--up", type=_numbers, default=(0.0, 1.0, 0.0), metavar="X,Y,Z", help="default: 0,1,0")
        action.add_argument("--fov", type=float, default=50.0, help="vertical field of view in degrees (default: 50)")
        action.add_argument("--size", type=_size, default=(640, 480), metavar="WxH", help="default: 640x480")
        action.add_argument("--model", type=Path, metavar="DIR", help="a COLMAP model whose pictures --camera may name")
        _add_background(action)
        if name == "orbit":
            action.add_argument("--frames", type=int, default=36, help="default: 36")
            action.add_argument("--fps", type=int, default=18, help="frames per second (default: 18)")

    compress = actions.add_parser("compress", help="write a scene in the compressed form")
    compress.add_argument("scene", type=Path, help="a PLY file")
    compress.add_argument("out", type=Path, help="the PLY file to write")

    synthetic = actions.add_parser("synthetic", help="write a folder with pictures of a scene that is known exactly")
    synthetic.add_argument("folder", type=Path)
    synthetic.add_argument("--views", type=int, default=24, help="default: 24")
    synthetic.add_argument("--size", type=_size, default=(128, 96), metavar="WxH", help="default: 128x96")
    return parser


def _add_background(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--background", type=_numbers, default=(0.0, 0.0, 0.0), metavar="R,G,B", help="in 0..1 (default: 0,0,0)"
    )


def _numbers(text: str) -> tuple[float, float, float]:
    words = text.split(",")
    if len(words) != 3:
        raise argparse.ArgumentTypeError(f"three numbers with commas between are wanted, got {text!r}")
    try:
        x, y, z = (float(w) for w in words)
    except ValueError:
        raise argparse.ArgumentTypeError(f"three numbers with commas between are wanted, got {text!r}") from None
    return x, y, z


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit() and 0 < int(width) <= 16384 and 0 < int(height) <= 16384):
        raise argparse.ArgumentTypeError(f"a size such as 640x480 is wanted, got {text!r}")
    return int(width), int(height)


def run(args: argparse.Namespace) -> int:
    actions = {
        "train": _train,
        "render": _render,
        "orbit": _orbit,
        "view": _view,
        "compress": _compress,
        "synthetic": _synthetic,
    }
    return actions[args.action](args)


def _train(args: argparse.Namespace) -> int:
    data = load_dataset(args.folder, args.downscale, args.hold_out, args.background)
    settings = TrainSettings(
        steps=args.steps,
        sh_degree=args.sh_degree,
        background=args.background,
        seed=args.seed,
        report_every=max(1, args.steps // 20),
        density=DensitySettings(max_splats=args.max_splats),
    )

    def report(progress: Progress) -> None:
        print(progress, file=sys.stderr, flush=True)

    result = train(data, settings, report, args.checkpoint)
    write_scene(args.out, result.scene)
    if args.json:
        history = [p._asdict() for p in result.history]
        print(
            json.dumps({"path": str(args.out), "splats": result.scene.splats, "psnr": result.psnr, "history": history})
        )
    else:
        where = "held-out views" if data.held_out else "the views trained on"
        print(f"{args.out}: {result.scene.splats} splats, {result.psnr:.2f} dB on {where}")
    return 0


def _camera(args: argparse.Namespace) -> Camera:
    if args.model is not None:
        cameras = read_colmap(args.model).cameras
        if args.camera not in cameras:
            some = ", ".join(sorted(cameras)[:3])
            raise RlxError(f"{args.model}: no picture is called {args.camera!r}; it has {len(cameras)}, such as {some}")
        return cameras[args.camera].ideal()
    width, height = args.size
    try:
        place = _numbers(args.camera)
    except argparse.ArgumentTypeError:
        raise RlxError(f"--camera must be x,y,z or, with --model, the name of a picture; got {args.camera!r}") from None
    return Camera.look_at(place, args.target, args.up, width, height, args.fov)


def _scene_of(args: argparse.Namespace) -> GaussianScene:
    return read_scene(args.scene)


def _render(args: argparse.Namespace) -> int:
    camera = _camera(args)
    write_png(args.out, to_bytes(render(_scene_of(args), camera, args.background)))
    print(f"{args.out}: {camera.width}x{camera.height}")
    return 0


def _orbit(args: argparse.Namespace) -> int:
    if args.frames < 1 or args.fps < 1:
        raise RlxError(f"--frames and --fps are at least 1, got {args.frames} and {args.fps}")
    scene, start = _scene_of(args), _camera(args)
    cameras = orbit(args.target, start, args.frames, args.up)
    write_apng(args.out, [to_bytes(render(scene, camera, args.background)) for camera in cameras], args.fps)
    print(f"{args.out}: {args.frames} frames of {start.width}x{start.height}")
    return 0


def _view(args: argparse.Namespace) -> int:
    write_viewer(args.out, _scene_of(args), _camera(args), args.target, args.up, args.background, args.scene.stem)
    print(f"{args.out}: open it in a browser")
    return 0


def _compress(args: argparse.Namespace) -> int:
    write_scene(args.out, _scene_of(args), compressed=True)
    before, after = args.scene.stat().st_size, args.out.stat().st_size
    print(f"{args.out}: {after:,} bytes ({after / before:.0%} of {before:,})")
    return 0


def _synthetic(args: argparse.Namespace) -> int:
    truth = write_synthetic(args.folder, args.views, *args.size)
    write_scene(args.folder / "truth.ply", truth)
    print(f"{args.folder}: {args.views} pictures of {truth.splats} splats, which are in truth.ply")
    return 0
