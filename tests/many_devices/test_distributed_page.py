"""The blocks of pages that need eight devices run on eight devices."""

import sys
from pathlib import Path

from many_devices_runs import many_devices, needs_xla

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from doc_pages import blocks  # noqa: E402

pytestmark = needs_xla


def test_blocks_that_need_devices():
    page = ROOT / "docs" / "distributed.md"
    found = [b for b in blocks(page.read_text()) if b.language == "python" and "several processes" not in b.info]
    code = "\n".join(b.code for b in found if b.expected_error is None)
    assert sum("eight devices" in b.info for b in found) == 2
    told = many_devices(code)
    assert "[x=4,y=2](y, x) 192.0 (6, 16)" in told and "(slice(4, 8, None), slice(3, 6, None)) (4, 3)" in told
    assert "mesh data=2,fsdp=2,tensor=2; on each device" in told and "all-gather" in told


def test_the_tutorial():
    page = ROOT / "docs" / "tutorial" / "21-many-devices.md"
    found = [b for b in blocks(page.read_text()) if b.language == "python" and "from rlx.planning" not in b.code]
    code = [b.code for b in found if "no-run" not in b.info or "eight devices" in b.info]
    assert len(code) == 3
    told = many_devices("\n".join(code))
    assert "mesh data=2,fsdp=2,tensor=2; on each device" in told and told.endswith("the same losses\n")


def test_the_picture_is_what_a_plan_draws():
    from rlx.planning import plan
    from rlx.planning.pages import mesh_svg

    found = plan("smollm2-1.7b", "data=2,fsdp=2,tensor=2", "h100", batch=8, length=512)
    assert (ROOT / "docs" / "pictures" / "mesh-plan.svg").read_text() == mesh_svg(found, found.picked)
