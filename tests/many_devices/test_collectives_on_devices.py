"""`shard_map` on eight devices: every device runs its part, and XLA's collectives are in the program."""

import subprocess
import sys
from pathlib import Path

from many_devices_runs import SOURCE, environment, many_devices, needs_xla

pytestmark = needs_xla

HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"


def test_every_collective_is_that_of_the_definition():
    told = many_devices(
        HERE
        + """
from collective_programs import MESH, PROGRAMS, arguments
for name, (f, ins, outs, shapes) in PROGRAMS.items():
    given = arguments(shapes)
    mapped = rlx.shard_map(f, MESH, ins, outs)
    got, want = (rlx.tree.leaves(rlx.jit(mapped, device=d)(*given)) for d in ("xla", "cpu"))
    for a, b in zip(got, want, strict=True):
        assert a.sharding.mesh == MESH
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-5, err_msg=name)
    print(name)
"""
    )
    assert len(told.split()) == 16


def test_other_types_and_gradients():
    many_devices(
        HERE
        + """
from collective_programs import MESH, PROGRAMS, arguments
for dtype in ("f8", "f2", "i4", "u1", "c8", "?"):
    a = (np.arange(24).reshape(8, 3) % 5).astype(dtype)
    def f(a):
        results = [rlx.all_gather(a, "x"), rlx.ppermute(a, "x", [(0, 1), (1, 2)])]
        return tuple(results if dtype == "?" else [*results, rlx.psum(a, "x")])
    mapped = rlx.shard_map(f, MESH, P("x"), P())
    got, want = (rlx.jit(mapped, device=d)(a) for d in ("xla", "reference"))
    for p, q in zip(got, want):
        np.testing.assert_array_equal(np.asarray(p), np.asarray(q), err_msg=dtype)
for name in ("psum", "all_gather_tiled", "psum_scatter_tiled", "ring", "matmul", "all_to_all_tiled", "in_a_loop"):
    f, ins, outs, shapes = PROGRAMS[name]
    given = arguments(shapes)
    mapped = rlx.shard_map(f, MESH, ins, outs)
    loss = lambda *a: sum(rnp.sum(rnp.sin(y)) for y in rlx.tree.leaves(mapped(*a)))
    got, want = (rlx.jit(rlx.grad(loss), device=d)(*given) for d in ("xla", "cpu"))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=1e-5, err_msg=name)
"""
    )


def test_the_collectives_are_in_the_program():
    many_devices("""
        from rlx.backends.xla.adapter import checked_module
        from rlx.backends.xla.lowering import lowered
        from rlx.backends.xla.shardy import Placement
        from rlx.backends.xla.stablehlo import module_of
        mesh = rlx.Mesh((4, 2), ("x", "y"))
        f = rlx.shard_map(lambda a: rlx.psum(a, "y"), mesh, P("x", "y"), P("x"))
        graph = rlx.make_graph(f)(np.ones((8, 2), "f4"))
        text = module_of(lowered(graph), None, Placement(mesh, (NamedSharding(mesh),), (None,))).text
        text = checked_module(text)
        assert "sdy.manual_computation" in text and "stablehlo.all_reduce" in text
        assert "[[0, 1], [2, 3], [4, 5], [6, 7]]" in text, text
    """)


def test_samples_of_the_ops_conform():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "targets"]
    places = ["tests/conformance", "tests/backends/test_hostile_sizes.py"]
    settings = {**environment(4), "PYTHONPATH": f"{SOURCE}:{root / 'tests'}"}
    done = subprocess.run(
        [*command, *places, "-k", "xla and (ShardMap or ShardingConstraint)"],
        env=settings,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout
    assert ".." in done.stdout


def test_checks_on_parts_end_the_run():
    many_devices("""
        from rlx.errors import AssertionFailed
        mesh = rlx.make_mesh((8,), ("x",))
        f = rlx.shard_map(lambda a: rlx.runtime_assert(a > 0, "positive", a), mesh, P("x"), P("x"))
        run = rlx.jit(f, device="xla")
        assert np.asarray(run(np.ones(8, "f4"))).sum() == 8
        bad = np.ones(8, "f4"); bad[5] = 0
        try:
            np.asarray(run(bad))
        except AssertionFailed as error:
            assert "positive" in str(error)
        else:
            raise SystemExit("the check did not hold")
    """)
