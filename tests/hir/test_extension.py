"""HIR extensions: order, replacement, choice by name."""

import pytest

from rlx.errors import RlxError
from rlx.hir import (
    HirModule,
    apply_hir_extensions,
    apply_hir_extensions_named,
    extension,
    register_hir_extension,
    registered_hir_extensions,
)


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(extension, "_extensions", {})


def appends(word):
    def change(hir):
        hir.name += word

    return change


def test_extensions_run_in_order_of_registration():
    for word in "abc":
        register_hir_extension(word, appends(word))
    assert registered_hir_extensions() == ["a", "b", "c"]
    m = HirModule("")
    apply_hir_extensions(m)
    assert m.name == "abc"


def test_registering_again_replaces_and_moves_to_the_end():
    for word in "abc":
        register_hir_extension(word, appends(word))
    register_hir_extension("a", appends("A"))
    m = HirModule("")
    apply_hir_extensions(m)
    assert m.name == "bcA"


def test_named_extensions_run_in_the_order_asked_for():
    for word in "abc":
        register_hir_extension(word, appends(word))
    m = HirModule("")
    apply_hir_extensions_named(m, ["c", "a"])
    assert m.name == "ca"
    with pytest.raises(RlxError, match="no HIR extension is called 'd'; registered are: a, b, c"):
        apply_hir_extensions_named(m, ["d"])


def test_an_extension_may_change_the_program():
    def scale(hir):
        hir.set_outputs([hir.mul(o, 2.0) for o in hir.outputs])

    register_hir_extension("scale", scale)
    m = HirModule("m")
    m.set_outputs([m.input("x", (2,))])
    apply_hir_extensions(m)
    assert m.node(m.outputs[0]).op.mnemonic == "mul"
