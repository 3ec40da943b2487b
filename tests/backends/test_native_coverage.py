"""What still runs by its definition on the host of the CPU backend: a closed list, each entry with its reason.

Every op is compiled on its samples. A call that is not on the list fails here, so that nothing falls back to Python
unnoticed; an entry that nothing needs any more fails, too.
"""

from __future__ import annotations

import functools

import pytest

import rlx.backends.cpu  # noqa: F401  (makes its generator known)
from op_samples import LEAVES, sample_graph, samples_of
from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.leaves import Project
from rlx.ir.op import OP_CLASSES

# One type of each kind is enough: kernels differ by kind, not by width.
SWEPT = {"f32", "bf16", "i32", "u8", "bool", "c64"}

EFFECT = "talks to Python, in the order of the program"
CALLER = "is Python code of the caller"
DEVICES = "exchanges with other devices; the CPU backend is one device"
FAILURE = "looks at what native factorisations have left, and raises the error of the op if that is not enough"
BYTES = "the same bytes as a type of another width; kernels see one type per buffer"
NO_AXES = "an operand without axes has no windows"
PANELS = "the compiler makes it with weights that it lays out in panels"
# Instead of a class: what is special about the types of a call.
COMPLEX = "complex numbers where they do not come apart: spectra of symbolic sizes, products along an axis, bodies"
STORAGE = "types that are for storage only, or smaller than a byte, have no kernel values"

STEPS = "steps of sorts that the compiler makes for NVIDIA's GPUs alone, which have kernels for all types"
ALLOWED = {
    **dict.fromkeys(("DebugPrint", "HostCallback", "RuntimeAssert"), EFFECT),
    "Custom": CALLER,
    **dict.fromkeys(("AllGather", "AllReduce", "AllToAll", "AxisIndex", "PPermute", "ReduceScatter"), DEVICES),
    "RequireFactors": FAILURE,
    "Bitcast": BYTES,
    "ReduceWindow": NO_AXES,
    "WindowProduct": PANELS,
    **dict.fromkeys(("RadixCounts", "RadixPlaces", "TopOfParts"), STEPS),
    COMPLEX: COMPLEX,
    STORAGE: STORAGE,
}


def kernel_types(sample):
    return [d for d in sample.dtypes if d in SWEPT] or sample.dtypes[:1]


def called(graph, node):
    """Why a node is called: its class, or what is special about the types it has to do with."""
    types = [s.dtype for i in (*node.inputs, node.id) for s in graph.nodes[i].shapes]
    if any(t.is_complex for t in types):
        return COMPLEX
    if any(t.is_storage or t in (DType.I4, DType.U4) for t in types):
        return STORAGE
    return type(node.op).__name__


@functools.cache
def calls_of(name):
    """What is called when the samples of an op run, with an example of each."""
    found: dict[str, str] = {}
    pipeline = CompilePipeline.new("cpu")
    for sample in samples_of(name):
        for dtype in kernel_types(sample):
            graph = sample_graph(sample, dtype)
            compiled = pipeline.compile(graph)
            for lir in (compiled.lir, compiled.prepare):
                for kernel in lir.kernels if lir is not None else ():
                    node = lir.as_graph().nodes[kernel.nodes[0]]
                    if kernel.kind == "call" and not isinstance(node.op, Project):
                        found.setdefault(called(lir.as_graph(), node), f"{sample} as {dtype}: {node!r}")
    return found


# Blocks become ops before anything is compiled; tests add ops of their own.
OPS = [n for n, c in OP_CLASSES.items() if n not in LEAVES and c.__module__.startswith("rlx.ops")]


@pytest.mark.parametrize("name", OPS)
def test_only_known_ops_are_called_on_the_host(name):
    unknown = {what: example for what, example in calls_of(name).items() if what not in ALLOWED}
    assert not unknown, "give it a kernel or a form, or say in ALLOWED why not"


def test_no_reason_is_out_of_date():
    idle = set(ALLOWED)
    # Ops that are on the list by their names first: most others need not be compiled here once more.
    for name in sorted(OPS, key=lambda name: name not in ALLOWED):
        idle -= calls_of(name).keys() if idle else set()
    assert not idle, "it runs natively now: take it off the list"
