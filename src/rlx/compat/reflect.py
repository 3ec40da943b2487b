"""Summaries of modules for tools: what is in an HIR or MIR module, how a plan lays it out, how two plans differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlx.compat.binding_manifest import BindingManifest
from rlx.compat.component import ModelComponent
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph, Node
from rlx.ir.lir import LirModule
from rlx.ir.module import FusionPolicy, HirModule, HirNodeId, MirModule, block_label
from rlx.ir.shape import Size
from rlx.ir.text.inspect import block_kind
from rlx.ir.text.pretty import kind_counts
from rlx.ir.words import Words

# Blocks that stand for a whole part of a model, by their names in HirOp.
_REFLECTED = frozenset({"LlamaDecoderBlock", "SwiGLU", "Attention", "GatedDeltaNet", "Qwen35MtpHead"})
_SPECIALISED = frozenset({"LlamaDecoderBlock", "SwiGLU", "GatedDeltaNet"})


class HirReflection(NamedTuple):
    """What an HIR module consists of."""

    name: str
    node_count: int
    fusion_policy: FusionPolicy
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    outputs: tuple[HirNodeId, ...]
    block_labels: tuple[str, ...]

    @staticmethod
    def from_hir(hir: HirModule) -> HirReflection:
        return HirReflection(
            hir.name,
            len(hir.nodes),
            hir.fusion_policy,
            tuple(str(n.name) for n in hir.inputs),
            tuple(str(n.name) for n in hir.params),
            tuple(HirNodeId(o) for o in hir.outputs),
            tuple(_label(n) for n in hir.nodes if block_kind(n.op) in _REFLECTED),
        )


class MirReflection(NamedTuple):
    """How many ops of each kind a graph has, sorted by kind."""

    name: str
    node_count: int
    op_kinds: tuple[tuple[str, int], ...]

    @staticmethod
    def from_mir(mir: MirModule | Graph) -> MirReflection:
        graph = mir if isinstance(mir, Graph) else mir.as_graph()
        return MirReflection(graph.name, len(graph.nodes), tuple(sorted(kind_counts(graph).items())))


def layout_from_lir(lir: LirModule) -> BindingManifest:
    """The boundary of a planned module, with symbolic sizes where it has symbols."""
    return BindingManifest.from_lir(lir)


def layout_for_binding(lir: LirModule, component: ModelComponent | Mapping[str, int]) -> BindingManifest:
    """The same boundary under the sizes of one component (or of a binding)."""
    binding = component.dim_binding() if isinstance(component, ModelComponent) else component
    return BindingManifest.from_lir(lir.bind(binding))


class ManifestDiff(NamedTuple):
    """What a specialised layout changed against its template."""

    template_arena: Size
    specialized_arena: Size
    params_only_in_template: tuple[str, ...]
    params_only_in_specialized: tuple[str, ...]

    @staticmethod
    def compare(template: BindingManifest, specialized: BindingManifest) -> ManifestDiff:
        before, after = set(template.param_names()), set(specialized.param_names())
        return ManifestDiff(
            template.arena_size, specialized.arena_size, tuple(sorted(before - after)), tuple(sorted(after - before))
        )


class BlockSpecialization(Words):
    """How a block may be compiled instead of by its policy."""

    Default = "default"
    FusedTransformerLayer = "fused_transformer_layer"
    UnfusedPrimitives = "unfused_primitives"


class SpecializeBlockRecord(NamedTuple):
    """The choice made for one block."""

    node: HirNodeId
    label: str
    choice: BlockSpecialization


def probe_block_specialization(hir: HirModule, choice: BlockSpecialization) -> list[SpecializeBlockRecord]:
    """The blocks of a module that a choice would apply to."""
    return [
        SpecializeBlockRecord(HirNodeId(n.id), _label(n), choice) for n in hir.nodes if block_kind(n.op) in _SPECIALISED
    ]


def symbolic_layout_hint(binding: Mapping[str, int | Dim]) -> str:
    """A binding in one line, `B=2, S=128`."""
    return ", ".join(f"{symbol}={size}" for symbol, size in sorted(binding.items())) or "no symbols"


def _label(node: Node) -> str:
    return block_label(node) or str(node.id)
