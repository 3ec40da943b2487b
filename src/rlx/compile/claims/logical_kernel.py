"""Logical kernels: ops that a backend may run natively, or that are lowered to one common body of primitive ops.

`should_lower_to_common` decides for one kind of op (the name of its class); a choice per kind wins over the policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from rlx.ir.words import Words
from rlx.knobs import knobs
from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


class KernelDispatchPolicy(Words):
    """Native kernels where the backend has them, never, or always."""

    PreferNative = "prefer_native"
    ForceCommon = "force_common"
    ForceNative = "force_native"

    @staticmethod
    def from_env() -> KernelDispatchPolicy:
        """The policy of the knob `kernel_dispatch` (RLX_KERNEL_DISPATCH)."""
        return KernelDispatchPolicy(knobs.kernel_dispatch)


class KernelDispatchConfig(NamedTuple):
    """A policy and the kinds of op that are exempt from it. Per kind, native wins over common."""

    policy: KernelDispatchPolicy = KernelDispatchPolicy.PreferNative
    force_common_kinds: frozenset[str] = frozenset()
    force_native_kinds: frozenset[str] = frozenset()

    @staticmethod
    def of(value: KernelDispatchConfig | KernelDispatchPolicy | str) -> KernelDispatchConfig:
        return value if isinstance(value, KernelDispatchConfig) else KernelDispatchConfig(KernelDispatchPolicy(value))

    @staticmethod
    def from_env() -> KernelDispatchConfig:
        return KernelDispatchConfig(KernelDispatchPolicy.from_env())

    def with_common(self, kinds: Iterable[str]) -> KernelDispatchConfig:
        return self._replace(force_common_kinds=self.force_common_kinds | frozenset(kinds))

    def with_native(self, kinds: Iterable[str]) -> KernelDispatchConfig:
        return self._replace(force_native_kinds=self.force_native_kinds | frozenset(kinds))


class LogicalKernelEntry(NamedTuple):
    """A kind of op with a common body, and the name under which reports show it."""

    kind: str
    name: str


_lock = fork_safe_lock()
# Replaced as a whole when an entry is added: readers need no lock.
_entries: dict[str, LogicalKernelEntry] = {
    kind: LogicalKernelEntry(kind, name)
    for kind, name in (
        ("GroupNorm", "group_norm"),
        ("ResizeNearest2x", "resize_nearest_2x"),
        ("GaussianSplatRender", "gaussian_splat_render"),
        ("GaussianSplatRenderBackward", "gaussian_splat_render_backward"),
    )
}


def registered_logical_kernels() -> tuple[LogicalKernelEntry, ...]:
    """Every registered kind, in order of registration."""
    return tuple(_entries.values())


def register_logical_kernel(kind: str, name: str) -> None:
    """Let dispatch policies decide about another kind of op; it must have a decomposition."""
    global _entries
    with _lock:
        _entries = {**_entries, kind: LogicalKernelEntry(kind, name)}


def should_lower_to_common(
    kind: str, supported: Collection[str], config: KernelDispatchConfig | KernelDispatchPolicy | None = None
) -> bool:
    """Whether ops of `kind` are lowered to their common body for a backend that claims the kinds in `supported`.

    An empty claim means that the backend runs everything. `config` is PreferNative when it is not given.
    """
    config = KernelDispatchConfig() if config is None else KernelDispatchConfig.of(config)
    if kind not in _entries or kind in config.force_native_kinds:
        return False
    if kind in config.force_common_kinds:
        return True
    if config.policy is KernelDispatchPolicy.PreferNative:
        return bool(supported) and kind not in supported
    return config.policy is KernelDispatchPolicy.ForceCommon


def logical_kinds_in_graph(
    graph: Graph, supported: Collection[str], config: KernelDispatchConfig | KernelDispatchPolicy | None = None
) -> tuple[str, ...]:
    """The kinds in `graph` that are lowered to their common body, in order of first use."""
    kinds = dict.fromkeys(type(node.op).__name__ for node in graph.nodes)
    return tuple(kind for kind in kinds if should_lower_to_common(kind, supported, config))
