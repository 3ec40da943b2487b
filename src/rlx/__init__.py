"""rlx: an ML compiler and runtime for transformer inference and training, in Python.

Two front doors, one engine. Graphs:

    g = rlx.Graph("hello")
    x = g.input("x", ("B", 4), "f32")
    w = g.param("w", (4, 2), "f32")
    g.set_outputs([rlx.relu(x @ w)])
    c = rlx.Session("cpu").compile(g)

and Python functions: `rlx.jit(lambda p, x: rlx.nn.softmax(x @ p["w"]))`.

Names are loaded on first use. What is not listed in `_HOME` is looked up among the functions of `rlx.ops`.
"""

from __future__ import annotations

import importlib
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from rlx import errors as errors
from rlx.collector import collector_at_rest
from rlx.errors import RlxError as RlxError

# At once: importing the module later would put the module in the place of the object of the same name.
from rlx.knobs import knobs as knobs

# The base of all errors, under the name that the prelude gives it.
Error = RlxError

__version__ = "0.1.0"

# Public name -> module that defines it.
_HOME: dict[str, str] = {
    **dict.fromkeys(("DType", "Element", "ElementSubtype"), "rlx.ir.dtype"),
    **dict.fromkeys(("default_float", "promote", "scalar_constant_bytes"), "rlx.ir.dtype"),
    **dict.fromkeys(("Dim", "DimEnv", "sym"), "rlx.ir.dims"),
    "DimBinding": "rlx.ir.dim_binding",
    "Shape": "rlx.ir.shape",
    **dict.fromkeys(("Graph", "Node", "NodeId"), "rlx.ir.graph"),
    "Tensor": "rlx.ir.tensor",
    **dict.fromkeys(("Op", "OpKind", "NoRule", "kind_of"), "rlx.ir.op"),
    **dict.fromkeys(("parse", "show"), "rlx.ir.text.graph_text"),
    **dict.fromkeys(("verify", "verify_all", "verify_shapes", "VerifyError"), "rlx.ir.verify"),
    **dict.fromkeys(("save_graph", "load_graph"), "rlx.ir.serialize"),
    **dict.fromkeys(("NodeOrigin", "named_scope", "node_label", "stamp_pass_origins"), "rlx.ir.provenance"),
    **dict.fromkeys(("GraphModule", "GraphStage", "MirModule"), "rlx.ir.module"),
    **dict.fromkeys(("FusionPolicy", "HirModule", "HirOp", "hir_to_graph"), "rlx.hir"),
    **dict.fromkeys(("LirModule", "LirBufferPlan"), "rlx.ir.lir"),
    **dict.fromkeys(
        (
            "inspect_graph",
            "inspect_graph_diff",
            "inspect_hir",
            "inspect_hir_stats",
            "inspect_mir",
            "inspect_mir_stats",
            "inspect_mir_diff",
            "inspect_lir",
            "inspect_buffer_plan",
        ),
        "rlx.ir.text.inspect",
    ),
    **dict.fromkeys(
        ("CompilePipeline", "CompileResult", "TrainingCompileError", "TrainingCompileResult"), "rlx.compile.compiler"
    ),
    **dict.fromkeys(
        ("PipelineInspect", "inspect_compiled", "inspect_pipeline", "maybe_dump_pipeline"), "rlx.compile.inspect"
    ),
    "CompileReport": "rlx.compile.report.report",
    **dict.fromkeys(("QuantScheme", "QuantMap"), "rlx.quant.schemes"),
    **dict.fromkeys(("Tick", "CacheBuster", "time_ns"), "rlx.compat.measure"),
    "Philox4x32": "rlx.ir.rng",
    **dict.fromkeys(("Session",), "rlx.runtime.session"),
    "threads": "rlx.backends.cpu.threads",
    **dict.fromkeys(("Device", "is_available", "available_devices"), "rlx.runtime.device"),
    "CompiledGraph": "rlx.runtime.compiled_graph",
    "load_compiled": "rlx.runtime.compiled_graph",
    "CompileOptions": "rlx.backends.compile_options",
    **dict.fromkeys(("compile_count", "compile_log", "clear_compile_cache"), "rlx.runtime.compile_cache"),
    "Array": "rlx.runtime.arrays",
    **dict.fromkeys(("DeviceArray", "device_put", "make_array_from_callback"), "rlx.runtime.device_arrays"),
    **dict.fromkeys(("Mesh", "NamedSharding", "P", "PartitionSpec"), "rlx.sharding"),
    **dict.fromkeys(("devices", "make_mesh"), "rlx.runtime.meshes"),
    "with_sharding_constraint": "rlx.trace.shardings",
    **dict.fromkeys(("disable_jit", "jit"), "rlx.trace.jit"),
    **dict.fromkeys(("eval_shape", "make_graph"), "rlx.trace.abstract"),
    "debug_nans": "rlx.trace.nan_checks",
    "pure_callback": "rlx.trace.callbacks",
    "Spec": "rlx.trace.tracing",
    **dict.fromkeys(("scan", "cond", "switch", "while_loop", "fori_loop", "map"), "rlx.trace.control"),
    **dict.fromkeys(
        (
            "checkpoint",
            "custom_gradient",
            "custom_jvp",
            "custom_vjp",
            "grad",
            "grad_with_loss",
            "hessian",
            "hvp",
            "jacfwd",
            "jacrev",
            "jvp",
            "keep_precision",
            "linearize",
            "remat",
            "shard_map",
            "stop_gradient",
            "value_and_grad",
            "vjp",
            "vmap",
        ),
        "rlx.autodiff",
    ),
    **dict.fromkeys(
        (
            "CalibrationRecord",
            "FusionOptions",
            "FusionReport",
            "FusionTarget",
            "MissReason",
            "MissedFusion",
            "Pass",
            "Precision",
            "PrecisionPolicy",
            "fusion_passes",
            "fusion_passes_for_supported",
            "supported_for_target",
            "supports_op",
        ),
        "rlx.opt",
    ),
    **dict.fromkeys(("pipeline_schedule", "rlx_model"), "rlx.macros"),
    **dict.fromkeys(
        ("ShapeDtypeStruct", "block_until_ready", "clear_caches", "default_backend", "device_get", "jacobian"),
        "rlx.jax_names",
    ),
    **dict.fromkeys(("linear_transpose", "make_jaxpr", "named_call", "typeof"), "rlx.jax_names"),
    "load": "rlx.models.language_model",
    "load_classifier": "rlx.models.text_classifier",
    "load_encoder": "rlx.models.text_encoder",
    "load_seq2seq": "rlx.models.seq2seq_model",
    "load_speech": "rlx.models.speech_model",
    "load_vision": "rlx.models.vision_model",
}
# Attributes that are modules.
_MODULES = frozenset(
    {"numpy", "nn", "random", "debug", "tree", "ops", "ir", "hir", "trace", "autodiff", "fusion", "compile"}
    | {"backends", "runtime", "opt", "env", "formats", "models", "optim", "train", "sparse", "splat", "audio", "rf"}
    | {"quant", "gguf", "linalg", "bench", "prelude", "driver", "macros", "cortexm", "fpga", "compat", "errors"}
    | {"lax", "image", "scipy", "tree_util", "flatten_util", "jax_names"}
    | {"onnx", "finetune", "quantized", "sharding", "distributed", "planning"}
)
# Folders of ops whose functions `dir` shows; gradients, quantised and fused ops are found in `rlx.ops`.
_SHOWN_OPS = ("pointwise", "shape", "reduction", "linalg", "nn", "attn", "control", "parallel")

if TYPE_CHECKING:
    from rlx.ir.dims import Dim as Dim
    from rlx.ir.dtype import DType as DType
    from rlx.ir.graph import Graph as Graph
    from rlx.ir.op import Op as Op
    from rlx.ir.shape import Shape as Shape
    from rlx.ir.tensor import Tensor as Tensor
    from rlx.ir.text.graph_text import parse as parse
    from rlx.ir.text.graph_text import show as show
    from rlx.runtime.arrays import Array as Array
    from rlx.runtime.compiled_graph import CompiledGraph as CompiledGraph
    from rlx.runtime.session import Session as Session


# Names of the Rust RLX and of JAX that work here and are found in their own documents.
_UNSHOWN = frozenset(
    {"CacheBuster", "CalibrationRecord", "HirOp", "MissReason", "MissedFusion", "Philox4x32", "Tick"}
    | {"attention_kind_op", "fusion_passes_for_supported", "custom_op_packed", "pad_mode"}
    | {"TrainingCompileError", "TrainingCompileResult", "hir_to_graph", "maybe_dump_pipeline", "node_label"}
    | {
        "block_until_ready",
        "checkpoint_name",
        "compat",
        "custom_gradient",
        "device_get",
        "collective_over_leading_axis",
        "flatten_util",
        "gated_delta_net_carry",
        "image",
        "linear_transpose",
        "reference_collective",
        "remat",
        "tree_util",
    }
    | {
        "ShapeDtypeStruct",
        "clear_caches",
        "default_backend",
        "jacobian",
        "jax_names",
        "make_jaxpr",
        "named_call",
        "typeof",
    }
    | {"pipeline_schedule", "rlx_model", "scalar_constant_bytes", "stamp_pass_origins", "time_ns"}
    | {"segment_max", "segment_min", "segment_prod", "segment_sum"}
)


def _load(module: str) -> ModuleType:
    with collector_at_rest():
        return importlib.import_module(module)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _load(f"rlx.{name}")
    if name == "checkpoint_policies":
        return _load("rlx.autodiff.checkpoint_policies")
    if name.startswith("_"):
        _refuse(name)
    # Ops must be known before any graph is built, and the runtime before anything runs.
    ops = _load("rlx.ops")
    _load("rlx.runtime")
    if name in _HOME:
        value = getattr(_load(_HOME[name]), name)
    elif hasattr(ops, name) and not isinstance(getattr(ops, name), ModuleType):
        value = getattr(ops, name)
    elif name in (known := _load("rlx.ir.op").OP_CLASSES):
        value = known[name]
    else:
        _refuse(name)
    globals()[name] = value
    return value


def _refuse(name: str) -> NoReturn:
    """Names of other libraries are loaded for this error alone."""
    from rlx.foreign_names import no_attribute

    no_attribute("rlx", name)


def __dir__() -> list[str]:
    """What users type. Op functions that `rlx.numpy` or `rlx.linalg` has under the same name are shown there."""
    ops, arrays, matrices = (importlib.import_module(f"rlx.{name}") for name in ("ops", "numpy", "linalg"))
    elsewhere = {*dir(arrays), *dir(matrices), *(f"{name}_" for name in dir(arrays))}
    functions = {
        name
        for name, value in ((name, getattr(ops, name)) for name in dir(ops) if not name.startswith("_"))
        if isinstance(value, FunctionType) and value.__module__.split(".")[2] in _SHOWN_OPS
    }
    shown = {n for n in functions - elsewhere if "backward" not in n and not n.startswith("scan_")}
    always = {"__version__", "RlxError", "checkpoint_policies", "knobs"}
    return sorted({*always, *_HOME, *_MODULES, *shown} - _UNSHOWN)
