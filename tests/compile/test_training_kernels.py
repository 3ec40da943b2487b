"""What training programs become for NVIDIA GPUs: gradients of attention, of weights, biases, embeddings and the loss.
Programs are run in NumPy as they were lowered, in the memory that their plan gives them, and held to the CPU engine."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import nn, ops, optim
from rlx.backends.cpu import CpuExecutable
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower import column_sums
from rlx.compile.memory.interpret import interpret_lir
from rlx.ir.graph import Graph
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import scatter_rows
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.machines import machine_named
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.norm_gradients import LayerNormBackwardGamma, LayerNormBackwardInput
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.indexing import ScatterNd
from rlx.ops.shape.movement import Transpose

SM_90A = machine_named("sm_90a")
VOCABULARY, WIDTH, LENGTH = 96, 128, 16


def step_graph():
    """A step of a transformer of one block with two heads of 64, its loss and AdamW; and values for its inputs."""
    body = nn.chain(nn.transformer_block(2, 256, is_causal=True, use_bias=True), nn.norm_layer())

    def loss(params, batch):
        x = params["tokens"][batch["ids"]] + params["places"]
        logits = body.apply(params["body"], x) @ params["tokens"].T
        return nn.cross_entropy(logits.astype("f32"), batch["labels"])

    rng = np.random.default_rng(0)
    params = {
        "tokens": rng.standard_normal((VOCABULARY, WIDTH)).astype("f4") * 0.1,
        "places": rng.standard_normal((LENGTH, WIDTH)).astype("f4") * 0.1,
        "body": body.init(rlx.random.key(0), (1, LENGTH, WIDTH)),
    }
    batch = {name: rng.integers(0, VOCABULARY, (4, LENGTH), dtype=np.int32) for name in ("ids", "labels")}
    optimizer = optim.adamw(1e-2)
    state = rlx.train.init_state(params, optimizer)
    step = rlx.train.make_step(loss, optimizer, precision="bf16")
    graph = step.lower(state, batch).graph
    leaves = [np.asarray(x) for x in rlx.tree.leaves((state, batch))]
    return graph, dict(zip((n.op.key for n in graph.inputs), leaves, strict=True))


@pytest.fixture(scope="module")
def step():
    return step_graph()


@pytest.fixture
def many_parts(monkeypatch):
    """Short columns are cut, too."""
    monkeypatch.setattr(column_sums, "FEWEST_ELEMENTS", 1)
    monkeypatch.setattr(column_sums, "SHORTEST_PART", 4)


def test_a_step_is_what_the_cpu_computes(step, many_parts):
    graph, leaves = step
    lir = CompilePipeline.new("cuda").compile(graph).lir
    # `check` finds values that are read after they were stored over.
    got = interpret_lir(lir, {k: v.copy() for k, v in leaves.items()})
    want = CpuExecutable.of(CompilePipeline.new("cpu").compile(graph)).run({k: v.copy() for k, v in leaves.items()}, {})
    for node, a, b in zip(graph.outputs, got, want, strict=True):
        a, b = (np.asarray(x).astype("f8") for x in (a, b))
        # Adam's first change of a weight is its sign times the rate, whatever the size of the gradient.
        bound = 2e-2 * np.abs(b).max() + 1e-6
        assert np.abs(a - b).max() <= max(bound, 2.1e-2), graph.nodes[node]


def test_a_step_has_no_matrix_of_scores_and_turns_nothing(step, many_parts):
    lir = CompilePipeline.new("cuda").compile(step[0]).lir
    graph, kinds = lir.as_graph(), [k.kind for k in lir.kernels]
    assert kinds.count("attention_gradients") == 1 == kinds.count("attention") and "scatter" in kinds
    assert not any(n.shape.dims[-2:] == (LENGTH, LENGTH) for n in graph.nodes if len(n.shapes) == 1)
    # No kernel is a turned copy of something.
    moved = [
        k for k in lir.kernels if k.kind == "map" and all(isinstance(graph.nodes[n].op, Transpose) for n in k.nodes)
    ]
    assert not moved
    # Powers of the loss, places of its labels and normalised rows are not stored: gradients compute them again.
    stored = [graph.shape(n) for k in lir.kernels for n in k.outputs]
    assert not any(s.dims[-1:] == (VOCABULARY,) and s.dtype.value in ("f32", "bool") for s in stored)
    # What is as wide as sums is added up in memory: the gradient of queries, and that of looked up rows.
    wide = [s.dims for s in stored if s.dims[:2] == (4, LENGTH) and s.dims[2:] > (1,) and s.dtype.value == "f32"]
    assert wide == [(4, LENGTH, 2, 64), (4, LENGTH, WIDTH)]


def test_a_step_stores_over_its_state(step, many_parts):
    from rlx.backends.cuda.executable import CudaExecutable

    program = CudaExecutable.of(CompilePipeline.new("cuda").compile(step[0]), None, "sm_90a").programs.main
    assert len(program.overwritten) > 30 and not program.moved


def compiled(function, *dims, dtype="f32"):
    graph = Graph("one")
    leaves = [graph.input(f"x{i}", d, dtype) for i, d in enumerate(dims)]
    with building(graph):
        result = function(*leaves)
    graph.set_outputs([result])
    return CompilePipeline.new("cuda").compile(graph).lir


@pytest.mark.parametrize(
    ("dims", "axes", "parts"),
    [
        ((8, 1024, 768), (0, 1), (8, 16)),
        ((8192, 3072), (0,), (128,)),
        ((4096, 256), (-1,), None),
        ((16, 64), (0,), None),
        ((4096, 65536), (0,), None),
        (("B", 1024, 768), (0, 1), None),
        ((8191, 768), (0,), None),
        ((8, 1024, 768), (), None),
    ],
)
def test_long_columns_are_summed_in_parts(dims, axes, parts):
    lir = compiled(lambda x: ops.reduce_sum(x, axes), dims)
    sums = [n for n in lir.as_graph().nodes if isinstance(n.op, Reduce)]
    assert len(sums) == (2 if parts is not None else len(axes) > 0)
    if parts is not None:
        assert sums[0].shape.dims == (*parts, dims[-1]) and sums[1].shape.dims == dims[-1:]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_parts_have_the_same_result(kind, many_parts):
    x = np.random.default_rng(1).standard_normal((3, 64, 5)).astype("f4")
    lir = compiled(lambda x: getattr(ops, f"reduce_{kind}")(x, (0, 1)), x.shape)
    assert sum(isinstance(n.op, Reduce) for n in lir.as_graph().nodes) == 2
    np.testing.assert_allclose(interpret_lir(lir, {"x0": x})[0], getattr(np, kind)(x, axis=(0, 1)), rtol=1e-5)


def test_gradients_of_weights_read_activations_as_they_lie():
    def gradient(x, dy):
        return ops.reshape(ops.transpose(x, (2, 0, 1)), (64, 96)) @ ops.reshape(dy, (96, 32))

    lir = compiled(gradient, (4, 24, 64), (4, 24, 32), dtype="bf16")
    assert [k.kind for k in lir.kernels if k.kind != "view"] == ["matmul"]
    lir = compiled(lambda x, y: (x @ y).T, (40, 64), (64, 72), dtype="bf16")
    (product,) = (n for n in lir.as_graph().nodes if isinstance(n.op, MatMul))
    assert product.shape.dims == (72, 40)


def test_costly_work_behind_a_product_is_a_kernel_of_its_own():
    def kinds(function):
        return [k.kind for k in compiled(function, (64, 64), (64, 64), dtype="bf16").kernels if k.kind != "view"]

    assert kinds(lambda a, b: rnp.tanh(a @ b) + 1.0) == ["matmul"]
    assert kinds(lambda a, b: rnp.tanh(a @ b) * rnp.exp(a @ b)) == ["matmul", "map"]


@pytest.mark.parametrize(("kind", "mode"), [("add", "clip"), ("set", "drop")])
def test_rows_are_scattered_by_blocks(kind, mode, monkeypatch):
    monkeypatch.setattr(scatter_rows, "THREADS", 8)
    rng = np.random.default_rng(2)
    op = ScatterNd(kind, (0,), 0, mode)
    graph = Graph("scatter")
    x, ids, updates = (
        graph.input("x", (3, 20), "f32"),
        graph.input("ids", (2, 12, 1), "i32"),
        graph.input("updates", (2, 12, 20), "f32"),
    )
    graph.set_outputs([op(x, ids, updates)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind == "scatter")
    made = make_kernel("scatter", lir.as_graph(), kernel, SM_90A).kernel
    table, places, rows = (
        rng.standard_normal((3, 20)).astype("f4"),
        rng.integers(-4, 5, (2, 12, 1)).astype("i4"),
        rng.standard_normal((2, 12, 20)).astype("f4"),
    )
    want, found = op.eval(table, places, rows), table.copy().ravel()
    given = {"x0": table.ravel(), "x1": places.ravel(), "x2": rows.ravel(), "y0": found}
    interpret(made, {p.name: given[p.name] for p in made.params})
    assert "barrier" in made.text
    np.testing.assert_allclose(found.reshape(3, 20), want, rtol=1e-5, atol=1e-6)


def test_lanes_of_a_long_row_run_along_it_however_many_numbers_belong_to_it():
    """Rows of the loss with several numbers for each: a block for each row, not a thread."""
    graph = Graph("loss")
    logits, labels = graph.input("x", (64, 4096), "bf16"), graph.input("labels", (64,), "i32")
    with building(graph):
        value = ops.cast(logits, "f32")
        loss = nn.softmax_cross_entropy_with_integer_labels(value, labels)
        peak, total = ops.reduce_max(value, (-1,)), ops.reduce_sum(value, (-1,))
    graph.set_outputs([loss, peak, total, loss * 2.0, peak * 3.0])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    rows = [k for k in lir.kernels if k.kind in ("row", "reduce")]
    assert rows and all("barrier" in make_kernel("row", lir.as_graph(), k, SM_90A).kernel.text for k in rows)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_gradients_of_norms_from_what_is_stored_anyway(offset):
    """Against f64, also where the mean of a row is much larger than what differs in it."""
    rng = np.random.default_rng(3)
    bf16 = rlx.DType.BF16.numpy
    x = (rng.standard_normal((6, 64)) + offset).astype(bf16)
    gamma, dy = rng.standard_normal(64).astype(bf16), rng.standard_normal((6, 64)).astype(bf16)
    for op, given in ((LayerNormBackwardInput(), (x, gamma, dy)), (LayerNormBackwardGamma(), (x, dy))):
        lir = compiled(op, *(a.shape for a in given), dtype="bf16")
        (found,) = interpret_lir(lir, {f"x{i}": a for i, a in enumerate(given)})
        want = op.eval(*(a.astype("f8") for a in given))
        np.testing.assert_allclose(found.astype("f8"), want, rtol=1e-2, atol=4e-3 * np.abs(want).max())
