"""The linker of WebAssembly: what LLVM's objects become, and which of them are refused. Nothing runs here."""

from __future__ import annotations

import pytest

from rlx.backends.wasm import binary
from rlx.backends.wasm.binary import CODE, DATA, EXPORT, FUNCTION, GLOBAL, IMPORT, TYPE, Cursor
from rlx.backends.wasm.linker import HAS_MAXIMUM, MAX_PAGES, PAGE, STACK_BYTES, Export, link
from rlx.backends.wasm.objects import WasmObject
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_object, compile_text
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import WASM

F32 = DType.F32


def scaled_kernel(name="scale", factor=2.0):
    k = KernelBuilder(name)
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.load(x, i) * factor)
    return k.build()


def table_kernel(size=5):
    """A kernel with constants, and with scratch memory on the stack."""
    k = KernelBuilder("table")
    x, y = k.pointer("x", DType.I64), k.pointer("y", F32, write=True)
    table = k.table("squares", F32, [float(i * i) for i in range(size)])
    scratch = k.local("scratch", F32, 4)
    index = k.load(x, 0)
    k.store(scratch, index & 3, k.load(table, index))
    k.store(y, 0, k.load(scratch, index & 3))
    return k.build()


def exported(kernel, name="k0"):
    return Export(name, packed_symbol(kernel.name), compile_object(kernel, WASM), f"kernel {kernel.name}")


def sections_of(module):
    whole, found = Cursor(module), {}
    assert whole.take(8) == binary.MAGIC
    while whole:
        kind = whole.byte()
        found[kind] = Cursor(whole.take(whole.number()))
    return found


@pytest.mark.parametrize("value", [0, 1, 63, 64, 127, 128, 300, 2**31, 2**32 - 1, 2**63])
def test_numbers_come_back(value):
    for width in (1, 5):
        assert Cursor(binary.number(value, width)).number() == value
        assert len(binary.number(value, width)) >= width
        for number in (value, -value):
            assert Cursor(binary.signed(number, width)).signed() == number


def test_a_module_has_what_it_needs_and_no_more():
    module, end, flags = link([exported(scaled_kernel("a")), exported(scaled_kernel("b", 3.0), "k1")])
    found = sections_of(module)
    assert list(found) == [TYPE, IMPORT, FUNCTION, GLOBAL, EXPORT, CODE]
    # Kernels alike have one type, and each is two functions: itself, and its packed entry.
    assert Cursor(found[TYPE].data).number() == 2
    assert Cursor(found[CODE].data).number() == Cursor(found[FUNCTION].data).number() == 4
    imports = found[IMPORT]
    assert (imports.number(), imports.name(), imports.name()) == (1, "env", "memory")
    names = found[EXPORT]
    found = [(names.name(), names.byte(), names.number()) for _ in names.counted()]
    assert found == [("k0", 0, 1), ("k1", 0, 3), ("stack", binary.IS_GLOBAL, 0)]
    assert end == STACK_BYTES
    # Of the memory: its kind, what it is like, and its least and largest number of pages.
    memory = Cursor(module, flags - 1)
    assert (memory.byte(), memory.byte()) == (binary.IS_MEMORY, HAS_MAXIMUM)
    assert (memory.number(), memory.number()) == (STACK_BYTES // PAGE, MAX_PAGES)


def test_constants_lie_above_the_stack_each_aligned():
    first, second = exported(table_kernel(5)), exported(table_kernel(6), "k1")
    module, end, flags = link([first, second])
    data = sections_of(module)[DATA]
    places = []
    for _ in data.counted():
        assert (data.byte(), data.byte()) == (0, 0x41)
        at = data.signed()
        data.byte()
        places.append((at, len(data.take(data.number()))))
    assert [size for _, size in places] == [20, 24]
    assert places[0][0] >= STACK_BYTES and places[0][0] + 20 <= places[1][0] and places[1][0] + 24 == end
    assert all(at % WasmObject(e.code, "").segments[0].align == 0 for (at, _), e in zip(places, (first, second)))
    assert Cursor(module, flags + 1).number() * PAGE >= end


def test_an_object_of_several_exports_is_placed_once():
    export = exported(scaled_kernel())
    once, twice = (sections_of(link(list(es)).module) for es in ((export,), (export, export._replace(name="k1"))))
    assert once[CODE].data == twice[CODE].data and once[EXPORT].data != twice[EXPORT].data


def test_links_are_the_same_every_time():
    exports = [exported(table_kernel()), exported(scaled_kernel(), "k1")]
    assert link(exports) == link(exports)


def test_code_that_calls_something_is_refused():
    text = (
        "declare float @sinf(float)\ndefine float @f(float %x) {\n  %y = call float @sinf(float %x)\n  ret float %y\n}"
    )
    code = compile_text(f'target triple = "{WASM.triple}"\n{text}', WASM, "a test")
    with pytest.raises(InternalError, match="kernel f: the compiled code calls sinf, which a module does not have"):
        link([Export("k0", "f", code, "kernel f")])


def test_data_of_others_is_refused():
    text = "@far = external global float\ndefine float @f() {\n  %y = load float, ptr @far\n  ret float %y\n}"
    code = compile_text(f'target triple = "{WASM.triple}"\n{text}', WASM, "a test")
    with pytest.raises(InternalError, match=r"a relocation of type \d for 'far' is not known here"):
        link([Export("k0", "f", code, "kernel f")])


def test_a_missing_export_is_named():
    with pytest.raises(InternalError, match="the compiled code has no other"):
        link([exported(scaled_kernel())._replace(symbol="other")])


def test_cut_objects_are_refused_not_read_beyond_their_end():
    code = compile_object(table_kernel(), WASM)
    refused = 0
    for size in range(0, len(code) - 1, 7):
        try:
            parts = WasmObject(code[:size], "cut")
        except InternalError as error:
            assert "cut: this is no WebAssembly object" in str(error)
            refused += 1
        else:
            # Cut between two sections: what is left is whole, but has not everything.
            assert len(parts.symbols) == 0 or size > len(code) // 2
    assert refused > 20


def test_an_elf_object_is_none():
    with pytest.raises(InternalError, match="it does not begin like one"):
        WasmObject(b"\x7fELF" + bytes(64), "kernel")
