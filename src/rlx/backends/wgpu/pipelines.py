"""Pipelines: kernels with the way in which memory is bound to them, as the GPU's own compiler made them.

All that a run needs and that is not there yet becomes one module of WGSL: a module costs as much as a kernel in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from rlx.backends.wgpu.code import WgslCode
from rlx.errors import InternalError
from rlx.kernels.emit.wgsl_emit import Bound, WgslKernel, wgsl_module

# Bind groups that are remembered.
KEPT_GROUPS = 4096


class Form(NamedTuple):
    """A kernel, how its memory is bound, and whether elements begin where words do."""

    code: WgslCode
    bounds: tuple[Bound, ...]
    is_aligned: bool

    @property
    def key(self) -> tuple[str, tuple[Bound, ...], bool]:
        return self.code.key, self.bounds, self.is_aligned

    @property
    def bindings(self) -> int:
        return max((b.first + b.windows - 1 for b in self.bounds), default=0)

    @property
    def argument_bytes(self) -> int:
        return 4 * self.code.argument_words


class Pipelines:
    """Those of one device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._made: dict[tuple[str, tuple[Bound, ...], bool], Any] = {}
        self.layout = cache(self._layout)
        self._pipeline_layout = cache(
            lambda bindings: device.create_pipeline_layout(bind_group_layouts=[self.layout(bindings)])
        )

    def __len__(self) -> int:
        return len(self._made)

    def make(self, forms: Iterable[Form]) -> None:
        """Make those of the forms that are not there."""
        missing = {f.key: f for f in forms if f.key not in self._made}
        if not missing:
            return
        kernels = [
            WgslKernel(f"k{number}", form.code.words if form.is_aligned else form.code.anywhere, form.bounds)
            for number, form in enumerate(missing.values())
        ]
        text = wgsl_module(kernels)
        import wgpu

        try:
            module = self._device.create_shader_module(code=text)
            for kernel, form in zip(kernels, missing.values()):
                self._made[form.key] = self._device.create_compute_pipeline(
                    layout=self._pipeline_layout(form.bindings),
                    compute={"module": module, "entry_point": kernel.entry},
                )
        except wgpu.GPUError as error:
            names = ", ".join(k.kernel.name for k in kernels)
            raise InternalError(f"wgpu: the WGSL of {names} is refused: {error}") from None

    def __getitem__(self, form: Form) -> Any:
        return self._made[form.key]

    def _layout(self, bindings: int) -> Any:
        import wgpu

        kinds: list[dict[str, object]] = [{"type": "uniform", "has_dynamic_offset": True}]
        kinds += [{"type": "storage"}] * bindings
        entries = [
            {"binding": number, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": kind}
            for number, kind in enumerate(kinds)
        ]
        return self._device.create_bind_group_layout(entries=entries)
