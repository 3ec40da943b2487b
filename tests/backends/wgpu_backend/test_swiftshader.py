"""The second implementation of Vulkan without a GPU, which comes with Chromium. It promises less than lavapipe: 256
invocations, other answers of the built-in functions for NaN. The driver is chosen when a process starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.compile.target import Absent, select

pytestmark = pytest.mark.targets

DRIVERS = [
    Path(folder, "vk_swiftshader_icd.json")
    for folder in ("/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome")
]

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import rlx
import rlx.numpy as rnp
from rlx.backends.wgpu.adapters import adapters

x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 1e30], np.float32)
functions = [
    lambda x: rlx.relu(x) + rlx.tanh(x), rlx.exp, lambda x: rnp.maximum(x, 0.0), lambda x: x - x, lambda x: x * 0.0,
    lambda x: rnp.where(x != 0.0, x * 3.0 - x * 5.0, 1.0), rlx.softmax, rnp.cumsum,
]
bits = lambda f, device: np.asarray(rlx.jit(f, device=device)(x)).view(np.uint32).tolist()
same = [[bits(f, device) for device in ("cpu", "wgpu")] for f in functions]
# All of f16, whose smallest numbers f32 has as ordinary ones, and e5m2, which is the upper half of it.
halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
eighths = np.arange(2**8, dtype=np.uint8).view(rlx.DType.F8E5M2.numpy)
widened = lambda a, device: np.asarray(rlx.jit(lambda a: a.astype("f32"), device=device)(a))
same += [[widened(a, device).view(np.uint32).tolist() for device in ("cpu", "wgpu")] for a in (halves, eighths)]
path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
text = rlx.load(path, device="wgpu").generate("Once upon a time", max_tokens=16)
print(json.dumps({"adapter": str(adapters()[0]), "values": same, "text": text}))
"""


def test_swiftshader_gives_what_the_cpu_gives():
    driver = next((path for path in DRIVERS if path.is_file()), None)
    if driver is None:
        pytest.skip("no SwiftShader: chromium is not installed (make tools)")
    found = select("wgpu").target.probe()
    if isinstance(found, Absent):
        pytest.skip(f"{found.reason}; {found.remedy}")
    chosen = {**os.environ, "VK_ICD_FILENAMES": str(driver), "VK_DRIVER_FILES": str(driver)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=chosen, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "SwiftShader" in said["adapter"]
    for wanted, got in said["values"]:
        wanted, got = (np.array(bits, np.uint32).view(np.float32) for bits in (wanted, got))
        # It takes subnormal numbers for 0, which WGSL allows.
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=float(np.finfo(np.float32).tiny))
    path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
    assert said["text"] == rlx.load(path).generate("Once upon a time", max_tokens=16)
