"""Transforms composed in many ways, control flow, and rules of one's own, as programs for `program_table`.

JAX has no reverse mode for `while_loop` and none forward for `custom_vjp`; such programs go without these modes.
"""

from program_table import integers, near_one, normal, program, uniform, weight

FORWARD_ONLY = ("vjp", "hvp")


@program(x=normal(3), w=weight(3, 4))
def jacobians_in_both_modes(m, x, w):
    def f(x, w):
        return {"a": m.np.tanh(x @ w), "b": x * m.np.sum(w**2)}

    return m.jacfwd(f, argnums=(0, 1))(x, w), m.jacrev(f, argnums=(0, 1))(x, w)


@program(x=normal(4), scale=near_one(4))
def hessians_in_both_orders(m, x, scale):
    def rosenbrock(x):
        return m.np.sum(scale[1:] * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return m.hessian(rosenbrock)(x), m.jacrev(m.jacfwd(rosenbrock))(x), m.jacrev(m.grad(rosenbrock))(x)


@program(x=normal(4), v=normal(4), w=weight(4, 4))
def hessian_vector_products_in_three_ways(m, x, v, w):
    def f(x):
        return m.np.sum(m.np.sin(x @ w) ** 2)

    forward_over_reverse = m.jvp(m.grad(f), (x,), (v,))[1]
    reverse_over_reverse = m.grad(lambda x: m.grad(f)(x) @ v)(x)
    reverse_over_forward = m.grad(lambda x: m.jvp(f, (x,), (v,))[1])(x)
    return forward_over_reverse, reverse_over_reverse, reverse_over_forward


@program(x=near_one(), without=("hvp",))
def many_derivatives_of_one_variable(m, x):
    def f(x):
        return m.np.exp(m.np.sin(x)) / (1 + x**2)

    results = [f]
    for _ in range(4):
        results.append(m.grad(results[-1]))
    return [g(x) for g in results]


@program(x=normal(5, 3), w=weight(3, 4), b=normal(4))
def per_example_gradients_and_hessians(m, x, w, b):
    def loss(x, w, b):
        return m.nn.logsumexp(x @ w + b)

    gradients = m.vmap(m.grad(loss, argnums=(1, 2)), in_axes=(0, None, None))(x, w, b)
    return gradients, m.vmap(m.hessian(loss), in_axes=(0, None, None))(x, w, b)


@program(x=normal(2, 5, 3), y=normal(3, 4, 5))
def nested_vmaps_over_other_axes(m, x, y):
    """An outer product of batches: axes in the middle and at the end, results placed elsewhere."""

    def pair(a, b):
        return m.np.tanh(a) * m.np.sum(b), m.np.outer(a, b)

    inner = m.vmap(pair, in_axes=(None, 1), out_axes=(1, 2))
    return m.vmap(inner, in_axes=(1, 2), out_axes=(0, -1))(x, y)


@program(tree=normal(4, 3), offset=normal(3))
def vmap_over_trees(m, tree, offset):
    def f(pair, settings):
        first, second = pair
        return {"sum": first + second * settings["scale"], "same": settings["offset"]}

    settings = {"scale": tree[:, 0], "offset": offset}
    axes = ((0, None), {"scale": 0, "offset": None})
    return m.vmap(f, in_axes=axes, out_axes={"sum": 0, "same": None})((tree, offset), settings)


@program(x=normal(6, 3))
def collectives_inside_vmap(m, x):
    """Batch normalisation written for one example; the batch is seen through the named axis."""

    def one(x):
        centred = x - m.pmean(x, "batch")
        spread = m.psum(centred**2, "batch") / 6
        rank = m.axis_index("batch").astype(x.dtype)
        return centred / m.np.sqrt(spread + 1e-3), m.pmax(m.stop_gradient(x), "batch") * rank

    return m.vmap(one, axis_name="batch")(x)


@program(x=normal(4), w=weight(4, 4))
def linearize_and_transpose(m, x, w):
    value, push = m.linearize(lambda x: m.np.tanh(x @ w), x)
    columns = m.vmap(push)(m.np.eye(4, dtype=x.dtype))
    result, pull = m.vjp(lambda x, w: m.np.cos(x @ w), x, w)
    return value, columns, pull(result)


@program(x=normal(5), y=normal(5), choice=integers(3, 5))
def branches_by_value(m, x, y, choice):
    """`cond` and `switch` of each element, mapped: both sides of each branch are taken somewhere."""

    def one(x, y, choice):
        chosen = m.cond(x > 0, lambda x, y: m.np.sin(x) * y, lambda x, y: x - y**2, x, y)
        branches = [lambda v: v**2, lambda v: m.np.exp(-v), lambda v: v * x]
        return m.switch(choice, branches, chosen)

    return m.vmap(one)(x, y, choice)


@program(x=normal(3, 3), shift=normal())
def branches_on_a_computed_scalar(m, x, shift):
    """The predicate depends on the arguments; a branch reads values from outside; the other one loops."""
    total = m.np.sum(x)

    def plain(x):
        return x @ x + shift

    def looped(x):
        return m.scan(lambda c, row: (c * 0.5 + row, m.np.sum(c)), shift * x[0], x)[0] + x

    return m.cond(total > 0, plain, looped, x), m.cond(total > 0, looped, plain, x)


@program(x=uniform(0.5, 4, 3), without=FORWARD_ONLY)
def square_roots_by_newton_in_a_while_loop(m, x):
    """Ends when all elements have converged; the number of rounds depends on the argument."""

    def wrong(state):
        y, rounds = state
        return (m.np.max(m.np.abs(y * y - x)) > 1e-4) & (rounds < 50)

    def better(state):
        y, rounds = state
        return (y + x / y) / 2, rounds + 1

    return m.while_loop(wrong, better, (x, 0))


@program(x=normal(3), w=normal(3, 3, scale=0.2), b=normal(3), without=FORWARD_ONLY)
def deep_equilibrium_in_a_while_loop(m, x, w, b):
    """z = tanh(w z + x + b) by iteration: forward derivatives go through the loop."""

    def step(z):
        return m.np.tanh(w @ z + x + b)

    def body(state):
        z, _, rounds = state
        return step(z), m.np.max(m.np.abs(step(z) - z)), rounds + 1

    start = (m.np.zeros_like(x), m.np.max(m.np.abs(x)) + 1, 0)
    return m.while_loop(lambda state: (state[1] > 1e-5) & (state[2] < 40), body, start)[0]


@program(x=normal(3), w=normal(3, 3, scale=0.2), b=normal(3), without=("jvp", "hvp"))
def deep_equilibrium_with_an_implicit_gradient(m, x, w, b):
    """The same layer in reverse: the derivative at the fixed point solves a linear system."""

    def step(w, b, x, z):
        return m.np.tanh(w @ z + x + b)

    @m.custom_vjp
    def layer(w, b, x):
        return m.fori_loop(0, 60, lambda _, z: step(w, b, x, z), m.np.zeros_like(x))

    def forward(w, b, x):
        z = layer(w, b, x)
        return z, (w, b, x, z)

    def backward(kept, ct):
        w, b, x, z = kept
        jacobian = m.jacrev(lambda z: step(w, b, x, z))(z)
        solved = m.np.linalg.solve(m.np.eye(3, dtype=x.dtype) - jacobian.T, ct)
        return m.vjp(lambda w, b, x: step(w, b, x, z), w, b, x)[1](solved)

    layer.defvjp(forward, backward)
    return layer(w, b, x)


@program(x=normal(4), w=weight(4, 4), without=("jvp",))
def custom_vjp_that_clips_gradients(m, x, w):
    @m.custom_vjp
    def guarded(x):
        return x

    guarded.defvjp(lambda x: (x, ()), lambda _, ct: (m.np.clip(ct, -0.5, 0.5),))
    return m.np.sin(guarded(x @ w)) @ w


@program(x=normal(4), y=near_one(4), without=("jvp",))
def custom_vjp_with_trees_and_constants(m, x, y):
    """A static argument, residuals in a tree, a gradient that is deliberately twice the true one."""

    def f(power, pair):
        return {"out": pair[0] ** power * pair[1]}

    def forward(power, pair):
        return f(power, pair), {"x": pair[0], "y": pair[1]}

    def backward(power, kept, ct):
        slope = power * kept["x"] ** (power - 1)
        return ((2 * ct["out"] * slope * kept["y"], 2 * ct["out"] * kept["x"] ** power),)

    function = m.custom_vjp(f, nondiff_argnums=(0,))
    function.defvjp(forward, backward)
    return function(3, (x, y))["out"]


@program(x=uniform(-30, 30, 6))
def custom_jvp_that_stays_finite(m, x):
    @m.custom_jvp
    def log1pexp(x):
        return m.np.where(x > 20, x, m.np.log1p(m.np.exp(m.np.minimum(x, 20))))

    @log1pexp.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return log1pexp(x), dx / (1 + m.np.exp(-x))

    return log1pexp(x), m.vmap(m.grad(log1pexp))(x / 10)


@program(x=near_one(5), y=near_one(5))
def custom_jvps_per_argument(m, x, y):
    """A rule for each argument, one of which has none; the derivative of the other is changed on purpose."""

    @m.custom_jvp
    def f(x, y):
        return m.np.sin(x) * y**2

    f.defjvps(lambda dx, value, x, y: 3 * dx * m.np.cos(x) * y**2, None)
    return f(x, y) + y


@program(x=normal(4, 3), w1=weight(3, 6), w2=weight(6, 3))
def checkpointed_layers(m, x, w1, w2):
    @m.checkpoint
    def layer(x, w1, w2):
        return x + m.nn.gelu(x @ w1, approximate=True) @ w2

    for _ in range(3):
        x = layer(x, w1, w2)
    return x


@program(x=normal(4), target=normal(4))
def stopped_gradients(m, x, target):
    """A straight-through rounding, and a target network that must not move."""
    rounded = x + m.stop_gradient(m.np.floor(4 * x) / 4 - x)
    moving = m.np.tanh(rounded) - m.stop_gradient(m.np.tanh(target * x))
    return m.np.sum(moving**2), rounded


@program(x=normal(3), steps=integers(6), without=FORWARD_ONLY)
def loop_with_a_computed_bound(m, x, steps):
    return m.fori_loop(0, steps, lambda i, y: m.np.sin(y) + 0.1 * m.np.asarray(i, dtype=x.dtype) * x, x)


@program(xs=normal(4, 3), w=weight(3, 3))
def map_over_rows_and_scan_with_an_index(m, xs, w):
    rows = m.map(lambda row: m.np.tanh(row @ w), xs)

    def step(state, i):
        state = state.at[i].add(xs[i, 0] * m.np.sum(state))
        return state, state[i] ** 2

    return rows, m.scan(step, rows[:, 0], m.np.arange(4))


@program(x=normal(4, 3), w=weight(3, 3), b=normal(3))
def gradient_of_jit_of_vmap_of_grad(m, x, w, b):
    @m.jit
    def energy(x, w):
        return m.np.sum(m.np.log(m.np.cosh(x @ w + b)))

    forces = m.jit(m.vmap(m.grad(energy), in_axes=(0, None)))
    return m.grad(lambda w: m.np.sum(forces(x, w) ** 2))(w)


@program(x=normal(3, 4), without=FORWARD_ONLY)
def vmap_of_a_while_loop(m, x):
    """Every lane ends after its own number of rounds."""

    def one(row):
        def body(state):
            value, rounds = state
            return value * 0.7, rounds + 1

        return m.while_loop(lambda state: m.np.sum(state[0] ** 2) > 0.3, body, (row, 0))

    return m.vmap(one)(x)


@program(x=normal(2, 4, 3), w=weight(3, 3))
def vmap_of_grad_of_scan(m, x, w):
    def loss(w, rows):
        last, ys = m.scan(lambda c, row: (m.np.tanh(c @ w + row), m.np.sum(c)), rows[0], rows)
        return m.np.sum(last**2) + m.np.sum(ys * ys)

    return m.vmap(m.value_and_grad(loss), in_axes=(None, 0))(w, x)
