"""`CompileOptions`: what a caller may ask of a compile.

>>> options = CompileOptions().with_threads(2).with_policy("AutoMixedBf16")
>>> options.threads, str(options.precision_policy)
(2, 'AutoMixedBf16')
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import RlxError
from rlx.ir.dim_binding import by_name

if TYPE_CHECKING:
    from rlx.compile.claims.fusion.fusion_pipeline import FusionOptions, FusionTarget
    from rlx.compile.claims.logical_kernel import KernelDispatchConfig, KernelDispatchPolicy
    from rlx.compile.precision.policy import Precision, PrecisionPolicy


@dataclass(frozen=True)
class CompileOptions:
    """Every field has a default that suits most programs; backends ignore what does not concern them.

    `precision` is short for the usual policy of a precision; `policy` says it in detail and wins. `dim_binding` and
    `param_bindings` fix sizes and weights at compile time; what is fixed is no longer asked for. With
    `cache_param_invariant`, what follows from weights alone is computed when they are set and not at every run: right
    unless weights change as often as inputs. With `activations="int8"` products with stored weights multiply codes of 8
    bits by dot-product instructions: faster, and not the same answers; the report says which products. "int16" does so
    with 16 bits where weights are GGUF blocks, f16 or bf16, slower than "int8" and hardly to be told from "f32"; "auto"
    is "int16" where the machine has such instructions, else "f32".
    """

    verify: bool = True
    threads: int | None = None
    precision: Precision | str = "f32"
    policy: PrecisionPolicy | str | None = None
    dce: bool = True
    constant_folding: bool = True
    verbose: bool = False
    fusion_target: FusionTarget | str | None = None
    fusion_opts: FusionOptions | None = None
    arena_alignment: int | None = None
    assert_fusion_clean: bool = False
    supported_ops: Collection[str] | None = None
    dim_binding: Mapping[str, int] | None = None
    kernel_dispatch: KernelDispatchConfig | KernelDispatchPolicy | str | None = None
    param_bindings: Mapping[str, Any] | None = None
    cache_param_invariant: bool = True
    activations: str = "f32"

    def __post_init__(self) -> None:
        alignment = self.arena_alignment
        if alignment is not None and (alignment < 1 or alignment & (alignment - 1)):
            raise RlxError(f"CompileOptions.arena_alignment is a power of two, got {alignment!r}")
        if self.activations != "f32":
            from rlx.ops.lowered.int8_products import ACTIVATIONS

            if self.activations not in ACTIVATIONS:
                known = ", ".join(ACTIVATIONS)
                raise RlxError(f"CompileOptions.activations is one of {known}, got {self.activations!r}")
        if self.precision != "f32":
            from rlx.compile.precision.policy import Precision

            # One spelling, so that one program has one key.
            object.__setattr__(self, "precision", Precision.other_spellings().get(self.precision, self.precision))
        if self.dim_binding is not None:
            object.__setattr__(self, "dim_binding", by_name(self.dim_binding))
        for name, size in (self.dim_binding or {}).items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise RlxError(f"CompileOptions.dim_binding: {name} is a size, a whole number from 0 on, got {size!r}")

    @property
    def precision_policy(self) -> PrecisionPolicy:
        """The policy that holds: `policy`, else the one that goes with `precision`."""
        from rlx.compile.precision.policy import PrecisionPolicy

        return PrecisionPolicy.of(self.precision if self.policy is None else self.policy)

    def key(self) -> str:
        """The same for options that make the same program; the number of threads does not change it."""
        parts = [
            f"{f.name}={_text(getattr(self, f.name))}" for f in fields(self) if f.name not in ("threads", "verbose")
        ]
        return "; ".join(parts)

    # One at a time, by name.

    def with_threads(self, count: int | None) -> CompileOptions:
        return replace(self, threads=count)

    def with_precision(self, precision: Precision | str) -> CompileOptions:
        return replace(self, precision=precision)

    def with_policy(self, policy: PrecisionPolicy | str) -> CompileOptions:
        return replace(self, policy=policy)

    def no_policy(self) -> CompileOptions:
        return replace(self, policy=None)

    def with_dce(self, on: bool) -> CompileOptions:
        return replace(self, dce=on)

    def with_constant_folding(self, on: bool) -> CompileOptions:
        return replace(self, constant_folding=on)

    def with_verbose(self, on: bool) -> CompileOptions:
        return replace(self, verbose=on)

    def with_fusion_target(self, target: FusionTarget | str) -> CompileOptions:
        return replace(self, fusion_target=target)

    def with_fusion_opts(self, opts: FusionOptions) -> CompileOptions:
        return replace(self, fusion_opts=opts)

    def with_arena_alignment(self, alignment: int) -> CompileOptions:
        return replace(self, arena_alignment=alignment)

    def with_assert_fusion_clean(self, on: bool = True) -> CompileOptions:
        return replace(self, assert_fusion_clean=on)

    def with_supported_ops(self, kinds: Collection[str]) -> CompileOptions:
        return replace(self, supported_ops=frozenset(kinds))

    def with_dim_binding(self, binding: Mapping[str, int]) -> CompileOptions:
        return replace(self, dim_binding=by_name(binding))

    def with_kernel_dispatch(self, policy: KernelDispatchConfig | KernelDispatchPolicy | str) -> CompileOptions:
        return replace(self, kernel_dispatch=policy)

    def with_param_bindings(self, values: Mapping[str, Any]) -> CompileOptions:
        return replace(self, param_bindings=dict(values))

    def with_activations(self, kind: str) -> CompileOptions:
        return replace(self, activations=kind)

    def with_cache_param_invariant(self, on: bool) -> CompileOptions:
        return replace(self, cache_param_invariant=on)


def _text(value: Any) -> str:
    """A value by its content; arrays by a hash of theirs."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, frozenset | set):
        return str(sorted(value))
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype}{list(value.shape)} {content}"
    return repr(value)
