"""A tour of rlx in one minute, without a model: build, inspect, run, differentiate, compile."""

from __future__ import annotations

import numpy as np

import rlx
import rlx.numpy as rnp


def headline(text: str) -> None:
    print(f"\n== {text} ==")


def build_and_run() -> None:
    headline("a graph, its text, and native code")
    g = rlx.Graph("hello")
    x = g.input("x", ("B", 4), "f32")
    w = g.param("w", (4, 2), "f32")
    g.set_outputs([rlx.gelu(x @ w + 0.5)])
    print(g)
    assert rlx.parse(str(g)) == g
    compiled = rlx.Session("cpu").compile(g)
    compiled.set_param("w", np.ones((4, 2), "f4"))
    for batch in (1, 3):
        [out] = compiled.run(x=np.ones((batch, 4), "f4"))
        print(f"batch {batch}: {np.asarray(out)[0]}")
    print(compiled.report)


def blocks() -> None:
    headline("one HIR block, the same program for an NVIDIA GPU")
    module = rlx.Graph.define(
        "layer", lambda h: h.linear(h.input("x", ("B", 64)), h.param("w", (64, 32)), h.param("b", (32,)), "gelu")
    )
    print(module.as_hir())
    ptx = rlx.backends.cuda.compile_to_ptx(module, arch="sm_90a")
    print(f"{len(ptx.splitlines())} lines of PTX, {ptx.count('fma.rn.f32')} of them fused multiply-adds")


def train() -> None:
    headline("a Python function: traced, differentiated, trained")
    key = rlx.random.key(0)
    k1, k2, k3 = rlx.random.split(key, 3)
    x = rlx.random.normal(k1, (256, 2))
    labels = np.asarray(np.sum(np.square(np.asarray(x)), axis=1) > 1.0, "f4")
    params = {
        "w1": rlx.random.normal(k2, (2, 16)) * 0.7,
        "b1": np.zeros(16, "f4"),
        "w2": rlx.random.normal(k3, (16,)) * 0.3,
    }

    def loss(p, x, labels):
        score = rnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]
        return rnp.mean(rnp.logaddexp(0.0, score) - labels * score)

    @rlx.jit
    def step(p, x, labels):
        value, gradients = rlx.value_and_grad(loss)(p, x, labels)
        return value, {k: p[k] - 1.0 * gradients[k] for k in p}

    for i in range(201):
        value, params = step(params, x, labels)
        if i % 50 == 0:
            print(f"step {i:3}: loss {float(value):.4f}")


def tour() -> None:
    build_and_run()
    blocks()
    train()


if __name__ == "__main__":
    tour()
