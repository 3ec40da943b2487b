"""Variants of a model: what binds their symbols, and keys that are the same in every process."""

import subprocess
import sys

import pytest

from rlx.compat.ad import AdPipelineStage
from rlx.compat.component import CompilationMode, ModelComponent
from rlx.compat.variant import ModelPhase, ModelVariant
from rlx.compile.claims.logical_kernel import KernelDispatchConfig, KernelDispatchPolicy
from rlx.ir.dims import sym
from rlx.quant.schemes import QuantScheme


def test_variants_bind_their_symbols():
    assert ModelVariant.prefill(2, 64).dim_binding() == {"B": 2, "S": 64}
    assert ModelVariant.encoder(3, 7).dim_binding() == {"B": 3, "S": 7}
    assert ModelVariant.decode(1, 100, 1).dim_binding() == {"B": 1, "S": 1, "P": 100}
    assert ModelVariant.prefill(2, 64).with_extra("T", 5).dim_binding() == {"B": 2, "S": 64, "T": 5}
    # Flattened rows need no symbol of their own.
    assert sym.ROWS.bind(ModelVariant.prefill(2, 64).dim_binding()) == 128


def test_phases():
    made = [ModelVariant.prefill(1, 2), ModelVariant.decode(1, 2, 3), ModelVariant.encoder(1, 2), ModelVariant(1, 2)]
    assert [v.phase for v in made] == list(ModelPhase)


def test_last_extra_size_wins():
    variant = ModelVariant.prefill(1, 2).with_extra("T", 5).with_extra("U", 1).with_extra("T", 6)
    assert variant.extra == (("U", 1), ("T", 6))


def test_variant_key_sees_every_field():
    base = ModelVariant.decode(1, 100, 2)
    others = [
        base._replace(batch=2),
        base._replace(seq=3),
        base._replace(past_seq=101),
        base._replace(past_seq=None),
        base._replace(phase=ModelPhase.Prefill),
        base.with_extra("T", 1),
        base.with_extra("T", 2),
    ]
    assert len({v.cache_key() for v in [base, *others]}) == 8
    assert ModelVariant.decode(1, 100, 2).cache_key() == base.cache_key()


def test_extra_order_does_not_matter():
    a = ModelVariant.prefill(1, 2).with_extra("T", 5).with_extra("U", 1)
    b = ModelVariant.prefill(1, 2).with_extra("U", 1).with_extra("T", 5)
    assert a.cache_key() == b.cache_key()


BASE = ModelComponent(ModelVariant.prefill(1, 8))
CHANGES = [
    BASE.with_variant(ModelVariant.prefill(1, 9)),
    BASE.with_kernel_dispatch(KernelDispatchPolicy.ForceCommon),
    BASE.with_kernel_dispatch(KernelDispatchConfig().with_common(["GroupNorm"])),
    BASE.with_kernel_dispatch(KernelDispatchConfig().with_native(["GroupNorm"])),
    BASE.with_compilation_mode(CompilationMode.Aot),
    BASE.with_profile_key("p"),
    BASE.with_quant("gguf_q4k"),
    BASE.with_layer_composition_key("p"),
]


def test_component_key_sees_every_field():
    assert len({c.cache_key() for c in [BASE, *CHANGES]}) == len(CHANGES) + 1
    assert len({c.aot_disk_base() for c in [BASE, *CHANGES]}) == len(CHANGES) + 1


def test_component_fields():
    component = BASE.with_quant("gguf_q4k").with_kernel_dispatch(KernelDispatchPolicy.ForceNative)
    assert component.quant == QuantScheme.GgufQ4K
    assert component.with_quant(None).quant is None
    assert component.kernel_dispatch.policy is KernelDispatchPolicy.ForceNative
    assert BASE.compilation_mode is CompilationMode.Eager
    assert BASE.dim_binding() == {"B": 1, "S": 8}


def test_disk_name():
    prefix, _, digits = BASE.aot_disk_base().partition("_")
    assert prefix == "rlx" and len(digits) == 16 and int(digits, 16) == BASE.cache_key()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_keys_are_the_same_in_every_process(hash_seed):
    code = (
        "from rlx.compat.component import *; from rlx.compile.claims.logical_kernel import *;"
        "from rlx.compat.variant import *;"
        "c = KernelDispatchConfig().with_common(['GroupNorm', 'Softmax', 'Conv']);"
        "print(ModelComponent(ModelVariant.prefill(1, 8)).with_kernel_dispatch(c).aot_disk_base())"
    )
    here = BASE.with_kernel_dispatch(KernelDispatchConfig().with_common(["Conv", "GroupNorm", "Softmax"]))
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == here.aot_disk_base()


def test_ad_stages():
    assert [s.name for s in AdPipelineStage] == ["HirBuild", "MirLowered", "MirPrepared", "MirBackward"]
