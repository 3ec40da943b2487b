"""What MLX is told, and what is refused. None of this needs MLX itself."""

from __future__ import annotations

from importlib import metadata

import pytest

import rlx
import rlx.hir
import rlx.sparse
from conformance.suite import OPS, cases
from rlx.backends.mlx import device
from rlx.backends.mlx.lowering import LOWERING
from rlx.backends.mlx.quantized_weights import weights_to_pack
from rlx.backends.mlx.rules_control import is_traceable
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Absent, select
from rlx.errors import NotInstalled
from rlx.ir.binding import bind_graph
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.quant.schemes import QuantScheme

# Ops that users can write and MLX cannot run, whole or for types that it has. A name may only leave this list.
REFUSED = {
    "Custom",
    "DebugPrint",
    "HostCallback",
    "CsrDirectSolve",
    "CsrFactoredSolve",
    "CsrIncompleteCholesky",
    "CsrIncompleteLu",
    "CsrIterativeSolve",
    "CsrMaskedProduct",
    "CsrTriangularSolve",
    "DequantMatMul",
    "Eig",
    "Fft",
    "PanelCholesky",
    "Schur",
}
# Factorisations and sparse products of complex matrices, which are computed in c128.
REFUSED_IN_COMPLEX = {
    "BatchedDenseSolve",
    "BsrMatMul",
    "Cholesky",
    "CsrMatMul",
    "CsrSampledProduct",
    "CsrTransposedMatMul",
    "DenseSolve",
    "Eigh",
    "Expm",
    "Logm",
    "Lu",
    "Pinv",
    "PolarFactor",
    "Qr",
    "Sqrtm",
    "Svd",
    "TriangularSolve",
}


def options():
    return rlx.CompileOptions()


@pytest.mark.targets
def test_what_is_refused_is_known():
    refused, in_complex = set(), set()
    for name in OPS:
        for case in cases(name):
            if case.sample.op.lowered or case.dtype not in (case.sample.dtypes[0], "f64", "c64"):
                continue
            if any(shape.dtype is rlx.DType.C128 for node in case.graph().nodes for shape in node.shapes):
                continue
            try:
                LOWERING.lowered(bind_graph(LOWERING.require_all(case.graph(), options()), case.sample.binding))
            except LegalizeError as error:
                (in_complex if case.dtype == "c64" else refused).add(name)
                assert "neither a rule nor a decomposition" not in str(error)
    assert (refused, in_complex - refused) == (REFUSED, REFUSED_IN_COMPLEX)


def test_types_that_mlx_lacks_are_refused_by_name():
    g = rlx.Graph("wide")
    g.set_outputs([g.input("z", (2,), "c128") * 2.0])
    with pytest.raises(LegalizeError, match=r"Input: MLX has no complex numbers of double precision; use c64"):
        LOWERING.require_all(g, options())


def test_a_refusal_names_the_op_and_its_reason():
    g = rlx.Graph("prints")
    g.set_outputs([rlx.ops.debug_print("{}", g.input("x", ("B",), "f32"))])
    with pytest.raises(LegalizeError, match=r"mlx cannot run 1 node of this program:\n.*DebugPrint: it calls Python"):
        LOWERING.require_all(g, options())


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: rlx.nn.softmax(x @ x), True),
        (lambda x: rlx.scan(lambda c, y: (c + y, c), x[0], x)[0], True),
        (lambda x: rlx.scan(lambda c, _: (c + x, None), x, None, length=100)[0], False),
        (lambda x: rlx.while_loop(lambda c: c.sum() < 9.0, lambda c: c + x, x), False),
        (lambda x: rlx.cond(x.sum() > 0.0, lambda c: c, lambda c: -c, x), False),
    ],
)
def test_what_can_be_told_before_there_are_numbers(build, wanted):
    g = rlx.Graph("g")
    with rlx.ir.tensor.building(g):
        g.set_outputs([build(g.input("x", (4, 4), "f32"))])
    assert is_traceable(LOWERING.lowered(g)) == wanted


@pytest.mark.parametrize(("kind", "fits"), [("gguf_q4_0", True), ("gguf_q4k", True), ("gguf_q6k", False)])
def test_weights_that_only_products_read_are_packed(kind, fits):
    scheme = QuantScheme.of(kind)
    g = rlx.Graph("g")
    x, w = g.input("x", ("B", 256), "f32"), g.param("w", (scheme.packed_bytes(256, 3),), "u8")
    g.set_outputs([DequantMatMul(scheme, 3)(x, w)])
    assert ("w" in weights_to_pack(g)) == fits
    g.set_outputs([*g.outputs, w])
    assert not weights_to_pack(g)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({}, "the package mlx is not installed"),
        ({"mlx": "0.29.1", "mlx-cpu": "0.29.1"}, "mlx 0.29.1 is installed, and programs need 0.32 or later"),
        ({"mlx": "0.32.4"}, "mlx is installed without the part that computes on this system"),
    ],
)
def test_what_is_missing_is_said(monkeypatch, versions, reason):
    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(device, "version", version)
    monkeypatch.setattr(device.sys, "platform", "linux")
    device.installed.cache_clear()
    try:
        found = select("mlx").target.probe()
        assert isinstance(found, Absent) and (found.reason, found.remedy) == (reason, 'pip install "rlx[mlx]"')
        with pytest.raises(NotInstalled, match=reason):
            device.require_installed()
    finally:
        device.installed.cache_clear()
