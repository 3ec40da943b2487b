"""Layouts as values, and reports read from HLO. No device and no jaxlib is needed."""

import numpy as np
import pytest
from gpt_runs import EXPERTS, MODEL

import rlx
from rlx import Mesh, P
from rlx.distributed import Layout, layout_of, report
from rlx.distributed.reports import CollectiveUse, collectives_of
from rlx.errors import ShardingError

MESH = Mesh((2, 2, 2), ("data", "fsdp", "tensor"))


def specs(layout, params):
    found = rlx.tree.leaves_with_path(layout.params(params))
    return {rlx.tree.path_text(path): sharding.spec for path, sharding in found}


def test_tensor_parallel_weights_come_in_pairs():
    params = MODEL.init(rlx.random.key(0))
    found = specs(Layout(MESH, tensor="tensor"), params)
    assert found["body.0.0.1.q.w"] == found["body.0.1.1.up.w"] == P(None, "tensor")
    assert found["body.0.0.1.out.w"] == found["body.0.1.1.down.w"] == P("tensor")
    assert found["tokens.table"] == P("tensor") and found["places"] == found["body.2.scale"] == P()


def test_fsdp_divides_the_largest_axis_that_is_left():
    params = MODEL.init(rlx.random.key(0))
    found = specs(Layout(MESH, fsdp="fsdp", tensor="tensor"), params)
    assert found["body.0.1.1.up.w"] == P("fsdp", "tensor") and found["body.0.1.1.down.w"] == P("tensor", "fsdp")
    assert found["places"] == P(None, "fsdp") and found["body.2.b"] == P()
    assert specs(Layout(MESH, fsdp="fsdp"), {"w": np.ones((3, 4))})["w"] == P(None, "fsdp")
    assert specs(Layout(MESH, fsdp="fsdp"), {"w": np.ones((3, 5))})["w"] == P()
    assert set(specs(Layout(MESH, data="data"), params).values()) == {P()}


def test_experts_are_divided_by_their_first_axis():
    layout = layout_of(Mesh((2, 2), ("expert", "tensor")))
    found = specs(layout, EXPERTS.init(rlx.random.key(0)))
    assert found["body.0.1.1.up"] == P("expert", None, "tensor")
    assert found["body.0.1.1.down"] == P("expert", "tensor") and found["body.0.1.1.router"] == P()


def test_what_the_optimiser_keeps_lies_beside_its_weight():
    params = MODEL.init(rlx.random.key(0))
    state = rlx.train.init_state(params, rlx.optim.adamw(1e-3))
    layout = Layout(MESH, data="data", fsdp="fsdp", tensor="tensor")
    found = specs(layout, state)
    moments = [spec for name, spec in found.items() if name.endswith("body.0.1.1.up.w")]
    assert len(moments) == 3 and set(moments) == {P("fsdp", "tensor")}
    assert found["step"] == P()
    assert layout.batch({"x": np.ones((8, 3)), "n": np.float32(1)})["x"].spec == P(("data", "fsdp"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout(MESH, data="model").checked(), "Layout: data: the mesh .* has no axis 'model'"),
        (lambda: Layout(MESH, data="data", fsdp="data").checked(), "'data' has two roles"),
        (lambda: layout_of(Mesh((2,), ("x",))), "names no role; use data, fsdp, tensor, sequence, expert"),
        (lambda: layout_of(MESH).batch(np.ones((6, 2))), "6, which does not divide into 4 parts .* make it 8"),
        (lambda: report(len, 1), "a function of rlx.jit"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ShardingError, match=message):
        make()


HLO = """
  %all-reduce.7 = (f32[4,4]{1,0}, bf16[8]{0}) all-reduce(%dot.2, %copy.2), channel_id=2, replica_groups=[4,2]<=[8]
  %get-tuple-element.3 = f32[4,4]{1,0} get-tuple-element(%all-reduce.7), index=0
  %all-gather.1 = f32[8,4]{1,0} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %all-gather-start = (f32[2]{0}, f32[8]{0}) all-gather-start(%q), replica_groups=[2,4]<=[8], dimensions={0}
  %reduce-scatter.1 = f32[2]{0} reduce-scatter(%p), channel_id=1, replica_groups={}, dimensions={0}
  %collective-permute.2 = pred[3]{0} collective-permute(%x), channel_id=9, source_target_pairs={{0,1},{1,0}}
"""


def test_exchanges_are_counted():
    assert collectives_of(HLO, 8) == (
        CollectiveUse("all-reduce", 1, 80, 80),
        CollectiveUse("all-gather", 2, 160, 120),
        CollectiveUse("reduce-scatter", 1, 8, 56),
        CollectiveUse("collective-permute", 1, 3, 3),
    )
    assert collectives_of("ROOT %a = f32[] add(%b, %c)", 8) == ()
