"""Optimisers by name. Settings have the names and defaults that optax gives them.

`learning_rate` is a number or a schedule. `mask` chooses the parameters that decay; see `masked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rlx import tree
from rlx.optim.combinators import chain, partition
from rlx.optim.factored import scale_by_factored_rms
from rlx.optim.moments import ema, scale_by_adadelta, scale_by_adam, scale_by_belief, scale_by_lion, trace
from rlx.optim.orthogonal import QUINTIC, scale_by_muon, scale_by_shape
from rlx.optim.transformation import (
    GradientTransformation,
    Mask,
    Rate,
    add_decayed_weights,
    clip_by_block_rms,
    identity,
    scale,
    scale_by_learning_rate,
    scale_by_param_block_rms,
    scale_by_trust_ratio,
)

__all__ = ["adabelief", "adadelta", "adafactor", "adam", "adamw", "lamb", "lion", "muon", "nadam", "nadamw", "sgd"]


def sgd(
    learning_rate: Rate, momentum: float | None = None, nesterov: bool = False, accumulator_dtype: Any = None
) -> GradientTransformation:
    """Gradient descent, with momentum t = g + momentum·t when it is given."""
    direction = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(direction, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Kingma and Ba 2014; with `nesterov` it is NAdam."""
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(direction, scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: Rate = 1e-4,
    mask: Mask = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam whose weights also shrink by learning_rate·weight_decay in every update (Loshchilov and Hutter 2017)."""
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


nadam = partial(adam, nesterov=True)
nadam.__doc__ = "Adam with Nesterov's momentum (Dozat 2016)."
nadamw = partial(adamw, nesterov=True)
nadamw.__doc__ = "AdamW with Nesterov's momentum."


def adabelief(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam that takes long steps where gradients are as expected, and short ones elsewhere (Zhuang et al. 2020)."""
    return chain(scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov), scale_by_learning_rate(learning_rate))


def adadelta(
    learning_rate: Rate | None = None,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: Rate = 0.0,
    weight_decay_mask: Mask = None,
) -> GradientTransformation:
    """Steps as large as past ones were for such gradients (Zeiler 2012); the rate is 1 unless given."""
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(1.0 if learning_rate is None else learning_rate),
    )


def lion(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: Any = None,
    weight_decay: Rate = 1e-3,
    mask: Mask = None,
) -> GradientTransformation:
    """Steps of one size in the direction of signs (Chen et al. 2023); wants a rate 3 to 10 times below Adam's."""
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lamb(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: Rate = 0.0,
    mask: Mask = None,
) -> GradientTransformation:
    """AdamW whose step of each leaf is as large as the leaf, for very large batches (You et al. 2019)."""
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


def adafactor(
    learning_rate: Rate | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    dtype_momentum: Any = "f32",
    weight_decay_rate: Rate | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: Mask = None,
) -> GradientTransformation:
    """Adam's idea with states of the size of rows and columns (Shazeer and Stern 2018)."""
    parts = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        parts.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        parts.append(scale_by_param_block_rms())
    if momentum is not None:
        parts.append(ema(momentum, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay_rate is not None:
        parts.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*parts, scale(-1.0))


def muon(
    learning_rate: Rate,
    ns_coeffs: Sequence[float] = QUINTIC,
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: Rate = 0.0,
    weight_decay_mask: Mask = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps_root: float = 0.0,
    adam_weight_decay: Rate = 0.0,
    adam_learning_rate: Rate | None = None,
    consistent_rms: float | None = None,
    labels: Any = None,
) -> GradientTransformation:
    """Orthogonalised momentum for matrices, AdamW for everything else (Jordan 2024).

    `labels` says which is which: a tree of "muon" and "adam", or a function of the parameters that gives one.
    Embeddings are matrices too, and are usually better left to "adam".
    """

    def by_rank(params: Any) -> Any:
        return tree.map(lambda p: "muon" if len(p.shape) == 2 else "adam", params)

    matrices = chain(
        scale_by_muon(ns_steps, ns_coeffs, beta, eps, mu_dtype, nesterov=nesterov),
        scale_by_shape(consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return partition({"muon": matrices, "adam": others}, by_rank if labels is None else labels)
