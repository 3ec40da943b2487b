"""Kinds of kernels: texts as before, and one place for what each needs."""

import json
import re
from pathlib import Path

import rlx
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirKernel

SOURCES = Path(rlx.__file__).parent
WORDS = "|".join(kind.value for kind in KernelKind)
# A comparison of a kind with a literal that names one, alone or in a tuple or set of them.
SPELT = re.compile(rf"kernel\.kind\s*(==|!=|in|not in)\s*[(\[{{]?\s*\"({WORDS})\"")


def test_no_file_spells_a_kind():
    assert SPELT.search('if kernel.kind == "view":') and SPELT.search('kernel.kind in ("call", LOOP)')
    found = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in sorted(SOURCES.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SPELT.search(line) and path.name != "kernel_kind.py"
    ]
    assert not found, f"compare with the names of rlx.ir.kernel_kind: {found}"


def test_a_kind_is_its_text():
    assert [str(kind) for kind in KernelKind] == json.loads(json.dumps(list(KernelKind)))
    assert repr([KernelKind.Map]) == "['map']"
    assert LirKernel.of(KernelKind.Map, [0], [], [0]) == LirKernel.of("map", [0], [], [0])
    assert hash(KernelKind.View) == hash("view") and f"{KernelKind.MatMul}" == "matmul"


def test_names_of_families_are_kernels_of_their_own():
    assert KernelKind.of("map") is KernelKind.Map
    assert KernelKind.of("attention") is KernelKind.of("whatever comes") is KernelKind.Own


def test_what_kinds_need():
    assert [kind for kind in KernelKind if not kind.runs] == ["view"]
    assert [kind for kind in KernelKind if not kind.is_native] == ["view", "call"]
    assert [kind for kind in KernelKind if kind.has_loop_nest] == ["map", "row", "reduce"]
    assert [kind for kind in KernelKind if kind.is_mapped] == ["map", "parts", "several"]
