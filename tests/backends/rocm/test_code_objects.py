"""Code objects for AMD's GPUs: linked here, read back, and compared with those that lld links."""

from __future__ import annotations

import shutil
import struct
import subprocess

import numpy as np
import pytest
from comgr_runs import MISSING, ComgrError, linked_by_comgr
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.backends.native.elf import ElfObject
from rlx.backends.rocm import compile_to_code_object
from rlx.backends.rocm.code_object import KernelInfo, read_code_object, resource_table
from rlx.backends.rocm.link import link_code_object
from rlx.backends.rocm.message_pack import pack, unpack
from rlx.errors import BackendError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import AMD_CHIPS, GFX942, GFX1100

by_chip = pytest.mark.parametrize("chip", AMD_CHIPS, ids=lambda c: c.name)
LINKERS = ("ld.lld-19", "ld.lld-20", "ld.lld-18", "ld.lld")


def table_kernel(name="looked_up", numbers=(3.0, 1.0, 4.0, 1.0, 5.0)):
    """Blocks of 64 threads, LDS, a barrier, and a table, which code reaches by a relocation."""
    k = KernelBuilder(name)
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    table, shared = k.table("numbers", DType.F32, numbers), k.shared("shared", DType.F32, 64)
    with k.parallel("block", k.ceildiv(n, 64)) as block, k.threads("thread", 64) as thread:
        i = k.min(block * 64 + thread, n - 1)
        k.store(shared, thread, k.load(x, i) * k.load(table, i % len(numbers)))
        k.barrier()
        k.store(y, i, k.load(shared, 63 - thread))
    return k.build()


@by_chip
def test_a_code_object_says_what_the_loader_must_know(chip):
    found = read_code_object(link_code_object([compile_object(table_kernel(), chip)]))
    info = found.kernels["looked_up"]
    assert found.arch == chip.name and info.wave == chip.wave == (64 if chip.name.startswith("gfx9") else 32)
    assert [tuple(a) for a in info.arguments] == [(0, 8, "global_buffer"), (8, 8, "global_buffer"), (16, 8, "by_value")]
    assert (info.kernarg_bytes, info.lds_bytes, info.threads, info.spilled) == (24, 256, 64, 0)
    assert info.vgprs > 0 and info.entry % 256 == 0 and info.occupancy(chip.name) >= 8
    assert [s.flags for s in found.segments if s.kind == 1] == [4, 5, 6]
    assert set(found.symbols) == {"looked_up", "looked_up.kd"}
    assert "| `looked_up` | 64 |" in "\n".join(resource_table(found))


def test_kernels_of_several_objects_become_one_code_object():
    kernels = [table_kernel("one"), table_kernel("two", (2.0, 7.0)), table_kernel("three", (1.0,))]
    objects = [compile_object(kernel, GFX1100) for kernel in kernels]
    found = read_code_object(link_code_object(objects))
    assert list(found.kernels) == ["one", "two", "three"] and len({k.entry for k in found.kernels.values()}) == 3
    single = read_code_object(link_code_object(objects[1:2]))
    assert single.kernels["two"].vgprs == found.kernels["two"].vgprs


def test_what_cannot_be_linked_is_refused():
    one = compile_object(table_kernel(), GFX942)
    for objects, why in (
        ([one, one], "two kernels of a code object have the name looked_up"),
        ([one, compile_object(table_kernel("other"), GFX1100)], "objects for one AMD GPU"),
        ([], "at least one"),
        ([b"no object at all" * 8], "not a little-endian ELF file"),
        ([one[:900]], "damaged"),
    ):
        with pytest.raises(InternalError, match=why):
            link_code_object(objects)


def test_a_damaged_code_object_is_refused():
    image = link_code_object([compile_object(table_kernel(), GFX942)])
    found = read_code_object(image)
    descriptor = found.symbols["looked_up.kd"].value
    for place, value, why in (
        (8, 2, "metadata V5"),
        (16, 1, "no shared object"),
        (descriptor, 1, "descriptor and metadata of looked_up differ"),
        (descriptor + 16, 1, "begins at"),
    ):
        broken = bytearray(image)
        broken[place] ^= value
        with pytest.raises(InternalError, match=why):
            read_code_object(bytes(broken))
    # Every cut is noticed, and none ends in anything but an answer.
    for size in range(64, len(image), 97):
        with pytest.raises(InternalError):
            read_code_object(image[:size])


def test_a_program_becomes_one_code_object():
    graph = rlx.Graph("layer")
    x, w = graph.input("x", ("B", 64), "bf16"), graph.param("w", (64, 128), "bf16")
    graph.set_outputs([rlx.relu(x @ w), ops.reduce_sum(x, (0,))])
    found = read_code_object(compile_to_code_object(graph, "gfx1100"))
    assert found.arch == "gfx1100" and len(found.kernels) == 2
    assert all(k.spilled == 0 and k.wave == 32 for k in found.kernels.values())
    with pytest.raises(BackendError, match="no kernels are made for the architecture 'sm_80'; use one of: gfx90a"):
        compile_to_code_object(graph, "sm_80")


def test_kernels_of_loops_are_there_and_ops_without_one_are_named():
    def looped(xs):
        return rlx.scan(lambda c, x: (rnp.tanh(c + x), c * x), rnp.zeros(3, dtype="f4"), xs)

    graph = rlx.trace(looped, np.zeros((5, 3), "f4")).graph
    assert read_code_object(compile_to_code_object(graph)).kernels
    hosted = rlx.Graph("hosted")
    hosted.set_outputs([ops.sqrtm(hosted.input("x", (4, 4), "c64"))])
    with pytest.raises(BackendError, match="rocm: sqrtm has no GPU kernel"):
        compile_to_code_object(hosted)


def test_occupancy_is_bound_by_registers_by_lds_and_by_the_chip():
    def info(vgprs, lds, threads, wave):
        return KernelInfo("k", (), 0, lds, 0, vgprs, 16, 0, wave, threads, 0)

    assert info(24, 0, 256, 64).occupancy("gfx942") == 8  # as many as there can be
    assert info(128, 0, 256, 64).occupancy("gfx942") == 4  # 512 registers
    assert info(129, 0, 256, 64).occupancy("gfx942") == 3  # given by eights
    assert info(24, 33 << 10, 256, 64).occupancy("gfx942") == 1  # one block of four waves
    assert info(24, 64 << 10, 64, 64).occupancy("gfx90a") == 1
    assert info(97, 0, 128, 32).occupancy("gfx1100") == 12 and info(97, 0, 128, 32).occupancy("gfx1030") == 9
    assert info(24, 65 << 10, 128, 32).occupancy("gfx1201") == 1


items = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=20,
)


@settings(max_examples=20)
@given(items)
def test_metadata_survives_its_packing(item):
    assert unpack(pack(item)) == item


def test_metadata_is_packed_as_llvm_packs_it():
    parts = ElfObject(compile_object(table_kernel(), GFX942))
    (note,) = (parts.code[s.at : s.at + s.size] for s in parts.sections if s.kind == 7)
    _, size, _ = struct.unpack_from("<III", note)
    data = note[20 : 20 + size]
    assert pack(unpack(data)) == data
    for damaged in (data[:-3], data + b"\0", b"\xc1"):
        with pytest.raises(InternalError, match="MessagePack"):
            unpack(damaged)


@pytest.mark.targets
@by_chip
def test_lld_links_the_same_bytes(chip, tmp_path):
    """All that is loaded is the same: headers, notes, symbols, hashes, descriptors, code; only the sections that nobody
    loads differ, and so what the header says of them."""
    found = [path for name in LINKERS if (path := shutil.which(name))]
    if not found:
        pytest.skip("lld is not installed: Debian's package lld-19 has it")
    (tmp_path / "kernel.o").write_bytes(compile_object(table_kernel(), chip))
    command = [found[0], "-shared", str(tmp_path / "kernel.o"), "-o", str(tmp_path / "kernel.so")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unknown abi version" in ran.stderr:
        pytest.skip(f"{found[0]} is older than code objects of version 5; Debian's package lld-19 is not")
    assert ran.returncode == 0, ran.stderr
    theirs, ours = (tmp_path / "kernel.so").read_bytes(), link_code_object([(tmp_path / "kernel.o").read_bytes()])
    loaded = read_code_object(ours)
    assert loaded == read_code_object(theirs)
    end = max(s.at + s.size for s in loaded.segments)
    about_sections = {*range(40, 48), *range(60, 64)}
    assert [at for at in range(end) if ours[at] != theirs[at] and at not in about_sections] == []


@pytest.mark.targets
def test_lld_links_the_same_kernels_of_several_objects(tmp_path):
    found = [path for name in LINKERS[:3] if (path := shutil.which(name))]
    if not found:
        pytest.skip("lld 18 or later is not installed: Debian's package lld-19 has it")
    objects = [compile_object(table_kernel(name), GFX942) for name in ("one", "two")]
    for number, code in enumerate(objects):
        (tmp_path / f"{number}.o").write_bytes(code)
    command = [found[0], "-shared", *(str(tmp_path / f"{n}.o") for n in (0, 1)), "-o", str(tmp_path / "both.so")]
    subprocess.run(command, check=True, capture_output=True)
    theirs = ElfObject((tmp_path / "both.so").read_bytes())
    (table,) = (s for s in theirs.sections if s.kind == 11)
    ours = read_code_object(link_code_object(objects))
    wanted = {s.name: (s.size, s.info, s.other) for s in theirs.symbols_of(table) if s.name}
    assert {name: (s.size, s.info, s.other) for name, s in ours.symbols.items()} == wanted


@pytest.mark.targets
@by_chip
def test_comgr_links_the_same_code(chip):
    """All that is loaded behind the headers is the same: notes, symbols, hashes, descriptors, code."""
    code = compile_object(table_kernel(), chip)
    try:
        theirs = linked_by_comgr(code, chip.name)
    except ComgrError as error:
        if MISSING in str(error):
            pytest.skip(f"{MISSING}: Debian's package libamd-comgr2 has it, ROCm too")
        if "isa_name" in str(error) or "unknown abi version" in str(error):
            pytest.skip(f"this comgr does not know {chip.name} or code objects of version 5: {error}")
        raise
    ours = link_code_object([code])
    loaded, found = read_code_object(ours), read_code_object(theirs)
    assert loaded.kernels == found.kernels and loaded.arch == found.arch == chip.name
    assert loaded.symbols == found.symbols
    # lld 15, which it has inside, does not fill the last page of what is read-only after loading.
    assert [s._replace(memory=0) for s in loaded.segments] == [s._replace(memory=0) for s in found.segments]
    headers, end = 64 + 56 * len(loaded.segments), max(s.at + s.size for s in loaded.segments)
    assert ours[headers:end] == theirs[headers:end]
