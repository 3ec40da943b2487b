"""LIR containers made by hand: plans, fingerprints, JSON, manifests and reflection."""

import json

import pytest

import rlx.ops  # noqa: F401  (installs the builders)
from rlx.compat.binding_manifest import BindingManifest
from rlx.compat.component import ModelComponent
from rlx.compat.reflect import (
    ManifestDiff,
    MirReflection,
    layout_for_binding,
    layout_from_lir,
    symbolic_layout_hint,
)
from rlx.compat.variant import ModelVariant
from rlx.errors import BindingError, FormatError, InternalError
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import (
    LirBufferPlan,
    LirBufferSlot,
    LirFingerprint,
    LirIoManifest,
    LirModule,
    LirViewAlias,
    lir_from_json,
    lir_to_json,
)
from rlx.ir.module import GraphModule, MirModule
from rlx.ir.phase import Phase, derive_phases
from rlx.ir.shape import Shape


def planned(rows: int | str = 4) -> LirModule:
    """x[rows,8]·w, relu, reshape (a view); the relu writes over the product."""
    g = Graph("layer")
    x = g.input("x", (rows, 8), "f32")
    w = g.param("block.w", (8, 16), "f32")
    product = g.matmul(x, w)
    active = g.relu(product)
    flat = g.reshape(active, (-1,))
    g.set_outputs([flat])
    wide = g.shape(product).byte_size
    slot = LirBufferSlot(0, wide)
    plan = LirBufferPlan(
        arena_size=wide,
        assignments={product.id: slot, active.id: slot},
        schedule=[n.id for n in g.nodes],
        view_aliases={flat.id: LirViewAlias(active.id, 0)},
        phases=derive_phases(g),
        io=LirIoManifest.collect(g),
        dynamic_symbols=g.dynamic_symbols(),
    )
    return LirModule(g, plan)


def test_plan_counts_what_sharing_saves():
    plan = planned().plan
    assert plan.arena_size == 4 * 16 * 4
    assert plan.total_unshared_bytes == 2 * 4 * 16 * 4
    assert plan.bytes_saved == 4 * 16 * 4
    assert LirBufferPlan(arena_size=100).bytes_saved == 0


def test_symbolic_sizes_are_bound_by_substitution():
    lir = planned("B")
    assert lir.arena_size == Dim.symbol("B") * 64
    assert lir.has_dynamic_dims() and lir.dynamic_symbols() == ("B",) and not lir.is_fully_static()
    bound = lir.bind({"B": 4})
    assert bound == planned(4)
    assert bound.is_fully_static()


def test_views_are_found_inside_their_root():
    plan = planned().plan
    flat = plan.io.outputs[0]
    assert plan.is_view(flat) and plan.slot(flat) is None and plan.address(flat) == 0
    assert not plan.is_view(plan.schedule[2])
    moved = LirBufferPlan(
        assignments={NodeId(0): LirBufferSlot(128, 64)}, view_aliases={NodeId(1): LirViewAlias(NodeId(0), 32)}
    )
    assert moved.address(1) == 160
    assert moved.address(7) is None


def test_phases_come_in_schedule_order():
    plan = planned().plan
    assert plan.phase_of(0) is Phase.Prologue
    assert plan.nodes_in_phase(Phase.Prologue) == [0, 1]
    assert plan.nodes_in_phase(Phase.SteadyState) == [2]
    assert plan.nodes_in_phase(Phase.Epilogue) == [3, 4]
    plan.schedule.reverse()
    assert plan.nodes_in_phase(Phase.Epilogue) == [4, 3]


@pytest.mark.parametrize("rows", [4, "B"])
def test_json_round_trip(rows):
    plan = planned(rows).plan
    document = json.loads(json.dumps(plan.to_json()))
    assert LirBufferPlan.from_json(document) == plan


@pytest.mark.parametrize(
    "damage",
    [
        {"schedule": None},
        {"schedule": [-1]},
        {"arena_size": "B+"},
        {"phases": [[0, "later"]]},
        {"io": {"inputs": []}},
        {"assignments": [[0, 1]]},
    ],
)
def test_json_from_outside_is_refused_when_it_is_no_plan(damage):
    document = planned().plan.to_json() | damage
    with pytest.raises(FormatError, match="not a buffer plan"):
        LirBufferPlan.from_json(document)


@pytest.mark.parametrize("rows", [4, "B"])
def test_modules_are_written_with_their_graph(rows):
    lir = planned(rows)
    again = lir_from_json(lir_to_json(lir))
    assert again == lir and again.fingerprint() == lir.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "rlx.graph"}, "not an rlx LIR document"),
        ({"version": 99}, "has version 99"),
        ({"plan": None}, "has no plan"),
        ({"graph": []}, "not an rlx graph"),
        ({"plan": LirBufferPlan(schedule=[NodeId(40)]).to_json()}, "names node %40"),
    ],
)
def test_damaged_modules_are_refused(change, message):
    document = json.loads(lir_to_json(planned())) | change
    with pytest.raises(FormatError, match=message):
        lir_from_json(json.dumps(document))
    with pytest.raises(FormatError, match="not JSON"):
        lir_from_json("{")


def test_fingerprint_sees_constants_attributes_and_plan():
    def constant(value: float) -> Graph:
        g = Graph("c")
        g.set_outputs([g.add(g.input("x", (2,)), [value] * 2)])
        return g

    plan = LirBufferPlan()
    one = LirFingerprint.of(constant(1.0), plan)
    assert one == LirFingerprint.of(constant(1.0), LirBufferPlan())
    assert one != LirFingerprint.of(constant(2.0), plan)
    assert one != LirFingerprint.of(constant(1.0), LirBufferPlan(alignment=128))
    assert len(str(one)) == 16 and int(str(one), 16) == one


def test_fingerprint_is_the_same_in_every_process():
    assert str(LirFingerprint.of(Graph("g"), LirBufferPlan())) == "5be2f268f6cc8600"


def test_module_gives_its_graph_and_refuses_a_foreign_plan():
    lir = planned()
    assert Graph.from_lir(lir) is lir.mir.graph and lir.name == "layer"
    module = GraphModule.from_lir(lir)
    assert module.stage == "lir" and module.as_lir() is lir and module.into_mir() is lir.mir
    assert module.as_graph() is lir.mir.graph
    with pytest.raises(InternalError, match="names node %9"):
        LirModule(lir.mir, LirBufferPlan(schedule=[NodeId(9)]))


def test_manifest_lists_the_boundary():
    manifest = BindingManifest.from_lir(planned())
    assert manifest.input_names() == ["x"] and manifest.param_names() == ["block.w"]
    (output,) = manifest.outputs
    assert (output.name, output.is_view, output.arena_offset, output.arena_size) == ("output0", True, 0, 256)
    (x,) = manifest.inputs
    assert (x.shape, x.elem_count, x.byte_size, x.arena_offset) == (Shape((4, 8)), 32, 128, None)
    assert manifest.param_byte_size("block.w") == manifest.total_param_bytes() == 512
    with pytest.raises(BindingError, match=r"no param 'v'; it has: block\.w"):
        manifest.param_byte_size("v")


def test_weight_blocks_group_by_dotted_prefix():
    g = Graph("model")
    for name in ("model.layers.1.q", "model.layers.0.q", "model.layers.0.k", "head"):
        g.param(name, (2,), "f32")
    manifest = layout_from_lir(LirModule(g, LirBufferPlan(io=LirIoManifest.collect(g))))
    assert [(b.prefix, b.byte_size) for b in manifest.weight_blocks()] == [("head", 8), ("model", 24)]
    layers = manifest.weight_blocks(3)
    assert [b.prefix for b in layers] == ["head", "model.layers.0", "model.layers.1"]
    assert layers[1].params == ("model.layers.0.k", "model.layers.0.q") and layers[1].byte_size == 16


def test_layout_for_a_component_binds_the_template():
    template = planned("B")
    component = ModelComponent(ModelVariant.prefill(2, 8))
    layout = layout_for_binding(template, component)
    assert layout.arena_size == 2 * 64 and layout.inputs[0].byte_size == 2 * 8 * 4
    diff = ManifestDiff.compare(layout_from_lir(template), layout)
    assert diff.specialized_arena == 128 and diff.params_only_in_template == ()
    renamed = layout._replace(params=())
    assert ManifestDiff.compare(layout, renamed).params_only_in_template == ("block.w",)
    assert symbolic_layout_hint(component.dim_binding()) == "B=2, S=8"


def test_mir_reflection_counts_kinds():
    reflection = MirReflection.from_mir(MirModule.from_graph(planned().as_graph()))
    assert reflection.node_count == 5
    assert dict(reflection.op_kinds) == {"Activation": 1, "Input": 1, "MatMul": 1, "Param": 1, "Reshape": 1}
