"""Training on eight devices: the losses of every layout are those of one device."""

from pathlib import Path

import pytest
from many_devices_runs import many_devices, needs_xla

pytestmark = needs_xla

HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom gpt_runs import *\n"
full = pytest.mark.targets_full


def losses_agree(mesh, model="MODEL", dropout=False, steps=20):
    return many_devices(
        HERE
        + f"""
want, one = losses(model={model}, dropout={dropout}, steps={steps})
got, state = losses({mesh!r}, model={model}, dropout={dropout}, steps={steps})
print("largest difference", np.abs(np.subtract(got, want)).max())
np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
assert want[-1] < want[0] - 0.5
for a, b in zip(rlx.tree.leaves(state.params), rlx.tree.leaves(one.params)):
    assert a.sharding.mesh == rlx.Mesh.of({mesh!r})
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=2e-4)
"""
    )


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "data=2,sequence=4"])
def test_losses_are_those_of_one_device(mesh):
    losses_agree(mesh)


@full
@pytest.mark.parametrize("mesh", ["data=8", "fsdp=8", "tensor=4", "data=2,sequence=2,tensor=2"])
def test_losses_of_other_layouts_are_those_of_one_device(mesh):
    losses_agree(mesh)


@full
@pytest.mark.parametrize(
    "mesh", ["data=8", "fsdp=8", "tensor=4", "data=2,sequence=4", "data=2,expert=4", "data=2,fsdp=2,tensor=2"]
)
def test_fifty_steps(mesh):
    print(mesh, losses_agree(mesh, "EXPERTS" if "expert" in mesh else "MODEL", steps=50))


@full
def test_dropout_drops_the_same_elements():
    losses_agree("data=2,fsdp=2,tensor=2", dropout=True)


def test_experts():
    losses_agree("data=2,expert=4", "EXPERTS")


def test_the_report_is_that_of_the_program():
    many_devices(
        HERE
        + """
found = {}
for mesh in ("data=8", "fsdp=8"):
    layout = layout_of(rlx.Mesh.of(mesh))
    step, state = parts(layout)
    state, batch = layout.place_state(state), layout.place_batch(batches()(0))
    found[mesh] = rlx.distributed.report(step, state, batch)
    held = sum(s.data.nbytes for x in rlx.tree.leaves((state, batch)) for s in x.addressable_shards[:1])
    # The key of the random numbers, which nothing reads here, may be left out.
    assert 0 <= held - found[mesh].memory.arguments <= 16, (held, found[mesh])
weights = sum(x.nbytes for x in rlx.tree.leaves(state.params))
reduced = {use.kind: use for use in found["data=8"].collectives}["all-reduce"]
# The embedding is used at both ends, and XLA sums both of its gradients.
twice = state.params["tokens"]["table"].nbytes
assert weights <= reduced.result_bytes <= weights + twice + 100, (weights, twice, reduced)
assert found["data=8"].memory.arguments > 6 * found["fsdp=8"].memory.arguments
assert "all-gather" in str(found["fsdp=8"]) and "on each device" in str(found["data=8"])
"""
    )
