"""What is written for XLA, and what is refused. None of this needs XLA itself."""

from importlib import metadata

import numpy as np
import pytest

import rlx
import rlx.hir
import rlx.sparse
from conformance.suite import OPS, cases
from rlx.backends.forms.gguf_blocks import DECODERS
from rlx.backends.xla import adapter
from rlx.backends.xla.buckets import free_symbols
from rlx.backends.xla.lowering import claimed_ops, lowered, require_all
from rlx.backends.xla.stablehlo import module_of
from rlx.backends.xla.text import Block, Kind
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Absent, select
from rlx.errors import NotInstalled
from rlx.ir.binding import bind_graph
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ops.quant.quantized_weights import DequantMoEWeights
from rlx.quant.schemes import QuantScheme

# Ops that users can write and XLA cannot run, whole or for some types. A name may only leave this list.
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
    "Logm",
    "PanelCholesky",
    "Schur",
    "Sqrtm",
}


def test_a_program_as_text():
    g = rlx.Graph("sum of products")
    x = g.input("x", (2, 3), "f32")
    g.set_outputs([rlx.relu(x @ g.param("w", (3, 1), "f32"))])
    lines = module_of(lowered(g)).text.splitlines()
    assert lines[0].startswith("module @sum_of_products attributes")
    assert lines[1] == "func.func public @main(%0: tensor<2x3xf32>, %1: tensor<3x1xf32>) -> (tensor<2x1xf32>) {"
    assert '%2 = "stablehlo.dot_general"(%0, %1)' in lines[2]
    assert lines[-4].endswith('"stablehlo.maximum"(%2, %4) : (tensor<2x1xf32>, tensor<2x1xf32>) -> tensor<2x1xf32>')
    assert lines[-3] == '"func.return"(%5) : (tensor<2x1xf32>) -> ()'


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.float32(1.5), 'dense<"0x0000C03F"> : tensor<f32>'),
        (np.full((2, 2), 7, np.int16), 'dense<"0x0700"> : tensor<2x2xi16>'),
        (np.array([1, 2], np.uint8), 'dense<"0x0102"> : tensor<2xui8>'),
        (np.ones(3, bool), "dense<true> : tensor<3xi1>"),
        (np.zeros((0, 2)), "dense<> : tensor<0x2xf64>"),
    ],
)
def test_constants_are_exact(array, text):
    block = Block()
    block.constant(array, DType.of(array.dtype))
    assert block.lines == [f'%0 = "stablehlo.constant"() {{value = {text}}} : () -> {text.split(" : ")[1]}']


def test_regions_go_on_with_the_numbers_of_their_block():
    block = Block()
    x = block.argument(Kind((3,), DType.F32))
    total = block.reduce(x, [0], "add", 0.0)
    assert total.dims == () and "^bb0(%1: tensor<f32>, %2: tensor<f32>):" in block.lines[-1]


@pytest.mark.targets
def test_what_is_refused_is_known():
    refused = set()
    for name in OPS:
        for case in cases(name):
            if case.sample.op.lowered or name in refused:
                continue
            try:
                lowered(bind_graph(require_all(case.graph(), rlx.CompileOptions()), case.sample.binding))
            except LegalizeError as error:
                refused.add(name)
                assert "neither a rule nor a decomposition" not in str(error)
    assert refused == REFUSED
    assert not {"Custom", "HostCallback", "CsrDirectSolve"} & claimed_ops() and "Attention" in claimed_ops()


@pytest.mark.parametrize(
    ("build", "free"),
    [
        (lambda x, w: rlx.gelu(x @ w) + 1.0, {"B", "N"}),
        (lambda x, w: rlx.nn.softmax(x, -1) @ w, {"B", "N"}),
        (lambda x, w: rlx.nn.softmax(x, 0) @ w, {"N"}),
        (lambda x, w: (x @ w).mean(1), {"B"}),
        (lambda x, w: rlx.cumsum(x, 0).sum(0) @ w, {"N"}),
        (lambda x, w: rlx.reshape(x, (2, -1)), {"N"}),
        (lambda x, w: x[::2] @ w, {"N"}),
        (lambda x, w: rlx.concat([x, x], 0), {"N"}),
        (lambda x, w: rlx.transpose(x @ w, (1, 0)), {"B", "N"}),
    ],
)
def test_sizes_that_may_be_rounded_up(build, free):
    g = rlx.Graph("g")
    x, w = g.input("x", ("B", 4), "f32"), g.input("w", (4, "N"), "f32")
    g.set_outputs([build(x, w)])
    assert free_symbols(g) == free


@pytest.mark.parametrize("kind", DECODERS)
def test_blocks_of_weights_are_decoded_as_defined(kind):
    scheme = QuantScheme.of(kind)
    k, n = scheme.gguf_block_size, 3
    op = DequantMoEWeights(scheme, 2, k, n)
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, 2 * scheme.packed_bytes(k, n), np.uint8)
    g = rlx.Graph("blocks")
    g.set_outputs([g.append_node(op, [g.input("x", packed.shape, "u8")])])
    with np.errstate(all="ignore"):
        (got,) = interpret(lowered(g), [packed])
        np.testing.assert_allclose(got, op.eval(packed), rtol=1e-6)


def test_a_refusal_names_the_op_and_its_reason():
    g = rlx.Graph("prints")
    x = g.input("x", ("B",), "f32")
    g.set_outputs([rlx.ops.debug_print("{}", x)])
    with pytest.raises(LegalizeError, match=r"xla cannot run 1 node of this program:\n.*DebugPrint: it calls Python"):
        require_all(g, rlx.CompileOptions())


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "XLA comes with the package jaxlib, which is not installed"),
        ("0.4.1", "jaxlib 0.4.1 is installed, and its private parts are known for 0.10.2 only"),
    ],
)
def test_a_jaxlib_that_is_missing_or_unknown(version, reason, monkeypatch):
    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    adapter.installed.cache_clear()
    try:
        absent = select("xla").target.probe()
        assert isinstance(absent, Absent) and absent.reason == reason
        with pytest.raises(NotInstalled, match=r'^xla: .*; pip install "jaxlib==0.10.2"'):
            rlx.Session("xla")
    finally:
        adapter.installed.cache_clear()


@pytest.mark.parametrize(
    ("knob", "flags", "count"),
    [
        (None, "", 1),
        (3, "--xla_force_host_platform_device_count=8", 3),
        (None, "--a --xla_force_host_platform_device_count=8", 8),
    ],
)
def test_how_many_devices(knob, flags, count, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with rlx.knobs(xla_devices=knob):
        assert adapter.device_count() == count
