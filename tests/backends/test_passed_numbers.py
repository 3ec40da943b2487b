"""Numbers in a program are arguments of its kernels: programs that differ in them alone share their code."""

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.native.code_cache import loader
from rlx.backends.program import program_json
from rlx.backends.program.program import build_programs
from rlx.compile.compiler import CompilePipeline
from rlx.ir.tensor import building
from rlx.kernels.from_lir import bits_of
from rlx.kernels.machines import host, machine_named
from rlx.kernels.reuse import KernelMaker

rng = np.random.default_rng(16)
# No powers of two among them, of which code may be different.
NUMBERS = [0.03 + 0.1 * i for i in range(50)]
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def scaled_product(number, dtype="f32"):
    graph = rlx.Graph("scaled")
    x, w = graph.input("x", (5, 24), dtype), graph.input("w", (24, 24), dtype)
    with building(graph):
        graph.set_outputs([x @ w * number])
    return graph


def scaled(number, dtype):
    graph = rlx.Graph("map")
    x = graph.input("x", (37,), dtype)
    with building(graph):
        graph.set_outputs([x * number + x])
    return graph


def normalised(number):
    graph = rlx.Graph("rows")
    x = graph.input("x", ("B", 40))
    with building(graph):
        graph.set_outputs([x / ops.sqrt(ops.reduce_sum(x * x, (1,), keepdims=True) + number)])
    return graph


def codes(graph, machine=None):
    lir = CompilePipeline(target="cpu").compile(graph).lir
    maker = KernelMaker(lir.as_graph(), machine or host())
    return {maker.make(k).kernel.text for k in lir.kernels if k.kind != "view"}


@pytest.mark.parametrize("program", [scaled_product, lambda c: scaled(c, "f32"), normalised])
def test_fifty_numbers_are_one_kernel(program):
    texts = set().union(*(codes(program(number)) for number in NUMBERS))
    assert len(texts) == 1


def test_one_program_with_fifty_numbers_has_one_kernel():
    graph = rlx.Graph("all")
    x, w = graph.input("x", (5, 24)), [graph.input(f"w{i}", (24, 24)) for i in range(50)]
    with building(graph):
        graph.set_outputs([x @ w[i] * number for i, number in enumerate(NUMBERS)])
    assert len(codes(graph)) == 1
    arrays = {"x": rng.normal(size=(5, 24)).astype("f4")}
    arrays |= {f"w{i}": rng.normal(size=(24, 24)).astype("f4") for i in range(50)}
    for i, found in enumerate(rlx.Session("cpu").compile(graph).run(arrays)):
        np.testing.assert_allclose(found, arrays["x"] @ arrays[f"w{i}"] * np.float32(NUMBERS[i]), rtol=2e-5, atol=1e-4)


def test_numbers_that_make_other_code_stay_in_it():
    texts = [codes(scaled(number, "f32")) for number in (0.3, 2.0, -1.0, 0.5, np.inf)]
    assert len(set().union(*texts)) == len(texts)


def test_gpus_keep_numbers_in_the_code():
    graphs = [scaled(number, "f32") for number in (0.3, 0.7)]
    texts = [codes(graph, machine_named("sm_90a")) for graph in graphs]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0.3, -0.3, 1e-5, -7.0, 2.0, 0.0, -0.0, np.inf, -np.inf, np.nan])
def test_every_number_is_itself(dtype, number):
    """To the bit: the product is rounded once, the sum once; halves are computed in f32."""
    kind = DTYPES[dtype]
    x = rng.normal(size=37).astype(kind)
    [found] = rlx.Session("cpu").compile(scaled(number, dtype)).run({"x": x})
    wide = np.float32 if np.dtype(kind).itemsize == 2 else kind
    with np.errstate(all="ignore"):
        wanted = (x.astype(wide) * np.asarray(number, kind).astype(wide) + x.astype(wide)).astype(kind)
    np.testing.assert_array_equal(np.asarray(found).astype("f8"), wanted.astype("f8"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_scale_in_every_dtype(dtype):
    kind = DTYPES[dtype]
    x, w = rng.integers(-3, 4, (5, 24)).astype(kind), rng.integers(-3, 4, (24, 24)).astype(kind)
    [found] = rlx.Session("cpu").compile(scaled_product(-0.3, dtype)).run({"x": x, "w": w})
    exact = x.astype("f8") @ w.astype("f8") * float(np.asarray(-0.3, kind))
    np.testing.assert_allclose(np.asarray(found).astype("f8"), exact, rtol=float(ml_dtypes.finfo(kind).eps))


def test_saved_programs_keep_their_numbers():
    """Also the bits of a negative f64, which are a negative number."""
    assert bits_of(-0.3, rlx.DType.F64) < 0
    programs = build_programs(CompilePipeline(target="cpu").compile(scaled(-0.3, "f64")))
    text = program_json.programs_to_json(programs)
    again = program_json.programs_from_json(text, loader())
    assert [s.arguments for s in again.main.steps] == [s.arguments for s in programs.main.steps]
