"""Ten families of models, each a function of its leaves that can be built in any float type, forward or for training.

    @family(x=data("B", 8), w=weight(8, 4))
    def linear(x, w):
        return x @ w

`forward(FAMILIES["linear"], "f64")` is the graph of what the function returns. `training` gives a loss, which is the
squared distance of the results from targets (or the result, if that is a number), and the gradients of all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import rlx
import rlx.nn as nn
import rlx.numpy as rnp
from rlx import ops
from rlx.autodiff.graphs import grad_with_loss
from rlx.ir.graph import Graph
from rlx.ir.tensor import building

BINDING = {"B": 2}


class Leaf(NamedTuple):
    """An input or a weight, in the float type of a build unless it has a `dtype`; `draw` gives values for its dims."""

    dims: tuple[int | str, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    is_weight: bool = True
    dtype: str | None = None

    @property
    def bound(self) -> tuple[int, ...]:
        return tuple(BINDING.get(d, d) for d in self.dims)


class Family(NamedTuple):
    name: str
    build: Callable
    leaves: dict[str, Leaf]
    seed: int

    @property
    def weights(self) -> list[str]:
        return [name for name, leaf in self.leaves.items() if leaf.is_weight]


FAMILIES: dict[str, Family] = {}


def family(seed: int = 3, /, **leaves: Leaf):
    """Enter a function into the table. Programs that round or choose need a seed whose values are not on the edge,
    where half precision may decide otherwise."""

    def enter(build):
        FAMILIES[build.__name__] = Family(build.__name__, build, leaves, seed)
        return build

    return enter


def data(*dims):
    return Leaf(dims, lambda rng, bound: rng.standard_normal(bound), is_weight=False)


def ids(high, *dims):
    return Leaf(dims, lambda rng, bound: rng.integers(0, high, bound), is_weight=False, dtype="i32")


def given(values, *dims):
    """An input that always has the same values."""
    array = np.asarray(values)
    dtype = "i32" if array.dtype.kind == "i" else None
    return Leaf(dims, lambda rng, bound: array, is_weight=False, dtype=dtype)


def weight(fan_in, *rest):
    """A weight that keeps the size of what it multiplies."""
    return Leaf((fan_in, *rest), lambda rng, bound: rng.standard_normal(bound) * fan_in**-0.5)


def around(centre, *dims, spread=0.2):
    return Leaf(dims, lambda rng, bound: centre + spread * rng.standard_normal(bound))


def kernel(out, fan_in, *window):
    size = fan_in * int(np.prod(window))
    return Leaf((out, fan_in, *window), lambda rng, bound: rng.standard_normal(bound) * (2 / size) ** 0.5)


def uniform(low, high, *dims):
    return Leaf(dims, lambda rng, bound: rng.uniform(low, high, bound))


def forward(member: Family, dtype: str) -> Graph:
    graph, results = _built(member, dtype)
    graph.set_outputs(results)
    return graph


def training(member: Family, dtype: str) -> Graph:
    graph, results = _built(member, dtype)
    losses = [_loss(graph, i, result, dtype) for i, result in enumerate(results)]
    graph.set_outputs([sum(losses[1:], losses[0])])
    return grad_with_loss(graph, member.weights)


def _loss(graph: Graph, number: int, result, dtype: str):
    if result.ndim == 0:
        return result
    error = result - graph.input(f"target.{number}", result.shape, dtype)
    return ops.reduce_sum(error * error, tuple(range(result.ndim)))


def _built(member: Family, dtype: str):
    graph = Graph(member.name)
    leaves = {
        name: (graph.param if leaf.is_weight else graph.input)(name, leaf.dims, leaf.dtype or dtype)
        for name, leaf in member.leaves.items()
    }
    with building(graph):
        results = member.build(**leaves)
    return graph, list(results) if isinstance(results, tuple) else [results]


def values_for(member: Family, graph: Graph) -> dict[str, np.ndarray]:
    """Values for the leaves of a graph of the family: the same numbers, exact in f32, for every float type."""
    rng = np.random.default_rng(member.seed)
    values = {name: leaf.draw(rng, leaf.bound) for name, leaf in member.leaves.items()}
    for node in graph.nodes:
        if node.is_leaf and node.op.key not in values:
            values[node.op.key] = rng.standard_normal(node.shape.bind(BINDING).dims)
    dtypes = {n.op.key: n.shape.dtype.numpy for n in graph.nodes if n.is_leaf}
    exact = {name: v.astype("f4") if v.dtype.kind == "f" else v for name, v in values.items()}
    return {name: exact[name].astype(dtype) for name, dtype in dtypes.items()}


@family(
    x=data("B", 6, 16),
    lengths=given([6, 4], "B"),
    qkv=weight(16, 48),
    qkv_bias=around(0, 48),
    out=weight(16, 16),
    gain1=around(1, 16),
    offset1=around(0, 16),
    up=weight(16, 32),
    up_bias=around(0, 32),
    down=weight(32, 16),
    gain2=around(1, 16),
    offset2=around(0, 16),
)
def bert_block(x, lengths, qkv, qkv_bias, out, gain1, offset1, up, up_bias, down, gain2, offset2):
    """Post-norm, both directions, padding masked."""
    q, k, v = (part.reshape("B", 6, 2, 8) for part in rnp.split(x @ qkv + qkv_bias, 3, axis=-1))
    visible = (rnp.arange(6) < lengths[:, None])[:, None, None, :]
    mixed = nn.dot_product_attention(q, k, v, mask=visible).reshape("B", 6, 16)
    x = nn.layer_norm(x + mixed @ out, gain1, offset1)
    return nn.layer_norm(x + nn.gelu(x @ up + up_bias, approximate=False) @ down, gain2, offset2)


@family(
    x=data("B", 2, 16),
    past=given(np.int32(3)),
    keys=data("B", 8, 2, 4),
    values=data("B", 8, 2, 4),
    norm1=around(1, 16),
    wq=weight(16, 16),
    wk=weight(16, 8),
    wv=weight(16, 8),
    wo=weight(16, 16),
    norm2=around(1, 16),
    gate=weight(16, 24),
    up=weight(16, 24),
    down=weight(24, 16),
)
def llama_block(x, past, keys, values, norm1, wq, wk, wv, wo, norm2, gate, up, down):
    """Two tokens into a cache that holds three: four query heads over two, rotary positions, SwiGLU."""
    y = nn.rms_norm(x, norm1)
    places = past + rnp.arange(2)
    q = nn.rope((y @ wq).reshape("B", 2, 4, 4), places)
    new_keys = nn.rope((y @ wk).reshape("B", 2, 2, 4), places)
    keys = ops.dynamic_update_slice(keys, new_keys, (0, past, 0, 0))
    values = ops.dynamic_update_slice(values, (y @ wv).reshape("B", 2, 2, 4), (0, past, 0, 0))
    filled = rnp.broadcast_to(past + 2, (x.shape[0],))
    mixed = nn.dot_product_attention(q, keys, values, is_causal=True, kv_len=filled)
    x = x + mixed.reshape("B", 2, 16) @ wo
    y = nn.rms_norm(x, norm2)
    return x + (nn.silu(y @ gate) * (y @ up)) @ down, keys, values


_GPT_LAYER = {
    "gain1": around(1, 16),
    "offset1": around(0, 16),
    "qkv": weight(16, 48),
    "out": weight(16, 16),
    "gain2": around(1, 16),
    "offset2": around(0, 16),
    "up": weight(16, 32),
    "down": weight(32, 16),
}


@family(
    tokens=ids(11, "B", 6),
    table=around(0, 11, 16, spread=0.5),
    places=around(0, 5, 16),
    **{f"{name}_{layer}": leaf for layer in range(2) for name, leaf in _GPT_LAYER.items()},
)
def gpt_loss(tokens, table, places, **layers):
    """Next-token cross-entropy of two layers, with the embedding as the output layer too."""
    x = table[tokens[:, :-1]] + places
    for layer in range(2):
        w = {name: layers[f"{name}_{layer}"] for name in _GPT_LAYER}
        y = nn.layer_norm(x, w["gain1"], w["offset1"])
        q, k, v = (part.reshape("B", 5, 2, 8) for part in rnp.split(y @ w["qkv"], 3, axis=-1))
        x = x + nn.dot_product_attention(q, k, v, is_causal=True).reshape("B", 5, 16) @ w["out"]
        y = nn.layer_norm(x, w["gain2"], w["offset2"])
        x = x + nn.gelu(y @ w["up"], approximate=True) @ w["down"]
    return rnp.mean(nn.softmax_cross_entropy_with_integer_labels(x @ table.T, tokens[:, 1:]))


_NORM = {"gain": (1, 0.2), "offset": (0, 0.2), "mean": (0, 0.2)}


def _norm_leaves(name, channels):
    leaves = {f"{name}_{part}": around(centre, channels, spread=s) for part, (centre, s) in _NORM.items()}
    return {**leaves, f"{name}_variance": uniform(0.5, 1.5, channels)}


@family(
    image=data("B", 3, 8, 8),
    stem=kernel(8, 3, 3, 3),
    **_norm_leaves("n1", 8),
    expand=kernel(16, 8, 1, 1),
    **_norm_leaves("n2", 16),
    depthwise=kernel(16, 1, 3, 3),
    **_norm_leaves("n3", 16),
    project=kernel(8, 16, 1, 1),
    squeeze=weight(8, 4),
    excite=weight(4, 8),
    head=weight(8, 5),
)
def mobilenet(image, stem, expand, depthwise, project, squeeze, excite, head, **norms):
    """A stem, one inverted residual with squeeze-and-excitation, pooling and a linear head."""

    def norm(x, name):
        return nn.batch_norm(x, *(norms[f"{name}_{part}"] for part in ("mean", "variance", "gain", "offset")))

    x = nn.relu6(norm(nn.conv(image, stem, stride=2, padding=1), "n1"))
    y = nn.relu6(norm(nn.conv(x, expand), "n2"))
    y = nn.conv(nn.relu6(norm(nn.conv(y, depthwise, padding=1, groups=16), "n3")), project)
    importance = nn.sigmoid(nn.relu(rnp.mean(y, axis=(2, 3)) @ squeeze) @ excite)
    x = x + y * importance[:, :, None, None]
    return rnp.mean(x, axis=(2, 3)) @ head


@family(
    x=data("B", 6, 8),
    enter=weight(8, 32),
    taps=kernel(16, 1, 3),
    to_delta=weight(16, 16),
    delta_bias=around(0, 16),
    to_bc=weight(16, 8),
    log_a=uniform(-1, 1, 16, 4),
    skip=around(1, 16),
    leave=weight(16, 8),
)
def mamba_block(x, enter, taps, to_delta, delta_bias, to_bc, log_a, skip, leave):
    u, gate = rnp.split(x @ enter, 2, axis=-1)
    u = nn.conv(rnp.swapaxes(u, 1, 2), taps, padding=2, groups=16)[:, :, :6]
    u = nn.silu(rnp.swapaxes(u, 1, 2))
    b, c = rnp.split(u @ to_bc, 2, axis=-1)
    y = rlx.selective_scan(u, nn.softplus(u @ to_delta + delta_bias), -rnp.exp(log_a), b, c, 4) + skip * u
    return (y * nn.silu(gate)) @ leave


@family(
    x=data("B", 4, 8),
    router=weight(8, 4),
    gate=weight(4, 8, 12),
    up=weight(4, 8, 12),
    down=weight(4, 12, 8),
)
def mixture_of_experts(x, router, gate, up, down):
    """Two of four experts for each token; every row of a grouped product meets the weights of its expert."""
    tokens = x.reshape(-1, 8)
    scores, chosen = rlx.top_k(tokens @ router, 2)
    experts = chosen.reshape(-1)
    rows = rnp.repeat(tokens, 2, axis=0)
    hidden = nn.silu(ops.grouped_matmul(rows, gate, experts)) * ops.grouped_matmul(rows, up, experts)
    results = ops.grouped_matmul(hidden, down, experts).reshape(-1, 2, 8)
    return rnp.sum(results * nn.softmax(scores, axis=-1)[..., None], axis=1).reshape("B", 4, 8)


_IMAGE = ops.GaussianSplatRenderParams(width=6, height=5, tile_size=4, max_list_entries=400)
_CAMERA = [0.3, -0.2, 4.0, 0.0, 0.1, 0.0, 0.0, 1.0, 0.0, 50.0, 0.1, 50.0, 0.3, 0.1, 0.6, *[0.0] * 8]


def _quaternions(rng, bound):
    q = rng.standard_normal((bound[0] // 4, 4))
    return (q / np.linalg.norm(q, axis=-1, keepdims=True)).reshape(-1)


@family(
    positions=uniform(-1.2, 1.2, 12),
    scales=uniform(-2, -0.5, 12),
    rotations=Leaf((16,), _quaternions),
    opacities=uniform(0.2, 0.9, 4),
    colors=uniform(0.1, 0.9, 12),
    harmonics=uniform(-0.3, 0.3, 48),
    camera=given(_CAMERA, 23),
)
def gaussian_splat(positions, scales, rotations, opacities, colors, harmonics, camera):
    """An image of four Gaussians with spherical harmonics of the first degree."""
    scene = ops.GaussianSplatInputs(positions, scales, rotations, opacities, colors, harmonics, camera)
    return ops.gaussian_splat_render(scene, _IMAGE)


@family(
    11,
    x=data("B", 2, 8),
    w1=weight(8, 8),
    b1=around(0, 8),
    step=uniform(0.6, 0.8),
    w2=weight(8, 4),
    b2=around(0, 4),
)
def quantized_mlp(x, w1, b1, step, w2, b2):
    """Quantisation while training: weights in 8 bits per channel, activations in 3 with a step that is learned."""
    hidden = nn.relu(x @ ops.fake_quantize(w1, 8, axis=1) + b1)
    hidden = ops.fake_quantize_lsq(hidden, step.reshape(1), 3)
    return hidden @ ops.fake_quantize(w2, 8, axis=1) + b2


@family(
    signal=data("B", 32),
    window=uniform(0.5, 1, 16),
    taps=weight(9),
    mix=weight(9, 6),
)
def fourier_pipeline(signal, window, taps, mix):
    """A filter by products of spectra, overlapping frames, the logarithm of their power, and a linear layer."""
    filtered = rnp.fft.irfft(rnp.fft.rfft(signal, 40) * rnp.fft.rfft(taps, 40), 40)[:, :32]
    frames = filtered[:, np.arange(0, 17, 8)[:, None] + np.arange(16)] * window
    spectrum = rnp.fft.rfft(frames)
    return rnp.log(rnp.real(spectrum) ** 2 + rnp.imag(spectrum) ** 2 + 0.5) @ mix


@family(x=data(5, "B", 4), w=weight(12, 32), b=around(0, 32), head=weight(8, 3))
def scan_rnn(x, w, b, head):
    """An LSTM by scan: two carries, stacked results, weights from outside."""

    def step(state, row):
        hidden, cell = state
        enter, forget, leave, new = rnp.split(rnp.concatenate([row, hidden], axis=-1) @ w + b, 4, axis=-1)
        cell = nn.sigmoid(forget) * cell + nn.sigmoid(enter) * rnp.tanh(new)
        hidden = nn.sigmoid(leave) * rnp.tanh(cell)
        return (hidden, cell), hidden

    start = rnp.zeros((x.shape[1], 8), dtype=x.dtype)
    (_, cell), hidden = rlx.scan(step, (start, start), x)
    return hidden @ head, cell
