"""JAX and rlx behind the same names, so that one source runs on both, and what it means that they agree.

A program takes a library as its first argument: `m.np` is `jax.numpy` or `rlx.numpy`, `m.nn` is `jax.nn` or `rlx.nn`,
transforms and control flow are attributes. Where rlx has an op and JAX has not, JAX's side is the formula in jax.numpy;
`RLX_BY_IMPORT` is rlx with these formulas too, so that the modules are the only difference.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.scipy.linalg import solve_triangular  # noqa: E402

import rlx  # noqa: E402
import rlx.nn  # noqa: E402
import rlx.numpy  # noqa: E402
import rlx.scipy  # noqa: E402

jax.config.update("jax_enable_x64", True)
# What XLA would optimise is small here; compiling takes most of the time.
jax.config.update("jax_disable_most_optimizations", True)

# How far two libraries may differ, as a part of the largest element of an array.
TOLERANCE = {"f32": 1e-5, "f64": 1e-10}


# Names that both libraries have: of `jax` and `rlx`, of `jax.lax` and `rlx`.
_TRANSFORMS = [
    "checkpoint",
    "custom_jvp",
    "custom_vjp",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "value_and_grad",
    "vjp",
    "vmap",
]
_FUNCTIONS = [
    "associative_scan",
    "axis_index",
    "cond",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "digamma",
    "dynamic_slice",
    "dynamic_update_slice",
    "erf",
    "erf_inv",
    "erfc",
    "fori_loop",
    "lgamma",
    "map",
    "pmax",
    "pmean",
    "psum",
    "rsqrt",
    "scan",
    "stop_gradient",
    "switch",
    "top_k",
    "while_loop",
]


def _from_wirtinger(ct):
    """JAX's cotangent for ours. Ours is ∂L/∂z̄ for complex z; JAX's is ∂L/∂Re z - i·∂L/∂Im z, which is 2·conj(∂L/∂z̄)."""
    return 2 * jnp.conj(ct) if jnp.iscomplexobj(ct) else ct


def _to_wirtinger(ct):
    return jnp.conj(ct) / 2 if jnp.iscomplexobj(ct) else ct


def library(top, arrays, nn, lax, solve_triangular, **others):
    """What programs are given: transforms of `top`, functions under JAX's names, and formulas made of them.

    With JAX's modules it is JAX; with rlx's it is rlx under an import line that differs from JAX's, and nothing else.
    """

    def _conv(x, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1):
        rank = x.ndim - 2
        per_axis = [v if isinstance(v, tuple) else (v,) * rank for v in (stride, dilation)]
        sides = padding.upper() if isinstance(padding, str) else [(p, p) for p in _pairs(padding, rank)]
        letters = "DHW"[3 - rank :]
        numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
        y = lax.conv_general_dilated(
            x,
            weight,
            per_axis[0],
            sides,
            rhs_dilation=per_axis[1],
            dimension_numbers=numbers,
            feature_group_count=groups,
        )
        return y if bias is None else y + bias.reshape(-1, *(1,) * rank)

    def _pairs(value, rank):
        return value if isinstance(value, tuple) else (value,) * rank

    def _conv_transpose(x, weight, bias=None, *, stride=1, padding=0):
        """The gradient of `_conv` with respect to its input, which is what a transposed convolution is."""
        sizes = [(n - 1) * stride - 2 * padding + k for n, k in zip(x.shape[2:], weight.shape[2:])]
        image = arrays.zeros((x.shape[0], weight.shape[1], *sizes), x.dtype)
        y = top.vjp(lambda image: _conv(image, weight, stride=stride, padding=padding), image)[1](x)[0]
        return y if bias is None else y + bias.reshape(-1, *(1,) * (x.ndim - 2))

    def _windows(x, window, stride, padding):
        rank = x.ndim - 2
        sizes = _pairs(window, rank)
        steps = sizes if stride is None else _pairs(stride, rank)
        return (1, 1, *sizes), (1, 1, *steps), [(0, 0), (0, 0), *((p, p) for p in _pairs(padding, rank))]

    def _max_pool(x, window, stride=None, padding=0):
        return lax.reduce_window(x, -arrays.inf, lax.max, *_windows(x, window, stride, padding))

    def _avg_pool(x, window, stride=None, padding=0):
        settings = _windows(x, window, stride, padding)
        return lax.reduce_window(x, 0.0, lax.add, *settings) / np.prod(settings[0])

    def _standardized(x, axes, eps):
        centred = x - x.mean(axes, keepdims=True)
        return centred / arrays.sqrt((centred**2).mean(axes, keepdims=True) + eps)

    def _layer_norm(x, weight, bias, eps=1e-5):
        return _standardized(x, -1, eps) * weight + bias

    def _rms_norm(x, weight, eps=1e-6):
        return x / arrays.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def _group_norm(x, num_groups, weight, bias, eps=1e-5):
        grouped = x.reshape(x.shape[0], num_groups, -1)
        along = (-1, *(1,) * (x.ndim - 2))
        return _standardized(grouped, -1, eps).reshape(x.shape) * weight.reshape(along) + bias.reshape(along)

    def _batch_norm(x, mean, variance, weight, bias, eps=1e-5):
        mean, variance, weight, bias = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (mean, variance, weight, bias))
        return (x - mean) / arrays.sqrt(variance + eps) * weight + bias

    def _attention(query, key, value, *, bias=None, mask=None, scale=None, is_causal=False, window=None, softcap=None):
        """By its formula: `nn.dot_product_attention` takes the softmax in f32 always, and has no softcap."""
        repeats = query.shape[2] // key.shape[2]
        key, value = arrays.repeat(key, repeats, 2), arrays.repeat(value, repeats, 2)
        scores = arrays.einsum("bshd,bthd->bhst", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if softcap is None else softcap * arrays.tanh(scores / softcap)
        scores = scores if bias is None else scores + bias
        ahead = np.arange(key.shape[1]) - np.arange(query.shape[1])[:, None]
        visible = arrays.ones(ahead.shape, bool) if mask is None else mask
        if is_causal or window is not None:
            visible = visible & (ahead <= 0)
        if window is not None:
            visible = visible & (ahead >= -window)
        return arrays.einsum("bhst,bthd->bshd", nn.softmax(arrays.where(visible, scores, -arrays.inf)), value)

    def _rope(x, theta=10000.0):
        half = x.shape[-1] // 2
        frequencies = theta ** (-np.arange(half) / half)
        angles = (np.arange(x.shape[1])[:, None] * frequencies)[:, None, :]
        cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return arrays.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def _selective_scan(x, delta, a, b, c):
        def step(state, row):
            x, delta, b, c = row
            state = arrays.exp(delta[..., None] * a) * state + (delta * x)[..., None] * b[:, None, :]
            return state, (state * c[:, None, :]).sum(-1)

        rows = [arrays.moveaxis(v, 1, 0) for v in (x, delta, b, c)]
        return arrays.moveaxis(lax.scan(step, arrays.zeros((x.shape[0], *a.shape), x.dtype), rows)[1], 0, 1)

    def _gated_delta_net(q, k, v, g, beta):
        def step(memory, row):
            q, k, v, g, beta = row
            memory = arrays.exp(g)[..., None, None] * memory
            correction = beta[..., None] * (v - arrays.einsum("bhij,bhi->bhj", memory, k))
            memory = memory + k[..., :, None] * correction[..., None, :]
            return memory, arrays.einsum("bhij,bhi->bhj", memory, q) / q.shape[-1] ** 0.5

        batch, _, heads, n = q.shape
        rows = [arrays.moveaxis(x, 1, 0) for x in (q, k, v, g, beta)]
        return arrays.moveaxis(lax.scan(step, arrays.zeros((batch, heads, n, n), q.dtype), rows)[1], 0, 1)

    def _cross_entropy(logits, labels):
        return -arrays.take_along_axis(nn.log_softmax(logits), labels[..., None], -1)[..., 0]

    return SimpleNamespace(
        np=arrays,
        nn=nn,
        **{name: getattr(top, name) for name in _TRANSFORMS},
        **{name: getattr(lax, name) for name in _FUNCTIONS},
        attention=_attention,
        avg_pool=_avg_pool,
        batch_norm=_batch_norm,
        conv=_conv,
        conv_transpose=_conv_transpose,
        cross_entropy=_cross_entropy,
        gated_delta_net=_gated_delta_net,
        group_norm=_group_norm,
        layer_norm=_layer_norm,
        max_pool=_max_pool,
        rms_norm=_rms_norm,
        rope=_rope,
        selective_scan=_selective_scan,
        complex=lax.complex,
        logcumsumexp=lax.cumlogsumexp,
        solve_triangular=solve_triangular,
        **others,
    )


JAX = library(jax, jnp, jax.nn, lax, solve_triangular, from_wirtinger=_from_wirtinger, to_wirtinger=_to_wirtinger)
# Gradients of complex numbers follow another convention here; see docs/coming_from_jax.md.
RLX_BY_IMPORT = library(
    *(rlx, rlx.numpy, rlx.nn, rlx.lax, rlx.scipy.linalg.solve_triangular),
    from_wirtinger=lambda ct: ct,
    to_wirtinger=lambda ct: ct,
)

# The ops that rlx has of its own, where JAX has formulas.
RLX = SimpleNamespace(
    np=rlx.numpy,
    nn=rlx.nn,
    **{name: getattr(rlx, name) for name in _TRANSFORMS},
    **{name: getattr(rlx, name) for name in _FUNCTIONS},
    attention=rlx.nn.dot_product_attention,
    avg_pool=rlx.nn.avg_pool,
    batch_norm=rlx.nn.batch_norm,
    complex=rlx.complex_,
    conv=rlx.nn.conv,
    conv_transpose=rlx.nn.conv_transpose,
    cross_entropy=rlx.nn.softmax_cross_entropy_with_integer_labels,
    from_wirtinger=lambda ct: ct,
    gated_delta_net=lambda q, *rest: rlx.gated_delta_net(q, *rest, q.shape[-1]),
    group_norm=rlx.nn.group_norm,
    layer_norm=rlx.nn.layer_norm,
    logcumsumexp=rlx.logcumsumexp,
    max_pool=rlx.nn.max_pool,
    rms_norm=rlx.nn.rms_norm,
    rope=rlx.nn.rope,
    selective_scan=lambda x, delta, a, b, c: rlx.selective_scan(x, delta, a, b, c, a.shape[1]),
    solve_triangular=lambda a, b, trans=0, lower=False: rlx.triangular_solve(a, b, lower=lower, transpose=trans == 1),
    to_wirtinger=lambda ct: ct,
)


def assert_agree(got, expected, tolerance):
    """Trees of the same structure, shapes and kinds of numbers, with values that differ by at most `tolerance`.

    An error is measured against the largest element of its array. Integers and bools must be equal; their width is
    left open, because JAX counts in 64 bits here and rlx in 32.
    """
    found, wanted = _leaves(got), _leaves(expected)
    assert list(found) == list(wanted)
    for place, y in wanted.items():
        x = found[place]
        assert x.shape == y.shape, f"{place}: shape {x.shape}, JAX has {y.shape}"
        assert x.dtype.kind == y.dtype.kind, f"{place}: dtype {x.dtype}, JAX has {y.dtype}"
        if x.dtype.kind not in "fc":
            np.testing.assert_array_equal(x, y, err_msg=place)
            continue
        assert x.dtype == y.dtype, f"{place}: dtype {x.dtype}, JAX has {y.dtype}"
        assert np.isfinite(y).all(), f"{place}: JAX gives {y}, with which nothing can be compared"
        worst = np.unravel_index(np.argmax(np.abs(x - y)), y.shape) if y.size else ()
        error, scale = np.abs(x - y).max(initial=0), np.abs(y).max(initial=0)
        assert error <= tolerance * scale, (
            f"{place}{list(worst)}: rlx {x[worst]}, JAX {y[worst]}; apart by {error:.2g}, largest {scale:.2g}"
        )


def _leaves(tree):
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in pairs}
