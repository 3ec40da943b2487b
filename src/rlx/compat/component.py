"""A model component: a variant together with everything else that changes the code compiled for it."""

from __future__ import annotations

from typing import NamedTuple

from rlx.compat.variant import ModelVariant, stable_hash
from rlx.compile.claims.logical_kernel import KernelDispatchConfig, KernelDispatchPolicy
from rlx.ir.dim_binding import DimBinding
from rlx.ir.words import Words
from rlx.quant.schemes import QuantScheme


class CompilationMode(Words):
    """Compile at once, at the first run, or ahead of time into a file."""

    Eager = "eager"
    Lazy = "lazy"
    Aot = "aot"


class ModelComponent(NamedTuple):
    """What identifies a compiled model: equal components may share one executable.

    `profile_key` names the compile profile, `layer_composition_key` the way the layers were put together.
    """

    variant: ModelVariant
    kernel_dispatch: KernelDispatchConfig = KernelDispatchConfig()
    compilation_mode: CompilationMode = CompilationMode.Eager
    profile_key: str = ""
    quant: QuantScheme | None = None
    layer_composition_key: str = ""

    def with_variant(self, variant: ModelVariant) -> ModelComponent:
        return self._replace(variant=variant)

    def with_kernel_dispatch(self, dispatch: KernelDispatchConfig | KernelDispatchPolicy) -> ModelComponent:
        return self._replace(kernel_dispatch=KernelDispatchConfig.of(dispatch))

    def with_compilation_mode(self, mode: CompilationMode) -> ModelComponent:
        return self._replace(compilation_mode=mode)

    def with_profile_key(self, key: str) -> ModelComponent:
        return self._replace(profile_key=key)

    def with_quant(self, scheme: QuantScheme | str | None) -> ModelComponent:
        return self._replace(quant=None if scheme is None else QuantScheme.of(scheme))

    def with_layer_composition_key(self, key: str) -> ModelComponent:
        return self._replace(layer_composition_key=key)

    def dim_binding(self) -> DimBinding:
        return self.variant.dim_binding()

    def cache_key(self) -> int:
        """64 bits over all fields; the same on every machine and run."""
        dispatch = self.kernel_dispatch
        fields = (
            self.variant.describe(),
            dispatch.policy.value,
            sorted(dispatch.force_common_kinds),
            sorted(dispatch.force_native_kinds),
            self.compilation_mode.value,
            self.profile_key,
            str(self.quant),
            self.layer_composition_key,
        )
        # repr quotes each text, so that no two different components run together into one key.
        return stable_hash(repr(fields))

    def aot_disk_base(self) -> str:
        """File name, without suffix, of the component compiled ahead of time."""
        return f"rlx_{self.cache_key():016x}"
