"""Run a model once: an ONNX file, a graph (.rlx) or a compiled program (.rlxc).

Inputs are .npy or .npz files; what is not given is random. The outputs are described, and written with --out.

examples:
  rlx run model.onnx
  rlx run model.onnx --input x=image.npy --out results.npz
  rlx run model.onnx --size batch=8 --repeat 100
  rlx run model.onnx --device reference --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.cli import add_command
from rlx.cli.arguments import add_device_argument, positive, require_new
from rlx.errors import FormatError, RlxError
from rlx.formats.mapped_file import replace_file
from rlx.ir.dims import bind_dim

if TYPE_CHECKING:
    from rlx.cli import Subparsers
    from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]
# What open sizes are where nothing says otherwise.
_USUAL_SIZE = 1


class _Program(NamedTuple):
    inputs: Mapping[str, Shape]
    outputs: Sequence[str]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "run", __doc__)
    parser.add_argument("model", type=Path, help="an .onnx, .rlx or .rlxc file")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="an input: .npy, or .npz with one array"
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="an open size of random inputs; 1 unless given"
    )
    add_device_argument(parser)
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument("--repeat", type=positive, metavar="N", help="run N times more, and show the median time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the outputs to an .npz file")
    parser.add_argument("--force", action="store_true", help="write over a file")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.out is not None:
        require_new(args.out, args.force)
        if not args.out.parent.is_dir():
            raise RlxError(f"{args.out.parent}: there is no such folder")
    program = _opened(args.model, args.device)
    given = {name: _array(Path(file)) for name, file in map(_pair, args.input)}
    if unknown := [name for name in given if name not in program.inputs]:
        raise RlxError(f"there is no input {unknown[0]!r}; the inputs are {', '.join(program.inputs)}")
    inputs = _all_inputs(program, given, _sizes(args.size, program), args.seed)
    results = dict(zip(program.outputs, map(np.asarray, program.run(inputs)), strict=True))
    seconds = _median(program, inputs, args.repeat) if args.repeat else None
    if args.out is not None:
        with replace_file(args.out) as file:
            write_arrays: Any = np.savez
            write_arrays(file, **results)
    if args.json:
        print(json.dumps(_document(inputs, results, given, seconds)))
        return 0
    for name, array in inputs.items():
        print(f"{name}: {_type(array)}{'' if name in given else ', random'}")
    for name, array in results.items():
        print(f"{name}: {_type(array)}{_described(array)}")
    if seconds is not None:
        print(f"median of {args.repeat} runs: {seconds * 1e3:.3f} ms")
    return 0


def _opened(path: Path, device: str) -> _Program:
    if path.is_dir():
        raise FormatError(f"{path}: a file is needed; this is a directory")
    if path.suffix == ".onnx":
        import rlx.onnx

        model = rlx.onnx.load(path, device)
        return _Program(model.inputs, model.outputs, model.run)
    from rlx.runtime.session import Session

    if path.suffix == ".rlxc":
        from rlx.runtime.compiled_graph import load_compiled

        if device != "cpu":
            raise RlxError(f"{path} is compiled for the CPU, and does not run on {device}")
        compiled = load_compiled(path)
    elif path.suffix in (".rlx", ".txt"):
        from rlx.cli.graph_files import read_graph

        graph = read_graph(path)
        if graph.params:
            params = ", ".join(str(n.name) for n in graph.params[:3])
            raise RlxError(f"{path}: a graph has no values for its params ({params}); make them constants or inputs")
        compiled = Session(device).compile(graph)
    else:
        raise FormatError(
            f"{path}: an .onnx, .rlx or .rlxc file is needed; rlx generate, chat and embed run language models"
        )
    names = [f"output_{i}" for i in range(len(compiled.output_types))]
    return _Program(compiled.input_types, names, compiled.run)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise RlxError(f"NAME=VALUE is needed, got {text!r}")
    return name, value


def _sizes(given: Sequence[str], program: _Program) -> dict[str, int]:
    known = {symbol for type in program.inputs.values() for symbol in type.dynamic_symbols()}
    sizes = dict.fromkeys(known, _USUAL_SIZE)
    for name, value in map(_pair, given):
        if name not in known:
            raise RlxError(f"there is no open size {name!r}; there are {', '.join(sorted(known)) or 'none'}")
        if not value.isdigit():
            raise RlxError(f"a size is a whole number from 0 on, got {name}={value}")
        sizes[name] = int(value)
    return sizes


def _array(path: Path) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path}: not an array of NumPy: {error}") from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if len(loaded.files) != 1:
            raise FormatError(f"{path}: one array is needed, it has {', '.join(loaded.files) or 'none'}")
        return np.asarray(loaded[loaded.files[0]])


def _all_inputs(program: _Program, given: Mapping[str, Array], sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    from rlx.ir.binding import infer_binding

    # The sizes of the given arrays are those of the others.
    told = infer_binding([(name, program.inputs[name], array.shape) for name, array in given.items()])
    sizes = {**sizes, **told}
    rng = np.random.default_rng(seed)
    return {name: given[name] if name in given else _random(rng, type, sizes) for name, type in program.inputs.items()}


def _random(rng: np.random.Generator, type: Shape, sizes: Mapping[str, int]) -> Array:
    """Normal numbers; for whole ones 0 and 1, which every table and mask has."""
    dims = [int(bind_dim(d, sizes)) for d in type.dims]
    if type.dtype.is_float or type.dtype.is_complex:
        return rng.standard_normal(dims).astype(type.dtype.numpy)
    return rng.integers(0, 2, dims).astype(type.dtype.numpy)


def _median(program: _Program, inputs: Mapping[str, Array], count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        program.run(inputs)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _type(array: Array) -> str:
    from rlx.ir.shape import Shape

    return str(Shape(array.shape, array.dtype))


def _described(array: Array) -> str:
    if not array.size or array.dtype.kind == "c":
        return ""
    if array.dtype.kind == "b":
        return f", {array.mean():.4g} true"
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        return f", {np.count_nonzero(~np.isfinite(wide))} of {array.size} not finite"
    return f", mean {wide.mean():.4g}, from {wide.min():.4g} to {wide.max():.4g}"


def _document(
    inputs: Mapping[str, Array], results: Mapping[str, Array], given: Mapping[str, Array], seconds: float | None
) -> dict[str, object]:
    def described(array: Array) -> dict[str, object]:
        return {"shape": list(array.shape), "dtype": str(array.dtype)}

    document: dict[str, object] = {
        "inputs": {name: {**described(a), "random": name not in given} for name, a in inputs.items()},
        "outputs": {name: described(a) for name, a in results.items()},
    }
    if seconds is not None:
        document["median_seconds"] = seconds
    return document
