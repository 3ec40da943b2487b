"""Arrays and programs divided over eight devices of the host by XLA: `make tools test-targets`."""

from many_devices_runs import many_devices, needs_xla

pytestmark = needs_xla


def test_arrays_are_divided_and_read_back():
    many_devices("""
        mesh = rlx.make_mesh((4, 2), ("x", "y"))
        a = np.arange(128, dtype="f4").reshape(16, 8)
        for dtype in ("f4", "i4", "f2", "?", "c8"):
            for spec in (P(), P("x"), P(None, "y"), P("y", "x"), P(("y", "x"))):
                sharding = NamedSharding(mesh, spec)
                x = rlx.device_put(a.astype(dtype), sharding)
                assert x.sharding == sharding and x.shape == (16, 8) and x.dtype == np.dtype(dtype)
                np.testing.assert_array_equal(np.asarray(x), a.astype(dtype))
                shards = x.addressable_shards
                assert [s.device.id for s in shards] == list(range(8))
                for shard in shards:
                    np.testing.assert_array_equal(np.asarray(shard.data), a.astype(dtype)[shard.index])
                copies = 8 // len({str(s.index) for s in shards})
                assert sorted({s.replica_id for s in shards}) == list(range(copies))
                other = rlx.device_put(x, NamedSharding(mesh, P("x", "y")))
                np.testing.assert_array_equal(np.asarray(other), a.astype(dtype))
                assert other.sharding.spec == P("x", "y")
        empty = rlx.device_put(np.zeros((8, 0), "f4"), NamedSharding(mesh, P("x")))
        assert np.asarray(empty).shape == (8, 0)
        scalar = rlx.device_put(np.float32(3), NamedSharding(mesh))
        assert float(scalar) == 3 and scalar.is_fully_replicated and scalar.is_fully_addressable
        tree = rlx.device_put({"a": a, "b": (a, a)}, {"a": NamedSharding(mesh, P("x")), "b": NamedSharding(mesh)})
        assert tree["a"].sharding.spec == P("x") and tree["b"][1].is_fully_replicated
        rows = rlx.make_array_from_callback((16, 8), NamedSharding(mesh, P("x")), lambda i: a[i])
        np.testing.assert_array_equal(np.asarray(rows), a)
    """)


def test_programs_run_where_their_arguments_lie():
    many_devices("""
        mesh = rlx.make_mesh((4, 2), ("x", "y"))
        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((16, 8)).astype("f4"), rng.standard_normal((8, 6)).astype("f4")
        rows = NamedSharding(mesh, P("x", "y"))
        A = rlx.device_put(a, rows)
        f = rlx.jit(lambda a, b: (a @ b, (a * 2.0).T), in_shardings=(rows, NamedSharding(mesh, P("y"))),
                    out_shardings=(NamedSharding(mesh, P("x")), None))
        for given in (A, a):
            y, z = f(given, b)
            assert y.sharding.spec == P("x") and z.sharding.spec == P("y", "x")
            np.testing.assert_allclose(np.asarray(y), a @ b, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(np.asarray(z), 2 * a.T)
        assert f(A, b)[0].sharding == y.sharding
        # Without any word about shardings: operators, functions and gradients follow their arguments.
        assert (A + 1).sharding == rows and np.allclose(np.asarray(A + 1), a + 1)
        g = rlx.jit(rlx.value_and_grad(lambda a, b: rnp.sum(rnp.tanh(a @ b) ** 2)))
        value, grad = g(A, b)
        want, want_grad = rlx.jit(rlx.value_and_grad(lambda a, b: rnp.sum(rnp.tanh(a @ b) ** 2)), device="cpu")(a, b)
        np.testing.assert_allclose(float(value), float(want), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(grad), np.asarray(want_grad), rtol=1e-4, atol=1e-5)
        total, parts = rlx.jit(lambda x: rlx.scan(lambda c, r: (c + r, c), x[0], x))(A)
        np.testing.assert_allclose(np.asarray(total), a.sum(0) + a[0], rtol=1e-4, atol=1e-5)
        # A mesh in another order of devices.
        turned = rlx.Mesh(np.arange(8)[::-1].reshape(2, 4), ("a", "b"))
        t = rlx.device_put(a, NamedSharding(turned, P("b", "a")))
        assert t.addressable_shards[0].device.id == 7
        np.testing.assert_allclose(np.asarray(rlx.jit(lambda x: x @ x.T)(t)), a @ a.T, rtol=1e-4, atol=1e-5)
    """)


def test_donated_state_stays_where_it_is():
    many_devices("""
        mesh = rlx.make_mesh((8,), ("x",))
        rows = NamedSharding(mesh, P("x"))
        step = rlx.jit(lambda s, x: (s + x, s.sum()), donate_argnums=0)
        state = rlx.device_put(np.zeros(64, "f4"), rows)
        buffer = state.value.buffer
        for n in range(3):
            state, total = step(state, np.float32(1))
            assert state.sharding == rows and float(total) == 64 * n
        assert buffer.is_deleted()
        both = rlx.device_put(np.ones(8, "f4"), rows)
        a, b = rlx.jit(lambda a, b: (a + b, a * b), donate_argnums=(0, 1))(both, both)
        assert np.asarray(a).tolist() == [2.0] * 8 and np.asarray(b).tolist() == [1.0] * 8
    """)


def test_params_and_sizes_of_sessions():
    many_devices("""
        mesh = rlx.make_mesh((8,), ("x",))
        g = rlx.Graph("g")
        x = rlx.with_sharding_constraint(g.input("x", ("B", 4), "f32"), NamedSharding(mesh, P("x")))
        g.set_outputs([x @ g.param("w", (4, 2), "f32")])
        c = rlx.Session("xla").compile(g)
        c.set_param("w", np.ones((4, 2), "f4"))
        for rows in (8, 16, 8):
            (y,) = c.run(x=np.ones((rows, 4), "f4"))
            assert np.asarray(y).shape == (rows, 2) and np.asarray(y).min() == 4
        assert "2 programs compiled so far" in c.report
        try:
            c.run(x=np.ones((6, 4), "f4"))
        except rlx.RlxError as error:
            assert "6" in str(error), error
        else:
            raise AssertionError("6 rows do not divide over 8 devices")
    """)


def test_checks_in_divided_programs_still_end_the_run():
    many_devices("""
        from rlx.errors import AssertionFailed
        mesh = rlx.make_mesh((8,), ("x",))
        f = rlx.jit(lambda x: rlx.runtime_assert(x > 0, "x must be positive", x) * 2.0)
        rows = NamedSharding(mesh, P("x"))
        assert np.asarray(f(rlx.device_put(np.ones(8, "f4"), rows))).sum() == 16
        bad = np.ones(8, "f4"); bad[6] = -1
        try:
            np.asarray(f(rlx.device_put(bad, rows)))
        except AssertionFailed as error:
            assert "must be positive" in str(error)
        else:
            raise AssertionError("the check did not hold")
    """)


def test_too_few_devices_are_named():
    for code in (
        "rlx.make_mesh((4, 2), ('x', 'y'))",
        "rlx.device_put(np.ones(8), NamedSharding(rlx.Mesh((8,), ('x',)), P('x')))",
        "rlx.jit(lambda x: x, in_shardings=NamedSharding(rlx.Mesh((8,), ('x',)), P('x')))(np.ones(8))",
    ):
        told = many_devices(code, devices=2, fails=True)
        assert "ShardingError" in told and "there are 2" in told and "RLX_XLA_DEVICES=8" in told, told
    told = many_devices(
        """
        a = rlx.device_put(np.ones(8), NamedSharding(rlx.Mesh((2,), ('x',)), P('x')))
        b = rlx.device_put(np.ones(8), NamedSharding(rlx.Mesh((2,), ('y',)), P('y')))
        a + b
        """,
        devices=2,
        fails=True,
    )
    assert "the meshes x=2 and y=2; a program has one mesh" in told
