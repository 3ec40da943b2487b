"""The precision that programs for TPUs have unless somebody says otherwise."""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.api import CompileOptions


def tpu_options(options: CompileOptions | None) -> CompileOptions:
    """Options with the policy of TPUs, whose matrix units multiply bf16, unless they have one of their own."""
    options = CompileOptions() if options is None else options
    if options.policy is None and options.precision == "f32":
        return replace(options, policy="AutoMixedBf16")
    return options
