"""What rows of `cuda_peers.py` are made of: the run they belong to, and rlx's column beside torch's.

A run is one GPU and one stream, on which everything is measured. Groups of rows are in files of their own:
`cuda_dense`, `cuda_decoding` and `cuda_rest`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from cuda_rest import Row

from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.streams import Stream
from rlx.errors import BackendError

BF16, F32 = torch.bfloat16, torch.float32
DTYPES = {
    BF16: "bf16",
    F32: "f32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.complex64: "c64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}
# Seconds from which on a launch is measured few times.
SLOW = 0.03


class Run:
    """Where everything is measured, and what of it; `cuda_peers.py` sets it."""

    gpu: Gpu
    stream: Stream
    no_rlx = False
    no_peers = False
    no_eager = False
    stored: Sequence[str] = ("Q4_K",)  # GGUF types
    models: Sequence[str] = ()


RUN = Run()


class Work(NamedTuple):
    """One row of the table: callables by column, and what they move and compute."""

    name: str
    bytes: float
    flops: float
    columns: dict[str, Callable[[int], Any]]
    launches: int = 20
    repeats: int = 1  # of the work in one launch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def own(
    function: Callable[..., Any],
    *arrays: torch.Tensor,
    turns: Sequence[dict[str, torch.Tensor]] = (),
    arch: str | None = None,
) -> Callable[[int], Any] | None:
    """The same function of rlx as a launch on arrays of the GPU; None, with a note, if it does not compile. In `turns`
    are other arrays for its arguments x0, x1, .., which take turns with them; `arch` is an older chip to compile
    for."""
    if RUN.no_rlx:
        return None
    from rlx.backends.compile_options import CompileOptions
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    graph = Graph("bench")
    names = [f"x{i}" for i in range(len(arrays))]
    leaves = [graph.input(n, tuple(a.shape), DTYPES[a.dtype]) for n, a in zip(names, arrays)]
    try:
        with building(graph):
            result = function(*leaves)
        graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
        if arch is None:
            executable = CudaBackend().compile(graph, CompileOptions())
        else:
            executable = CudaExecutable.of(
                replace(CompilePipeline.new("cuda"), machine=arch).compile(graph), RUN.gpu, arch
            )
        given = [{n: on_device(a) for n, a in zip(names, arrays)}]
        given += [{**given[0], **{n: on_device(a) for n, a in others.items()}} for others in turns]
        params = executable.prepare({})
        for _ in range(3):
            began = time.time()
            for each in given:
                executable.run(each, params)
            RUN.stream.synchronize()
            if time.time() - began > SLOW:
                break
    except Exception as error:  # a column that is missing must not take the others with it
        print(f"  rlx: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None
    return lambda i: executable.run(given[i % len(given)], params)


def on_device(tensor: torch.Tensor) -> DeviceArray:
    import ml_dtypes

    host = tensor.cpu()
    foreign = {
        BF16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
        torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    }
    if host.dtype in foreign:
        bits, element = foreign[host.dtype]
        return DeviceArray.of(host.view(bits).numpy().view(element), RUN.stream)
    return DeviceArray.of(host.numpy(), RUN.stream)


def rows_of(group: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Work]]:
    """A group of `cuda_rest` with rlx's column, whose first result is checked against torch's."""

    def works() -> Iterator[Work]:
        for row in group():
            columns = {name: torch_graph(f, row.repeats) for name, f in row.theirs.items()}
            mine = None if row.ours is None else own(row.ours, *row.arrays)
            if mine is not None:
                if row.check is not None:
                    print(f"  {distance(next(iter(row.theirs.values()))(), mine(0)[0], row.check)}", flush=True)
                columns["rlx"] = own_graph(mine, row.repeats)
            yield Work(row.name, row.bytes, row.flops, columns, 2, row.repeats)

    return works


def torch_graph(function: Callable[[], Any], repeats: int) -> Callable[[int], Any]:
    """So many calls as one graph: what is measured is the GPU, not the way to it."""
    function()
    torch.cuda.synchronize()
    if repeats == 1:
        return lambda i: function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    return lambda i: graph.replay()


def own_graph(mine: Callable[[int], Any], repeats: int) -> Callable[[int], Any]:
    """The same of rlx; call by call where a program is no graph. It keeps the arrays: their memory must not become that
    of another column."""
    if repeats == 1:
        return mine
    try:
        with RUN.stream.capture() as recorded:
            for i in range(repeats):
                mine(i)
        ready = recorded.instantiate()
    except BackendError as error:
        print(f"  rlx: not in a graph: {str(error)[:200]}", flush=True)
        return lambda i: [mine(j) for j in range(repeats)]
    return lambda i, kept=mine: ready.launch(RUN.stream)


def distance(theirs: Any, ours: Any, most: float) -> str:
    """How far a result lies from torch's, relative to the largest of its numbers."""
    theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
    wide = theirs.to(torch.complex128 if theirs.is_complex() else torch.float64).cpu().numpy()
    got = np.asarray(ours).astype(wide.dtype)
    apart = float(np.abs(got - wide).max() / np.abs(wide).max())
    return f"off by {apart:.1e}" if apart <= most else f"WRONG: off by {apart:.1e}, {most:.1e} allowed"
