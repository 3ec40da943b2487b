"""Recurrent networks and state-space models, and training itself, as programs for `program_table`."""

from program_table import integers, near_one, normal, program, uniform, weight


def _zeros_like_state(m, x, width):
    return m.np.zeros((x.shape[0], width), dtype=x.dtype)


def _rows(m, x):
    """[batch, time, ..] as [time, batch, ..]."""
    return m.np.swapaxes(x, 0, 1)


@program(x=normal(2, 5, 3), w=weight(7, 16), b=normal(16))
def lstm_by_scan(m, x, w, b):
    def step(state, row):
        hidden, cell = state
        gates = m.np.concatenate([row, hidden], axis=-1) @ w + b
        enter, forget, leave, new = m.np.split(gates, 4, axis=-1)
        cell = m.nn.sigmoid(forget) * cell + m.nn.sigmoid(enter) * m.np.tanh(new)
        hidden = m.nn.sigmoid(leave) * m.np.tanh(cell)
        return (hidden, cell), hidden

    zero = _zeros_like_state(m, x, 4)
    return m.scan(step, (zero, zero), _rows(m, x))


@program(x=normal(2, 5, 3), start=normal(2, 4), wx=weight(3, 12), wh=weight(4, 12), b=normal(12))
def gru_by_scan(m, x, start, wx, wh, b):
    def step(hidden, row):
        gates, old = row @ wx + b, hidden @ wh
        reset, update = m.np.split(m.nn.sigmoid(gates[:, :8] + old[:, :8]), 2, axis=-1)
        new = m.np.tanh(gates[:, 8:] + reset * old[:, 8:])
        hidden = update * hidden + (1 - update) * new
        return hidden, hidden

    return m.scan(step, start, _rows(m, x))


@program(x=normal(2, 5, 3), wx=weight(3, 4), wh=weight(4, 4), head=weight(8, 2))
def bidirectional_rnn(m, x, wx, wh, head):
    def step(hidden, row):
        hidden = m.np.tanh(row @ wx + hidden @ wh)
        return hidden, hidden

    zero = _zeros_like_state(m, x, 4)
    forward = m.scan(step, zero, _rows(m, x))[1]
    backward = m.scan(step, zero, _rows(m, x), reverse=True)[1]
    return m.np.concatenate([forward, backward], axis=-1) @ head


_MAMBA = {
    "x": normal(2, 6, 8),
    "enter": weight(8, 32),
    "kernel": normal(16, 1, 3, scale=0.5),
    "to_delta": weight(16, 16),
    "delta_bias": normal(16),
    "to_bc": weight(16, 8),
    "log_a": uniform(-1, 1, 16, 4),
    "skip": normal(16),
    "leave": weight(16, 8),
}


def _mamba_input(m, x, enter, kernel, to_delta, delta_bias, to_bc):
    """Everything before the scan: the gated branch, a causal convolution, step sizes, and B and C."""
    tokens = x.shape[1]
    u, gate = m.np.split(x @ enter, 2, axis=-1)
    u = m.np.swapaxes(m.conv(m.np.swapaxes(u, 1, 2), kernel, padding=2, groups=16), 1, 2)[:, :tokens]
    u = m.nn.silu(u)
    b, c = m.np.split(u @ to_bc, 2, axis=-1)
    return u, gate, m.nn.softplus(u @ to_delta + delta_bias), b, c


@program(**_MAMBA)
def mamba_block(m, x, enter, kernel, to_delta, delta_bias, to_bc, log_a, skip, leave):
    """The selective scan is one op of rlx, and a loop over rows in JAX."""
    u, gate, delta, b, c = _mamba_input(m, x, enter, kernel, to_delta, delta_bias, to_bc)
    y = m.selective_scan(u, delta, -m.np.exp(log_a), b, c) + skip * u
    return (y * m.nn.silu(gate)) @ leave


@program(**_MAMBA)
def mamba_block_by_associative_scan(m, x, enter, kernel, to_delta, delta_bias, to_bc, log_a, skip, leave):
    """The same recurrence in logarithmic depth."""
    u, gate, delta, b, c = _mamba_input(m, x, enter, kernel, to_delta, delta_bias, to_bc)
    decay = m.np.exp(delta[..., None] * -m.np.exp(log_a))
    entering = (delta * u)[..., None] * b[:, :, None, :]
    states = m.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (decay, entering), axis=1)[1]
    y = m.np.sum(states * c[:, :, None, :], axis=-1) + skip * u
    return (y * m.nn.silu(gate)) @ leave


@program(
    q=normal(2, 5, 2, 3),
    k=normal(2, 5, 2, 3),
    v=normal(2, 5, 2, 3),
    g=uniform(-1, 0, 2, 5, 2),
    beta=uniform(0, 1, 2, 5, 2),
)
def gated_delta_rule(m, q, k, v, g, beta):
    k = k / m.np.linalg.norm(k, axis=-1, keepdims=True)
    return m.gated_delta_net(q, k, v, g, beta)


@program(logits=normal(6, 3), transition=normal(3, 3), start=normal(3))
def hidden_markov_forward(m, logits, transition, start):
    """log p(observations) by the forward algorithm, and the probabilities of the last state."""
    transition = m.nn.log_softmax(transition, axis=-1)

    def step(alpha, row):
        alpha = m.nn.logsumexp(alpha[:, None] + transition, axis=0) + row
        return alpha, alpha

    alpha = m.scan(step, m.nn.log_softmax(start) + logits[0], logits[1:])[0]
    return m.nn.logsumexp(alpha), m.nn.softmax(alpha)


@program(logits=normal(6, 3), transition=normal(3, 3))
def viterbi_decoding(m, logits, transition):
    """The best score and the best path, which is read backwards by a second scan."""

    def step(best, row):
        scores = best[:, None] + transition
        return m.np.max(scores, axis=0) + row, m.np.argmax(scores, axis=0)

    best, choices = m.scan(step, logits[0], logits[1:])
    last = m.np.argmax(best)
    path = m.scan(lambda state, row: (row[state], state), last, choices, reverse=True)
    return m.np.max(best), path[1]


@program(x=normal(3, 4, 3), h=normal(4, 4, scale=0.5), w=weight(3, 4))
def nested_scans(m, x, h, w):
    """A loop over sentences around a loop over words, with carries and stacked results at both levels."""

    def word(state, row):
        state = m.np.tanh(row @ w + state @ h)
        return state, m.np.sum(state)

    def sentence(state, rows):
        inner, totals = m.scan(word, state, rows)
        return 0.5 * (state + inner), (totals, inner)

    return m.scan(sentence, m.np.zeros(4, dtype=x.dtype), x)


@program(x=normal(6, 3), w=weight(3, 3), b=normal(3))
def scan_with_checkpointed_steps(m, x, w, b):
    @m.checkpoint
    def step(state, row):
        hidden = m.np.tanh(row @ w + b)
        state = m.np.sin(state @ w) * hidden + state
        return state, m.np.sum(hidden * state)

    return m.scan(step, b, x)


@program(xs=normal(5, 2), ys=normal(5), params=normal(2), momentum=normal(2))
def scan_over_a_tree_with_carries_of_different_types(m, xs, ys, params, momentum):
    """Online regression: the carry holds parameters, momentum and a count; rows come from two arrays."""

    def step(state, row):
        error = state["w"] @ row["x"] - row["y"]
        velocity = 0.9 * state["v"] + error * row["x"]
        state = {"w": state["w"] - 0.1 * velocity, "v": velocity, "count": state["count"] + 1}
        return state, (error**2, state["count"])

    start = {"w": params, "v": momentum, "count": m.np.asarray(0, dtype=m.np.int32)}
    return m.scan(step, start, {"x": xs, "y": ys})


def _logits(m, p, x):
    return m.np.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]


@program(x=normal(6, 4), labels=integers(3, 6), w1=weight(4, 5), b1=normal(5), w2=weight(5, 3))
def softmax_cross_entropy_training_step(m, x, labels, w1, b1, w2):
    """The loss, the accuracy as aux, and the parameters after a step of gradient descent."""

    def loss(p):
        logits = _logits(m, p, x)
        hits = m.np.argmax(logits, axis=-1) == labels
        return m.np.mean(m.cross_entropy(logits, labels)), m.np.sum(hits.astype(m.np.int32))

    params = {"w1": w1, "b1": b1, "w2": w2}
    (value, hits), gradients = m.value_and_grad(loss, has_aux=True)(params)
    return value, hits, {name: params[name] - 0.1 * gradients[name] for name in params}


@program(x=normal(6, 4), y=normal(6, 3), w1=weight(4, 5), b1=normal(5), w2=weight(5, 3))
def three_steps_of_adam(m, x, y, w1, b1, w2):
    """Training in a loop, differentiated as a whole."""

    def loss(p):
        return m.np.mean((_logits(m, p, x) - y) ** 2)

    def step(state, t):
        params, mean, square = state
        gradients = m.grad(loss)(params)
        mean = {k: 0.9 * mean[k] + 0.1 * gradients[k] for k in params}
        square = {k: 0.99 * square[k] + 0.01 * gradients[k] ** 2 for k in params}
        rate = 0.1 * m.np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        params = {k: params[k] - rate * mean[k] / (m.np.sqrt(square[k]) + 1e-3) for k in params}
        return (params, mean, square), loss(params)

    params = {"w1": w1, "b1": b1, "w2": w2}
    zeros = {k: m.np.zeros_like(v) for k, v in params.items()}
    state, losses = m.scan(step, (params, zeros, zeros), m.np.arange(1, 4, dtype=x.dtype))
    return state[0], losses


@program(x=normal(5, 3), y=normal(5), x2=normal(5, 3), y2=normal(5), w=weight(3, 4), head=weight(4))
def meta_learning_through_an_inner_step(m, x, y, x2, y2, w, head):
    def loss(w, x, y):
        return m.np.mean((m.np.tanh(x @ w) @ head - y) ** 2)

    adapted = w - 0.3 * m.grad(loss)(w, x, y)
    return loss(adapted, x2, y2)


@program(real=normal(4, 3), fake=normal(4, 3), mix=uniform(0, 1, 4, 1), w1=weight(3, 6), w2=weight(6))
def gradient_penalty(m, real, fake, mix, w1, w2):
    """A Wasserstein critic: the norm of its gradient at points between the real and the made-up ones."""

    def critic(x):
        return m.nn.softplus(x @ w1) @ w2

    slopes = m.vmap(m.grad(critic))(mix * real + (1 - mix) * fake)
    size = m.np.sqrt(m.np.sum(slopes**2, axis=-1))
    return m.np.mean(critic(fake) - critic(real)) + 10 * m.np.mean((size - 1) ** 2)


@program(x=normal(6, 4), labels=integers(3, 6), w=weight(4, 3), b=normal(3), bound=near_one())
def private_gradients(m, x, labels, w, b, bound):
    """Gradients of every example, clipped to a norm each, and then summed."""

    def loss(p, x, label):
        return m.cross_entropy(x @ p[0] + p[1], label)

    each = m.vmap(m.grad(loss), in_axes=(None, 0, 0))((w, b), x, labels)
    norms = m.np.sqrt(m.np.sum(each[0] ** 2, axis=(1, 2)) + m.np.sum(each[1] ** 2, axis=1))
    factor = m.np.minimum(1.0, bound / norms)
    return m.np.einsum("n,nij->ij", factor, each[0]), factor @ each[1], norms
