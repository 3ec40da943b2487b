"""Objects placed into memory by our own linker run as LLVM's linker would have them run."""

import ctypes
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.native import kernels as native
from rlx.backends.native import linker
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.emit import llvm_codegen
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import host

is_ours = sys.platform == "linux" and host().triple.startswith("x86_64")
needs_ours = pytest.mark.skipif(not is_ours, reason="LLVM links for this machine")


def horner_kernel(count=40):
    """y = c0 + x·(c1 + x·(..)): code and constants, and a tail."""
    k = KernelBuilder("horner")
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    with k.parallel("c", k.ceildiv(n, 8)) as c:
        tail = k.lane_mask(n - c * 8, 8)
        value = k.load(x, c * 8, lanes=8, mask=tail)
        for i in range(count):
            value = value * (0.5 + i / 64) + 1.0 / (i + 1)
        k.store(y, c * 8, value, mask=tail)
    return k.build()


def object_of(text):
    return llvm_codegen.compile_text(text, host(), "a test")


def linked(text, *names, allowed=()):
    return linker.link(object_of(text), "test", host(), names, allowed)


@pytest.fixture
def llvm_links(monkeypatch):
    """How many objects LLVM's linker was given."""
    calls = []
    with_llvm = linker._link_with_llvm
    monkeypatch.setattr(linker, "_link_with_llvm", lambda *args: calls.append(args[1]) or with_llvm(*args))
    return calls


@needs_ours
def test_kernels_run_as_llvm_links_them(monkeypatch, llvm_links):
    kernel, answers = horner_kernel(), []
    x = np.linspace(-2, 2, 19, dtype=np.float32)
    for ours in (True, False):
        monkeypatch.setattr(linker, "_is_ours", lambda parts, ours=ours: ours)
        y = np.zeros_like(x)
        native.Loader().load(kernel)(x, y, 19)
        answers.append(y)
    np.testing.assert_array_equal(*answers)
    assert llvm_links == ["kernel horner"]


@needs_ours
def test_functions_of_the_process_are_reached_wherever_they_are(llvm_links):
    text = """
    declare ptr @memset(ptr, i32, i64)
    define void @fill(ptr %p, i64 %n) { %r = call ptr @memset(ptr %p, i32 7, i64 %n)  ret void }
    define internal i64 @twice(i64 %n) noinline { %r = add i64 %n, %n  ret i64 %r }
    define i64 @four(i64 %n) { %a = call i64 @twice(i64 %n) %b = call i64 @twice(i64 %a)  ret i64 %b }
    """
    found = linked(text, "fill", "four", allowed={"memset"})
    data = np.zeros(100, np.uint8)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(found.addresses["fill"])(data.ctypes.data, 60)
    assert data.tolist() == [7] * 60 + [0] * 40
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found.addresses["four"])(11) == 44
    assert not llvm_links


@pytest.mark.parametrize(
    "text",
    [
        "@n = global i64 20\n"
        "define i64 @f() { %a = load i64, ptr @n  %b = add i64 %a, 1  store i64 %b, ptr @n  ret i64 %b }",
        "@t = constant [2 x ptr] [ptr @f, ptr @g]\n@x = external global i64\n"
        "define i64 @g() { ret i64 21 }\n"
        "define i64 @f() { %i = getelementptr ptr, ptr @t, i64 1  %p = load volatile ptr, ptr %i"
        "  %r = call i64 %p()  ret i64 %r }",
    ],
    ids=["data that changes", "addresses in data"],
)
def test_what_ours_does_not_know_is_left_to_llvm(text, llvm_links):
    found = linked(text, "f")
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(found.addresses["f"])() == 21
    assert llvm_links == ["test"]


def test_what_is_not_allowed_is_refused():
    text = "declare void @abort()\ndefine void @f() { call void @abort()  ret void }"
    with pytest.raises(InternalError, match="test: the compiled code calls abort, which rlx does not provide"):
        linked(text, "f", allowed={"memset"})


@needs_ours
def test_a_symbol_that_is_not_there():
    with pytest.raises(InternalError, match="test: the compiled code has no g"):
        linked("define void @f() { ret void }", "f", "g")


@needs_ours
def test_damaged_objects_are_errors_and_nothing_else(monkeypatch):
    # The process would not survive all of them; it does not have to, since every object from disk has a checksum.
    monkeypatch.setattr(linker, "_link_with_llvm", lambda *args: None)
    code = llvm_codegen.compile_object(horner_kernel(3), host())
    name = packed_symbol("horner")

    def try_link(damaged):
        try:
            linker.link(damaged, "test", host(), [name], ())
        except InternalError:
            return False
        return True

    assert try_link(code)
    assert not any(try_link(code[:length]) for length in range(0, len(code), 37))
    rng = np.random.default_rng(1)
    for at, bit in itertools.product(rng.integers(0, len(code), 300), (1, 0x80)):
        try_link(code[:at] + bytes([code[at] ^ bit]) + code[at + 1 :])


def access_to(address):
    """How the memory at an address may be used; None where there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(n, 16) for n in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return None


@needs_ours
def test_code_is_never_writable_and_leaves_with_its_owner():
    found = linked("define void @f() { ret void }", "f")
    address = found.addresses["f"]
    assert access_to(address) == "r-xp"
    # Neighbours may have been joined into one mapping, so it is the page that is asked for.
    del found
    gc.collect()
    assert access_to(address) is None


ALONE = """
import sys
import numpy as np, rlx
g = rlx.Graph("alone")
x = g.input("x", ("B", 16))
for i in range(60):
    x = rlx.tanh(x) * 0.5 + x
g.set_outputs([rlx.softmax(x)])
y = np.asarray(rlx.Session("cpu").compile(g).run(x=np.ones((3, 16), "f4"))[0])
print(float(y.sum()), "llvmlite.binding" in sys.modules)
"""


@needs_ours
def test_a_process_that_finds_its_code_on_disk_does_not_load_llvm(tmp_path):
    env = {**os.environ, "RLX_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (first, compiled), (second, found) = (run.stdout.split() for run in runs)
    assert first == second and (compiled, found) == ("True", "False")
