"""Programs divided over eight devices beside JAX's: the same numbers, shardings and exchanges between devices."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rlx
from rlx.backends.xla.adapter import Unusable, installed

FOUND = installed()
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
    pytest.mark.skipif(isinstance(FOUND, Unusable), reason=getattr(FOUND, "reason", "")),
]
SOURCE = Path(rlx.__file__).parents[1]
PRELUDE = """
import numpy as np, jax, rlx, jax.numpy as jnp, rlx.numpy as rnp
from rlx.distributed.reports import collectives_of
rng = np.random.default_rng(0)
mesh = rlx.make_mesh((4, 2), ("x", "y"))
theirs = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
S = lambda *spec: rlx.NamedSharding(mesh, rlx.P(*spec))
J = lambda *spec: jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*spec))
"""


def beside_jax(code):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
            "RLX_XLA_DEVICES": "8",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_layer_and_its_gradient_move_as_much():
    beside_jax("""
        x = rng.standard_normal((16, 32)).astype("f4")
        w = {"up": rng.standard_normal((32, 64)).astype("f4"), "down": rng.standard_normal((64, 32)).astype("f4")}
        def layer(n):
            def loss(w, x):
                return n.mean((n.maximum(x @ w["up"], 0.0) @ w["down"] - x) ** 2)
            return loss
        ours = rlx.jit(rlx.value_and_grad(layer(rnp)), out_shardings=(S(), {"up": S(None, "y"), "down": S("y")}))
        own = rlx.device_put(w, {"up": S(None, "y"), "down": S("y")}), rlx.device_put(x, S("x"))
        value, grads = ours(*own)
        jitted = jax.jit(jax.value_and_grad(layer(jnp)), out_shardings=(J(), {"up": J(None, "y"), "down": J("y")}))
        given = jax.device_put(w, {"up": J(None, "y"), "down": J("y")}), jax.device_put(x, J("x"))
        want, want_grads = jitted(*given)
        np.testing.assert_allclose(float(value), float(want), rtol=1e-5)
        for k in w:
            np.testing.assert_allclose(np.asarray(grads[k]), np.asarray(want_grads[k]), rtol=1e-4, atol=1e-6)
        found = rlx.distributed.report(ours, *own).collectives
        wanted = collectives_of(jitted.lower(*given).compile().as_text(), 8)
        assert {u.kind: u.result_bytes for u in found} == {u.kind: u.result_bytes for u in wanted}, (found, wanted)
    """)


def test_shardings_of_results_are_jaxs():
    beside_jax("""
        a = rng.standard_normal((16, 8)).astype("f4")
        programs = {
            "transpose": lambda n, a: (a * 2.0).T,
            "gram": lambda n, a: a @ a.T,
            "rows": lambda n, a: n.sum(a, axis=1),
            "joined": lambda n, a: n.concatenate([a, a], axis=1),
            "flat": lambda n, a: a.reshape(128),
        }
        for name, f in programs.items():
            for spec in (("x",), ("x", "y"), (None, "y"), (("x", "y"),)):
                y = rlx.jit(lambda a: f(rnp, a))(rlx.device_put(a, S(*spec)))
                z = jax.jit(lambda a: f(jnp, a))(jax.device_put(a, J(*spec)))
                np.testing.assert_allclose(np.asarray(y), np.asarray(z), rtol=1e-5, atol=1e-5)
                parts = [[(s.start or 0) for s in i.index] for i in y.addressable_shards]
                theirs_parts = [[(s.start or 0) for s in i.index] for i in
                                sorted(z.addressable_shards, key=lambda s: s.device.id)]
                assert parts == theirs_parts, (name, spec, y.sharding, z.sharding)
    """)


def test_shard_map_is_jaxs():
    beside_jax("""
        a = rng.standard_normal((8, 8)).astype("f4")
        def f(n, lax):
            def g(a):
                total = lax.psum(a, "y")
                moved = lax.ppermute(total, "x", [(i, (i + 1) % 4) for i in range(4)])
                spread = lax.all_gather(moved, "x", axis=0, tiled=True)
                return lax.psum_scatter(spread * (1.0 + lax.axis_index("x")), "x", tiled=True) + lax.pmean(a, "y")
            return g
        P, Q = rlx.P, jax.sharding.PartitionSpec
        ours = rlx.shard_map(f(rnp, rlx), mesh, P("x", "y"), P("x"))
        jaxs = jax.shard_map(f(jnp, jax.lax), mesh=theirs, in_specs=Q("x", "y"), out_specs=Q("x"), check_vma=False)
        got, want = rlx.jit(ours, device="xla")(a), jax.jit(jaxs)(a)
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)
        ours_grad = rlx.jit(rlx.grad(lambda a: rnp.sum(rnp.sin(ours(a)))), device="xla")(a)
        want_grad = jax.jit(jax.grad(lambda a: jnp.sum(jnp.sin(jaxs(a)))))(a)
        np.testing.assert_allclose(np.asarray(ours_grad), np.asarray(want_grad), rtol=1e-4, atol=1e-5)
    """)


def test_a_training_step_moves_as_much_and_how_long_it_takes():
    """Losses and exchanges are asserted; the times, in turn, are printed for who asks (`-s`)."""
    told = beside_jax("""
        import time
        width, depth = 512, 4
        weights = [{"up": rng.standard_normal((width, 4 * width)).astype("f4") / 32,
                    "down": rng.standard_normal((4 * width, width)).astype("f4") / 64} for _ in range(depth)]
        x = rng.standard_normal((64, width)).astype("f4")
        def step_of(n, grad, tree_map):
            def loss(w, x):
                h = x
                for layer in w:
                    h = h + n.tanh(h @ layer["up"]) @ layer["down"]
                return n.mean((h - 1.0) ** 2)
            def step(w, x):
                value, g = grad(loss)(w, x)
                return tree_map(lambda a, b: a - 0.1 * b, w, g), value
            return step
        own = [{"up": S(None, "y"), "down": S("y")}] * depth
        other = [{"up": J(None, "y"), "down": J("y")}] * depth
        ours = rlx.jit(step_of(rnp, rlx.value_and_grad, rlx.tree.map), donate_argnums=0, out_shardings=(own, S()))
        jitted = jax.jit(step_of(jnp, jax.value_and_grad, jax.tree.map), donate_argnums=0, out_shardings=(other, J()))
        a, ax = rlx.device_put(weights, own), rlx.device_put(x, S("x"))
        b, bx = jax.device_put(weights, other), jax.device_put(x, J("x"))
        moved = collectives_of(jitted.lower(b, bx).compile().as_text(), 8)
        found = rlx.distributed.report(ours, a, ax).collectives
        assert [(u.kind, u.result_bytes) for u in found] == [(u.kind, u.result_bytes) for u in moved], (found, moved)
        times = {"rlx": [], "jax": []}
        for n in range(30):
            started = time.perf_counter()
            a, mine = ours(a, ax)
            mine = float(mine)
            between = time.perf_counter()
            b, theirs_value = jitted(b, bx)
            theirs_value = float(theirs_value)
            if n >= 10:
                times["rlx"].append(between - started)
                times["jax"].append(time.perf_counter() - between)
            assert abs(mine - theirs_value) < 1e-5 * max(1, abs(theirs_value)), (n, mine, theirs_value)
        quick = {name: sorted(found)[len(found) // 2] for name, found in times.items()}
        print(f"a step: rlx {quick['rlx'] * 1e3:.2f} ms, jax {quick['jax'] * 1e3:.2f} ms, "
              f"{quick['jax'] / quick['rlx']:.2f} times as fast as jax")
        """)
    print(told)
