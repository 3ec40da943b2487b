"""Object code: what it may call, how it is kept, loaded and called."""

from __future__ import annotations

import gc
import os
import threading
import warnings

import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS

from rlx.backends.native import kernels as native
from rlx.backends.native import object_cache
from rlx.backends.native.elf import undefined_symbols
from rlx.backends.native.object_cache import DiskCache
from rlx.cache_directory import cache_directory
from rlx.errors import BackendError, BindingError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit import llvm_codegen, llvm_threads
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AVX2, AVX512, CORTEX_M4, NEON, SSE2, host

F32 = DType.F32


def scaled(factor: float = 2.0, name: str = "scaled") -> Kernel:
    k = KernelBuilder(name)
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    with k.parallel("c", k.ceildiv(n, 4)) as c:
        tail = k.lane_mask(n - c * 4, 4)
        k.store(y, c * 4, k.load(x, c * 4, lanes=4, mask=tail) * factor, mask=tail)
    return k.build()


def check_runs(loader: native.Loader, factor: float = 2.0) -> None:
    x, y = np.arange(7, dtype=np.float32), np.zeros(7, np.float32)
    loader.load(scaled(factor))(x, y, 7)
    np.testing.assert_array_equal(y, factor * x)


def library_call_object() -> bytes:
    """What LLVM makes of an operation that the machine lacks: here a remainder of floats."""
    from llvmlite import binding

    text = "define float @f(float %a, float %b) {\n  %r = frem float %a, %b\n  ret float %r\n}"
    machine = llvm_codegen._llvm_machine(SSE2)
    return machine.emit_object(binding.parse_assembly(text))


def test_a_library_call_is_seen_and_refused():
    code = library_call_object()
    assert undefined_symbols(code) == {"fmodf"}
    with pytest.raises(InternalError, match="kernel f: the compiled code calls fmodf, which rlx does not provide"):
        native.check_symbols(code, "f")


def test_a_loader_refuses_it_before_linking(monkeypatch, tmp_path):
    monkeypatch.setattr(llvm_codegen, "compile_object", lambda kernel, target: library_call_object())
    objects = DiskCache(tmp_path)
    loader = native.Loader(objects=objects)
    monkeypatch.setattr(loader, "_link", lambda *_: pytest.fail("linked"))
    with pytest.raises(InternalError, match="calls fmodf"):
        loader.load(scaled())
    assert not list(objects.directory.iterdir()), "refused code is not kept"


def test_refused_from_the_cache_too(tmp_path):
    objects = DiskCache(tmp_path)
    loader = native.Loader(objects=objects)
    objects.put(native.cache_key(scaled(), loader.machine), library_call_object())
    with pytest.raises(InternalError, match="calls fmodf"):
        loader.load(scaled())


def test_symbols_of_32_bit_objects_and_of_none():
    assert undefined_symbols(compile_object(scaled(), CORTEX_M4)) <= {"__aeabi_ldivmod", "__aeabi_memcpy"}
    assert undefined_symbols(compile_object(scaled(), AVX512)) == set()
    for damaged in (b"", b"MZ" * 100, compile_object(scaled(), AVX512)[:200]):
        with pytest.raises(InternalError, match="object code is"):
            undefined_symbols(damaged)


def test_threads_generate_the_same_code_at_once():
    """Without llvmlite's lock: what each thread gets is what one alone gets."""
    kernels = [scaled(factor) for factor in (2.0, 3.0, 4.0)]
    alone = [compile_object(k, AVX2) for k in kernels]
    problems = []

    def work(shift):
        for i in range(8):
            number = (i + shift) % len(kernels)
            if compile_object(kernels[number], AVX2) != alone[number]:
                problems.append(number)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_an_llvmlite_of_other_names_will_do(monkeypatch):
    expected = compile_object(scaled(), AVX2)
    monkeypatch.setattr(llvm_threads, "_emitter", lambda: None)
    assert compile_object(scaled(), AVX2) == expected


def test_memset_may_be_called():
    from llvmlite import binding

    call = "call ptr @memset(ptr %p, i32 0, i64 64)"
    text = f"declare ptr @memset(ptr, i32, i64)\ndefine void @f(ptr %p) {{\n  %r = {call}\n  ret void\n}}"
    code = llvm_codegen._llvm_machine(SSE2).emit_object(binding.parse_assembly(text))
    assert undefined_symbols(code) == {"memset"}
    native.check_symbols(code)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_calls_check_their_arguments(target):
    f = native.load(scaled(), target)
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    f(x, y, 8)
    for wrong, message in [
        ((x, y), r"takes \['x', 'y', 'n'\], got 2 arguments"),
        ((x.astype(np.float64), y, 8), "x needs a f32 array, got float64 array"),
        ((x, 3, 8), "y needs a f32 array, got int"),
        ((x, np.zeros(16, np.float32)[::2], 8), "y must be contiguous, writable, aligned to 4 bytes"),
        ((x, np.frombuffer(bytes(32), np.float32), 8), "y must be contiguous, writable"),
    ]:
        with pytest.raises(BindingError, match=message):
            f(*wrong)


def test_ranges_of_the_parallel_loop():
    f = native.load(scaled())
    x, y = np.ones(16, np.float32), np.zeros(16, np.float32)
    f(x, y, 16, first=1, last=3)
    np.testing.assert_array_equal(y, np.repeat([0, 2, 2, 0], 4))
    f(x, y, 16, first=-5, last=100)
    np.testing.assert_array_equal(y, np.full(16, 2))


def test_one_kernel_is_loaded_once_from_many_threads():
    loader = native.Loader()
    loaded = []
    threads = [threading.Thread(target=lambda: loaded.append(loader.load(scaled(3.0)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8 and len(set(map(id, loaded))) == 1


def test_code_for_other_machines_is_not_loaded():
    with pytest.raises(BackendError, match="code for neon does not run on this machine"):
        native.Loader(NEON if host() is not NEON else AVX512).load(scaled())


def test_keys_depend_on_kernel_and_target():
    keys = {native.cache_key(scaled(f), t) for f in (2.0, 3.0) for t in (AVX512, SSE2)}
    assert len(keys) == 4 and native.cache_key(scaled(), SSE2) == native.cache_key(scaled(), SSE2)


def test_the_next_process_does_not_compile(tmp_path, monkeypatch):
    check_runs(native.Loader(objects=DiskCache(tmp_path)))
    monkeypatch.setattr(llvm_codegen, "compile_object", lambda *_: pytest.fail("compiled again"))
    check_runs(native.Loader(objects=DiskCache(tmp_path)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\x00" * 9),
        lambda path: path.write_bytes(b"rlxobj\x00\x63" + path.read_bytes()[8:]),
        lambda path: path.write_bytes(os.urandom(3000)),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "truncated", "flipped", "other version", "noise", "deleted", "a directory"],
)
def test_damaged_entries_are_compiled_anew(damage, tmp_path):
    objects = DiskCache(tmp_path)
    check_runs(native.Loader(objects=objects))
    [path] = objects.directory.iterdir()
    damage(path)
    check_runs(native.Loader(objects=objects))
    if path.is_file():
        assert objects.get(path.stem) is not None, "the entry is whole again"


def test_an_entry_under_another_name_is_none(tmp_path):
    objects = DiskCache(tmp_path)
    objects.put("aa", b"code")
    (objects.directory / "aa.o").rename(objects.directory / "bb.o")
    assert objects.get("bb") is None and objects.get("aa") is None


def test_the_cache_is_private_and_atomic(tmp_path):
    objects = DiskCache(tmp_path / "new")
    objects.put("key", b"code")
    assert objects.directory.stat().st_mode & 0o777 == 0o700
    assert (objects.directory / "key.o").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in objects.directory.iterdir()] == ["key.o"]
    objects.directory.chmod(0o755)
    with pytest.raises(BackendError, match=r"must be a directory of your own with mode 700.*RLX_CACHE_DIR"):
        DiskCache(tmp_path / "new")
    with pytest.raises(BackendError, match="letters and digits"):
        objects.get("../escape")


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path):
    objects = DiskCache(tmp_path)
    objects.directory.rmdir()
    objects.put("key", b"code")
    assert objects.get("key") is None


def test_trim_keeps_the_newest(tmp_path):
    objects = DiskCache(tmp_path)
    for age, key in enumerate(("new", "middle", "old")):
        objects.put(key, bytes(1000))
        os.utime(objects.directory / f"{key}.o", (1e9 - age, 1e9 - age))
    objects.trim(2200)
    assert objects.get("old") is None and objects.get("new") == objects.get("middle") == bytes(1000)


def test_a_cache_is_looked_at_once_for_so_many_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(object_cache, "_LOOK_AFTER_BYTES", 20_000)
    objects, looks = DiskCache(tmp_path), []
    monkeypatch.setattr(objects, "trim", looks.append)
    for number in range(400):
        objects.put(f"small{number}", bytes(100))
        objects.put(f"large{number}", bytes(900))
    # 400,000 bytes: 20 looks are to be expected, with a deviation of 4.
    assert 8 <= len(looks) <= 32 and set(looks) == {object_cache.MAX_BYTES}


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RLX_CACHE_DIR", raising=False)
    assert cache_directory() == tmp_path / "rlx"
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"


def test_code_that_nobody_holds_is_unloaded():
    """Every linked object takes memory maps of the process, of which there are only so many."""
    loader = native.Loader()
    kept, dropped = loader.load(scaled(2.0)), loader.load(scaled(3.0))
    assert loader.load(scaled(3.0)) is dropped
    assert len(loader._linked) == 2
    del dropped
    gc.collect()
    assert len(loader._linked) == len(loader._kernels) == 1
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    kept(x, y, 3)
    assert y.tolist() == [2.0] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_does_not_inherit_a_held_lock():
    loader = native.Loader()
    loader.load(scaled())
    with loader._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test run
        child = os.fork()
        if child == 0:
            # Leaves without a word to the test runner, whatever happens.
            os._exit(0 if loader._lock.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0
