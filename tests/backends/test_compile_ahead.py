"""Compiling: each kernel once, by two threads, and each program printed once for the keys of both caches."""

import threading

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.native import compile_ahead
from rlx.backends.native.compile_ahead import CompileAhead
from rlx.backends.native.kernels import Loader
from rlx.backends.native.object_cache import DiskCache
from rlx.backends.program.program import Loading, build_programs
from rlx.compile.compiler import CompilePipeline
from rlx.errors import InternalError
from rlx.ir.tensor import building
from rlx.ir.text import graph_text
from rlx.ir.text.printed import printed, text_of
from rlx.kernels.emit import llvm_codegen
from rlx.kernels.machines import host
from rlx.knobs import knobs


def network(layers=3, name="network"):
    graph = rlx.Graph(name)
    x = graph.input("x", ("B", 24))
    with building(graph):
        for i in range(layers):
            inner = ops.layer_norm(x, graph.param(f"g{i}", (24,)), graph.param(f"b{i}", (24,)))
            x = x + ops.gelu(inner @ graph.param(f"w{i}", (24, 24)))
        graph.set_outputs([ops.softmax(x, -1), ops.reduce_sum(x, (0,))])
    return graph


@pytest.fixture
def compiled(monkeypatch):
    """The texts of the kernels that LLVM has compiled."""
    texts = []
    compile = llvm_codegen.compile_object
    monkeypatch.setattr(
        llvm_codegen, "compile_object", lambda kernel, *rest: texts.append(kernel.text) or compile(kernel, *rest)
    )
    return texts


def build(loader, graph):
    return build_programs(
        CompilePipeline(target="cpu").compile(graph), Loading(host(), loader.load, start=loader.start)
    )


def test_each_kernel_is_compiled_once(compiled, tmp_path):
    first = build(Loader(host(), DiskCache(tmp_path)), network())
    assert len(compiled) == len(set(compiled)) >= 4
    codes = {step.code.key for step in first.main.steps}
    assert codes <= {p.stem for p in (tmp_path / "objects").iterdir()}
    count = len(compiled)
    build(Loader(host(), DiskCache(tmp_path)), network())
    assert len(compiled) == count, "what is on disk is not compiled ahead"


def test_without_a_place_on_disk(compiled):
    build(Loader(host(), None), network())
    assert len(compiled) == len(set(compiled)) >= 4


def test_a_compile_that_fails_is_the_callers(monkeypatch):
    def refuse(kernel, machine):
        raise InternalError(f"no code for {kernel.name}")

    monkeypatch.setattr(llvm_codegen, "compile_object", refuse)
    with pytest.raises(InternalError, match="no code for"):
        build(Loader(host(), None), network())


class Counted:
    """A compiler that waits until it may go on, and knows who has called it."""

    def __init__(self):
        self.by, self.go_on = {}, threading.Event()

    def __call__(self, kernel):
        self.by[kernel] = threading.current_thread().name, knobs.verify
        assert self.go_on.wait(30)
        return kernel.encode()


def test_the_caller_takes_what_has_not_been_begun():
    compile = Counted()
    ahead = CompileAhead(compile)
    with knobs(verify=2):
        ahead.add("1", "one")
        assert not compile.by, "one kernel is not worth a thread"
        for key, kernel in (("2", "two"), ("2", "two"), ("3", "three")):
            ahead.add(key, kernel)
    while not compile.by:
        pass
    assert ahead.take("3") is None and ahead.take("never added") is None
    compile.go_on.set()
    assert ahead.take("1") == b"one" and ahead.take("1") is None
    # By the other thread, with the settings of the one that asked.
    assert compile.by["one"] == ("rlx-compile", 2) and "three" not in compile.by


def test_who_waits_compiles_others_the_longest_first():
    """The thread is held up with the first kernel until the caller, who waits for it, has compiled all others."""
    order, first_may_end = [], threading.Event()

    def compile(kernel):
        order.append((kernel, threading.current_thread() is threading.main_thread()))
        if kernel == "first":
            assert first_may_end.wait(30)
        elif len(order) == 4:
            first_may_end.set()
        return kernel.encode()

    ahead = CompileAhead(compile)
    for kernel, length in (("first", 9), ("short", 1), ("long", 5), ("middle", 3)):
        ahead.add(kernel, kernel, length)
        while kernel == "short" and not order:
            pass
    assert ahead.take("first") == b"first"
    assert order == [("first", False), ("long", True), ("middle", True), ("short", True)]
    assert [ahead.take(k) for k in ("short", "middle", "long")] == [b"short", b"middle", b"long"]


def test_threads_end_and_begin_again():
    compile = Counted()
    compile.go_on.set()
    ahead = CompileAhead(compile)
    for start in range(0, 40, 2):
        for key in (start, start + 1):
            ahead.add(str(key), str(key))
        for key in (start, start + 1):
            assert ahead.take(str(key)) in (None, str(key).encode())
    for thread in threading.enumerate():
        if thread.name == "rlx-compile":
            thread.join(10)
    assert not [t for t in threading.enumerate() if t.name == "rlx-compile"]


def test_a_forked_child_waits_for_nobody():
    ahead = CompileAhead(Counted())
    ahead._begun["1"] = compile_ahead._Job("one")  # as a thread has left it that the child does not have
    compile_ahead._forget_all()
    assert ahead.take("1") is None


def test_a_program_is_printed_once(monkeypatch, tmp_path):
    shown = []
    show = graph_text.show
    monkeypatch.setattr(graph_text, "show", lambda graph, *rest: shown.append(graph.name) or show(graph, *rest))
    monkeypatch.setattr("rlx.backends.program.program_cache._entries", lambda: DiskCache(tmp_path, "programs"))
    graph = network(layers=20, name="printed_once")
    assert len(graph.nodes) > 100, "smaller programs have no key on disk"
    rlx.Session("cpu").compile(graph)
    assert shown.count("printed_once") == 1
    assert list((tmp_path / "programs").iterdir()), "it has been kept under a key"


def test_the_text_of_another_program_is_its_own():
    graph, other = network(1), network(2)
    with printed(graph, "known"):
        assert text_of(graph) == "known" and text_of(other) == str(other)
    assert text_of(graph) == str(graph)


def test_results_of_a_program_compiled_ahead():
    graph = network()
    rng = np.random.default_rng(7)
    ready = rlx.Session("cpu").compile(graph)
    ready.set_params({n: rng.normal(size=s.dims).astype("f4") for n, s in ready.param_types.items()})
    reference = rlx.Session("reference").compile(graph)
    reference.set_params(ready._values)
    x = rng.normal(size=(5, 24)).astype("f4")
    for found, wanted in zip(ready.run(x=x), reference.run(x=x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
