"""Which fused ops a target wants: its claims, its limits, and the switches of the pass list."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from rlx.compile.claims.fusion.fusion_limits import FusionLimits
from rlx.compile.target import find_target, select
from rlx.ir.words import Words
from rlx.knobs import knobs


class FusionTarget(Words):
    """Whose claims decide which fused ops are formed."""

    Cpu = "cpu"
    Metal = "metal"
    Mlx = "mlx"
    Wgpu = "wgpu"
    Cuda = "cuda"
    Rocm = "rocm"
    Tpu = "tpu"

    @staticmethod
    def for_device(device: str) -> FusionTarget:
        """The target that a device's programs are fused for.

        >>> FusionTarget.for_device("vulkan"), FusionTarget.for_device("ane")
        (<FusionTarget.Wgpu: 'wgpu'>, <FusionTarget.Cpu: 'cpu'>)
        """
        found = find_target(str(device).lower())
        names = (found.name, *found.aliases) if found is not None else ()
        return next((t for t in FusionTarget if t.value in names), FusionTarget.Cpu)


def supported_for_target(target: FusionTarget | str) -> frozenset[str]:
    """The kinds (class names) of ops that a target claims, as far as fusion is concerned: they gate it, and those that
    a target claims natively are not lowered before it either."""
    return select(target).target.claims


def supports_op(supported: Collection[str], kind: str) -> bool:
    """Whether a claim set has a kind; an empty set claims everything."""
    return not supported or kind in supported


def fusion_limits_for_target(target: FusionTarget | str) -> FusionLimits:
    """Generated CPU code takes regions of any size; device kernels have room for a fixed number of steps and inputs."""
    limits = select(target).target.region_limits
    return FusionLimits.UNBOUNDED if limits is None else FusionLimits(*limits)


@dataclass(frozen=True)
class FusionOptions:
    """Switches of the pass list. Options that are None follow the target."""

    skip_fusion: bool = False
    unfuse_elementwise_regions: bool = False
    fusion_limits: FusionLimits | None = None
    # Overrules `unfuse_elementwise_regions`, where the target claims regions.
    keep_elementwise_regions: bool = False
    decompose_fusion_regions: bool = False
    # Transform, prologue and batched regions as a whole, and two of their passes.
    fk_fusion: bool = True
    fuse_region_prologue: bool = True
    fuse_batch_preprocess: bool = True
    native_fk_regions: bool = True

    @staticmethod
    def for_cpu() -> FusionOptions:
        """No regions: code is generated for groups of ops, which are chosen later."""
        return FusionOptions(
            unfuse_elementwise_regions=True, fusion_limits=FusionLimits.UNBOUNDED, native_fk_regions=False
        )

    @staticmethod
    def from_metal_env() -> FusionOptions:
        """As the knobs `metal_no_fusion` and `metal_unfuse_regions` say."""
        return FusionOptions(
            skip_fusion=knobs.metal_no_fusion, unfuse_elementwise_regions=knobs.metal_unfuse_regions
        ).merge_env()

    @staticmethod
    def for_metal() -> FusionOptions:
        return FusionOptions.for_target(FusionTarget.Metal)

    @staticmethod
    def for_wgpu() -> FusionOptions:
        return FusionOptions.for_target(FusionTarget.Wgpu)

    @staticmethod
    def for_target(target: FusionTarget | str) -> FusionOptions:
        """The defaults of a target, with the knobs applied."""
        if target == FusionTarget.Metal:
            base = FusionOptions.from_metal_env()
        else:
            base = FusionOptions.for_cpu() if target == FusionTarget.Cpu else FusionOptions()
        return replace(base, fusion_limits=fusion_limits_for_target(target)).merge_env()

    def merge_env(self) -> FusionOptions:
        """These options, changed as the knobs say."""
        native = self.native_fk_regions if knobs.native_fk_regions is None else knobs.native_fk_regions
        return replace(
            self,
            keep_elementwise_regions=self.keep_elementwise_regions or knobs.keep_elementwise_regions,
            decompose_fusion_regions=self.decompose_fusion_regions or knobs.decompose_fusion_regions,
            fk_fusion=self.fk_fusion and not knobs.no_fk_fusion,
            fuse_region_prologue=self.fuse_region_prologue and knobs.fuse_region_prologue,
            fuse_batch_preprocess=self.fuse_batch_preprocess and knobs.fuse_batch_preprocess,
            native_fk_regions=native and not knobs.no_native_fk_regions,
        )
