"""All kernels of the model families, forward and in training, as WebAssembly: the bits of LLVM's code for x86."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from c_cases import graph_cases
from c_runs import differences

from compile.family_programs import FAMILIES, forward, training, values_for
from rlx.backends.wasm.linker import Export, link
from rlx.backends.wasm.sandbox import Sandbox, aligned
from rlx.ir.dtype import DType
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.rebuild import rebuild
from rlx.kernels.cpu.matmul.matmul import matmul_kernel
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.ir.loop_ir import Buffer, Kernel
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import SSE2, WASM, runs_here
from rlx.kernels.specs.products import Matrix, Product


def run_kernel(kernel: Kernel, arguments: dict) -> dict:
    """The arguments after a kernel ran on copies of them in a linear memory of its own. Arrays that share memory do so
    there, too."""
    linked = link([Export("k0", packed_symbol(kernel.name), compile_object(kernel, WASM), f"kernel {kernel.name}")])
    sandbox = Sandbox(linked, kernel.name)
    owners, end = {}, sandbox.start
    for array in (a for a in arguments.values() if isinstance(a, np.ndarray)):
        owner = array if array.base is None else array.base
        if id(owner) not in owners:
            owners[id(owner)] = (end, owner)
            end += aligned(owner.nbytes + 64)
    slots_at = end
    sandbox.reserve(slots_at + 8 * len(kernel.params) + 64)
    for at, owner in owners.values():
        sandbox.write(at, owner)
    places, words = {}, []
    for param in kernel.params:
        value = arguments[param.name]
        if isinstance(param, Buffer):
            at, owner = owners[id(value if value.base is None else value.base)]
            places[param.name] = at + value.ctypes.data - owner.ctypes.data
            words.append(places[param.name])
        else:
            raw = np.zeros(8, np.uint8)
            number = np.asarray(value, param.dtype.numpy).reshape(1).view(np.uint8)
            raw[: len(number)] = number
            words.append(int(raw.view(np.int64)[0]))
    sandbox.write(slots_at, np.array(words, np.int64))
    sizes = {p.name: arguments[p.name] for p in kernel.params if not isinstance(p, Buffer)}
    sandbox.call("k0", slots_at, grid_size(kernel, sizes))
    return {
        name: sandbox.read(places[name], value.shape, value.dtype) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


@pytest.mark.targets
@pytest.mark.skipif(not runs_here(SSE2), reason="compared with code for x86-64, which does not run here")
@pytest.mark.parametrize("way", [forward, training], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_of_a_family_have_the_bits_of_x86(name, way):
    """Both have vectors of 16 bytes and no fused product, so every kernel gives the same bits."""
    built = way(FAMILIES[name], "f32")
    graph = rebuild(built, lambda n, xs: Input(n.op.key, n.op.type)() if isinstance(n.op, Param) else None).graph
    found = graph_cases(graph, values_for(FAMILIES[name], graph), SSE2)
    cases = list({case.kernel.text: case for case in found}.values())
    assert cases, "no kernel of the family was compared"
    wrong = [
        f"{case.kernel.name}: {text}"
        for case in cases
        for text in differences(case.after, run_kernel(case.kernel, case.before))
    ]
    assert wrong == []


def test_a_tile_of_a_product_keeps_one_element_of_a_at_a_time():
    """A tile has 12 sums and 2 vectors of B, and chips have 16 registers. WebAssembly has none, so that the order of
    instructions decides what a browser must store in between: an element of A is used up before the next is loaded."""
    a, b, c = Matrix("a", DType.F32, 384), Matrix("b", DType.F32, 64), Matrix("c", DType.F32, 64)
    text = compile_assembly(matmul_kernel("product", WASM, Product(128, 64, 384, a, b, c), packed=True), WASM)
    inner = max((part.split("end_loop")[0] for part in text.split("\tloop")), key=lambda part: part.count("f32x4.mul"))
    lines = [line.split() for line in inner.splitlines() if line.strip()]
    held = [after[-1] for line, after in pairwise(lines) if line[0] == "v128.load32_splat"]
    assert len(held) == 6 and len(set(held)) == 1, inner
