"""Which ops a target keeps whole: its own kernels, common ones, or decompositions."""

from __future__ import annotations

import pytest

from rlx.compile.claims import logical_kernel
from rlx.compile.claims.logical_kernel import (
    KernelDispatchConfig,
    KernelDispatchPolicy,
    logical_kinds_in_graph,
    register_logical_kernel,
    registered_logical_kernels,
    should_lower_to_common,
)
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.knobs import knobs

Prefer, Common, Native = KernelDispatchPolicy


@pytest.mark.parametrize(
    ("kind", "supported", "config", "lowered"),
    [
        ("GroupNorm", {"MatMul"}, Prefer, True),
        ("GroupNorm", {"GroupNorm"}, Prefer, False),
        ("GroupNorm", set(), Prefer, False),
        ("GroupNorm", {"GroupNorm"}, Common, True),
        ("GroupNorm", {"MatMul"}, Native, False),
        ("MatMul", set(), Common, False),
        ("GroupNorm", {"GroupNorm"}, KernelDispatchConfig().with_common(["GroupNorm"]), True),
        ("GroupNorm", {"MatMul"}, KernelDispatchConfig(Native).with_common(["GroupNorm"]), True),
        ("GroupNorm", {"MatMul"}, KernelDispatchConfig(Common).with_native(["GroupNorm"]), False),
        ("GroupNorm", {"MatMul"}, KernelDispatchConfig().with_common(["GroupNorm"]).with_native(["GroupNorm"]), False),
        ("GroupNorm", {"MatMul"}, None, True),
    ],
)
def test_decision(kind, supported, config, lowered):
    assert should_lower_to_common(kind, supported, config) is lowered


def test_registered_kernels():
    assert [(e.kind, e.name) for e in registered_logical_kernels()][:4] == [
        ("GroupNorm", "group_norm"),
        ("ResizeNearest2x", "resize_nearest_2x"),
        ("GaussianSplatRender", "gaussian_splat_render"),
        ("GaussianSplatRenderBackward", "gaussian_splat_render_backward"),
    ]


def test_registry_is_open(monkeypatch):
    monkeypatch.setattr(logical_kernel, "_entries", dict(logical_kernel._entries))
    assert not should_lower_to_common("Softmax", {"MatMul"})
    register_logical_kernel("Softmax", "softmax")
    assert should_lower_to_common("Softmax", {"MatMul"})
    assert registered_logical_kernels()[-1] == ("Softmax", "softmax")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("common", Common),
        ("force_common", Common),
        ("ForceCommon", Common),
        ("native", Native),
        ("force_native", Native),
        ("ForceNative", Native),
        ("", Prefer),
    ],
)
def test_policy_from_environment(monkeypatch, text, policy):
    monkeypatch.setenv("RLX_KERNEL_DISPATCH", text)
    assert KernelDispatchPolicy.from_env() is policy
    assert KernelDispatchConfig.from_env() == KernelDispatchConfig(policy)


def test_policy_typo_is_an_error(monkeypatch):
    monkeypatch.setenv("RLX_KERNEL_DISPATCH", "comon")
    with pytest.raises(RlxError, match=r"RLX_KERNEL_DISPATCH='comon': one of prefer_native, .*common"):
        KernelDispatchPolicy.from_env()


def test_policy_from_knob():
    with knobs(kernel_dispatch=Native):
        assert KernelDispatchPolicy.from_env() is Native


class GroupNorm(Op):
    def infer(self, x: Shape) -> Shape:
        return x


class ResizeNearest2x(Op):
    def infer(self, x: Shape) -> Shape:
        return x


def test_kinds_in_graph():
    g = Graph("g")
    x = g.input("x", (4,)).id
    for op in (ResizeNearest2x(), GroupNorm(), ResizeNearest2x()):
        x = g.append(op, [x]).id
    assert logical_kinds_in_graph(g, {"MatMul"}) == ("ResizeNearest2x", "GroupNorm")
    assert logical_kinds_in_graph(g, {"GroupNorm"}) == ("ResizeNearest2x",)
    assert logical_kinds_in_graph(g, set()) == ()
