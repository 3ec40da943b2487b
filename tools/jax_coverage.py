"""Which names of JAX beyond jax.numpy rlx has, and why not others: a part of docs/numpy_coverage.md.

Names are those of JAX 0.10 without modules and without primitives (`add_p`), which are what JAX's own programs are made
of; here those are the classes of `rlx.ops`. A test under `peers` holds the lists to the JAX that is installed.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple


class Module(NamedTuple):
    """Where rlx has the names of a module of JAX, these names, and reasons for those that are missing."""

    home: str
    names: str
    absent: dict[str, str]


MODULES = {
    "jax": Module(
        "rlx",
        """
            Array Device NamedSharding P Ref ShapeDtypeStruct Shard ad allow_f16_reductions
            array_garbage_collection_guard auto_pcast block_until_ready check_tracer_leaks checking_leaks checkpoint
            checkpoint_policies clear_caches closure_convert config copy_to_host_async custom_gradient custom_jvp
            custom_vjp debug_infs debug_key_reuse debug_nans default_backend default_device default_matmul_precision
            default_prng_impl device_count device_get device_put devices disable_jit ds effects_barrier empty_ref
            enable_checks enable_custom_prng enable_x64 ensure_compile_time_eval eval_shape explain_cache_misses
            float0 free_ref freeze fwd_and_bwd grad hessian host_count host_id host_ids jacfwd jacobian jacrev
            jax2tf_associative_scan_reductions jit jvp legacy_prng_key linear_transpose linearize live_arrays
            local_device_count local_devices log_compiles make_array_from_callback
            make_array_from_process_local_data make_array_from_single_device_arrays make_jaxpr make_mesh
            make_user_context memory named_call named_scope new_ref no_execution no_tracing numpy_dtype_promotion
            numpy_rank_promotion pmap print_environment_info process_count process_index process_indices
            pure_callback remat remove_size_one_mesh_axis_from_type reshard set_mesh shard_map smap
            softmax_custom_jvp thread_guard threefry_partitionable transfer_guard transfer_guard_device_to_device
            transfer_guard_device_to_host transfer_guard_host_to_device typeof value_and_grad vjp vmap
        """,
        {
            (
                "settings of JAX; knobs are in docs/knobs.md, 64-bit types are always there, "
                "`rlx.default_float` chooses the default"
            ): """
                allow_f16_reductions array_garbage_collection_guard auto_pcast check_tracer_leaks checking_leaks
                config debug_infs debug_key_reuse default_device default_matmul_precision default_prng_impl
                enable_checks enable_custom_prng enable_x64 explain_cache_misses jax2tf_associative_scan_reductions
                legacy_prng_key live_arrays log_compiles make_user_context no_execution no_tracing
                numpy_dtype_promotion numpy_rank_promotion print_environment_info softmax_custom_jvp thread_guard
                threefry_partitionable transfer_guard transfer_guard_device_to_device transfer_guard_device_to_host
                transfer_guard_host_to_device
            """,
            "values that change; state is passed and returned": """
                Ref ds effects_barrier empty_ref free_ref freeze memory new_ref
            """,
            "one process sees its devices by `rlx.devices`; `rlx.distributed` has the processes": """
                Shard copy_to_host_async device_count host_count host_id host_ids local_device_count local_devices
                make_array_from_process_local_data make_array_from_single_device_arrays process_count process_index
                process_indices
            """,
            "older or other forms of `shard_map` and meshes; `jit(in_shardings=)` and `with Mesh` are here": """
                pmap remove_size_one_mesh_axis_from_type reshard set_mesh smap
            """,
            "`rlx.custom_vjp` says the same": "closure_convert fwd_and_bwd",
            "integers have zero derivatives of their own type; constants are folded without asking": """
                ensure_compile_time_eval float0
            """,
            "a name of JAX's own modules": "ad",
        },
    ),
    "jax.random": Module(
        "rlx.random",
        """
            PRNGKey ball bernoulli beta binomial bits categorical cauchy chisquare choice clone dirichlet
            double_sided_maxwell exponential f fold_in gamma generalized_normal geometric gumbel key key_data
            key_dtype key_impl laplace loggamma logistic lognormal maxwell multinomial multivariate_normal normal
            orthogonal pareto permutation poisson rademacher randint rayleigh split t triangular truncated_normal
            uniform wald weibull_min wrap_key_data
        """,
        {
            "there is one kind of keys, two 32-bit numbers of Philox": "key_dtype key_impl",
        },
    ),
    "jax.lax": Module(
        "rlx.lax",
        """
            AccuracyMode ConvDimensionNumbers ConvGeneralDilatedDimensionNumbers DotAlgorithm DotAlgorithmPreset
            DotDimensionNumbers FftType GatherDimensionNumbers GatherScatterMode Precision PrecisionLike
            RaggedDotDimensionNumbers RandomAlgorithm RoundingMethod ScatterDimensionNumbers Tolerance abs acos
            acosh add after_all all_gather all_to_all approx_max_k approx_min_k argmax argmin asin asinh
            associative_scan atan atan2 atanh axis_index axis_size batch_matmul bessel_i0e bessel_i1e betainc
            bitcast_convert_type bitwise_and bitwise_not bitwise_or bitwise_xor broadcast broadcast_in_dim
            broadcast_like broadcast_shapes broadcast_to_rank broadcasted_iota cbrt ceil clamp clz collapse complex
            composite concatenate cond conj conv conv_dimension_numbers conv_general_dilated
            conv_general_dilated_local conv_general_dilated_patches conv_general_permutations
            conv_general_shape_tuple conv_shape_tuple conv_transpose conv_transpose_shape_tuple
            conv_with_general_padding convert_element_type cos cosh create_token cumlogsumexp cummax cummin cumprod
            cumsum custom_linear_solve custom_root dce_sink digamma div dot dot_general dtype dynamic_index_in_dim
            dynamic_slice dynamic_slice_in_dim dynamic_update_index_in_dim dynamic_update_slice
            dynamic_update_slice_in_dim empty eq erf erf_inv erfc exp exp2 expand_dims expm1 fft floor fori_loop
            full full_like gather ge gt igamma igamma_grad_a igammac imag index_in_dim index_take integer_pow iota
            is_finite le lgamma log log1p logistic lt map max min mul mulhi ne neg nextafter optimization_barrier
            pad padtype_to_pads pbroadcast pcast platform_dependent pmax pmean pmin polygamma population_count pow
            ppermute precv psend pshuffle psum psum_scatter pswapaxes ragged_all_to_all ragged_dot
            ragged_dot_general random_gamma_grad real reciprocal reduce reduce_and reduce_max reduce_min reduce_or
            reduce_precision reduce_prod reduce_sum reduce_window reduce_window_shape_tuple reduce_xor rem reshape
            rev rng_bit_generator rng_uniform round rsqrt scaled_dot scan scatter scatter_add scatter_apply
            scatter_max scatter_min scatter_mul scatter_sub select select_n shape_as_value shift_left
            shift_right_arithmetic shift_right_logical sign sin sinh slice slice_in_dim sort sort_key_val split sqrt
            square squeeze stack stage stop_gradient sub switch tan tanh tile top_k transpose unstack while_loop
            with_sharding_constraint zeta
        """,
        {
            "numbers of axes in XLA's form; index with `x[...]`, `x.at[...]`, `rlx.numpy.take`": """
                GatherDimensionNumbers GatherScatterMode ScatterDimensionNumbers gather index_take scatter
                scatter_add scatter_apply scatter_max scatter_min scatter_mul scatter_sub
            """,
            "records of settings; strings and tuples are accepted in their place": """
                AccuracyMode ConvGeneralDilatedDimensionNumbers DotAlgorithm DotAlgorithmPreset DotDimensionNumbers
                RaggedDotDimensionNumbers RandomAlgorithm Tolerance
            """,
            "sizes of results; `rlx.eval_shape` tells them": """
                conv_general_permutations conv_general_shape_tuple conv_shape_tuple conv_transpose_shape_tuple
                reduce_window_shape_tuple shape_as_value
            """,
            "order of effects; programs have none": "after_all create_token dce_sink stage",
            "a kernel of its own for every place; write it with `conv_general_dilated_patches` and einsum": """
                conv_general_dilated_local
            """,
            "types of sharded values, and single messages; `ppermute` and `all_to_all` move data": """
                pbroadcast pcast precv psend ragged_all_to_all
            """,
            "`rlx.jit(device=)` chooses; a function asks `rlx.default_backend()`": "platform_dependent",
            "randomness needs explicit keys; see rlx.random": "random_gamma_grad rng_bit_generator rng_uniform",
            (
                "products with scales or groups in other forms; `ragged_dot`, `rlx.ops.grouped_matmul` and "
                "quantised products are here"
            ): """
                ragged_dot_general scaled_dot
            """,
            "a function under a name; `rlx.named_scope`, or an op of your own": "composite",
            "`broadcast_to_rank` and `broadcast_in_dim`": "broadcast_like",
        },
    ),
    "jax.lax.linalg": Module(
        "rlx.lax.linalg",
        """
            EigImplementation EighImplementation SvdAlgorithm cholesky cholesky_update eig eigh hessenberg
            householder_product lu lu_pivots_to_permutation ormqr qdwh qr schur svd symmetric_product
            triangular_solve tridiagonal tridiagonal_solve
        """,
        {
            "choices among LAPACK's routines": "EigImplementation EighImplementation SvdAlgorithm",
            "parts of factorisations; `qr`, `eigh`, `schur`, `polar` of rlx.linalg give what is made of them": """
                cholesky_update hessenberg householder_product ormqr qdwh tridiagonal
            """,
        },
    ),
    "jax.nn": Module(
        "rlx.nn",
        """
            celu dot_product_attention elu gelu get_scaled_dot_general_config glu hard_sigmoid hard_silu hard_swish
            hard_tanh identity leaky_relu log1mexp log_sigmoid log_softmax logmeanexp logsumexp mish one_hot relu
            relu6 scaled_dot_general scaled_matmul selu sigmoid silu soft_sign softmax softplus sparse_plus
            sparse_sigmoid squareplus standardize swish tanh
        """,
        {
            "fp8 products with scales; quantised weights (`rlx.quant`) have forms of their own": """
                get_scaled_dot_general_config scaled_dot_general scaled_matmul
            """,
        },
    ),
    "jax.nn.initializers": Module(
        "rlx.nn.initializers",
        """
            Initializer constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal
            kaiming_uniform lecun_normal lecun_uniform normal ones orthogonal truncated_normal uniform
            variance_scaling xavier_normal xavier_uniform zeros
        """,
        {},
    ),
    "jax.scipy.special": Module(
        "rlx.scipy.special",
        """
            bernoulli bessel_jn beta betainc betaln boxcox boxcox1p comb dawsn digamma entr erf erfc erfcx erfinv
            exp1 expi expit expn factorial fresnel gamma gammainc gammaincc gammaln gammasgn hyp1f1 hyp2f1 i0 i0e i1
            i1e kl_div log_ndtr log_softmax loggamma logit logsumexp multigammaln ndtr ndtri owens_t poch polygamma
            rel_entr sici softmax spence sph_harm_y wofz xlog1py xlogy zeta
        """,
        {},
    ),
    "jax.scipy.signal": Module(
        "rlx.scipy.signal",
        "convolve convolve2d correlate correlate2d csd detrend fftconvolve istft stft welch",
        {},
    ),
    "jax.scipy.fft": Module("rlx.scipy.fft", "dct dctn idct idctn", {}),
    "jax.scipy.ndimage": Module("rlx.scipy.ndimage", "map_coordinates", {}),
    "jax.scipy.interpolate": Module("rlx.scipy.interpolate", "RegularGridInterpolator", {}),
    "jax.scipy.integrate": Module("rlx.scipy.integrate", "trapezoid", {}),
    "jax.scipy.optimize": Module("rlx.scipy.optimize", "OptimizeResults minimize", {}),
    "jax.scipy.sparse.linalg": Module("rlx.scipy.sparse.linalg", "bicgstab cg gmres", {}),
    "jax.tree": Module(
        "rlx.tree",
        """
            all broadcast flatten flatten_with_path leaves leaves_with_path map map_with_path reduce
            reduce_associative static structure transpose unflatten
        """,
        {},
    ),
    "jax.tree_util": Module(
        "rlx.tree_util",
        """
            DictKey FlattenedIndexKey GetAttrKey KeyEntry KeyPath Partial PyTreeDef SequenceKey all_leaves
            default_registry flatten_one_level flatten_one_level_with_keys is_tree_node keystr register_dataclass
            register_pytree_node register_pytree_node_class register_pytree_with_keys
            register_pytree_with_keys_class register_static tree_all tree_broadcast tree_flatten
            tree_flatten_with_path tree_leaves tree_leaves_with_path tree_map tree_map_with_path tree_reduce
            tree_reduce_associative tree_structure tree_transpose tree_unflatten treedef_children treedef_is_leaf
            treedef_tuple
        """,
        {
            "steps of paths; paths are tuples of keys, positions and names here": """
                DictKey FlattenedIndexKey GetAttrKey KeyEntry KeyPath SequenceKey register_pytree_with_keys
                register_pytree_with_keys_class
            """,
            "`TreeDef` has methods": """
                default_registry flatten_one_level flatten_one_level_with_keys is_tree_node treedef_children
                treedef_is_leaf treedef_tuple
            """,
        },
    ),
}


def absent_from(module: Module) -> list[str]:
    """Names of JAX that rlx has not; an error when one has no reason, or a present one has."""
    home = importlib.import_module(module.home)
    missing = [n for n in module.names.split() if not hasattr(home, n)]
    reasons = {n for names in module.absent.values() for n in names.split()}
    if {*missing} != reasons:
        raise SystemExit(
            f"jax_coverage: {module.home}: give a reason for {sorted({*missing} - reasons)}; "
            f"remove the reason for {sorted(reasons - {*missing})}"
        )
    return missing


def section() -> list[str]:
    """Lines of the page."""
    lines = ["## JAX beyond jax.numpy", "", "Modules and primitives (`add_p`) are left out.", ""]
    lines += ["| JAX 0.10 | rlx | names | present |", "|---|---|---|---|"]
    details = []
    for name, module in MODULES.items():
        count, missing = len(module.names.split()), absent_from(module)
        lines.append(f"| {name} | {module.home} | {count} | {count - len(missing)} |")
        for reason, names in module.absent.items():
            details.append(f"| {name} | {reason} | {' '.join(f'`{n}`' for n in sorted(names.split()))} |")
    return [*lines, "", "| of | why absent, or what to use | names |", "|---|---|---|", *details, ""]
