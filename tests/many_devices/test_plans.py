"""Plans as values: sizes that are published, arithmetic that is known, layouts, texts and pages. Nothing compiles."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from plan_runs import SHAPE

import rlx
from rlx.cli import main
from rlx.distributed import layout_of
from rlx.errors import ShardingError
from rlx.ir.dtype import DType
from rlx.models.config import DecoderConfig, MoeConfig, RopeConfig
from rlx.planning import CHIPS, PUBLISHED, Chip, LocalCost, ModelShape, Work, chip, local_config, local_cost, plan
from rlx.planning.exchanges import Exchange, exchanges, seconds
from rlx.planning.pages import mesh_svg


def layout(mesh):
    return layout_of(rlx.Mesh.of(mesh))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_shapes_have_the_parameters_that_are_published(name, parameters):
    assert PUBLISHED[name].parameters == parameters


def test_one_device_has_a_smaller_model():
    c = local_config(SHAPE.config, layout("data=2,tensor=4"))
    assert (c.heads, c.kv_heads, c.ffn, c.vocab, c.hidden) == (2, 2, 96, 128, 128)
    # Two heads of keys are not cut in four.
    other = DecoderConfig("llama", 2, 128, 8, 2, 16, 384, 510, 1024, rope=RopeConfig(1e4, 16))
    c = local_config(other, layout("tensor=4"))
    assert (c.heads, c.kv_heads, c.ffn, c.vocab) == (8, 2, 96, 510)
    sparse = DecoderConfig("mixtral", 1, 8, 2, 2, 4, 16, 32, 64, moe=MoeConfig(8, 2, 16, True))
    assert local_config(sparse, layout("expert=4")).moe.experts == 2


def test_what_devices_hold():
    weights, work = 4 * SHAPE.parameters, Work(16, 64)
    tokens = 2 * 4 * 16 * 64
    data, fsdp = (local_cost(SHAPE, layout(mesh), work) for mesh in ("data=8", "fsdp=8"))
    assert data.argument_bytes == 3 * weights + tokens / 8 and data.gathered_bytes == 0
    # Norms stay whole.
    assert weights / 8 < fsdp.weight_bytes < weights / 8 * 1.05 and fsdp.flops == data.flops
    assert fsdp.peak_bytes == data.peak_bytes + fsdp.gathered_bytes
    # Three times the products of the forward pass; those with weights are most of them.
    products = 6 * 2 * 64 * (SHAPE.parameters - SHAPE.config.vocab * SHAPE.config.hidden)
    assert products < data.flops < 1.3 * products
    adapter = local_cost(SHAPE, layout("data=8"), Work(16, 64, lora=4))
    assert adapter.argument_bytes < data.argument_bytes / 2 and adapter.trained_bytes < data.trained_bytes / 10


def moved(mesh):
    """The exchanges of a step whose costs are made up, so that nothing is traced."""
    weights = 4.0 * SHAPE.parameters
    cost = LocalCost(1, 1, 1, 1, weights, weights, weights)
    return {e.what: e for e in exchanges(SHAPE, layout(mesh), Work(16, 64), cost)}


def test_what_moves():
    weights = 4 * SHAPE.parameters
    (summed,) = moved("data=8").values()
    assert (summed.kind, summed.result_bytes) == ("all-reduce", weights)
    assert summed.moved_bytes(layout("data=8")) == 2 * weights * 7 / 8
    features = moved("tensor=8")
    assert features["sum of features"].times == 2 * 2 + 1 and features["gradients of features"].times == 2 * 5 + 1
    assert features["sum of features"].result_bytes == 16 * 64 * 128 * 4
    assert set(moved("fsdp=2,tensor=2")) == {
        "gather weights",
        "sum gradients into parts",
        "sum of features",
        "gradients of features",
    }
    assert moved("data=1") == {}
    assert moved("data=2,sequence=2")["gather keys and values"].result_bytes == 8 * 64 * 128 * 4


def test_rings_that_leave_fast_links_are_slow():
    box = Chip("box", 1e9, 1e9, 1e9, 1e9, 4, 1e8, hop_seconds=0, network_hop_seconds=0)
    near, far = Exchange("n", "all-gather", ("tensor",), 1, 4e6), Exchange("f", "all-gather", ("data",), 1, 4e6)
    where = layout("data=2,tensor=4")
    assert seconds(near, where, box) == pytest.approx(3e-3) and seconds(far, where, box) == pytest.approx(2e-2)
    assert seconds(near, where, box._replace(hop_seconds=1e-3)) == pytest.approx(6e-3)


def test_the_fastest_that_fits_is_picked():
    found = plan(SHAPE, 8, "h100", batch=16, length=64)
    meshes = [str(each.layout.mesh) for each in found.layouts]
    assert len(meshes) == len(set(meshes)) == 10 and {"data=8", "fsdp=8", "tensor=8", "data=2,fsdp=2,tensor=2"} <= {
        *meshes
    }
    times = [each.seconds for each in found.layouts]
    assert times == sorted(times) and found.picked is found.layouts[0] and all(each.fits for each in found.layouts)
    # With little memory, those that divide weights are left; with less, none.
    sizes = sorted(each.memory_bytes for each in found.layouts)
    small = plan(SHAPE, 8, CHIPS["h100"]._replace(memory_bytes=sizes[1] / 0.9), batch=16, length=64)
    assert sum(each.fits for each in small.layouts) == 2 and "(8 do not)" in small.why
    none = plan(SHAPE, 8, CHIPS["h100"]._replace(memory_bytes=sizes[0]), batch=16, length=64)
    assert none.picked is None and "No layout fits" in none.why and "too large" in str(none)


def test_texts_and_pages(tmp_path):
    found = plan(SHAPE, "data=2,fsdp=2,tensor=2", "v5p", batch=16, length=64)
    text = str(found)
    assert "on 8 x v5p" in text and "<- picked" in text and "gather weights (all-gather along fsdp)" in text
    picture = ElementTree.fromstring(mesh_svg(found, found.picked))
    titles = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert (
        len(titles) == 8 * 3
        and titles[0] == "texts: part 1 of 2"
        and "heads, features and words: part 2 of 2" in titles
    )
    found.html(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "<svg" in page and "along tensor" in page and 'class="best"' in page
    many = plan(SHAPE, "data=64,tensor=4", "v5p", batch=64, length=64)
    assert "and 224 devices more, alike" in mesh_svg(many, many.picked)


def test_the_command(capsys, tmp_path):
    words = ["plan", "smollm2-135m", "--mesh", "tensor=3", "--chip", "a100", "--batch", "2", "--length", "64"]
    assert main([*words, "--json", "--html", str(tmp_path / "p.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["picked"] == "tensor=3" and told["parameters"] == 134_515_008
    assert told["layouts"][0]["exchanges"][0]["kind"] == "all-reduce" and (tmp_path / "p.html").is_file()
    assert main([*words[:5], "a10"]) == 1
    assert "there is no chip 'a10' (did you mean 'a100'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan("no-such-model", 8, "h100"), "neither a model that rlx.load takes .* nor one of smollm2-135m"),
        (lambda: plan(SHAPE, "rows=8", "h100"), "'rows' names no role"),
        (lambda: plan(SHAPE, 0, "h100"), "at least one device"),
        (lambda: plan(SHAPE, "data=3", "h100", batch=4), "data=3: 4 texts do not divide over 3 devices"),
        (lambda: plan(SHAPE, "tensor=3", "h100"), "8 heads of keys and 384 features do not divide over 3"),
        (lambda: plan(SHAPE, "expert=2", "h100"), "this model has no experts"),
        (lambda: plan(SHAPE, "sequence=3", "h100", length=64), "64 tokens do not divide over 3 devices"),
        (lambda: plan(SHAPE, 7, "h100", batch=4, length=64), "no layout of 7 devices divides 4 texts of 64 tokens"),
        (lambda: plan(SHAPE, 8, "h100", length=4096), "texts of 2 to 1024 tokens"),
        (lambda: plan(SHAPE, 8, "h100", roles=["rows"]), "'rows' is no role"),
        (lambda: chip("h10"), "there is no chip 'h10'"),
    ],
)
def test_what_cannot_be_planned_is_refused(call, message):
    with pytest.raises(ShardingError, match=message):
        call()


def test_experts_and_files_without_weights():
    sparse = DecoderConfig(
        "mixtral", 2, 16, 2, 2, 8, 32, 64, 64, rope=RopeConfig(1e4, 8), moe=MoeConfig(4, 2, 32, True)
    )
    shape = ModelShape("sparse", sparse, frozenset(), DType.F32)
    one, two = (plan(shape, mesh, "h100", batch=2, length=8).layouts[0] for mesh in ("data=2", "expert=2"))
    assert two.cost.weight_bytes < one.cost.weight_bytes
    assert any(e.what == "sum of experts" for e in two.exchanges)
