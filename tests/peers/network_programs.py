"""Layers and networks without loops, as programs for `program_table`."""

import math

from program_table import integers, near_one, normal, program, uniform, weight


@program(x=normal(5, 4), w1=weight(4, 8), b1=normal(8), w2=weight(8, 8), b2=normal(8), w3=weight(8, 3))
def mlp(m, x, w1, b1, w2, b2, w3):
    hidden = m.np.tanh(x @ w1 + b1)
    return m.nn.softplus(hidden @ w2 + b2) @ w3


@program(x=normal(5, 6), gain=near_one(6), offset=normal(6), w1=weight(6, 12), w2=weight(12, 6))
def residual_mlp_with_layer_norm(m, x, gain, offset, w1, w2):
    hidden = m.nn.gelu(m.layer_norm(x, gain, offset) @ w1, approximate=False)
    return x + hidden @ w2


_BLOCK = {
    "x": normal(2, 5, 16),
    "norm1": near_one(16),
    "wq": weight(16, 16),
    "wk": weight(16, 8),
    "wv": weight(16, 8),
    "wo": weight(16, 16),
    "norm2": near_one(16),
    "gate": weight(16, 24),
    "up": weight(16, 24),
    "down": weight(24, 16),
}


@program(**_BLOCK)
def transformer_block(m, x, norm1, wq, wk, wv, wo, norm2, gate, up, down):
    """Pre-norm, 4 query heads over 2 key heads, rotary positions, causal, SwiGLU."""
    batch, tokens, width = x.shape
    y = m.rms_norm(x, norm1)
    q = m.rope((y @ wq).reshape(batch, tokens, 4, 4))
    k = m.rope((y @ wk).reshape(batch, tokens, 2, 4))
    v = (y @ wv).reshape(batch, tokens, 2, 4)
    x = x + m.attention(q, k, v, is_causal=True).reshape(batch, tokens, width) @ wo
    y = m.rms_norm(x, norm2)
    return x + (m.nn.silu(y @ gate) * (y @ up)) @ down


@program(**_BLOCK)
def transformer_block_of_small_ops(m, x, norm1, wq, wk, wv, wo, norm2, gate, up, down):
    """The same block out of array functions only; rotary positions as products of complex numbers."""
    batch, tokens, width = x.shape

    def norm(x, gain):
        return x * gain / m.np.sqrt(m.np.mean(m.np.square(x), axis=-1, keepdims=True) + 1e-6)

    def turned(x):
        angles = m.np.arange(tokens, dtype=x.dtype)[:, None, None] * m.np.asarray([1.0, 0.01], dtype=x.dtype)
        z = m.complex(x[..., :2], x[..., 2:]) * m.complex(m.np.cos(angles), m.np.sin(angles))
        return m.np.concatenate([m.np.real(z), m.np.imag(z)], axis=-1)

    y = norm(x, norm1)
    q = turned((y @ wq).reshape(batch, tokens, 4, 4)).reshape(batch, tokens, 2, 2, 4)
    k = turned((y @ wk).reshape(batch, tokens, 2, 4))
    v = (y @ wv).reshape(batch, tokens, 2, 4)
    scores = m.np.einsum("bskgd,btkd->bkgst", q, k) / 2.0
    causal = m.np.tril(m.np.ones((tokens, tokens), dtype=bool))
    weights = m.nn.softmax(m.np.where(causal, scores, -1e9), axis=-1)
    mixed = m.np.einsum("bkgst,btkd->bskgd", weights, v).reshape(batch, tokens, width)
    x = x + mixed @ wo
    y = norm(x, norm2)
    return x + (m.nn.silu(y @ gate) * (y @ up)) @ down


@program(
    x=normal(2, 4, 8),
    qkv=weight(8, 24),
    out=weight(8, 8),
    gain1=near_one(8),
    offset1=normal(8),
    w1=weight(8, 16),
    b1=normal(16),
    w2=weight(16, 8),
    gain2=near_one(8),
    offset2=normal(8),
)
def bert_block(m, x, qkv, out, gain1, offset1, w1, b1, w2, gain2, offset2):
    """Post-norm, both directions, padding hidden by a mask, GELU with tanh."""
    batch, tokens, width = x.shape
    q, k, v = m.np.split((x @ qkv).reshape(batch, tokens, 2, 12), 3, axis=-1)
    lengths = m.np.asarray([[4], [3]])
    mask = (m.np.arange(tokens) < lengths)[:, None, None, :]
    attended = m.attention(q, k, v, mask=mask).reshape(batch, tokens, width)
    x = m.layer_norm(x + attended @ out, gain1, offset1)
    return m.layer_norm(x + m.nn.gelu(x @ w1 + b1, approximate=True) @ w2, gain2, offset2)


@program(
    tokens=integers(11, 2, 6),
    table=normal(11, 8),
    places=normal(5, 8),
    qkv=weight(8, 24),
    gain=near_one(8),
    w=weight(8, 8),
)
def language_model_loss(m, tokens, table, places, qkv, gain, w):
    """Next-token cross-entropy with the embedding used again as the output layer."""
    x = table[tokens[:, :-1]] + places
    q, k, v = m.np.split((m.rms_norm(x, gain) @ qkv).reshape(2, 5, 2, 12), 3, axis=-1)
    x = x + m.attention(q, k, v, is_causal=True).reshape(2, 5, 8)
    x = x + m.nn.silu(m.rms_norm(x, gain) @ w)
    return m.np.mean(m.cross_entropy(x @ table.T, tokens[:, 1:]))


_QKV = {"q": normal(2, 4, 4, 6), "k": normal(2, 5, 2, 6), "v": normal(2, 5, 2, 6)}


@program(**_QKV)
def attention_with_softcap(m, q, k, v):
    return m.attention(q, k, v, softcap=1.5, scale=0.7, is_causal=True)


@program(**_QKV, slopes=normal(4))
def attention_with_learned_bias(m, q, k, v, slopes):
    distance = m.np.arange(5) - m.np.arange(4)[:, None]
    bias = slopes[None, :, None, None] * m.np.abs(distance).astype(q.dtype)
    return m.attention(q, k, v, bias=bias)


@program(q=normal(1, 7, 2, 4), k=normal(1, 7, 2, 4), v=normal(1, 7, 2, 4))
def attention_in_a_sliding_window(m, q, k, v):
    return m.attention(q, k, v, is_causal=True, window=2)


@program(**_QKV, visible=integers(2, 2, 1, 4, 5))
def cross_attention_with_mask(m, q, k, v, visible):
    """Every query sees the first key; who sees the others depends on the example."""
    mask = (visible == 1) | (m.np.arange(5) == 0)
    return m.attention(q, k, v, mask=mask)


@program(q=normal(2, 6, 2, 3), k=normal(2, 6, 2, 3), v=normal(2, 6, 2, 4))
def linear_attention_by_cumulative_sums(m, q, k, v):
    q, k = m.nn.elu(q) + 1, m.nn.elu(k) + 1
    memory = m.np.cumsum(k[..., :, None] * v[..., None, :], axis=1)
    total = m.np.cumsum(k, axis=1)
    return m.np.einsum("bshk,bshkv->bshv", q, memory) / m.np.sum(q * total, axis=-1, keepdims=True)


_CONVNET = {
    "image": normal(2, 3, 8, 8),
    "w1": normal(4, 3, 3, 3, scale=0.2),
    "b1": normal(4),
    "mean": normal(4),
    "variance": uniform(0.5, 2, 4),
    "gain": near_one(4),
    "offset": normal(4),
    "w2": normal(6, 4, 3, 3, scale=0.2),
    "head": weight(24, 5),
}


@program(**_CONVNET)
def convnet(m, image, w1, b1, mean, variance, gain, offset, w2, head):
    """Convolution, batch norm with given statistics, pooling, and a linear head."""
    x = m.conv(image, w1, b1, padding="same")
    x = m.nn.relu(m.batch_norm(x, mean, variance, gain, offset))
    x = m.max_pool(x, 2)
    x = m.avg_pool(m.np.tanh(m.conv(x, w2, padding=1)), 3, 1, 1)
    return m.max_pool(x, 2).reshape(2, -1) @ head


@program(x=normal(2, 4, 6, 6), w1=normal(8, 4, 3, 3, scale=0.2), w2=normal(8, 8, 1, 3, scale=0.3),
         skip=normal(8, 4, 1, 1), gain=near_one(8), offset=normal(8))  # fmt: skip
def residual_convolutions_with_group_norm(m, x, w1, w2, skip, gain, offset):
    y = m.nn.silu(m.group_norm(m.conv(x, w1, stride=2, padding=1), 4, gain, offset))
    y = m.conv(y, w2, padding=(0, 1))
    return y + m.conv(x, skip, stride=2)


@program(x=normal(2, 4, 12), depthwise=normal(8, 1, 3), pointwise=normal(6, 4, 1), bias=normal(6))
def separable_convolutions_in_one_dimension(m, x, depthwise, pointwise, bias):
    y = m.nn.gelu(m.conv(x, depthwise, stride=2, padding=2, dilation=2, groups=4), approximate=False)
    return m.conv(y, pointwise, bias, groups=2)


@program(x=normal(2, 2, 7, 7), down=normal(4, 2, 3, 3, scale=0.3), up=normal(4, 2, 3, 3, scale=0.3), bias=normal(2))
def convolutional_autoencoder(m, x, down, up, bias):
    code = m.np.tanh(m.conv(x, down, stride=2, padding=1))
    again = m.conv_transpose(code, up, bias, stride=2, padding=1)
    return m.np.mean((again - x) ** 2), code


@program(x=normal(1, 2, 4, 5, 4), w=normal(3, 2, 2, 3, 2, scale=0.3))
def convolution_in_three_dimensions(m, x, w):
    return m.np.log1p(m.conv(x, w, padding=(1, 0, 1)) ** 2)


@program(image=normal(2, 3, 6, 6), embed=weight(27, 8), cls=normal(8), qkv=weight(8, 24), head=weight(8, 3))
def vision_transformer(m, image, embed, cls, qkv, head):
    patches = image.reshape(2, 3, 2, 3, 2, 3).transpose(0, 2, 4, 1, 3, 5).reshape(2, 4, 27)
    first = m.np.broadcast_to(cls, (2, 1, 8))
    x = m.np.concatenate([first, patches @ embed], axis=1)
    q, k, v = m.np.split((x @ qkv).reshape(2, 5, 2, 12), 3, axis=-1)
    x = x + m.attention(q, k, v).reshape(2, 5, 8)
    return m.nn.log_softmax(x[:, 0] @ head, axis=-1)


@program(x=normal(6, 4), router=weight(4, 5), experts=normal(5, 4, 8, scale=0.5), out=normal(5, 8, 4, scale=0.3))
def mixture_of_experts_by_gather(m, x, router, experts, out):
    """Two of five experts for every token; the weights of the chosen ones are gathered."""
    scores, chosen = m.top_k(x @ router, 2)
    share = m.nn.softmax(scores, axis=-1)
    hidden = m.nn.silu(m.np.einsum("ni,nkih->nkh", x, experts[chosen]))
    return m.np.einsum("nkh,nkho,nk->no", hidden, out[chosen], share)


@program(x=normal(6, 4), router=weight(4, 3), experts=normal(3, 4, 4, scale=0.5))
def mixture_of_experts_by_scatter(m, x, router, experts):
    """Tokens are written into the slots of their expert, two each; those that find no slot are dropped."""
    gates = m.nn.softmax(x @ router, axis=-1)
    chosen = m.np.argmax(gates, axis=-1)
    mine = m.nn.one_hot(chosen, 3, dtype=m.np.int32)
    slot = m.np.sum(m.np.cumsum(mine, axis=0) * mine, axis=-1) - 1
    slot = m.np.where(slot < 2, slot, 2)
    slots = m.np.zeros((3, 2, 4), dtype=x.dtype).at[chosen, slot].add(x, mode="drop")
    results = m.np.tanh(m.np.einsum("eci,eio->eco", slots, experts))
    fetched = results.at[chosen, slot].get(mode="fill", fill_value=0)
    balance = m.np.mean(gates, axis=0) @ m.np.mean(mine.astype(x.dtype), axis=0)
    return fetched * m.np.max(gates, axis=-1, keepdims=True), balance


@program(x=normal(5, 6), noise=normal(5, 2), encode=weight(6, 4), decode=weight(2, 6), bias=normal(6))
def variational_autoencoder(m, x, noise, encode, decode, bias):
    """The negative evidence lower bound; the noise is an argument, the sample is differentiated through."""
    mean, log_variance = m.np.split(x @ encode, 2, axis=-1)
    sample = mean + m.np.exp(log_variance / 2) * noise
    logits, target = sample @ decode + bias, m.nn.sigmoid(x)
    reconstruction = m.np.sum(m.nn.softplus(logits) - target * logits, axis=-1)
    divergence = -0.5 * m.np.sum(1 + log_variance - mean**2 - m.np.exp(log_variance), axis=-1)
    return m.np.mean(reconstruction + divergence)


@program(x=normal(6, 4), target=normal(6), w=weight(4, 9), b=normal(9))
def mixture_density_network(m, x, target, w, b):
    logits, mean, log_scale = m.np.split(x @ w + b, 3, axis=-1)
    z = (target[:, None] - mean) * m.np.exp(-log_scale)
    parts = m.nn.log_softmax(logits, axis=-1) - z**2 / 2 - log_scale - 0.5 * math.log(2 * math.pi)
    return -m.np.mean(m.nn.logsumexp(parts, axis=-1))


@program(a=normal(5, 4), b=normal(5, 4), temperature=near_one())
def contrastive_loss(m, a, b, temperature):
    def unit(x):
        return x / m.np.linalg.norm(x, axis=-1, keepdims=True)

    logits = unit(a) @ unit(b).T * m.np.exp(temperature)
    labels = m.np.arange(5)
    return m.np.mean(m.cross_entropy(logits, labels) + m.cross_entropy(logits.T, labels)) / 2


@program(nodes=normal(5, 4), senders=integers(5, 9), receivers=integers(5, 9), w1=weight(8, 4), w2=weight(8, 4))
def graph_network(m, nodes, senders, receivers, w1, w2):
    """Messages along edges, summed where they arrive, with attention over the edges of a node."""
    pairs = m.np.concatenate([nodes[senders], nodes[receivers]], axis=-1)
    messages = m.np.tanh(pairs @ w1)
    score = m.np.exp(m.np.sum(messages, axis=-1))
    total = m.np.zeros(5, dtype=nodes.dtype).at[receivers].add(score)
    share = score / total[receivers]
    arrived = m.np.zeros((5, 4), dtype=nodes.dtype).at[receivers].add(messages * share[:, None])
    return m.nn.relu(m.np.concatenate([nodes, arrived], axis=-1) @ w2)


@program(x=normal(4, 6), w1=weight(3, 6), b1=normal(6, scale=0.3), w2=weight(3, 6), b2=normal(6, scale=0.3))
def normalising_flow(m, x, w1, b1, w2, b2):
    """Two affine couplings; the log-likelihood under a normal distribution."""
    log_det = m.np.zeros(4, dtype=x.dtype)
    for w, b in ((w1, b1), (w2, b2)):
        kept, changed = m.np.split(x, 2, axis=-1)
        log_scale, shift = m.np.split(m.np.tanh(kept @ w + b), 2, axis=-1)
        x = m.np.concatenate([changed * m.np.exp(log_scale) + shift, kept], axis=-1)
        log_det = log_det + m.np.sum(log_scale, axis=-1)
    return log_det - m.np.sum(x**2, axis=-1) / 2


@program(clean=normal(4, 6), noise=normal(4, 6), step=integers(10, 4), w1=weight(7, 8), w2=weight(8, 6))
def diffusion_loss(m, clean, noise, step, w1, w2):
    """Predict the noise that was mixed in, at a level that depends on the step."""
    kept = m.np.cumprod(1 - m.np.linspace(0.05, 0.5, 10, dtype=clean.dtype))[step][:, None]
    noisy = m.np.sqrt(kept) * clean + m.np.sqrt(1 - kept) * noise
    hidden = m.nn.silu(m.np.concatenate([noisy, kept], axis=-1) @ w1)
    return m.np.mean((hidden @ w2 - noise) ** 2)


@program(x=normal(3, 4, 5), a=normal(5, 2, 3), b=normal(4, 3), c=normal(2, 3, 3))
def einsum_network(m, x, a, b, c):
    """Contractions of all kinds: with batch axes, outer products, diagonals, three operands, sums."""
    y = m.np.einsum("nij,jkl->nikl", x, a)
    z = m.np.einsum("nikl,il,kll->nk", m.np.tanh(y), b, c)
    return m.np.einsum("nk,nm->km", z, z), m.np.einsum("nikl->l", y), m.np.einsum("...i,i...->...", x, a[:, 0, :1])


@program(x=normal(2, 3, 4, 4), gain=near_one(3), offset=normal(3), row=near_one(4))
def norms_of_all_kinds(m, x, gain, offset, row):
    spread = m.np.std(x, axis=(0, 2, 3), keepdims=True)
    batch = (x - m.np.mean(x, axis=(0, 2, 3), keepdims=True)) / (spread + 1e-3)
    return (
        batch * gain[:, None, None] + offset[:, None, None],
        m.group_norm(x, 1, gain, offset),
        m.group_norm(x, 3, gain, offset),
        m.layer_norm(x, row, row * 0.5),
        m.rms_norm(x, row),
        m.nn.standardize(x, axis=(1, 2)),
    )


@program(x=normal(4, 5), table=normal(7, 5), ids=integers(7, 4, 3), weights=normal(4, 3))
def embedding_bag(m, x, table, ids, weights):
    bag = m.np.einsum("nk,nkd->nd", weights, m.np.take(table, ids, axis=0))
    return x * bag, m.np.max(table[ids], axis=1)


@program(x=uniform(-3, 3, 4, 7))
def activations(m, x):
    names = "relu sigmoid silu softplus elu selu celu mish squareplus soft_sign log_sigmoid leaky_relu hard_tanh relu6"
    exact, approximate = m.nn.gelu(x, approximate=False), m.nn.gelu(x, approximate=True)
    return [getattr(m.nn, name)(x) for name in names.split()], exact, approximate, m.nn.glu(x[:, :6], axis=-1)
