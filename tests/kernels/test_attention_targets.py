"""Attention for machines that this one is not: vector code, and nothing that has to be linked."""

from __future__ import annotations

import functools

import pytest

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.native.kernels import check_symbols
from rlx.ir.shape import Shape
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import AVX2, AVX512, NEON, RISCV
from rlx.ops.attn.attention import Attention

VECTOR_MULTIPLY_ADD = {AVX512: "vfmadd231ps\t", AVX2: "vfmadd231ps\t", NEON: "fmla\tv", RISCV: "vfmacc.v"}


@functools.cache
def lir(kind):
    graph = rlx.Graph("attention")
    operands = [graph.input(name, Shape(("B", 4, "S", 32), "f32")) for name in "qkv"]
    if kind == "custom":
        operands.append(graph.input("mask", Shape(("B", 4, "S", "S"), "bool")))
    graph.set_outputs([Attention(4, 32, mask_kind=kind)(*operands)])
    return CpuBackend().compile(graph, CompileOptions()).lir


@pytest.mark.parametrize("target", VECTOR_MULTIPLY_ADD, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", ["causal", "custom"])
def test_vector_code_without_calls(target, kind):
    module = lir(kind)
    kernel = make_kernel("attention", module.as_graph(), module.kernels[0], target).kernel
    check_symbols(compile_object(kernel, target))
    assembly = compile_assembly(kernel, target)
    # Two forms with two loops of products each, in tiles.
    assert assembly.count(VECTOR_MULTIPLY_ADD[target]) > 50
