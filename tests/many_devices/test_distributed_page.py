"""The blocks of docs/distributed.md that need eight devices run on eight devices."""

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
