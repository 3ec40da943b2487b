"""Transforms: derivatives in both modes, batching, and what is built from them.

`grad`, `jvp`, `hvp` and `vmap` act on a graph when they are given one, and on a Python function otherwise. All other
names belong to one of the two; they are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from rlx.autodiff.batching import batch_graph
from rlx.autodiff.forward import push_forward
from rlx.autodiff.reverse import pull_back
from rlx.ir.graph import Graph
from rlx.ops.control.body_transforms import Engines, set_engines

# The rules of control-flow ops transform the programs inside them.
set_engines(Engines(push_forward, pull_back, batch_graph))

# Public name -> module that defines it.
_HOME: dict[str, str] = {
    **dict.fromkeys(("hessian", "jacfwd", "jacrev", "linearize", "value_and_grad", "vjp"), "functions"),
    **dict.fromkeys(
        ("checkpoint", "custom_gradient", "custom_jvp", "custom_vjp", "keep_precision", "remat", "stop_gradient"),
        "custom_rules",
    ),
    "shard_map": "sharded_functions",
    **dict.fromkeys(
        ("GradWithLossOptions", "grad_with_loss", "grad_with_loss_opts", "quantized_weight_bits"), "graphs"
    ),
    **dict.fromkeys(
        (
            "PrepareForAutodiff",
            "convert_scans_for_ad",
            "decompose_fusion_regions",
            "fuse_decomposed_gaussian_splat",
            "inline_custom_fn_for_autodiff",
            "legalize_multi_axis_reduce",
            "lower_dot_general",
            "prepare_graph_for_ad",
            "prepare_mir_for_ad",
            "unfuse_fused_for_autodiff",
        ),
        "prepare",
    ),
    **dict.fromkeys(
        (
            "decompose_backward_for_ad",
            "decompose_backward_ops",
            "decompose_backward_ops_except",
            "internalize_d_output",
            "prepare_grad_graph_for_jvp",
        ),
        "backward_ops",
    ),
    **dict.fromkeys(
        (
            "HigherOrderOptions",
            "cse",
            "directional_nth_grad",
            "fuse_elementwise",
            "nth_order_grad",
            "nth_order_grad_with_options",
            "peel_scalar_expands",
        ),
        "higher_order",
    ),
    **dict.fromkeys(
        ("ForceEnergyLossWeights", "build_force_energy_loss", "grad_subgraph", "grad_subgraph_for_jvp"), "forces"
    ),
    **dict.fromkeys(
        (
            "MirAutodiffExt",
            "WrongStage",
            "grad_with_loss_module",
            "hvp_module",
            "jvp_module",
            "nth_order_grad_module",
            "prepare_module_for_ad",
        ),
        "modules",
    ),
    **dict.fromkeys(
        ("AutodiffError", "NoGradient", "NoJvpRule", "NoVjpRule", "NoVmapRule", "UnboundedWhile", "UnregisteredOp"),
        "rlx.errors",
    ),
}


def _on(target: Any, name: str, function_module: str, args: Any, kwargs: Any) -> Any:
    module = "rlx.autodiff.graphs" if isinstance(target, Graph) else f"rlx.autodiff.{function_module}"
    return getattr(importlib.import_module(module), name)(target, *args, **kwargs)


def grad(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Gradients. `grad(fn, argnums=0, has_aux=False)` is a function; `grad(graph, wrt, seed="d_output")` a graph.

    >>> import numpy as np, rlx
    >>> rlx.grad(lambda x: x**3)(2.0).tolist()
    12.0
    """
    return _on(target, "grad", "functions", args, kwargs)


def jvp(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Forward mode. `jvp(fn, primals, tangents)` gives value and derivative; `jvp(graph, tangent_for)` a graph."""
    return _on(target, "jvp", "functions", args, kwargs)


def hvp(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Hessian times vector. `hvp(fn, primals, tangents)` gives the product; `hvp(graph, wrt)` a graph."""
    return _on(target, "hvp", "functions", args, kwargs)


def vmap(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Batching. `vmap(fn, in_axes=0, out_axes=0, axis_size=None, axis_name=None)` is a function;
    `vmap(graph, batched, batch_size)` a graph.

    >>> import numpy as np, rlx
    >>> rlx.vmap(lambda x, y: x * y, in_axes=(0, None))(np.arange(3.0), 2.0).tolist()
    [0.0, 2.0, 4.0]
    """
    return _on(target, "vmap", "vectorize", args, kwargs)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlx.autodiff' has no attribute {name!r}")
    module = importlib.import_module(home if home.startswith("rlx.") else f"rlx.autodiff.{home}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
