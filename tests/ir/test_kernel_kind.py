"""Kinds of kernels: texts as before, and one place for what each needs."""

import json

from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirKernel


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
