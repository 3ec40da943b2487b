"""Matrix products, dot_general and einsum against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.rewrite.rebuild import rebuild

rng = np.random.default_rng(11)


def normal(*dims):
    return rng.standard_normal(dims)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 0), (0, 2)),
    ],
)
def test_matmul(both, a, b):
    x, y = normal(*a), normal(*b)
    np.testing.assert_allclose(both(ops.matmul, x, y), x @ y, rtol=1e-12)


def test_matmul_of_integers_wraps_or_widens():
    a, b = np.full((1, 4), 100, np.int8), np.full((4, 1), 100, np.int8)
    with np.errstate(over="ignore"):
        assert ops.matmul(a, b)[0, 0] == (a @ b)[0, 0]
    wide = ops.matmul(a, b, out_dtype="i32")
    assert wide.dtype == np.int32
    assert wide[0, 0] == 40000


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_accumulates_wide(dtype):
    # A running sum in half precision stops at 2048 (256 for bf16).
    a, b = np.ones((1, 4096), dtype), np.ones((4096, 1), dtype)
    assert ops.matmul(a, b)[0, 0] == 4096
    assert ops.matmul(a, b, out_dtype="f32").dtype == np.float32


def test_matmul_promotes():
    assert ops.matmul(np.ones((2, 2), np.float16), np.ones((2, 2), np.float32)).dtype == np.float32
    assert ops.matmul(np.ones((2, 2), np.int32), np.ones((2, 2), np.complex64)).dtype == np.complex64


DOTS = [
    ((3, 4), (4, 5), ([1], [0]), ([], []), "ij,jk->ik"),
    ((3, 4), (5, 4), ([-1], [-1]), ([], []), "ij,kj->ik"),
    ((2, 3, 4), (4, 5, 3), ([1, 2], [2, 0]), ([], []), "ijk,klj->il"),
    ((2, 3, 4), (5, 2, 4), ([2], [2]), ([0], [1]), "ijk,lik->ijl"),
    ((2, 3, 5, 4), (5, 4, 6, 2), ([3], [1]), ([0, 2], [3, 0]), "abcd,cdea->acbe"),
    ((3,), (2,), ([], []), ([], []), "i,j->ij"),
    ((3, 2), (2, 3), ([], []), ([0, 1], [1, 0]), "ij,ji->ij"),
]


@pytest.mark.parametrize(("a", "b", "contract", "batch", "spec"), DOTS)
def test_dot_general(both, a, b, contract, batch, spec):
    x, y = normal(*a), normal(*b)
    result = both(lambda x, y: ops.dot_general(x, y, *contract, *batch), x, y)
    np.testing.assert_allclose(result, np.einsum(spec, x, y), rtol=1e-12)


def test_dot_general_becomes_one_matmul_without_needless_copies():
    graph = Graph()
    x, w = graph.input("x", ("B", "S", 4), "f32"), graph.input("w", (4, 5), "f32")
    graph.set_outputs([ops.dot_general(x, w, [2], [0])])
    lowered = rebuild(graph, lambda n, xs: n.op.decompose(*xs) if isinstance(n.op, ops.DotGeneral) else None).graph
    assert [n.op.mnemonic for n in lowered.nodes[2:]] == ["reshape", "matmul", "reshape"]


@pytest.mark.parametrize(
    ("spec", "dims"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ba,cb", [(3, 4), (5, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("...ii->...i", [(2, 4, 4)]),
        ("iji->j", [(3, 4, 3)]),
        ("iijj->ij", [(3, 3, 2, 2)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("ij->j", [(3, 4)]),
        ("i,i->i", [(4,), (4,)]),
        ("i,j->ij", [(4,), (3,)]),
        ("i,ij->", [(4,), (4, 3)]),
        ("ij,ij->", [(4, 3), (4, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("...ij,jk", [(2, 3, 4), (4, 2)]),
        ("i...,i...->...", [(3, 2, 4), (3, 1, 4)]),
        ("...,...", [(2, 3), (3,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,jk,kl,lm->mi", [(2, 3), (3, 4), (4, 5), (5, 2)]),
        ("ab,ac,ad->abcd", [(2, 3), (2, 4), (2, 5)]),
        ("i,i,i->", [(4,), (4,), (4,)]),
        ("ii,ij,j->i", [(3, 3), (3, 4), (4,)]),
        ("ij,jk->ik", [(3, 1), (4, 5)]),
        (" i j , j k -> k i ", [(3, 4), (4, 5)]),
        ("aB,Bc->ac", [(3, 4), (4, 5)]),
        ("ij,kl->", [(3, 4), (2, 5)]),
        (",ij->ij", [(), (3, 4)]),
    ],
)
def test_einsum(both, spec, dims):
    operands = [normal(*d) for d in dims]
    result = both(lambda *xs: ops.einsum(spec, *xs), *operands)
    np.testing.assert_allclose(result, np.einsum(spec, *operands), rtol=1e-11, atol=1e-12)


def test_einsum_with_symbolic_sizes(both):
    q, k = normal(2, 3, 4, 5), normal(2, 6, 4, 5)
    dims = [("B", "S", 4, 5), ("B", "T", 4, 5)]
    result = both(lambda q, k: ops.einsum("bqhd,bkhd->bhqk", q, k), q, k, dims=dims)
    np.testing.assert_allclose(result, np.einsum("bqhd,bkhd->bhqk", q, k), rtol=1e-12)
    x = normal(3, 3)
    np.testing.assert_allclose(both(lambda x: ops.einsum("ii->i", x), x, dims=[("N", "N")]), np.diagonal(x))


def test_einsum_with_lists_of_labels(both):
    a, b = normal(3, 4), normal(4, 5)
    np.testing.assert_allclose(both(lambda a, b: ops.einsum(a, [0, 1], b, [1, 2], [2, 0]), a, b), (a @ b).T)
    np.testing.assert_allclose(both(lambda a, b: ops.einsum(a, [..., 1], b, [1, 2]), a, b), a @ b)


def test_einsum_joins_small_products_first():
    graph = Graph()
    matrix, vector = graph.input("m", (64, 64), "f32"), graph.input("v", (64,), "f32")
    graph.set_outputs([ops.einsum("ij,jk,k->i", matrix, matrix, vector)])
    shapes = [n.shape.dims for n in graph.nodes if n.op.mnemonic == "dot_general"]
    assert shapes == [(64,), (64,)]


@pytest.mark.parametrize(
    ("name", "a", "b", "args"),
    [
        ("dot", (), (3,), ()),
        ("dot", (3,), (3,), ()),
        ("dot", (2, 3), (3, 4), ()),
        ("dot", (2, 3), (3,), ()),
        ("dot", (2, 5, 3), (4, 3, 6), ()),
        ("dot", (2, 5, 3), (3,), ()),
        ("inner", (2, 3), (4, 3), ()),
        ("inner", (), (4, 3), ()),
        ("outer", (2, 3), (4,), ()),
        ("tensordot", (2, 3, 4), (3, 4, 5), ()),
        ("tensordot", (2, 3), (4,), (0,)),
        ("tensordot", (2, 3, 4), (4, 5, 2), (([0, 2], [2, 0]),)),
        ("tensordot", (2, 3), (4, 3), ((1, -1),)),
    ],
)
def test_products_named_as_in_numpy(both, name, a, b, args):
    x, y = normal(*a), normal(*b)
    result = both(lambda x, y: getattr(ops, name)(x, y, *args), x, y)
    np.testing.assert_allclose(result, getattr(np, name)(x, y, *args), rtol=1e-12)


def test_vecdot(both):
    a, b = normal(2, 3, 4), normal(3, 4)
    np.testing.assert_allclose(both(ops.vecdot, a, b), (a * b).sum(-1))
    np.testing.assert_allclose(both(lambda a, b: ops.vecdot(a, b, 0), a, a), (a * a).sum(0))
    z = a + 1j * a[::-1]
    np.testing.assert_allclose(both(ops.vecdot, z, z), (np.abs(z) ** 2).sum(-1))


def test_lora_matmul(both):
    x, w, a, b = normal(2, 3, 4), normal(4, 5), normal(4, 2), normal(2, 5)
    result = both(lambda *o: ops.lora_matmul(*o, scale=0.5), x, w, a, b)
    np.testing.assert_allclose(result, x @ (w + 0.5 * a @ b), rtol=1e-12)


def test_grouped_matmul(both):
    x, w, ids = normal(5, 3), normal(4, 3, 2), np.array([3, 0, 0, -1, 2])
    expected = np.stack([row @ w[i] for row, i in zip(x, ids, strict=True)])
    np.testing.assert_allclose(both(ops.grouped_matmul, x, w, ids), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.matmul(1.0, normal(2, 2)), ShapeError, "scalar"),
        (lambda: ops.matmul(normal(2, 3), normal(4, 5)), ShapeError, "inner sizes differ, 3 against 4"),
        (lambda: ops.matmul(normal(2, 2, 3), normal(3, 3, 2)), ShapeError, "do not broadcast"),
        (lambda: ops.MatMul("best"), OpError, "precision must be one of"),
        (lambda: ops.matmul(normal(2, 2), normal(2, 2), out_dtype="i32"), OpError, "out_dtype=i32"),
        (lambda: ops.MatMul(out_dtype="bool"), OpError, "numeric type"),
        (lambda: ops.dot_general(normal(2, 3), normal(2, 3), [1], [0]), OpError, "paired but differ"),
        (lambda: ops.DotGeneral((0,), ()), OpError, "come in pairs"),
        (lambda: ops.dot_general(normal(2, 2), normal(2, 2), [0], [0], [0], [1]), ShapeError, "one axis twice"),
        (lambda: ops.tensordot(normal(2), normal(2), 2), ShapeError, "2 axes cannot be summed"),
        (lambda: ops.einsum("ij,jk", normal(2, 2)), ShapeError, "describes 2 operands"),
        (lambda: ops.einsum("ijk", normal(2, 2)), ShapeError, "names 3 axes"),
        (lambda: ops.einsum("i", normal(2, 2)), ShapeError, "names 1 axes"),
        (lambda: ops.einsum("ij->ik", normal(2, 2)), ShapeError, "labels of the operands"),
        (lambda: ops.einsum("ij->ii", normal(2, 2)), ShapeError, "each once"),
        (lambda: ops.einsum("i1->i", normal(2, 2)), ShapeError, "letters"),
        (lambda: ops.einsum("ij,jk", normal(2, 3), normal(4, 2)), ShapeError, "size 3 in one operand, 4"),
        (lambda: ops.einsum("ii", normal(2, 3)), ShapeError, "occurs twice"),
        (lambda: ops.grouped_matmul(normal(5, 3), normal(2, 4, 2), np.zeros(5, int)), OpError, r"w \[E,K,N\]"),
        (lambda: ops.lora_matmul(normal(2, 3), normal(3, 4), normal(3, 1), normal(1, 5), 1.0), OpError, "last size"),
    ],
)
def test_errors_name_the_problem(call, error, message):
    with pytest.raises(error, match=message):
        call()
